"""Cheating rollback, and put and get: after a snapshot all is as before it, after a rollback all is as it was.

Each history runs in a control sandbox without snapshots and in one with them; what its programs print and the trees
that they leave must be the same. A tree is read inside, by `TREE`: names, kinds, modes, sizes, link groups, targets,
content, holes, extended attributes; times where a state is compared with itself.
"""

# ruff: noqa: E501  (programs, one a row)
from __future__ import annotations

import asyncio
import contextlib
import time

from msgspec import structs

from temper.core.protocols import Sandbox, Snapshots

from . import PRELUDE, ROOMY, Case, OpenError, SkipError, Stage, judge

WIDE = structs.replace(ROOMY, output=1 << 20, disk=48 << 20)
TREE = """
import hashlib, os, stat
links = {}
def line(path):
    s = os.lstat(path)
    kind, more = stat.S_IFMT(s.st_mode), ''
    if stat.S_ISLNK(s.st_mode): more = os.readlink(path)
    if stat.S_ISREG(s.st_mode):
        try:
            with open(path, 'rb') as f: more = hashlib.sha256(f.read()).hexdigest()[:16]
        except PermissionError: more = 'closed'
        more += ' holes' * (s.st_blocks * 512 < s.st_size // 2) + ' ' + links.setdefault(s.st_ino, ascii(path))
    try: attributes = [(a, os.getxattr(path, a, follow_symlinks=False)) for a in sorted(os.listxattr(path, follow_symlinks=False))]
    except OSError: attributes = []
    size = 0 if stat.S_ISDIR(s.st_mode) else s.st_size
    count = 0 if stat.S_ISDIR(s.st_mode) else s.st_nlink
    print(ascii(path), oct(s.st_mode), size, count, ascii(more), attributes, TIMES and s.st_mtime_ns)
for top in (b'/sandbox', b'/tmp', b'/dev/shm'):
    line(top) if top == b'/sandbox' else None
    for folder, names, files in os.walk(top):
        names.sort()
        for name in sorted(names + files): line(os.path.join(folder, name))
"""


async def tree(box: Sandbox, times: bool = True) -> str:
    found = await box.exec(["python3", "-c", f"TIMES = {times}\n{TREE}"], seconds=30)
    if not found.ok:
        raise OpenError(f"the tree cannot be read: {found.cause} {found.text[-300:]}")
    return found.stdout.decode()


def same(what: str, left: str, right: str) -> None:
    if left != right:
        pairs = sorted(set(left.splitlines()) ^ set(right.splitlines()))
        raise OpenError(f"{what}: " + " | ".join(pairs)[:600])


async def say(box: Sandbox, program: str) -> str:
    """Runs shell, or Python when it begins with `import`; a history's programs are to succeed or say why not."""
    argv = ["python3", "-c", PRELUDE + program] if program.startswith("import") else ["sh", "-c", program]
    found = await box.exec(argv, seconds=30)
    return f"{found.cause} {found.code} {found.text}"


def history(name: str, before: str, after: str) -> Case:
    async def attack(stage: Stage) -> None:
        box, control = stage.box, await stage.backend.open(WIDE)
        if not isinstance(box, Snapshots):
            await control.close()
            raise SkipError("no snapshots")
        opened = [control]
        try:
            wanted = [await say(control, before), await say(control, after), await tree(control, times=False)]
            first = await say(box, before)
            start = await tree(box)
            state = await box.snapshot()
            same("a snapshot changes the tree", start, await tree(box))
            same(
                "after a snapshot", "\n".join(wanted), "\n".join([first, await say(box, after), await tree(box, False)])
            )
            await box.rollback(state)
            same("a rollback gives another tree", start, await tree(box))
            opened += (twins := await box.fork(state, 2))
            same("a fork has another tree", start, await tree(twins[0]))
            same("in a fork", wanted[1], await say(twins[0], after))
            same("a fork's deeds reach its twin", start, await tree(twins[1]))
            same("a fork's deeds reach its origin", start, await tree(box))
            same("after a rollback", wanted[1], await say(box, after))
        finally:
            for each in opened:
                await each.close()

    return Case(family="rollback", name=name, attack=attack, spec=WIDE)


