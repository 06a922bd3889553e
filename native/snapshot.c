/* Snapshots of a box's disk: take one, go back to one, hand one to another box, tell its manifest's hash.
 *
 * A snapshot is a packed copy (tree.h), so the live disk stays as it is and programs cannot tell that it was taken;
 * what is unchanged since the one before is shared. Running processes are stopped meanwhile and go on afterwards. To
 * go back ends every process, and writes over the files that are there or, where one of them was removed or replaced,
 * fills a new disk. Who was given a snapshot needs the giver no more. Snapshots live as long as their box; the memory
 * that they take comes on top of the sandbox's own limit.
 */
#define _GNU_SOURCE
#include "tree.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define STORES 16 /* that one snapshot may draw on: a longer chain of forks packs everything anew */
#define SKIPPED "work" /* an overlay's own directory on the disk of a box with an image */
#define SURELY_US 10000 /* after which one that waits in the kernel (for a vforked child) counts as stopped */
#define PATIENCE_US 2000000

static struct store stores[1 + STORES]; /* our own, and those of whom we come from */
static uint32_t store_count = 1;
static struct tree *snapshots;
static uint32_t snapshot_count, latest = NONE, disk_number;
static uint64_t given; /* bytes of indexes that other boxes use */

struct index { /* then the entries and their text */
    uint64_t count, text_size;
};

/* ---- memory ---- */

static void bound_memory(const struct box *box, uint64_t more)
{
    uint64_t bytes = box->limits.memory + box->limits.disk + stores[0].used + given + more;
    for (uint32_t n = 0; n < snapshot_count; n++)
        bytes += snapshots[n].count * sizeof(struct entry) + snapshots[n].text_size;
    group_bound(box->bounds, bytes);
}

/* At most what packing the disk takes. */
static uint64_t packing(const struct box *box)
{
    struct statvfs disk;
    if (fstatvfs(box->disk, &disk))
        fail(box, "look at the disk");
    uint64_t used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize, files = disk.f_files - disk.f_ffree;
    return used + THREADS * 2 * (used < box->limits.file_size ? used : box->limits.file_size) +
           files * 4 * sizeof(struct entry);
}

/* ---- processes ---- */

static int halted(const char *path, const char *states)
{
    char text[512];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    if (got <= 0)
        return 1; /* it has ended */
    text[got] = 0;
    const char *name = strrchr(text, ')');
    return name && name[1] && strchr(states, name[2]);
}

static int all_threads_halted(const char *pid, const char *states)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%.10s/task", pid);
    DIR *tasks = opendir(path);
    int all = 1;
    for (struct dirent *task; tasks && all && (task = readdir(tasks));) {
        snprintf(path, sizeof path, "/proc/%.10s/task/%.10s/stat", pid, task->d_name);
        all = !isdigit((unsigned char)*task->d_name) || halted(path, states);
    }
    if (tasks)
        closedir(tasks);
    return all;
}

struct stopped {
    pid_t *pids;
    size_t count;
};

/* One look at all processes: stops those that run. Gives how many did, or -1. */
static int stop_more(struct stopped *stopped, const char *states)
{
    DIR *directory = opendir("/proc");
    int running = directory ? 0 : -1;
    for (struct dirent *entry; running >= 0 && (entry = readdir(directory));) {
        pid_t pid = isdigit((unsigned char)*entry->d_name) ? atoi(entry->d_name) : 0;
        if (pid <= 1 || all_threads_halted(entry->d_name, states))
            continue;
        size_t known = 0;
        while (known < stopped->count && stopped->pids[known] != pid)
            known++;
        if (known == stopped->count) {
            pid_t *grown = realloc(stopped->pids, (known + 1) * sizeof *grown);
            if (!grown || kill(pid, SIGSTOP)) {
                running = -1;
                break;
            }
            stopped->pids = grown;
            stopped->pids[stopped->count++] = pid;
        }
        running++;
    }
    if (directory)
        closedir(directory);
    return running;
}

static void stop_processes(const struct box *box, struct stopped *stopped)
{
    if (kill(-1, 0))
        return; /* there are none */
    for (int waited = 0; waited < PATIENCE_US; waited += 200) {
        int running = stop_more(stopped, waited < SURELY_US ? "TtZX" : "TtZXD");
        if (!running)
            return;
        if (running < 0)
            break;
        usleep(200);
    }
    fail(box, "stop the sandbox's processes");
}

/* The newest first, so that a shell that waits for a child does not see it stopped. */
static void continue_processes(struct stopped *stopped)
{
    while (stopped->count)
        kill(stopped->pids[--stopped->count], SIGCONT);
    free(stopped->pids);
}

