/* Unpacking: from a tree in memory to an empty directory. See tree.h. */
#define _GNU_SOURCE
#include "tree.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

static int write_range(int fd, const char *data, uint64_t at, uint64_t size)
{
    while (size) {
        ssize_t done = pwrite(fd, data, size, at);
        if (done < 0)
            return -1;
        data += done;
        at += done;
        size -= done;
    }
    return 0;
}

/* As much of `*left` as there is room for in this hole; past the end of the file there is enough. */
static int allocate(int fd, uint64_t from, uint64_t to, uint64_t *left)
{
    uint64_t size = to > from ? to - from : 0;
    size = size < *left ? size : *left;
    *left -= size;
    return size ? fallocate(fd, FALLOC_FL_KEEP_SIZE, from, size) : 0;
}

/* Gives where the attributes begin, or NULL. */
static const char *write_content(int fd, const struct entry *entry, const char *block)
{
    if (!entry->loose)
        return write_range(fd, block, 0, entry->size) ? NULL : block + entry->size;
    const char *table = block;
    const uint64_t page = sysconf(_SC_PAGESIZE);
    uint64_t ahead = (entry->loose - 1) * page, end = 0;
    block += 16ull * entry->pieces;
    int failed = ftruncate(fd, entry->size);
    for (uint32_t n = 0; n < entry->pieces && !failed; n++) {
        uint64_t piece[2];
        memcpy(piece, table + n * sizeof piece, sizeof piece);
        failed = write_range(fd, block, piece[0], piece[1]) || allocate(fd, end, piece[0], &ahead);
        end = (piece[0] + piece[1] + page - 1) / page * page;
        block += piece[1];
    }
    return failed || allocate(fd, end, UINT64_MAX, &ahead) ? NULL : block;
}


static int write_attributes(int fd, const struct entry *entry, const char *at)
{
    for (uint32_t n = 0; n < entry->attributes; n++) {
        uint32_t sizes[2];
        memcpy(sizes, at, sizeof sizes);
        const char *name = at + sizeof sizes;
        if (fsetxattr(fd, name, name + sizes[0], sizes[1], 0))
            return -1;
        at = name + sizes[0] + sizes[1];
    }
    return 0;
}

/* A file is as the manifest has it. */
static int proven(int fd, const struct entry *entry)
{
    struct stat now;
    if (fstat(fd, &now))
        return -1;
    if (now.st_mode == entry->mode && (uint64_t)now.st_size == entry->size &&
        now.st_mtim.tv_sec == entry->times[1].tv_sec && now.st_mtim.tv_nsec == entry->times[1].tv_nsec)
        return 0;
    errno = EIO;
    return -1;
}

static int write_file_entry(int at, const char *name, const struct entry *entry, const char *block)
{
    int fd = openat(at, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, entry->mode & 0777);
    if (fd < 0)
        return -1;
    const char *attributes = write_content(fd, entry, block);
    int failed = !attributes || write_attributes(fd, entry, attributes) ||
                 ((entry->mode & 07000) && fchmod(fd, entry->mode & 07777)) || futimens(fd, entry->times) ||
                 proven(fd, entry);
    close(fd);
    return failed ? -1 : 0;
}

static int write_entry(struct job *job, struct cursor *cursor, struct buffer *spare, uint32_t i)
{
    const struct entry *entry = &job->tree->entries[i];
    const char *name = job->tree->text + entry->name, *block = block_of(job->stores, entry);
    if (S_ISDIR(entry->mode) || entry->twin != i)
        return 0;
    int at = cursor_to(cursor, entry->parent);
    if (at < 0 || S_ISREG(entry->mode))
        return at < 0 ? -1 : write_file_entry(at, name, entry, block);
    int failed;
    if (S_ISLNK(entry->mode)) {
        spare->size = 0;
        failed = append(spare, block, entry->stored) || append(spare, "", 1) || symlinkat(spare->data, at, name);
    } else
        failed = mknodat(at, name, entry->mode, entry->device) ||
                 ((entry->mode & 07000) && fchmodat(at, name, entry->mode & 07777, 0));
    return failed || utimensat(at, name, entry->times, AT_SYMLINK_NOFOLLOW) ? -1 : 0;
}

static int make_directories(const struct tree *tree, int root)
{
    struct cursor cursor = cursor_at(tree, root);
    int failed = 0;
    for (uint32_t i = 1; i < tree->count && !failed; i++)
        if (S_ISDIR(tree->entries[i].mode)) {
            int at = cursor_to(&cursor, tree->entries[i].parent);
            failed = at < 0 || (mkdirat(at, tree->text + tree->entries[i].name, 0700) && errno != EEXIST);
        }
    cursor_close(&cursor);
    return failed ? -1 : 0;
}

static int make_links(const struct tree *tree, int root)
{
    struct cursor from = cursor_at(tree, root), to = cursor_at(tree, root);
    int failed = 0;
    for (uint32_t i = 0; i < tree->count && !failed; i++) {
        const struct entry *entry = &tree->entries[i], *first = &tree->entries[entry->twin];
        if (S_ISDIR(entry->mode) || entry->twin == i)
            continue;
        int old = cursor_to(&from, first->parent), new = cursor_to(&to, entry->parent);
        failed = old < 0 || new < 0 || linkat(old, tree->text + first->name, new, tree->text + entry->name, 0);
    }
    cursor_close(&from);
    cursor_close(&to);
    return failed ? -1 : 0;
}

/* Last, and the deepest first, since all that is made in a directory changes its times. */
static int finish_directories(const struct tree *tree, const struct store *stores, int root)
{
    struct cursor cursor = cursor_at(tree, root);
    int failed = 0;
    for (uint32_t i = tree->count; i-- && !failed;) {
        const struct entry *entry = &tree->entries[i];
        if (!S_ISDIR(entry->mode))
            continue;
        int at = cursor_to(&cursor, i), fd = openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        failed = fd < 0 || write_attributes(fd, entry, block_of(stores, entry)) || fchmod(fd, entry->mode & 07777) ||
                 futimens(fd, entry->times);
        if (fd >= 0)
            close(fd);
    }
    cursor_close(&cursor);
    return failed ? -1 : 0;
}

int tree_unpack(int root, const struct store *stores, const struct tree *tree)
{
    struct job job = {.tree = (struct tree *)tree, .stores = (struct store *)stores, .root = root};
    mode_t mask = umask(0);
    int failed = make_directories(tree, root) || each(&job, write_entry) || make_links(tree, root) ||
                 finish_directories(tree, stores, root);
    umask(mask);
    return failed ? -1 : 0;
}
