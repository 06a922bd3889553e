/* One command: run, watch, end, tell how it ended.
 *
 * Each command has a pid namespace of its own, whose pid 1 is ours. Killing that one lets the kernel kill every
 * descendant, also those that made themselves sessions of their own, and nothing survives the end of the command.
 */
#define _GNU_SOURCE
#include "sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LOOK_MS 100 /* between two looks at what a command uses */

extern char **environ;

struct ending { /* from inside the command's namespaces to the box; `broken` is our own failure */
    int status;
    uint64_t peak_memory, cpu_us, tasks;
    char broken[64];
};

static int tell;

struct stream {
    char *data;
    size_t size, room;
};

/* ---- inside the command's namespaces ---- */

static _Noreturn void broken(const char *what)
{
    struct ending ending = {0};
    snprintf(ending.broken, sizeof ending.broken, "%s: %s", what, strerror(errno));
    _exit(write(tell, &ending, sizeof ending) != sizeof ending);
}

static void hide(void)
{
    static const char *const files[] = {"/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/kallsyms",
                                        "/proc/interrupts", "/proc/timer_list", "/proc/cmdline", "/proc/sysrq-trigger"};
    static const char *const directories[] = {"/proc/acpi", "/proc/scsi", "/proc/asound", "/proc/bus", "/proc/fs",
                                              "/proc/irq", "/proc/driver", "/proc/sys/fs/binfmt_misc"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (mount("/dev/null", files[i], NULL, MS_BIND, NULL) && errno != ENOENT)
            broken(files[i]);
    for (size_t i = 0; i < sizeof directories / sizeof *directories; i++)
        if (mount("/sys", directories[i], NULL, MS_BIND, NULL) && errno != ENOENT) /* /sys is empty here */
            broken(directories[i]);
}

static void bound(int resource, uint64_t soft, uint64_t hard)
{
    struct rlimit limit = {soft, hard};
    if (setrlimit(resource, &limit) && errno != EPERM) /* EPERM: the outer limit is lower already */
        broken("setrlimit");
}

static void set_limits(const struct box *box)
{
    const struct limits *limits = &box->limits;
    uint64_t cpu = (limits->cpu_ms + 999) / 1000;
    bound(RLIMIT_CORE, 0, 0);
    bound(RLIMIT_CPU, cpu, cpu + 1);
    bound(RLIMIT_FSIZE, limits->file_size, limits->file_size);
    bound(RLIMIT_NOFILE, 1024, 1024);
    bound(RLIMIT_MEMLOCK, 64 << 10, 64 << 10);
    bound(RLIMIT_SIGPENDING, 1024, 1024);
    if (box->counters[IN_PIDS] < 0) /* counted by user namespace, so by sandbox; the box and pid 1 count too */
        bound(RLIMIT_NPROC, limits->pids + 2, limits->pids + 2);
    if (box->counters[IN_MEMORY] < 0) /* of each process; the watcher sees to their sum */
        bound(RLIMIT_DATA, 2 * limits->memory, 2 * limits->memory);
}

static void drop_privileges(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0}};
    prctl(PR_SET_SECUREBITS, SECURE_ALL_BITS | SECURE_ALL_LOCKS);
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if (syscall(SYS_capset, &header, none) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, filter_program()))
        broken("drop privileges");
}

static _Noreturn void become_command(const struct box *box, char **argv, const int streams[3])
{
    sigset_t none;
    for (int i = 0; i < 3; i++)
        if (dup2(streams[i], i) < 0)
            broken("dup2");
    syscall(SYS_close_range, 3, ~0u, CLOSE_RANGE_CLOEXEC);
    setpgid(0, 0);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (chdir("/sandbox"))
        broken("enter /sandbox");
    set_limits(box);
    drop_privileges();
    execvp(argv[0], argv);
    dprintf(2, "%s: %s\n", argv[0], strerror(errno));
    _exit(errno == ENOENT ? 127 : 126); /* as a shell has it */
}

/* pid 1 of the command's namespace: starts it, reaps orphans, tells how it ended, and takes all the rest with it. */
static _Noreturn void command_init(const struct box *box, char **argv, const int streams[3])
{
    struct ending ending = {0};
    struct rusage used;
    int status;
    prctl(PR_SET_DUMPABLE, 1);
    if (write_file(AT_FDCWD, "/proc/self/oom_score_adj", "1000")) /* the kernel is to choose us, not the box */
        broken("oom_score_adj");
    prctl(PR_SET_DUMPABLE, 0);
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, NULL))
        broken("mount /proc");
    hide();
    pid_t child = fork();
    if (!child)
        become_command(box, argv, streams);
    for (int i = 0; i < 3; i++)
        close(streams[i]);
    if (child < 0)
        broken("fork");
    pid_t reaped;
    do {
        siginfo_t ended;
        if (waitid(P_ALL, 0, &ended, WEXITED | WNOWAIT))
            broken("wait");
        if (ended.si_status && box->counters[IN_PIDS] < 0) { /* was it the limit? the dead still count, until reaped */
            uint64_t tasks = usage_of_all("/proc").tasks;
            ending.tasks = tasks > ending.tasks ? tasks : ending.tasks;
        }
        reaped = waitpid(ended.si_pid, &status, 0);
    } while (reaped != child);
    getrusage(RUSAGE_CHILDREN, &used);
    ending.status = status;
    ending.peak_memory = (uint64_t)used.ru_maxrss << 10;
    ending.cpu_us = (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000ull;
    ending.cpu_us += used.ru_utime.tv_usec + used.ru_stime.tv_usec;
    _exit(write(tell, &ending, sizeof ending) != sizeof ending);
}

