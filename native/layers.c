/* Images: read-only directories of the host, stacked to be a box's root.
 *
 * The launcher binds its owner's store of layers at /layers, out of every command's sight, and keeps a copy of the base
 * without the host's mounts at /bare. The root of a box with an image is an overlay of the image's layers over /bare; an
 * image over the host gets the host's directories back on top, each with what the layers add to it.
 *
 *   image = [+WORK:]LAYER:LAYER...[:host]   the top layer first; WORK holds `upper` and `work` of a root being built
 *
 * As root, a box sees the layers' files as its own: id 1000 on the disk is mapped to the box's host id.
 */
#define _GNU_SOURCE
#include "sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LAYERS_SIZE 3584 /* the kernel takes 4096 bytes of mount options */

static char *shown[64]; /* paths of the base where the host's files are mounted */
static size_t shown_count;

void layers_remember(const char *path)
{
    if (shown_count < sizeof shown / sizeof *shown)
        shown[shown_count++] = strdup(path);
}

int layers_show(const char *store, int writable)
{
    char from[4096];
    struct mount_attr fixed = {.attr_set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | (writable ? 0 : MOUNT_ATTR_RDONLY)};
    snprintf(from, sizeof from, "/old%s", store);
    return mkdir("/layers", 0755) || mkdir("/bare", 0755) || mkdir("/image", 0755) ||
           mount("/box", "/bare", NULL, MS_BIND, NULL) || mount(from, "/layers", NULL, MS_BIND, NULL) ||
           syscall(SYS_mount_setattr, AT_FDCWD, "/layers", 0, &fixed, sizeof fixed);
}

int layers_map(pid_t box)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/user", box);
    int space = open(path, O_RDONLY | O_CLOEXEC);
    int tree = syscall(SYS_open_tree, AT_FDCWD, "/layers", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    struct mount_attr mapped = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = space};
    if (tree >= 0 && syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &mapped, sizeof mapped)) {
        int error = errno;
        close(tree);
        errno = error;
        tree = -1;
    }
    close(space);
    return tree;
}

/* "/layers/LAYER/path:..." of the layers that have a directory there, the top first, down to one with something else. */
static void having(const struct box *box, const char *image, const char *path, char list[LAYERS_SIZE])
{
    struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS};
    char names[IMAGE_SIZE], one[IMAGE_SIZE + 4096];
    size_t used = 0;
    list[0] = 0;
    strcpy(names, image);
    char *rest, *name = strtok_r(names, ":", &rest);
    if (box->image == BUILDING)
        name = strtok_r(NULL, ":", &rest);
    for (; name && strcmp(name, "host"); name = strtok_r(NULL, ":", &rest)) {
        snprintf(one, sizeof one, "/layers/%s%s", name, path);
        int fd = syscall(SYS_openat2, AT_FDCWD, one, &how, sizeof how);
        if (fd < 0 && errno == ENOENT)
            continue;
        if (fd < 0)
            return;
        close(fd);
        used += snprintf(list + used, LAYERS_SIZE - used, "%s%s", used ? ":" : "", one);
        if (used >= LAYERS_SIZE) {
            errno = E2BIG;
            fail(box, "stack layers");
        }
    }
}

/* An overlay at `to` over `layers` and `more`: one more layer, or options. */
static void overlay(const struct box *box, const char *to, unsigned long flags, const char *layers, const char *more)
{
    char options[4096], what[64];
    const char *between = *layers && *more == '/' ? ":" : "";
    size_t size = snprintf(options, sizeof options, "userxattr,lowerdir=%s%s%s", layers, between, more);
    errno = E2BIG;
    if (size < sizeof options && !mount("overlay", to, "overlay", flags | MS_NOSUID | MS_NODEV, options))
        return;
    snprintf(what, sizeof what, "stack layers at %s", to);
    fail(box, what);
}

/* The host's files back in their places, with what the layers add to them. */
static void show_host(const struct box *box, const char *image)
{
    char layers[LAYERS_SIZE], from[4096], to[4096];
    for (size_t i = 0; i < shown_count; i++) {
        snprintf(from, sizeof from, "/box%s", shown[i]);
        snprintf(to, sizeof to, "/image%s", shown[i]);
        having(box, image, shown[i], layers);
        if (*layers)
            overlay(box, to, MS_RDONLY, layers, from);
        else if (mount(from, to, NULL, MS_BIND | MS_REC, NULL))
            fail(box, to);
    }
}

/* What is mounted next must get where it belongs: an image could have a link in its place. */
static void check_places(const struct box *box)
{
    static const char *const places[] = {"/image/proc", "/image/sys", "/image/dev", "/image/tmp", "/image/sandbox"};
    struct stat status;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (lstat(places[i], &status) || (!S_ISDIR(status.st_mode) && (errno = ENOTDIR)))
            fail(box, places[i]);
}

void layers_stack(const struct box *box, const char *image, int tree)
{
    char layers[LAYERS_SIZE], writable[256];
    const char *work = image + 1;
    int size = strcspn(work, ":");
    size_t length = strlen(image);
    int building = box->image == BUILDING;
    if (tree >= 0 && syscall(SYS_move_mount, tree, "", AT_FDCWD, "/layers", MOVE_MOUNT_F_EMPTY_PATH))
        fail(box, "show the layers");
    snprintf(writable, sizeof writable, "/bare,upperdir=/layers/%.*s/upper,workdir=/layers/%.*s/work", size, work, size,
             work);
    having(box, image, "", layers);
    overlay(box, "/image", building ? 0 : MS_RDONLY, layers, building ? writable : "/bare");
    check_places(box);
    if (length >= 5 && !strcmp(image + length - 5, ":host"))
        show_host(box, image);
    if (mount("/box/dev", "/image/dev", NULL, MS_BIND | MS_REC, NULL))
        fail(box, "show /dev");
}
