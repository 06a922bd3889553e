/* A box: pid 1 of one sandbox. It builds the sandbox's namespaces around itself and then serves requests, one at a
 * time, until its owner closes the socket. When it ends, the kernel kills everything in the sandbox and drops its
 * mounts. It keeps capabilities over its own user namespace only, and no command can see or trace it.
 */
#define _GNU_SOURCE
#include "sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <malloc.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DISK (MS_NOSUID | MS_NODEV | MS_NOATIME) /* reading changes nothing, so that a snapshot does not */

static int launcher;

void send_frame(int fd, uint32_t kind, int count, const struct iovec *payload)
{
    struct frame frame = {0, kind};
    struct iovec parts[4] = {{&frame, sizeof frame}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count + 1};
    for (int i = 0; i < count; i++)
        frame.size += (parts[i + 1] = payload[i]).iov_len;
    for (size_t left = sizeof frame + frame.size; left;) {
        ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR)
            _exit(1); /* the owner has gone */
        left -= sent > 0 ? sent : 0;
        for (; sent > 0 && (size_t)sent >= message.msg_iov->iov_len; message.msg_iovlen--)
            sent -= message.msg_iov++->iov_len;
        if (sent > 0) {
            message.msg_iov->iov_base = (char *)message.msg_iov->iov_base + sent;
            message.msg_iov->iov_len -= sent;
        }
    }
}

void send_failure(int control, const char *what)
{
    char text[256];
    int size = snprintf(text, sizeof text, "%s: %s", what, strerror(errno));
    send_frame(control, FAILED, 1, &(struct iovec){text, size});
}

/* Before the box has a socket, the failure waits for one, so that it reaches who opens the box. */
_Noreturn void fail(const struct box *box, const char *what)
{
    struct open_request request;
    int error = errno, control = box->control;
    if (control < 0)
        control = receive_with_socket(launcher, &request, sizeof request);
    errno = error;
    if (control >= 0)
        send_failure(control, what);
    _exit(1);
}

/* ---- set-up ---- */

static void must_mount(const struct box *box, const char *from, const char *to, const char *type, unsigned long flags,
                       const char *options)
{
    char what[128];
    if (mount(from, to, type, flags, options)) {
        snprintf(what, sizeof what, "mount %s", to);
        fail(box, what);
    }
}

/* The private disk: one tmpfs behind /sandbox, /tmp and /dev/shm. Paths are relative: first to the base, later to /. */
void disk_mount(struct box *box)
{
    char options[96] = "mode=0755,size=1m,nr_inodes=64"; /* until the limits are known */
    if (box->limits.disk)
        snprintf(options, sizeof options, "mode=0755,size=%llu,nr_inodes=%llu", (unsigned long long)box->limits.disk,
                 (unsigned long long)box->limits.inodes);
    must_mount(box, "tmpfs", "tmp", "tmpfs", DISK, options);
    box->disk = open("tmp", O_PATH | O_DIRECTORY | O_CLOEXEC); /* the mount of /tmp will hide it */
    if (mkdir("tmp/sandbox", 0755) || mkdir("tmp/tmp", 0777) || chmod("tmp/tmp", 01777) || mkdir("tmp/shm", 0777) ||
        chmod("tmp/shm", 01777))
        fail(box, "make the writable directories");
}

void disk_show(struct box *box)
{
    if (box->image == NO_IMAGE)
        must_mount(box, "tmp/sandbox", "sandbox", NULL, MS_BIND, NULL);
    if (box->image == IMAGE && mkdir("tmp/work", 0700))
        fail(box, "make the overlay's own directory");
    if (box->image == IMAGE)
        must_mount(box, "overlay", "sandbox", "overlay", MS_NOSUID | MS_NODEV,
                   "lowerdir=sandbox,upperdir=tmp/sandbox,workdir=tmp/work,userxattr");
    must_mount(box, "tmp/shm", "dev/shm", NULL, MS_BIND, NULL);
    must_mount(box, "tmp/tmp", "tmp", NULL, MS_BIND, NULL);
    box->work = open("sandbox", O_PATH | O_DIRECTORY | O_CLOEXEC);
}

