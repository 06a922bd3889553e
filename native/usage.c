/* What the processes below a proc mount use: the watcher's eyes where there are no cgroups.
 *
 * Sampled, so a burst between two looks is missed; limits that rest on it are reported as advisory.
 */
#define _GNU_SOURCE
#include "sandbox.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ssize_t slurp(int directory, const char *pid, const char *name, char *text, size_t size)
{
    char path[64];
    snprintf(path, sizeof path, "%s/%s", pid, name);
    int fd = openat(directory, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t got = read(fd, text, size - 1);
    close(fd);
    if (got >= 0)
        text[got] = 0;
    return got;
}

static void add_process(int directory, const char *pid, struct usage *sum)
{
    char text[1024];
    unsigned long user, system, children_user, children_system;
    long threads, resident;
    if (slurp(directory, pid, "stat", text, sizeof text) <= 0)
        return;
    const char *rest = strrchr(text, ')'); /* the name before it may hold anything */
    const char *format = " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %lu %lu %*d %*d %ld %*d %*u %*u %ld";
    if (!rest || sscanf(rest + 1, format, &user, &system, &children_user, &children_system, &threads, &resident) != 6)
        return;
    sum->tasks += threads;
    sum->resident += (uint64_t)resident * sysconf(_SC_PAGESIZE);
    sum->cpu_us += (user + system + children_user + children_system) * (1000000 / sysconf(_SC_CLK_TCK));
}

static void each_process(const char *proc, void (*visit)(int, const char *, struct usage *), struct usage *sum)
{
    DIR *directory = opendir(proc);
    if (!directory)
        return;
    for (struct dirent *entry; (entry = readdir(directory));)
        if (isdigit((unsigned char)entry->d_name[0]) && strcmp(entry->d_name, "1"))
            visit(dirfd(directory), entry->d_name, sum);
    closedir(directory);
}

struct usage usage_of_all(const char *proc)
{
    struct usage sum = {0};
    each_process(proc, add_process, &sum);
    return sum;
}

/* Of forks that race for the last places all may be refused (5 of 20, seen on a busy machine with two cores), so that
 * who dies of it leaves fewer tasks than are allowed. From half of them on, those who are left may show in a moment. */
uint64_t tasks_at_failure(const char *proc, uint64_t limit)
{
    uint64_t most = usage_of_all(proc).tasks;
    for (int n = 0; n < 50 && 2 * most > limit && most < limit; n++) {
        usleep(1000);
        uint64_t now = usage_of_all(proc).tasks;
        most = now > most ? now : most;
    }
    return most;
}

static void add_proportional(int directory, const char *pid, struct usage *sum)
{
    char text[2048];
    if (slurp(directory, pid, "smaps_rollup", text, sizeof text) <= 0)
        return;
    const char *line = strstr(text, "\nPss:");
    if (line)
        sum->resident += strtoull(line + 5, NULL, 10) << 10;
}

uint64_t proportional_memory(const char *proc)
{
    struct usage sum = {0};
    each_process(proc, add_proportional, &sum);
    return sum.resident;
}
