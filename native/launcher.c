/* The launcher: one small process per backend, spawned by its owner, so that no sandbox is forked from a fat process.
 *
 *   helper serve FD [--layers DIR | --build DIR] [PATH...]
 *                               serve the owner at the other end of FD (a SOCK_SEQPACKET); PATHs are shown read-only;
 *                               DIR holds the layers of images, read-only or, to build them, writable
 *   helper filter               write the seccomp filter to stdout, as `bwrap --seccomp` reads it
 *
 * It leaves the host's mounts for a small root with the read-only base, made once and shared by all boxes. As root it
 * keeps its privileges, to map each box to a host id of its own and to make its cgroup; as a plain user it first
 * becomes the root of a user namespace. When its owner dies, so does every box.
 */
#define _GNU_SOURCE
#include "sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/mount.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define UNUSED_IDS 0x70000000u /* systemd's table of ids leaves 0x70000000 to 0x7fffffff to nobody */
#define OWNER_IDS 0x7c000000u

#define STOCK 8 /* boxes that are set up ahead: over the host, and with the image that was asked for twice running */

struct running {
    pid_t pid;
    int socket;          /* to tell it what to do; -1 once it is told */
    uint64_t group, id;  /* `id` is the owner's number for it */
    uint64_t image;      /* the number of its image, 0 for none */
};

static struct running *boxes; /* those not told yet come first, the oldest first */
static int box_count, box_room, spare_count;
static char last_image[IMAGE_SIZE]; /* asked for last */
static uint64_t image_number;
static int image_stock;
static int control, privileged;
static uid_t outer_uid;
static gid_t outer_gid;

int write_file(int directory, const char *path, const char *text)
{
    int fd = openat(directory, path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t done = write(fd, text, strlen(text));
    int error = errno;
    close(fd);
    errno = error;
    return done < 0 ? -1 : 0;
}

/* The owner learns why before the launcher ends. */
static _Noreturn void give_up(const char *what)
{
    char text[256];
    uint32_t kind = FAILED;
    memcpy(text, &kind, sizeof kind);
    int size = snprintf(text + sizeof kind, sizeof text - sizeof kind, "%s: %s", what, strerror(errno));
    groups_remove();
    send(control, text, sizeof kind + size, MSG_NOSIGNAL);
    _exit(1);
}

static void must(long result, const char *what)
{
    if (result < 0)
        give_up(what);
}

/* ---- the base: /usr and what belongs to it, a minimal /etc and /dev, extra paths; all read-only ---- */

static void make_parents(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0755);
        *slash = '/';
    }
}

