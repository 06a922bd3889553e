/* cgroups, where this user may make them: v2 with memory and pids, else v1, else none.
 *
 * Everything goes through descriptors that are opened before the launcher leaves the host's root. Each launcher has
 * one directory, temper.PID, and one group a box in it; those of a dead launcher are removed by the next one.
 */
#define _GNU_SOURCE
#include "sandbox.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define OPEN_DIRECTORY (O_RDONLY | O_DIRECTORY | O_CLOEXEC)

static int version;                       /* 0: no cgroup can be used */
static int parents[3] = {-1, -1, -1};     /* by kind: where temper.PID is */
static int directories[3] = {-1, -1, -1}; /* by kind: temper.PID; all the same one in v2, -1: not bounded */
static char own_name[32];

static const char *const controllers[3] = {"memory", "pids", "cpuacct"};
static const char *const counter_files[2][3] = {{"memory.oom_control", "pids.events", "cpuacct.usage"},
                                                {"memory.events", "pids.events", "cpu.stat"}};
static const char *const bound_files[2][2] = {{"memory.limit_in_bytes", "memory.memsw.limit_in_bytes"},
                                              {"memory.max", "memory.swap.max"}};

/* ---- finding a place ---- */

/* Is `word` one of the comma-separated words of `list`? */
static int listed(const char *list, const char *word)
{
    size_t size = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += size)
        if ((at == list || at[-1] == ',') && (!at[size] || at[size] == ',' || at[size] == '\n'))
            return 1;
    return 0;
}

/* This process's own group in the hierarchy of `controller` ("" for v2), or -1. */
static int open_own(const char *controller)
{
    char line[4096], path[4096] = "", point[1024] = "", root[1024], type[64], options[1024], whole[6144] = "";
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file && !*path && fgets(line, sizeof line, file)) { /* NUMBER:CONTROLLERS:PATH */
        char *names = strchr(line, ':') + 1, *at = strchr(names, ':');
        *at++ = 0;
        if (*controller ? listed(names, controller) : !*names)
            snprintf(path, sizeof path, "%.*s", (int)strcspn(at, "\n"), at);
    }
    if (file)
        fclose(file);
    file = fopen("/proc/self/mountinfo", "re");
    while (file && !*whole && fgets(line, sizeof line, file)) {
        char *tail = strstr(line, " - ");
        if (!tail || sscanf(line, "%*d %*d %*s %1023s %1023s", root, point) != 2 ||
            sscanf(tail, " - %63s %*s %1023s", type, options) != 2)
            continue;
        if (*controller ? !strcmp(type, "cgroup") && listed(options, controller) : !strcmp(type, "cgroup2")) {
            size_t shared = strcmp(root, "/") && !strncmp(path, root, strlen(root)) ? strlen(root) : 0;
            snprintf(whole, sizeof whole, "%s/%s", point, path + shared);
        }
    }
    if (file)
        fclose(file);
    return *path ? open(whole, OPEN_DIRECTORY) : -1;
}

/* Removes our own temper.PID, also one that an earlier process of this number left, and those of dead launchers. */
static void remove_directories(int parent)
{
    DIR *directory = fdopendir(openat(parent, ".", OPEN_DIRECTORY));
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        pid_t pid = strncmp(entry->d_name, "temper.", 7) ? 0 : atoi(entry->d_name + 7);
        if (pid <= 0 || (pid != getpid() && !(kill(pid, 0) && errno == ESRCH)))
            continue;
        DIR *inner = fdopendir(openat(parent, entry->d_name, OPEN_DIRECTORY));
        for (struct dirent *group; inner && (group = readdir(inner));)
            if (group->d_type == DT_DIR && group->d_name[0] != '.')
                unlinkat(dirfd(inner), group->d_name, AT_REMOVEDIR);
        if (inner)
            closedir(inner);
        unlinkat(parent, entry->d_name, AT_REMOVEDIR);
    }
    if (directory)
        closedir(directory);
}

static int make_below(int parent)
{
    return parent < 0 || (mkdirat(parent, own_name, 0755) && errno != EEXIST) ? -1
           : openat(parent, own_name, OPEN_DIRECTORY);
}

/* Can a process really enter a group here, with its limits at work? */
static int proven(void)
{
    struct limits limits = {.memory = 64 << 20, .pids = 16};
    struct cgroup group;
    int works = !group_make(0, &group) && !group_limit(0, &limits), status = 1;
    pid_t child = works ? fork() : -1;
    if (!child)
        _exit(group_join(&group) != 0);
    works = child > 0 && waitpid(child, &status, 0) == child && !status;
    group_close(&group);
    group_remove(0);
    return works;
}

/* v2: the nearest ancestor below which groups with memory and pids can be made. */
static int find_v2(void)
{
    const char *enable = "+memory +pids +cpu";
    int at = open_own("");
    for (version = 2; at >= 0;) {
        remove_directories(at);
        int made = make_below(at);
        if (made >= 0 && faccessat(made, "memory.max", W_OK, 0))
            write_file(at, "cgroup.subtree_control", enable);
        if (made >= 0 && !write_file(made, "cgroup.subtree_control", enable)) {
            directories[0] = directories[1] = directories[2] = made;
            if (proven()) {
                parents[0] = at;
                return 1;
            }
        }
        close(made);
        remove_directories(at);
        int up = faccessat(at, "../cgroup.procs", F_OK, 0) ? -1 : openat(at, "..", OPEN_DIRECTORY);
        close(at);
        at = up;
    }
    directories[0] = directories[1] = directories[2] = -1;
    return 0;
}

