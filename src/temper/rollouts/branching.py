"""One conversation that goes on in several ways: forked at a turn with its world, for credit by comparison.

Up to the fork it is one episode, sampled and paid once; then each child goes on in a fork of the environment with a
seed of its own. The result is one trace, a tree of segments with a leaf for each child. Where the fork comes, and what
is made of the leaves, is the caller's business (`training.algorithms.branches`).
"""

from __future__ import annotations

import asyncio

from msgspec import Struct
from msgspec.structs import replace

from temper.core.blame import FaultError
from temper.core.protocols import Environment
from temper.core.trace import Cost, Trace, Verdict
from temper.rollouts.episode import Episode, turn_seed


class Branch(Struct, frozen=True, eq=False):
    """A leaf of a tree as the trace of one conversation; `places`: the indices of its segments in the tree."""

    trace: Trace
    artifacts: dict[str, bytes]
    places: tuple[int, ...]

    def placed(self, verdict: Verdict) -> Verdict:
        """The verdict on this conversation as one on the tree's leaf."""
        rewards = {self.places[segment]: reward for segment, reward in verdict.rewards.items()}
        return replace(verdict, leaf=self.places[-1] if self.places else -1, rewards=rewards)


async def run_branches(trunk: Episode, turn: int, children: int) -> tuple[Trace, list[Branch]]:
    """Play an episode that has not begun. The tree, and its branches: one where it ended before `turn`."""
    twins: list[Episode] = []
    shared = 0
    if await trunk.play(until=turn):
        shared = len(trunk.segments)
        try:
            worlds = await trunk.world(trunk.environment.fork(children - 1), "fork")
        except FaultError as error:
            trunk.fault = error.fault
            await trunk.close()
        else:
            twins = [_twin(trunk, world, number) for number, world in enumerate(worlds, 1)]
            await asyncio.gather(*(episode.play() for episode in (trunk, *twins)))
    return _tree(trunk, twins, shared)


def _twin(trunk: Episode, environment: Environment, number: int) -> Episode:
    return Episode(
        trunk.task,
        environment,
        trunk.model,
        replace(trunk.params, seed=turn_seed(trunk.params.seed, -number)),
        trunk.id,
        trunk.clock,
        messages=[*trunk.messages],
        segments=[*trunk.segments],
        path=[*trunk.path],
        history=[*trunk.history],
        before=trunk.cost,
        turn=trunk.turn,
    )


def _tree(trunk: Episode, twins: list[Episode], shared: int) -> tuple[Trace, list[Branch]]:
    """The first `shared` segments are everyone's; each twin's own follow those of the one before."""
    segments = list(trunk.segments)
    branches = [Branch(trunk.trace(), trunk.artifacts, tuple(range(len(segments))))]
    for twin in twins:
        shift = len(segments) - shared
        own = twin.segments[shared:]
        segments += [replace(s, parent=s.parent + shift) if s.parent >= shared else s for s in own]
        places = (*range(shared), *range(len(segments) - len(own), len(segments)))
        branches.append(Branch(twin.trace(), twin.artifacts, places))
    whole = next((b.trace for b in branches if b.trace.fault is None), branches[0].trace)
    tree = replace(
        whole,
        seed=trunk.params.seed,
        segments=tuple(segments),
        events=tuple(event for episode in (trunk, *twins) for event in episode.events),
        cost=sum((episode.cost for episode in (trunk, *twins)), Cost()),
    )
    return tree, branches
