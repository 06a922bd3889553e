/* Unpacking: from a tree in memory to an empty directory, or over the very files that it was packed from: tree.h. */
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

#define FOLDERS 8 /* entries that a thread takes at once where only directories matter, which stand together */
#define DEEP 100  /* directories in each other that are removed by recursion */

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

static int differs(void)
{
    errno = EIO;
    return -1;
}

/* A file is as the manifest has it; one that was there before has nothing either that a new one would not have. */
static int proven(int fd, struct entry *entry, int made)
{
    const uint64_t page = sysconf(_SC_PAGESIZE), flags = STATX_ATTR_APPEND | STATX_ATTR_IMMUTABLE | STATX_ATTR_NODUMP;
    uint64_t hint = 0;
    struct statx now;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &now))
        return -1;
    int good = now.stx_mode == entry->mode && (S_ISDIR(entry->mode) || now.stx_size == entry->size) &&
               now.stx_mtime.tv_sec == entry->times[1].tv_sec && now.stx_mtime.tv_nsec == entry->times[1].tv_nsec;
    if (made)
        entry->inode = now.stx_ino;
    else {
        fcntl(fd, F_GET_RW_HINT, &hint);
        good = good && !hint && !(now.stx_attributes & flags) && now.stx_ino == entry->inode &&
               (flistxattr(fd, NULL, 0) > 0) == (entry->attributes > 0);
        if (S_ISREG(entry->mode))
            good = good && now.stx_nlink == entry->links &&
                   (entry->loose || now.stx_blocks * 512 == (entry->size + page - 1) / page * page);
    }
    return good ? 0 : differs();
}

static int write_file_entry(int at, const char *name, struct entry *entry, const char *block)
{
    int fd = openat(at, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, entry->mode & 0777);
    if (fd < 0)
        return -1;
    const char *attributes = write_content(fd, entry, block);
    int failed = !attributes || write_attributes(fd, entry, attributes) ||
                 ((entry->mode & 07000) && fchmod(fd, entry->mode & 07777)) || futimens(fd, entry->times) ||
                 proven(fd, entry, 1);
    close(fd);
    return failed ? -1 : 0;
}

static int write_entry(struct job *job, struct worker *worker, uint32_t i)
{
    struct buffer *spare = &worker->spare;
    struct entry *entry = &job->tree->entries[i];
    const char *name = job->tree->text + entry->name, *block = block_of(job->stores, entry);
    struct stat now;
    if (S_ISDIR(entry->mode) || entry->twin != i)
        return 0;
    int at = cursor_to(&worker->cursor, entry->parent);
    if (at < 0 || S_ISREG(entry->mode))
        return at < 0 ? -1 : write_file_entry(at, name, entry, block);
    int failed;
    if (S_ISLNK(entry->mode)) {
        spare->size = 0;
        failed = append(spare, block, entry->stored) || append(spare, "", 1) || symlinkat(spare->data, at, name);
    } else
        failed = mknodat(at, name, entry->mode, entry->device) ||
                 ((entry->mode & 07000) && fchmodat(at, name, entry->mode & 07777, 0));
    failed = failed || utimensat(at, name, entry->times, AT_SYMLINK_NOFOLLOW) ||
             fstatat(at, name, &now, AT_SYMLINK_NOFOLLOW);
    entry->inode = failed ? 0 : now.st_ino;
    return failed ? -1 : 0;
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
        struct entry *entry = &tree->entries[i], *first = &tree->entries[entry->twin];
        if (S_ISDIR(entry->mode) || entry->twin == i)
            continue;
        int old = cursor_to(&from, first->parent), new = cursor_to(&to, entry->parent);
        failed = old < 0 || new < 0 || linkat(old, tree->text + first->name, new, tree->text + entry->name, 0);
        entry->inode = first->inode;
    }
    cursor_close(&from);
    cursor_close(&to);
    return failed ? -1 : 0;
}

/* ---- over the files that are there ---- */

static int clear_attributes(int fd)
{
    char names[XATTR_LIST_MAX];
    ssize_t size = flistxattr(fd, NULL, 0) <= 0 ? 0 : flistxattr(fd, names, sizeof names);
    for (char *name = names; name < names + size; name += strlen(name) + 1)
        if (fremovexattr(fd, name))
            return -1;
    return size < 0 ? -1 : 0;
}

static int rewrite(int fd, struct entry *entry, const char *block)
{
    const char *attributes = ftruncate(fd, 0) || clear_attributes(fd) ? NULL : write_content(fd, entry, block);
    return !attributes || write_attributes(fd, entry, attributes) || fchmod(fd, entry->mode & 07777) ||
           futimens(fd, entry->times) || proven(fd, entry, 0);
}

