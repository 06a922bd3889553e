"""What every sandbox backend must do, and what one that isolates must hold back.

Attacks run inside; what is checked is outside: host processes, mount namespaces, cgroups, another sandbox's files.
`test_the_suite_passes_as_a_plain_user` runs all of it again without root.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import platform
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from temper.core import registry
from temper.core.blame import FaultError
from temper.core.errors import MissingError, RefusedError
from temper.core.protocols import Sandbox, SandboxBackend
from temper.core.task import SandboxSpec
from temper.core.trace import Exit
from temper.sandboxes import fake, local

ROOT = Path(__file__).parents[2]
x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="calls are named by their numbers on x86_64")
SMALL = SandboxSpec(memory=192 << 20, disk=8 << 20, file_size=4 << 20, pids=20, output=4096)


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def python(program: str) -> list[str]:
    return ["python3", "-c", program]


def make(name: str) -> SandboxBackend:
    """A backend of that name; the fake one is told the few commands that the common part uses."""
    if name == "fake":
        programs = {
            "echo": lambda argv, stdin: Exit(cause="exited", stdout=" ".join(argv[1:]).encode() + b"\n"),
            "cat": lambda argv, stdin: Exit(cause="exited", stdout=stdin),
            "false": lambda argv, stdin: Exit(cause="exited", code=1),
        }
        missing = Exit(cause="exited", code=127)
        return fake.create(fake.Config(commands=lambda files, argv, stdin: (
            programs[argv[0]](argv, stdin) if argv[0] in programs else missing)))  # fmt: skip
    if name in ("docker", "remote"):
        pytest.skip("needs an image, or a server: tests/unit/sandboxes has them")
    try:
        return registry.find("sandboxes", name).create()
    except (MissingError, RefusedError) as error:
        if name == "local":
            raise
        pytest.skip(str(error))


def within(name: str, test: Callable[[SandboxBackend], Awaitable[None]]) -> None:
    """Runs `test` on a fresh backend and closes it."""

    async def run() -> None:
        backend = make(name)
        try:
            await test(backend)
        finally:
            await backend.close()

    asyncio.run(asyncio.wait_for(run(), 60))


@contextlib.asynccontextmanager
async def opened(backend: SandboxBackend, spec: SandboxSpec = SMALL) -> AsyncIterator[Sandbox]:
    box = await backend.open(spec)
    try:
        yield box
    finally:
        await box.close()


def in_box(argv: list[str], seconds: float = 10.0, spec: SandboxSpec = SMALL) -> Exit:
    """One command in a fresh local sandbox."""
    found: list[Exit] = []

    async def run(backend: SandboxBackend) -> None:
        async with opened(backend, spec) as box:
            found.append(await box.exec(argv, seconds=seconds))

    within("local", run)
    return found[0]


def processes_with(marker: str) -> list[int]:
    """Host processes whose command line or environment's argv holds `marker`, this one left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if marker.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


class Belongings:
    """The processes below `owner`, their mount namespaces, and the cgroups of their launchers."""

    def __init__(self, owner: int) -> None:
        parents = {pid: self._parent(pid) for pid in self._pids()}
        self.pids = {owner}
        while more := {pid for pid, parent in parents.items() if parent in self.pids} - self.pids:
            self.pids |= more
        self.pids.discard(owner)
        self.spaces = {self._space(pid) for pid in self.pids} - {self._space(os.getpid()), None}

    def left(self) -> list[str]:
        """What is still there. A mount lives as long as a process in its namespace."""
        found = [f"process {pid}" for pid in self._pids() if pid in self.pids or self._orphan_in_ours(pid)]
        groups = {f"temper.{pid}" for pid in self.pids}
        for top, names, _ in os.walk("/sys/fs/cgroup"):  # unlike glob, calm when a group goes away
            found += [f"{top}/{name}" for name in names if name in groups]
        return found

    def _orphan_in_ours(self, pid: int) -> bool:
        """In one of our namespaces, not in another owner's that the kernel gave the same number since."""
        above = pid
        while self._space(above) in self.spaces:
            above = self._parent(above)
        return pid != 1 and above == 1

    @staticmethod
    def _pids() -> list[int]:
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]

    @staticmethod
    def _parent(pid: int) -> int:
        with contextlib.suppress(OSError):
            return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return 0

    @staticmethod
    def _space(pid: int) -> str | None:
        with contextlib.suppress(OSError):
            return str(Path(f"/proc/{pid}/ns/mnt").readlink())
        return None


