"""What this machine enforces on sandboxes, and what to do to get more; for `temper doctor`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from temper.core.errors import MissingError, RefusedError
from temper.core.protocols import Enforcement
from temper.sandboxes import local

Line = tuple[str, Enforcement, str]

_CGROUP = "for a hard limit run as root, or in a cgroup of yours: systemd-run --user --scope -p Delegate=yes temper ..."
_WHY = {
    "isolation": "namespaces (user, mount, pid, net, ipc, uts, cgroup), seccomp, no capabilities, Landlock if present",
    "network": "an empty network namespace: loopback only",
    "wall": "the helper kills the command's pid namespace at its deadline",
    "output": "the helper kills at the limit",
    "file_size": "RLIMIT_FSIZE",
    "open_files": "RLIMIT_NOFILE",
    "disk": "a tmpfs of that size",
    "inodes": "a tmpfs with so many inodes",
    "snapshots": "packed copies, each with a manifest",
    "sessions": "each in a process namespace of its own, which other commands cannot reach",
    "quotas": "kernel quotas by user (inotify, pipe buffers): each sandbox is a host user of its own as root only",
    "pids": "RLIMIT_NPROC, counted by user namespace",  # these three where no cgroup counts
    "memory": f"RLIMIT_DATA for each process and a sampled sum; {_CGROUP}",
    "cpu_seconds": f"RLIMIT_CPU for each process; {_CGROUP}",
}
_SWITCHES = {
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "AppArmor keeps plain users from user namespaces: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    "/proc/sys/kernel/unprivileged_userns_clone": (
        "0",
        "plain users may not make user namespaces: sudo sysctl kernel.unprivileged_userns_clone=1",
    ),
    "/proc/sys/user/max_user_namespaces": (
        "0",
        "user namespaces are switched off: sudo sysctl user.max_user_namespaces=10000",
    ),
}


def report() -> list[Line]:
    """One line a limit: what, how it is enforced, and why or what to do. Starts the helper to see."""
    try:
        backend = local.Backend(local.Config())
        asyncio.run(backend.close())
    except (RefusedError, MissingError) as error:
        return [("isolation", "none", str(error)), *(("user namespaces", "none", advice) for advice in forbidden())]
    hello = backend.hello
    counted = {"pids": hello.pids, "memory": hello.memory, "cpu_seconds": hello.cpu}
    return [
        (what, enforcement, f"cgroup v{hello.cgroup}" if counted.get(what) else _WHY[what])
        for what, enforcement in backend.capabilities().items()
    ]


def forbidden(switches: dict[str, tuple[str, str]] = _SWITCHES) -> list[str]:
    """What the kernel's switches forbid, and how to allow it."""
    knobs = ((Path(path), forbids, advice) for path, (forbids, advice) in switches.items())
    return [advice for knob, forbids, advice in knobs if knob.exists() and knob.read_text().strip() == forbids]
