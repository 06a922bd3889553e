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

static int by_name(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

/* Pointers to the names in a directory, sorted; before each name is its type. */
static int names_in(int fd, const char *skip, struct buffer *names)
{
    DIR *directory = fdopendir(openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    int failed = !directory;
    for (struct dirent *found; !failed && (errno = 0, found = readdir(directory));) {
        if (!strcmp(found->d_name, ".") || !strcmp(found->d_name, "..") || (skip && !strcmp(found->d_name, skip)))
            continue;
        char *name = malloc(strlen(found->d_name) + 2);
        failed = !name;
        if (name) {
            *name++ = (char)found->d_type;
            strcpy(name, found->d_name);
            failed = append(names, &name, sizeof name);
        }
    }
    failed |= errno != 0; /* of readdir */
    if (directory)
        closedir(directory);
    if (names->size)
        qsort(names->data, names->size / sizeof(char *), sizeof(char *), by_name);
    return failed ? -1 : 0;
}

/* Adds what is in directory `i`. */
static int list(struct tree *tree, struct buffer *entries, struct buffer *text, uint32_t i, int fd, const char *skip)
{
    struct buffer names = {0};
    int failed = names_in(fd, skip, &names);
    char **list = (char **)names.data;
    struct entry *parent = (struct entry *)entries->data + i;
    parent->twin = tree->count;
    parent->size = names.size / sizeof *list;
    for (size_t n = 0; n < names.size / sizeof *list; n++) {
        struct entry entry = {.parent = i, .twin = tree->count, .mode = DTTOIF(list[n][-1]), .name = text->size};
        failed |= append(entries, &entry, sizeof entry) || append(text, list[n], strlen(list[n]) + 1);
        tree->count++;
        free(list[n] - 1);
    }
    free(names.data);
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
    uint32_t i = 0;
    int failed = append(&entries, &top, sizeof top) || append(&text, ".", 2) || append(&open, &i, sizeof i);
    *tree = (struct tree){(struct entry *)entries.data, text.data, 1, 0};
    while (!failed && open.size) {
        open.size -= sizeof i;
        memcpy(&i, open.data + open.size, sizeof i);
        int fd = cursor_to(&cursor, i);
        failed = fd < 0 || list(tree, &entries, &text, i, fd, i ? NULL : skip);
        for (uint32_t n = tree->count; !failed && n-- > tree->entries[i].twin;)
            if (S_ISDIR(tree->entries[n].mode))
                failed = append(&open, &n, sizeof n);
    }
    tree->text_size = text.size;
    cursor_close(&cursor);
    free(open.data);
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

/* All that a regular file holds. */
static int read_content(int fd, struct entry *entry, const struct stat *status, struct buffer *into)
{
    uint64_t allocated = (uint64_t)status->st_blocks * 512;
    int full = !entry->size || (uint64_t)lseek(fd, 0, SEEK_HOLE) >= entry->size;
    return full && allocated <= whole_pages(entry->size) ? read_range(fd, into, 0, entry->size)
                                                         : read_pieces(fd, entry, into, allocated);
}

/* Names that are more than the kernel lists at once (64 KiB) nobody can read, so they are left out. */
static int read_attributes(int fd, struct entry *entry, struct buffer *into)
{
    char names[XATTR_LIST_MAX], value[XATTR_SIZE_MAX];
    ssize_t size = flistxattr(fd, names, sizeof names);
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
static int keep(struct job *job, uint32_t i, const struct buffer *block)
{
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
    entry->at = __atomic_fetch_add(&job->stores->used, (block->size + 7) & ~7ull, __ATOMIC_RELAXED);
    if (entry->at + block->size > CAPACITY) {
        errno = ENOSPC;
        return -1;
    }
    memcpy(job->stores->data + entry->at, block->data, block->size);
    return 0;
}

static int read_entry(struct job *job, struct cursor *cursor, struct buffer *block, uint32_t i)
{
    struct entry *entry = &job->tree->entries[i];
    const char *name = job->tree->text + entry->name;
    struct stat status;
    int at = cursor_to(cursor, entry->parent), fd = -1, failed = at < 0;
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
    if (!S_ISDIR(status.st_mode)) {
        entry->links = status.st_nlink;
        entry->inode = status.st_ino;
        entry->size = S_ISREG(status.st_mode) ? status.st_size : 0;
    }
    if (S_ISREG(status.st_mode))
        failed = read_content(fd, entry, &status, block);
    else if (S_ISLNK(status.st_mode)) {
        ssize_t size = reserve(block, 4096) ? -1 : readlinkat(at, name, block->data, 4096);
        failed = size < 0;
        block->size = failed ? 0 : size;
    }
    failed = failed || (fd >= 0 && read_attributes(fd, entry, block)) || keep(job, i, block);
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
    int failed = !twins || each(&job, read_entry) || find_links(tree);
    free(twins);
    return failed ? -1 : 0;
}