def eventually(true: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def marker() -> str:
    """A number of seconds that nobody else sleeps for."""
    return f"1{secrets.randbelow(10**9):09d}"


# ---- common to all backends ----

every = pytest.mark.parametrize("name", sorted(registry.names("sandboxes")))


@every
def test_a_command_gives_its_output_and_status(name: str) -> None:
    async def test(backend: SandboxBackend) -> None:
        async with opened(backend) as box:
            said = await box.exec(["echo", "hello", "there"])
            assert (said.cause, said.code, said.stdout, said.ok) == ("exited", 0, b"hello there\n", True)
            assert (await box.exec(["cat"], stdin=b"a\0b\xff")).stdout == b"a\0b\xff"
            assert (await box.exec(["false"])).code == 1
            assert (await box.exec(["no-such-command"])).code == 127

    within(name, test)


@every
def test_files_go_in_and_out(name: str) -> None:
    async def test(backend: SandboxBackend) -> None:
        async with opened(backend, SandboxSpec(files={"src/deep/a.txt": b"one"})) as box:
            assert await box.get("src/deep/a.txt") == b"one"
            await box.put("src/deep/a.txt", b"\x00\xff two")
            assert await box.get("src/deep/a.txt") == b"\x00\xff two"
            with pytest.raises(FileNotFoundError):
                await box.get("absent")
            for way_out in ("../x", "/etc/x", "a/../../x"):
                with pytest.raises(PermissionError):
                    await box.put(way_out, b"")
                with pytest.raises(FileNotFoundError):
                    await box.get(way_out)
            for long in ("x" * 5000, "a/" * 2500):
                with pytest.raises(OSError, match="too long"):
                    await box.put(long, b"")
            assert await box.get("src/deep/a.txt") == b"\x00\xff two"

    within(name, test)


@every
def test_sandboxes_do_not_share_files(name: str) -> None:
    async def test(backend: SandboxBackend) -> None:
        async with opened(backend) as one, opened(backend) as two:
            await one.put("secret", b"1")
            with pytest.raises(FileNotFoundError):
                await two.get("secret")
            assert one.id != two.id

    within(name, test)


@every
def test_a_closed_sandbox_is_a_lost_backend_and_closes_twice(name: str) -> None:
    async def test(backend: SandboxBackend) -> None:
        box = await backend.open(SMALL)
        await box.close()
        await box.close()
        with pytest.raises(FaultError) as caught:
            await box.exec(["echo"])
        assert caught.value.fault.what == "backend-lost"

    within(name, test)


@every
def test_a_limit_that_is_not_hard_here_is_refused(name: str) -> None:
    async def test(backend: SandboxBackend) -> None:
        with pytest.raises(RefusedError, match="moon-phase"):
            await backend.open(SandboxSpec(require=("moon-phase",)))
        if backend.capabilities().get("memory") != "hard":
            with pytest.raises(RefusedError, match="memory"):
                await backend.open(SandboxSpec(require=("memory",)))

    within(name, test)


# ---- ends of a command, with their evidence ----


@pytest.mark.parametrize(
    ("argv", "cause", "evidence"),
    [
        (shell("exit 3"), "exited", "status 3"),
        (shell("kill -SEGV $$"), "signalled", "signal 11"),
        (shell("sleep 60"), "deadline", "wall clock"),
        (shell("trap '' TERM HUP INT; while :; do :; done"), "deadline", "wall clock"),
        (shell("yes"), "output", "4096 bytes"),
        (shell("yes >&2"), "output", "4096 bytes"),
        (python("x = [bytearray(1 << 20) for _ in range(4000)]"), "oom", "oom_kill|resident"),
        (python("import os, time\nwhile True: os.fork() or time.sleep(60)"), "pids", "max=|tasks"),
        (shell("cat /dev/zero > /tmp/a; cat /dev/zero > b; cat /dev/zero > c; exit 1"), "disk", "tmpfs full"),
        (python("for i in range(9999): open(str(i), 'w')"), "disk", "0 inodes free"),
        (shell("exec head -c 5000000 /dev/zero > big"), "disk", "SIGXFSZ"),
        pytest.param(python("import ctypes; ctypes.CDLL(None).syscall(304)"), "policy", "SIGSYS", marks=x86),
    ],
    ids=lambda value: value[-1][:24] if isinstance(value, list) else None,
)
def test_the_cause_of_an_end_has_evidence(argv: list[str], cause: str, evidence: str) -> None:
    found = in_box(argv, seconds=1.0 if cause == "deadline" else 20.0)
    assert found.cause == cause, (found.evidence, found.text)
    assert any(word in found.evidence for word in evidence.split("|"))


def test_output_is_kept_up_to_the_limit_and_need_not_be_text() -> None:
    found = in_box(python("import os; os.write(1, b'\\xff\\xfe' * 9000)"))
    assert (found.cause, found.truncated, found.stdout) == ("output", True, b"\xff\xfe" * 2048)
    found = in_box(python("import os; os.write(1, b'\\xff' * 4096); os.write(2, b'\\0e')"))
    assert (found.cause, found.stdout, found.stderr) == ("exited", b"\xff" * 4096, b"\0e")


def test_processor_time_is_bounded() -> None:
    spec = SandboxSpec(cpu_seconds=1.0)
    found = in_box(python("import os\nfor _ in range(3): os.fork()\nwhile True: pass"), seconds=30, spec=spec)
    assert (found.cause, found.evidence) == ("deadline", "processor time over 1 s")


def test_open_files_are_bounded() -> None:
    program = "import os\nn = 3\ntry:\n  while True: os.dup(0); n += 1\nexcept OSError as e: print(n, e.errno)"
    assert in_box(python(program), spec=SandboxSpec(open_files=40)).text == "40 24\n"


def landlock() -> int:
    """The version that this kernel has (landlock(7)), or -1."""
    return ctypes.CDLL(None).syscall(444, None, 0, 1)


@pytest.mark.skipif(landlock() < 2, reason="this kernel has no Landlock that allows moves")
def test_landlock_refuses_a_write_where_a_mount_allows_it() -> None:
    """/proc/keys is masked by the host's /dev/null, which a mount lets anybody write to."""
    assert in_box(shell("echo x > /dev/null && echo x > /proc/keys")).code != 0


def test_a_command_that_handles_a_refused_fork_just_exits() -> None:
    program = "import os\ntry:\n  while os.fork(): pass\n  import time; time.sleep(9)\nexcept BlockingIOError: pass"
    assert in_box(python(program)).cause == "exited"


# ---- nothing outlives ----


def test_the_deadline_ends_orphans_in_their_own_sessions(marker: str) -> None:
    found = in_box(shell(f"setsid sh -c 'setsid sleep {marker} & sleep {marker}' & sleep {marker}"), seconds=0.5)
    assert found.cause == "deadline"
    assert processes_with(marker) == []


def test_background_processes_end_with_their_command(marker: str) -> None:
    async def test(backend: SandboxBackend) -> None:
        async with opened(backend) as box:
            assert (await box.exec(shell(f"setsid sleep {marker} >/dev/null 2>&1 &"))).ok
            assert processes_with(marker) == []

    within("local", test)


def test_a_cancelled_command_is_killed_and_the_sandbox_goes_on(marker: str) -> None:
    async def test(backend: SandboxBackend) -> None:
        async with opened(backend) as box:
            running = asyncio.create_task(box.exec(["sleep", marker], seconds=30))
            while not processes_with(marker):
                await asyncio.sleep(0.02)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert (await box.exec(["echo", "still here"])).stdout == b"still here\n"
            assert processes_with(marker) == []

    within("local", test)


def test_closing_leaves_nothing(marker: str) -> None:
    belongings: list[Belongings] = []

    async def test(backend: SandboxBackend) -> None:
        boxes = await asyncio.gather(*(backend.open(SMALL) for _ in range(8)))
        running = [asyncio.create_task(box.exec(["sleep", marker], seconds=30)) for box in boxes]
        await asyncio.sleep(0.3)
        assert len(processes_with(marker)) == 8
        belongings.append(Belongings(os.getpid()))
        assert len(belongings[0].left()) >= 25  # the launcher; box, pid 1 and command of eight
        for box in boxes[:4]:
            await box.close()
        assert len(processes_with(marker)) == 4
        await backend.close()
        ended = await asyncio.gather(*running, return_exceptions=True)
        assert all(isinstance(e, FaultError) and e.fault.what == "backend-lost" for e in ended)

    within("local", test)
    assert belongings[0].left() == []


OWNER = """
import asyncio, sys
from temper.core.task import SandboxSpec
from temper.sandboxes import local
async def main():
    backend = local.create()
    boxes = [await backend.open(SandboxSpec()) for _ in range(3)]
    print("ready", flush=True)
    command = ["sh", "-c", f"setsid sleep {sys.argv[1]} & sleep {sys.argv[1]}"]
    await asyncio.gather(*(box.exec(command, seconds=60) for box in boxes[1:]))
asyncio.run(main())
"""


def test_when_the_owner_is_killed_nothing_survives(marker: str) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, marker], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    with owner.stdout:
        assert owner.stdout.readline() == b"ready\n"
        assert eventually(lambda: len(processes_with(marker)) >= 7)  # with the owner itself
    belongings = Belongings(owner.pid)
    assert len(belongings.left()) >= 12
    owner.kill()
    owner.wait()
    assert eventually(lambda: not belongings.left()), belongings.left()
    assert processes_with(marker) == []


