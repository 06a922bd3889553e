"""The packer: nothing dropped, nothing doubled, the cap kept, prompts shared exactly; ranks get equally much."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.core.errors import ConfigError
from temper.core.trace import MicroBatch
from temper.training.packing import Row, deal, pack


def row(name: str, prompt: int, answer: int, tail: int, family: str = "") -> Row:
    """Ids say who they are: the prompt is the family's, the rest the row's own."""
    own = 1000 * (1 + int(name)) + np.arange(answer + tail)
    ids = np.concatenate([np.arange(prompt) + 7, own])
    w = np.zeros(len(ids))
    w[prompt : prompt + answer] = 1.0
    return Row(name=name, ids=ids, streams={"w_pg": w, "advantage": np.full(len(ids), float(name))}, family=family)


@st.composite
def rows(draw) -> list[Row]:
    shapes = st.tuples(st.integers(1, 30), st.integers(1, 9), st.integers(0, 3), st.sampled_from("abc"))
    found = [row(str(i), p, a, t, f) for i, (p, a, t, f) in enumerate(draw(st.lists(shapes, max_size=8)))]
    for i in range(draw(st.integers(0, 3))):  # turns that fork from an earlier row, which trains shared tokens too
        if found:
            first = found[draw(st.integers(0, len(found) - 1))]
            at = draw(st.integers(1, len(first.ids)))
            own = 1000 * (100 + i) + np.arange(3)
            w = np.append(first.streams["w_pg"][:at], [0.0, 1.0, 1.0])
            streams = {"w_pg": w, "advantage": np.full(len(w), 100.0 + i)}
            name = str(100 + i)
            found.append(Row(name=name, ids=np.append(first.ids[:at], own), streams=streams, family=first.family))
    return found


def predictions(batch: MicroBatch, above: list[list[int]]) -> dict[tuple[float, int], list[int]]:
    """By (advantage, place in its row): all tokens up to the predicted one. `above`: those before the batch."""
    ends = np.cumsum(batch.lengths)
    prefix = [token for part in above for token in part]
    histories: list[list[int]] = []  # of each token, itself included
    for n, parent, end in zip(batch.lengths, batch.parents, ends, strict=True):
        before = histories[ends[parent] - 1] if parent >= 0 else prefix
        for t in range(end - n, end):
            assert batch.positions[t] == len(before)
            before = [*before, int(batch.ids[t])]
            histories.append(before)
    found = {}
    for at, target, advantage in zip(batch.at, batch.targets, batch.streams["advantage"], strict=True):
        history = [*(histories[at] if at >= 0 else prefix), int(target)]
        assert (float(advantage), len(history)) not in found
        found[float(advantage), len(history)] = history
    below = [under for under in batch.below if not idle(under)]
    assert not below or len(batch.lengths) == 1
    for under in below:
        more = predictions(under, [*above, batch.ids.tolist()])
        assert not found.keys() & more.keys()
        found |= more
    return found


def idle(batch: MicroBatch) -> bool:
    """One token, from which nothing is predicted, however deep."""
    return len(batch.ids) == 1 and not len(batch.at) and all(map(idle, batch.below))


def shape(batch: MicroBatch) -> tuple:
    """What continues it: that ranks make the same calls depends on this alone."""
    return tuple(map(shape, batch.below))


def deepest(batch: MicroBatch) -> int:
    """Tokens that are held at once."""
    return len(batch.ids) + max((deepest(under) for under in batch.below), default=0)


@given(rows=rows(), cap=st.integers(48, 90), share=st.booleans())
def test_every_trained_token_once_with_its_own_history(rows, cap, share):
    found = {}
    for batch in pack(rows, cap, quadratic=0.1, share=share):
        assert deepest(batch) <= cap
        more = predictions(batch, [])
        assert not found.keys() & more.keys()
        found |= more
    expected = {
        (float(r.name), t + 1): r.ids[: t + 1].tolist() for r in rows for t in np.flatnonzero(r.streams["w_pg"])
    }
    assert found == expected


@given(rows=rows(), cap=st.integers(48, 90), ranks=st.integers(1, 4))
def test_every_rank_has_as_much_to_call_and_every_token_is_trained_by_one(rows, cap, ranks):
    hands = deal(pack(rows, cap, ranks=ranks), ranks)
    assert len({tuple(map(shape, hand)) for hand in hands}) == 1
    found = {}
    for batch in (batch for hand in hands for batch in hand if not idle(batch)):
        assert deepest(batch) <= cap + len(shape(batch))
        more = predictions(batch, [])
        assert not found.keys() & more.keys()
        found |= more
    assert len(found) == sum(np.count_nonzero(r.streams["w_pg"]) for r in rows)


def drawn(rng: np.random.Generator, depth: int, start: int, names: list[int]) -> MicroBatch:
    """Segments one after another, a name for each prediction; one that goes on below is alone."""
    below = rng.random() < 0.3 and depth < 3
    lengths = rng.integers(1, 9, 1 if below else rng.integers(1, 4))
    tokens, made = int(lengths.sum()), int(rng.integers(0 if below else 1, 5))
    names += range(len(names), len(names) + made)
    return MicroBatch(
        ids=np.zeros(tokens, np.int64),
        positions=start + np.concatenate([np.arange(n) for n in lengths]),
        lengths=lengths,
        parents=np.full(len(lengths), -1),
        at=np.zeros(made, np.int64),
        targets=np.arange(len(names) - made, len(names)),
        streams={},
        below=tuple(drawn(rng, depth + 1, start + tokens, names) for _ in range(rng.integers(1, 4) if below else 0)),
    )


def test_ten_thousand_fuzzed_batches_are_dealt_without_a_drop():
    rng = np.random.default_rng(0)
    total = 0
    while total < 10_000:
        names: list[int] = []
        batches = [drawn(rng, 0, 0, names) for _ in range(rng.integers(0, 12))]
        hands = deal(batches, ranks := int(rng.integers(1, 6)), quadratic=float(rng.random()))
        assert len(hands) == ranks
        assert len({tuple(map(shape, hand)) for hand in hands}) == 1
        assert sorted(n for hand in hands for batch in hand for n in targets(batch)) == names
        total += len(batches)


def targets(batch: MicroBatch) -> list[int]:
    return [*batch.targets.tolist(), *(n for under in batch.below for n in targets(under))]


def test_ranks_get_about_equally_much():
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.normal(4, 0.8, 200)).astype(int).clip(2, 500)
    rows = [row(str(i), 1, int(n), 0) for i, n in enumerate(lengths)]
    hands = deal(pack(rows, 512, ranks=3, quadratic=0.01), 3, quadratic=0.01)
    cost = [sum(len(b.ids) + 0.01 * float((b.lengths**2).sum()) for b in hand) for hand in hands]
    assert len({len(hand) for hand in hands}) == 1
    assert not any(idle(batch) for hand in hands for batch in hand)
    assert max(cost) / np.mean(cost) < 1.05


def test_one_small_batch_and_one_wide_tree_are_shared_by_all_ranks():
    small = [row(str(i), 1, 9, 0) for i in range(4)]
    assert [len(hand[0].ids) for hand in deal(pack(small, 100, ranks=2), 2)] == [18, 18]
    wide = pack([row(str(i), 100, 11, 0, "g") for i in range(8)], cap=145, ranks=2)
    (left,), (right,) = deal(wide, 2)
    assert [len(b.ids) for b in (left, right)] == [100, 100]
    assert [len(b.below[0].ids) for b in (left, right)] == [40, 40]


def test_a_groups_prompt_is_there_once_and_no_last_token_is_computed():
    (batch,) = pack([row(str(i), 100, 5, 0, "g") for i in range(4)], cap=200)
    assert len(batch.ids) == 100 + 4 * 4
    assert batch.parents.tolist() == [-1, 0, 0, 0, 0]
    assert batch.at[:6].tolist() == [99, 100, 101, 102, 103, 99]
    assert batch.streams["sequence"].tolist() == [0.0] * 5 + [1.0] * 5 + [2.0] * 5 + [3.0] * 5


def test_a_group_above_the_cap_shares_its_prompt_over_batches():
    (batch,) = pack([row(str(i), 100, 11, 0, "g") for i in range(8)], cap=145)
    assert len(batch.ids) == 100
    assert [len(under.ids) for under in batch.below] == [40, 40]
    assert batch.below[0].at[:3].tolist() == [-1, 0, 1]


def test_a_fork_shares_its_trained_turns():
    first = row("1", 20, 20, 0, "g")
    ids = np.append(first.ids[:35], [7, 8, 9])
    w = np.append(first.streams["w_pg"][:35], np.ones(3))
    fork = Row(name="2", ids=ids, streams={"w_pg": w, "advantage": np.full(38, 2.0)}, family="g")
    (batch,) = pack([first, fork], cap=100)
    assert batch.lengths.tolist() == [35, 4, 2]
    assert len(batch.at) == 20 + 18


def test_what_follows_the_last_trained_token_is_cut_off():
    (batch,) = pack([row("0", 3, 2, 50)], cap=10)
    assert len(batch.ids) == 4


def test_a_row_above_the_cap_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"sample 17 has 30 tokens.*20.*micro_tokens"):
        pack([row("17", 20, 10, 0)], cap=20)


def test_load_is_even():
    rng = np.random.default_rng(0)
    batches = pack([row(str(i), 1, int(n), 0) for i, n in enumerate(rng.integers(2, 40, 200))], cap=512, quadratic=0.01)
    tokens = [len(b.ids) for b in batches]
    assert max(tokens) <= 512
    assert max(tokens) / np.mean(tokens) < 1.05
    assert len(batches) == -(-sum(tokens) // 512)