def meanwhile(name: str, program: str, expected: str) -> Case:
    """A snapshot is taken while a command runs; the command must not notice."""

    async def attack(stage: Stage) -> None:
        if not isinstance(stage.box, Snapshots):
            raise SkipError("no snapshots")
        running = asyncio.create_task(say(stage.box, "import mmap\n" + program))
        await asyncio.sleep(0.15)
        state = await stage.box.snapshot()
        same("the command noticed", await running, f"exited 0 {expected}\n")
        start = await tree(stage.box)
        await stage.box.rollback(state)
        await stage.box.rollback(await stage.box.snapshot())
        await stage.box.put("later", b"1")
        if start == await tree(stage.box):
            raise OpenError("a rolled back sandbox does not take files")

    return Case(family="rollback", name=name, attack=attack, spec=WIDE)


async def _survivors(stage: Stage) -> None:
    """What a command left running does not write into the state that was gone back to."""
    box = stage.box
    if not isinstance(box, Snapshots):
        raise SkipError("no snapshots")
    state = await box.snapshot()
    await stage.sh("setsid sh -c 'while :; do echo x >> log; done' >/dev/null 2>&1 & sleep 0.1")
    await box.rollback(state)
    await asyncio.sleep(0.1)
    if (await stage.run(["ls", "-A"])).text:
        raise OpenError("a survivor writes into the state that was gone back to")


async def _long_chain(stage: Stage) -> None:
    box = stage.box
    if not isinstance(box, Snapshots):
        raise SkipError("no snapshots")
    states, trees = [], {}
    for n in range(40):
        await say(box, f"mkdir -p d{n % 7}; echo {n} > d{n % 7}/f; echo {n} >> log; rm -rf d{(n + 3) % 7}")
        states.append(await box.snapshot())
        if n in (0, 7, 20, 39):
            trees[n] = await tree(box)
    for n in (39, 0, 20, 7, 0):
        await box.rollback(states[n])
        same(f"state {n} of 40", trees[n], await tree(box))


async def _full_disk(stage: Stage) -> None:
    """With the disk full a snapshot is taken or refused; either way the sandbox and its files are as before."""
    box = stage.box
    if not isinstance(box, Snapshots):
        raise SkipError("no snapshots")
    await say(box, "echo kept > kept; cat /dev/zero > fill; i=0; while echo $i > s$i; do i=$((i+1)); done 2>/dev/null")
    start = await tree(box)
    try:
        state = await box.snapshot()
    except OSError:
        state = None
    same("a snapshot of a full disk changes it", start, await tree(box))
    if state is not None:
        await say(box, "rm fill kept")
        await box.rollback(state)
        same("a full disk rolled back", start, await tree(box))
    if "on" not in await say(box, "rm -f fill s*; echo on > kept && cat kept"):
        raise OpenError("the sandbox is of no use any more")


async def _fresh_randomness(stage: Stage) -> None:
    box = stage.box
    if not isinstance(box, Snapshots):
        raise SkipError("no snapshots")
    draw = "import random, uuid\nprint(random.random(), uuid.uuid4(), os.urandom(8).hex())"
    twins = await box.fork(await box.snapshot(), 2)
    drawn = [await say(twin, draw) for twin in (*twins, box)]
    clock = float((await twins[0].exec(["date", "+%s.%N"])).stdout)
    for twin in twins:
        await twin.close()
    if len(set(drawn)) != 3 or abs(clock - time.time()) > 5:
        raise OpenError(f"forks share their randomness or an old clock: {drawn}, {clock - time.time():.1f} s")


async def _foreign_state(stage: Stage) -> None:
    """A name that is no state of this backend is refused, and the sandbox goes on."""
    if not isinstance(stage.box, Snapshots):
        raise SkipError("no snapshots")
    for name in ("", "../../etc", "no-such-state", "\0"):
        try:
            await stage.box.rollback(name)
        except (LookupError, ValueError):
            continue
        raise OpenError(f"rolled back to {name!r}")
    judge(await stage.sh("echo tried"))


async def _linked_names(stage: Stage) -> None:
    """put and get where names are links: nothing leads out of the working directory."""
    secret = stage.secret.encode()
    await stage.sh(
        "mkdir a; echo in > a/f; mkdir /tmp/out; echo out > /tmp/out/f; ln -s /tmp/out link; ln -s /etc/passwd leaf"
    )
    for path in ("leaf", "link/f", "../../etc/passwd", "/etc/passwd", f"..{stage.canary}"):
        try:
            await stage.box.get(path)
            raise OpenError(f"got {path}")
        except OSError:
            pass
    for path in ("link/new", "/tmp/new", "../new", f"..{stage.canary}", "a/../../new", ""):
        try:
            await stage.box.put(path, secret)
            raise OpenError(f"put {path}")
        except (OSError, ValueError):
            pass
    judge(await stage.sh("test -e /tmp/new -o -e /tmp/out/new && echo OPEN; echo tried"))


