"""Sandboxes against bubblewrap with the same protections, Podman where it is, and a bare process, in turns.

A *start* is `open` until the sandbox is ready. A *cycle* is open, run `true`, close; bubblewrap's is one run of
`true`, which is all that it can do. Peers are spawned in the cheapest way there is (posix_spawn and wait), so that
nothing of ours slows them down. bubblewrap knows no limits on memory, processes or output; we keep ours on.

Snapshots are of files that have all been written anew, and a rollback finds all of them changed since: over the same
files, or (`replaced`) each removed and made again, which it answers with a new disk. What an answer leaves to be done
meets whoever comes next: the filling of a fork, and the freeing of the disk of before, in `..._next_p50_ms`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import resource
import shutil
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

from temper.core.errors import MissingError, RefusedError
from temper.core.task import SandboxSpec
from temper.sandboxes import local, zygote

T = TypeVar("T")

SETTINGS = {"pairs": 5, "starts": 40, "in_flight": 16, "cycle_seconds": 2.0, "alive": 1000, "rounds": 3}
TRUE = "/bin/true"
SPEC = SandboxSpec()
ROOMY = SandboxSpec(memory=1 << 30)
WRITE = """
import os, shutil, sys
for i in range(int(sys.argv[1])):
    if i % 100 == 0:
        if len(sys.argv) > 3: shutil.rmtree(f"d{i // 100}")
        os.makedirs(f"d{i // 100}", exist_ok=True)
    with open(f"d{i // 100}/f{i}", "w") as file: file.write(f"{i} {sys.argv[2]}\\n" * 20)