def test_when_the_helper_is_killed_the_backend_is_lost(marker: str) -> None:
    async def test(backend: SandboxBackend) -> None:
        assert isinstance(backend, local.Backend)
        box = await backend.open(SMALL)
        running = asyncio.create_task(box.exec(["sleep", marker], seconds=30))
        await asyncio.sleep(0.2)
        os.kill(backend.process.pid, signal.SIGKILL)
        for call in (running, box.exec(["true"]), box.put("a", b""), backend.open(SMALL)):
            with pytest.raises(FaultError) as caught:
                await call
            assert caught.value.fault.what == "backend-lost"
        assert eventually(lambda: not processes_with(marker))

    within("local", test)


# ---- files, against hostile trees ----


def test_files_never_go_through_links() -> None:
    async def test(backend: SandboxBackend) -> None:
        async with opened(backend) as box:
            await box.exec(shell("ln -s /etc/passwd leaf; ln -s /etc dir; ln -s . self; mkfifo pipe; mkdir d; >kept"))
            for path in ("leaf", "dir/passwd", "self/kept", "pipe", "d"):
                with pytest.raises(FileNotFoundError):
                    await box.get(path)
            for path in ("dir/new", "self/new"):
                with pytest.raises(PermissionError):
                    await box.put(path, b"x")
            await box.put("leaf", b"mine")  # takes the link's place
            await box.put("pipe", b"mine")
            assert await box.get("leaf") == await box.get("pipe") == b"mine"
            assert (await box.exec(shell("test ! -L leaf && grep -q root /etc/passwd"))).ok

    within("local", test)


