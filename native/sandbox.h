/* What the parts of the sandbox helper share: limits, wire format, and the functions that each part offers.
 *
 *   launcher.c  main(): one process per backend; assembles the read-only base once, starts a box per request
 *   box.c       one process per sandbox, pid 1 of its namespaces: sets it up, serves exec, put and get
 *   command.c   one command: its own pid and mount namespace, limits, privileges dropped, output and end watched
 *   files.c     put and get, never through a symbolic link
 *   groups.c    cgroups (v2 or v1), where this user may make them
 *   usage.c     what a tree of processes uses, where there are no cgroups
 *   filter.c    the seccomp filter
 *
 * The helper trusts its owner (the other end of the control socket) and nothing else.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#define INSIDE_ID 1000 /* uid and gid that a command sees */

struct limits {
    uint64_t memory, disk, inodes, file_size, pids, cpu_ms, output;
};

/* To the launcher and on to a box, one packet, with the box's end of its control socket attached. */
struct open_request {
    uint64_t id;
    struct limits limits;
};

/* From the launcher: HELLO once, GONE when a box and its group are no more. */
enum { HELLO = 'H', GONE = 'G', FAILED = 'E' };
struct launcher_note {
    uint32_t kind, privileged, cgroup; /* cgroup: 0 (none), 1 or 2 */
    uint32_t memory, pids, cpu;        /* which of them a cgroup bounds */
    uint64_t id;
};

/* Frames on a box's control socket, both ways. */
struct frame {
    uint32_t size, kind; /* size of what follows */
};
enum { READY = 'R', EXEC = 'X', KILL = 'K', PUT = 'P', GET = 'G', DONE = 'D' };

struct exec_request { /* followed by argv and environment, each string NUL-terminated, then stdin */
    uint32_t wall_ms, argc, envc, stdin_size;
};

enum { EXITED, SIGNALLED, DEADLINE, OUTPUT, MEMORY, CPU, CANCELLED, LOST };
struct exec_reply { /* followed by stdout and stderr */
    uint32_t ended;
    int32_t code;
    uint64_t wall_us, cpu_us, peak_memory, oom_kills, forks_refused, peak_tasks, disk_free, inodes_free;
    uint32_t out_size, err_size;
};

enum { IN_MEMORY, IN_PIDS, IN_CPU };
struct cgroup { /* of one box, by kind; -1: not bounded */
    int counters[3], members[3];
};

/* groups.c */
void groups_find(struct launcher_note *note);
void groups_remove(void);
int group_make(uint64_t id, struct cgroup *out);
int group_limit(uint64_t id, const struct limits *limits);
int group_join(const struct cgroup *group);
void group_close(const struct cgroup *group);
void group_remove(uint64_t id);
uint64_t counter_read(int fd, const char *key); /* the number after `key` at the start of a line */

/* usage.c */
struct usage {
    uint64_t tasks, resident, cpu_us; /* resident counts shared pages once per process */
};
struct usage usage_of_all(const char *proc); /* every process but pid 1 of that proc mount */
uint64_t proportional_memory(const char *proc);

/* filter.c */
struct sock_fprog;
const struct sock_fprog *filter_program(void);

/* box.c */
struct box {
    int control, work;
    int counters[3];
    struct limits limits;
};
_Noreturn void box_main(int launcher, const struct cgroup *group); /* `launcher` brings its orders */
void send_frame(int fd, uint32_t kind, int count, const struct iovec *payload);
void send_failure(int control, const char *what); /* FAILED with `what` and errno */
_Noreturn void fail(const struct box *box, const char *what);

/* command.c, files.c: serve one request */
void command_run(const struct box *box, char *request, size_t size);
void files_put(const struct box *box, char *request, size_t size);
void files_get(const struct box *box, char *request, size_t size);

/* launcher.c */
int write_file(int directory, const char *path, const char *text);
int receive_with_socket(int from, void *into, size_t size); /* the socket that came along, or -1 */
