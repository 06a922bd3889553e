"""Snapshots, rollbacks and forks: that a program cannot tell that they happened, and that they give back what was.

`histories` plays random ones against plain pasts; 50 here, 2,000 in `make test-nightly`, all again as a plain user.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from temper.core import registry
from temper.core.blame import FaultError
from temper.core.protocols import Snapshots
from temper.core.task import SandboxSpec
from temper.sandboxes import fake, local

sys.path.insert(0, str(Path(__file__).parent))

from histories import SPEC, differences, history

Test = Callable[[Any], Awaitable[None]]


def within(name: str, test: Test, seconds: float = 60) -> None:
    """Runs `test` on a fresh backend and closes it."""

    async def run() -> None:
        backend = registry.find("sandboxes", name).create()
        try:
            await test(backend)
        finally:
            await backend.close()

    asyncio.run(asyncio.wait_for(run(), seconds))


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


# ---- what every backend with snapshots does ----

with_snapshots = pytest.mark.parametrize("name", ["fake", "local"])


@with_snapshots
def test_going_back_and_forth_gives_each_state_as_it_was(name: str) -> None:
    async def test(backend: Any) -> None:
        box = await backend.open(SandboxSpec(files={"kept": b"1", "gone": b"2"}))
        assert isinstance(box, Snapshots)
        first = await box.snapshot()
        await box.put("kept", b"changed")
        await box.put("new/deep", b"3")
        second = await box.snapshot()
        for _ in range(2):
            await box.rollback(first)
            assert [await box.get("kept"), await box.get("gone")] == [b"1", b"2"]
            with pytest.raises(FileNotFoundError):
                await box.get("new/deep")
            await box.put("gone", b"after")
            await box.rollback(second)
            assert [await box.get("kept"), await box.get("gone"), await box.get("new/deep")] == [b"changed", b"2", b"3"]

    within(name, test)


@with_snapshots
def test_forks_begin_alike_and_go_their_own_ways(name: str) -> None:
    async def test(backend: Any) -> None:
        box = await backend.open(SandboxSpec(files={"a": b"0"}))
        state = await box.snapshot()
        await box.put("a", b"later")
        one, two = await box.fork(state, 2)
        assert [await one.get("a"), await two.get("a")] == [b"0", b"0"]
        await one.put("a", b"one")
        assert [await box.get("a"), await two.get("a")] == [b"later", b"0"]
        assert len({box.id, one.id, two.id}) == 3

    within(name, test)


@with_snapshots
def test_a_fork_goes_back_to_where_it_began_when_the_first_sandbox_is_no_more(name: str) -> None:
    async def test(backend: Any) -> None:
        box = await backend.open(SandboxSpec(files={"a": b"0"}))
        state = await box.snapshot()
        (fork,) = await box.fork(state, 1)
        await box.close()
        await fork.put("a", b"1")
        await fork.rollback(state)
        assert await fork.get("a") == b"0"
        (second,) = await fork.fork(state, 1)
        assert await second.get("a") == b"0"

    within(name, test)


@with_snapshots
def test_an_unknown_snapshot_is_a_lookup_error_and_changes_nothing(name: str) -> None:
    async def test(backend: Any) -> None:
        box = await backend.open(SandboxSpec(files={"a": b"0"}))
        for call in (box.rollback("no-such"), box.fork("no-such", 1)):
            with pytest.raises(LookupError):
                await call
        assert await box.get("a") == b"0"

    within(name, test)


# ---- no difference to what a program sees ----


def play(seeds: range, at_once: int = 4) -> None:
    async def test(backend: Any) -> None:
        waiting = iter(seeds)

        async def player() -> None:
            for seed in waiting:
                found = await differences(backend, history(seed))
                assert not found, f"history {seed}: " + "\n".join(found)

        await asyncio.gather(*(player() for _ in range(at_once)))

    within("local", test, seconds=3600)


def test_random_histories_are_what_they_would_be_without_snapshots() -> None:
    play(range(50))


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(100, 2100, 250))
def test_many_random_histories_are_what_they_would_be_without_snapshots(first: int) -> None:
    play(range(first, first + 250))


def test_the_player_finds_a_lost_link_and_a_changed_time() -> None:
    """The oracle itself: pasts that differ in one operation are told apart."""

    async def test(backend: Any) -> None:
        class Forgetful:
            """Drops one operation of the plain past, as a rollback that loses something would."""

            def __init__(self, dropped: str) -> None:
                self.dropped, self.opened = dropped, 0

            async def open(self, spec: SandboxSpec) -> Any:
                self.opened += 1
                box = await backend.open(spec)
                if self.opened == 1:
                    await box.exec(shell(self.dropped))
                return box

        steps = [("do", [("mkdir", b"/sandbox/d", 0o755)]), ("snapshot",), ("do", [("list", b"/sandbox/d")])]
        for extra in ("> /tmp/x", "> x; ln x y", "touch -d 2000-01-01 /sandbox", "truncate -s 9000 /dev/shm/s"):
            assert await differences(Forgetful(extra), steps), extra
        assert not await differences(Forgetful("true"), steps)

    within("local", test)


# ---- what is running ----


COUNT = """
import os
one, two = (os.open(name, os.O_RDWR | os.O_CREAT) for name in ("one", "two"))
n = 0
while True:
    n += 1
    for file in (one, two):
        os.pwrite(file, b"%9d" % n, 0)
