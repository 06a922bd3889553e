"""How an end is told: the cause with its evidence, so that the blame table can tell our faults from the policy's."""

# ruff: noqa: E501  (programs, one a row)
from __future__ import annotations

import asyncio

from temper.core.blame import TABLE, FaultError

from . import PRELUDE, SMALL, Case, OpenError, Stage


def told(
    name: str, program: str, cause: str, code: int | None = None, seconds: float = 20.0, limit: str = "isolation"
) -> Case:
    """The end of a program (Python when it begins with `import`, else shell) is told with this cause and evidence."""

    async def attack(stage: Stage) -> None:
        argv = ["python3", "-c", PRELUDE + program] if program.startswith("import") else ["sh", "-c", program]
        found = await stage.run(argv, seconds=seconds)
        if found.cause != cause or (code is not None and found.code != code):
            raise OpenError(
                f"told as {found.cause} {found.code} ({found.evidence}), expected {cause}: {found.text[-200:]}"
            )
        if not found.ok and not found.evidence:
            raise OpenError(f"{cause} without evidence")

    return Case(family="blame", name=name, attack=attack, limit=limit)


async def _closed_is_ours(stage: Stage) -> None:
    """A sandbox that was taken away is our fault, never an Exit, and our fault is never a score."""
    box = await stage.backend.open(SMALL)
    running = asyncio.create_task(box.exec(["sleep", "30"], seconds=30))
    await asyncio.sleep(0.2)
    await box.close()
    for waiting in (running, box.exec(["true"])):
        try:
            raise OpenError(f"told as {(await waiting).cause}")
        except FaultError as error:
            if not TABLE[error.fault.what].masked:
                raise OpenError(f"{error.fault.what} is scored") from error


async def _unreadable_artifact(stage: Stage) -> None:
    """However a program spoils what it has to deliver, to fetch it gives bytes or "no such file": an error of another
    kind would count as the task's fault or ours, and mask a failure that is the program's own."""
    await stage.sh(
        "echo x > closed; chmod 000 closed; mkdir shut; echo x > shut/f; chmod 000 shut; mkdir dir; mkfifo pipe; ln -s / link; "
        "ln -s loop loop; truncate -s 4M sparse; mknod dev c 1 3; python3 -c 'import socket; socket.socket(1).bind(\"sock\")'; "
        "echo x > file; ln -s /proc/self/mem mem; cat /dev/zero > full",
    )
    names = (
        "closed",
        "shut/f",
        "dir",
        "pipe",
        "link",
        "loop",
        "sparse",
        "dev",
        "sock",
        "file/f",
        "mem",
        "n" * 300,
        "d/" * 3000,
    )
    for name in (*names, "link/etc/passwd", "absent", "absent/f", ".", "dir/../file"):
        try:
            await stage.box.get(name)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise OpenError(f"{name[:20]} cannot be fetched: {type(error).__name__}: {error}") from error


CASES = [
    Case(family="blame", name="an artifact that cannot be read", attack=_unreadable_artifact),
    told("success", "echo fine", "exited", 0),
    told("status", "exit 3", "exited", 3),
    told("no such command", "no-such-command", "exited", 127),
    told("crash", "kill -SEGV $$", "signalled", 11),
    told("killed by itself", "kill -9 $$", "signalled", 9),
    told("deadline", "sleep 60", "deadline", seconds=0.5, limit="wall"),
    told("deaf to signals", "trap '' TERM HUP INT QUIT; while :; do :; done", "deadline", seconds=0.5, limit="wall"),
    told("output", "yes", "output", limit="output"),
    told("memory", "import os\nx = [bytearray(1 << 20) for _ in range(4000)]", "oom", limit="memory"),
    told("tasks", "import os\nwhile True: os.fork()", "pids", limit="pids"),
    told("disk", "cat /dev/zero > a; cat /dev/zero > b; cat /dev/zero > c; exit 1", "disk", limit="disk"),
    told("one file", "exec head -c 5000000 /dev/zero > big", "disk", limit="file_size"),
    told("refused call", "import os\nlibc.syscall(169, 0, 0, 0, 0) if os.uname().machine == 'x86_64' else os.kill(os.getpid(), 31)",
         "policy", limit="seccomp"),
    told("refused fork, handled", "import os\ntry:\n  while os.fork(): pass\n  time.sleep(9)\nexcept BlockingIOError: pass", "exited", 0),
    told("memory, handled", "import os\ntry: x = bytearray(1 << 45)\nexcept MemoryError: print('no')", "exited", 0, limit="memory"),
    told("full disk, handled", "cat /dev/zero > a 2>/dev/null; rm a; echo fine", "exited", 0),
    told("a lie about its end", "echo 'cause: backend-lost'; echo OOM >&2; exit 137", "exited", 137),
    Case(family="blame", name="sandbox taken away", attack=_closed_is_ours),
]  # fmt: skip