def test_swapping_names_while_files_go_in_never_leads_out() -> None:
    swap = "mkdir a b; while :; do mv a t; ln -s /tmp a; rm a; mv t a; done"

    async def test(backend: SandboxBackend) -> None:
        async with opened(backend) as box, opened(backend) as other:
            race = asyncio.create_task(box.exec(shell(swap), seconds=1.0))
            await asyncio.sleep(0.05)
            assert (await other.exec(["ls"])).stdout == b""
            await race
            assert (await box.exec(["ls", "/tmp"])).stdout == b""

    within("local", test)


def test_a_full_disk_is_an_os_error_and_loses_nothing() -> None:
    async def test(backend: SandboxBackend) -> None:
        async with opened(backend) as box:
            await box.put("kept", b"old")
            with pytest.raises(OSError, match="No space left"):
                await box.put("kept", bytes(9 << 20))
            assert await box.get("kept") == b"old"
            assert (await box.exec(["ls", "-A"])).stdout == b"kept\n"

    within("local", test)


def test_modes_survive_a_put() -> None:
    async def test(backend: SandboxBackend) -> None:
        async with opened(backend) as box:
            await box.put("run", b"#!/bin/sh\necho one\n")
            await box.exec(["chmod", "755", "run"])
            await box.put("run", b"#!/bin/sh\necho two\n")
            assert (await box.exec(["./run"])).stdout == b"two\n"

    within("local", test)