"""


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """Gives metrics, their spread over the pairs, and the settings. Raises MissingError without bubblewrap."""
    chosen = {**SETTINGS, **settings}
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a socket for each sandbox that is alive
    return asyncio.run(_measure(chosen))


async def _measure(chosen: dict[str, Any]) -> dict[str, Any]:
    backend = local.create()
    series: dict[str, list[float]] = {}
    folder = tempfile.TemporaryDirectory()
    try:
        bubblewrap, podman = _bubblewrap(folder.name), _podman(Path(folder.name))
        await _pair(backend, bubblewrap, 3, {})  # warm
        for _ in range(chosen["pairs"]):
            await _pair(backend, bubblewrap, chosen["starts"], series)
            await _cycles(backend, bubblewrap, chosen["in_flight"], chosen["cycle_seconds"], series)
            await _snapshots(backend, 10, 5 * chosen["rounds"], series)
            await _snapshots(backend, 10_000, chosen["rounds"], series)
            await _warm(series)
            if podman:
                begin = time.perf_counter()
                podman.once()
                series.setdefault("podman_ms", []).append((time.perf_counter() - begin) * 1000)
        alive, series["mib_each"] = await _alive(backend, chosen["alive"])
    finally:
        folder.cleanup()
        await backend.close()
    metrics = {key: statistics.median(values) for key, values in series.items()}
    spread = {key: [min(v), statistics.median(v), max(v)] for key, v in series.items()}
    chosen |= {"user": "root" if backend.hello.privileged else "plain", "cgroup": backend.hello.cgroup}
    return {"metrics": {**metrics, "alive": alive}, "spread": spread, "pairs": chosen["pairs"], "settings": chosen}


async def _pair(backend: local.Backend, bubblewrap: Peer, n: int, series: dict[str, list[float]]) -> None:
    """One after another, each kind in turn, so that what else the machine does falls on all alike."""
    taken: dict[str, list[float]] = {key: [] for key in ("start", "exec", "cycle", "bubblewrap", "bare")}

    def note(key: str, since: float) -> float:
        now = time.perf_counter()
        taken[key].append((now - since) * 1000)
        return now

    for _ in range(n):
        begin = time.perf_counter()
        box = await backend.open(SPEC)
        ready = note("start", begin)
        await box.exec([TRUE])
        await box.close()
        note("cycle", begin)
        box = await backend.open(SPEC)
        await box.exec([TRUE])
        ready = time.perf_counter()
        await box.exec([TRUE])
        note("exec", ready)
        await box.close()
        for key, peer in (("bubblewrap", bubblewrap), ("bare", Peer([TRUE]))):
            begin = time.perf_counter()
            peer.once()
            note(key, begin)
    middle = {key: statistics.median(values) for key, values in taken.items()}
    for key, value in {
        "start_p50_ms": middle["start"],
        "exec_p50_ms": middle["exec"],
        "bubblewrap_p50_ms": middle["bubblewrap"],
        "bare_p50_ms": middle["bare"],
        "vs_bubblewrap_time": middle["cycle"] / middle["bubblewrap"],
        "vs_bare_time": middle["exec"] / middle["bare"],
    }.items():
        series.setdefault(key, []).append(value)


async def _cycles(
    backend: local.Backend, bubblewrap: Peer, in_flight: int, seconds: float, series: dict[str, list[float]]
) -> None:
    """Full cycles a second with `in_flight` at once."""
    done = 0
    begin = time.perf_counter()
    end = begin + seconds

    async def worker() -> None:
        nonlocal done
        while time.perf_counter() < end:
            box = await backend.open(SPEC)
            await box.exec([TRUE])
            await box.close()
            done += 1

    await asyncio.gather(*(worker() for _ in range(in_flight)))
    ours = done / (time.perf_counter() - begin)
    theirs = bubblewrap.rate(in_flight, seconds)
    series.setdefault("cycles_per_s", []).append(ours)
    series.setdefault("bubblewrap_cycles_per_s", []).append(theirs)
    series.setdefault("cycles_vs_bubblewrap", []).append(ours / theirs)


async def _snapshots(backend: local.Backend, files: int, rounds: int, series: dict[str, list[float]]) -> None:
    """The middle of some rounds in one sandbox."""
    taken: dict[str, list[float]] = {}

    async def timed(key: str, call: Awaitable[T]) -> T:
        begin = time.perf_counter()
        result = await call
        taken.setdefault(key, []).append((time.perf_counter() - begin) * 1000)
        return result

    async def rewrite(*how: str) -> None:
        wrote = await box.exec(
            ["python3", "-I", "-S", "-c", WRITE, str(files), os.urandom(8).hex(), *how], seconds=60.0
        )
        assert wrote.ok, wrote.text

    box = await backend.open(ROOMY)
    for _ in range(rounds):
        await rewrite()
        state = await timed("snapshot_{}", box.snapshot())
        await rewrite()
        await timed("rollback_{}", box.rollback(state))
        await timed("rollback_{}_next", box.exec([TRUE]))
        await rewrite()
        await timed("rollback_{}_hashed", box.rollback(state, hashed=True))
        (fork,) = await timed("fork_{}", box.fork(state, 1))
        await timed("fork_{}_next", fork.exec([TRUE]))
        await fork.close()
        await rewrite("replaced")
        await timed("rollback_{}_replaced", box.rollback(state))
        await timed("rollback_{}_replaced_next", box.exec([TRUE]))
    await box.close()
    for key, values in taken.items():
        series.setdefault(f"{key.format(files)}_p50_ms", []).append(statistics.median(values))


async def _warm(series: dict[str, list[float]]) -> None:
    """A fresh Python that has numpy loaded, and pandas where it is installed, and uses them."""
    preload = tuple(name for name in ("numpy", "pandas") if importlib.util.find_spec(name))
    use = "pandas.Series" if "pandas" in preload else "numpy.array"
    site = sysconfig.get_path("platlib")
    backend = local.create(local.Config(paths=(site,)))
    warm = zygote.Zygote(backend, preload=preload, path=(site,))
    took: list[float] = []
    try:
        for n in range(25):
            begin = time.perf_counter()
            said = await warm.run(f"import {','.join(preload)}\nprint({use}(range(4)).sum())")
            assert said.stdout == b"6\n", said.text
            if n >= 5:
                took.append((time.perf_counter() - begin) * 1000)
    finally:
        await warm.close()
        await backend.close()
    series.setdefault("zygote_p50_ms", []).append(statistics.median(took))


async def _alive(backend: local.Backend, n: int) -> tuple[int, list[float]]:
    """How many of n answered while all were open, and what one costs in memory, three times over."""
    each: list[float] = []
    for _ in range(3):
        before = _kernel_memory()
        boxes = await asyncio.gather(*(backend.open(SPEC) for _ in range(n)))
        said = await asyncio.gather(*(box.exec([TRUE], seconds=60.0) for box in boxes))
        each.append((_kernel_memory() - before) / n + _own_memory(backend))
        await asyncio.gather(*(box.close() for box in boxes))
    return sum(answer.ok for answer in said), each


def _kernel_memory() -> float:
    """MiB that the kernel holds for processes and namespaces."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    counted = ("SUnreclaim", "KernelStack", "PageTables", "Percpu", "Shmem")
    return sum(int(fields[name].split()[0]) for name in counted) / 1024


