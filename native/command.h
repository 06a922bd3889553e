/* What the parts that run one command share: command.c (request, start, end), inside.c (its namespaces), watch.c (the
 * time between), resident.c (the warm interpreter that FORKED commands are forks of).
 */
#pragma once

#include "sandbox.h"

struct command {
    struct exec_request head;
    char **argv, **envp, *files, *program, *input; /* sizes are in `head` */
};

struct stream {
    char *data;
    size_t size, room;
    size_t sent; /* bytes that came before `data` and were passed on */
    int patient; /* at its limit, the rest waits where it is */
    int over;    /* past its limit; the rest is dropped */
};

struct ending { /* from inside to the box; `broken` is our own failure */
    int status;
    uint64_t peak_memory, cpu_us, tasks;
    char broken[64];
};

struct live { /* a running command, as its box sees it */
    uint32_t flags;
    pid_t pid;
    int pidfd, out[2], talk, told, layer; /* talk: INTERACTIVE's socket, or TERMINAL's master; -1: none */
    int idle; /* between two turns */
    uint64_t began, deadline;
    struct stream streams[3], pending; /* stdout, stderr, talk; what waits to be said to it */
    struct exec_reply reply;
    struct ending ending; /* in a guest, which has no pid 1 inside */
};

struct inside { /* what goes into the namespaces of a command */
    int streams[3], tell, program, layer;
};

struct fork_note { /* from the resident to pid 1, when a fork is dead and when it is reaped; if `broken`, with errno */
    uint32_t reaped;
    int32_t status;
    uint64_t peak_memory, cpu_us;
    char broken[64];
};

/* command.c */
int command_parse(char *request, size_t size, struct command *command);
void counters_begin(const struct box *box, struct exec_reply *reply);
void counters_end(const struct box *box, const struct live *live, struct exec_reply *reply);
void send_reply(const struct box *box, uint32_t kind, struct exec_reply *reply, const struct stream *out,
                const struct stream *err);

/* inside.c */
_Noreturn void command_init(const struct box *box, const struct command *command, const struct inside *theirs);
_Noreturn void become_resident(const struct box *box, const struct command *command, int socket);

/* watch.c */
uint64_t now_us(void);
int watch(const struct box *box, struct live *live); /* until all is dead; why it was killed, or EXITED */
