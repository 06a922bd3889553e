/* put and get below the working directory.
 *
 * The tree belongs to hostile code that may swap names at any moment, so every step goes through a descriptor and
 * the kernel refuses links and anything outside (openat2), and a new file replaces the old name in one rename.
 */
#define _GNU_SOURCE
#include "sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Where the kernel has no openat2 (gVisor): a step at a time, none of which follows a link. */
static int open_by_steps(int directory, const char *path, uint64_t flags)
{
    char part[NAME_MAX + 1];
    for (int at = dup(directory), last = 0; at >= 0;) {
        size_t size = strcspn(path, "/");
        last = !path[size];
        memcpy(part, path, size <= NAME_MAX ? size : 0);
        part[size <= NAME_MAX ? size : 0] = 0;
        errno = EXDEV; /* also for "", which a name that is too long became */
        uint64_t how = (last ? flags : O_PATH | O_DIRECTORY) | O_NOFOLLOW | O_CLOEXEC;
        int next = !*part || !strcmp(part, "..") ? -1 : openat(at, part, how);
        int error = errno == ENOTDIR ? ELOOP : errno;
        close(at);
        errno = error;
        if (last)
            return next;
        at = next;
        path += size + 1;
    }
    return -1;
}

static int open_beneath(int directory, const char *path, uint64_t flags)
{
    struct open_how how = {
        .flags = flags | O_CLOEXEC,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV,
    };
    int fd = syscall(SYS_openat2, directory, path, &how, sizeof how);
    return fd < 0 && errno == ENOSYS ? open_by_steps(directory, path, flags) : fd;
}

/* The directory of `path`, made where it is missing; `*name` becomes the last part. */
static int open_parent(int work, char *path, char **name)
{
    int at = dup(work);
    for (char *slash; at >= 0 && (slash = strchr(path, '/')); path = slash + 1) {
        *slash = 0;
        if (!*path || !strcmp(path, ".") || !strcmp(path, "..")) {
            close(at);
            errno = EXDEV;
            return -1;
        }
        int next = open_beneath(at, path, O_PATH | O_DIRECTORY);
        if (next < 0 && errno == ENOENT && !mkdirat(at, path, 0755))
            next = open_beneath(at, path, O_PATH | O_DIRECTORY);
        int error = errno;
        close(at);
        errno = error;
        at = next;
    }
    *name = path;
    if (at >= 0 && (!*path || !strcmp(path, ".") || !strcmp(path, ".."))) {
        close(at);
        errno = EISDIR;
        return -1;
    }
    return at;
}

static int write_all(int fd, const char *data, size_t size)
{
    while (size) {
        ssize_t done = write(fd, data, size);
        if (done < 0)
            return -1;
        data += done;
        size -= done;
    }
    return 0;
}

static int put(int work, char *path, const char *content, size_t size)
{
    char *name;
    char fresh[] = ".temper-put-XXXXXXXX";
    int parent = open_parent(work, path, &name);
    if (parent < 0)
        return errno;
    struct stat old;
    mode_t mode = !fstatat(parent, name, &old, AT_SYMLINK_NOFOLLOW) && S_ISREG(old.st_mode) ? old.st_mode & 0777 : 0644;
    snprintf(fresh + 12, 9, "%08x", (unsigned)random());
    int fd = openat(parent, fresh, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    int failed = fd < 0 || write_all(fd, content, size) || fchmod(fd, mode) || renameat(parent, fresh, parent, name);
    int error = failed ? errno : 0;
    if (error && fd >= 0)
        unlinkat(parent, fresh, 0);
    if (fd >= 0)
        close(fd);
    close(parent);
    return error;
}

/* Any number of (path size, content size, path, content). Gives errno of the first that failed, its path in `tried`. */
uint32_t files_write(const struct box *box, int work, char *request, size_t size, char tried[4096])
{
    uint32_t error = 0;
    char path[4096] = "";
    tried[0] = 0;
    while (size && !error) {
        uint32_t sizes[2];
        if (size < sizeof sizes)
            fail(box, "a put request is cut short");
        memcpy(sizes, request, sizeof sizes);
        size_t whole = sizeof sizes + sizes[0] + (size_t)sizes[1];
        if (whole > size)
            fail(box, "a put request is cut short");
        size_t known = sizes[0] < sizeof path ? sizes[0] : sizeof path - 1;
        memcpy(path, request + sizeof sizes, known);
        path[known] = 0;
        memcpy(tried, path, sizeof path);
        error = known < sizes[0] ? ENAMETOOLONG : put(work, path, request + sizeof sizes + sizes[0], sizes[1]);
        request += whole;
        size -= whole;
    }
    return error;
}

/* Request: as above. Reply: the errno, and the path if it is one. */
void files_put(const struct box *box, char *request, size_t size)
{
    char tried[4096];
    uint32_t error = files_write(box, box->work, request, size, tried);
    send_frame(box->control, DONE, 2, (struct iovec[]){{&error, sizeof error}, {tried, error ? strlen(tried) : 0}});
}

/* Request: the path. Reply: errno, content. */
void files_get(const struct box *box, char *request, size_t size)
{
    uint32_t error = 0;
    char path[4096], *content = NULL;
    size_t got = 0;
    struct stat status;
    size = size < sizeof path ? size : sizeof path - 1;
    memcpy(path, request, size);
    path[size] = 0;
    int fd = open_beneath(box->work, path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 || fstat(fd, &status))
        error = errno;
    else if (!S_ISREG(status.st_mode))
        error = ENOENT;
    else if ((uint64_t)status.st_size > box->limits.file_size)
        error = EFBIG;
    else if (!(content = malloc(status.st_size + 1)))
        error = ENOMEM;
    while (!error && got < (size_t)status.st_size) {
        ssize_t more = read(fd, content + got, status.st_size - got);
        if (more < 0)
            error = errno;
        if (more <= 0)
            break; /* it shrank meanwhile */
        got += more;
    }
    if (fd >= 0)
        close(fd);
    send_frame(box->control, DONE, 2, (struct iovec[]){{&error, sizeof error}, {content, error ? 0 : got}});
    free(content);
}
