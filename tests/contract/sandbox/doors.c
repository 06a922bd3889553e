/* Doors that a climber tries, one a run: `doors NAME` prints "OPEN NAME" where the kernel lets it in, then "tried".
 *
 * A call counts as shut when it is refused for want of permission, when it does not exist, or when it kills: a wrong
 * argument or a bad descriptor means that it was let through to the kernel's own code.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define COUNT(list) (sizeof list / sizeof *list)

static const long one[8] = {1}; /* a buffer for calls that read one */

static const struct call {
    const char *name;
    long number, arguments[6];
} calls[] = {
    {"unshare user", SYS_unshare, {CLONE_NEWUSER}}, {"unshare mounts", SYS_unshare, {CLONE_NEWNS}},
    {"unshare network", SYS_unshare, {CLONE_NEWNET}}, {"unshare pid", SYS_unshare, {CLONE_NEWPID}},
    {"unshare time", SYS_unshare, {0x80}}, {"unshare cgroup", SYS_unshare, {CLONE_NEWCGROUP}},
    {"clone user", SYS_clone, {CLONE_NEWUSER | SIGCHLD}}, {"clone3", SYS_clone3, {0, 0}},
    {"mount", SYS_mount, {(long)"none", (long)"/tmp", (long)"tmpfs"}}, {"umount", SYS_umount2, {(long)"/proc", 2}},
    {"remount", SYS_mount, {0, (long)"/", 0, MS_REMOUNT | MS_BIND}}, {"pivot_root", SYS_pivot_root, {(long)".", (long)"."}},
    {"chroot", SYS_chroot, {(long)"."}}, {"setns", SYS_setns, {-1, 0}}, {"fsopen", SYS_fsopen, {(long)"tmpfs", 0}},
    {"fsmount", SYS_fsmount, {-1}}, {"fsconfig", SYS_fsconfig, {-1}}, {"fspick", SYS_fspick, {-1, (long)"/"}},
    {"open_tree", SYS_open_tree, {-100, (long)"/", 1}}, {"move_mount", SYS_move_mount, {-1, (long)"", -1, (long)"/"}},
    {"mount_setattr", SYS_mount_setattr, {-100, (long)"/", 0, (long)one, 32}},
    {"open_by_handle_at", SYS_open_by_handle_at, {-1, (long)one, 0}},
    {"name_to_handle_at", SYS_name_to_handle_at, {-100, (long)"/", (long)one, (long)one, 0}},
    {"ptrace", SYS_ptrace, {16, 1}}, {"process_vm_readv", SYS_process_vm_readv, {1}},
    {"process_vm_writev", SYS_process_vm_writev, {1}}, {"pidfd_getfd", SYS_pidfd_getfd, {-1}}, {"kcmp", SYS_kcmp, {1, 1}},
    {"process_madvise", SYS_process_madvise, {-1}}, {"move_pages", SYS_move_pages, {1}},
    {"migrate_pages", SYS_migrate_pages, {1}}, {"io_uring", SYS_io_uring_setup, {1, (long)one}}, {"bpf", SYS_bpf, {0}},
    {"perf", SYS_perf_event_open, {(long)one, 0, -1, -1}}, {"userfaultfd", SYS_userfaultfd, {1}},
    {"keyctl", SYS_keyctl, {0, -3}}, {"add_key", SYS_add_key, {(long)"user", (long)"k", (long)"v", 1, -3}},
    {"request_key", SYS_request_key, {(long)"user", (long)"k"}}, {"syslog", SYS_syslog, {3, (long)one, 8}},
    {"acct", SYS_acct, {0}}, {"quotactl", SYS_quotactl, {0}}, {"swapon", SYS_swapon, {(long)"/tmp"}},
    {"reboot", SYS_reboot, {0}}, {"init_module", SYS_init_module, {0}}, {"finit_module", SYS_finit_module, {-1}},
    {"delete_module", SYS_delete_module, {(long)"x"}}, {"kexec", SYS_kexec_load, {0}},
    {"settimeofday", SYS_settimeofday, {(long)one}}, {"clock_settime", SYS_clock_settime, {0, (long)one}},
    {"adjtimex", SYS_adjtimex, {0}}, {"sethostname", SYS_sethostname, {(long)"x", 1}}, {"vhangup", SYS_vhangup, {0}},
    {"fanotify", SYS_fanotify_init, {0x200}}, {"memfd_secret", SYS_memfd_secret, {0}},
    {"lookup_dcookie", SYS_lookup_dcookie, {0}}, {"mknod character", SYS_mknodat, {-100, (long)"c", S_IFCHR | 0600, 259}},
    {"mknod block", SYS_mknodat, {-100, (long)"b", S_IFBLK | 0600, 0x800}},
    {"a call of tomorrow", 600, {0}}, {"personality", SYS_personality, {0x0100000 /* MMAP_PAGE_ZERO */}},
#ifdef __x86_64__
    {"iopl", SYS_iopl, {3}}, {"ioperm", SYS_ioperm, {0x80, 1, 1}}, {"modify_ldt", SYS_modify_ldt, {0, (long)one, 8}},
    {"x32", 0x40000000 | SYS_getpid, {0}}, {"uselib", SYS_uselib, {(long)"x"}}, {"sysfs", SYS_sysfs, {3}},
#endif
};