/* ---- the box's side ---- */

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000ull + now.tv_nsec / 1000;
}

/* Reads what is there. 0: more may come, 1: end of the stream, 2: over the limit. */
static int drain(int fd, struct stream *stream, size_t limit)
{
    char spare[4096];
    for (;;) {
        if (stream->size == stream->room && stream->room < limit) {
            size_t room = stream->room ? 4 * stream->room : 4096;
            stream->room = room < limit ? room : limit;
            char *grown = realloc(stream->data, stream->room);
            if (!grown)
                return 2;
            stream->data = grown;
        }
        int full = stream->size == limit;
        char *into = full ? spare : stream->data + stream->size;
        ssize_t got = read(fd, into, full ? sizeof spare : stream->room - stream->size);
        if (got < 0)
            return errno == EAGAIN || errno == EINTR ? 0 : 1;
        if (got == 0)
            return 1;
        if (full)
            return 2;
        stream->size += got;
    }
}

static uint64_t group_cpu_us(const struct box *box)
{
    uint64_t usec = counter_read(box->counters[IN_CPU], "usage_usec "); /* v2; v1 has one number, in ns */
    return usec ? usec : counter_read(box->counters[IN_CPU], "") / 1000;
}

/* What is over its limit now: MEMORY, CPU, or EXITED for nothing. Keeps the peaks in `reply`. */
static int look(const struct box *box, uint64_t cpu_before, struct exec_reply *reply)
{
    uint64_t cpu;
    if (box->counters[IN_MEMORY] < 0 || box->counters[IN_PIDS] < 0 || box->counters[IN_CPU] < 0) {
        struct usage usage = usage_of_all("/proc");
        uint64_t memory = usage.resident;
        usage.tasks -= usage.tasks > 0; /* the command's pid 1 */
        if (usage.tasks > reply->peak_tasks)
            reply->peak_tasks = usage.tasks;
        if (memory > box->limits.memory)
            memory = proportional_memory("/proc");
        if (memory > reply->peak_memory)
            reply->peak_memory = memory;
        if (box->counters[IN_MEMORY] < 0 && memory > box->limits.memory)
            return MEMORY;
        cpu = usage.cpu_us;
    }
    if (box->counters[IN_CPU] >= 0)
        cpu = group_cpu_us(box) - cpu_before;
    return cpu > box->limits.cpu_ms * 1000 ? CPU : EXITED;
}