# ---- walls ----


@pytest.mark.parametrize(
    "attack",
    [
        "echo x > /usr/x",
        "echo x > /etc/passwd",
        "echo x > /x",
        "echo x > /dev/x",
        "echo x > /proc/sys/kernel/core_pattern",
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
        "echo x > /proc/sysrq-trigger",
        "mount -t tmpfs none /tmp",
        "umount /proc",
        "mount -o remount,rw /",
        "unshare -U true",
        "unshare -r true",
        "unshare -n true",
        "chroot / true",
        "mknod disk b 254 0",
        "mknod null c 1 3",
        "hostname other",
        "cat /proc/1/environ",
        "cat /proc/1/root/etc/passwd",
        "ls /proc/1/fd/",
        "test -s /proc/kcore",
        "test -s /proc/keys",
        "test -s /proc/kallsyms",
        "ls /sys/* /home/* /boot/* /proc/bus/*",
        "test -e /sandbox/../.dockerenv",
        "chown 0 /sandbox",
        "renice -n -5 $$",
        "ulimit -n 4096",
        "ulimit -f unlimited",
        "dmesg",
    ],
)
def test_a_shell_cannot(attack: str) -> None:
    found = in_box(shell(attack))
    assert found.cause == "exited"
    assert found.code != 0, found.text


# numbers are those of x86_64 (arch/x86/entry/syscalls/syscall_64.tbl)
REFUSED = {
    "ptrace": 101, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "keyctl": 250, "add_key": 248,
    "io_uring_setup": 425, "setns": 308, "mount": 165, "fsopen": 430, "open_tree": 428, "move_mount": 429,
    "mount_setattr": 442, "pivot_root": 155, "name_to_handle_at": 303, "process_vm_readv": 310, "kcmp": 312,
    "pidfd_getfd": 438, "clone3": 435, "memfd_secret": 447, "unknown": 470, "x32 getpid": 0x40000027,
}  # fmt: skip


@x86
def test_the_kernel_refuses_calls_that_no_program_needs() -> None:
    program = (
        f"import ctypes, errno\nlibc = ctypes.CDLL(None, use_errno=True)\nfor name, n in {REFUSED!r}.items():\n"
        "  r = libc.syscall(n, 0, 0, 0, 0, 0)\n"
        "  print(name, r, errno.errorcode.get(ctypes.get_errno())) if ctypes.get_errno() not in (1, 38) else 0\n"
        "for family, kind, proto in ((40, 1, 0), (17, 3, 0), (38, 5, 0), (16, 3, 12), (44, 2, 0)):\n"
        "  if libc.socket(family, kind, proto) >= 0: print('socket', family)\n"
        "if libc.ioctl(0, 0x5412, b'x') == 0 or ctypes.get_errno() != 1: print('TIOCSTI')\n"
        "if libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0) >= 0: print('clone into a user namespace')\n"
    )
    assert in_box(python(program)).text == ""


