/* Inside a command's namespaces: their pid 1, the limits and the loss of all privileges, and who becomes the command.
 *
 * A FORKED command is no child of pid 1: the box's resident interpreter forks itself into these namespaces, and tells
 * pid 1 how its fork ended. That code is in src/temper/sandboxes/resident.py, and gives up what `drop_privileges` does.
 */
#define _GNU_SOURCE
#include "command.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <linux/filter.h>
#include <linux/mount.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int tell;

static _Noreturn void broken(const char *what)
{
    struct ending ending = {0};
    snprintf(ending.broken, sizeof ending.broken, "%s: %s", what, strerror(errno));
    _exit(write(tell, &ending, sizeof ending) != sizeof ending);
}

/* ---- what is seen ---- */

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

/* In the place of the box's own disk; over an image, its /sandbox shows through. */
static void enter_layer(const struct box *box, int layer)
{
    const char *overlay = "lowerdir=/sandbox,upperdir=/tmp/sandbox,workdir=/tmp/work,userxattr";
    int failed = syscall(SYS_move_mount, layer, "", AT_FDCWD, "/tmp", MOVE_MOUNT_F_EMPTY_PATH) ||
                 umount2("/sandbox", MNT_DETACH);
    if (!failed && box->image == IMAGE)
        failed = mkdir("/tmp/work", 0700) || mount("overlay", "/sandbox", "overlay", MS_NOSUID | MS_NODEV, overlay);
    else if (!failed)
        failed = mount("/tmp/sandbox", "/sandbox", NULL, MS_BIND, NULL);
    if (failed || mount("/tmp/shm", "/dev/shm", NULL, MS_BIND, NULL) || mount("/tmp/tmp", "/tmp", NULL, MS_BIND, NULL))
        broken("enter the layer");
}

/* ---- limits and privileges ---- */

static void bound(int resource, uint64_t soft, uint64_t hard)
{
    struct rlimit limit = {soft, hard};
    if (setrlimit(resource, &limit) && errno != EPERM) /* EPERM: the outer limit is lower already */
        broken("setrlimit");
}

/* All but RLIMIT_CPU, which is not for the resident interpreter. */
static void set_limits(const struct box *box)
{
    const struct limits *limits = &box->limits;
    bound(RLIMIT_CORE, 0, 0);
    bound(RLIMIT_FSIZE, limits->file_size, limits->file_size);
    bound(RLIMIT_NOFILE, limits->open_files, limits->open_files);
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
    for (int cap = 0; cap < 64; cap++)
        if (RESIDENT_NEEDS & 1ull << cap)
            prctl(PR_CAPBSET_DROP, cap, 0, 0, 0); /* the box has dropped the others */
    prctl(PR_SET_SECUREBITS, SECURE_ALL_BITS | SECURE_ALL_LOCKS);
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if (syscall(SYS_capset, &header, none) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, filter_program()))
        broken("drop privileges");
}

/* Keeps what the resident needs to enter namespaces of this sandbox, also through execve. */
static void keep_privileges(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    const uint32_t low = (uint32_t)RESIDENT_NEEDS;
    struct __user_cap_data_struct kept[2] = {{low, low, low}, {0}};
    int failed = syscall(SYS_capset, &header, kept);
    for (int cap = 0; cap < 32 && !failed; cap++)
        if (low & 1u << cap)
            failed = prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap, 0, 0);
    if (failed)
        _exit(1);
}

/* ---- who becomes the command ---- */

static _Noreturn void execute(const struct command *command)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    environ = command->envp;
    execvp(command->argv[0], command->argv);
    dprintf(2, "%s: %s\n", command->argv[0], strerror(errno));
    _exit(errno == ENOENT ? 127 : 126); /* as a shell has it */
}

static _Noreturn void become_command(const struct box *box, const struct command *command, const int streams[3])
{
    uint64_t cpu = (box->limits.cpu_ms + 999) / 1000;
    for (int i = 0; i < 3; i++)
        if (dup2(streams[i], i) < 0)
            broken("dup2");
    syscall(SYS_close_range, 3, ~0u, CLOSE_RANGE_CLOEXEC);
    if (command->head.flags & TERMINAL ? setsid() < 0 || ioctl(0, TIOCSCTTY, 0)
                                       : !(command->head.flags & INTERACTIVE) && setpgid(0, 0))
        broken("lead a session");
    if (chdir("/sandbox"))
        broken("enter /sandbox");
    bound(RLIMIT_CPU, cpu, cpu + 1);
    set_limits(box);
    if (box->image != BUILDING && landlock_confine())
        broken("landlock");
    drop_privileges();
    execute(command);
}

/* Its socket is descriptor 3. Forks of it inherit these limits. */
_Noreturn void become_resident(const struct box *box, const struct command *command, int socket)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int i = 0; i < 3; i++)
        dup2(null, i);
    dup2(socket, 3);
    syscall(SYS_close_range, 4, ~0u, CLOSE_RANGE_CLOEXEC);
    setpgid(0, 0);
    set_limits(box);
    keep_privileges();
    execute(command);
}

/* ---- pid 1 ---- */

