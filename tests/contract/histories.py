"""Random histories of file operations, snapshots, rollbacks and forks, and a player that finds differences.

A history is a list of steps. Every life (a sandbox) has a plain past: the batches that led to its state. What the
batches gave, and the tree at the end, must be what the same past gives in a sandbox that knows no snapshots.
"""

from __future__ import annotations

import ast
import random
from pathlib import Path
from typing import Any

from temper.core.protocols import SandboxBackend
from temper.core.task import SandboxSpec

ACTOR = Path(__file__).with_name("actor.py").read_text()
SPEC = SandboxSpec(disk=1 << 20, memory=256 << 20)
NAMES = (
    b"\xff\xfe\x80", b"n" * 255, b"new\nline", b" ", b"-rf", b".wh.a", b".wh..wh..opq", b"work",
    "é".encode(), b"e\xcc\x81", b"F", b"*",
)  # fmt: skip
ATTRIBUTES = (b"user.x", b"user.x", b"user.x", b"user.overlay.opaque", b"user.overlay.redirect", b"user." + b"k" * 200)
Operation = tuple[Any, ...]
Step = tuple[Any, ...]  # ("do", operations) | ("snapshot",) | ("rollback", n) | ("fork", n) | ("turn to", n)


def history(seed: int) -> list[Step]:
    """Numbers in steps are taken modulo what there is when the step is played."""
    rng = random.Random(seed)
    steps: list[Step] = [("do", [*_BEGIN, *_batch(rng, 10)])]
    for _ in range(rng.randint(3, 7)):
        event = rng.choice(("snapshot", "snapshot", "snapshot", "rollback", "rollback", "fork", "turn to"))
        steps.append((event,) if event == "snapshot" else (event, rng.randrange(100)))
        steps.append(("do", _batch(rng, rng.randint(1, 10))))
    return steps


async def differences(backend: SandboxBackend, steps: list[Step]) -> list[str]:
    """What differs between this history and the plain pasts of its lives. Empty when nothing does."""
    lives = [_Life(await backend.open(SPEC))]
    found: list[str] = []
    try:
        here = lives[0]
        for step in steps:
            here = await _play(step, here, lives, found)
        for number, life in enumerate(lives):
            found += [f"life {number}: {line}" for line in await _compare(backend, life)]
    finally:
        for life in lives:
            await life.box.close()
    return found


class _Life:
    """A sandbox with its plain past, and the snapshots it can go back to: (id, manifest, past, results)."""

    def __init__(self, box: Any) -> None:
        self.box = box
        self.past: list[list[Operation]] = []
        self.results: list[Any] = []
        self.snapshots: list[tuple[str, str, list[Any], list[Any]]] = []


async def _play(step: Step, here: _Life, lives: list[_Life], found: list[str]) -> _Life:
    kind = step[0]
    if kind == "do":
        here.past = [*here.past, step[1]]
        here.results = [*here.results, *(await _act(here.box, [step[1]], False))[0]]
    elif kind == "turn to":
        return lives[step[1] % len(lives)]
    elif kind == "snapshot":
        before = await here.box.manifest()
        name = await here.box.snapshot()
        here.snapshots.append((name, await here.box.manifest(name), here.past, here.results))
        if not before == here.snapshots[-1][1] == await here.box.manifest():
            found.append("a snapshot is not what was there, or changed it")
    elif here.snapshots:
        name, manifest, past, results = here.snapshots[step[1] % len(here.snapshots)]
        if kind == "rollback":
            await here.box.rollback(name)
        else:
            (box,) = await here.box.fork(name, 1)
            here = _Life(box)
            here.snapshots.append((name, manifest, past, results))
            lives.append(here)
        here.past, here.results = past, results
        if await here.box.manifest() != manifest:
            found.append(f"after a {kind} the manifest differs")
    return here


