"""Rows of tokens to micro-batches of token trees: strict token cap, no padding, balanced cost, nothing dropped. Pure.

A row is a root-to-leaf path of a trace with its streams. Rows of one family (a group) are laid into a tree by their
tokens, so that a shared beginning (the prompt, the turns before a fork) is computed once. Trees that fit share
micro-batches. A tree above the cap becomes its first segment with further batches `below` it, each of which fits
beside all that it continues; so memory does not grow with the width of a group. A row above the cap is refused by name.
Micro-batches are dealt over ranks by cost, equally many and of equal shape to each, since ranks compute in step.
Tokens behind a row's last trained one cannot matter (attention is causal), and the last one is only a target.

Streams, float32, each entry for the *prediction of* its token:

    w_pg, w_ce, w_kl, ...   weight of the loss component `pg`, `ce`, `kl`, ...: 0 where the token is not trained, else
                            its share of the component's global count, so that the loss is a plain sum over
                            micro-batches and ranks (law 5)
    advantage               of the sample, at its trained tokens
    behaviour, version      log-prob at sampling and the policy version that sampled; version -1: not sampled
    proximal, reference     log-probs under these policies, where a stage gives them
    nearness                how far the proximal policy is on the way to the current one (`losses`)
    pair, chosen            index of the pair, +1 or -1 (`losses.sequences`)
    returns, old_value      for the component `value`
    teacher_ids, teacher_q  (n, k): the teacher's likeliest tokens and their probabilities (`losses.distill`)
    sequence                index of the row in its micro-batch (written here)

A micro-batch holds the streams of its predictions, which are those with a weight. What a component weighs, and how
its count is taken, is the stage's business and not known here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from temper.core.errors import ConfigError
from temper.core.trace import MicroBatch

QUADRATIC = 1.5e-4  # cost of a pair of tokens over a token's: about 1 / (12 d) in a decoder of width d, here 576
_WORTH = 8  # shared tokens below which a segment of their own costs more than it saves


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


class Node(Struct, frozen=True, eq=False):
    """A segment of a tree: the tokens from `start` to `end` of all its `rows`; those that end here are in no child."""

    start: int
    end: int
    rows: tuple[Row, ...]
    children: tuple[Node, ...] = ()

    @property
    def tokens(self) -> int:
        return self.end - self.start + sum(child.tokens for child in self.children)

    @property
    def pairs(self) -> int:
        """Twice the pairs of tokens that see each other: n^2 for a row alone."""
        return self.end**2 - self.start**2 + sum(child.pairs for child in self.children)


def pack(
    rows: Sequence[Row],
    cap: int,
    quadratic: float = QUADRATIC,
    share: bool = True,
    together: bool = False,
    ranks: int = 1,
) -> list[MicroBatch]:
    """Micro-batches of at most `cap` tokens, as few as first fit finds, balanced by n + quadratic * n^2.

    Rows that train nothing have no place here. `together`: a family is in one micro-batch, whole, as losses over pairs
    need it. `ranks`: so many get equally many of them. Raises ConfigError for a row (or such a family) above the cap.
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
    forests = [_forest(family, 0) for family in families.values()]
    if not together:
        return _batches([[tree] for forest in forests for tree in forest], cap, quadratic, ranks)
    for forest in forests:
        if (tokens := sum(tree.tokens for tree in forest)) > cap:
            names = ", ".join(row.name for tree in forest for row in tree.rows)
            raise ConfigError(
                f"{names} belong together and have {tokens} tokens, above the cap of {cap} tokens a micro-batch: raise "
                "the trainer's micro_tokens, or lower the limits of their tasks"
            )
    return _batches(forests, cap, quadratic, ranks)