/* Shows the host's `path` (seen below /old) at the same place, links included; skips what is missing or below /usr. */
static void show(const char *path)
{
    char from[4096], to[4096], target[4096];
    struct stat status;
    snprintf(from, sizeof from, "/old%s", path);
    snprintf(to, sizeof to, "/box%s", path);
    if (lstat(from, &status) || !strncmp(path, "/usr/", 5))
        return;
    make_parents(to);
    if (S_ISLNK(status.st_mode)) {
        ssize_t size = readlink(from, target, sizeof target - 1);
        must(size, path);
        target[size] = 0;
        must(symlink(target, to) && errno != EEXIST ? -1 : 0, to);
        return;
    }
    if (S_ISDIR(status.st_mode))
        mkdir(to, 0755);
    else
        close(open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    must(mount(from, to, NULL, MS_BIND | MS_REC, NULL), path);
    layers_remember(path);
}

static void write_new(const char *path, const char *text)
{
    close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    must(write_file(AT_FDCWD, path, text), path);
}

static void make_base(char **paths)
{
    static const char *const directories[] = {"/box/proc", "/box/sys", "/box/tmp", "/box/sandbox", "/box/etc",
                                              "/box/etc/ssl", "/box/dev", "/box/dev/shm", "/box/dev/pts", "/box/run",
                                              "/box/var"};
    static const char *const system[] = {"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
                                         "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
                                         "/etc/alternatives", "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls"};
    static const char *const devices[] = {"null", "zero", "full", "random", "urandom", "tty"};
    static const char *const links[][2] = {
        {"/proc/self/fd", "/box/dev/fd"}, {"/proc/self/fd/0", "/box/dev/stdin"}, {"/proc/self/fd/1", "/box/dev/stdout"},
        {"/proc/self/fd/2", "/box/dev/stderr"}, {"pts/ptmx", "/box/dev/ptmx"}, {"/tmp", "/box/var/tmp"}};
    char from[64], to[64];
    must(mkdir("/box", 0755), "make the base");
    must(mount("tmpfs", "/box", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=4m"), "mount the base");
    for (size_t i = 0; i < sizeof directories / sizeof *directories; i++)
        must(mkdir(directories[i], 0755), directories[i]);
    for (size_t i = 0; i < sizeof system / sizeof *system; i++)
        show(system[i]);
    for (; *paths; paths++)
        show(*paths);
    write_new("/box/etc/passwd", "root:x:0:0:root:/root:/usr/sbin/nologin\nuser:x:1000:1000:user:/sandbox:/bin/sh\n"
                                 "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n");
    write_new("/box/etc/group", "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n");
    write_new("/box/etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n");
    write_new("/box/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n");
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        must(symlink(links[i][0], links[i][1]), links[i][1]);
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        snprintf(to, sizeof to, "/box/dev/%s", devices[i]);
        close(open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    }
    struct mount_attr fixed = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV};
    must(syscall(SYS_mount_setattr, AT_FDCWD, "/box", AT_RECURSIVE, &fixed, sizeof fixed),
         "make the base read-only (Linux 5.12 or newer)");
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        snprintf(from, sizeof from, "/old/dev/%s", devices[i]);
        snprintf(to, sizeof to, "/box/dev/%s", devices[i]);
        must(mount(from, to, NULL, MS_BIND, NULL), from);
    }
}

/* Leaves the host's mounts: / becomes a tmpfs with /proc (the host's, for its pid namespace) and /box. */
static void enter_own_root(const char *store, int writable, char **paths)
{
    must(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "make mounts private");
    must(mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=1m"), "mount a root");
    must(mkdir("/tmp/old", 0755) | mkdir("/tmp/proc", 0755), "make a root");
    must(syscall(SYS_pivot_root, "/tmp", "/tmp/old"), "change the root");
    must(chdir("/"), "change the root");
    must(mount("/old/proc", "/proc", NULL, MS_BIND | MS_REC, NULL), "show /proc");
    make_base(paths);
    if (store)
        must(layers_show(store, writable), store);
    must(umount2("/old", MNT_DETACH), "leave the host's root");
}

/* Are we root over ids that nobody uses? In most containers with a user namespace of their own, root is not. */
static int owns_unused_ids(void)
{
    unsigned inside, outside, count;
    FILE *file = fopen("/proc/self/uid_map", "re");
    int found = 0;
    while (file && !found && fscanf(file, "%u %u %u", &inside, &outside, &count) == 3)
        found = inside <= UNUSED_IDS && UNUSED_IDS + (1u << 22) - inside <= count; /* process numbers have 22 bits */
    if (file)
        fclose(file);
    return found;
}

static void become_namespace_root(void)
{
    char text[64];
    must(unshare(CLONE_NEWUSER | CLONE_NEWNS), "make a user namespace");
    must(write_file(AT_FDCWD, "/proc/self/setgroups", "deny"), "map ids");
    snprintf(text, sizeof text, "%u %u 1", outer_uid, outer_uid);
    must(write_file(AT_FDCWD, "/proc/self/uid_map", text), "map ids");
    snprintf(text, sizeof text, "%u %u 1", outer_gid, outer_gid);
    must(write_file(AT_FDCWD, "/proc/self/gid_map", text), "map ids");
}

/* ---- boxes ---- */

/* As root: a host id that nobody has, one per box, so that quotas counted by user are counted by box. */
static int map_ids(pid_t pid)
{
    char path[64], text[64];
    const uint32_t fresh = UNUSED_IDS + (uint32_t)pid;
    const uint32_t ids[2] = {privileged ? fresh : outer_uid, privileged ? fresh : outer_gid};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "/proc/%d/%cid_map", pid, "ug"[i]);
        snprintf(text, sizeof text, "%d %u 1", INSIDE_ID, ids[i]);
        if (write_file(AT_FDCWD, path, text))
            return -1;
    }
    return 0;
}

/* As root, around the clone of a box: its user namespace gets an owner of its own, since the kernel counts quotas
 * (inotify, message queues, namespaces) along the chain of owners, where root's would be shared by all. */
