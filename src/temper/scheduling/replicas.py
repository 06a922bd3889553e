"""Which engine replica a session runs on, how many run there at once, and whose cache is given up. No I/O, no clock.

A session is one rollout's conversation; its *prefix* is what it shares with others (a group's prompt). The driver says
when it wants tokens (`place`), waits for a tool (`paused`) or ends, and reports measured cache use. The simulator does
so (`fleet`), and in real runs, as far as endpoints tell, `runs.endpoints`. Nobody queues here: where `place` gives a
Wait, the driver asks again once something changed. A replica that is `lost` gets nothing until it `admits` again.

*Affinity.* A session goes where its own cache or its prefix lies, unless that replica is fuller than the emptiest by
more than `tolerance`; then to the emptiest, and what it had must be read again. Fullness is running over admitted.

*Cache pressure.* A replica admits `limit` requests: `grow` more at every measure below `low` use of its cache while the
limit binds, `cut` times as many once use is above `high` (additive increase, multiplicative decrease; not again until
what runs is below the new limit). Above `high`, caches of sessions whose tools run are given up, the earliest deadline
first; above 1, running sessions are preempted, youngest progress first, and wait to be placed again. The one with most
progress is never preempted, so something always ends.

*Tools.* While its tool runs a session's cache is held for `hold` seconds; then it is given up and read again on return.

*Migration* (`balance`). A running session moves from the fullest replica to the emptiest while a step takes it less
there by more than the share `tolerance`, and the time it wins exceeds that of reading its cache again. What it will
still make is taken to be what it has made: lengths are heavy-tailed, and the longer a session has run, the longer it
will.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from msgspec import Struct, field

from temper.core.config import Amount, Positive, Some
from temper.core.errors import ConfigError
from temper.scheduling.pacing import Wait


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """limit: requests that a replica admits at first, and always where its cache is unbounded. Others: see above."""

    limit: Some = 256
    tolerance: Amount = 0.1
    hold: Amount = 30.0
    low: Positive = 0.75
    high: Positive = 0.9
    grow: Some = 4
    cut: Positive = 0.75

    def __post_init__(self) -> None:
        if not (self.low <= self.high <= 1 and self.cut < 1):
            raise ConfigError(f"expected low <= high <= 1 and cut < 1, got {self.low}, {self.high}, {self.cut}")


class Speed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measured seconds of a replica: to read a token, and of a decode step, `base` and `each` for every request."""

    prefill: Amount = 0.0
    base: Amount = 1.0
    each: Amount = 0.0

    def __post_init__(self) -> None:
        if not self.base + self.each:
            raise ConfigError("expected seconds of a decode step, got 0: give base or each")

    def step(self, requests: int) -> float:
        return self.base + self.each * requests


class Placed(Struct, frozen=True):
    """The session runs on the replica once `prefill` tokens are read there."""

    session: Any
    replica: int
    prefill: float
    why: str


class Freed(Struct, frozen=True):
    """The session's cache is given up. `running`: it ran, and has to be placed again."""

    session: Any
    replica: int
    running: bool
    why: str


class _Session(Struct, eq=False):
    replica: int
    prefix: Hashable
    shared: float  # tokens of its prefix
    tokens: float  # its own, as last told
    until: float = 0.0  # its cache is held so long


class _Replica(Struct, eq=False):
    cache: float  # tokens; 0 is unbounded
    limit: float
    running: dict[Hashable, _Session] = field(default_factory=dict)
    held: dict[Hashable, _Session] = field(default_factory=dict)
    tokens: float = 0.0  # of sessions here, as last told; a prefix counts once

    @property
    def load(self) -> float:
        return len(self.running) / int(self.limit) if self.limit else math.inf