async def _swapped_names(stage: Stage) -> None:
    """put and get while a session swaps a directory for a link: nothing comes from, or goes, where the link leads."""
    if not hasattr(stage.box, "session"):
        raise SkipError("not offered: sessions")
    await stage.sh("mkdir a; echo in > a/f; mkdir /tmp/out; echo out > /tmp/out/f; ln -s /tmp/out link")
    exchange = "while True: libc.renameat2(-100, b'a', -100, b'link', 2)"
    await stage.box.put("swap.py", (PRELUDE + exchange).encode())
    shell = await stage.box.session()
    race = asyncio.create_task(shell.send("python3 swap.py", seconds=2.0))
    got = set()
    while not race.done():
        for act in (stage.box.get("a/f"), stage.box.put("a/new", b"1")):
            with contextlib.suppress(OSError):
                got.add(await act)
    await shell.close()
    if not {b"in\n"} < got <= {b"in\n", None} or (await stage.sh("ls /tmp/out")).text != "f\n":
        raise OpenError(f"led out: {got}")


async def _unstoppable(stage: Stage) -> None:
    """Processes that a session left, and that cannot be stopped (in vfork) or multiply: a snapshot is taken all the same,
    or refused, but the sandbox is not lost, which would mask what its program did."""
    if not hasattr(stage.box, "session"):
        raise SkipError("not offered: sessions")
    await stage.box.put("doors", stage.doors())
    for script in (
        f"chmod +x doors; ./doors vfork {stage.marker} & sleep 0.2",
        "python3 -c 'import os\nwhile True:\n  if not os.fork(): os._exit(0)\n  os.wait()' & sleep 0.2",
    ):
        shell = await stage.box.session()
        await shell.send(script)
        state = await stage.box.snapshot()
        await stage.box.rollback(state)
        await shell.close()
    judge(await stage.sh("echo tried"))


async def _inode_numbers(stage: Stage) -> None:
    """A snapshot does not change them; a rollback may, when no process is left that could know."""
    if not isinstance(stage.box, Snapshots):
        raise SkipError("no snapshots")
    before = await say(stage.box, "mkdir d; echo 1 > d/f; ln d/f g; stat -c %i . d d/f g")
    await stage.box.snapshot()
    same("inode numbers", before, await say(stage.box, "stat -c %i . d d/f g"))


