/* What packing and unpacking share: buffers, stores of blocks, moving through a tree, and threads. See tree.h. */
#define _GNU_SOURCE
#include "tree.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

int reserve(struct buffer *buffer, size_t more)
{
    if (buffer->size + more <= buffer->room)
        return 0;
    size_t room = 2 * buffer->room + more + 4096;
    char *grown = realloc(buffer->data, room);
    if (!grown)
        return -1;
    *buffer = (struct buffer){grown, buffer->size, room};
    return 0;
}

int append(struct buffer *buffer, const void *data, size_t size)
{
    if (reserve(buffer, size))
        return -1;
    memcpy(buffer->data + buffer->size, data, size);
    buffer->size += size;
    return 0;
}

/* ---- stores ---- */

int store_open(struct store *store)
{
    store->fd = memfd_create("store", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (store->fd < 0 || ftruncate(store->fd, CAPACITY))
        return -1;
    store->data = mmap(NULL, CAPACITY, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, store->fd, 0);
    if (store->data == MAP_FAILED)
        return -1;
    /* who is given it can only read; Linux 5.1 or newer, else it rests on trust between boxes of one owner */
    fcntl(store->fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW);
    return 0;
}

int store_share(struct store *store, int fd)
{
    *store = (struct store){fd, mmap(NULL, CAPACITY, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0), 0};
    return store->data == MAP_FAILED ? -1 : 0;
}

const char *block_of(const struct store *stores, const struct entry *entry)
{
    return entry->stored ? stores[entry->store].data + entry->at : "";
}

/* ---- moving ---- */

static int step(struct cursor *cursor, uint32_t to, const char *name)
{
    int next = to ? openat(cursor->fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                  : fcntl(cursor->root, F_DUPFD_CLOEXEC, 0); /* not by "..", which would enter a mount on it */
    if (next < 0)
        return -1;
    close(cursor->fd);
    cursor->fd = next;
    cursor->at = to;
    return 0;
}

/* Two ways up meet, since a parent has a smaller number than its children. */
int cursor_to(struct cursor *cursor, uint32_t to)
{
    const struct entry *entries = cursor->tree->entries;
    size_t down = 0;
    for (uint32_t meet = to; cursor->at != meet;) {
        if (cursor->at > meet) {
            if (step(cursor, entries[cursor->at].parent, ".."))
                return -1;
            continue;
        }
        if (down == cursor->room) {
            uint32_t *way = realloc(cursor->way, (cursor->room = 2 * down + 16) * sizeof *way);
            if (!way)
                return -1;
            cursor->way = way;
        }
        cursor->way[down++] = meet;
        meet = entries[meet].parent;
    }
    while (down--)
        if (step(cursor, cursor->way[down], cursor->tree->text + entries[cursor->way[down]].name))
            return -1;
    return cursor->fd;
}

struct cursor cursor_at(const struct tree *tree, int root)
{
    return (struct cursor){tree, root, fcntl(root, F_DUPFD_CLOEXEC, 0), 0, NULL, 0};
}

void cursor_close(struct cursor *cursor)
{
    close(cursor->fd);
    free(cursor->way);
}

/* ---- threads ---- */

static void *work(void *given)
{
    struct job *job = given;
    struct worker worker = {.cursor = cursor_at(job->tree, job->root)};
    for (uint32_t from; (from = __atomic_fetch_add(&job->next, job->share, __ATOMIC_RELAXED)) < job->tree->count;)
        for (uint32_t i = from; i < job->tree->count && i < from + job->share && !job->error; i++)
            if (job->visit(job, &worker, i))
                __atomic_store_n(&job->error, errno ? errno : EIO, __ATOMIC_RELAXED);
    if (worker.at < worker.end) /* the rest goes back, if nobody has taken more meanwhile */
        __atomic_compare_exchange_n(&job->stores->used, &worker.end, worker.at, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    cursor_close(&worker.cursor);
    free(worker.spare.data);
    return NULL;
}

/* What the kernel counts uses of at each call would be shared with the other threads, and fought over. */
static void *help(void *given)
{
    unshare(CLONE_FILES);
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); /* there are none, but credentials become its own */
    return work(given);
}

int each(struct job *job, visit *visit, uint32_t share)
{
    pthread_t helpers[THREADS];
    pthread_attr_t roomy;
    cpu_set_t cores;
    int started = 0, wanted = sched_getaffinity(0, sizeof cores, &cores) ? 1 : CPU_COUNT(&cores);
    pthread_attr_init(&roomy);
    pthread_attr_setstacksize(&roomy, 1 << 20); /* some C libraries give less than the lists of attributes take */
    job->visit = visit;
    job->share = share;
    job->next = 0;
    while (started + 1 < wanted && started + 1 < THREADS && job->tree->count > 2u * SHARE * (started + 1))
        if (pthread_create(&helpers[started++], &roomy, help, job)) { /* the sandbox may be at its limit of tasks */
            started--;
            break;
        }
    work(job);
    while (started)
        pthread_join(helpers[--started], NULL);
    errno = job->error;
    return job->error ? -1 : 0;
}

void tree_hash(const struct store *stores, const struct tree *tree, unsigned char into[32])
{
    struct hash hash;
    hash_begin(&hash);
    for (uint32_t i = 0; i < tree->count; i++) {
        hash_add(&hash, &tree->entries[i], offsetof(struct entry, at));
        hash_add(&hash, block_of(stores, &tree->entries[i]), tree->entries[i].stored);
    }
    hash_add(&hash, tree->text, tree->text_size);
    hash_end(&hash, into);
}