/* A KILL frame is waiting, or the owner has gone (then nothing is left to do). */
static int told_to_stop(int control)
{
    struct frame frame;
    ssize_t got = recv(control, &frame, sizeof frame, MSG_PEEK | MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
        _exit(1);
    if (got != sizeof frame || frame.kind != KILL)
        return 0;
    return recv(control, &frame, sizeof frame, 0) == sizeof frame;
}

/* Until the command's pid 1 is dead, and with it the whole namespace. Gives why it was killed, or EXITED. */
static int watch(const struct box *box, int pidfd, const int out[3], struct stream streams[2], uint64_t deadline,
                 struct exec_reply *reply)
{
    int why = EXITED, killed = 0;
    uint64_t cpu_before = group_cpu_us(box), look_at = now_us() + LOOK_MS * 1000;
    struct pollfd watched[4] = {
        {pidfd, POLLIN, 0}, {box->control, POLLIN, 0}, {out[0], POLLIN, 0}, {out[1], POLLIN, 0}};
    for (;;) {
        uint64_t now = now_us(), next = look_at < deadline ? look_at : deadline;
        poll(watched, 4, killed ? -1 : now < next ? (int)((next - now + 999) / 1000) : 0);
        now = now_us();
        for (int i = 0; i < 2; i++) {
            int end = watched[2 + i].revents ? drain(out[i], &streams[i], box->limits.output) : 0;
            if (end)
                watched[2 + i].fd = -1;
            if (end == 2 && !why)
                why = OUTPUT;
        }
        if (watched[0].revents)
            return why;
        if (watched[1].revents && told_to_stop(box->control) && !why)
            why = CANCELLED;
        if (now >= look_at) {
            int over = look(box, cpu_before, reply);
            why = why ? why : over;
            look_at = now + LOOK_MS * 1000;
        }
        if (now >= deadline && !why)
            why = DEADLINE;
        if (why && !killed) {
            syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
            killed = 1;
        }
    }
}

/* What pid 1 told, once everything is dead, and the counters. */
static void conclude(const struct box *box, int why, int told, struct stream *errors, struct exec_reply *reply)
{
    struct ending ending = {0};
    struct statvfs disk;
    int known = read(told, &ending, sizeof ending) == sizeof ending, status = ending.status;
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
    if (!statvfs("/sandbox", &disk)) {
        reply->disk_free = (uint64_t)disk.f_bavail * disk.f_frsize;
        reply->inodes_free = disk.f_favail;
    }
    reply->oom_kills = counter_read(box->counters[IN_MEMORY], "oom_kill ") - reply->oom_kills;
    reply->forks_refused = counter_read(box->counters[IN_PIDS], "max ") - reply->forks_refused;
}

/* ---- a request ---- */

struct command {
    char **argv, **envp, *input;
    size_t input_size;
    uint32_t wall_ms;
};

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

static int parse(char *request, size_t size, struct command *command)
{
    struct exec_request head;
    if (size < sizeof head)
        return -1;
    memcpy(&head, request, sizeof head);
    if (head.argc < 1 || head.argc + (uint64_t)head.envc + head.stdin_size + sizeof head > size)
        return -1;
    char **list = calloc(head.argc + (size_t)head.envc + 2, sizeof *list), *end = request + size - head.stdin_size;
    *command = (struct command){list, list + head.argc + 1, end, head.stdin_size, head.wall_ms};
    char *rest = list ? strings(request + sizeof head, end, command->argv, head.argc) : NULL;
    return rest && strings(rest, end, command->envp, head.envc) == end ? 0 : -1;
}

/* stdin is a file in memory, so that nobody has to feed a pipe. */
static int input_of(const struct command *command)
{
    if (!command->input_size)
        return open("/dev/null", O_RDONLY | O_CLOEXEC);
    int fd = memfd_create("stdin", MFD_CLOEXEC);
    int failed = fd < 0 || write(fd, command->input, command->input_size) != (ssize_t)command->input_size;
    return failed || lseek(fd, 0, SEEK_SET) ? -1 : fd;
}

/* Gives the command's pid 1; `ours` are the ends to read: its output, its errors, what pid 1 tells. */
static pid_t start(const struct box *box, const struct command *command, int ours[3], int *pidfd)
{
    int theirs[3], streams[3] = {input_of(command)};
    for (int i = 0; i < 3; i++) {
        int ends[2];
        if (streams[0] < 0 || pipe2(ends, O_CLOEXEC) || fcntl(ends[0], F_SETFL, O_NONBLOCK))
            fail(box, "make pipes for a command");
        ours[i] = ends[0];
        theirs[i] = ends[1];
    }
    const int own = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC;
    pid_t pid = syscall(SYS_clone, SIGCHLD | own | CLONE_PIDFD, NULL, pidfd, NULL, NULL);
    if (!pid) {
        environ = command->envp;
        streams[1] = theirs[0];
        streams[2] = theirs[1];
        tell = theirs[2];
        command_init(box, command->argv, streams);
    }
    if (pid < 0)
        fail(box, "clone a command");
    close(streams[0]);
    for (int i = 0; i < 3; i++)
        close(theirs[i]);
    return pid;
}

void command_run(const struct box *box, char *request, size_t size)
{
    struct command command;
    struct stream kept[2] = {{0}};
    struct exec_reply reply = {.oom_kills = counter_read(box->counters[IN_MEMORY], "oom_kill "),
                               .forks_refused = counter_read(box->counters[IN_PIDS], "max ")};
    int ours[3], pidfd = -1;
    if (parse(request, size, &command))
        fail(box, "an exec request is cut short");
    uint64_t begin = now_us();
    pid_t pid = start(box, &command, ours, &pidfd);
    int why = watch(box, pidfd, ours, kept, begin + command.wall_ms * 1000ull, &reply);
    waitpid(pid, NULL, 0);
    for (int i = 0; i < 2; i++) /* what was still in the pipes */
        if (drain(ours[i], &kept[i], box->limits.output) == 2 && !why)
            why = OUTPUT;
    conclude(box, why, ours[2], &kept[1], &reply);
    reply.wall_us = now_us() - begin;
    reply.out_size = kept[0].size;
    reply.err_size = kept[1].size;
    const struct iovec parts[3] = {{&reply, sizeof reply}, {kept[0].data, kept[0].size}, {kept[1].data, kept[1].size}};
    send_frame(box->control, DONE, 3, parts);
    free(kept[0].data);
    free(kept[1].data);
    free(command.argv);
    for (int i = 0; i < 3; i++)
        close(ours[i]);
    close(pidfd);
}
