/* The seccomp filter: calls that no program under test needs and that widen the kernel's surface.
 *
 * Refused with EPERM, or with ENOSYS where programs fall back well, or by killing the process where nobody asks
 * innocently. Numbers above the newest call that was looked at are ENOSYS, so new kernels open no new doors. A plain
 * list: a binary tree loaded no faster (0.1 ms), and the kernel remembers what is always allowed.
 */
#define _GNU_SOURCE
#include "sandbox.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define NEWEST 462 /* mseal */
#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80 /* for unshare only; in clone it is part of a signal number */
#endif
#define ALLOW SECCOMP_RET_ALLOW
#define EPERM_ (SECCOMP_RET_ERRNO | EPERM)
#define ENOSYS_ (SECCOMP_RET_ERRNO | ENOSYS)
#define KILL_ SECCOMP_RET_KILL_PROCESS
#define BY_ARGUMENT 0xffffffffu /* decided by `arguments` */

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#else
#error "the seccomp filter knows x86_64 and aarch64"
#endif

struct rule {
    int number;
    uint32_t action;
};

static const struct rule rules[] = {
    {SYS_mount, EPERM_}, {SYS_umount2, EPERM_}, {SYS_pivot_root, EPERM_}, {SYS_chroot, EPERM_}, {SYS_setns, EPERM_},
    {SYS_open_tree, EPERM_}, {SYS_move_mount, EPERM_}, {SYS_fsopen, EPERM_}, {SYS_fsconfig, EPERM_},
    {SYS_fsmount, EPERM_}, {SYS_fspick, EPERM_}, {SYS_mount_setattr, EPERM_}, {SYS_swapon, EPERM_},
    {SYS_swapoff, EPERM_}, {SYS_ptrace, EPERM_}, {SYS_process_vm_readv, EPERM_}, {SYS_process_vm_writev, EPERM_},
    {SYS_kcmp, EPERM_}, {SYS_pidfd_getfd, EPERM_}, {SYS_process_madvise, EPERM_}, {SYS_bpf, EPERM_},
    {SYS_keyctl, EPERM_}, {SYS_add_key, EPERM_}, {SYS_request_key, EPERM_}, {SYS_userfaultfd, EPERM_},
    {SYS_perf_event_open, EPERM_}, {SYS_name_to_handle_at, EPERM_}, {SYS_acct, EPERM_}, {SYS_quotactl, EPERM_},
    {SYS_quotactl_fd, EPERM_}, {SYS_syslog, EPERM_}, {SYS_settimeofday, EPERM_}, {SYS_clock_settime, EPERM_},
    {SYS_adjtimex, EPERM_}, {SYS_clock_adjtime, EPERM_}, {SYS_sethostname, EPERM_}, {SYS_setdomainname, EPERM_},
    {SYS_vhangup, EPERM_}, {SYS_fanotify_init, EPERM_}, {SYS_migrate_pages, EPERM_}, {SYS_move_pages, EPERM_},
    {SYS_memfd_secret, EPERM_}, {SYS_lookup_dcookie, EPERM_}, {SYS_nfsservctl, ENOSYS_},
    {SYS_io_uring_setup, ENOSYS_}, {SYS_io_uring_enter, ENOSYS_}, {SYS_io_uring_register, ENOSYS_},
    {SYS_clone3, ENOSYS_}, /* its flags are in memory; libraries fall back to clone */
    {SYS_kexec_load, KILL_}, {SYS_kexec_file_load, KILL_}, {SYS_init_module, KILL_}, {SYS_finit_module, KILL_},
    {SYS_delete_module, KILL_}, {SYS_reboot, KILL_}, {SYS_open_by_handle_at, KILL_},
#ifdef __x86_64__
    {SYS_iopl, KILL_}, {SYS_ioperm, KILL_}, {SYS_modify_ldt, EPERM_}, {SYS_uselib, ENOSYS_}, {SYS_ustat, ENOSYS_},
    {SYS_sysfs, ENOSYS_}, {SYS_mknod, BY_ARGUMENT},
#endif
    {SYS_mknodat, BY_ARGUMENT}, {SYS_clone, BY_ARGUMENT}, {SYS_unshare, BY_ARGUMENT}, {SYS_ioctl, BY_ARGUMENT},
    {SYS_personality, BY_ARGUMENT}, {SYS_socket, BY_ARGUMENT},
};

