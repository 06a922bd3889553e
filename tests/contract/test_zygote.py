"""Runs in a fork of a warm interpreter: that they cannot be told from a fresh one, meet nobody, and end with evidence.

`fresh` zygotes (a new interpreter each time) are what CPython itself says; forks have to say the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import random
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy
import pytest

from temper.core.blame import FaultError
from temper.core.errors import BackendError, RefusedError
from temper.core.task import SandboxSpec
from temper.core.trace import Exit
from temper.sandboxes import fake, local
from temper.sandboxes.images.build import build
from temper.sandboxes.images.records import ImageSpec
from temper.sandboxes.images.store import Store
from temper.sandboxes.zygote import Zygote

SITE = str(Path(numpy.__file__).parents[1])
SMALL = SandboxSpec(memory=192 << 20, disk=8 << 20, file_size=4 << 20, pids=20, output=4096)
x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="calls are named by their numbers on x86_64")


def within(test: Callable[[local.Backend], Awaitable[None]], *paths: str, seconds: float = 60) -> None:
    async def run() -> None:
        backend = local.create(local.Config(paths=paths))
        try:
            await test(backend)
        finally:
            await backend.close()

    asyncio.run(asyncio.wait_for(run(), seconds))


def ends(*programs: str, seconds: float = 20.0, **settings: object) -> list[Exit]:
    """One after another in one lane."""
    found: list[Exit] = []

    async def test(backend: local.Backend) -> None:
        zygote = Zygote(backend, spec=SMALL, lanes=1, **settings)  # type: ignore[arg-type]
        for program in programs:
            found.append(await zygote.run(program, seconds=seconds))
        await zygote.close()

    within(test)
    return found


LAYERS = """
import ctypes
libc, n = ctypes.CDLL(None), 0
while libc.syscall(446, libc.syscall(444, bytes([1, 0, 0, 0, 0, 0, 0, 0]), ctypes.c_size_t(8), 0), 0) == 0:
    n += 1
print(n)  # how many more Landlock domains fit: one less than 16 where one holds (linux/security/landlock/limits.h)
"""
PROGRAMS = [
    "print('a'); import sys; print('b', file=sys.stderr); print(__name__, sys.argv[1:], sys.flags.isolated)",
    "from __future__ import annotations\ndef f(x: Missing): return __import__('os').getcwd()\nprint(f(1))",
    "def f(x: int): return 1\nprint(f.__annotations__)",
    "def f(x):\n    return 1 / x\nf(0)",
    "def f(:",
    "import sys; sys.exit('a word')",
    "import sys; sys.exit(300)",
    "raise SystemExit",
    "import os; os._exit(7)",
    "import os; os.abort()",
    "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "import atexit; atexit.register(print, 'last'); print('first')",
    "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start(); print('soon')",
    "import sys; print('x'); sys.stdout.close()",
    "import sys, io; sys.stdout = io.StringIO(); print('nowhere')",
    "import os; os.fork() or print('child', flush=True); os.wait() if os.getpid() == 2 else None",
    "import os; print(os.fork() and os.wait()[1])",
    "import subprocess; print(subprocess.run(['sh', '-c', 'echo $0; cat'], input=b'in', capture_output=True))",
    "import multiprocessing as m; print(m.get_context('fork').Pool(2).map(abs, [-1, -2]))",
    "import sys; sys.excepthook = lambda *a: print('hooked', a[0]); 1 / 0",
    "import os; print(sorted(os.listdir('/proc/self/fd')), os.getuid(), os.getpid(), os.getpgrp() == os.getpid())",
    "from resource import *; print([getrlimit(n) for n in (RLIMIT_CPU, RLIMIT_FSIZE, RLIMIT_NOFILE, RLIMIT_CORE)])",
    "print([l for l in open('/proc/self/status') if l.startswith(('Cap', 'NoNew', 'Seccomp', 'SigBlk', 'SigIgn'))])",
    "print(open('/proc/self/oom_score_adj').read(), open('/proc/self/attr/current', 'rb').readline(0))",
    LAYERS,
    "print(sorted(l.split()[4] for l in open('/proc/self/mountinfo')))",
]


def test_a_fork_is_like_a_fresh_interpreter() -> None:
    for program, forked, fresh in zip(PROGRAMS, ends(*PROGRAMS), ends(*PROGRAMS, fresh=True), strict=True):
        for mine, its in ((forked.stdout, fresh.stdout), (forked.stderr, fresh.stderr)):
            assert mine == its, program
        assert (forked.cause, forked.code) == (fresh.cause, fresh.code), program


def test_a_program_with_a_nul_is_a_syntax_error() -> None:
    assert b"null bytes" in ends("x = 1\0")[0].stderr


def test_input_and_files_go_in_and_may_not_lead_out() -> None:
    async def test(backend: local.Backend) -> None:
        zygote = Zygote(backend, spec=SandboxSpec(files={"kept": b"1", "changed": b"2"}, disk=1 << 20), lanes=1)
        program = "import sys; print(*(open(f).read() for f in ('kept', 'changed', 'a/b')), sys.stdin.buffer.read())"
        said = await zygote.run(program, stdin=b"\0\xff", files={"a/b": b"3", "changed": b"4"})
        assert said.stdout == b"1 4 3 b'\\x00\\xff'\n"
        for name, content, error in (("../out", b"", PermissionError), ("big", bytes(2 << 20), OSError)):
            with pytest.raises(error):
                await zygote.run("", files={name: content})
        assert (await zygote.run("import os; print(sorted(os.listdir()))")).stdout == b"['changed', 'kept']\n"

    within(test)


LITTER = """
import json, os, socket, subprocess, sys, ctypes
json.litter = 1
os.environ["LITTER"] = "1"
for folder in ("/sandbox", "/tmp", "/dev/shm"):
    open(folder + "/litter", "w").close()
