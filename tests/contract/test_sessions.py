"""Sessions (a shell, a Python), terminals, and output as it comes: state between turns, ends of turns, limits."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from temper.core.blame import FaultError
from temper.core.errors import MissingError
from temper.core.protocols import Sessions
from temper.core.task import SandboxSpec
from temper.sandboxes import local

SMALL = SandboxSpec(memory=192 << 20, disk=8 << 20, file_size=4 << 20, pids=30, output=4096)


def within(test: Callable[[local.Local], Awaitable[None]], spec: SandboxSpec = SMALL) -> None:
    """Runs `test` in a fresh sandbox."""

    async def run() -> None:
        backend = local.create()
        try:
            await test(await backend.open(spec))
        finally:
            await backend.close()

    asyncio.run(asyncio.wait_for(run(), 60))


# ---- turns ----


def test_a_shell_keeps_its_state() -> None:
    async def test(box: local.Local) -> None:
        assert isinstance(box, Sessions)
        shell = await box.session()
        turns = [
            ("cd /tmp; x='a  b'; f() { return 7; }; export y=2", 0, b""),
            ("pwd; echo \"$x\"; sh -c 'echo $y'", 0, b"/tmp\na  b\n2\n"),
            ("f", 7, b""),
            ("echo $?", 0, b"7\n"),
            ('cat <<END\nit\'s \\ "here"!\nEND', 0, b'it\'s \\ "here"!\n'),
            ("for i in 1 2\ndo echo $i\ndone # a comment", 0, b"1\n2\n"),
            ("if", 2, b""),
            ("cat; echo $((6 * 7))", 0, b"42\n"),
            ("echo ü; printf '\\377\\0'; printf '\\r'", 0, b"\xc3\xbc\n\xff\0\r"),
            ("no-such-command", 127, b""),
            ("set -o pipefail; false | true", 1, b""),
            ("sleep 30 & jobs", 0, b"[1]+  Running                 sleep 30 &\n"),
            ("", 0, b""),
        ]
        for text, code, out in turns:
            found = await shell.send(text)
            assert (found.cause, found.code, found.stdout) == ("exited", code, out), (text, found)
        assert b"syntax error" in (await shell.send("if")).stderr
        await shell.close()

    within(test)


def test_a_python_keeps_its_state() -> None:
    async def test(box: local.Local) -> None:
        python = await box.session("python")
        turns = [
            ("import os; x = [1]\nx", 0, b"[1]\n"),
            ("x.append(2)", 0, b""),
            ("def f(n):\n    return x[n]", 0, b""),
            ("print('said'); f(1)", 0, b"said\n2\n"),
            ("_", 0, b"2\n"),
            ("f(9)", 1, b""),
            ("def f(:", 1, b""),
            ("input()", 1, b""),
            ("__name__, f.__module__", 0, b"('__main__', '__main__')\n"),
            ("import subprocess; subprocess.run(['cat']).returncode", 0, b"0\n"),
        ]
        for text, code, out in turns:
            found = await python.send(text)
            assert (found.cause, found.code, found.stdout) == ("exited", code, out), (text, found)
        assert b'File "<turn 4>", line 2, in f\n    return x[n]' in (await python.send("f(9)")).stderr
        await python.close()

    within(test)


FORGERY = """
import os, glob
lines = [line for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline")
         for line in [open(path, "rb").read()] if path]
for word in (b"0 \\0", b"0 0000000000000000\\0", *lines):
    for fd in range(30):
        try: os.write(fd, word)
        except OSError: pass
    for path in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            if "socket" in os.readlink(path): open(path, "wb").write(word)
        except OSError: pass
