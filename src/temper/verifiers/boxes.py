"""One program in a fresh box, over the task's own files and what was declared as delivered, and nothing else.

A box is fresh when no model code ran in it (law 6): a new sandbox, or, where the backend can, the surroundings that
`sandboxes.zygote` makes for each program. Limits that the program ran into are the policy's, a lost box is ours.
"""

from __future__ import annotations

import contextlib
import json
import marshal
import secrets
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal
from weakref import WeakKeyDictionary, WeakSet

import msgspec
from msgspec import Struct, structs

from temper.core.blame import TABLE, FaultError, boundary
from temper.core.errors import RefusedError
from temper.core.protocols import SandboxBackend
from temper.core.task import SandboxSpec
from temper.core.trace import Exit
from temper.sandboxes.zygote import Zygote
from temper.verifiers.grading import source

OUTPUT = 4 << 20  # bytes that a program of ours may report
_PAGE = 4096  # what a file's size on a disk is rounded up to
_LANES = 8  # programs at once on one backend; a hanging one keeps its lane to its limit
_ZYGOTES: WeakKeyDictionary[SandboxBackend, dict[bytes, Zygote]] = WeakKeyDictionary()
_WITHOUT: WeakSet[SandboxBackend] = WeakSet()  # backends that know no zygotes


class Interpreter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How Python starts: as a fork of one that has imported `preload`, as a new process, or in a new sandbox.

    Backends without zygotes know the last way only.
    """

    start: Literal["fork", "process", "sandbox"] = "fork"
    preload: tuple[str, ...] = ("json", "ctypes", "traceback")
    python: str = "python3"


async def run(
    sandboxes: SandboxBackend, spec: SandboxSpec, program: str, interpreter: Interpreter, *,
    stdin: bytes = b"", seconds: float = 10.0, where: str = "verifiers",
) -> Exit:  # fmt: skip
    """Runs Python source with `spec.files` around it. Raises FaultError for limits and for lost boxes."""
    _fitting(spec, where)
    if interpreter.start != "sandbox" and sandboxes not in _WITHOUT:
        empty = structs.replace(spec, files={}, output=max(spec.output, OUTPUT))
        with boundary("backend-lost", where):
            try:
                zygote = _zygote(sandboxes, empty, interpreter)
                return _ended(await zygote.run(program, stdin=stdin, files=spec.files, seconds=seconds), where)
            except RefusedError:
                _WITHOUT.add(sandboxes)
    argv = [interpreter.python, "-I", "-S", "-c", program]
    return await command(sandboxes, spec, argv, stdin=stdin, seconds=seconds, where=where)


async def command(
    sandboxes: SandboxBackend, spec: SandboxSpec, argv: list[str], *, stdin: bytes = b"", seconds: float = 10.0,
    where: str = "verifiers",
) -> Exit:  # fmt: skip
    """Runs any command in a new sandbox. Raises FaultError for limits and for lost boxes."""
    _fitting(spec, where)
    spec = structs.replace(spec, output=max(spec.output, OUTPUT))
    with boundary("backend-lost", where):
        box = await sandboxes.open(spec)
        try:
            done = await box.exec(argv, stdin=stdin, seconds=seconds)
        finally:
            await box.close()
    return _ended(done, where)


@cache
def program(*modules: str) -> str:
    """Modules of ours as one program, without imports of each other or of what only annotations need.

    It comes compiled, which saves a millisecond or two a run, and as source for another version of Python.
    """
    left_out = ("from __future__ ", "from temper.", "from typing ", "from collections.abc ")
    lines = [line for module in modules for line in source(module).splitlines() if not line.startswith(left_out)]
    text = "\n".join(["from __future__ import annotations", *lines])
    compiled = marshal.dumps(compile(text, "<temper>", "exec"))
    ours = f"sys.implementation.cache_tag == {sys.implementation.cache_tag!r}"
    return f"import marshal, sys\nexec(marshal.loads({compiled!r}) if {ours} else {text!r})\n"


def job(**content: Any) -> tuple[bytes, str]:
    """A program's input, and the nonce in it by which its report is known."""
    nonce = secrets.token_hex(16)
    return json.dumps({"nonce": nonce, **content}).encode(), nonce


def report(done: Exit, nonce: str) -> dict[str, Any] | None:
    """The last line of the output if it is a JSON object with the nonce, else None."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(done.stdout.strip().rpartition(b"\n")[2])
        if isinstance(found, dict) and found.get("nonce") == nonce:
            return found
    return None


def dotted(path: str) -> str:
    """The module's name in a file's path."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def with_files(spec: SandboxSpec | None, *layers: Mapping[str, bytes]) -> SandboxSpec:
    """The spec with more files; later ones replace earlier ones."""
    spec = spec or SandboxSpec()
    return structs.replace(spec, files={path: text for layer in (spec.files, *layers) for path, text in layer.items()})


def _fitting(spec: SandboxSpec, where: str) -> None:
    """Files that do not fit are their author's doing; it is no disk of ours that is full. Raises FaultError."""
    size = sum(len(content) + -len(content) % _PAGE for content in spec.files.values())
    if size > spec.disk:
        raise FaultError("disk", where, f"{size} bytes of files do not fit into a box of {spec.disk}")


def _zygote(sandboxes: SandboxBackend, spec: SandboxSpec, interpreter: Interpreter) -> Zygote:
    """One for each backend, limits and interpreter; it ends with the backend."""
    known = _ZYGOTES.setdefault(sandboxes, {})
    key = msgspec.json.encode((spec, interpreter))
    if key not in known:
        fresh, python = interpreter.start == "process", interpreter.python
        known[key] = Zygote(sandboxes, interpreter.preload, spec, fresh=fresh, lanes=_LANES, python=python)
    return known[key]


def _ended(done: Exit, where: str) -> Exit:
    if TABLE[done.cause].training != "score":
        raise FaultError(done.cause, where, f"while the delivered code ran: {done.evidence}")
    return done
