"""Rows of tokens to micro-batches: strict token cap, no padding, balanced cost, nothing dropped. Pure.

A row is a root-to-leaf path of a trace with its streams. Rows of one family (a group) share their untrained beginning
as one parent segment, so that it is computed once in a micro-batch; a family above the cap is split and its prompt
repeated. Tokens behind a row's last trained one cannot matter (attention is causal) and are cut off. A row above the
cap is refused by name.

Streams, float32, each entry for the *prediction of* its token:

    w_pg, w_ce, w_kl, ...   weight of the loss component `pg`, `ce`, `kl`, ...: 0 where the token is not trained, else
                            its share of the component's global count, so that the loss is a plain sum over
                            micro-batches and ranks (law 5)
    advantage               of the sample, at its trained tokens
    behaviour, version      log-prob at sampling and the policy version that sampled; version -1: not sampled
    proximal, reference     log-probs under these policies, where a stage gives them
    sequence                index of the row in its micro-batch (written here; -1 in shared prompts)

What a component weighs, and how its count is taken, is the stage's business and not known here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from temper.core.errors import ConfigError
from temper.core.trace import MicroBatch


class Row(Struct, frozen=True, kw_only=True, eq=False):
    """A path: ids (n,), streams (n,) each. `name` is for errors; rows of one `family` may share their beginning."""

    name: str
    ids: np.ndarray
    streams: dict[str, np.ndarray]
    family: str = ""

    @property
    def trained(self) -> np.ndarray:
        """bool (n,): tokens whose prediction has a weight in any component."""
        weights = [v != 0 for k, v in self.streams.items() if k.startswith("w_")]
        return np.logical_or.reduce(weights) if weights else np.zeros(len(self.ids), bool)


class Tree(Struct, frozen=True, eq=False):
    """What goes into one micro-batch whole: `shared` leading tokens once, then the rest of each row."""

    rows: tuple[Row, ...]
    shared: int

    @property
    def tokens(self) -> int:
        return self.shared + sum(len(r.ids) - self.shared for r in self.rows)

    @property
    def pairs(self) -> int:
        """n^2 of every row, the shared part's own square counted once."""
        return sum(len(r.ids) ** 2 - self.shared**2 for r in self.rows) + self.shared**2


def pack(
    rows: Sequence[Row], cap: int, linear: float = 1.0, quadratic: float = 1.5e-4, share: bool = True
) -> list[MicroBatch]:
    """Micro-batches of at most `cap` tokens, as few as first fit finds, balanced by linear * n + quadratic * n^2.

    A decoder of width d spends about 1 / (12 d) as much on a pair of tokens as on a token; the default is d = 576's.
    Rows that train nothing have no place here. Raises ConfigError for a row above the cap.
    """
    families: dict[str, list[Row]] = {}
    for i, row in enumerate(rows):
        row = _cut(row)
        if len(row.ids) > cap:
            raise ConfigError(
                f"sample {row.name} has {len(row.ids)} tokens, above the cap of {cap} tokens a micro-batch: "
                "raise the trainer's micro_tokens, or lower the limits of its tasks"
            )
        families.setdefault(row.family if share and row.family else f"\0{i}", []).append(row)
    trees = [tree for family in families.values() for tree in _trees(family, cap)]
    costs = [linear * t.tokens + quadratic * t.pairs for t in trees]
    return [_flatten([trees[i] for i in part]) for part in spread(costs, [t.tokens for t in trees], cap)]


def spread(costs: Sequence[float], sizes: Sequence[int], cap: int) -> list[list[int]]:
    """Indices in bins of at most `cap` in size: the largest cost first, each to the bin that costs least and has room.

    The number of bins is the smallest for which that works, searched upward from the total size.
    """
    order = sorted(range(len(costs)), key=lambda i: (-costs[i], i))
    count = -(-sum(sizes) // cap)
    while (bins := _fill(order, costs, sizes, cap, count)) is None:
        count += 1
    return bins


def previous(batch: MicroBatch) -> np.ndarray:
    """For each token the index of the one before it on its path, whose hidden state predicts it; -1 at a root (T,)."""
    ends = np.cumsum(batch.lengths)
    before = np.arange(len(batch.ids)) - 1
    before[ends - batch.lengths] = np.where(batch.parents >= 0, ends[batch.parents] - 1, -1)
    return before


def _cut(row: Row) -> Row:
    at = np.flatnonzero(row.trained)
    assert at.size, f"row {row.name} trains nothing"
    assert at[0] > 0, f"row {row.name} trains its first token"
    end = int(at[-1]) + 1
    return Row(
        name=row.name, ids=row.ids[:end], streams={k: v[:end] for k, v in row.streams.items()}, family=row.family
    )


def _trees(family: list[Row], cap: int) -> list[Tree]:
    """Rows of a family in as few trees as the cap allows, evenly filled."""
    shared = _shared(family) if len(family) > 1 else 0
    sizes = [len(row.ids) - shared for row in family]
    parts = spread(sizes, sizes, cap - shared)
    return [Tree(tuple(family[i] for i in part), shared if len(part) > 1 else 0) for part in parts]


def _shared(family: list[Row]) -> int:
    """Length of the longest common beginning that no row trains and after which each still has a token."""
    limit = min(int(np.flatnonzero(row.trained)[0]) for row in family)
    first = family[0].ids[:limit]
    same = np.logical_and.reduce([row.ids[:limit] == first for row in family])
    return limit if same.all() else int(same.argmin())


def _fill(
    order: Sequence[int], costs: Sequence[float], sizes: Sequence[int], cap: int, count: int
) -> list[list[int]] | None:
    bins: list[list[int]] = [[] for _ in range(count)]
    load, room = [0.0] * count, [cap] * count
    for i in order:
        open_bins = [b for b in range(count) if room[b] >= sizes[i]]
        if not open_bins:
            return None
        best = min(open_bins, key=lambda b: (load[b], b))
        bins[best].append(i)
        load[best] += costs[i]
        room[best] -= sizes[i]
    return [sorted(b) for b in bins if b]


def _flatten(trees: Sequence[Tree]) -> MicroBatch:
    ids, positions, lengths, parents = [], [], [], []
    names = sorted({k for tree in trees for row in tree.rows for k in row.streams} | {"sequence"})
    streams: dict[str, list[np.ndarray]] = {k: [] for k in names}
    sequence = 0

    def segment(row: Row, start: int, end: int, parent: int, sequence: int) -> None:
        ids.append(row.ids[start:end])
        positions.append(np.arange(start, end))
        lengths.append(end - start)
        parents.append(parent)
        for k in names:
            value = np.full(end - start, sequence) if k == "sequence" else row.streams.get(k, np.zeros(end))[start:end]
            streams[k].append(value)

    for tree in trees:
        root = -1
        if tree.shared:
            root = len(lengths)
            segment(tree.rows[0], 0, tree.shared, -1, -1)
        for row in tree.rows:
            segment(row, tree.shared, len(row.ids), root, sequence)
            sequence += 1
    return MicroBatch(
        ids=np.concatenate(ids).astype(np.int64),
        positions=np.concatenate(positions).astype(np.int64),
        lengths=np.array(lengths, np.int64),
        parents=np.array(parents, np.int64),
        streams={k: np.concatenate(v).astype(np.float32) for k, v in streams.items()},
    )
