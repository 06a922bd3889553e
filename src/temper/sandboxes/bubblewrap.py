"""Sandboxes by bubblewrap: the second launcher, for machines that let bwrap make user namespaces but not our helper
(Ubuntu's AppArmor). About 5 ms to start one. No snapshots; memory and processor time are sampled.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from temper.core.protocols import Enforcement
from temper.core.task import SandboxSpec
from temper.sandboxes import guest, local

OPEN_DOORS = {
    **local.OPEN_DOORS,
    "exhaust/every writable directory": "each of /sandbox, /tmp and /dev/shm is bounded, not their sum",
    "exhaust/disk by inodes": "bubblewrap knows no limit on the inodes of a tmpfs",
}


def create(config: None = None) -> Backend:
    """Raises MissingError without bwrap, RefusedError where the kernel does not let it work."""
    return Backend()


class Backend(guest.Backend):
    """As root each sandbox gets a host id of its own, since bwrap would map it to root's."""

    name = "bubblewrap"
    limits: Mapping[str, Enforcement] = {**guest.LIMITS, "disk": "advisory"}

    def __init__(self) -> None:
        super().__init__()
        self._bwrap = guest.found("bwrap", "apt-get install bubblewrap, or dnf install bubblewrap")
        self._folder = guest.own_folder(self)
        argv = [*self._as_nobody(0), self._bwrap, "--unshare-all", "--ro-bind", "/", "/", "true"]
        guest.try_out("bubblewrap", argv, 60.0)

    def command(self, name: str, spec: SandboxSpec, owner: str, state: str = "") -> list[str]:
        shown, links = guest.system_paths()
        argv = [*self._as_nobody(int(name.rpartition("-")[2])), self._bwrap, "--unshare-all", "--unshare-user"]
        argv += ["--uid", "1000", "--gid", "1000", "--hostname", "sandbox", "--die-with-parent", "--as-pid-1"]
        argv += ["--cap-drop", "ALL", "--clearenv"]
        for path in shown:
            argv += ["--ro-bind", path, path]
        for target, link in links:
            argv += ["--symlink", target, link]
        for file in guest.ETC:
            argv += ["--ro-bind", f"{self._folder}/{file}", f"/etc/{file}"]
        argv += ["--ro-bind", f"{self._folder}/helper", guest.HELPER, "--proc", "/proc", "--dev", "/dev"]
        for hidden in guest.HIDDEN:
            argv += ["--ro-bind", "/dev/null", f"/proc/{hidden}"] if Path("/proc", hidden).exists() else []
        for part in ("/sandbox", "/tmp", "/dev/shm"):
            argv += ["--perms", "1777", "--size", str(max(spec.disk, 4096)), "--tmpfs", part]
        argv += ["--dir", "/sys", "--symlink", "/tmp", "/var/tmp", "--remount-ro", "/dev", "--remount-ro", "/"]
        return [*argv, guest.HELPER, "guest", owner]

    def _as_nobody(self, number: int) -> list[str]:
        if os.geteuid():
            return []
        uid = str(guest.UNUSED_IDS + os.getpid() % 4096 * 1024 + number % 1024)
        return ["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", "--"]
