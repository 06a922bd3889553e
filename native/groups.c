/* cgroups, where this user may make them: v2 with memory and pids, else v1, else none.
 *
 * Everything goes through directory descriptors that are opened before the launcher leaves the host's root. Groups are
 * called temper.PID; those of a dead launcher are removed by the next one.
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

static int parents[3] = {-1, -1, -1}; /* of memory, pids, cpu */
static char own_name[32];

/* Is `word` one of the comma-separated words of `list`? */
static int listed(const char *list, const char *word)
{
    size_t size = strlen(word);
    for (const char *at = list; at && (at = strstr(at, word)); at += size)
        if ((at == list || at[-1] == ',') && (!at[size] || at[size] == ',' || at[size] == '\n'))
            return 1;
    return 0;
}

/* This process's path in the hierarchy of `controller` ("" for v2). */
static int own_path(const char *controller, char *path, size_t size)
{
    FILE *file = fopen("/proc/self/cgroup", "re");
    char line[4096];
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file)) {
        char *names = strchr(line, ':'), *at = names ? strchr(names + 1, ':') : NULL;
        if (!at)
            continue;
        *at = 0;
        if (*controller ? listed(names + 1, controller) : !names[1]) {
            at[1 + strcspn(at + 1, "\n")] = 0;
            found = (size_t)snprintf(path, size, "%s", at + 1) < size;
        }
    }
    if (file)
        fclose(file);
    return found;
}

/* Where the hierarchy of `controller` is mounted: mount point and root, from mountinfo. */
static int mount_of(const char *controller, char *point, char *root)
{
    FILE *file = fopen("/proc/self/mountinfo", "re");
    char line[4096], type[64], options[1024];
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file)) {
        char *tail = strstr(line, " - ");
        if (!tail || sscanf(line, "%*d %*d %*s %1023s %1023s", root, point) != 2 ||
            sscanf(tail + 3, "%63s %*s %1023s", type, options) != 2)
            continue;
        found = *controller ? !strcmp(type, "cgroup") && listed(options, controller) : !strcmp(type, "cgroup2");
    }
    if (file)
        fclose(file);
    return found;
}

