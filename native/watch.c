/* The time between a command's start and its end: output is taken in, limits are looked at, the owner is obeyed. */
#define _GNU_SOURCE
#include "command.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LOOK_MS 100      /* between two looks at what a command uses */
#define TALK_LIMIT 4096u /* bytes of talk in one turn, of which its end takes some twenty */

uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000ull + now.tv_nsec / 1000;
}

/* ---- what the command says ---- */

/* Reads what is there. 0: more may come, 1: end of the stream, 2: over the limit (a patient one: at it). */
static int drain(int fd, struct stream *stream, size_t limit)
{
    char spare[4096];
    for (;;) {
        size_t left = limit - stream->sent; /* for what is kept and what is yet to come */
        if (stream->size == stream->room && stream->room < left) {
            size_t room = stream->room ? 4 * stream->room : 4096;
            stream->room = room < left ? room : left;
            char *grown = realloc(stream->data, stream->room);
            if (!grown)
                return 2;
            stream->data = grown;
        }
        int full = stream->size >= left;
        if (full && stream->patient)
            return 2;
        size_t space = full ? sizeof spare : (stream->room < left ? stream->room : left) - stream->size;
        ssize_t got = read(fd, full ? spare : stream->data + stream->size, space);
        if (got < 0)
            return errno == EAGAIN || errno == EINTR ? 0 : 1;
        if (got == 0)
            return 1;
        if (full)
            return 2;
        stream->size += got;
    }
}

/* Passes on what was read of a stream; nothing, when it went over its limit. */
static void forward(const struct box *box, uint32_t number, struct stream *stream)
{
    const struct iovec parts[2] = {{&number, sizeof number}, {stream->data, stream->size}};
    send_frame(box->control, SAID, 2, parts);
    stream->sent += stream->size;
    stream->size = 0;
}

/* The end of a turn, in the words of who runs them, with what the kernel counted in it. */
static void forward_turn(const struct box *box, struct live *live)
{
    struct exec_reply reply = live->reply;
    counters_end(box, live, &reply);
    reply.wall_us = now_us() - live->began;
    send_reply(box, TURN, &reply, &live->streams[2], NULL);
    live->streams[2].sent += live->streams[2].size;
    live->streams[2].size = 0;
    live->idle = 1;
}

/* Over its limit, a command ends; one that is talked with loses the rest of its turn's output, and who writes to a
 * terminal has to wait until what it showed was taken, of which the owner tells with an empty INPUT. */
static int listen_to(const struct box *box, struct live *live, struct pollfd watched[3])
{
    const int order[3] = {2, 0, 1}; /* what came before a word of talk is in the pipes when that has been read */
    int too_much = 0;
    for (int i = 0; i < 3; i++) {
        struct stream *stream = &live->streams[order[i]];
        struct pollfd *from = &watched[order[i]];
        int whole = order[i] == 2 && !(live->flags & TERMINAL); /* a turn's end, forwarded with its counters below */
        int silent = from->fd < 0 || (!from->revents && !live->streams[2].size);
        int end = silent ? 0 : drain(from->fd, stream, whole ? TALK_LIMIT : box->limits.output);
        if (end == 1 || (end == 2 && !(live->flags & INTERACTIVE)))
            from->fd = -1;
        int news = end == 2 && !stream->over;
        too_much |= end == 2 && !(live->flags & INTERACTIVE);
        stream->over |= end == 2;
        if (!whole && stream->size && live->flags & STREAMED)
            forward(box, order[i] % 2, stream);
        if (!whole && news && live->flags & INTERACTIVE)
            forward(box, order[i] % 2, stream);
    }
    if (live->streams[2].size && !(live->flags & TERMINAL))
        forward_turn(box, live);
    return too_much ? OUTPUT : EXITED;
}

/* ---- what it uses ---- */

static uint64_t group_cpu_us(const struct box *box)
{
    uint64_t usec = counter_read(box, IN_CPU, "usage_usec "); /* v2; v1 has one number, in ns */
    return usec ? usec : counter_read(box, IN_CPU, "") / 1000;
}

/* What is over its limit now: MEMORY, CPU, or EXITED for nothing. Keeps the peaks in `reply`. Without a cgroup the
 * first look tells what others had used before (the resident is charged for all its forks), in `*cpu_before`. */
static int look(const struct box *box, uint64_t *cpu_before, struct exec_reply *reply)
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
        if (box->counters[IN_CPU] < 0 && *cpu_before > cpu)
            *cpu_before = cpu;
    }
    if (box->counters[IN_CPU] >= 0)
        cpu = group_cpu_us(box);
    return cpu > *cpu_before + box->limits.cpu_ms * 1000 ? CPU : EXITED;
}

/* Orphans of the resident and of lanes are the box's children, and a namespace ends only when all in it are reaped. */
static void reap_others(pid_t own)
{
    siginfo_t dead = {.si_pid = 0};
    while (!waitid(P_ALL, 0, &dead, WEXITED | WNOHANG | WNOWAIT) && dead.si_pid && dead.si_pid != own)
        waitpid(dead.si_pid, NULL, 0);
}

/* ---- what the owner says ---- */