"""


def test_what_runs_is_stopped_for_a_snapshot_and_goes_on() -> None:
    """A counter writes its number to two files; a copy of a running one would have them far apart."""

    async def count(box: Any) -> tuple[int, int]:
        return int(await box.get("one")), int(await box.get("two"))

    async def test(backend: Any) -> None:
        box = await backend.open(SandboxSpec(files={"count.py": COUNT.encode(), "one": b"0", "two": b"0"}))
        session = await box.session()
        await session.send("exec 9> open; echo before >&9; python3 -I -S count.py & mkdir d; cd d; sleep 0.3")
        for _ in range(10):
            (fork,) = await box.fork(await box.snapshot(), 1)
            one, two = await count(fork)
            assert one - two in (0, 1)
            await asyncio.sleep(0.02)
            assert await count(fork) == (one, two)  # nothing runs in a fork
            await fork.close()
        before = await count(box)
        await asyncio.sleep(0.1)
        assert await count(box) > before
        said = await session.send("echo after >&9; cat ../open; pwd; jobs -r | wc -l")
        assert said.stdout.split() == [b"before", b"after", b"/sandbox/d", b"1"]

    within("local", test)


def test_what_was_stopped_before_stays_stopped() -> None:
    async def test(backend: Any) -> None:
        box = await backend.open(SandboxSpec())
        session = await box.session()
        state = "grep State /proc/$!/status"
        assert b"stopped" in (await session.send(f"sleep 1000 & kill -STOP $!; sleep 0.1; {state}")).stdout
        await box.snapshot()
        assert b"stopped" in (await session.send(state)).stdout

    within("local", test)


def test_going_back_ends_what_runs() -> None:
    async def test(backend: Any) -> None:
        box = await backend.open(SandboxSpec())
        state = await box.snapshot()
        session = await box.session()
        await session.send("(while :; do date > late; done) & setsid sleep 1000 &")
        await box.rollback(state)
        await asyncio.sleep(0.1)
        assert (await box.exec(["ls"])).stdout == b""
        assert (await box.exec(shell("ls -d /proc/[0-9]* | wc -l"))).stdout in (b"3\n", b"4\n")
        with pytest.raises(FaultError):
            await session.send("true")

    within("local", test)


# ---- large, deep, full ----


def test_ten_thousand_files_come_back_and_are_proven_by_their_hash() -> None:
    script = "for d in $(seq 100); do mkdir d$d; for f in $(seq 100); do echo $d $f > d$d/f$f; done; done"

    async def test(backend: Any) -> None:
        box = await backend.open(SandboxSpec())
        assert (await box.exec(shell(script), seconds=30)).ok
        state = await box.snapshot()
        proof = await box.manifest(state)
        await box.exec(shell("rm -rf d1?; echo x | tee d2?/f2? > /dev/null"))
        assert await box.manifest() != proof
        await box.rollback(state, hashed=True)
        assert await box.manifest() == proof
        (fork,) = await box.fork(state, 1)
        assert await fork.manifest() == proof
        assert (await fork.exec(["cat", "d17/f23"])).stdout == b"17 23\n"

    within("local", test)


BEGIN = """
import contextlib, os
os.makedirs("d/e")
for name in ("a", "long", "d/b", "d/e/c"): open(name, "w").write(name * 3000)
os.link("a", "d/a"); os.symlink("a", "s"); os.mkfifo("p"); os.truncate("long", 1 << 20)
with contextlib.suppress(OSError):  # a tmpfs has attributes since Linux 6.6
    os.setxattr("d", "user.x", b"1"); os.setxattr("d/b", "user.x", b"1")
