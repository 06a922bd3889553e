"""Pacing in a frozen order, for runs that must come out bit for bit alike: time decides nothing.

The groups of a step are a wave. They are opened together and in order, sampled whole by one version, eta steps before
they are trained, and trained in order; no wave is opened before the last one is complete, and no step is taken while
anything runs. So which task a group has, which version sampled it and which step trains it depend on numbers alone, not
on who ended first, and a run that was killed goes on to the same batches. The price: nobody works while a wave waits
for its longest sample. Domains take turns by their shares of groups, not of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

from temper.core.errors import ConfigError
from temper.scheduling.fairness import Shares
from temper.scheduling.pacing import Config, Pacing, Ticket, Wait


class Waves(Pacing):
    """Takes the place of `Pacing`. What is numbered alike is equal in any two runs, as long as no sample fails."""

    def __init__(self, config: Config, shares: Mapping[str, float], version: int = 0, until: int | None = None) -> None:
        super().__init__(config, shares, version, until)
        if config.spare:
            raise ConfigError(f"spare is {config.spare}: in a frozen order nothing is cancelled, so it must be 0")
        self.size = config.batch // config.group
        self._turns = Shares(shares)
        self._dealt: list[str] = []  # the domain of each group from the first on
        self._flat: set[int] = set()

    def admit(self) -> Ticket | Wait:
        if self.config.capacity and self.running >= self.config.capacity:
            return Wait(f"capacity: {self.running} of {self.config.capacity} samples are running")
        self._take()
        due = list(self.groups)
        number = next((n for n in due if self.groups[n].waiting), None)
        if number is not None:
            return self._start(number, "next in the frozen order")
        if len(due) < self._wanted and (len(due) % self.size or self._complete(due)):
            return self._open()
        return Wait(f"wave: of {len(due)} groups some run")

    def batch(self) -> list[int] | Wait:
        due = list(self.groups)
        if len(due) < self._wanted or not self._complete(due):
            return Wait(f"wave: {len(due)} of {self._wanted} groups are open, and some of them run")
        return due[: self.size]

    def refill(self, group: int, flat: bool) -> list[int]:
        """Decided once the group's wave is complete, in the order of its groups."""
        if flat:
            self._flat.add(group)
        first = list(self.groups).index(group) // self.size * self.size
        wave = list(self.groups)[first : first + self.size]
        if len(wave) < self.size or not self._complete(wave):
            return []
        return self._dropped([n for n in wave if n in self._flat], self.due(group))

    def due(self, group: int) -> int:
        return self.version + list(self.groups).index(group) // self.size

    @property
    def _wanted(self) -> int:
        """Groups that are there when a step is taken."""
        waves = self.config.eta + 1
        return self.size * (waves if self.until is None else min(waves, self.until - self.version))

    def _complete(self, groups: list[int]) -> bool:
        return all(self.groups[number].complete for number in groups)

    def _overdue(self) -> list[int]:
        return []  # a wave's age is what its number says; versions that a crash lost come again, bit for bit

    def _domain(self) -> str:
        while len(self._dealt) <= self.next_group:
            self._dealt.append(self._turns.charge())
        return self._dealt[self.next_group]