static int refused(long result)
{
    return result < 0 && (errno == EPERM || errno == ENOSYS || errno == EACCES || errno == EAFNOSUPPORT);
}

static const struct family {
    const char *name;
    int domain, type, protocol;
} families[] = {{"packet socket", AF_PACKET, SOCK_RAW, 0}, {"raw socket", AF_INET, SOCK_RAW, 1},
                {"vsock", 40, SOCK_STREAM, 0}, {"AF_ALG", 38, SOCK_SEQPACKET, 0}, {"XDP", 44, SOCK_RAW, 0},
                {"netfilter netlink", AF_NETLINK, SOCK_RAW, 12}, {"audit netlink", AF_NETLINK, SOCK_RAW, 9},
                {"uevent netlink", AF_NETLINK, SOCK_RAW, 15}, {"generic netlink", AF_NETLINK, SOCK_RAW, 16},
                {"bluetooth", 31, SOCK_RAW, 1}, {"can", 29, SOCK_RAW, 1}, {"tipc", 30, SOCK_DGRAM, 0},
                {"rds", 21, SOCK_SEQPACKET, 0}, {"kcm", 41, SOCK_DGRAM, 0}, {"smc", 43, SOCK_STREAM, 0}};

static const struct file {
    const char *name, *path;
    int flags;
} files[] = {{"core_pattern", "/proc/sys/kernel/core_pattern", O_WRONLY}, {"modprobe", "/proc/sys/kernel/modprobe", O_WRONLY},
             {"binfmt_misc", "/proc/sys/fs/binfmt_misc/register", O_WRONLY}, {"sysrq", "/proc/sysrq-trigger", O_WRONLY},
             {"user namespaces allowed again", "/proc/sys/user/max_user_namespaces", O_WRONLY},
             {"quota of inotify", "/proc/sys/user/max_inotify_instances", O_WRONLY},
             {"ip_forward", "/proc/sys/net/ipv4/ip_forward", O_WRONLY}, {"uevent_helper", "/sys/kernel/uevent_helper", O_WRONLY},
             {"panic", "/proc/sys/kernel/panic", O_WRONLY}, {"uid_map", "/proc/self/uid_map", O_WRONLY},
             {"oom score", "/proc/1/oom_score_adj", O_WRONLY}, {"release_agent", "/sys/fs/cgroup/release_agent", O_WRONLY},
             {"memory of pid 1", "/proc/1/mem", O_RDONLY}, {"maps of pid 1", "/proc/1/maps", O_RDONLY},
             {"environment of pid 1", "/proc/1/environ", O_RDONLY}, {"root of pid 1", "/proc/1/root/.", O_RDONLY},
             {"directory of pid 1", "/proc/1/cwd/.", O_RDONLY}, {"descriptors of pid 1", "/proc/1/fd", O_RDONLY},
             {"mounts of pid 1", "/proc/1/ns/mnt", O_RDONLY}, {"stack of pid 1", "/proc/1/stack", O_RDONLY},
             {"/dev/mem", "/dev/mem", O_RDONLY}, {"/dev/kmsg", "/dev/kmsg", O_RDONLY}, {"/dev/kvm", "/dev/kvm", O_RDWR},
             {"/dev/fuse", "/dev/fuse", O_RDWR}, {"/dev/net/tun", "/dev/net/tun", O_RDWR}, {"/dev/sda", "/dev/sda", O_RDONLY},
             {"/dev/vda", "/dev/vda", O_RDONLY}, {"/dev/loop-control", "/dev/loop-control", O_RDWR},
             {"/dev/console", "/dev/console", O_RDWR}, {"/dev/tty0", "/dev/tty0", O_RDWR},
             {"write to /usr", "/usr/.canary", O_WRONLY | O_CREAT}, {"write to /etc", "/etc/passwd", O_WRONLY},
             {"write to the root", "/.canary", O_WRONLY | O_CREAT}, {"write to /dev", "/dev/.canary", O_WRONLY | O_CREAT}};

/* ---- doors that need more than one call; each gives whether it opened ---- */

static int terminal_input(void)
{
    int pty = posix_openpt(O_RDWR | O_NOCTTY), open = 0;
    unlockpt(pty);
    setsid();
    int tty = ioctl(pty, TIOCGPTPEER, O_RDWR);
    ioctl(tty, TIOCSCTTY, 0);
    for (const char *c = "x"; *c && !open; c++)
        open = !refused(ioctl(tty, TIOCSTI, c));
    return open;
}

static int console_selection(void) { return !refused(ioctl(posix_openpt(O_RDWR), TIOCLINUX, "\3")); }

static int capabilities(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2] = {{0}};
    syscall(SYS_capget, &header, data);
    int held = data[0].effective | data[0].permitted | data[0].inheritable | data[1].permitted;
    data[0].effective = data[0].permitted = ~0u;
    return held || !syscall(SYS_capset, &header, data) || prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, 21, 0, 0) == 0;
}

