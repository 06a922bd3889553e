/* One command: asked for, started, told how it ended. This is the box's side; inside.c is the command's.
 *
 * Each command has a pid namespace of its own, whose pid 1 is ours. Killing that one lets the kernel kill every
 * descendant, also those that made themselves sessions of their own, and nothing survives the end of the command.
 * A FRESH command has a writable layer and a network of its own too, so that it meets nothing of those before it.
 */
#define _GNU_SOURCE
#include "sandbox.h"
#include "command.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the request ---- */

/* Points `list` at `n` strings of [at, end); gives where they stop, or NULL. */
static char *strings(char *at, const char *end, char **list, uint32_t n)
{
    for (uint32_t i = 0; at && i < n; i++) {
        list[i] = at;
        char *zero = memchr(at, 0, end - at);
        at = zero ? zero + 1 : NULL;
    }
    list[n] = NULL;
    return at;
}

int command_parse(char *request, size_t size, struct command *command)
{
    struct exec_request *head = &command->head;
    if (size < sizeof *head)
        return -1;
    memcpy(head, request, sizeof *head);
    uint64_t tail = (uint64_t)head->files_size + head->program_size + head->stdin_size;
    if (head->argc < 1 || sizeof *head + head->argc + (uint64_t)head->envc + tail > size)
        return -1;
    char *end = request + size - tail;
    command->argv = calloc(head->argc + (size_t)head->envc + 2, sizeof *command->argv);
    command->envp = command->argv + head->argc + 1;
    command->files = end;
    command->program = end + head->files_size;
    command->input = command->program + head->program_size;
    char *rest = command->argv ? strings(request + sizeof *head, end, command->argv, head->argc) : NULL;
    return rest && strings(rest, end, command->envp, head->envc) == end ? 0 : -1;
}

/* ---- the start ---- */

/* A file in memory, so that nobody has to feed a pipe. */
static int in_memory(const char *name, const char *content, size_t size)
{
    if (!size)
        return open("/dev/null", O_RDONLY | O_CLOEXEC);
    int fd = memfd_create(name, MFD_CLOEXEC);
    int failed = fd < 0 || write(fd, content, size) != (ssize_t)size;
    return failed || lseek(fd, 0, SEEK_SET) ? -1 : fd;
}

/* A tmpfs with `sandbox`, `tmp` and `shm` in it, mounted nowhere yet. */
static int new_layer(const struct limits *limits)
{
    char size[24], inodes[24];
    snprintf(size, sizeof size, "%llu", (unsigned long long)limits->disk);
    snprintf(inodes, sizeof inodes, "%llu", (unsigned long long)limits->inodes);
    const char *const options[][2] = {{"size", size}, {"nr_inodes", inodes}, {"mode", "0755"}};
    int context = syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC), failed = context < 0;
    for (int i = 0; i < 3 && !failed; i++)
        failed = syscall(SYS_fsconfig, context, FSCONFIG_SET_STRING, options[i][0], options[i][1], 0);
    failed = failed || syscall(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, NULL, NULL, 0);
    int root = failed ? -1 : syscall(SYS_fsmount, context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    close(context);
    if (root < 0 || mkdirat(root, "sandbox", 0755) || mkdirat(root, "tmp", 0777) || fchmodat(root, "tmp", 01777, 0) ||
        mkdirat(root, "shm", 0777) || fchmodat(root, "shm", 01777, 0))
        return -1;
    return root;
}

/* The two ends of a new terminal. */
static int open_terminal(const struct exec_request *head, int ends[2])
{
    struct winsize size = {head->rows, head->columns, 0, 0};
    int unlocked = 0;
    ends[0] = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (ends[0] < 0 || ioctl(ends[0], TIOCSPTLCK, &unlocked) || ioctl(ends[0], TIOCSWINSZ, &size))
        return -1;
    ends[1] = ioctl(ends[0], TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    return ends[1] < 0 ? -1 : 0;
}

static void open_pair(const struct box *box, int failed, const int ends[2], int *ours, int *theirs)
{
    if (failed || fcntl(ends[0], F_SETFL, O_NONBLOCK))
        fail(box, "make pipes for a command");
    *ours = ends[0];
    *theirs = ends[1];
}

/* Fills `live` with our ends, and `theirs` with those for inside. */
static void open_ends(const struct box *box, const struct command *command, struct live *live, struct inside *theirs)
{
    const struct exec_request *head = &command->head;
    int ends[2], *streams = theirs->streams;
    live->out[0] = live->out[1] = live->talk = theirs->program = -1;
    open_pair(box, pipe2(ends, O_CLOEXEC), ends, &live->told, &theirs->tell);
    if (head->flags & TERMINAL) {
        open_pair(box, open_terminal(head, ends), ends, &live->talk, &streams[0]);
        streams[1] = streams[2] = streams[0];
        return;
    }
    if (head->flags & INTERACTIVE)
        open_pair(box, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), ends, &live->talk, &streams[0]);
    else
        streams[0] = in_memory("stdin", command->input, head->stdin_size);
    for (int i = 0; i < 2; i++)
        open_pair(box, pipe2(ends, O_CLOEXEC), ends, &live->out[i], &streams[1 + i]);
    if (head->flags & FORKED)
        theirs->program = in_memory("program", command->program, head->program_size);
    if (streams[0] < 0)
        fail(box, "keep a command's input");
}