void disk_hide(const struct box *box)
{
    static const char *const mounts[] = {"sandbox", "dev/shm", "tmp", "tmp"};
    close(box->work);
    for (int i = box->image == BUILDING; i < 4; i++)
        if (umount2(mounts[i], MNT_DETACH))
            fail(box, "take the disk away");
}

/* The shared base becomes /, or the image's layers do. */
static void build_root(struct box *box, const char *image, int tree)
{
    const unsigned long plain = MS_NOSUID | MS_NODEV;
    if (box->image)
        layers_stack(box, image, tree);
    else
        must_mount(box, "/box", "/box", NULL, MS_BIND | MS_REC, NULL); /* a copy that this namespace may change */
    if (chdir(box->image ? "/image" : "/box"))
        fail(box, "enter the base");
    disk_mount(box);
    disk_show(box);
    must_mount(box, "devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620");
    must_mount(box, "proc", "proc", "proc", plain | MS_NOEXEC, NULL);
    if (syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/"))
        fail(box, "change the root");
}

void raise_loopback(const struct box *box)
{
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request))
        fail(box, "raise the loopback interface");
    close(fd);
}

/* READY, with a socket that listens on the box's loopback: the owner answers there, and the box has no other way out. */
static void hand_over_port(const struct box *box, uint16_t port)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct frame ready = {0, READY};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&here, sizeof here) || listen(fd, 128) ||
        send_with(box->control, &ready, sizeof ready, &fd, 1))
        fail(box, "listen for the owner");
    close(fd);
}

/* All that does not depend on who will use the box. */
static void settle(struct box *box, const char *image, int tree)
{
    if (setgroups(0, NULL) && errno != EPERM) /* a plain user cannot; its groups own nothing that is visible here */
        fail(box, "drop groups");
    if (setresgid(INSIDE_ID, INSIDE_ID, INSIDE_ID) || setresuid(INSIDE_ID, INSIDE_ID, INSIDE_ID))
        fail(box, "take the sandbox's ids");
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* the launcher's death */
    prctl(PR_SET_NAME, "temper-box");
    setsid();
    if (unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWCGROUP))
        fail(box, "make namespaces");
    build_root(box, image, tree);
    raise_loopback(box);
    /* quotas of this user namespace: no nested one, and only a share of the host user's inotify instances */
    if (sethostname("sandbox", 7) || write_file(AT_FDCWD, "/proc/sys/user/max_user_namespaces", "0") ||
        write_file(AT_FDCWD, "/proc/sys/user/max_inotify_instances", "16"))
        fail(box, "set the namespace's quotas");
    for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
        if (cap > 63 || !(RESIDENT_NEEDS & 1ull << cap))
            prctl(PR_CAPBSET_DROP, cap, 0, 0, 0); /* a command that is executed can gain none of these */
    prctl(PR_SET_DUMPABLE, 0);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

static void take_orders(struct box *box)
{
    struct open_request request;
    char options[96];
    box->control = receive_with_socket(launcher, &request, sizeof request);
    if (box->control < 0)
        _exit(0);
    close(launcher);
    box->limits = request.limits;
    snprintf(options, sizeof options, "size=%llu,nr_inodes=%llu", (unsigned long long)box->limits.disk,
             (unsigned long long)box->limits.inodes);
    must_mount(box, NULL, "/tmp", NULL, MS_REMOUNT | DISK, options);
    if (request.proxy)
        hand_over_port(box, request.proxy);
    else
        send_frame(box->control, READY, 0, NULL);
}

/* ---- service ---- */

int read_all(int fd, void *into, size_t size)
{
    for (char *at = into; size;) {
        ssize_t got = read(fd, at, size);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return -1;
        at += got;
        size -= got;
    }
    return 0;
}

