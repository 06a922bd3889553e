"""From the helper's counters to an `Exit`: why a command ended, and the counter that proves it. Pure.

A command that exited with 0 just exited, whatever happened on the way. Else what the helper killed it for counts
first, then the kernel's counters: killed by the out-of-memory killer, forks refused, disk full.
"""

from __future__ import annotations

import signal

from temper.core.task import SandboxSpec
from temper.core.trace import Cause, Exit
from temper.sandboxes.wire import Ending

_PAGE = 4096
_RACING = 2  # forks that race for the last place may all be refused


def exit_of(ending: Ending, spec: SandboxSpec, seconds: float) -> Exit:
    cause, evidence = judge(ending, spec, seconds)
    return Exit(
        cause=cause,
        code=ending.code,
        stdout=ending.stdout,
        stderr=ending.stderr,
        truncated=ending.ended == "output",
        seconds=ending.wall_us / 1e6,
        evidence=evidence,
    )


def judge(ending: Ending, spec: SandboxSpec, seconds: float) -> tuple[Cause, str]:
    """The cause and its evidence. `seconds` is the wall limit that the command had."""
    ended = ending.ended
    signalled = ending.code if ended == "signalled" else 0
    if ended == "exited" and ending.code == 0:
        return "exited", ""
    if ended == "output":
        return "output", f"more than {spec.output} bytes in one stream"
    if ending.oom_kills:
        return "oom", f"memory cgroup: oom_kill={ending.oom_kills}"
    if ended == "memory" or ending.peak_memory >= spec.memory:
        return "oom", f"resident {ending.peak_memory} of {spec.memory} bytes (sampled)"
    if ending.forks_refused:
        return "pids", f"pids.events: max={ending.forks_refused}"
    if ending.peak_tasks > spec.pids - _RACING:
        return "pids", f"{ending.peak_tasks} of {spec.pids} tasks (sampled)"
    if ending.disk_free < _PAGE or not ending.inodes_free:
        return "disk", f"tmpfs full: {ending.disk_free} bytes, {ending.inodes_free} inodes free"
    if ended == "deadline":
        return "deadline", f"wall clock {ending.wall_us / 1e6:.3f} s of {seconds:g} s"
    if ended == "cpu" or signalled == signal.SIGXCPU:
        return "deadline", f"processor time over {spec.cpu_seconds:g} s"
    if signalled == signal.SIGSYS:
        return "policy", "seccomp: SIGSYS"
    if signalled == signal.SIGXFSZ:
        return "disk", f"SIGXFSZ: file over {spec.file_size} bytes"
    if signalled:
        return "signalled", f"signal {signalled}"
    if ended == "exited":
        return "exited", f"status {ending.code}"
    return "backend-lost", f"the helper says {ended}: {ending.stderr[-100:].decode('utf-8', 'replace')!r}"
