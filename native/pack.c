/* Packing: from a directory to a tree in memory. See tree.h. */
#define _GNU_SOURCE
#include "tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define PIECE (64ull << 10) /* of the store, that a thread takes at once */

static int by_name(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

/* What is in one directory: its names, sorted; before each is its type. Kept for the next one. */
struct listing {
    struct buffer text, names;
};

static int names_in(int fd, const char *skip, struct listing *found)
{
    DIR *directory = fdopendir(openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    int failed = !directory;
    found->text.size = found->names.size = 0;
    for (struct dirent *next; !failed && (errno = 0, next = readdir(directory));) {
        if (!strcmp(next->d_name, ".") || !strcmp(next->d_name, "..") || (skip && !strcmp(next->d_name, skip)))
            continue;
        const size_t at = found->text.size + 1; /* the text may move */
        failed = append(&found->text, &next->d_type, 1) || append(&found->names, &at, sizeof at) ||
                 append(&found->text, next->d_name, strlen(next->d_name) + 1);
    }
    failed |= errno != 0; /* of readdir */
    if (directory)
        closedir(directory);
    char **names = (char **)found->names.data;
    const size_t count = found->names.size / sizeof *names;
    for (size_t n = 0; n < count; n++)
        names[n] = found->text.data + (size_t)names[n];
    if (count)
        qsort(names, count, sizeof *names, by_name);
    return failed ? -1 : 0;
}

/* Adds what is in directory `i`. */
static int list(struct tree *tree, struct buffer *entries, struct buffer *text, uint32_t i, const struct listing *found)
{
    const char *const *names = (const char *const *)found->names.data;
    const size_t count = found->names.size / sizeof *names;
    int failed = 0;
    struct entry *parent = (struct entry *)entries->data + i;
    parent->twin = tree->count;
    parent->size = count;
    for (size_t n = 0; n < count; n++) {
        struct entry entry = {.parent = i, .twin = tree->count, .mode = DTTOIF(names[n][-1]), .name = text->size};
        failed |= append(entries, &entry, sizeof entry) || append(text, names[n], strlen(names[n]) + 1);
        tree->count++;
    }
    tree->entries = (struct entry *)entries->data;
    tree->text = text->data;
    return failed ? -1 : 0;
}

/* Names and types of everything below `root`, depth first, so that the cursor has short ways. */
static int walk(struct tree *tree, int root, const char *skip)
{
    struct buffer entries = {0}, text = {0}, open = {0};
    struct entry top = {.mode = S_IFDIR};
    struct cursor cursor = cursor_at(tree, root);
    struct listing found = {0};
    uint32_t i = 0;
    int failed = append(&entries, &top, sizeof top) || append(&text, ".", 2) || append(&open, &i, sizeof i);
    *tree = (struct tree){.entries = (struct entry *)entries.data, .text = text.data, .count = 1};
    while (!failed && open.size) {
        open.size -= sizeof i;
        memcpy(&i, open.data + open.size, sizeof i);
        int fd = cursor_to(&cursor, i);
        failed = fd < 0 || names_in(fd, i ? NULL : skip, &found) || list(tree, &entries, &text, i, &found);
        for (uint32_t n = tree->count; !failed && n-- > tree->entries[i].twin;)
            if (S_ISDIR(tree->entries[n].mode))
                failed = append(&open, &n, sizeof n);
    }
    tree->text_size = text.size;
    cursor_close(&cursor);
    free(open.data);
    free(found.text.data);
    free(found.names.data);
    return failed ? -1 : 0;
}

/* For each entry the one of the same path in `base`; both list a directory in the order of names. */
static uint32_t *match(const struct tree *tree, const struct tree *base)
{
    uint32_t *found = malloc(tree->count * sizeof *found);
    if (!found)
        return NULL;
    memset(found, 0xff, tree->count * sizeof *found);
    found[0] = base ? 0 : NONE;
    for (uint32_t i = 0; base && i < tree->count; i++) {
        const struct entry *here = &tree->entries[i], *there = found[i] == NONE ? NULL : &base->entries[found[i]];
        if (!there || !S_ISDIR(here->mode) || !S_ISDIR(there->mode))
            continue;
        for (uint32_t a = 0, b = 0; a < here->size && b < there->size;) {
            uint32_t left = here->twin + a, right = there->twin + b;
            int order = strcmp(tree->text + tree->entries[left].name, base->text + base->entries[right].name);
            if (!order)
                found[left] = right;
            a += order <= 0;
            b += order >= 0;
        }
    }
    return found;
}

static int read_range(int fd, struct buffer *into, uint64_t at, uint64_t size)
{
    if (reserve(into, size))
        return -1;
    for (uint64_t got = 0; got < size;) {
        ssize_t more = pread(fd, into->data + into->size + got, size - got, at + got);
        if (more <= 0)
            return -1;
        got += more;
    }
    into->size += size;
    return 0;
}

static uint64_t whole_pages(uint64_t size)
{
    const uint64_t page = sysconf(_SC_PAGESIZE);
    return (size + page - 1) / page * page;
}

/* A file that has holes or more space than it fills: where each piece begins and how long it is, then their data. */
static int read_pieces(int fd, struct entry *entry, struct buffer *into, uint64_t allocated)
{
    for (off_t at = 0, end; (at = lseek(fd, at, SEEK_DATA)) >= 0; at = end) {
        end = lseek(fd, at, SEEK_HOLE);
        const uint64_t piece[2] = {at, end - at};
        if (append(into, piece, sizeof piece))
            return -1;
        entry->pieces++;
        allocated -= whole_pages(piece[1]) < allocated ? whole_pages(piece[1]) : allocated;
    }
    for (uint32_t n = 0; n < entry->pieces; n++) {
        uint64_t piece[2];
        memcpy(piece, into->data + n * sizeof piece, sizeof piece);
        if (read_range(fd, into, piece[0], piece[1]))
            return -1;
    }
    entry->loose = 1 + allocated / sysconf(_SC_PAGESIZE);
    return 0;
}

/* All that a regular file holds. A page that is not all zeros is no hole, so most small files need not be asked. */
static int read_content(int fd, struct entry *entry, const struct stat *status, struct buffer *into)
{
    const uint64_t allocated = (uint64_t)status->st_blocks * 512;
    if (entry->size && allocated == whole_pages(1) && entry->size <= allocated) {
        if (read_range(fd, into, 0, entry->size))
            return -1;
        if (*into->data)
            return 0;
        into->size = 0;
    }
    int full = !entry->size || (uint64_t)lseek(fd, 0, SEEK_HOLE) >= entry->size;
    return full && allocated <= whole_pages(entry->size) ? read_range(fd, into, 0, entry->size)
                                                         : read_pieces(fd, entry, into, allocated);
}

/* Names that are more than the kernel lists at once (64 KiB) nobody can read, so they are left out. */
static int read_attributes(int fd, struct entry *entry, struct buffer *into)
{
    char names[XATTR_LIST_MAX], value[XATTR_SIZE_MAX];
    ssize_t size = flistxattr(fd, names, 256); /* for the most that there can be, the kernel clears 64 KiB each time */
    if (size < 0 && errno == ERANGE)
        size = flistxattr(fd, names, sizeof names);
    if (size <= 0)
        return size < 0 && errno != ENOTSUP && errno != E2BIG ? -1 : 0;
    char **sorted = malloc(size * sizeof *sorted);
    int failed = !sorted;
    for (char *name = names; !failed && name < names + size; name += strlen(name) + 1)
        sorted[entry->attributes++] = name;
    if (!failed)
        qsort(sorted, entry->attributes, sizeof *sorted, by_name);
    for (uint32_t n = 0; !failed && n < entry->attributes; n++) {
        ssize_t got = fgetxattr(fd, sorted[n], value, sizeof value);
        const uint32_t sizes[2] = {strlen(sorted[n]) + 1, got};
        failed = got < 0 || append(into, sizes, sizeof sizes) || append(into, sorted[n], sizes[0]) ||
                 append(into, value, sizes[1]);
    }
    free(sorted);
    return failed ? -1 : 0;
}

/* Puts the block where it already is in the base, or else into the store. */
static int keep(struct job *job, struct worker *worker, uint32_t i)
{
    const struct buffer *block = &worker->spare;
    const uint64_t size = (block->size + 7) & ~7ull, more = size < PIECE ? PIECE : size;
    struct entry *entry = &job->tree->entries[i];
    entry->stored = block->size;
    if (!block->size)
        return 0;
    if (job->twins[i] != NONE) {
        const struct entry *old = &job->base->entries[job->twins[i]];
        if (old->stored == entry->stored && !memcmp(block_of(job->stores, old), block->data, block->size)) {
            entry->store = old->store;
            entry->at = old->at;
            return 0;
        }
    }
    if (worker->end - worker->at < size) {
        worker->at = __atomic_fetch_add(&job->stores->used, more, __ATOMIC_RELAXED);
        worker->end = worker->at + more;
    }
    entry->at = worker->at;
    worker->at += size;
    if (worker->end > CAPACITY) {
        errno = ENOSPC;
        return -1;
    }
    memcpy(job->stores->data + entry->at, block->data, block->size);
    return 0;
}

static int read_entry(struct job *job, struct worker *worker, uint32_t i)
{
    struct entry *entry = &job->tree->entries[i];
    struct buffer *block = &worker->spare;
    const char *name = job->tree->text + entry->name;
    struct stat status;
    int at = cursor_to(&worker->cursor, entry->parent), fd = -1, failed = at < 0;
    if (S_ISREG(entry->mode) || S_ISDIR(entry->mode)) {
        fd = openat(at, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        failed = fd < 0 || fstat(fd, &status);
    } else
        failed |= fstatat(at, name, &status, AT_SYMLINK_NOFOLLOW);
    block->size = 0;
    if (failed)
        goto end;
    entry->mode = status.st_mode;
    entry->times[0] = status.st_atim;
    entry->times[1] = status.st_mtim;
    entry->device = status.st_rdev;
    entry->inode = status.st_ino;
    if (!S_ISDIR(status.st_mode)) {
        entry->links = status.st_nlink;
        entry->size = S_ISREG(status.st_mode) ? status.st_size : 0;
    }
    if (S_ISREG(status.st_mode))
        failed = read_content(fd, entry, &status, block);
    else if (S_ISLNK(status.st_mode)) {
        ssize_t size = reserve(block, 4096) ? -1 : readlinkat(at, name, block->data, 4096);
        failed = size < 0;
        block->size = failed ? 0 : size;
    }
    failed = failed || (fd >= 0 && read_attributes(fd, entry, block)) || keep(job, worker, i);
end:
    if (fd >= 0)
        close(fd);
    return failed ? -1 : 0;
}

static int by_inode(const void *left, const void *right)
{
    const struct entry *a = *(struct entry *const *)left, *b = *(struct entry *const *)right;
    return a->inode != b->inode ? (a->inode < b->inode ? -1 : 1) : (a < b ? -1 : a > b);
}

/* Names of one file point to the first of them. */
static int find_links(struct tree *tree)
{
    uint32_t count = 0, first = 0;
    struct entry **linked = malloc((tree->count + 1) * sizeof *linked);
    if (!linked)
        return -1;
    for (uint32_t i = 0; i < tree->count; i++)
        if (tree->entries[i].links > 1)
            linked[count++] = &tree->entries[i];
    if (count)
        qsort(linked, count, sizeof *linked, by_inode);
    for (uint32_t n = 0; n < count; n++) {
        first = n && linked[first]->inode == linked[n]->inode ? first : n;
        linked[n]->twin = linked[first] - tree->entries;
    }
    free(linked);
    return 0;
}

int tree_pack(int root, const char *skip, struct store *stores, const struct tree *base, struct tree *tree)
{
    struct job job = {.tree = tree, .base = base, .stores = stores, .root = root};
    uint32_t *twins = walk(tree, root, skip) ? NULL : match(tree, base);
    job.twins = twins;
    int failed = !twins || each(&job, read_entry, SHARE) || find_links(tree);
    free(twins);
    return failed ? -1 : 0;
}