void end_processes(void)
{
    kill(-1, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
        continue;
}

/* ---- states ---- */

static struct tree *snapshot_at(const struct box *box, uint32_t number)
{
    errno = EINVAL;
    if (number >= snapshot_count)
        fail(box, "a request names no snapshot");
    return &snapshots[number];
}

static struct tree *new_snapshot(const struct box *box)
{
    struct tree *grown = realloc(snapshots, (snapshot_count + 1) * sizeof *grown);
    if (!grown)
        fail(box, "remember a snapshot");
    snapshots = grown;
    return &snapshots[snapshot_count];
}

static void pack_disk(const struct box *box, struct tree *tree)
{
    struct stopped stopped = {0};
    const struct tree *base = latest == NONE || store_count > STORES ? NULL : &snapshots[latest];
    if (!stores[0].data && store_open(&stores[0]))
        fail(box, "make a store for snapshots");
    bound_memory(box, packing(box));
    stop_processes(box, &stopped);
    if (tree_pack(box->disk, SKIPPED, stores, base, tree))
        fail(box, "pack the disk");
    continue_processes(&stopped);
}

/* The hash of the disk as it is now. */
static void hash_disk(const struct box *box, unsigned char into[32])
{
    struct tree now;
    uint64_t used = stores[0].used;
    pack_disk(box, &now);
    tree_hash(stores, &now, into);
    free(now.entries);
    free(now.text);
    stores[0].used = used;
    bound_memory(box, 0);
}

static void fill_disk(const struct box *box, uint32_t number)
{
    if (tree_unpack(box->disk, stores, &snapshots[number]))
        fail(box, "fill the disk from a snapshot");
    snapshots[number].disk = disk_number;
    latest = number;
}

/* Gives a descriptor that keeps the disk of before, who closes it waits for its end; -1 where it is the same disk. */
static int return_to(struct box *box, uint32_t number)
{
    struct tree *tree = snapshot_at(box, number);
    int before = box->disk;
    end_processes();
    if (!box->image && tree->disk == disk_number && !tree_renew(box->disk, stores, tree)) {
        latest = number;
        return -1;
    }
    bound_memory(box, box->limits.disk);
    disk_hide(box);
    disk_mount(box);
    disk_number++;
    fill_disk(box, number);
    disk_show(box);
    return before;
}

/* ---- requests ---- */

static uint32_t number_in(const struct box *box, const char *request, size_t size)
{
    uint32_t number;
    errno = EINVAL;
    if (size < sizeof number)
        fail(box, "a request about a snapshot is cut short");
    memcpy(&number, request, sizeof number);
    return number;
}

/* Reply: its number. */
void snapshot_take(const struct box *box)
{
    struct tree *tree = new_snapshot(box);
    pack_disk(box, tree);
    tree->disk = disk_number;
    latest = snapshot_count++;
    bound_memory(box, 0);
    send_frame(box->control, DONE, 1, &(struct iovec){&latest, sizeof latest});
}

/* Request: number, whether to hash all of it again. The disk of before goes after the reply. */
void snapshot_return(struct box *box, const char *request, size_t size)
{
    uint32_t number = number_in(box, request, size);
    int before = return_to(box, number), hashed = size > sizeof number && request[sizeof number];
    unsigned char wanted[32], found[32];
    if (hashed) {
        tree_hash(stores, &snapshots[number], wanted);
        hash_disk(box, found);
        errno = EIO;
        if (memcmp(wanted, found, sizeof wanted))
            fail(box, "the disk differs from the snapshot's manifest");
    }
    send_frame(box->control, DONE, 0, NULL);
    if (before >= 0)
        close(before);
    bound_memory(box, 0);
}

/* Request: number, or none for the disk as it is. Reply: the hash of its manifest. */
void snapshot_hash(const struct box *box, const char *request, size_t size)
{
    unsigned char hash[32];
    if (size)
        tree_hash(stores, snapshot_at(box, number_in(box, request, size)), hash);
    else
        hash_disk(box, hash);
    send_frame(box->control, DONE, 1, &(struct iovec){hash, sizeof hash});
}

/* Request: number, with a socket to the box that shall have it. */
void snapshot_give(const struct box *box, const char *request, size_t size, int socket)
{
    const struct tree *tree = snapshot_at(box, number_in(box, request, size));
    struct index index = {tree->count, tree->text_size};
    uint32_t place[1 + STORES] = {0}, used = 0;
    int files[1 + STORES] = {memfd_create("index", MFD_CLOEXEC)};
    size_t entries = tree->count * sizeof(struct entry), whole = sizeof index + entries + tree->text_size;
    given += whole;
    bound_memory(box, 0);
    char *map = ftruncate(files[0], whole) ? MAP_FAILED : mmap(NULL, whole, PROT_WRITE, MAP_SHARED, files[0], 0);
    if (map == MAP_FAILED)
        fail(box, "write a snapshot's index");
    struct entry *copy = memcpy(map + sizeof index, tree->entries, entries);
    for (uint32_t i = 0; i < tree->count; i++) {
        uint32_t store = copy[i].store;
        if (copy[i].stored && !place[store])
            files[place[store] = ++used] = stores[store].fd;
        copy[i].store = copy[i].stored ? place[store] : 0;
    }
    memcpy(map + sizeof index + entries, tree->text, tree->text_size);
    memcpy(map, &index, sizeof index);
    munmap(map, whole);
    send_descriptors(socket, files, 1 + used); /* refused when the fork was cancelled meanwhile */
    close(files[0]);
    send_frame(box->control, DONE, 0, NULL);
}

/* With a socket from the box that gives: it becomes our first snapshot, and the disk is filled from it. The reply comes
 * before that, since whoever asks for more waits until it is done, or learns that it failed. */
void snapshot_accept(struct box *box, int socket)
{
    int files[1 + STORES], count = receive_descriptors(socket, files, 1 + STORES);
    off_t whole = count < 1 ? 0 : lseek(files[0], 0, SEEK_END);
    char *map = whole <= 0 ? MAP_FAILED : mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE, files[0], 0);
    if (map == MAP_FAILED)
        fail(box, "receive a snapshot");
    struct index index;
    memcpy(&index, map, sizeof index);
    struct tree *tree = new_snapshot(box);
    tree->entries = (struct entry *)(map + sizeof index);
    tree->count = index.count;
    tree->text = (char *)(tree->entries + index.count);
    tree->text_size = index.text_size;
    for (int n = 1; n < count; n++)
        if (store_share(&stores[store_count++], files[n]))
            fail(box, "open a snapshot's store");
    close(files[0]);
    send_frame(box->control, DONE, 0, NULL);
    snapshot_count++;
    if (box->image) /* the disk must not change below an overlay */
        close(return_to(box, snapshot_count - 1));
    else
        fill_disk(box, snapshot_count - 1);
    bound_memory(box, 0);
}
