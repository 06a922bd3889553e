/* Landlock: a second wall around what a command may change, drawn by paths where the first is drawn by mounts.
 *
 * Beneath the writable directories everything is allowed, elsewhere nothing can be written, made, removed or moved. It
 * holds where a mount is writable by mistake, and where there are no mounts of our own. Reading is not its business.
 */
#define _GNU_SOURCE
#include "sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef LANDLOCK_ACCESS_FS_REFER
#define LANDLOCK_ACCESS_FS_REFER (1ull << 13)
#endif
#ifndef LANDLOCK_ACCESS_FS_TRUNCATE
#define LANDLOCK_ACCESS_FS_TRUNCATE (1ull << 14)
#endif

/* What is allowed, as seen by the calling process. -1 with errno 0 where the kernel has no Landlock, or the first one
 * (before 5.19), which forbids moves between directories. */
int landlock_rules(void)
{
    static const char *const writable[] = {"/sandbox", "/tmp", "/dev"};
    int version = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    errno = 0;
    if (version < 2)
        return -1;
    const uint64_t changes = LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR |
                             LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_CHAR |
                             LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_MAKE_SOCK |
                             LANDLOCK_ACCESS_FS_MAKE_FIFO | LANDLOCK_ACCESS_FS_MAKE_BLOCK |
                             LANDLOCK_ACCESS_FS_MAKE_SYM | LANDLOCK_ACCESS_FS_REFER |
                             (version >= 3 ? LANDLOCK_ACCESS_FS_TRUNCATE : 0);
    const struct landlock_ruleset_attr handled = {.handled_access_fs = changes};
    int rules = syscall(SYS_landlock_create_ruleset, &handled, sizeof handled, 0);
    for (size_t i = 0; rules >= 0 && i < sizeof writable / sizeof *writable; i++) {
        struct landlock_path_beneath_attr beneath = {changes, open(writable[i], O_PATH | O_CLOEXEC)};
        if (syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &beneath, 0))
            return -1;
        close(beneath.parent_fd);
    }
    return rules;
}

int landlock_confine(void)
{
    int rules = landlock_rules();
    if (rules < 0)
        return errno ? -1 : 0;
    int failed = syscall(SYS_landlock_restrict_self, rules, 0);
    close(rules);
    return failed ? -1 : 0;
}
