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
#include <unistd.h>

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

_Noreturn void fail(int control, const char *what)
{
    send_failure(control, what);
    _exit(1);
}

/* ---- set-up ---- */

static void mount_or_fail(int control, const char *from, const char *to, const char *type, unsigned long flags,
                          const char *options)
{
    if (mount(from, to, type, flags, options)) {
        char what[128];
        snprintf(what, sizeof what, "mount %s", to);
        fail(control, what);
    }
}

/* The shared base becomes /, with one private tmpfs behind /work, /tmp and /dev/shm: the sandbox's whole disk. */
static void build_root(int control, const struct limits *limits)
{
    char options[128];
    const unsigned long plain = MS_NOSUID | MS_NODEV;
    mount_or_fail(control, "/box", "/box", NULL, MS_BIND | MS_REC, NULL); /* a copy that this namespace may change */
    if (chdir("/box"))
        fail(control, "enter the base");
    snprintf(options, sizeof options, "mode=0755,size=%llu,nr_inodes=%llu", (unsigned long long)limits->disk,
             (unsigned long long)limits->inodes);
    mount_or_fail(control, "tmpfs", "tmp", "tmpfs", plain, options);
    if (mkdir("tmp/work", 0755) || mkdir("tmp/tmp", 0777) || chmod("tmp/tmp", 01777) || mkdir("tmp/shm", 0777) ||
        chmod("tmp/shm", 01777))
        fail(control, "make the writable directories");
    mount_or_fail(control, "tmp/work", "work", NULL, MS_BIND, NULL);
    mount_or_fail(control, "tmp/shm", "dev/shm", NULL, MS_BIND, NULL);
    mount_or_fail(control, "tmp/tmp", "tmp", NULL, MS_BIND, NULL);
    mount_or_fail(control, "devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620");
    mount_or_fail(control, "proc", "proc", "proc", plain | MS_NOEXEC, NULL);
    if (syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/"))
        fail(control, "change the root");
}

static void raise_loopback(int control)
{
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request))
        fail(control, "raise the loopback interface");
    close(fd);
}

static void settle(int control, const struct limits *limits)
{
    if (setgroups(0, NULL) && errno != EPERM) /* a plain user cannot; its groups own nothing that is visible here */
        fail(control, "drop groups");
    if (setresgid(INSIDE_ID, INSIDE_ID, INSIDE_ID) || setresuid(INSIDE_ID, INSIDE_ID, INSIDE_ID))
        fail(control, "take the sandbox's ids");
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* the launcher's death */
    prctl(PR_SET_NAME, "temper-box");
    setsid();
    if (unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWCGROUP))
        fail(control, "make namespaces");
    build_root(control, limits);
    raise_loopback(control);
    /* quotas of this user namespace: no nested one, and only a share of the host user's inotify instances */
    if (sethostname("sandbox", 7) || write_file(AT_FDCWD, "/proc/sys/user/max_user_namespaces", "0") ||
        write_file(AT_FDCWD, "/proc/sys/user/max_inotify_instances", "16"))
        fail(control, "set the namespace's quotas");
    prctl(PR_SET_DUMPABLE, 0);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
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

_Noreturn void box_main(int control, const struct limits *limits, struct counters counters, int ready)
{
    char go;
    struct frame frame;
    if (read(ready, &go, 1) != 1)
        _exit(1);
    settle(control, limits);
    struct box box = {.limits = *limits, .counters = counters};
    /* only what is needed stays open: control 3, counters 4 to 6, the working directory 7 */
    int keep[5] = {control, counters.memory, counters.pids, counters.cpu, open("/work", O_PATH | O_DIRECTORY)};
    int *names[5] = {&box.control, &box.counters.memory, &box.counters.pids, &box.counters.cpu, &box.work};
    for (int i = 0; i < 5; i++)
        if (keep[i] >= 0)
            keep[i] = fcntl(keep[i], F_DUPFD_CLOEXEC, 64);
    for (int i = 0; i < 5; i++)
        *names[i] = keep[i] < 0 ? -1 : dup3(keep[i], 3 + i, O_CLOEXEC);
    syscall(SYS_close_range, 8, ~0u, 0);
    srandom(getpid() ^ (unsigned)(uintptr_t)&go);
    send_frame(box.control, READY, 0, NULL);
    while (!read_all(box.control, &frame, sizeof frame)) {
        char *request = malloc(frame.size + 1);
        if (!request)
            fail(box.control, "out of memory for a request");
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