/* Only these stay open: the launcher's socket as 3 (later the owner's), counters as 4 to 6, bounds as 7 and 8. */
static void keep_descriptors(struct box *box, int orders, const struct cgroup *group)
{
    enum { KEPT = 6 };
    int kept[KEPT] = {orders};
    memcpy(kept + 1, group->counters, sizeof group->counters);
    memcpy(kept + 4, group->bounds, sizeof group->bounds);
    for (int i = 0; i < KEPT; i++)
        kept[i] = kept[i] < 0 ? -1 : fcntl(kept[i], F_DUPFD_CLOEXEC, 64);
    syscall(SYS_close_range, 3, 63, 0); /* also the launcher's own, whose end the owner must notice */
    for (int i = 0; i < KEPT; i++)
        kept[i] = kept[i] < 0 ? -1 : dup3(kept[i], 3 + i, O_CLOEXEC);
    syscall(SYS_close_range, 3 + KEPT, ~0u, 0);
    launcher = kept[0];
    memcpy(box->counters, kept + 1, sizeof box->counters);
    memcpy(box->bounds, kept + 4, sizeof box->bounds);
}

/* The next frame, with the socket that came along or -1 in `attached`. Gives -1 when the owner has gone. */
static int next_frame(int control, struct frame *frame, int *attached)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } space;
    struct iovec part = {frame, sizeof *frame};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &space, .msg_controllen = sizeof space};
    ssize_t got;
    while ((got = recvmsg(control, &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
        continue;
    struct cmsghdr *found = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    *attached = -1;
    if (found && found->cmsg_type == SCM_RIGHTS)
        memcpy(attached, CMSG_DATA(found), sizeof *attached);
    return got <= 0 ? -1 : read_all(control, (char *)frame + got, sizeof *frame - got);
}

static void serve(struct box *box, uint32_t kind, char *request, size_t size, int attached)
{
    if (kind == EXEC)
        command_run(box, request, size);
    else if (kind == WARM)
        resident_start(box, request, size);
    else if (kind == LANE)
        lane_open(box, attached);
    else if (kind == PUT)
        files_put(box, request, size);
    else if (kind == GET)
        files_get(box, request, size);
    else if (kind == SNAPSHOT)
        snapshot_take(box);
    else if (kind == RETURN)
        snapshot_return(box, request, size);
    else if (kind == HASH)
        snapshot_hash(box, request, size);
    else if (kind == GIVE)
        snapshot_give(box, request, size, attached);
    else if (kind == ACCEPT)
        snapshot_accept(box, attached);
    /* a KILL that came too late is ignored */
}

_Noreturn void box_serve(struct box *box)
{
    int attached;
    struct frame frame;
    while (!next_frame(box->control, &frame, &attached)) {
        while (waitpid(-1, NULL, WNOHANG) > 0)
            continue; /* lanes that have ended, and what they left */
        char *request = malloc(frame.size + 1);
        if (!request)
            fail(box, "out of memory for a request");
        if (read_all(box->control, request, frame.size))
            break;
        serve(box, frame.kind, request, frame.size, attached);
        free(request);
        if (attached >= 0)
            close(attached);
    }
    _exit(0);
}

_Noreturn void box_main(int orders, const struct cgroup *group, const char *image)
{
    int unmapped = EPIPE;
    struct box box = {.control = -1, .resident = -1, .image = *image == '+' ? BUILDING : *image ? IMAGE : NO_IMAGE};
    int outside = group_join(group) ? errno : 0;
    keep_descriptors(&box, orders, group);
    int tree = receive_with_socket(launcher, &unmapped, sizeof unmapped); /* as root, with an image: its layers */
    if ((errno = outside))
        fail(&box, "enter the cgroup");
    if ((errno = unmapped))
        fail(&box, *image ? "map ids, or those of the layers (needs a file system with id-mapped mounts)" : "map ids");
    settle(&box, image, tree);
    srandom(getpid() ^ time(NULL));
#ifdef M_MMAP_THRESHOLD
    mallopt(M_MMAP_THRESHOLD, 256 << 10); /* else glibc keeps what was large once, which the sandbox would pay for */
#endif
    take_orders(&box);
    box_serve(&box);
}
