"""Commands that go on between turns: a shell or a Python that keeps its state, and a terminal.

Each runs on a lane of its sandbox (a socket and a process of its own), so files go in and out and other commands run
meanwhile. The end of a turn is told on a socket that is neither stdout nor inherited by what the turn starts, with a
word that is new for each turn: output cannot forge it. A turn past its limit is interrupted (SIGINT); what does not
heed that is killed, and the session is over, as it is with its sandbox, or a rollback of that. Processor time is
counted over all turns; output, evidence and the wall clock by turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import shlex
import signal
from collections import deque
from functools import cache
from pathlib import Path
from typing import Literal, Self

from msgspec import structs

from temper.core.blame import FaultError
from temper.core.errors import MissingError
from temper.core.task import SandboxSpec
from temper.core.trace import Cause, Exit
from temper.sandboxes import evidence, wire

Language = Literal["shell", "python"]
_PATIENCE = 2.0  # seconds for an interrupted turn to end
_LONGEST = 7 * 86400.0  # seconds of a session
_NOISE = re.compile(rb"^bash: \[[^\]\n]*\] tcsetattr: [^\n]*\n", re.M)  # an interactive bash misses its terminal


class _Conversation:
    """A command on a lane, and what it said since it was last asked."""

    def __init__(self, lane: wire.Channel, spec: SandboxSpec, request: bytes) -> None:
        self._lane = lane
        self._spec = spec
        self._said = (bytearray(), bytearray())
        self._over = False
        self._turns: deque[wire.Ending] = deque()
        self._news = asyncio.Event()
        self._lost: FaultError | None = None
        self.ended: Exit | None = None  # how the whole command ended
        self._running = asyncio.create_task(self._run(request))

    async def _run(self, request: bytes) -> None:
        try:
            reply = await self._lane.call(wire.EXEC, request, _LONGEST, "a session to end", heard=self._hear)
            ending = wire.unpack_ending(reply)
            if ending.ended == "cancelled":
                self.ended = Exit(cause="signalled", code=signal.SIGKILL, evidence="killed by its owner")
            elif (found := evidence.exit_of(ending, self._spec, _LONGEST)).cause == "backend-lost":
                self._lost = FaultError("backend-lost", "sandboxes.sessions", found.evidence)
            else:
                self.ended = found
        except FaultError as error:
            self._lost = error
        finally:
            self._lane.close()
            self._news.set()

    async def begun(self) -> Self:
        """It, when its request is out: what it is told comes after that."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            await self.close()
            raise
        return self

    def _hear(self, kind: int, payload: bytes) -> None:
        if kind == wire.TURN:
            self._turns.append(wire.unpack_ending(payload))
        elif data := payload[4:]:
            self._said[wire.NUMBER.unpack(payload[:4])[0]].extend(data)
        else:
            self._over = True
        self._news.set()

    async def _heard(self, seconds: float) -> bool:
        """Waits for anything new."""
        self._news.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._news.wait()
        return False

    def _take(self) -> tuple[bytes, bytes]:
        out, err = (bytes(said) for said in self._said)
        for said in self._said:
            said.clear()
        return out, err

    async def _kill(self) -> None:
        if not self._running.done():
            self._lane.tell(wire.KILL)
        await self._running

    async def close(self) -> None:
        """Everything that runs in it is dead when this returns."""
        self._lost = self._lost or FaultError("backend-lost", "sandboxes.sessions", "the session is closed")
        await self._kill()