void groups_find(struct launcher_note *note)
{
    snprintf(own_name, sizeof own_name, "temper.%d", getpid());
    if (!find_v2()) {
        version = 1;
        for (int i = 0; i < 3; i++)
            parents[i] = open_own(controllers[i]);
        groups_remove();
        for (int i = 0; i < 3; i++)
            directories[i] = make_below(parents[i]); /* cpuacct may be mounted together with pids */
        if ((directories[0] < 0 && directories[1] < 0) || !proven()) {
            groups_remove();
            directories[0] = directories[1] = directories[2] = -1;
            version = 0;
        }
    }
    note->cgroup = version;
    note->memory = directories[0] >= 0;
    note->pids = directories[1] >= 0;
    note->cpu = directories[2] >= 0;
}

void groups_remove(void)
{
    for (int i = 0; i < 3; i++)
        if (parents[i] >= 0)
            remove_directories(parents[i]);
}

/* ---- one group ---- */

static int open_in(int directory, uint64_t id, const char *file, int flags)
{
    char path[96];
    snprintf(path, sizeof path, "%llu/%s", (unsigned long long)id, file);
    return directory < 0 ? -1 : openat(directory, path, flags | O_CLOEXEC);
}

int group_make(uint64_t id, struct cgroup *out)
{
    char name[24];
    snprintf(name, sizeof name, "%llu", (unsigned long long)id);
    *out = (struct cgroup){{-1, -1, -1}, {-1, -1, -1}, {-1, -1}};
    for (int i = 0; i < 3; i++) {
        if (directories[i] < 0)
            continue;
        int first = version == 1 || !i;
        if (first && mkdirat(directories[i], name, 0755))
            return -1;
        if (first && (out->members[i] = open_in(directories[i], id, "cgroup.procs", O_WRONLY)) < 0)
            return -1;
        if ((out->counters[i] = open_in(directories[i], id, counter_files[version - 1][i], O_RDONLY)) < 0)
            return -1; /* a limit that leaves no proof would be taken for the command's own failure */
    }
    if (directories[0] >= 0 && (out->bounds[0] = open_in(directories[0], id, bound_files[version - 1][0], O_WRONLY)) < 0)
        return -1;
    out->bounds[1] = version == 1 ? open_in(directories[0], id, bound_files[0][1], O_WRONLY) : -1;
    return 0;
}

static int write_number(int directory, uint64_t id, const char *file, uint64_t value)
{
    int fd = open_in(directory, id, file, O_WRONLY);
    int done = fd < 0 ? -1 : dprintf(fd, "%llu", (unsigned long long)value);
    if (fd >= 0)
        close(fd);
    return done < 0 ? -1 : 0;
}

/* The limit on memory includes the disk, which is a tmpfs; two more tasks are the box and the command's pid 1. */
int group_limit(uint64_t id, const struct limits *limits)
{
    uint64_t memory = limits->memory + limits->disk;
    int two = version == 2;
    if (directories[0] >= 0) {
        const char *const *files = bound_files[version - 1];
        if (write_number(directories[0], id, files[0], memory))
            return -1;
        if (write_number(directories[0], id, files[1], two ? 0 : memory) && errno != ENOENT)
            return -1; /* v1 counts swap and memory together; the file is there only where swap is accounted */
    }
    return directories[1] >= 0 ? write_number(directories[1], id, "pids.max", limits->pids + 2) : 0;
}

/* The calling process enters. On v1 this waits for the kernel, milliseconds, so boxes do it ahead of their use. */
int group_join(const struct cgroup *group)
{
    for (int i = 0; i < 3; i++)
        if (group->members[i] >= 0 && write(group->members[i], "0", 1) != 1)
            return -1;
    return 0;
}

/* What the box itself holds (snapshots) comes on top. It may fail when it lowers the limit; then it stays. */
void group_bound(const int bounds[2], uint64_t memory)
{
    char text[24];
    int size = snprintf(text, sizeof text, "%llu", (unsigned long long)memory);
    const int order[3] = {bounds[1], bounds[0], bounds[1]}; /* v1: never less for both than for memory alone */
    for (int i = 0; i < 3; i++)
        if (order[i] >= 0 && pwrite(order[i], text, size, 0) < 0)
            continue;
}

void group_close(const struct cgroup *group)
{
    close(group->bounds[0]);
    close(group->bounds[1]);
    for (int i = 0; i < 3; i++) {
        close(group->counters[i]);
        close(group->members[i]);
    }
}

void group_remove(uint64_t id)
{
    char name[24];
    snprintf(name, sizeof name, "%llu", (unsigned long long)id);
    for (int i = 0; i < (version == 2 ? 1 : 3); i++)
        if (directories[i] >= 0)
            unlinkat(directories[i], name, AT_REMOVEDIR);
}

uint64_t counter_read(const struct box *box, int which, const char *key)
{
    char text[4096];
    if (box->counters[which] < 0)
        return 0;
    ssize_t got = pread(box->counters[which], text, sizeof text - 1, 0);
    if (got <= 0)
        fail(box, "read a counter of the cgroup");
    text[got] = 0;
    for (char *line = text; line; line = (line = strchr(line, '\n')) ? line + 1 : NULL)
        if (!strncmp(line, key, strlen(key)))
            return strtoull(line + strlen(key), NULL, 10);
    return 0;
}
