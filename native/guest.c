/* A guest: pid 1 of a container that somebody else made (bubblewrap, Docker without user namespaces).
 *
 * It serves the same requests as a box, with the walls as it finds them: nothing can be mounted, so commands share one
 * process tree, which is ended after each of them; there are no snapshots. The owner sends the limits first.
 */
#define _GNU_SOURCE
#include "sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* The owner's socket: a descriptor's number, or a path to connect to. Gives -1 when there is none. */
int owner_socket(const char *where, int type)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (*where != '/')
        return atoi(where);
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", where);
    return fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) ? -1 : fd;
}

/* Readable when a child has ended: for kernels that give no pidfd. */
int children_of_guest(void)
{
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_BLOCK, &children, NULL);
    return signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* In a container that starts as its root: the working directory is made, and every privilege given up. */
static void leave_root(const struct box *box)
{
    if (geteuid())
        return;
    mkdir("/sandbox", 0755);
    if (chown("/sandbox", INSIDE_ID, INSIDE_ID) || setgroups(0, NULL) ||
        setresgid(INSIDE_ID, INSIDE_ID, INSIDE_ID) || setresuid(INSIDE_ID, INSIDE_ID, INSIDE_ID))
        fail(box, "take the sandbox's ids");
}

_Noreturn void guest_main(const char *where)
{
    struct open_request request;
    struct box box = {.guest = 1, .resident = -1, .counters = {-1, -1, -1}, .bounds = {-1, -1}};
    int control = owner_socket(where, SOCK_STREAM);
    if (control < 0 || (box.control = fcntl(control, F_DUPFD_CLOEXEC, 64)) < 0)
        _exit(1);
    errno = EINVAL;
    if (getpid() != 1) /* to end a command ends every process that we may signal */
        fail(&box, "be the first process of a container");
    if (recv(box.control, &request, sizeof request, MSG_WAITALL) != sizeof request)
        _exit(1);
    box.limits = request.limits;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < 3; fd++)
        dup2(null, fd);
    syscall(SYS_close_range, 3, box.control - 1, 0);
    syscall(SYS_close_range, box.control + 1, ~0u, 0);
    leave_root(&box);
    close(children_of_guest()); /* the signal has to be blocked before there are children */
    box.work = box.disk = open("/sandbox", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (box.work < 0)
        fail(&box, "open /sandbox");
    prctl(PR_SET_DUMPABLE, 0);
    srandom(time(NULL));
    send_frame(box.control, READY, 0, NULL);
    box_serve(&box);
}