"""


@pytest.mark.parametrize("language", ["shell", "python"])
def test_what_a_program_writes_does_not_end_the_turn(language: str) -> None:
    async def test(box: local.Local) -> None:
        await box.put("forge.py", FORGERY.encode())
        session = await box.session(language)  # type: ignore[arg-type]
        run = "python3 forge.py >/dev/null 2>&1; sleep 0.3; echo end"
        text = run if language == "shell" else f"import os; os.system({run!r})"
        for _ in range(2):
            found = await session.send(text)
            assert (found.cause, found.code) == ("exited", 0), found
            assert found.stdout.endswith(b"end\n" if language == "shell" else b"end\n0\n")

    within(test)


def test_a_shell_that_lies_about_its_turn_fools_but_itself() -> None:
    """In the shell itself all is in reach: descriptor 10 is where bash keeps its input, and the word can be read."""
    lie = "word=${PROMPT_COMMAND#*%d }; word=${word%%\\\\*}; "

    async def test(box: local.Local) -> None:
        shell = await box.session()
        digits = "9" * 3000
        assert (await shell.send(f"{lie} printf '{digits} %s\\0' $word >&10; false")).code == 1
        assert (await shell.send(f"{lie} printf '7 %s\\0' $word >&10; sleep 0.2; echo late")).code == 7
        await asyncio.sleep(0.3)
        assert (await shell.send("true")).code == 0
        flood = await shell.send("for i in {1..9999}; do printf 'x\\0' >&10; done", seconds=1)
        assert (flood.cause, shell.ended is not None) == ("deadline", True)

    within(test)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("shell", "sleep 60; echo not"),
        ("shell", "f() { while :; do :; done; }; f; echo not"),
        ("shell", "(sleep 60; echo not) | cat"),
        ("python", "import time; time.sleep(60); print('not')"),
        ("python", "import subprocess; subprocess.run(['sleep', '60'])"),
    ],
)
def test_a_turn_past_its_limit_is_interrupted_and_the_session_goes_on(language: str, text: str) -> None:
    async def test(box: local.Local) -> None:
        session = await box.session(language)  # type: ignore[arg-type]
        await session.send("x=5")
        found = await session.send(text, seconds=0.3)
        assert (found.cause, found.code, session.ended) == ("deadline", 130, None), found
        assert re.fullmatch(r"wall clock [\d.]+ s of 0.3 s; interrupted", found.evidence)
        assert b"not" not in found.stdout
        assert (await session.send("echo $x" if language == "shell" else "x")).stdout == b"5\n"

    within(test)


def test_what_does_not_heed_an_interrupt_is_killed_and_the_session_says_so() -> None:
    async def test(box: local.Local) -> None:
        session = await box.session()
        found = await session.send("echo said; trap '' INT; sleep 60; sleep 60", seconds=0.3)
        assert (found.cause, found.stdout) == ("deadline", b"said\n")
        assert found.evidence.endswith("interrupted, killed: the session has ended")
        assert session.ended is not None
        assert session.ended.cause == (await session.send("echo x")).cause == "deadline"
        assert (await box.exec(["sh", "-c", "echo /proc/[0-9]*"])).stdout == b"/proc/1 /proc/2\n"

    within(test)


def test_the_end_of_a_session_is_that_of_its_command() -> None:
    async def test(box: local.Local) -> None:
        for language, text, cause, code in (
            ("shell", "exit 3", "exited", 3),
            ("shell", "kill -SEGV $$", "signalled", 11),
            ("shell", "exec 10<&-", "exited", 0),
            ("python", "raise SystemExit(4)", "exited", 4),
            ("python", "import os; os.closerange(3, 99)", "exited", 1),
            ("python", "import os; os.abort()", "signalled", 6),
        ):
            session = await box.session(language)  # type: ignore[arg-type]
            found = await session.send(f"echo last; {text}" if language == "shell" else f"print('last'); {text}")
            assert (found.cause, found.code, found.stdout) == (cause, code, b"last\n")
            again = await session.send("echo more")
            assert (again.cause, again.code, again.stdout) == (cause, code, b"")
            await session.close()

    within(test)


def test_too_much_output_ends_the_turn_and_not_the_session() -> None:
    async def test(box: local.Local) -> None:
        shell = await box.session()
        for _ in range(2):
            found = await shell.send("yes")
            assert (found.cause, found.truncated, found.stdout) == ("output", True, b"y\n" * 2048)
            assert found.evidence == "more than 4096 bytes; interrupted"
        for _ in range(20):  # it ends by itself, or is interrupted: both leave nothing to the next turn
            found = await shell.send("head -c 9999 /dev/zero")
            assert (found.cause, found.truncated, found.stdout) == ("output", True, bytes(4096))
            found = await shell.send("echo a; echo b >&2")
            assert (found.cause, found.stdout, found.stderr) == ("exited", b"a\n", b"b\n")
        found = await shell.send("yes | head -c 4096; echo no >&2")
        assert (found.cause, len(found.stdout), found.stderr) == ("exited", 4096, b"no\n")

    within(test)


# it waits, so that it is seen also where the number of processes is only sampled
BOMB = "import os, time\ntry:\n while True: os.fork()\nexcept OSError:\n time.sleep(1)\n raise"


@pytest.mark.parametrize(
    ("text", "cause", "evidence"),
    [
        ("python3 -c 'x = [bytearray(1 << 20) for _ in range(4000)]'", "oom", "oom_kill|resident"),
        ("python3 -c '" + BOMB + "'", "pids", "max=|tasks"),
        ("cat /dev/zero > a; cat /dev/zero > b; cat /dev/zero > c; false", "disk", "tmpfs full"),
    ],
)
def test_a_turn_has_the_evidence_of_a_command(text: str, cause: str, evidence: str) -> None:
    async def test(box: local.Local) -> None:
        shell = await box.session()
        found = await shell.send(text, seconds=30)
        assert found.cause == cause, found
        assert any(word in found.evidence for word in evidence.split("|"))
        if shell.ended is None:
            await shell.send("rm -f a b c")
            assert (await shell.send("false")).cause == "exited"

    within(test)


# ---- beside other commands ----


def test_files_and_commands_go_on_beside_sessions() -> None:
    async def test(box: local.Local) -> None:
        one, two = await asyncio.gather(box.session(), box.session("python"))
        await box.put("a", b"1")
        assert (await one.send("cat a; echo 2 > b")).stdout == b"1"
        assert (await two.send("open('b').read()")).stdout == b"'2\\n'\n"
        slow = asyncio.create_task(one.send("until test -e go; do sleep 0.05; done; echo slow", seconds=50))
        assert await box.get("b") == b"2\n"
        assert (await box.exec(["cat", "b"])).stdout == b"2\n"
        assert (await two.send("1")).stdout == b"1\n"
        await box.put("go", b"")
        assert (await slow).stdout == b"slow\n"
        state = await box.snapshot()
        assert (await one.send("echo $((40 + 2)); rm a")).stdout == b"42\n"
        await box.rollback(state)
        assert await box.get("a") == b"1"
        with pytest.raises(FaultError):
            await one.send("true")

    within(test)


def test_closing_a_session_ends_all_that_it_started() -> None:
    async def test(box: local.Local) -> None:
        shell = await box.session()
        await shell.send("setsid sleep 60 & (trap '' INT TERM; sleep 60) &")
        await shell.close()
        with pytest.raises(FaultError, match="closed"):
            await shell.send("true")
        other = await box.session("python")
        await box.close()
        with pytest.raises(FaultError):
            await other.send("1")

    within(test)


def test_a_cancelled_turn_ends_its_session_and_not_the_sandbox() -> None:
    async def test(box: local.Local) -> None:
        shell = await box.session()
        running = asyncio.create_task(shell.send("sleep 60", seconds=60))
        await asyncio.sleep(0.2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert shell.ended is not None
        assert (await box.exec(["echo", "here"])).stdout == b"here\n"

    within(test)


def test_sessions_that_are_cancelled_while_they_begin_leave_nothing() -> None:
    async def test(box: local.Local) -> None:
        await (await box.session()).close()
        before = len(list(Path("/proc/self/fd").iterdir()))
        for delay in range(24):
            beginning = asyncio.create_task(box.session())
            await asyncio.sleep(delay * 0.0005)
            beginning.cancel()
            (session,) = await asyncio.gather(beginning, return_exceptions=True)
            if not isinstance(session, BaseException):
                await session.close()
        assert (await box.exec(["echo", "here"])).stdout == b"here\n"
        assert len(list(Path("/proc/self/fd").iterdir())) == before

    within(test)


def test_a_session_that_cannot_begin_says_why() -> None:
    async def test(box: local.Local) -> None:
        with pytest.raises(MissingError, match="no shell for a session"):
            await box.session()

    within(test, SandboxSpec(env={"PATH": "/nowhere"}))


# ---- terminals ----


def test_a_terminal_has_a_size_and_keys() -> None:
    async def shows(terminal: local.sessions.Terminal, keys: bytes, expected: bytes) -> None:
        await terminal.write(keys)
        screen = b""
        for _ in range(20):
            screen += await terminal.read(0.5)
            if expected in screen:
                return
        raise AssertionError(f"expected {expected!r} on {screen!r}")

    async def test(box: local.Local) -> None:
        terminal = await box.terminal(["sh"], rows=30, columns=100)
        await shows(terminal, b"stty size; tty\n", b"30 100\r\n/dev/pts/")
        terminal.resize(10, 20)
        await shows(terminal, b"stty size\n", b"10 20\r\n")
        await shows(terminal, b"sleep 60; echo $((6 * 7))\n", b"60")
        await shows(terminal, b"\x03", b"^C")
        await shows(terminal, b"trap 'echo wi''nch' WINCH\n", b"$")
        terminal.resize(11, 21)
        await shows(terminal, b"\n", b"winch")
        await shows(terminal, b"yes\n", b"y\r\ny\r\n")
        await shows(terminal, b"\x03\n", b"$")
        await terminal.write(b"exit 3\n")
        while terminal.ended is None:
            await terminal.read()
        assert (terminal.ended.cause, terminal.ended.code) == ("exited", 3)
        await terminal.close()

    within(test)


# ---- output as it comes ----


def test_output_is_heard_when_it_comes_and_stays_bounded() -> None:
    heard: list[tuple[float, int, bytes]] = []

    def hear(stream: int, data: bytes) -> None:
        heard.append((time.monotonic(), stream, data))

    async def test(box: local.Local) -> None:
        found = await box.exec(["sh", "-c", "printf '\\377'; sleep 0.4; echo b >&2; echo c"], heard=hear)
        assert (found.cause, found.stdout, found.stderr) == ("exited", b"\xffc\n", b"b\n")
        assert heard[0][1:] == (0, b"\xff")
        assert heard[-1][0] - heard[0][0] > 0.3
        heard.clear()
        found = await box.exec(["yes"], heard=hear)
        assert (found.cause, found.truncated, found.stdout) == ("output", True, b"y\n" * 2048)
        assert b"".join(data for _, _, data in heard) == found.stdout

    within(test)


@pytest.mark.skipif(os.geteuid() != 0, reason="is a plain user already")
@pytest.mark.timeout(300)
def test_what_depends_on_privilege_as_a_plain_user(
    as_plain_user: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    chosen = "evidence or terminal or beside or too_much"
    suite = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, str(Path(__file__)))
    done = as_plain_user(*suite, seconds=280)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
