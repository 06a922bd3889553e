"""Sandboxes by gVisor's runsc, found on PATH: a kernel in user space between the program and this machine's kernel.

For code that is worse than careless. About 100 ms to start one. No snapshots; memory and processor time are sampled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from temper.core.protocols import Enforcement
from temper.core.task import SandboxSpec
from temper.sandboxes import bubblewrap, guest

_OWN = "it leads into gVisor's kernel, not into this machine's"
OPEN_DOORS = {
    **bubblewrap.OPEN_DOORS,
    "exhaust/memory of many processes": "gVisor counts the time of its own kernel in, which is over first",
    "blame/memory": "gVisor does not keep RLIMIT_DATA, and what is sampled comes late",
    "blame/memory, handled": "gVisor does not keep RLIMIT_DATA, and what is sampled comes late",
    "exhaust/pipe buffers": _OWN,
    "exhaust/niceness": _OWN,
    "look/host processes": "gVisor of 2022 lets a program end its first process, which counts as our fault",
    "look/kernel memory": _OWN,
    "look/the host's /sys": _OWN,
    "climb/uid_map": _OWN,
    "climb/maps of pid 1": _OWN,
    "climb/environment of pid 1": _OWN,
    "climb/descriptors of pid 1": _OWN,
    "climb//dev/fuse": _OWN,
    "climb//dev/net/tun": _OWN,
}


def create(config: None = None) -> Backend:
    """Raises MissingError without runsc, RefusedError where it does not work."""
    return Backend()


class Backend(guest.Backend):
    name = "runsc"
    limits: Mapping[str, Enforcement] = {**guest.LIMITS, "disk": "advisory", "own kernel": "hard"}

    def __init__(self) -> None:
        super().__init__()
        self._runsc = guest.found("runsc", "see https://gvisor.dev/docs/user_guide/install/")
        self._folder = guest.own_folder(self)
        rootless = [] if os.geteuid() == 0 else ["--rootless"]
        self._options = [*rootless, "--network=none", "--ignore-cgroups", f"--root={self._folder}/state"]
        guest.try_out("runsc", [self._runsc, *self._options, "do", "true"], 60.0)

    def command(self, name: str, spec: SandboxSpec, owner: str, state: str = "") -> list[str]:
        bundle = self._folder / name
        root = bundle / "root"
        root.mkdir(parents=True)
        shown, links = guest.system_paths()
        for target, link in links:
            (root / link.lstrip("/")).symlink_to(target)
        (bundle / "config.json").write_text(json.dumps(self._config(spec, shown, owner)))
        script = '"$@"; status=$?; rm -rf "$0"; exit $status'
        run = [self._runsc, *self._options, "run", "--bundle", str(bundle), name]
        return ["sh", "-c", script, str(bundle), *run]

    def _config(self, spec: SandboxSpec, shown: list[str], owner: str) -> dict[str, Any]:
        mounts: list[dict[str, Any]] = [{"destination": "/proc", "type": "proc", "source": "proc"}]
        binds = {path: path for path in shown} | {f"/etc/{name}": f"{self._folder}/{name}" for name in guest.ETC}
        binds[guest.HELPER] = f"{self._folder}/helper"
        for inside, outside in binds.items():
            mounts.append({"destination": inside, "type": "bind", "source": outside, "options": ["ro", "rbind"]})
        for part in ("/sandbox", "/tmp", "/dev/shm"):
            options = ["mode=1777", f"size={max(spec.disk, 4096)}"]
            mounts.append({"destination": part, "type": "tmpfs", "source": "tmpfs", "options": options})
        process = {
            "user": {"uid": 1000, "gid": 1000}, "args": [guest.HELPER, "guest", owner], "cwd": "/sandbox",
            "noNewPrivileges": True, "capabilities": {},
        }  # fmt: skip
        namespaces = [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]
        return {
            "ociVersion": "1.0.0", "process": process, "root": {"path": "root", "readonly": True},
            "hostname": "sandbox", "mounts": mounts, "linux": {"namespaces": namespaces},
        }  # fmt: skip
