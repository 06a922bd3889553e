"""The packer: nothing dropped, nothing doubled, the cap kept, prompts shared exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.core.errors import ConfigError
from temper.core.trace import MicroBatch
from temper.training.packing import Row, pack


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
    assert not batch.below or len(batch.lengths) == 1
    for under in batch.below:
        more = predictions(under, [*above, batch.ids.tolist()])
        assert not found.keys() & more.keys()
        found |= more
    return found


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
