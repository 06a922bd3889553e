/* A box: pid 1 of one sandbox. It builds the sandbox's namespaces around itself and then serves requests, one at a
 * time, until its owner closes the socket. When it ends, the kernel kills everything in the sandbox and drops its
 * mounts. It keeps capabilities over its own user namespace only, and no command can see or trace it.
 */
#define _GNU_SOURCE
#include "sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <net/if.h>
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
#include <time.h>
#include <unistd.h>

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

/* The shared base becomes /, with one private tmpfs behind /sandbox, /tmp and /dev/shm: the sandbox's whole disk. */
static void build_root(const struct box *box)
{
    const unsigned long plain = MS_NOSUID | MS_NODEV;
    must_mount(box, "/box", "/box", NULL, MS_BIND | MS_REC, NULL); /* a copy that this namespace may change */
    if (chdir("/box"))
        fail(box, "enter the base");
    must_mount(box, "tmpfs", "tmp", "tmpfs", plain, "mode=0755,size=1m,nr_inodes=64"); /* until the limits are known */
    if (mkdir("tmp/sandbox", 0755) || mkdir("tmp/tmp", 0777) || chmod("tmp/tmp", 01777) || mkdir("tmp/shm", 0777) ||
        chmod("tmp/shm", 01777))
        fail(box, "make the writable directories");
    must_mount(box, "tmp/sandbox", "sandbox", NULL, MS_BIND, NULL);
    must_mount(box, "tmp/shm", "dev/shm", NULL, MS_BIND, NULL);
    must_mount(box, "tmp/tmp", "tmp", NULL, MS_BIND, NULL);
    must_mount(box, "devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620");
    must_mount(box, "proc", "proc", "proc", plain | MS_NOEXEC, NULL);
    if (syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/"))
        fail(box, "change the root");
}

static void raise_loopback(const struct box *box)
{
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request))
        fail(box, "raise the loopback interface");
    close(fd);
}

/* All that does not depend on who will use the box. */
static void settle(const struct box *box)
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
    build_root(box);
    raise_loopback(box);
    /* quotas of this user namespace: no nested one, and only a share of the host user's inotify instances */
    if (sethostname("sandbox", 7) || write_file(AT_FDCWD, "/proc/sys/user/max_user_namespaces", "0") ||
        write_file(AT_FDCWD, "/proc/sys/user/max_inotify_instances", "16"))
        fail(box, "set the namespace's quotas");
    for (int cap = 0; !prctl(PR_CAPBSET_DROP, cap, 0, 0, 0); cap++)
        continue; /* a command that is executed can gain none of these */
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
    must_mount(box, NULL, "/sandbox", NULL, MS_REMOUNT | MS_NOSUID | MS_NODEV, options);
    send_frame(box->control, READY, 0, NULL);
}

/* ---- service ---- */

static int read_all(int fd, void *into, size_t size)
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

/* Only these stay open: the launcher's socket as 3 (later the owner's), counters as 4 to 6, /sandbox as 7. */
static void keep_descriptors(struct box *box, int orders, const struct cgroup *group)
{
    const int kept[4] = {orders, group->counters[0], group->counters[1], group->counters[2]};
    int moved[4];
    for (int i = 0; i < 4; i++)
        moved[i] = kept[i] < 0 ? -1 : fcntl(kept[i], F_DUPFD_CLOEXEC, 64);
    syscall(SYS_close_range, 3, 63, 0); /* also the launcher's own, whose end the owner must notice */
    for (int i = 0; i < 4; i++)
        moved[i] = moved[i] < 0 ? -1 : dup3(moved[i], 3 + i, O_CLOEXEC);
    syscall(SYS_close_range, 7, ~0u, 0);
    launcher = moved[0];
    memcpy(box->counters, moved + 1, sizeof box->counters);
}

_Noreturn void box_main(int orders, const struct cgroup *group)
{
    int unmapped;
    struct frame frame;
    struct box box = {.control = -1};
    int outside = group_join(group) ? errno : 0;
    keep_descriptors(&box, orders, group);
    if (recv(launcher, &unmapped, sizeof unmapped, 0) != sizeof unmapped)
        _exit(1);
    if ((errno = outside))
        fail(&box, "enter the cgroup");
    if ((errno = unmapped))
        fail(&box, "map ids");
    settle(&box);
    box.work = open("/sandbox", O_PATH | O_DIRECTORY | O_CLOEXEC);
    srandom(getpid() ^ time(NULL));
    take_orders(&box);
    while (!read_all(box.control, &frame, sizeof frame)) {
        char *request = malloc(frame.size + 1);
        if (!request)
            fail(&box, "out of memory for a request");
        if (read_all(box.control, request, frame.size))
            break;
        if (frame.kind == EXEC)
            command_run(&box, request, frame.size);
        else if (frame.kind == PUT)
            files_put(&box, request, frame.size);
        else if (frame.kind == GET)
            files_get(&box, request, frame.size);
        free(request); /* a KILL that came too late is ignored */
    }
    _exit(0);
}