async def _compare(backend: SandboxBackend, life: _Life) -> list[str]:
    plain = await backend.open(SPEC)
    try:
        wanted, wanted_tree = await _act(plain, life.past, True)
        _, tree = await _act(life.box, [], True)
    finally:
        await plain.close()
    found = []
    for batch, ours, theirs in zip(life.past, life.results, wanted, strict=True):
        found += [f"{o}: {a!r} without snapshots {b!r}" for o, a, b in zip(batch, ours, theirs, strict=True) if a != b]
    for ours, theirs in zip(tree, wanted_tree, strict=True):
        if ours != theirs:
            extra = [line for line in ours if line not in theirs], [line for line in theirs if line not in ours]
            found.append(f"the tree has {extra[0]!r}, without snapshots {extra[1]!r}")
    return found


async def _act(box: Any, batches: list[list[Operation]], show: bool) -> tuple[list[Any], Any]:
    request = repr((batches, show)).encode()
    said = await box.exec(["python3", "-I", "-S", "-c", ACTOR], stdin=request, seconds=60)
    if not said.ok:
        raise AssertionError(f"the actor failed: {said.cause} {said.code} {said.evidence} {said.text[-2000:]}")
    return ast.literal_eval(said.stdout.decode())


def _batch(rng: random.Random, n: int) -> list[Operation]:
    return [_operation(rng, rng.choice(_KINDS)) for _ in range(n)]


def _operation(rng: random.Random, kind: str) -> Operation:
    folders = kind in ("mkdir", "rmdir", "rm -r", "list") or (kind in _ANY and rng.random() < 0.4)
    path, other = _path(rng, folders), _path(rng, folders)
    content = rng.randbytes(rng.choice((0, 1, 40, 4096, 9000)))
    far = rng.choice((0, 3, 4096, 30_000, 200_000))
    mode = rng.choice((0o777, 0o700, 0o640, 0o444, 0o4755, 0o2750, 0o1777))
    old = rng.randrange(10**18)
    arguments: dict[str, tuple[Any, ...]] = {
        "mkdir": (mode | 0o700,), "write": (content,), "append": (content,), "pwrite": (far, content),
        "truncate": (far,), "mapped": (rng.randrange(4), content[:50]), "rename": (other,), "link": (other,),
        "symlink": (rng.choice((other, b"f", b"../d", b"/nowhere", b"l" * 900)),), "mkfifo": (mode,),
        "chmod": (mode | 0o700 if folders else mode,), "utime": (old, old // 3),
        "setxattr": (rng.choice(ATTRIBUTES), content[:60]), "removexattr": (rng.choice(ATTRIBUTES),),
        "fallocate": (far,), "renamed while open": (other, content[:50]), "removed while open": (content[:50],),
        "unnamed": (content[:50],),
    }  # fmt: skip
    return (kind, path, *arguments.get(kind, ()))


def _path(rng: random.Random, folder: bool) -> bytes:
    """Few names, so that operations meet; odd ones now and then."""
    root = rng.choice((*(b"/sandbox",) * 8, b"/tmp", b"/dev/shm"))
    above = [rng.choice((b"d", b"d", b"e")) for _ in range(rng.choice((0, 0, 1, 1, 2)))]
    last = rng.choice(NAMES) if rng.random() < 0.15 else rng.choice((b"d", b"e") if folder else (b"f", b"g"))
    return b"/".join([root, *above, last])


_ANY = ("rename", "chmod", "utime", "setxattr", "removexattr", "stat", "symlink")
_BEGIN: list[Operation] = [
    ("mkdir", b"/sandbox/d", 0o755), ("mkdir", b"/sandbox/d/d", 0o755), ("mkdir", b"/sandbox/e", 0o755),
    ("write", b"/sandbox/f", b"one"), ("write", b"/sandbox/d/f", b"two"), ("write", b"/sandbox/d/d/g", b"three"),
    ("link", b"/sandbox/d/f", b"/sandbox/e/g"),
]  # fmt: skip
_KINDS = (
    *("mkdir",) * 4, *("write",) * 5, *("rename",) * 6, *("link",) * 3, "rmdir", "rm -r", "append", "pwrite",
    "truncate", "mapped", "symlink", "unlink", "mkfifo", "bind", "chmod", "chmod", "utime", "utime", "setxattr",
    "setxattr", "removexattr", "fallocate", "renamed while open", "removed while open", "unnamed", "stat", "list",
)  # fmt: skip
