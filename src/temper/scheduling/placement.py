"""Which attempt runs on which worker, and which task is to blame when workers die. Pure: no I/O, no clock.

An attempt goes to the worker that holds the fewest, and rather to one on which its task has not failed. Many attempts
share a worker, so that its death accuses them all. A task under which SUSPECTED workers died therefore gets the next
one to itself: whoever merely shared its workers ends well there, and a task under which CONVICTING workers died, the
last of them with nothing else on it, is the one that kills them.
"""

from __future__ import annotations

from msgspec import Struct

from temper.core.trace import Event, Trace

SUSPECTED, CONVICTING = 2, 3  # different workers that died under a task


class Placed(Struct, frozen=True):
    """An attempt is to start on a worker, and why there."""

    attempt: int
    worker: str
    why: str


class Placement:
    """`asked`, `ended`, `dropped`, `joined` and `lost` tell what happened; `next` says what starts."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once  # attempts of one worker
        self.running: dict[str, dict[int, str]] = {}  # by worker: its attempts and their tasks
        self.waiting: dict[int, str] = {}
        self._ward = ""  # the worker that is kept for one suspect at a time
        self._failed: dict[str, set[str]] = {}  # by task: workers on which it failed through no doing of the policy
        self._died: dict[str, set[str]] = {}  # by task: those of them that died

    def joined(self, worker: str) -> None:
        self.running[worker] = {}

    def asked(self, attempt: int, task: str) -> None:
        self.waiting[attempt] = task

    def next(self) -> Placed | None:
        """What starts now; None when all that wait need room. Ask again until then."""
        suspects = {task for task, died in self._died.items() if len(died) >= SUSPECTED}
        apart = next((a for a, task in self.waiting.items() if task in suspects), None) if suspects else None
        others = next((a for a, task in self.waiting.items() if task not in suspects), None)
        return self._alone(apart) or self._shared(others)

    def ended(self, attempt: int, failed: bool) -> None:
        """It came back. `failed`: through no doing of the policy."""
        worker = self._where(attempt)
        task = self.running[worker].pop(attempt)
        if failed:
            self._failed.setdefault(task, set()).add(worker)
        else:
            self._failed.pop(task, None)
            self._died.pop(task, None)

    def dropped(self, attempt: int) -> str:
        """Nobody wants it any more. Gives the worker that runs it, "" when none does."""
        worker = self._where(attempt)
        self.running.get(worker, self.waiting).pop(attempt, None)
        return worker

    def lost(self, worker: str) -> dict[int, bool]:
        """The worker died. Gives its attempts, and whether the death convicts their task."""
        held = self.running.pop(worker)
        for task in held.values():
            self._failed.setdefault(task, set()).add(worker)
            self._died.setdefault(task, set()).add(worker)
        return {a: len(held) == 1 and len(self._died[task]) >= CONVICTING for a, task in held.items()}

    def _alone(self, attempt: int | None) -> Placed | None:
        if self._ward not in self.running or (attempt is None and not self.running[self._ward]):
            self._ward = ""
        if attempt is None or not self.running:
            return None
        self._ward = self._ward or self._best(list(self.running), self.waiting[attempt])
        if self.running[self._ward]:
            return None  # still to be emptied, or the suspect before
        died = len(self._died[self.waiting[attempt]])
        return self._start(attempt, self._ward, f"alone, as {died} workers died under its task")

    def _shared(self, attempt: int | None) -> Placed | None:
        room = [w for w, held in self.running.items() if w != self._ward and len(held) < self.at_once]
        if attempt is None or not room:
            return None
        task = self.waiting[attempt]
        failed = sorted(self._failed.get(task, ()))
        why = "fewest attempts" + (f"; its task failed on {', '.join(failed)}" if failed else "")
        return self._start(attempt, self._best(room, task), why)

    def _best(self, workers: list[str], task: str) -> str:
        return min(workers, key=lambda w: (w in self._failed.get(task, ()), len(self.running[w])))

    def _start(self, attempt: int, worker: str, why: str) -> Placed:
        self.running[worker][attempt] = self.waiting.pop(attempt)
        return Placed(attempt, worker, why)

    def _where(self, attempt: int) -> str:
        return next((worker for worker, held in self.running.items() if attempt in held), "")


def told(trace: str, worker: str, why: str, when: float) -> Event:
    """The event by which a trace says where it was made, and why there."""
    return Event(when=when, what="placed", whom=trace, why=f"on {worker}: {why}", data={"worker": worker})


def worker_of(trace: Trace) -> str:
    """Where it was made, as it says; "" for the driver itself."""
    return next((event.data["worker"] for event in trace.events if "worker" in event.data), "")
