"""What a history does to a disk. Runs inside the sandbox: `python3 -I -S -c SOURCE`, batches of operations on stdin.

Each operation's result is a value or the name of an error; printed as one Python literal, followed by the whole tree as
a program sees it. Times from after 2001 are those of the clock and are shown as "now".
"""

# Paths are bytes here, which pathlib does not take.
# ruff: noqa: PTH101, PTH102, PTH104, PTH106, PTH108, PTH114, PTH115, PTH118, PTH120, PTH123, PTH208, PTH211

import _socket  # not socket, which takes longer to import than all else here
import errno
import mmap
import os
import stat
import sys

ROOTS = (b"/sandbox", b"/tmp", b"/dev/shm")


def when(nanoseconds):
    return nanoseconds if nanoseconds < 10**18 else "now"


def seen(path):
    """Everything that stat, readlink, read and listxattr tell of a path, but for what no copy can keep."""
    s = os.lstat(path)
    size = 0 if stat.S_ISDIR(s.st_mode) else s.st_size
    found = [oct(s.st_mode), s.st_nlink, size, s.st_blocks, when(s.st_mtime_ns), when(s.st_atime_ns)]
    if stat.S_ISLNK(s.st_mode):
        return (*found, os.readlink(path))
    if stat.S_ISREG(s.st_mode):
        mode = stat.S_IMODE(s.st_mode)
        if not mode & 0o400:
            return tuple(found)
        with open(path, "rb") as file:
            content = file.read()
        return (*found, len(content), hash_of(content), holes(path, s.st_size), attributes(path))
    return (*found, attributes(path)) if stat.S_ISDIR(s.st_mode) else tuple(found)


def hash_of(content):
    total = 0
    for byte in content.rstrip(b"\0"):
        total = (total * 31 + byte + 1) % (1 << 61)
    return total


def holes(path, size):
    found, at = [], 0
    fd = os.open(path, os.O_RDONLY)
    try:
        while at < size:
            at = os.lseek(fd, at, os.SEEK_DATA)
            end = os.lseek(fd, at, os.SEEK_HOLE)
            found.append((at, end))
            at = end
    except OSError:
        pass
    finally:
        os.close(fd)
    return found


def attributes(path):
    return sorted((name, os.getxattr(path, name)) for name in os.listxattr(path, follow_symlinks=False))


def tree():
    """All paths below the roots, and which of them are one file."""
    found, files = [], {}
    for root in ROOTS:
        todo = [root]
        while todo:
            path = todo.pop()
            found.append((path, *seen(path)))
            s = os.lstat(path)
            if stat.S_ISDIR(s.st_mode):
                mode = stat.S_IMODE(s.st_mode)
                os.chmod(path, mode | 0o700)
                todo += sorted(path + b"/" + name for name in os.listdir(path))
                os.chmod(path, mode)
            elif s.st_nlink > 1:
                files.setdefault(s.st_ino, []).append(path)
    free = os.statvfs("/sandbox")
    return found, sorted(sorted(names) for names in files.values()), (free.f_bfree, free.f_ffree)


def write(path, flags, content, at=None):
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o640)
    try:
        return os.write(fd, content) if at is None else os.pwrite(fd, content, at)
    finally:
        os.close(fd)


def mapped(path, at, content):
    """Changes a file through a mapping, which leaves its times alone on a tmpfs."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        with mmap.mmap(fd, 0) as view:
            view[at : at + len(content)] = content
    finally:
        os.close(fd)


def renamed_while_open(path, other, content):
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        os.rename(path, other)
        os.write(fd, content)
        return os.pread(fd, 100, 0), os.fstat(fd).st_nlink
    finally:
        os.close(fd)


def removed_while_open(path, content):
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        os.unlink(path)
        os.pwrite(fd, content, 3)
        return os.fstat(fd).st_nlink, os.fstat(fd).st_size, os.pread(fd, 100, 0)
    finally:
        os.close(fd)


def unnamed(path, content):
    fd = os.open(os.path.dirname(path), os.O_TMPFILE | os.O_RDWR, 0o604)
    try:
        os.write(fd, content)
        own = os.open("/proc/self/fd", os.O_PATH)
        os.link(str(fd), path, src_dir_fd=own, follow_symlinks=True)
        os.close(own)
    finally:
        os.close(fd)


def bound(path):
    server = _socket.socket(_socket.AF_UNIX)
    try:
        server.bind(path)
    finally:
        server.close()


def preallocated(path, size):
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        os.posix_fallocate(fd, 0, max(size, os.fstat(fd).st_size))
    finally:
        os.close(fd)


def emptied(path):
    """rm -r, as far as it goes."""
    for top, _, files in os.walk(path, topdown=False):
        for name in files:
            os.unlink(os.path.join(top, name))
        for name in os.listdir(top):
            below = os.path.join(top, name)
            os.unlink(below) if os.path.islink(below) else os.rmdir(below)
    os.rmdir(path)


OPERATIONS = {
    "mkdir": lambda p, mode: os.mkdir(p, mode),
    "rmdir": lambda p: os.rmdir(p),
    "rm -r": emptied,
    "write": lambda p, content: write(p, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, content),
    "append": lambda p, content: write(p, os.O_WRONLY | os.O_APPEND, content),
    "pwrite": lambda p, at, content: write(p, os.O_WRONLY | os.O_CREAT, content, at),
    "truncate": lambda p, size: os.truncate(p, size),
    "mapped": mapped,
    "rename": lambda p, q: os.rename(p, q),
    "link": lambda p, q: os.link(p, q, follow_symlinks=False),
    "symlink": lambda p, target: os.symlink(target, p),
    "unlink": lambda p: os.unlink(p),
    "mkfifo": lambda p, mode: os.mkfifo(p, mode),
    "bind": bound,
    "chmod": lambda p, mode: os.chmod(p, mode),
    "utime": lambda p, a, m: os.utime(p, ns=(a, m), follow_symlinks=False),
    "setxattr": lambda p, name, value: os.setxattr(p, name, value, follow_symlinks=False),
    "removexattr": lambda p, name: os.removexattr(p, name, follow_symlinks=False),
    "fallocate": preallocated,
    "renamed while open": renamed_while_open,
    "removed while open": removed_while_open,
    "unnamed": unnamed,
    "stat": seen,
    "list": lambda p: sorted(os.listdir(p)),
}


def result(name, arguments):
    try:
        return OPERATIONS[name](*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, "too long for a socket")
    except (ValueError, IndexError) as error:  # an empty file cannot be mapped
        return type(error).__name__


def main():
    os.umask(0o027)
    batches, show = eval(sys.stdin.read(), {})
    results = [[result(name, arguments) for name, *arguments in batch] for batch in batches]
    print((results, tree() if show else None))


main()
