"""Engine replicas on paper: `replicas` whose decode step grows with what runs there.

Every running session makes one token a step, and a step takes `speed.step(running)`. So one counter a replica says how
many tokens a session has made since it began, a session ends when the counter has grown by its tokens, and cache in use
grows by as much for every one that runs: a change costs O(log n), not a visit to each. While a replica stands still
(it reads a prompt itself, loads weights, or lends its device to the trainer) its counter does.

Not modelled: steps that take longer for longer contexts (give `each` at the mean one), and time to copy a cache.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import Struct, field

from temper.scheduling import replicas
from temper.scheduling.pacing import Wait
from temper.scheduling.replicas import Freed, Placed, Replicas, Speed

PERIOD = 25  # decode steps, as at the limit, between two measures of every replica


class Session(Struct, eq=False, gc=False):
    """A rollout as replicas see it. `left`: tokens that it makes in this turn; `last`: no other turn follows."""

    group: int
    prompt: float
    tokens: float = 0.0  # its own that were read or made
    new: float = 0.0  # to be read before the turn
    left: float = 0.0
    last: bool = True
    replica: int = -1


class _Engine(Struct, eq=False):
    made: float = 0.0  # the counter
    since: float = 0.0  # its time; ahead of the clock while the replica stands still
    began: dict[Session, tuple[float, int]] = field(default_factory=dict)  # counter then, number of its entry in `ends`
    ends: list[tuple[float, int, Session]] = field(default_factory=list)  # heap by counter
    start: float = 0.0  # sum of the counters in `began`
    stamp: int = 0  # of its next event
    busy: float = 0.0


class Fleet:
    """`at(when, call)` is the simulation's calendar, `ended(session)` takes those whose turn is over; `read(session,
    seconds)` reads a prompt elsewhere and then calls `start`; without it replicas read prompts themselves.
    """

    def __init__(
        self, config: replicas.Config, speed: Speed, caches: list[float],
        at: Callable[[float, Callable[[], None]], None], ended: Callable[[Any], None],
        read: Callable[[Any, float], None] | None = None,
    ) -> None:  # fmt: skip
        self.replicas = Replicas(config, speed, caches)
        self.speed, self.at, self.ended, self.read = speed, at, ended, read
        self.engines = [_Engine() for _ in caches]
        self.waiting: deque[Session] = deque()
        self.now = self.prefilled = self._decoded = 0.0  # seconds; tokens
        self.migrated = self.preempted = self.expired = 0
        self._count = 0
        self._armed = False
        self._touched: set[int] = set()  # replicas whose next event may be another one now

    @property
    def decoded(self) -> float:
        """Tokens made, those of running sessions included."""
        return self._decoded + sum(len(e.began) * e.made - e.start for e in self.engines)

    @property
    def busy(self) -> float:
        """Seconds of replicas that read or made tokens."""
        return sum(engine.busy for engine in self.engines)

    def enter(self, session: Session, now: float) -> None:
        """It wants its turn. Those that ran before go first."""
        self.now = now
        (self.waiting.appendleft if session.tokens else self.waiting.append)(session)
        self._admit()

    def start(self, session: Session, now: float) -> None:
        """Its prompt is read."""
        self.now = now
        if session.replica < 0:  # its place was taken meanwhile
            self.enter(session, now)
            return
        engine = self._advanced(session.replica)
        self._count += 1
        engine.began[session] = (engine.made, self._count)
        engine.start += engine.made
        heapq.heappush(engine.ends, (engine.made + session.left, self._count, session))
        self._touched.add(session.replica)
        self._arm()

    def leave(self, session: Session, now: float) -> None:
        """It is cancelled, wherever it is."""
        self.now = now
        if session in self.waiting:
            self.waiting.remove(session)
        self._stop(session)
        self.replicas.ended(session)
        session.replica = -1
        self._admit()

    def pause(self, now: float, seconds: float, reread: bool = False) -> None:
        """All replicas stand still; `reread`: each reads what is in its cache again, as after new weights."""
        self.now = now
        for i in range(len(self.engines)):
            self._stall(i, seconds, self.speed.prefill * self._used(i) if reread else 0.0)

    def settle(self) -> None:
        """Put the next events of replicas in the calendar; to be called before time goes on."""
        for replica in self._touched:
            self._schedule(replica)
        self._touched.clear()

    def _admit(self) -> None:
        self.expired += len(self.replicas.tick(self.now))
        while self.waiting:
            session = self.waiting[0]
            placed = self.replicas.place(session, session.group, session.prompt, session.tokens, session.new)
            if isinstance(placed, Wait):
                return
            self.waiting.popleft()
            session.tokens, session.new = session.tokens + session.new, 0.0
            self._read(session, placed)

    def _read(self, session: Session, placed: Placed) -> None:
        session.replica = placed.replica
        self.prefilled += placed.prefill
        seconds = placed.prefill * self.speed.prefill
        if seconds and self.read:
            self.read(session, seconds)
            return
        if seconds:
            self._stall(placed.replica, 0.0, seconds)
        self.start(session, self.now)

    def _stall(self, replica: int, idle: float, reading: float) -> None:
        engine = self._advanced(replica)
        engine.since = max(engine.since, self.now) + idle + reading
        engine.busy += reading
        self._touched.add(replica)

    def _advanced(self, replica: int) -> _Engine:
        engine = self.engines[replica]
        span = self.now - engine.since
        if span > 0:
            if engine.began:
                engine.made += span / self.speed.step(len(engine.began))
                engine.busy += span
            engine.since = self.now
        return engine

    def _used(self, replica: int) -> float:
        engine = self._advanced(replica)
        return self.replicas.all[replica].tokens + len(engine.began) * engine.made - engine.start

    def _made(self, session: Session) -> float:
        engine = self.engines[session.replica]
        return min(session.left, engine.made - engine.began[session][0]) if session in engine.began else 0.0

    def _schedule(self, replica: int) -> None:
        """When its first session ends, or its cache is full."""
        engine, found = self.engines[replica], self.replicas.all[replica]
        engine.stamp += 1
        while engine.ends and engine.began.get(engine.ends[0][2], (0, 0))[1] != engine.ends[0][1]:
            heapq.heappop(engine.ends)
        if not engine.ends:
            return
        left, full = engine.ends[0][0] - engine.made, False
        if found.cache and len(found.running) > 1:
            used = found.tokens + len(engine.began) * engine.made - engine.start
            room = (found.cache - used) / len(engine.began)
            left, full = min(left, room), room < left
        when = max(self.now, engine.since + left * self.speed.step(len(engine.began)))
        self.at(when, partial(self._event, replica, engine.stamp, full, when))

    def _event(self, replica: int, stamp: int, full: bool, now: float) -> None:
        engine = self.engines[replica]
        if stamp != engine.stamp:
            return
        self.now = now
        self._advanced(replica)
        if full:
            cache = self.replicas.all[replica].cache
            if self._used(replica) > cache * (1 - 1e-6):  # else some of it was freed meanwhile
                self._give_up(self.replicas.measured(replica, cache * (1 + 1e-6), self._made))
            self._touched.add(replica)
            return
        session = engine.ends[0][2]
        self._stop(session, session.left)
        if session.last:
            self.replicas.ended(session)
        else:
            self.replicas.paused(session, session.tokens, now)
        self.ended(session)
        self._touched.add(replica)
        self._admit()

    def _stop(self, session: Session, made: float | None = None) -> None:
        """It makes no tokens any more, if it did."""
        if session.replica >= 0 and session in self._advanced(session.replica).began:
            made = self._made(session) if made is None else made
            engine = self.engines[session.replica]
            engine.start -= engine.began.pop(session)[0]
            session.tokens, session.left = session.tokens + made, session.left - made
            self._decoded += made
            self._touched.add(session.replica)

    def _give_up(self, freed: list[Freed]) -> None:
        for one in freed:
            session = one.session
            if not one.running:
                self.expired += 1
                continue
            self.preempted += 1
            decodes = session in self.engines[one.replica].began
            self._stop(session)
            session.replica = -1
            if decodes:  # else `start` comes when its prompt is read
                self.waiting.appendleft(session)
        self._admit()

    def _measure(self, when: float) -> None:
        """Every replica's use of its cache is told; sessions move to where they are faster."""
        self.now = when
        for i in range(len(self.engines)):
            if freed := self.replicas.measured(i, self._used(i), self._made):
                self._give_up(freed)
                self._touched.add(i)
        for placed in self.replicas.balance(self._made):
            session = placed.session
            self._stop(session)
            self.migrated += 1
            self._read(session, placed)
        self._admit()
        self._armed = False
        self._arm()

    def _arm(self) -> None:
        if not self._armed and any(engine.began for engine in self.engines):
            self._armed = True
            when = self.now + PERIOD * self.speed.step(self.replicas.config.limit)
            self.at(when, partial(self._measure, when))