CASES = [
    Case(family="rollback", name="inode numbers", attack=_inode_numbers, spec=WIDE),
    history("directory renamed", "mkdir -p d/e; echo 1 > d/e/f", "import os\nos.rename('d', 'moved'); print(os.listdir('moved/e'))"),
    history("directory renamed twice", "mkdir -p a/b c; touch a/b/f", "import os\nos.rename('a/b', 'c/b'); os.rename('c', 'a/c')\n"
            "print(sorted(os.listdir('a')), os.listdir('a/c/b'))"),
    history("hard links", "echo 1 > a; ln a b", "echo 2 >> a; cat b; ln a c; stat -c %h a; rm b; stat -c %h c"),
    history("hard link made later", "mkdir d; echo 1 > d/a", "ln d/a b && stat -c %h b && echo 2 >> b && cat d/a"),
    history("file appended", "head -c 3000000 /dev/zero > big", "printf x >> big; stat -c %s big; cksum big"),
    history("deleted and made again", "mkdir -p d/e; touch d/old d/e/old", "rm -r d; mkdir d; touch d/new; find d | sort"),
    history("file becomes directory", "echo 1 > x; mkdir y; touch y/z", "rm x; mkdir x; touch x/y; rm -r y; echo 2 > y; find . | sort"),
    history("links swapped", "echo in > f; ln -s f g; ln -s /etc/passwd l; ln -s nowhere n",
            "rm l; echo mine > l; ln -sfn l n; cat l g n; echo more > g; cat f"),
    history("whiteout names", "touch .wh.x .wh..wh..opq .wh..wh.plnk; mkdir d; touch d/.wh.f d/f; ",
            "rm d/f d/.wh.f .wh.x; touch d/.wh.g d/g x; ls -A . d"),
    history("overlay attributes", "mkdir d; touch d/f f", "import os\nfor n, v in (('opaque', b'y'), ('whiteout', b'y'), "
            "('redirect', b'/etc'), ('metacopy', b''), ('origin', b'x'), ('upper', b'x')):\n  for p in ('d', 'f'):\n"
            "    try: os.setxattr(p, 'user.overlay.' + n, v)\n    except OSError as e: print(p, n, e.errno)\n"
            "print(os.listdir('d'), os.path.exists('f'))"),
    history("overlay attributes before", "import os\nos.mkdir('d'); open('d/f', 'w'); open('f', 'w')\n"
            "for n in ('opaque', 'whiteout', 'redirect'):\n  for p in ('d', 'f'):\n    try: os.setxattr(p, 'user.overlay.' + n, b'y')\n"
            "    except OSError as e: print(p, n, e.errno)", "ls -A d; test -e f && echo there; rm -r d f"),
    history("extended attributes", "import os\nopen('f', 'w')\ntry: os.setxattr('f', 'user.a', b'\\0\\xff'); os.setxattr('.', 'user.b', b'1')\n"
            "except OSError as e: print(e.errno)", "import os\ntry: os.removexattr('f', 'user.a')\nexcept OSError as e: print(e.errno)"),
    history("modes", "umask 0; mkdir p z; touch p/f s z/in; chmod 000 p/f; chmod 1777 p; chmod 6755 s; chmod 000 z; chmod 751 .",
            "chmod 700 z; ls z; chmod 600 p/f; rm -r p; stat -c %a s ."),
    history("times", "touch -d 2001-02-03T04:05:06.789 f; mkdir d; touch d/x; touch -d 1999-01-01 d; ln -s f l; touch -h -d 1990-01-01 l",
            "stat -c %y f d; stat -c %y l; touch d/y"),
    history("holes", "truncate -s 20M s; printf x | dd of=s bs=1 seek=10M conv=notrunc status=none", "printf y >> s; stat -c %s s; truncate -s 5 s"),
    history("pipes and sockets", "import os, socket\nos.mkfifo('p'); socket.socket(socket.AF_UNIX).bind('s')",
            "test -p p && test -S s && echo both; rm p s; mkfifo s; echo file > p"),
    history("odd names", "import os\nfor n in (b'\\xff\\xfe', b'a\\nb', b' ', b'-rf', b'A', b'a', b'x' * 255, b'\\xc3\\xa9', b'e\\xcc\\x81', b'...'):\n"
            "  open(n, 'wb').write(n)", "import os\nos.rename(b'\\xff\\xfe', b'\\xfe'); os.remove(b'x' * 255); os.rename(b'A', b'b')\n"
            "print(sorted(os.listdir(b'.')))"),
    history("/tmp and /dev/shm", "echo 1 > /tmp/a; echo 2 > /dev/shm/b; mkdir -p /tmp/d/e", "cat /tmp/a /dev/shm/b; echo 3 > /tmp/a; "
            "rm /dev/shm/b; mv /tmp/d /tmp/f; ls /tmp"),
    history("deep and many", "import os\nfor i in range(400): os.makedirs(f'd{i % 20}/' + 'n/' * (i % 9), exist_ok=True); "
            "open(f'd{i % 20}/f{i}', 'w').write(str(i))", "rm -r d1 d3; mv d2 d1; find . -type f | sort | cksum"),
    meanwhile("open file", "f = open('f', 'w'); f.write('a'); f.flush(); time.sleep(0.4); f.write('b'); f.close(); print(open('f').read())", "ab"),
    meanwhile("deleted but open", "f = open('f', 'w+'); os.remove('f'); f.write('a'); f.flush(); time.sleep(0.4); f.write('b'); f.seek(0); "
              "print(f.read(), os.path.exists('f'))", "ab False"),
    meanwhile("mapped file", "f = open('f', 'wb+'); f.write(bytes(4096)); f.flush(); m = mmap.mmap(f.fileno(), 4096); m[0] = 65; "
              "time.sleep(0.4); m[1] = 66; m.flush(); print(open('f').read(2))", "AB"),
    meanwhile("during a write", "end = time.time() + 0.5; n = 0\nwhile time.time() < end:\n  n += 1\n  open('t', 'w').write(str(n)); "
              "os.rename('t', 'f')\nprint(int(open('f').read()) == n)", "True"),
    Case(family="rollback", name="survivors", attack=_survivors, spec=WIDE),
    Case(family="rollback", name="a chain of forty", attack=_long_chain, spec=WIDE),
    Case(family="rollback", name="full disk", attack=_full_disk, spec=structs.replace(WIDE, disk=4 << 20)),
    Case(family="rollback", name="randomness and clock of forks", attack=_fresh_randomness, spec=WIDE),
    Case(family="rollback", name="a state that is none", attack=_foreign_state),
    Case(family="rollback", name="processes that cannot be stopped", attack=_unstoppable),
    Case(family="rollback", name="names swapped under put and get", attack=_swapped_names),
    Case(family="rollback", name="links under put and get", attack=_linked_names),
]  # fmt: skip