static struct sock_filter code[512];
static unsigned short length;

static void emit(uint16_t op, uint32_t k, uint8_t yes, uint8_t no)
{
    code[length++] = (struct sock_filter){op, yes, no, k};
}

static void give(uint32_t action) { emit(BPF_RET | BPF_K, action, 0, 0); }

static void load_argument(int n) /* the low half; both architectures are little-endian */
{
    emit(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args) + 8 * n, 0, 0);
}

/* Gives `action` when the accumulator is one of the values, `otherwise` when not. */
static void among(const uint32_t *values, int n, uint32_t action, uint32_t otherwise)
{
    for (int i = 0; i < n; i++) {
        emit(BPF_JMP | BPF_JEQ | BPF_K, values[i], 0, 1);
        give(action);
    }
    give(otherwise);
}

static void arguments(int number)
{
    static const uint32_t terminals[] = {0x5412 /* TIOCSTI */, 0x541c /* TIOCLINUX */, 0x541d /* TIOCCONS */};
    static const uint32_t personalities[] = {0, 0xffffffff, 0x0040000 /* ADDR_NO_RANDOMIZE */};
    static const uint32_t families[] = {AF_UNIX, AF_INET, AF_INET6}; /* never vsock, packet, alg */
    static const uint32_t devices[] = {S_IFCHR, S_IFBLK};
    const uint32_t namespaces = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC |
                                CLONE_NEWUTS | CLONE_NEWCGROUP;
    if (number == SYS_clone || number == SYS_unshare) {
        load_argument(0);
        emit(BPF_JMP | BPF_JSET | BPF_K, number == SYS_clone ? namespaces : namespaces | CLONE_NEWTIME, 0, 1);
        give(EPERM_);
        give(ALLOW);
    } else if (number == SYS_ioctl) {
        load_argument(1);
        among(terminals, 3, EPERM_, ALLOW);
    } else if (number == SYS_personality) {
        load_argument(0);
        among(personalities, 3, ALLOW, EPERM_);
    } else if (number == SYS_socket) { /* netlink only for routes, which getifaddrs reads */
        load_argument(0);
        emit(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 0, 4);
        load_argument(2);
        emit(BPF_JMP | BPF_JEQ | BPF_K, 0 /* NETLINK_ROUTE */, 0, 1);
        give(ALLOW);
        give(SECCOMP_RET_ERRNO | EAFNOSUPPORT);
        among(families, 3, ALLOW, SECCOMP_RET_ERRNO | EAFNOSUPPORT);
    } else { /* mknod and mknodat: pipes, sockets and plain files only */
        load_argument(number == SYS_mknodat ? 2 : 1);
        emit(BPF_ALU | BPF_AND | BPF_K, S_IFMT, 0, 0);
        among(devices, 2, EPERM_, ALLOW);
    }
}

const struct sock_fprog *filter_program(void)
{
    static struct sock_fprog program = {0, code};
    if (length)
        return &program;
    emit(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch), 0, 0);
    emit(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0);
    give(KILL_); /* i386 on x86_64 has its own call numbers */
    emit(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr), 0, 0);
    emit(BPF_JMP | BPF_JGT | BPF_K, NEWEST, 0, 1); /* also every x32 call */
    give(ENOSYS_);
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        int test = length;
        emit(BPF_JMP | BPF_JEQ | BPF_K, rules[i].number, 0, 0);
        if (rules[i].action == BY_ARGUMENT)
            arguments(rules[i].number);
        else
            give(rules[i].action);
        code[test].jf = length - test - 1;
    }
    give(ALLOW);
    program.len = length;
    return &program;
}