static int root_ids(void)
{
    gid_t group = 0;
    return !setresuid(0, 0, 0) || !setresgid(0, 0, 0) || !setgroups(1, &group);
}

static int new_privileges(void) { return prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1; }

static int file_capability(void)
{
    const uint32_t value[5] = {0x02000001, ~0u, 0, ~0u, 0};
    close(open("f", O_CREAT | O_WRONLY, 0755));
    return !setxattr("f", "security.capability", value, sizeof value, 0) || !setxattr("f", "trusted.x", "1", 1, 0);
}

static int set_user_id(void) /* a set-uid file of ours gives nothing; one of root's would, were the bit to count */
{
    char *argv[] = {"su", "-c", "id -u", NULL};
    int ends[2];
    char said[16] = "";
    pipe(ends);
    if (!fork()) {
        dup2(ends[1], 1);
        close(0);
        execv("/usr/bin/su", argv);
        execv("/bin/su", argv);
        _exit(1);
    }
    close(ends[1]);
    read(ends[0], said, sizeof said - 1);
    return said[0] == '0';
}

static int forged_credentials(void)
{
    int ends[2], on = 1;
    struct ucred who = {1, 0, 0};
    char byte = 0;
    struct iovec part = {&byte, 1};
    char space[CMSG_SPACE(sizeof who)] = {0};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    socketpair(AF_UNIX, SOCK_DGRAM, 0, ends);
    setsockopt(ends[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
    *CMSG_FIRSTHDR(&message) = (struct cmsghdr){CMSG_LEN(sizeof who), SOL_SOCKET, SCM_CREDENTIALS};
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &who, sizeof who);
    return sendmsg(ends[0], &message, 0) == 1;
}

static int descriptors(void) /* anything but the three streams came along, or takes a forged answer */
{
    int open = 0;
    for (int fd = 3; fd < 4096; fd++)
        open |= fcntl(fd, F_GETFD) >= 0 || write(fd, "\0\0\0\0D\0\0\0", 8) > 0;
    return open;
}

static int a_signal_to(pid_t pid) { return kill(pid, SIGKILL) == 0 && pid != 1; }

static int signals(void) /* pid 1 of a namespace may be sent a signal that does not reach it */
{
    int open = 0;
    for (pid_t pid = 2; pid < 1 << 13; pid++)
        open |= pid != getpid() && pid != getppid() && !kill(pid, 0);
    return open || a_signal_to(getpid() + 100000);
}

static int core_dump(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_CORE, &limit);
    return limit.rlim_max != 0;
}

static int chroot_break(void)
{
    mkdir("jail", 0755);
    if (chroot("jail"))
        return 0;
    for (int i = 0; i < 64; i++)
        chdir("..");
    return chroot(".") == 0;
}

static int i386_call(void)
{
#ifdef __x86_64__
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(20 /* getpid */) : "memory", "r8", "r9", "r10", "r11");
    return result > 0;
#else
    return 0;
#endif
}

static const struct deed {
    const char *name;
    int (*opens)(void);
} deeds[] = {{"TIOCSTI", terminal_input}, {"TIOCLINUX", console_selection}, {"capabilities", capabilities},
             {"root ids", root_ids},             {"new privileges", new_privileges}, {"file capabilities", file_capability}, {"set-uid", set_user_id},
             {"forged credentials", forged_credentials}, {"descriptors", descriptors}, {"signals", signals},
             {"core dump", core_dump}, {"chroot break", chroot_break}, {"i386 call", i386_call}};

static int opens(const char *name)
{
    for (size_t i = 0; i < COUNT(calls); i++)
        if (!strcmp(calls[i].name, name)) {
            const long *a = calls[i].arguments;
            return !refused(syscall(calls[i].number, a[0], a[1], a[2], a[3], a[4], a[5]));
        }
    for (size_t i = 0; i < COUNT(families); i++)
        if (!strcmp(families[i].name, name))
            return socket(families[i].domain, families[i].type, families[i].protocol) >= 0;
    for (size_t i = 0; i < COUNT(files); i++)
        if (!strcmp(files[i].name, name))
            return open(files[i].path, files[i].flags, 0600) >= 0;
    for (size_t i = 0; i < COUNT(deeds); i++)
        if (!strcmp(deeds[i].name, name))
            return deeds[i].opens();
    return -1;
}

/* Hangs in vfork; argv[2] is there to be found by. */
static _Noreturn void hang(void)
{
    if (!vfork())
        sleep(60);
    _exit(0);
}

int main(int argc, char **argv)
{
    int status;
    if (argc == 3 && !strcmp(argv[1], "vfork"))
        hang();
    pid_t child = fork();
    if (!child) {
        int found = opens(argv[1]);
        _exit(found < 0 ? 78 : found ? 77 : 0);
    }
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        printf("OPEN %s\n", argv[1]);
    puts(WIFEXITED(status) && WEXITSTATUS(status) == 78 ? "absent" : "tried");
    return 0;
}