static int open_own(const char *controller)
{
    char path[4096], point[1024], root[1024], whole[6144];
    if (!own_path(controller, path, sizeof path) || !mount_of(controller, point, root))
        return -1;
    size_t shared = strlen(root);
    const char *below = strcmp(root, "/") && !strncmp(path, root, shared) ? path + shared : path;
    snprintf(whole, sizeof whole, "%s/%s", point, below);
    return open(whole, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void remove_tree(int parent, const char *name)
{
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = fd < 0 ? NULL : fdopendir(fd);
    for (struct dirent *entry; directory && (entry = readdir(directory));)
        if (entry->d_type == DT_DIR && entry->d_name[0] != '.')
            unlinkat(fd, entry->d_name, AT_REMOVEDIR);
    if (directory)
        closedir(directory);
    unlinkat(parent, name, AT_REMOVEDIR);
}

static void remove_stale(int parent)
{
    int fd = openat(parent, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = fd < 0 ? NULL : fdopendir(fd);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        int pid = strncmp(entry->d_name, "temper.", 7) ? 0 : atoi(entry->d_name + 7);
        if (pid > 0 && kill(pid, 0) && errno == ESRCH)
            remove_tree(parent, entry->d_name);
    }
    if (directory)
        closedir(directory);
}

static int make_below(int parent)
{
    if (parent < 0)
        return -1;
    remove_stale(parent);
    if (mkdirat(parent, own_name, 0755) && errno != EEXIST)
        return -1;
    return openat(parent, own_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* Can a child really be moved into a group below `groups`, with both controllers at work there? */
static int proves_itself(const struct groups *groups)
{
    struct limits limits = {.memory = 64 << 20, .disk = 0, .pids = 16};
    struct counters counters;
    pid_t child = fork();
    if (!child)
        pause();
    int works = child > 0 && !group_make(groups, 0, &limits, &counters) && !group_join(groups, 0, child);
    if (works) {
        close(counters.memory);
        close(counters.pids);
        close(counters.cpu);
    }
    if (child > 0) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    group_remove(groups, 0);
    return works;
}

/* v2: the nearest ancestor below which groups with memory and pids can be made. */
static struct groups find_v2(void)
{
    const char *enable = "+memory +pids +cpu";
    struct groups none = {0, -1, -1, -1};
    int at = open_own("");
    for (int level = 0; at >= 0 && level < 16; level++) {
        int made = make_below(at);
        if (made >= 0 && faccessat(made, "memory.max", W_OK, 0) && !write_file(at, "cgroup.subtree_control", enable)) {
            close(made); /* enabling acts on groups that are there already, so only look again */
            made = openat(at, own_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        }
        if (made >= 0 && !write_file(made, "cgroup.subtree_control", enable)) {
            struct groups found = {2, made, made, made};
            if (proves_itself(&found)) {
                parents[0] = at;
                return found;
            }
        }
        if (made >= 0) {
            close(made);
            remove_tree(at, own_name);
        }
        int up = faccessat(at, "../cgroup.procs", F_OK, 0) ? -1 : openat(at, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        close(at);
        at = up;
    }
    if (at >= 0)
        close(at);
    return none;
}

struct groups groups_find(void)
{
    snprintf(own_name, sizeof own_name, "temper.%d", getpid());
    struct groups found = find_v2();
    if (found.version)
        return found;
    static const char *const controllers[3] = {"memory", "pids", "cpuacct"};
    int made[3];
    for (int i = 0; i < 3; i++)
        made[i] = make_below(parents[i] = open_own(controllers[i]));
    struct groups first = {1, made[0], made[1], made[2]};
    if ((made[0] >= 0 || made[1] >= 0) && proves_itself(&first))
        return first;
    groups_remove(&first);
    return (struct groups){0, -1, -1, -1};
}

static int write_number(int directory, const char *group, const char *file, uint64_t value)
{
    char path[96], text[32];
    snprintf(path, sizeof path, "%s/%s", group, file);
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    return write_file(directory, path, text);
}

static int open_counter(int directory, const char *group, const char *file)
{
    char path[96];
    snprintf(path, sizeof path, "%s/%s", group, file);
    return openat(directory, path, O_RDONLY | O_CLOEXEC);
}

/* A group for box `id` with these limits. The limit on memory includes the disk, which is a tmpfs. */
int group_make(const struct groups *groups, uint64_t id, const struct limits *limits, struct counters *out)
{
    int two = groups->version == 2, all[3] = {groups->memory, groups->pids, groups->cpu};
    uint64_t memory = limits->memory + limits->disk;
    char name[24];
    snprintf(name, sizeof name, "%llu", (unsigned long long)id);
    *out = (struct counters){-1, -1, -1};
    for (int i = 0; i < (two ? 1 : 3); i++)
        if (all[i] >= 0 && mkdirat(all[i], name, 0755))
            return -1;
    if (groups->memory >= 0) {
        if (write_number(groups->memory, name, two ? "memory.max" : "memory.limit_in_bytes", memory))
            return -1;
        /* no swap; the file is there only where swap is accounted */
        int swap = two ? write_number(groups->memory, name, "memory.swap.max", 0)
                       : write_number(groups->memory, name, "memory.memsw.limit_in_bytes", memory);
        if (swap && errno != ENOENT)
            return -1;
        out->memory = open_counter(groups->memory, name, two ? "memory.events" : "memory.oom_control");
    }
    if (groups->pids >= 0) { /* two more for the box itself and the command's pid 1 */
        if (write_number(groups->pids, name, "pids.max", limits->pids + 2))
            return -1;
        out->pids = open_counter(groups->pids, name, "pids.events");
    }
    if (groups->cpu >= 0)
        out->cpu = open_counter(groups->cpu, name, two ? "cpu.stat" : "cpuacct.usage");
    return 0;
}

int group_join(const struct groups *groups, uint64_t id, pid_t pid)
{
    int all[3] = {groups->memory, groups->pids, groups->cpu};
    char name[24];
    snprintf(name, sizeof name, "%llu", (unsigned long long)id);
    for (int i = 0; i < (groups->version == 2 ? 1 : 3); i++)
        if (all[i] >= 0 && write_number(all[i], name, "cgroup.procs", pid))
            return -1;
    return 0;
}

void group_remove(const struct groups *groups, uint64_t id)
{
    int all[3] = {groups->memory, groups->pids, groups->cpu};
    char name[24];
    snprintf(name, sizeof name, "%llu", (unsigned long long)id);
    for (int i = 0; i < (groups->version == 2 ? 1 : 3); i++)
        if (all[i] >= 0)
            unlinkat(all[i], name, AT_REMOVEDIR);
}

void groups_remove(const struct groups *groups)
{
    int all[3] = {groups->memory, groups->pids, groups->cpu};
    for (int i = 0; i < (groups->version == 2 ? 1 : 3); i++)
        if (all[i] >= 0)
            unlinkat(parents[i], own_name, AT_REMOVEDIR);
}

uint64_t counter_read(int fd, const char *key)
{
    char text[4096];
    ssize_t got = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);
    if (got <= 0)
        return 0;
    text[got] = 0;
    for (char *line = text; line; line = (line = strchr(line, '\n')) ? line + 1 : NULL)
        if (!strncmp(line, key, strlen(key)))
            return strtoull(line + strlen(key), NULL, 10);
    return 0;
}
