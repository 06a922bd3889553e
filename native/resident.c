/* The resident of a box: a warm interpreter that forks itself into the namespaces of each FORKED command. And lanes.
 *
 * It never runs a program of the model's, keeps three capabilities over this sandbox's user namespace (to enter the
 * namespaces of its forks and to take away their privileges), and cannot be seen by them.
 */
#define _GNU_SOURCE
#include "command.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/securebits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* What a fork has to do to itself: resident.py repeats `drop_privileges` with these. */
static int instruct(const struct box *box, int socket)
{
    const struct sock_fprog *filter = filter_program();
    struct {
        uint32_t cpu_seconds, securebits;
        uint64_t capabilities;
    } head = {(box->limits.cpu_ms + 999) / 1000, SECURE_ALL_BITS | SECURE_ALL_LOCKS, RESIDENT_NEEDS};
    const struct iovec parts[2] = {{&head, sizeof head}, {filter->filter, filter->len * sizeof *filter->filter}};
    const struct msghdr message = {.msg_iov = (struct iovec *)parts, .msg_iovlen = 2};
    return sendmsg(socket, &message, MSG_NOSIGNAL) < 0 ? -1 : 0;
}

/* Its word that it is warm ("", and then it waits for commands), or why not. The owner may go away meanwhile. */
static size_t first_word(const struct box *box, int socket, char *text, size_t size)
{
    static const char gone[] = "the interpreter ended before it was warm";
    struct pollfd watched[2] = {{socket, POLLIN, 0}, {box->control, POLLIN, 0}};
    while (poll(watched, 2, -1) < 0 && errno == EINTR)
        continue;
    if (watched[1].revents)
        _exit(1);
    ssize_t got = recv(socket, text, size, 0);
    if (got > 0)
        return got - 1; /* it ends with a NUL, since an empty packet looks like the end */
    memcpy(text, gone, sizeof gone);
    return sizeof gone - 1;
}

/* Request: as for EXEC; its command is the interpreter. Reply: nothing, or why it does not run. */
void resident_start(struct box *box, char *request, size_t size)
{
    struct command command;
    char text[4096];
    int ends[2];
    if (command_parse(request, size, &command))
        fail(box, "a request for a resident is cut short");
    if (box->resident >= 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
        fail(box, "make a socket for a resident");
    pid_t pid = fork();
    if (!pid)
        become_resident(box, &command, ends[1]);
    close(ends[1]);
    if (pid < 0 || instruct(box, ends[0]))
        fail(box, "start a resident");
    box->resident = ends[0];
    size_t length = first_word(box, ends[0], text, sizeof text);
    send_frame(box->control, DONE, 1, &(struct iovec){text, length});
    free(command.argv);
}

/* Another socket of the owner's, served by a process of its own: for a command that goes on while others run. */
void lane_open(struct box *box, int socket)
{
    if (socket < 0 || fork()) { /* if there is no lane, the owner learns it from the socket's end */
        send_frame(box->control, DONE, 0, NULL);
        return;
    }
    if (dup3(socket, box->control, O_CLOEXEC) < 0)
        _exit(1);
    send_frame(box->control, READY, 0, NULL);
}
