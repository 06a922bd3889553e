/* What the parts of the sandbox helper share: limits, wire format, and the functions that each part offers.
 *
 *   launcher.c  main(): one process per backend; assembles the read-only base once, starts a box per request
 *   box.c       one process per sandbox, pid 1 of its namespaces: sets it up, serves exec, put and get
 *   command.c   one command: asked for, started, told how it ended; inside.c its own namespaces, limits and privileges;
 *               watch.c its output, its use of limits, and talk with it
 *   resident.c  a warm interpreter that forks itself into the namespaces of commands; lanes
 *   layers.c    the layers of an image, stacked to be a box's root
 *   files.c     put and get, never through a symbolic link
 *   groups.c    cgroups (v2 or v1), where this user may make them
 *   usage.c     what a tree of processes uses, where there are no cgroups
 *   filter.c    the seccomp filter
 *   landlock.c  what a command may change, by path
 *   guest.c     pid 1 of a container that somebody else made: a box without mounts of its own
 *   snapshot.c  snapshots of a box's disk; tree.h, tree.c, pack.c, unpack.c: files in memory and back; hash.c: BLAKE2b
 *
 * The helper trusts its owner (the other end of the control socket) and nothing else.
 */
#pragma once

#include <linux/capability.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#define INSIDE_ID 1000 /* uid and gid that a command sees */
#define IMAGE_SIZE 2048

struct limits {
    uint64_t memory, disk, inodes, file_size, pids, cpu_ms, output, open_files;
};