ctypes.CDLL(None).shmget(4711, 4096, 0o1666)
subprocess.Popen(["setsid", "sleep", "60"])
pid = os.fork()
if not pid:
    os.setsid(); server = socket.create_server(("127.0.0.1", 4711)); import time; time.sleep(60)
"""
FOUND = """
import json, os, socket, ctypes
print(hasattr(json, "litter"), os.environ.get("LITTER"), os.listdir("/sandbox"), os.listdir("/tmp"),
      os.listdir("/dev/shm"), ctypes.CDLL(None).shmget(4711, 4096, 0), socket.socket().connect_ex(("127.0.0.1", 4711)),
      sum(name.isdigit() for name in os.listdir("/proc")))
"""


def test_a_run_leaves_nothing_to_the_next() -> None:
    litter, found = ends(LITTER, FOUND)
    assert litter.ok
    assert found.stdout == b"False None [] [] [] -1 111 2\n"  # ECONNREFUSED; pid 1 and itself


def test_a_run_over_an_image_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    spec = ImageSpec(run=("mkdir -p d/e; echo 1 > made; echo 2 > d/x",))
    image, _ = asyncio.run(build(spec, store, None, Path(), lambda _: None))
    program = (
        "import os; print(open('made').read(), open('d/x').read(), sorted(os.listdir()), open('put').read())\n"
        "open('made', 'a').write('3'); os.remove('d/x'); open('new', 'w'); os.listdir('d')"
    )

    async def run() -> None:
        backend = local.Backend(local.Config(), store)
        try:
            for fresh in (False, True):
                zygote = Zygote(backend, spec=SandboxSpec(base=f"image:{image.hash}"), lanes=1, fresh=fresh)
                for _ in range(2):
                    found = await zygote.run(program, files={"put": b"4"})
                    assert found.text == "1\n 2\n ['d', 'made', 'put'] 4\n"
        finally:
            await backend.close()

    asyncio.run(asyncio.wait_for(run(), 60))


NOSY = """
import contextlib, ctypes, os, signal, socket, time
for pid in (-1, *range(2, 400)):
    if pid != os.getpid():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            print("killed", pid)
for path in ("/proc/1/mem", "/proc/1/environ", "/proc/1/root/etc/passwd", "/proc/1/fd/3"):
    with contextlib.suppress(OSError):
        open(path, "rb")
        print("opened", path)
if ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0:
    print("traced")
socket.socket(socket.AF_UNIX).bind("\\0name")
socket.create_server(("127.0.0.1", 4711))
print([line for line in open("/proc/self/maps") if line.split()[1] == "rw-s"], open("/proc/net/unix").read().count("@"))
time.sleep(0.3)
"""


def test_runs_cannot_reach_each_other_nor_the_resident() -> None:
    async def test(backend: local.Backend) -> None:
        zygote = Zygote(backend, lanes=2)
        said = await asyncio.gather(*(zygote.run(NOSY) for _ in range(4)))
        assert [(s.cause, s.code, s.text) for s in said] == [("exited", 0, "[] 0\n")] * 4
        assert len(zygote._idle) == 2

    within(test)


EACH_DOOR = """
import os, subprocess, sys
os.chmod("doors", 0o755)
for name in sys.stdin.read().splitlines():
    print(name, subprocess.run(["./doors", name], capture_output=True, timeout=20).stdout)
"""


def test_doors_shut_to_commands_are_shut_to_forks(tmp_path: Path) -> None:
    """The probes of the abuse suite (`sandbox/doors.c`), which knows what each has to give."""
    source = Path(__file__).parent / "sandbox" / "doors.c"
    subprocess.run(["cc", "-O1", "-w", "-o", tmp_path / "doors", source], check=True)
    names = "\n".join(re.findall(r'\{"([^"]+)", (?:SYS_|0x|\d|AF_|"/|\w+\})', source.read_text()))
    files = {"doors": (tmp_path / "doors").read_bytes()}

    async def test(backend: local.Backend) -> None:
        box = await backend.open(SandboxSpec(files=files, output=1 << 20))
        expected = await box.exec(["python3", "-c", EACH_DOOR], stdin=names.encode(), seconds=60)
        zygote = Zygote(backend, spec=SandboxSpec(files=files, output=1 << 20), lanes=1)
        found = await zygote.run(EACH_DOOR, stdin=names.encode(), seconds=60)
        assert (found.cause, found.code) == (expected.cause, expected.code) == ("exited", 0), found.text
        assert found.text.splitlines() == expected.text.splitlines()
        assert len(found.text.splitlines()) > 50

    within(test)


@pytest.mark.parametrize(
    ("program", "cause", "evidence"),
    [
        ("import time; time.sleep(60)", "deadline", "wall clock"),
        ("while True: pass", "deadline", "wall clock"),
        ("while True: print('x' * 100)", "output", "4096 bytes"),
        ("import sys\nwhile True: sys.stderr.write('x' * 100)", "output", "4096 bytes"),
        ("x = [bytearray(1 << 20) for _ in range(4000)]", "oom", "oom_kill|resident"),
        ("import os; os.close(2)\nwhile True: os.fork()", "pids", "max=|tasks"),
        ("import threading as t, time\nwhile 1: t.Thread(target=time.sleep, args=(1,)).start()", "pids", "max=|tasks"),
        ("for n in range(9): open(f'/tmp/{n}', 'wb').write(bytes(1 << 20))", "disk", "tmpfs full"),
        ("for i in range(9999): open(str(i), 'w')", "disk", "0 inodes free"),
        ("from signal import *; signal(SIGXFSZ, SIG_DFL); open('a', 'wb').write(bytes(5 << 20))", "disk", "SIGXFSZ"),
        pytest.param("import ctypes; ctypes.CDLL(None).syscall(304)", "policy", "SIGSYS", marks=x86),
    ],
    ids=lambda value: value[-24:] if isinstance(value, str) and len(value) > 20 else None,
)  # fmt: skip
def test_the_cause_of_an_end_has_evidence_and_the_lane_goes_on(program: str, cause: str, evidence: str) -> None:
    async def test(backend: local.Backend) -> None:
        zygote = Zygote(backend, spec=SMALL, lanes=1)
        assert (await zygote.run("")).ok
        lane = zygote._idle[0]
        found = await zygote.run(program, seconds=0.5 if cause == "deadline" else 20.0)
        assert found.cause == cause, (found.evidence, found.text)
        assert any(word in found.evidence for word in evidence.split("|"))
        after = await zygote.run("print('here')")
        assert (after.stdout, after.cause) == (b"here\n", "exited")
        assert zygote._idle == [lane]

    within(test)


def test_processor_time_is_bounded_by_run() -> None:
    spec = SandboxSpec(cpu_seconds=0.5)

    async def test(backend: local.Backend) -> None:
        zygote = Zygote(backend, spec=spec, lanes=1)
        burn = "import time\nwhile time.process_time() < 0.35: pass"
        assert [(await zygote.run(burn)).cause for _ in range(2)] == ["exited"] * 2
        found = await zygote.run("while True: pass", seconds=30)
        assert (found.cause, found.evidence) == ("deadline", "processor time over 0.5 s")

    within(test)


def test_what_is_preloaded_is_there_and_draws_its_own_numbers() -> None:
    program = (
        "import sys; print('numpy' in sys.modules)\n"
        "import random, numpy; print(random.random(), numpy.random.random(), numpy.linalg.inv(numpy.eye(3))[1])"
    )

    async def test(backend: local.Backend) -> None:
        zygote = Zygote(backend, ("numpy",), path=(SITE,), lanes=1)
        said = [(await zygote.run(program)).text.split() for _ in range(5)]
        assert {s[0] for s in said} == {"True"}
        assert {tuple(s[3:]) for s in said} == {("[0.", "1.", "0.]")}
        assert len({s[1] for s in said}) == len({s[2] for s in said}) == 5

    within(test, SITE)


def test_a_preload_that_fails_says_why() -> None:
    async def test(backend: local.Backend) -> None:
        with pytest.raises(BackendError, match="No module named 'absent'"):
            await Zygote(backend, ("absent",)).run("")
        with pytest.raises(BackendError, match="before it was warm"):
            await Zygote(backend, python="no-such-python").run("")

    within(test)


def test_only_sandboxes_that_can_have_a_resident_are_taken() -> None:
    with pytest.raises(RefusedError, match="local"):
        asyncio.run(Zygote(fake.create()).run(""))
    with pytest.raises(RefusedError, match="no network"):
        Zygote(fake.create(), spec=SandboxSpec(network=("example.org",)))


def test_a_cancelled_run_is_killed_and_its_lane_goes_on() -> None:
    async def test(backend: local.Backend) -> None:
        zygote = Zygote(backend, lanes=1)
        running = asyncio.create_task(zygote.run("import time; time.sleep(30)", seconds=30))
        await asyncio.sleep(0.5)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        assert (await zygote.run("print(1)", seconds=5)).ok

    within(test)


def below(pid: int) -> list[int]:
    """Host processes that descend from `pid`."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
            found += [child, *below(child)]
    return found