def spread(costs: Sequence[float], sizes: Sequence[int], cap: int, ranks: int = 1) -> list[list[int]]:
    """Indices in bins of at most `cap` in size: the largest cost first, each to the bin that costs least and has room.

    The number of bins is the smallest multiple of `ranks` for which that works, searched upward from the total size;
    empty ones are left out.
    """
    order = sorted(range(len(costs)), key=lambda i: (-costs[i], i))
    count = -(-sum(sizes) // (cap * ranks)) * ranks
    while (bins := _fill(order, costs, sizes, cap, count)) is None:
        count += ranks
    return [sorted(b) for b in bins if b]


def deal(batches: Sequence[MicroBatch], ranks: int, quadratic: float = QUADRATIC) -> list[list[MicroBatch]]:
    """By rank: micro-batches of about equal cost in all, equally many, and alike in what continues them.

    A tree above a rank's share is cut between its branches, and its beginning computed by several ranks. Where a rank
    has less it gets micro-batches of one token that predict nothing, so that all ranks make the same calls in the same
    order. Every prediction is made once.
    """

    def cost(batch: MicroBatch) -> float:
        ends = batch.positions[np.cumsum(batch.lengths) - 1] + 1
        pairs = ends**2 - (ends - batch.lengths) ** 2
        return len(batch.ids) + quadratic * float(pairs.sum()) + sum(map(cost, batch.below))

    share = sum(map(cost, batches)) / ranks
    parts: list[tuple[float, MicroBatch]] = []
    for batch in batches:
        count = min(len(batch.below), round(cost(batch) / share))
        hands = _hands([(cost(under), under) for under in batch.below], count) if count > 1 else [batch.below]
        pieces = [replace(batch if i == 0 else _mute(batch), below=tuple(hand)) for i, hand in enumerate(hands)]
        parts += [(cost(piece), piece) for piece in pieces]
    return _alike([sorted(hand, key=lambda b: -len(b.below)) for hand in _hands(parts, ranks)])


def _cut(row: Row) -> Row:
    at = np.flatnonzero(row.trained)
    assert at.size, f"row {row.name} trains nothing"
    assert at[0] > 0, f"row {row.name} trains its first token"
    end = int(at[-1]) + 1
    return replace(row, ids=row.ids[:end], streams={k: v[:end] for k, v in row.streams.items()})


def _forest(rows: Sequence[Row], start: int) -> list[Node]:
    """Trees over the tokens from `start` on that rows have to be computed at: all but their last."""
    groups: dict[int, list[Row]] = {}
    for row in rows:
        if len(row.ids) - 1 > start:
            groups.setdefault(int(row.ids[start]), []).append(row)
    found = []
    for group in groups.values():
        end = _common(group)
        if len(group) == 1 or end - start < _WORTH:
            found += [Node(start, len(row.ids) - 1, (row,)) for row in group]
        else:
            found.append(Node(start, end, tuple(group), tuple(_forest(group, end))))
    return found


def _common(rows: Sequence[Row]) -> int:
    """Length of the longest beginning at which all rows are computed and equal."""
    limit = min(len(row.ids) for row in rows) - 1
    same = np.logical_and.reduce([row.ids[:limit] == rows[0].ids[:limit] for row in rows])
    return limit if same.all() else int(same.argmin())


def _batches(forests: Sequence[Sequence[Node]], cap: int, quadratic: float, ranks: int) -> list[MicroBatch]:
    """Forests that fit, spread; each tree that does not, on its own, with batches below it."""
    sizes = [sum(tree.tokens for tree in forest) for forest in forests]
    fitting = [i for i, size in enumerate(sizes) if size <= cap]
    costs = [sizes[i] + quadratic * sum(tree.pairs for tree in forests[i]) for i in fitting]
    bins = spread(costs, [sizes[i] for i in fitting], cap, ranks) if fitting else []
    batches = [_flatten([tree for i in part for tree in forests[fitting[i]]]) for part in bins]
    for size, forest in zip(sizes, forests, strict=True):
        if size > cap:
            (tree,) = forest
            children = [[child] for child in tree.children]
            below = _batches(children, cap - (tree.end - tree.start), quadratic, ranks)
            batches.append(_flatten([Node(tree.start, tree.end, tree.rows)], tuple(below)))
    return batches


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
    return bins


def _hands(items: Sequence[tuple[float, MicroBatch]], count: int) -> list[list[MicroBatch]]:
    """Items by cost to `count` hands: the largest first, each to the hand that costs least, as many to each."""
    costs = [cost for cost, _ in items]
    order = sorted(range(len(items)), key=lambda i: -costs[i])
    hands = _fill(order, costs, [1] * len(items), -(-len(items) // count), count)
    assert hands is not None
    return [[items[i][1] for i in hand] for hand in hands]


def _alike(hands: Sequence[Sequence[MicroBatch]]) -> list[list[MicroBatch]]:
    """The hands filled up with what predicts nothing, at every depth, until all have one shape."""
    found: list[list[MicroBatch]] = [[] for _ in hands]
    for place in range(max(map(len, hands))):
        row = [hand[place] if place < len(hand) else _NOTHING for hand in hands]
        for mine, batch, below in zip(found, row, _alike([b.below for b in row]), strict=True):
            mine.append(replace(batch, below=tuple(below)))
    return found


def _mute(batch: MicroBatch) -> MicroBatch:
    """The same tokens, with nothing predicted from them here."""
    streams = {name: values[:0] for name, values in batch.streams.items()}
    return replace(batch, at=batch.at[:0], targets=batch.targets[:0], streams=streams)


def _flatten(trees: Sequence[Node], below: tuple[MicroBatch, ...] = ()) -> MicroBatch:
    """One batch of whole trees, or of a single segment whose rows go on in the batches below."""
    ids: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    parents: list[int] = []
    predicted: list[tuple[Row, np.ndarray, np.ndarray]] = []  # row, trained tokens, where each is predicted from

    def visit(node: Node, parent: int, index: np.ndarray) -> None:
        """`index`: the token of each position of the path, from the one before the tree's root on."""
        index = np.append(index, sum(map(len, ids)) + np.arange(node.end - node.start))
        segment = len(ids)
        ids.append(node.rows[0].ids[node.start : node.end])
        positions.append(np.arange(node.start, node.end))
        parents.append(parent)
        for row in node.rows:
            ends = len(row.ids) - 1 == node.end
            if ends or below:
                from_here = np.flatnonzero(row.trained) - (node.end + 1 - len(index))
                here = from_here[(from_here >= 0) & (from_here < len(index) - (not ends))]
                predicted.append((row, here + (node.end + 1 - len(index)), index[here]))
        for child in node.children:
            visit(child, segment, index)

    for tree in trees:
        visit(tree, -1, np.array([-1]))
    names = sorted({name for row, _, _ in predicted for name in row.streams})
    streams = {
        name: np.concatenate(
            [row.streams[name][t] if name in row.streams else np.zeros(len(t)) for row, t, _ in predicted]
        )
        for name in names
    }
    streams["sequence"] = np.repeat(np.arange(len(predicted)), [len(t) for _, t, _ in predicted])
    return MicroBatch(
        ids=np.concatenate(ids).astype(np.int64),
        positions=np.concatenate(positions).astype(np.int64),
        lengths=np.array([len(x) for x in ids], np.int64),
        parents=np.array(parents, np.int64),
        at=np.concatenate([at for _, _, at in predicted]).astype(np.int64),
        targets=np.concatenate([row.ids[t] for row, t, _ in predicted]).astype(np.int64),
        streams={k: v.astype(np.float32) for k, v in streams.items()},
        below=below,
    )


_NOTHING = MicroBatch(
    ids=np.zeros(1, np.int64),
    positions=np.zeros(1, np.int64),
    lengths=np.ones(1, np.int64),
    parents=np.full(1, -1, np.int64),
    at=np.zeros(0, np.int64),
    targets=np.zeros(0, np.int64),
    streams={},
)