class Replicas:
    """The state machine. `caches`: tokens that fit each replica's cache, 0 for any number."""

    def __init__(self, config: Config, speed: Speed, caches: Sequence[float]) -> None:
        if not caches:
            raise ConfigError("there must be at least one replica")
        self.config, self.speed = config, speed
        self.all = [_Replica(cache, config.limit) for cache in caches]
        self._sessions: dict[Hashable, _Session] = {}  # that run or are held
        self._homes: dict[Hashable, dict[int, int]] = {}  # by prefix: replica, sessions there
        self._levels: list[tuple[float, int]] = [(0.0, i) for i in range(len(caches))]  # (load, replica), some stale
        self._deadlines: list[tuple[float, int, Hashable]] = []
        self._count = 0

    def place(self, session: Hashable, prefix: Hashable, shared: float, tokens: float, new: float = 0) -> Placed | Wait:
        """Where a session that does not run goes on.

        `shared`: tokens of its prefix; `tokens`: its own that were read or made before; `new`: those to be read now.
        Raises ConfigError for more than a replica's cache.
        """
        emptiest = self._emptiest()
        least = self.all[emptiest].load
        if least >= 1:
            return Wait(f"cache: the emptiest replica runs all of the {self.all[emptiest].limit:.0f} that it admits")
        known = self._sessions.get(session)
        homes = {known.replica: 1} if known else self._homes.get(prefix) or {emptiest: 1}
        home = min(homes, key=lambda i: (self.all[i].load, i))
        load = self.all[home].load
        chosen = home if load < 1 and load <= least + self.config.tolerance else emptiest
        cache, whole = self.all[chosen].cache, shared + tokens + new
        if cache and whole > cache:
            raise ConfigError(f"{session} needs a cache of {whole:g} tokens, its replica has {cache:g}")
        if known and chosen == known.replica:
            prefill, why = new, "its cache is held there"
        elif chosen in self._homes.get(prefix, ()):
            prefill, why = tokens + new, "its prefix is there"
        else:
            prefill, why = whole, "it is the emptiest"
        if chosen != home:
            fuller = f"fuller by {load - least:.2f}" if load < math.inf else "lost"
            why += f"; the one with its cache is {fuller}"
        self.ended(session)
        self._enter(session, _Session(chosen, prefix, shared, tokens + new))
        return Placed(session, chosen, prefill, why)

    def paused(self, session: Hashable, tokens: float, now: float) -> None:
        """A tool runs; the session has so many tokens of its own. With `hold` 0 its cache is given up."""
        found = self._leave(session)
        if self.config.hold:
            found.tokens, found.until = tokens, now + self.config.hold
            self._count += 1
            heapq.heappush(self._deadlines, (found.until, self._count, session))
            self._enter(session, found)

    def ended(self, session: Hashable) -> None:
        """Nothing of it is wanted any more, whether it runs, is held or is not known."""
        if session in self._sessions:
            self._leave(session)

    def tick(self, now: float) -> list[Freed]:
        """Caches that were held for their time."""
        freed: list[Freed] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            until, _, session = heapq.heappop(self._deadlines)
            if session in self._sessions and self._sessions[session].until == until:
                freed.append(self._free(session, f"its tool runs for more than {self.config.hold:g} s"))
        return freed

    def lost(self, replica: int) -> None:
        """It answers no more: held caches are gone and nothing is placed there, until it `admits` again."""
        for session in list(self.all[replica].held):
            self._leave(session)
        self.admits(replica, 0)

    def admits(self, replica: int, limit: float) -> None:
        """From now on so many requests at once."""
        self.all[replica].limit = limit
        self._level(replica)

    def measured(self, replica: int, used: float, made: Callable[[Any], float]) -> list[Freed]:
        """The replica's cache holds so many tokens. `made`: tokens of a running session since it was placed."""
        found, config = self.all[replica], self.config
        most = config.high * found.cache
        if not found.cache or not found.limit:
            return []
        if used <= most:
            if used < config.low * found.cache and len(found.running) >= int(found.limit):
                self.admits(replica, found.limit + config.grow)
            return []
        full, freed = used > found.cache, list[Freed]()
        for session in sorted(found.held, key=lambda s: found.held[s].until):
            if used > most:
                used -= self._size(session)
                freed.append(self._free(session, "the cache is nearly full, and its tool still runs"))
        if used > most and len(found.running) <= int(found.limit):
            self.admits(replica, max(1.0, config.cut * len(found.running)))
        youngest = sorted(found.running, key=lambda s: found.running[s].tokens + made(s)) if full else []
        for session in youngest[:-1]:
            if used > most:
                used -= self._size(session) + made(session)
                freed.append(self._free(session, "the cache is full, and it has made least"))
        return freed

    def balance(self, made: Callable[[Any], float]) -> list[Placed]:
        """Running sessions that go on elsewhere; they are placed there already. `made`: as for `measured`."""
        moves: list[Placed] = []
        while len(moves) < len(self.all):
            target, source = self._emptiest(), max(range(len(self.all)), key=self._burden)
            here, there = self.all[source], self.all[target]
            slow = self.speed.step(len(here.running))
            faster = slow - self.speed.step(len(there.running) + 1)
            if faster <= self.config.tolerance * slow or not here.running:
                break
            ahead = {s: made(s) for s in here.running}
            prefill = {s: self._again(found, target) + ahead[s] for s, found in here.running.items()}
            session = max(ahead, key=lambda s: ahead[s] * faster - prefill[s] * self.speed.prefill)
            won = ahead[session] * faster - prefill[session] * self.speed.prefill
            if won <= 0:
                break
            why = f"a step takes {faster / slow:.0%} less than on replica {source}: {won:.3g} s are won"
            found = self._leave(session)
            found.replica, found.tokens = target, found.tokens + ahead[session]
            self._enter(session, found)
            moves.append(Placed(session, target, prefill[session], why))
        return moves

    def _burden(self, replica: int) -> float:
        return self.all[replica].load if self.all[replica].running else 0.0

    def _emptiest(self) -> int:
        while self._levels[0][0] != self.all[self._levels[0][1]].load:
            heapq.heappop(self._levels)
        return self._levels[0][1]

    def _level(self, replica: int) -> None:
        if len(self._levels) > 64 + 8 * len(self.all):  # stale ones that never surface
            self._levels = sorted((found.load, i) for i, found in enumerate(self.all))
        heapq.heappush(self._levels, (self.all[replica].load, replica))

    def _again(self, found: _Session, replica: int) -> float:
        """Its tokens, as last told, that the replica has not read."""
        return found.tokens + (0.0 if replica in self._homes[found.prefix] else found.shared)

    def _size(self, session: Hashable) -> float:
        """Tokens, as last told, that its replica is rid of without it."""
        found = self._sessions[session]
        return found.tokens + (found.shared if self._homes[found.prefix][found.replica] == 1 else 0.0)

    def _enter(self, session: Hashable, found: _Session) -> None:
        replica, homes = self.all[found.replica], self._homes.setdefault(found.prefix, {})
        homes[found.replica] = homes.get(found.replica, 0) + 1
        self._sessions[session] = found
        replica.tokens += self._size(session)
        (replica.held if found.until else replica.running)[session] = found
        self._level(found.replica)

    def _leave(self, session: Hashable) -> _Session:
        found = self._sessions[session]
        replica, homes = self.all[found.replica], self._homes[found.prefix]
        replica.tokens -= self._size(session)
        del self._sessions[session], (replica.held if found.until else replica.running)[session]
        homes[found.replica] -= 1
        if not homes[found.replica]:
            del homes[found.replica]
        if not homes:
            del self._homes[found.prefix]
        self._level(found.replica)
        found.until = 0.0
        return found

    def _free(self, session: Hashable, why: str) -> Freed:
        found = self._sessions[session]
        running = not found.until
        self._leave(session)
        return Freed(session, found.replica, running, why)
