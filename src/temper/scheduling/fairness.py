"""Which domain the next group comes from, so that the tokens that training *used* follow the shares.

Deficit round robin in its virtual-time form: every domain has an account of useful tokens, a group is charged with its
domain's mean when it is opened, with its own tokens once they are all there, and settled with what was used of it when
it is trained or dropped; the domain whose account is smallest relative to its share comes next. Dispatch is not what
counts: slow domains, masked samples and groups from which nothing could be learnt would cost their domain its share.

A group without a gradient settles at a quarter of its tokens, not at nothing: a domain that teaches nothing gets at
most four times its share of rollouts, instead of all of them. What it is *worth* to go on with it is the curriculum's
question (`curriculum`), which changes the shares and keeps their floors.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from temper.core.errors import ConfigError

USELESS = 0.25
MEMORY = 0.0025  # least weight of a new group in its domain's mean, whose noise is charged to all open groups


class Shares:
    """Accounts of domains. All moves are O(log domains)."""

    def __init__(self, shares: Mapping[str, float]) -> None:
        self.used = dict.fromkeys(shares, 0.0)  # settled, useful tokens
        self.open = dict.fromkeys(shares, 0)  # groups that are charged with the mean
        self.done = dict.fromkeys(shares, 0.0)  # tokens of complete groups that are not settled
        self.mean: dict[str, float] = {}  # tokens of a group
        self.any = 1.0  # the same over all domains, for one that is not measured yet
        self._measured = dict.fromkeys(shares, 0)
        self._all = 0
        self._heap: list[tuple[float, str, int]] = []
        self._stamp = dict.fromkeys(shares, 0)
        self.set(shares)

    def set(self, shares: Mapping[str, float]) -> None:
        """New relative weights, for instance the curriculum's; accounts begin level with what each domain used."""
        if not shares or min(shares.values()) < 0 or sum(shares.values()) <= 0:
            raise ConfigError(f"domain shares must be positive numbers, got {dict(shares)}")
        if shares.keys() != self.used.keys():
            raise ConfigError(f"shares name {sorted(shares)}, the run has {sorted(self.used)}")
        total = sum(shares.values())
        self.target = {name: share / total for name, share in shares.items()}
        self._base = dict(self.used)
        self._heap = []
        for name in shares:
            self._push(name)

    def charge(self, name: str = "") -> str:
        """Open a group of `name`, or of the domain whose turn it is."""
        while not name:
            _, found, stamp = heapq.heappop(self._heap)
            name = found if stamp == self._stamp[found] else ""
        self.open[name] += 1
        self._push(name)
        return name

    def complete(self, name: str, tokens: float) -> None:
        """All tokens of an open group are there."""
        self.open[name] -= 1
        self.done[name] += tokens
        if not tokens:
            return
        self._measured[name] += 1
        weight = max(1 / self._measured[name], MEMORY)
        self.mean[name] = self.mean.get(name, 0.0) * (1 - weight) + weight * tokens
        self._all += 1
        self.any += max(1 / self._all, MEMORY) * (tokens - self.any)
        self._push(name)

    def settle(self, name: str, tokens: float, useful: bool = True) -> None:
        """A complete group was trained; `useful`: it had a gradient."""
        self.done[name] -= tokens
        self.used[name] += tokens if useful else USELESS * tokens
        self._push(name)

    def drop(self, name: str, tokens: float | None = None) -> None:
        """An open group, or a complete one of so many tokens, will not be trained."""
        if tokens is None:
            self.open[name] -= 1
        else:
            self.done[name] -= tokens
        self._push(name)

    def credit(self, name: str, tokens: float) -> None:
        """A group that an earlier process of the run trained."""
        self.charge(name)
        self.complete(name, tokens)
        self.settle(name, tokens)

    @property
    def realised(self) -> dict[str, float]:
        """Share of useful tokens by domain so far."""
        total = sum(self.used.values()) or 1.0
        return {name: used / total for name, used in self.used.items()}

    @property
    def worst(self) -> tuple[str, float]:
        """The domain farthest below its target, and realised over target."""
        found = self.realised
        return min(((n, found[n] / t) for n, t in self.target.items() if t), key=lambda pair: (pair[1], pair[0]))

    def _push(self, name: str) -> None:
        if not self.target[name]:
            return
        group = self.mean.get(name, self.any)
        tokens = self.used[name] - self._base[name] + self.done[name] + (self.open[name] + 1) * group
        account = tokens / self.target[name]
        self._stamp[name] += 1
        heapq.heappush(self._heap, (account, name, self._stamp[name]))