class Session(_Conversation):
    """Turns with a shell or a Python. One turn at a time."""

    def __init__(self, lane: wire.Channel, spec: SandboxSpec, request: bytes, language: Language) -> None:
        super().__init__(lane, spec, request)
        self._language = language
        self._one = asyncio.Lock()
        self._status = 0

    async def begun(self) -> Self:
        """It, when its first, empty turn is over, which is when its greeting can be dropped."""
        await super().begun()
        done = await self.send("set +H +o history" if self._language == "shell" else "", 20.0)
        if not done.ok:
            await self.close()
            raise MissingError(f"no {self._language} for a session in this sandbox: {done.evidence} {done.text[-300:]}")
        return self

    async def send(self, text: str, seconds: float = 10.0) -> Exit:
        """Runs `text`; how that turn ended. Its cause is `exited`, with the status, when the session can go on.

        Past `seconds` (or the output limit) the cause is `deadline` (`output`), and `ended` says whether it was killed.
        On a session that has ended, the answer is that end. Raises FaultError("backend-lost").
        """
        if "\0" in text:
            return Exit(cause="exited", code=2, stderr=b"a turn cannot contain NUL\n", evidence="status 2")
        async with self._one:
            try:
                return await self._turn(text, seconds)
            except asyncio.CancelledError:
                await self._kill()
                raise

    async def _turn(self, text: str, seconds: float) -> Exit:
        word = self._begin(text)
        loop = asyncio.get_running_loop()
        began = loop.time()
        turn = await self._end_of(word, seconds)
        late = loop.time() - began
        if not self._over and (turn is not None or not self._live()):
            return self._result(turn)
        cause: Cause = "output" if self._over else "deadline"
        proof = f"more than {self._spec.output} bytes" if self._over else f"wall clock {late:.3f} s of {seconds:g} s"
        if turn is None and self._live():
            self._lane.tell(wire.INTERRUPT)
            turn = await self._end_of(word, _PATIENCE, patient=True)
            proof += "; interrupted"
        if turn is None:
            await self._kill()
            proof += ", killed: the session has ended"
        found = self._result(turn, cause, proof)
        if self._live():  # an interrupt that came late is answered in a turn of its own
            await self._end_of(self._begin(""), _PATIENCE, patient=True)
            self._take()
        return found

    def _begin(self, text: str) -> str:
        """Gives the word that will end the turn."""
        word = secrets.token_hex(8)
        self._over = False
        if self._live():
            self._lane.tell(wire.INPUT, self._phrase(text, word))
        return word

    async def _end_of(self, word: str, seconds: float, patient: bool = False) -> wire.Ending | None:
        """The turn's end. None: the session ended, the time is up or, unless `patient`, there is too much output."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while True:
            while self._turns:
                turn = self._turns.popleft()
                for status, _, said in (record.partition(b" ") for record in turn.stdout.split(b"\0")):
                    if said == word.encode() and status.isdigit() and len(status) <= 3:
                        return structs.replace(turn, code=int(status), ended="exited")
            if not self._live() or (self._over and not patient) or not await self._heard(end - loop.time()):
                return None

    def _result(self, turn: wire.Ending | None, cause: Cause | None = None, proof: str = "") -> Exit:
        if self._lost is not None:
            raise self._lost
        found = self.ended or Exit(cause="exited")
        if turn is not None:
            self._status = turn.code
            found = evidence.exit_of(turn, self._spec, 0.0)
        if cause:
            found = structs.replace(found, cause=cause, evidence=proof)
            self.ended = self.ended and found
        out, err = self._take()
        return structs.replace(found, stdout=out, stderr=_NOISE.sub(b"", err), truncated=self._over)

    def _live(self) -> bool:
        return self.ended is None and self._lost is None

    def _phrase(self, text: str, word: str) -> bytes:
        if self._language == "python":
            return b"%s\0%s\0" % (text.encode("utf-8", "surrogateescape"), word.encode())
        tell = shlex.quote(f'printf "%d {word}\\0" $? >&0')
        before = f"(exit {self._status}); " if self._status else ""
        return f"PROMPT_COMMAND={tell}; {before}eval {_quoted(text)} </dev/null\n".encode("utf-8", "surrogateescape")


class Terminal(_Conversation):
    """A program at a terminal: keys in, the bytes of its screen out."""

    async def write(self, keys: bytes) -> None:
        self._lane.tell(wire.INPUT, keys)

    async def read(self, seconds: float = 1.0, quiet: float = 0.1) -> bytes:
        """What it showed: waits up to `seconds`, but no longer than `quiet` after something came.

        When the spec's `output` was shown and not read, the program waits. Raises FaultError("backend-lost").
        """
        end = asyncio.get_running_loop().time() + seconds
        while self.ended is None and self._lost is None:
            left = end - asyncio.get_running_loop().time()
            if not await self._heard(min(left, quiet) if self._said[0] else left):
                break
        if self._lost is not None:
            raise self._lost
        shown = self._take()[0]
        if shown:
            self._lane.tell(wire.INPUT)  # there is room again
        return shown

    def resize(self, rows: int, columns: int) -> None:
        self._lane.tell(wire.RESIZE, wire.SIZE.pack(rows, columns))


@cache
def command(language: Language) -> tuple[str, ...]:
    if language == "shell":
        return ("bash", "--noprofile", "--norc", "--noediting", "-i")
    return ("python3", "-I", "-u", "-c", Path(__file__).with_name("repl.py").read_text())


def _quoted(text: str) -> str:
    """One word on one line, since an interactive bash reads ahead by lines."""
    plain = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"$'{plain}'"