/* Was it the limit on processes? Those who are dead still count, until they are reaped. */
static void count_tasks(const struct box *box, struct ending *ending, int last)
{
    uint64_t tasks = box->counters[IN_PIDS] >= 0 ? 0
                     : last                      ? tasks_at_failure("/proc", box->limits.pids)
                                                 : usage_of_all("/proc").tasks;
    ending->tasks = tasks > ending->tasks ? tasks : ending->tasks;
}

/* Gives who was reaped, 0 for nobody. */
static pid_t reap(const struct box *box, int options, struct ending *ending, int *status)
{
    siginfo_t ended = {.si_pid = 0};
    if (waitid(P_ALL, 0, &ended, WEXITED | WNOWAIT | options) || !ended.si_pid)
        return 0;
    if (ended.si_status)
        count_tasks(box, ending, 0);
    return waitpid(ended.si_pid, status, 0);
}

static void run_child(const struct box *box, const struct command *command, const struct inside *theirs,
                      struct ending *ending)
{
    struct rusage used;
    int status;
    pid_t child = vfork(); /* it only executes, in memory that it borrows until then */
    if (!child)
        become_command(box, command, theirs->streams);
    if (child < 0)
        broken("fork");
    for (int i = 0; i < 3; i++)
        close(theirs->streams[i]);
    while (reap(box, 0, ending, &status) != child)
        continue;
    if (status && ending->tasks < box->limits.pids)
        count_tasks(box, ending, 1);
    getrusage(RUSAGE_CHILDREN, &used);
    ending->status = status;
    ending->peak_memory = (uint64_t)used.ru_maxrss << 10;
    ending->cpu_us = (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000ull;
    ending->cpu_us += used.ru_utime.tv_usec + used.ru_stime.tv_usec;
}

/* Hands the resident these namespaces and what its fork is to run; gives the socket that it will answer on. */
static int ask_resident(const struct box *box, const struct inside *theirs)
{
    static const char *const names[] = {"/proc/self/ns/pid", "/proc/self/ns/mnt", "/proc/self/ns/ipc",
                                        "/proc/self/ns/net"};
    int given[10], ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
        broken("make a socket");
    for (int i = 0; i < 4; i++)
        if ((given[i] = open(names[i], O_RDONLY | O_CLOEXEC)) < 0)
            broken(names[i]);
    given[4] = theirs->program;
    memcpy(given + 5, theirs->streams, sizeof theirs->streams);
    given[8] = ends[1];
    if ((given[9] = landlock_rules()) < 0 && errno)
        broken("landlock");
    if (send_descriptors(box->resident, given, given[9] < 0 ? 9 : 10))
        broken("ask the resident interpreter");
    for (int i = 0; i < 10; i++)
        close(given[i]);
    return ends[0];
}

static void run_fork(const struct box *box, const struct inside *theirs, struct ending *ending)
{
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_BLOCK, &children, NULL);
    struct pollfd watched[2] = {{ask_resident(box, theirs), POLLIN, 0},
                                {signalfd(-1, &children, SFD_CLOEXEC), POLLIN, 0}};
    for (int status;;) {
        poll(watched, 2, -1);
        if (watched[1].revents) {
            struct signalfd_siginfo ignored;
            if (read(watched[1].fd, &ignored, sizeof ignored) < 0)
                broken("read a signal");
            while (reap(box, WNOHANG, ending, &status) > 0)
                continue;
        }
        if (watched[0].revents) {
            struct fork_note note = {0};
            if (recv(watched[0].fd, &note, sizeof note, 0) <= 0)
                note = (struct fork_note){.status = ESRCH, .broken = "the resident interpreter"};
            note.broken[sizeof note.broken - 1] = 0;
            errno = note.status;
            if (note.broken[0])
                broken(note.broken);
            if (note.reaped) {
                ending->status = note.status;
                ending->peak_memory = note.peak_memory;
                ending->cpu_us = note.cpu_us;
                ending->tasks += ending->tasks > 0; /* the resident counts as well */
                return;
            }
            if (note.status)
                count_tasks(box, ending, 1);
            send(watched[0].fd, "", 1, MSG_NOSIGNAL);
        }
    }
}

/* pid 1 of the command's namespace: starts it, reaps orphans, tells how it ended, and takes all the rest with it. */
_Noreturn void command_init(const struct box *box, const struct command *command, const struct inside *theirs)
{
    struct ending ending = {0};
    tell = theirs->tell;
    if (box->guest)
        become_command(box, command, theirs->streams);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* of the box, or of the lane that runs this */
    setpgid(0, 0); /* the group of an INTERACTIVE command, by which it is interrupted; pid 1 itself is immune */
    prctl(PR_SET_DUMPABLE, 1);
    if (write_file(AT_FDCWD, "/proc/self/oom_score_adj", "1000")) /* the kernel is to choose us, not the box */
        broken("oom_score_adj");
    prctl(PR_SET_DUMPABLE, 0);
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, NULL))
        broken("mount /proc");
    hide();
    if (command->head.flags & FRESH) {
        enter_layer(box, theirs->layer);
        raise_loopback(box);
    }
    if (command->head.flags & FORKED)
        run_fork(box, theirs, &ending);
    else
        run_child(box, command, theirs, &ending);
    _exit(write(tell, &ending, sizeof ending) != sizeof ending);
}
