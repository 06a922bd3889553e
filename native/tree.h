/* A tree of files packed into memory, and unpacked again: what a snapshot is made of.
 *
 * A tree is a list of entries (names, types, modes, times, links) and, for each, a block in a store: what the file
 * holds (only its data where it has holes) or where a link points to, then its extended attributes. Blocks never
 * change, so a tree that is packed again shares those that are the same; they are compared, since a write through a
 * mapping leaves no trace in a file's times. Large trees are worked on by a few threads.
 *
 * Nothing may change the tree meanwhile. Owners are not kept: there is one id in a sandbox. Change times and which
 * holes of a file have space allocated (only how much) are not restored; inode numbers and the order of listings are
 * either all as they were or all new, so that they do not tell what was touched since.
 */
#pragma once

#include "sandbox.h"

#define NONE (~0u)
#define SHARE 256             /* files that a thread takes at once */
#define THREADS 4             /* that work on one tree, each with at most one file in memory */
#define CAPACITY (1ull << 38) /* of a store; address space only, memory comes with use */

struct store { /* blocks, in a file in memory; only its maker knows how much is `used` */
    int fd;
    char *data;
    uint64_t used;
};

struct entry { /* up to `at` it is part of the manifest */
    uint32_t parent;
    uint32_t twin; /* the first name of the same file; of a directory: its first child */
    uint32_t mode, name, pieces;
    uint32_t loose; /* 0: the block is the file as it is; else 1 and how many pages are allocated, but not written */
    uint32_t attributes, device;
    uint64_t size; /* of a directory: how many children */
    uint64_t stored;
    struct timespec times[2];
    uint64_t at, inode;
    uint32_t store, links;
};

struct tree {
    struct entry *entries; /* the first is the root; parents come before their children */
    char *text;            /* names */
    uint32_t count, text_size;
    uint32_t disk; /* the one that its inode numbers are of; for snapshot.c */
};

int store_open(struct store *store);
int store_share(struct store *store, int fd);
int tree_pack(int root, const char *skip, struct store *stores, const struct tree *base, struct tree *tree);
int tree_unpack(int root, const struct store *stores, struct tree *tree); /* into an empty directory */
/* Over the files that it was packed from or unpacked to. -1 where one of them is gone or replaced: half is done then. */
int tree_renew(int root, const struct store *stores, struct tree *tree);
void tree_hash(const struct store *stores, const struct tree *tree, unsigned char into[32]);

/* ---- for pack.c and unpack.c ---- */

struct buffer {
    char *data;
    size_t size, room;
};
int reserve(struct buffer *buffer, size_t more);
int append(struct buffer *buffer, const void *data, size_t size);

const char *block_of(const struct store *stores, const struct entry *entry);

struct cursor { /* a descriptor that moves from directory to directory, so that depth and length do not matter */
    const struct tree *tree;
    int root, fd;
    uint32_t at, *way;
    size_t room;
};
struct cursor cursor_at(const struct tree *tree, int root);
int cursor_to(struct cursor *cursor, uint32_t to); /* a descriptor of the directory, or -1 */
void cursor_close(struct cursor *cursor);

struct worker { /* one of the threads, with what it keeps for itself */
    struct cursor cursor;
    struct buffer spare;
    uint64_t at, end; /* of the store, for its next blocks: several threads in one page wait for each other */
};

struct job;
typedef int visit(struct job *job, struct worker *worker, uint32_t i);
struct job {
    struct tree *tree;
    const struct tree *base; /* to share with, or NULL */
    const uint32_t *twins;   /* by entry: the one of the same path in the base, or NONE */
    struct store *stores;
    int root;
    visit *visit;
    uint32_t share, next;
    int error;
};
int each(struct job *job, visit *visit, uint32_t share); /* all entries, by several threads, so many at once */