def _own_memory(backend: local.Backend) -> float:
    """MiB that one box holds for itself, without what it shares with the launcher's file."""
    children = Path(f"/proc/{backend.process.pid}/task/{backend.process.pid}/children").read_text().split()
    resident, shared = Path(f"/proc/{children[-1]}/statm").read_text().split()[1:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGESIZE") / (1 << 20)


class Peer:
    """A command that runs `true`, spawned directly. `program` is a file that it reads its seccomp filter from."""

    def __init__(self, argv: list[str], program: Path | None = None) -> None:
        self._argv = argv
        self._program = program

    def spawn(self) -> int:
        if self._program is None:
            return os.posix_spawn(self._argv[0], self._argv, os.environ)
        own = os.open(self._program, os.O_RDONLY)  # each its own, since the offset is part of an open file
        try:
            return os.posix_spawn(self._argv[0], self._argv, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, own, 9)])
        finally:
            os.close(own)

    def once(self) -> None:
        self._check(os.waitpid(self.spawn(), 0)[1])

    def rate(self, in_flight: int, seconds: float) -> float:
        """Runs a second with `in_flight` at once."""
        begin = time.perf_counter()
        running = done = 0
        while running or not done:
            while running < in_flight and time.perf_counter() - begin < seconds:
                self.spawn()
                running += 1
            self._check(os.waitpid(-1, 0)[1])
            running -= 1
            done += 1
        return done / (time.perf_counter() - begin)

    def _check(self, status: int) -> None:
        if status:
            raise RefusedError(f"{self._argv[0]} does not work here: wait status {status}")


def _podman(folder: Path) -> Peer | None:
    """Podman over the host's /usr, None where none works; with limits, since its own are not always allowed."""
    found = shutil.which("podman")
    if found is None:
        return None
    root = folder / "root"
    (root / "usr").mkdir(parents=True)
    for path in (Path(p) for p in ("/bin", "/sbin", "/lib", "/lib64")):
        if path.is_symlink():
            (root / path.name).symlink_to(path.readlink())
    argv = [found, "run", "--rm", "--network", "none", "-v", "/usr:/usr:ro", "--read-only"]
    limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
    peer = Peer([*argv, *limits, "--rootfs", str(root), TRUE])
    try:
        peer.once()
    except RefusedError:
        return None
    return peer


def _bubblewrap(folder: str) -> Peer:
    """bubblewrap with the protections that our helper gives, and our seccomp filter."""
    found = shutil.which("bwrap")
    if found is None:
        raise MissingError("no bubblewrap to compare with: apt-get install bubblewrap, or dnf install bubblewrap")
    program = Path(folder) / "filter"
    program.write_bytes(local.seccomp_filter())
    top = [Path(p) for p in ("/bin", "/sbin", "/lib", "/lib64") if Path(p).exists()]
    shown = ["/usr", "/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl/certs"]
    shown += [str(path) for path in top if not path.is_symlink()]
    argv = [found, "--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox"]
    for path in shown if sys.base_prefix.startswith("/usr") else [*shown, sys.base_prefix]:
        argv += ["--ro-bind-try", path, path]
    for path in top:
        argv += ["--symlink", str(path.readlink()), str(path)] if path.is_symlink() else []
    for path in ("/sandbox", "/tmp", "/run", "/sys"):
        argv += ["--tmpfs", path]
    argv += ["--proc", "/proc", "--dev", "/dev", "--chdir", "/sandbox", "--cap-drop", "ALL", "--new-session"]
    return Peer([*argv, "--die-with-parent", "--seccomp", "9", TRUE], program)