/* To the launcher and on to a box, one packet, with the box's end of its control socket attached. */
struct open_request {
    uint64_t id;
    struct limits limits;
    uint64_t proxy;         /* the port on the box's loopback that the owner serves from outside, or 0 */
    char image[IMAGE_SIZE]; /* see layers.c; "": none */
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
enum { SNAPSHOT = 'S', RETURN = 'B', HASH = 'H', GIVE = 'V', ACCEPT = 'A' };
enum { WARM = 'W', LANE = 'L' };                     /* start a resident; serve the socket that comes along */
enum { INPUT = 'I', INTERRUPT = 'C', RESIZE = 'Z' }; /* to a running command */
enum { SAID = 'O', TURN = 'U' };                     /* from one: stream number and data; exec_reply and word */

struct exec_request { /* followed by argv and environment (each ends with NUL), files as in PUT, program, stdin */
    uint32_t wall_ms, flags, argc, envc, files_size, program_size, stdin_size; /* wall_ms 0: no limit */
    uint16_t rows, columns;
};
enum {
    FRESH = 1,       /* in a writable layer, with `files`, and a network of its own */
    FORKED = 2,      /* `program` in a fork of the resident, instead of argv */
    STREAMED = 4,    /* output is sent when it comes, in SAID */
    INTERACTIVE = 8, /* its stdin is a socket that INPUT goes to; what it says there is the end of a turn */
    TERMINAL = 16,   /* stdin, stdout and stderr are a terminal that INPUT goes to */
};

enum { EXITED, SIGNALLED, DEADLINE, OUTPUT, MEMORY, CPU, CANCELLED, LOST, UNWRITTEN }; /* UNWRITTEN: errno and file */
struct exec_reply { /* followed by stdout and stderr */
    uint32_t ended;
    int32_t code;
    uint64_t wall_us, cpu_us, peak_memory, oom_kills, forks_refused, peak_tasks, disk_free, inodes_free;
    uint32_t out_size, err_size;
};

enum { IN_MEMORY, IN_PIDS, IN_CPU };
struct cgroup { /* of one box, by kind; -1: not bounded */
    int counters[3], members[3];
    int bounds[2]; /* where a limit on memory is written; in v1 also that of memory and swap together */
};

/* groups.c */
void groups_find(struct launcher_note *note);
void groups_remove(void);
int group_make(uint64_t id, struct cgroup *out);
int group_limit(uint64_t id, const struct limits *limits);
int group_join(const struct cgroup *group);
void group_bound(const int bounds[2], uint64_t memory);
void group_close(const struct cgroup *group);
void group_remove(uint64_t id);

/* usage.c */
struct usage {
    uint64_t tasks, resident, cpu_us; /* resident counts shared pages once per process */
};
struct usage usage_of_all(const char *proc); /* every process but pid 1 of that proc mount */
uint64_t tasks_at_failure(const char *proc, uint64_t limit);
uint64_t proportional_memory(const char *proc);

/* filter.c */
struct sock_fprog;
const struct sock_fprog *filter_program(void);

/* hash.c */
struct hash {
    uint64_t state[8], total;
    size_t held;
    unsigned char block[128];
};
void hash_begin(struct hash *hash);
void hash_add(struct hash *hash, const void *data, size_t size);
void hash_end(struct hash *hash, unsigned char into[32]);

/* landlock.c: for the calling process and all that it starts */
int landlock_confine(void);
int landlock_rules(void);

/* box.c */
enum { NO_IMAGE, IMAGE, BUILDING }; /* where /sandbox begins: empty, as the image has it, in a root that is writable */
struct box {
    int guest, control, work, disk, image, resident;
    int counters[3], bounds[2];
    struct limits limits;
};
void disk_mount(struct box *box);
void disk_show(struct box *box);
void disk_hide(const struct box *box);
_Noreturn void box_serve(struct box *box); /* requests, until the owner closes its socket */
_Noreturn void box_main(int launcher, const struct cgroup *group, const char *image); /* `launcher` brings its orders */
void send_frame(int fd, uint32_t kind, int count, const struct iovec *payload);
void send_failure(int control, const char *what); /* FAILED with `what` and errno */
_Noreturn void fail(const struct box *box, const char *what);
uint64_t counter_read(const struct box *box, int which, const char *key); /* after `key`, at the start of a line */
int read_all(int fd, void *into, size_t size);
void raise_loopback(const struct box *box);

/* layers.c; the first three in the launcher, the last in a box, before it changes its root */
void layers_remember(const char *path);           /* the base shows the host's files at `path` */
int layers_show(const char *store, int writable); /* the host's `store` (seen below /old) at /layers */
int layers_map(pid_t box);                        /* as root: a mount of /layers, not attached, for that box's ids */
void layers_stack(const struct box *box, const char *image, int tree); /* the root, at /image; `tree`: its map, or -1 */

/* command.c, resident.c, files.c: serve one request */
#define RESIDENT_NEEDS (1ull << CAP_SETPCAP | 1ull << CAP_SYS_CHROOT | 1ull << CAP_SYS_ADMIN)
void command_run(const struct box *box, char *request, size_t size);
void resident_start(struct box *box, char *request, size_t size);
void lane_open(struct box *box, int socket);
uint32_t files_write(const struct box *box, int work, char *request, size_t size, char tried[4096]);
void files_put(const struct box *box, char *request, size_t size);
void files_get(const struct box *box, char *request, size_t size);

/* snapshot.c: serve one request */
void end_processes(void); /* all but this one, which is pid 1 */
void snapshot_take(const struct box *box);
void snapshot_return(struct box *box, const char *request, size_t size);
void snapshot_hash(const struct box *box, const char *request, size_t size);
void snapshot_give(const struct box *box, const char *request, size_t size, int socket);
void snapshot_accept(struct box *box, int socket);

/* guest.c */
int owner_socket(const char *where, int type); /* a descriptor's number, or a path to connect to; -1: nobody there */
int children_of_guest(void);
_Noreturn void guest_main(const char *owner);

/* launcher.c */
int write_file(int directory, const char *path, const char *text);
int receive_with_socket(int from, void *into, size_t size); /* the socket that came along, or -1 */
int send_with(int socket, const void *what, size_t size, const int *files, int count); /* one packet */
int send_descriptors(int socket, const int *files, int count);
int receive_descriptors(int socket, int *files, int room); /* how many came along, or -1 */