def test_a_command_has_no_privilege_and_no_descriptor_of_ours() -> None:
    privileges = "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status | cut -f2 | sort -u"
    found = in_box(shell(f"{privileges}; echo; ls /proc/self/fd; env"))
    status, rest = found.stdout.decode().split("\n\n")
    assert status.split() == ["0000000000000000", "1", "2"]
    assert rest.split()[:4] == ["0", "1", "2", "3"]  # 3 is the directory that ls reads
    names = {line.split("=")[0] for line in rest.splitlines() if "=" in line}
    assert names == {"PATH", "HOME", "USER", "LANG", "TMPDIR", "PWD", "PYTHONDONTWRITEBYTECODE"}


def test_there_is_no_network_but_loopback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as host:
        port = host.getsockname()[1]
        program = (
            "import socket, threading\n"
            f"for address in (('127.0.0.1', {port}), ('169.254.169.254', 80), ('1.1.1.1', 53)):\n"
            "  try: socket.create_connection(address, 1); print('reached', address)\n"
            "  except OSError: pass\n"
            "server = socket.create_server(('127.0.0.1', 0))\n"
            "socket.create_connection(server.getsockname()).sendall(b'x')\n"
            "print(server.accept()[0].recv(1), [name for _, name in socket.if_nameindex()])"
        )
        assert in_box(python(program)).text == "b'x' ['lo']\n"


def test_a_sandbox_sees_and_hurts_no_process_but_its_own(marker: str) -> None:
    outside = subprocess.Popen(["sleep", marker])
    try:
        found = in_box(shell("ls -d /proc/[0-9]* | wc -l; kill -9 -1; kill -9 1; kill -9 0"))
        assert int(found.stdout) <= 5
        assert outside.poll() is None
    finally:
        outside.kill()
        outside.wait()

    async def test(backend: SandboxBackend) -> None:
        async with opened(backend) as box:
            assert (await box.exec(shell("kill -9 0; kill -9 -1"))).cause == "signalled"
            assert (await box.exec(["true"])).ok

    within("local", test)


def test_one_sandbox_cannot_use_up_anothers_quotas() -> None:
    program = (
        "import ctypes, time; libc = ctypes.CDLL(None)\nn = 0\n"
        "while n < 999 and libc.inotify_init1(0) >= 0: n += 1\n"
        "print(n, flush=True); time.sleep(1)"
    )

    async def test(backend: SandboxBackend) -> None:
        boxes = await asyncio.gather(*(backend.open(SMALL) for _ in range(4)))
        counts = await asyncio.gather(*(box.exec(python(program)) for box in boxes))
        assert [int(c.stdout) for c in counts] == [16] * 4

    within("local", test)


# ---- what must work inside ----


def test_ordinary_programs_work() -> None:
    program = (
        "import multiprocessing as m, sqlite3, tempfile, threading, ssl, os, pty\n"
        "assert m.get_context('fork').Pool(2).map(abs, [-1, -2]) == [1, 2]\n"
        "db = sqlite3.connect('x.db'); db.execute('pragma journal_mode=wal'); db.execute('create table t(a)')\n"
        "t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()\n"
        "with tempfile.NamedTemporaryFile() as f: f.write(b'x')\n"
        "os.close(pty.openpty()[0]); print(os.getuid(), os.getcwd())\n"
    )
    assert in_box(python(program), spec=SandboxSpec()).text == "thread\n1000 /sandbox\n"


def test_hundreds_are_alive_at_once() -> None:
    async def test(backend: SandboxBackend) -> None:
        boxes = await asyncio.gather(*(backend.open(SMALL) for _ in range(200)))
        said = await asyncio.gather(*(box.exec(["echo", str(n)], seconds=30) for n, box in enumerate(boxes)))
        assert [int(s.stdout) for s in said] == list(range(200))

    within("local", test)


# ---- again, as a plain user ----


@pytest.mark.skipif(os.geteuid() != 0, reason="is a plain user already")
@pytest.mark.timeout(300)
def test_the_suite_passes_as_a_plain_user(as_plain_user) -> None:
    suite = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT), str(Path(__file__)))
    done = as_plain_user(*suite, seconds=280)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