static void be_effectively(uid_t id)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct held[2];
    if (!privileged)
        return;
    must(syscall(SYS_setresuid, -1, id, -1), "change the effective id");
    must(syscall(SYS_capget, &header, held), "read capabilities");
    for (int i = 0; i < 2; i++)
        held[i].effective = held[i].permitted;
    must(syscall(SYS_capset, &header, held), "keep capabilities");
}

/* A box without a socket yet: it enters its group and sets itself up while nobody waits. */
static void breed(const char *image, uint64_t number)
{
    static uint64_t groups_made;
    struct cgroup group;
    int ends[2];
    if (box_count == box_room && !(boxes = realloc(boxes, (box_room += 64) * sizeof *boxes)))
        give_up("remember a box");
    if (group_make(++groups_made, &group) || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
        give_up("make a group or a socket for a box");
    be_effectively(OWNER_IDS | (getpid() & 0xffffu) << 10 | (groups_made & 0x3ff));
    pid_t pid = syscall(SYS_clone, SIGCHLD | CLONE_NEWUSER | CLONE_NEWPID, NULL, NULL, NULL, NULL);
    if (!pid) {
        close(ends[0]);
        box_main(ends[1], &group, image);
    }
    must(pid, "clone a box");
    be_effectively(0);
    int error = map_ids(pid) ? errno : 0;
    int tree = *image && privileged && !error ? layers_map(pid) : -1;
    if (tree < 0 && *image && privileged && !error)
        error = errno;
    send_with(ends[0], &error, sizeof error, &tree, tree >= 0);
    if (tree >= 0)
        close(tree);
    close(ends[1]);
    group_close(&group);
    memmove(boxes + spare_count + 1, boxes + spare_count, (box_count - spare_count) * sizeof *boxes);
    boxes[spare_count++] = (struct running){pid, ends[0], groups_made, 0, number};
    box_count++;
}

static int spares(uint64_t number)
{
    int found = 0;
    for (int i = 0; i < spare_count; i++)
        found += boxes[i].image == number;
    return found;
}

/* Gives the number of an image. Spare boxes with the one before are of no use any more. */
static uint64_t number_of(const char *wanted)
{
    if (!*wanted)
        return 0;
    image_stock = strcmp(wanted, last_image) ? 0 : STOCK;
    for (int i = 0; !image_stock && i < spare_count; i++)
        if (boxes[i].image)
            kill(boxes[i].pid, SIGKILL);
    if (!image_stock)
        image_number++;
    memcpy(last_image, wanted, sizeof last_image);
    return image_number;
}

/* Hands the oldest spare box with that image, or a new one, its limits and the socket to its owner. */
static void start_box(int socket, const struct open_request *request)
{
    uint64_t number = number_of(request->image);
    int spare = 0;
    while (spare < spare_count && boxes[spare].image != number)
        spare++;
    if (spare == spare_count)
        breed(request->image, number);
    struct running box = boxes[spare];
    memmove(boxes + spare, boxes + spare + 1, (--box_count - spare) * sizeof *boxes);
    spare_count--;
    boxes[box_count++] = (struct running){box.pid, -1, box.group, request->id, number};
    if (group_limit(box.group, &request->limits)) {
        send_failure(socket, "limit the group");
        kill(box.pid, SIGKILL);
    } else
        send_with(box.socket, request, sizeof *request, &socket, 1); /* refused by a dead one, which is reaped */
    close(box.socket);
    close(socket);
}

static void reap(void)
{
    for (pid_t pid; (pid = waitpid(-1, NULL, WNOHANG)) > 0;)
        for (int i = 0; i < box_count; i++) {
            struct running box = boxes[i];
            struct launcher_note note = {.kind = GONE, .id = box.id};
            if (box.pid != pid)
                continue;
            memmove(boxes + i, boxes + i + 1, (--box_count - i) * sizeof *boxes);
            group_remove(box.group);
            if (box.socket >= 0) {
                close(box.socket);
                spare_count--;
            } else
                send(control, &note, sizeof note, MSG_NOSIGNAL);
            break;
        }
}

int receive_with_socket(int from, void *into, size_t size)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } space;
    struct iovec part = {into, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &space, .msg_controllen = sizeof space};
    ssize_t got;
    while ((got = recvmsg(from, &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
        continue;
    struct cmsghdr *attached = CMSG_FIRSTHDR(&message);
    if (got != (ssize_t)size || !attached || attached->cmsg_type != SCM_RIGHTS)
        return -1;
    int socket;
    memcpy(&socket, CMSG_DATA(attached), sizeof socket);
    return socket;
}

int send_with(int socket, const void *what, size_t size, const int *files, int count)
{
    union {
        char bytes[CMSG_SPACE(32 * sizeof(int))];
        struct cmsghdr align;
    } space = {{0}};
    struct iovec part = {(void *)what, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (count) {
        message.msg_control = &space;
        message.msg_controllen = CMSG_SPACE(count * sizeof *files);
        *CMSG_FIRSTHDR(&message) = (struct cmsghdr){CMSG_LEN(count * sizeof *files), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), files, count * sizeof *files);
    }
    return sendmsg(socket, &message, MSG_NOSIGNAL) == (ssize_t)size ? 0 : -1;
}

int send_descriptors(int socket, const int *files, int count)
{
    return send_with(socket, &count, sizeof count, files, count);
}

int receive_descriptors(int socket, int *files, int room)
{
    union {
        char bytes[CMSG_SPACE(32 * sizeof(int))];
        struct cmsghdr align;
    } space;
    int count;
    struct iovec part = {&count, sizeof count};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &space, .msg_controllen = sizeof space};
    ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    struct cmsghdr *attached = CMSG_FIRSTHDR(&message);
    if (got != sizeof count || count > room || !attached || attached->cmsg_len != CMSG_LEN(count * sizeof *files))
        return -1;
    memcpy(files, CMSG_DATA(attached), count * sizeof *files);
    return count;
}

static _Noreturn void serve(int owner)
{
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_BLOCK, &children, NULL);
    struct pollfd watched[3] = {
        {control, POLLIN, 0}, {owner, POLLIN, 0}, {signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK), POLLIN, 0}};
    for (int stocked = 1;;) {
        int ready = poll(watched, 3, stocked ? -1 : 0);
        if (watched[1].revents || (ready < 0 && errno != EINTR))
            break;
        if (watched[2].revents) {
            struct signalfd_siginfo ignored;
            while (read(watched[2].fd, &ignored, sizeof ignored) > 0)
                continue;
            reap();
        }
        if (watched[0].revents) {
            struct open_request request;
            int socket = receive_with_socket(control, &request, sizeof request);
            if (socket < 0)
                break; /* the owner has closed */
            start_box(socket, &request);
            stocked = 0;
        }
        if (!ready) { /* nobody waits */
            if (spares(0) < STOCK)
                breed("", 0);
            else if (spares(image_number) < image_stock)
                breed(last_image, image_number);
            else
                stocked = 1;
        }
    }
    for (int i = 0; i < box_count; i++)
        kill(boxes[i].pid, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
        continue;
    groups_remove();
    _exit(0);
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "filter")) {
        const struct sock_fprog *filter = filter_program();
        size_t size = filter->len * sizeof *filter->filter;
        return fwrite(filter->filter, 1, size, stdout) != size;
    }
    if (argc == 3 && !strcmp(argv[1], "guest"))
        guest_main(argv[2]);
    if (argc < 3 || strcmp(argv[1], "serve")) {
        fprintf(stderr, "usage: helper serve FD [--layers DIR | --build DIR] [PATH...] | helper filter\n");
        return 2;
    }
    control = owner_socket(argv[2], SOCK_SEQPACKET);
    fcntl(control, F_SETFD, FD_CLOEXEC);
    umask(022);
    outer_uid = geteuid();
    outer_gid = getegid();
    privileged = outer_uid == 0 && owns_unused_ids();
    int owner = getppid() ? syscall(SYS_pidfd_open, getppid(), 0) : -1; /* pid 1 of a container has no parent */
    if (getppid())
        must(owner, "watch the owner");
    struct launcher_note hello = {.kind = HELLO, .privileged = privileged};
    groups_find(&hello);
    if (privileged)
        must(unshare(CLONE_NEWNS), "make a mount namespace (root needs CAP_SYS_ADMIN)");
    else
        become_namespace_root();
    char **paths = argv + 3;
    const char *store = NULL;
    int writable = *paths && !strcmp(*paths, "--build");
    if (writable || (*paths && !strcmp(*paths, "--layers"))) {
        store = paths[1];
        paths += 2;
    }
    enter_own_root(store, writable, paths);
    filter_program();
    must(send(control, &hello, sizeof hello, MSG_NOSIGNAL), "greet the owner");
    serve(owner);
}