/* Most have their space already, and nothing odd about them: half the time of new ones, and no old ones to free. */
static int renew_entry(struct job *job, struct worker *worker, uint32_t i)
{
    struct entry *entry = &job->tree->entries[i];
    const char *name = job->tree->text + entry->name, *block = block_of(job->stores, entry);
    if (S_ISDIR(entry->mode) || entry->twin != i)
        return 0;
    int at = cursor_to(&worker->cursor, entry->parent);
    if (at < 0)
        return -1;
    if (!S_ISREG(entry->mode))
        return (!S_ISLNK(entry->mode) && fchmodat(at, name, entry->mode & 07777, 0)) ||
               utimensat(at, name, entry->times, AT_SYMLINK_NOFOLLOW);
    int fd = openat(at, name, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    int plain = fd >= 0 && !entry->loose && !entry->attributes;
    int done = plain && !write_range(fd, block, 0, entry->size) && !futimens(fd, entry->times) && !proven(fd, entry, 0);
    done = done || (fd >= 0 && !rewrite(fd, entry, block));
    if (fd >= 0)
        close(fd);
    return done ? 0 : differs();
}

static int remove_all(int at, const char *name, int deep)
{
    if (!unlinkat(at, name, 0) || (errno == EISDIR && !unlinkat(at, name, AT_REMOVEDIR)))
        return 0;
    DIR *directory = errno == ENOTEMPTY && deep
                         ? fdopendir(openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC))
                         : NULL;
    int failed = !directory;
    for (struct dirent *next; !failed && (next = readdir(directory));)
        failed = strcmp(next->d_name, ".") && strcmp(next->d_name, "..") &&
                 remove_all(dirfd(directory), next->d_name, deep - 1);
    if (directory)
        closedir(directory);
    return failed || unlinkat(at, name, AT_REMOVEDIR);
}

static uint32_t child_of(const struct tree *tree, uint32_t i, const char *name)
{
    uint32_t low = tree->entries[i].twin, high = low + tree->entries[i].size;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const int order = strcmp(name, tree->text + tree->entries[middle].name);
        if (!order)
            return middle;
        low = order > 0 ? middle + 1 : low;
        high = order > 0 ? high : middle;
    }
    return NONE;
}

/* What the tree has in a directory must still be there, the very same files; all else goes. */
static int tidy_entry(struct job *job, struct worker *worker, uint32_t i)
{
    const struct tree *tree = job->tree;
    uint64_t found = 0;
    if (!S_ISDIR(tree->entries[i].mode))
        return 0;
    DIR *directory = fdopendir(openat(cursor_to(&worker->cursor, i), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    int failed = !directory;
    for (struct dirent *next; !failed && (next = readdir(directory));) {
        if (!strcmp(next->d_name, ".") || !strcmp(next->d_name, ".."))
            continue;
        const uint32_t child = child_of(tree, i, next->d_name);
        if (child == NONE)
            failed = remove_all(dirfd(directory), next->d_name, DEEP);
        else
            found += next->d_ino == tree->entries[child].inode;
    }
    if (directory)
        closedir(directory);
    return failed || found != tree->entries[i].size ? differs() : 0;
}

/* ---- all together ---- */

/* Last, and the deepest first, since all that is made in a directory changes its times. */
static int finish_directories(const struct tree *tree, const struct store *stores, int root, int made)
{
    struct cursor cursor = cursor_at(tree, root);
    int failed = 0;
    for (uint32_t i = tree->count; i-- && !failed;) {
        struct entry *entry = &tree->entries[i];
        if (!S_ISDIR(entry->mode))
            continue;
        int at = cursor_to(&cursor, i), fd = openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        failed = fd < 0 || (!made && clear_attributes(fd)) || write_attributes(fd, entry, block_of(stores, entry)) ||
                 fchmod(fd, entry->mode & 07777) || futimens(fd, entry->times) || proven(fd, entry, made);
        if (fd >= 0)
            close(fd);
    }
    cursor_close(&cursor);
    return failed ? -1 : 0;
}

int tree_unpack(int root, const struct store *stores, struct tree *tree)
{
    struct job job = {.tree = tree, .stores = (struct store *)stores, .root = root};
    mode_t mask = umask(0);
    int failed = make_directories(tree, root) || each(&job, write_entry, SHARE) || make_links(tree, root) ||
                 finish_directories(tree, stores, root, 1);
    umask(mask);
    return failed ? -1 : 0;
}

int tree_renew(int root, const struct store *stores, struct tree *tree)
{
    struct job job = {.tree = tree, .stores = (struct store *)stores, .root = root};
    return each(&job, tidy_entry, FOLDERS) || each(&job, renew_entry, SHARE) ||
                   finish_directories(tree, stores, root, 0)
               ? -1
               : 0;
}