def running(pids: list[int], word: str) -> list[int]:
    """Those whose command line holds `word`."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def residents(backend: local.Backend) -> list[int]:
    return running(below(backend.process.pid), "python3")


@pytest.mark.parametrize("busy", [False, True])
def test_a_lost_resident_is_a_lost_backend_and_the_next_run_has_another(busy: bool) -> None:
    async def test(backend: local.Backend) -> None:
        zygote = Zygote(backend, lanes=1)
        assert (await zygote.run("")).ok
        (resident,) = residents(backend)
        program = "import time; time.sleep(1)" if busy else "pass"
        if not busy:
            os.kill(resident, signal.SIGKILL)
        running = asyncio.create_task(zygote.run(program))
        if busy:
            await asyncio.sleep(0.3)
            os.kill(resident, signal.SIGKILL)
        with pytest.raises(FaultError) as caught:
            await running
        assert caught.value.fault.what == "backend-lost"
        assert (await zygote.run("print(1)")).ok
        await zygote.close()
        assert residents(backend) == []
        with pytest.raises(FaultError, match="closed"):
            await zygote.run("")

    within(test)


MIXED = {  # program, and its end
    "import sys; print(len(sys.path) > 0)": ("exited", 0, b"True\n"),
    "raise SystemExit(5)": ("exited", 5, b""),
    "while True: pass": ("deadline", 0, b""),
    "import os; os.kill(os.getpid(), 9)": ("signalled", 9, b""),
    "import os\nfor _ in range(4): os.fork()": ("exited", 0, b""),
    "print('x' * 4096)": ("output", 0, b"x" * 4096),
    "import subprocess\nfor _ in range(4): subprocess.Popen(['setsid', 'sleep', '60'])": ("exited", 0, b""),
}


def belongings(backend: local.Backend) -> dict[str, int]:
    """How many processes of each name there are below the launcher, and how many descriptors they hold."""
    found: dict[str, int] = {}
    for pid in below(backend.process.pid):
        with contextlib.suppress(OSError):
            name, held = Path(f"/proc/{pid}/comm").read_text().strip(), len([*Path(f"/proc/{pid}/fd").iterdir()])
            found[name] = found.get(name, 0) + 1
            found[f"descriptors of {name}"] = max(found.get(f"descriptors of {name}", 0), held)
    return found


@pytest.mark.parametrize("n", [70, pytest.param(2000, marks=[pytest.mark.nightly, pytest.mark.timeout(600)])])
def test_many_runs_at_once_of_which_some_are_cancelled_end_right_and_leave_nothing(n: int) -> None:
    async def one(zygote: Zygote, seed: int) -> None:
        rng = random.Random(seed)
        program, (cause, code, out) = rng.choice(list(MIXED.items()))
        running = asyncio.create_task(zygote.run(program, seconds=0.2 if cause == "deadline" else 60))
        if rng.random() < 0.2:
            await asyncio.sleep(rng.random() * 0.05)
            running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            found = await running
            assert (found.cause, found.code if cause != "output" else 0, found.stdout) == (cause, code, out), program

    async def test(backend: local.Backend) -> None:
        zygote = Zygote(backend, spec=SMALL, lanes=3)
        await asyncio.gather(*(zygote.run("import time; time.sleep(0.5)") for _ in range(3)))
        await asyncio.sleep(0.5)  # what the first runs held is being given back
        before = belongings(backend)
        for start in range(0, n, 10):
            await asyncio.gather(*(one(zygote, seed) for seed in range(start, start + 10)))
        await asyncio.gather(*(zygote.run("") for _ in range(3)))  # lanes of cancelled runs are clean when asked again
        for _ in range(100):
            if belongings(backend) == before:
                return
            await asyncio.sleep(0.05)
        assert belongings(backend) == before

    within(test, seconds=60 if n < 100 else 500)


OWNER = """
import asyncio, sys
from temper.core.task import SandboxSpec
from temper.sandboxes import local
from temper.sandboxes.zygote import Zygote
async def main():
    backend = local.create()
    sleep = f"setsid sleep {sys.argv[1]} & sleep {sys.argv[1]}"
    shell = await (await backend.open(SandboxSpec())).session()
    zygote = Zygote(backend, preload=("decimal",))
    run = zygote.run(f"import os; os.system({sleep!r})", seconds=60)
    await asyncio.gather(run, shell.send(sleep, seconds=60))
asyncio.run(main())
"""


def test_when_the_owner_is_killed_no_run_no_session_and_no_resident_survives() -> None:
    marker = f"1{secrets.randbelow(10**9):09d}"
    owner = subprocess.Popen([sys.executable, "-c", OWNER, marker])

    def eventually(true: Callable[[], bool]) -> bool:
        end = time.monotonic() + 20
        while not true() and time.monotonic() < end:
            time.sleep(0.05)
        return true()

    assert eventually(lambda: len(running(below(owner.pid), marker)) >= 4)
    family = below(owner.pid)
    owner.kill()
    owner.wait()
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family))


@pytest.mark.skipif(os.geteuid() != 0, reason="is a plain user already")
@pytest.mark.timeout(300)
def test_what_depends_on_privilege_as_a_plain_user(
    as_plain_user: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    chosen = "fresh_interpreter or leaves_nothing or cannot_reach or doors or evidence or bounded"
    suite = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, str(Path(__file__)))
    done = as_plain_user(*suite, seconds=280)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
