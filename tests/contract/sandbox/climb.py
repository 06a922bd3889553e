"""Climbing out or up: each door of `doors.c`, and tricks against our own agent."""

from __future__ import annotations

import re
from pathlib import Path

from temper.core.errors import RefusedError

from . import PRELUDE, SMALL, Case, OpenError, SkipError, Stage, judge

_NAME = re.compile(r'\{"([^"]+)", (?:SYS_|0x|\d|AF_|"/|\w+\})')
NAMES = _NAME.findall(Path(__file__).with_name("doors.c").read_text("utf-8"))


def door(name: str) -> Case:
    async def attack(stage: Stage) -> None:
        found = await stage.door(name, seconds=30.0)
        if found.stdout == b"absent\n":
            raise SkipError("not on this processor")
        judge(found)

    return Case(family="climb", name=name, attack=attack)


async def _preloaded(stage: Stage) -> None:
    """Libraries, start-up files and programs of the same name wait in the working directory for our agent."""
    await stage.sh(
        "printf 'void __attribute__((constructor)) f(void){write(1,\"OPEN\",4);}' > e.c;"
        "cc -shared -fPIC -o evil.so e.c; "
        "for n in sh python3 cat ls env; do printf '#!/bin/sh\\necho OPEN' > $n; chmod +x $n; done; chmod -R 777 .;"
        "echo 'print(\"OPEN\")' > sitecustomize.py; cp sitecustomize.py usercustomize.py"
    )
    await stage.box.put("fine", b"1")
    if await stage.box.get("fine") != b"1":
        raise OpenError("files no longer go in and out")
    found = await stage.run(["/bin/echo", "plain"])
    if found.text != "plain\n":
        raise OpenError(f"a plain command says {found.text!r}")


async def _forged(stage: Stage) -> None:
    """Frames as our agent would send them, on every descriptor that there is, and on the streams."""
    await stage.py(
        "for fd in range(3, 1024):\n  tries(f'descriptor {fd}', lambda: os.write(fd, b'\\0\\0\\0\\0D\\0\\0\\0'))"
    )
    for name, stream in (("stdout", 1), ("stderr", 2)):
        forged = bytes([80, 0, 0, 0, ord("D"), 0, 0, 0]) + bytes(80)
        found = await stage.py(f"os.write({stream}, {forged!r}); os._exit(5)")
        if (found.cause, found.code, getattr(found, name)) != ("exited", 5, forged):
            raise OpenError(f"a forged frame on {name} was taken for the end: {found}")
    if (await stage.run(["echo", "on"])).stdout != b"on\n":
        raise OpenError("the sandbox answers wrongly after forged frames")


ALONE = "\n".join(name for name in NAMES if name != "signals")  # which would reach the shell or Python that tries it
EVERY_DOOR = """
import subprocess
for fd in range(3, 1024): tries(f'descriptor {fd}', lambda: os.fstat(fd) and os.readlink(f'/proc/self/fd/{fd}'))
os.chmod('doors', 0o755)
for name in open('names').read().splitlines():
    said = subprocess.run(['./doors', name], stdout=-1, close_fds=False).stdout
    print(said.decode().removesuffix('tried\\n').removesuffix('absent\\n'), end='')
print('tried')
"""


async def _by_a_zygote(stage: Stage) -> None:
    """A fork of a warm interpreter has given up as much as a command, and meets nothing of the fork before it."""
    from temper.sandboxes.zygote import Zygote

    zygote = Zygote(stage.backend, spec=SMALL, lanes=1)
    files = {"doors": stage.doors(), "names": ALONE.encode()}
    leave = f"open('/tmp/left', 'w'); os.system('setsid sleep {stage.marker} &'); libc.kill(-1, 9); os.abort()"
    try:
        await zygote.run("")
    except (RefusedError, AttributeError) as error:
        raise SkipError(f"not offered: {error}") from error
    try:
        judge(await zygote.run(PRELUDE + EVERY_DOOR, files=files, seconds=60))
        await zygote.run(PRELUDE + leave, seconds=5)
        await stage.look_around()
        found = await zygote.run("import os; print(os.listdir('/tmp'), os.listdir('/sandbox'), os.getpid())")
        if not found.stdout.startswith(b"[] []"):
            raise OpenError(f"a fork meets what one before it left: {found.text}")
    finally:
        await zygote.close()


async def _in_a_session(stage: Stage) -> None:
    if not hasattr(stage.box, "session"):
        raise SkipError("not offered: sessions")
    await stage.box.put("doors", stage.doors())
    await stage.box.put("names", ALONE.encode())
    shell = await stage.box.session()
    try:
        await shell.send("chmod +x doors")
        found = await shell.send('while read -r n; do ./doors "$n" | grep OPEN; done < names; echo tried', seconds=60)
        judge(found)
    finally:
        await shell.close()


CASES = [
    Case(family="climb", name="every door, by a zygote's fork", attack=_by_a_zygote),
    Case(family="climb", name="every door, in a session", attack=_in_a_session),
    *(door(name) for name in NAMES),
    Case(family="climb", name="code laid before our agent", attack=_preloaded),
    Case(family="climb", name="forged answers of our agent", attack=_forged),
]