static void start(const struct box *box, const struct command *command, struct live *live)
{
    struct inside theirs = {.layer = live->layer};
    int own = box->guest ? 0 : CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC;
    if (command->head.flags & FRESH)
        own |= CLONE_NEWNET;
    open_ends(box, command, live, &theirs);
    live->pid = syscall(SYS_clone, SIGCHLD | own | CLONE_PIDFD, NULL, &live->pidfd, NULL, NULL);
    if (live->pidfd < 0 && box->guest)
        live->pidfd = children_of_guest();
    if (!live->pid)
        command_init(box, command, &theirs);
    if (live->pid < 0)
        fail(box, "clone a command");
    close(theirs.tell);
    close(theirs.program);
    for (int i = 0; i < (command->head.flags & TERMINAL ? 1 : 3); i++)
        close(theirs.streams[i]);
}

/* ---- the end ---- */

void counters_begin(const struct box *box, struct exec_reply *reply)
{
    *reply = (struct exec_reply){.oom_kills = counter_read(box, IN_MEMORY, "oom_kill "),
                                 .forks_refused = counter_read(box, IN_PIDS, "max ")};
}

/* What the kernel counted since `counters_begin`. */
void counters_end(const struct box *box, const struct live *live, struct exec_reply *reply)
{
    struct statvfs disk;
    if (!fstatvfs(live->layer < 0 ? box->disk : live->layer, &disk)) {
        reply->disk_free = (uint64_t)disk.f_bavail * disk.f_frsize;
        reply->inodes_free = disk.f_files ? disk.f_favail : UINT64_MAX; /* some file systems do not count */
    }
    reply->oom_kills = counter_read(box, IN_MEMORY, "oom_kill ") - reply->oom_kills;
    reply->forks_refused = counter_read(box, IN_PIDS, "max ") - reply->forks_refused;
}

/* What pid 1 told, once everything is dead, and the counters. */
static void conclude(const struct box *box, int why, struct live *live)
{
    struct ending ending = {0};
    struct exec_reply *reply = &live->reply;
    struct stream *errors = &live->streams[1];
    int known = read(live->told, &ending, sizeof ending) == sizeof ending;
    if (!known && box->guest) {
        ending = live->ending;
        known = 1;
    }
    int status = ending.status;
    if (ending.broken[0] && (errors->data = realloc(errors->data, sizeof ending.broken)))
        errors->size = strlen(strcpy(errors->data, ending.broken));
    else if (known)
        reply->code = WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status);
    reply->ended = why ? why : !known || ending.broken[0] ? LOST : WIFEXITED(status) ? EXITED : SIGNALLED;
    reply->cpu_us = ending.cpu_us;
    if (box->counters[IN_MEMORY] < 0 && ending.peak_memory > reply->peak_memory)
        reply->peak_memory = ending.peak_memory;
    if (box->counters[IN_PIDS] < 0 && ending.tasks > reply->peak_tasks)
        reply->peak_tasks = ending.tasks;
    counters_end(box, live, reply);
}

void send_reply(const struct box *box, uint32_t kind, struct exec_reply *reply, const struct stream *out,
                const struct stream *err)
{
    reply->out_size = out->size;
    reply->err_size = err ? err->size : 0;
    char *errors = err ? err->data : NULL;
    const struct iovec parts[3] = {{reply, sizeof *reply}, {out->data, out->size}, {errors, reply->err_size}};
    send_frame(box->control, kind, 3, parts);
}

/* A layer with the command's files. 0, or the request is answered already. */
static int prepare_layer(const struct box *box, const struct command *command, struct live *live)
{
    char tried[4096];
    live->layer = new_layer(&box->limits);
    int work = live->layer < 0 ? -1 : openat(live->layer, "sandbox", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (work < 0)
        fail(box, "make a layer for a command");
    uint32_t error = files_write(box, work, command->files, command->head.files_size, tried);
    close(work);
    if (!error)
        return 0;
    live->reply.ended = UNWRITTEN;
    live->reply.code = error;
    send_reply(box, DONE, &live->reply, &(struct stream){.data = tried, .size = strlen(tried)}, NULL);
    close(live->layer);
    return -1;
}

void command_run(const struct box *box, char *request, size_t size)
{
    struct command command;
    struct live live = {.layer = -1, .pidfd = -1};
    if (command_parse(request, size, &command))
        fail(box, "an exec request is cut short");
    live.flags = command.head.flags;
    live.streams[2].patient = (live.flags & TERMINAL) != 0;
    live.began = now_us();
    live.deadline = command.head.wall_ms ? live.began + command.head.wall_ms * 1000ull : UINT64_MAX;
    if ((live.flags & FRESH) && prepare_layer(box, &command, &live)) {
        free(command.argv);
        return;
    }
    counters_begin(box, &live.reply);
    start(box, &command, &live);
    int why = watch(box, &live);
    conclude(box, why, &live);
    live.reply.wall_us = now_us() - live.began;
    send_reply(box, DONE, &live.reply, &live.streams[0], &live.streams[1]);
    const int ours[] = {live.out[0], live.out[1], live.talk, live.told, live.pidfd, live.layer};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (ours[i] >= 0)
            close(ours[i]);
    for (int i = 0; i < 3; i++)
        free(live.streams[i].data);
    free(live.pending.data);
    free(command.argv);
}