"""
SPOIL = """
import contextlib, os
open("a", "w").write("x"); open("d/b", "a").write("more"); open("long", "r+").write("y" * 9000); os.chmod("p", 0o777)
with contextlib.suppress(OSError):
    os.setxattr("a", "user.y", b"2"); os.removexattr("d", "user.x")
os.chmod("d/e", 0o711)
os.utime("s", (1, 2), follow_symlinks=False); os.posix_fallocate(os.open("d/e/c", 2), 0, 1 << 16)
os.makedirs("new/deep"); open("new/deep/f", "w").close(); open("d/f", "w").close()
"""
FLAG = """
import contextlib, fcntl, os, struct
with contextlib.suppress(OSError):  # not every tmpfs has flags
    fcntl.ioctl(os.open("a", 0), 0x40086602, struct.pack("l", 0x40))  # FS_IOC_SETFLAGS, FS_NODUMP_FL
"""
LOOK = """
import fcntl, os, struct
print([(name, os.lstat(name).st_ino) for name in ("a", "d", "d/a", "d/b", "d/e", "d/e/c", "long", "p", "s")])
print(sorted(os.listdir()), end=" ")
try: print(struct.unpack("l", fcntl.ioctl(os.open("a", 0), 0x80086601, bytes(8)))[0] & 0x40)  # FS_IOC_GETFLAGS
except OSError: print(0)
"""


def test_files_that_are_still_the_same_are_written_over_and_others_come_back_too() -> None:
    def python(source: str) -> list[str]:
        return ["python3", "-I", "-S", "-c", source]

    async def test(backend: Any) -> None:
        box = await backend.open(SandboxSpec())
        assert (await box.exec(python(BEGIN))).ok
        state = await box.snapshot()
        proof, before = await box.manifest(state), (await box.exec(python(LOOK))).text
        assert before.endswith("['a', 'd', 'long', 'p', 's'] 0\n")
        for _ in range(2):
            spoilt = await box.exec(python(SPOIL))
            assert spoilt.ok, spoilt.text
            assert await box.manifest() != proof
            await box.rollback(state)
            assert await box.manifest() == proof
            assert (await box.exec(python(LOOK))).text == before
        await box.exec(python(FLAG))
        await box.rollback(state)
        assert (await box.exec(python(LOOK))).text.endswith(" 0\n")
        for spoil in ("mv a t; cp t a; rm t", "rm p; echo > p", "rm -r d", "mv a t; mv s a; mv t s", "ln a b; rm d/a"):
            await box.exec(shell(spoil))
            await box.rollback(state)
            assert await box.manifest() == proof, spoil

    within("local", test)


def test_a_way_down_that_is_longer_than_a_path_may_be() -> None:
    dig = "import os\nfor n in range(3000): os.mkdir('d' * 50); os.chdir('d' * 50)\nopen('end', 'w').write('found')"
    climb = "import os\nfor n in range(3000): os.chdir('d' * 50)\nprint(open('end').read())"

    async def test(backend: Any) -> None:
        box = await backend.open(SandboxSpec())
        assert (await box.exec(["python3", "-c", dig])).ok
        state = await box.snapshot()
        await box.rollback(state)
        assert (await box.exec(["python3", "-c", climb])).stdout == b"found\n"

    within("local", test)


def test_a_full_disk_can_be_kept_and_is_as_full_afterwards() -> None:
    async def test(backend: Any) -> None:
        box = await backend.open(SPEC)
        assert (await box.exec(shell("cat /dev/zero > zeros"))).cause == "disk"
        state = await box.snapshot()
        await box.exec(["rm", "zeros"])
        await box.rollback(state)
        assert (await box.exec(shell("echo x > more"))).cause == "disk"
        assert (await box.exec(shell("rm zeros; echo x > more"))).ok

    within("local", test)


def test_what_is_unchanged_is_held_once_and_counts_against_nobody() -> None:
    spec = SandboxSpec(memory=100 << 20, disk=32 << 20)
    fill = "import os; open('f', 'wb').write(os.urandom(24 << 20))"

    def shared_memory() -> int:
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return int(fields["Shmem"].split()[0]) >> 10

    async def test(backend: Any) -> None:
        box = await backend.open(spec)
        assert (await box.exec(["python3", "-c", fill])).ok
        await box.snapshot()
        before = shared_memory()
        states = [await box.snapshot() for _ in range(20)]
        assert shared_memory() - before < 10 * 24
        for _ in range(4):  # each of these is new to the store
            await box.exec(["python3", "-c", fill])
            await box.snapshot()
        await box.rollback(states[0])
        assert (await box.exec(["python3", "-c", "print(len(bytearray(80 << 20)))"])).ok

    within("local", test)


def test_a_long_chain_of_forks_keeps_everything() -> None:
    async def test(backend: Any) -> None:
        box = await backend.open(SPEC)
        for n in range(40):
            await box.put(f"{n}", f"{n}".encode() * 100)
            (fork,) = await box.fork(await box.snapshot(), 1)
            await box.close()
            box = fork
        assert [await box.get(f"{n}") for n in range(40)] == [f"{n}".encode() * 100 for n in range(40)]

    within("local", test)


def test_what_a_cut_short_fork_leaves_is_nothing() -> None:
    async def test(backend: local.Backend) -> None:
        box = await backend.open(SandboxSpec(files={"a": b"0"}))
        state = await box.snapshot()
        for delay in range(0, 24, 2):
            forking = asyncio.create_task(box.fork(state, 8))
            await asyncio.sleep(delay / 1000)
            forking.cancel()
            (forks,) = await asyncio.gather(forking, return_exceptions=True)
            if isinstance(forks, list):  # they were quicker
                await asyncio.gather(*(fork.close() for fork in forks))
        await box.rollback(state)
        assert await box.get("a") == b"0"
        children = Path(f"/proc/{backend.process.pid}/task/{backend.process.pid}/children")
        for _ in range(100):
            if len(children.read_text().split()) <= 10:  # this one and those that are ready for the next to come
                return
            await asyncio.sleep(0.05)
        raise AssertionError("forks are left")

    within("local", test)


def test_the_fake_keeps_its_own_copies() -> None:
    async def test(backend: fake.Backend) -> None:
        box = await backend.open(SandboxSpec(files={"a": b"0"}))
        state = await box.snapshot()
        for fork in await box.fork(state, 3):
            await fork.put("a", b"1")
            await fork.close()
        assert backend.open_now == 1

    within("fake", test)


@pytest.mark.skipif(os.geteuid() != 0, reason="is a plain user already")
@pytest.mark.timeout(300)
def test_all_of_this_as_a_plain_user(as_plain_user: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    suite = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not plain_user", str(Path(__file__)))
    done = as_plain_user(*suite, seconds=280)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