static void take_input(const struct box *box, struct live *live, size_t size)
{
    char *grown = realloc(live->pending.data, live->pending.size + size + 1);
    if (!grown || read_all(box->control, grown + live->pending.size, size))
        _exit(1);
    live->pending.data = grown;
    live->pending.size += size;
    for (int i = 0; i < 3; i++)
        live->streams[i].sent = live->streams[i].over = 0;
    live->idle = 0;
    if (!(live->flags & TERMINAL)) { /* a new turn */
        counters_begin(box, &live->reply);
        live->began = now_us();
    }
}

/* Says to the command what it takes now. */
static void talk(struct live *live)
{
    const struct stream *pending = &live->pending;
    if (!pending->size)
        return;
    ssize_t done = live->flags & TERMINAL ? write(live->talk, pending->data, pending->size)
                                          : send(live->talk, pending->data, pending->size, MSG_NOSIGNAL);
    if (done < 0 && errno != EAGAIN && errno != EINTR)
        done = live->pending.size; /* nobody listens any more; that it ended is told elsewhere */
    if (done > 0)
        memmove(live->pending.data, live->pending.data + done, live->pending.size -= done);
}

/* One order. CANCELLED when it was to stop; when the owner has gone, nothing is left to do. */
static int obey(const struct box *box, struct live *live)
{
    struct frame frame;
    struct winsize size = {0};
    uint16_t cells[2];
    ssize_t got = recv(box->control, &frame, sizeof frame, MSG_PEEK | MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return EXITED;
    if (got <= 0 || read_all(box->control, &frame, sizeof frame))
        _exit(1);
    if (frame.kind == INPUT && live->talk >= 0)
        take_input(box, live, frame.size);
    else if (frame.kind == INTERRUPT) {
        if (!live->idle) /* the turn may just have ended by itself */
            kill(-live->pid, SIGINT);
    } else if (frame.kind == RESIZE && frame.size == sizeof cells && !read_all(box->control, cells, sizeof cells)) {
        size.ws_row = cells[0];
        size.ws_col = cells[1];
        ioctl(live->talk, TIOCSWINSZ, &size);
    } else if (frame.kind != KILL)
        fail(box, "an order that is none, while a command runs");
    return frame.kind == KILL ? CANCELLED : EXITED;
}

/* ---- all together ---- */

/* Where the kernel has no pidfd (gVisor), `pidfd` is a signalfd that tells of any child. */
static int is_dead(const struct live *live)
{
    char ignored[128];
    siginfo_t ended = {.si_pid = 0};
    while (read(live->pidfd, ignored, sizeof ignored) > 0)
        continue;
    return waitid(P_PID, live->pid, &ended, WEXITED | WNOHANG | WNOWAIT) || ended.si_pid;
}

/* Until the command's pid 1 is dead, and with it the whole namespace. Gives why it was killed, or EXITED. */
static int watch_until_dead(const struct box *box, struct live *live)
{
    int why = EXITED, killed = 0;
    uint64_t cpu_before = box->counters[IN_CPU] < 0 ? UINT64_MAX / 2 : group_cpu_us(box);
    uint64_t look_at = now_us() + LOOK_MS * 1000;
    struct pollfd watched[5] = {{live->out[0], POLLIN, 0}, {live->out[1], POLLIN, 0}, {live->talk, POLLIN, 0},
                                {live->pidfd, POLLIN, 0}, {box->control, POLLIN, 0}};
    for (;;) {
        uint64_t now = now_us(), next = killed || look_at < live->deadline ? look_at : live->deadline;
        watched[2].events = (live->pending.size ? POLLOUT : 0) | (live->streams[2].over ? 0 : POLLIN);
        poll(watched, 5, now < next ? (int)((next - now + 999) / 1000) : 0);
        now = now_us();
        int found = listen_to(box, live, watched);
        why = why ? why : found;
        if (watched[3].revents && is_dead(live))
            return why;
        if (watched[4].revents && (found = obey(box, live)) && !why)
            why = found;
        talk(live);
        if (now >= look_at) {
            found = look(box, &cpu_before, &live->reply);
            why = why ? why : found;
            reap_others(live->pid);
            look_at = now + LOOK_MS * 1000;
        }
        if (now >= live->deadline && !why)
            why = DEADLINE;
        if (why && !killed) {
            kill(live->pid, SIGKILL);
            killed = 1;
        }
    }
}

/* In a guest this process is pid 1, and ends what the command leaves. */
static void reap_command(const struct box *box, struct live *live)
{
    struct rusage used;
    wait4(live->pid, &live->ending.status, 0, &used);
    live->ending.peak_memory = (uint64_t)used.ru_maxrss << 10;
    live->ending.cpu_us = (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000ull;
    live->ending.cpu_us += used.ru_utime.tv_usec + used.ru_stime.tv_usec;
    if (box->guest) {
        uint64_t tasks = live->ending.status ? tasks_at_failure("/proc", box->limits.pids) : 0;
        live->ending.tasks = tasks + (live->ending.status != 0); /* the command is reaped */
        end_processes();
    }
}

int watch(const struct box *box, struct live *live)
{
    int why = watch_until_dead(box, live);
    struct pollfd rest[3] = {{live->out[0], 0, POLLIN}, {live->out[1], 0, POLLIN}, {live->talk, 0, POLLIN}};
    reap_command(box, live);
    int found = listen_to(box, live, rest); /* what was still in the pipes */
    return why ? why : found;
}
