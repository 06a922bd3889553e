"""The packer: nothing dropped, nothing doubled, the cap kept, prompts shared exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.core.errors import ConfigError
from temper.training.packing import Row, pack, previous


def row(name: str, prompt: int, answer: int, tail: int, family: str = "") -> Row:
    """Ids say who they are: the prompt is the family's, the rest the row's own."""
    own = 1000 * (1 + int(name)) + np.arange(answer + tail)
    ids = np.concatenate([np.arange(prompt) + 7, own])
    w = np.zeros(len(ids))
    w[prompt : prompt + answer] = 1.0
    return Row(name=name, ids=ids, streams={"w_pg": w, "advantage": np.full(len(ids), float(name))}, family=family)


@st.composite
def rows(draw) -> list[Row]:
    shapes = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 3), st.sampled_from("abc"))
    return [row(str(i), p, a, t, f) for i, (p, a, t, f) in enumerate(draw(st.lists(shapes, max_size=12)))]


@given(rows=rows(), cap=st.integers(18, 60), share=st.booleans())
def test_every_trained_token_once_with_its_own_history(rows, cap, share):
    batches = pack(rows, cap, quadratic=0.1, share=share)
    found = {}
    for batch in batches:
        assert len(batch.ids) <= cap
        assert batch.lengths.sum() == len(batch.ids)
        before = previous(batch)
        for t in np.flatnonzero(batch.streams["w_pg"]):
            history, at = [], t
            while at >= 0:
                assert batch.positions[at] == (batch.positions[before[at]] + 1 if before[at] >= 0 else 0)
                history.append(int(batch.ids[at]))
                at = before[at]
            key = (float(batch.streams["advantage"][t]), len(history))
            assert key not in found
            found[key] = history[::-1]
    expected = {
        (float(r.name), t + 1): r.ids[: t + 1].tolist() for r in rows for t in np.flatnonzero(r.streams["w_pg"])
    }
    assert found == expected


def test_a_groups_prompt_is_there_once():
    (batch,) = pack([row(str(i), 100, 5, 0, "g") for i in range(4)], cap=200)
    assert len(batch.ids) == 100 + 4 * 5
    assert batch.parents.tolist() == [-1, 0, 0, 0, 0]
    assert batch.streams["sequence"].tolist() == [-1.0] * 100 + [0.0] * 5 + [1.0] * 5 + [2.0] * 5 + [3.0] * 5


def test_a_group_above_the_cap_is_split_evenly():
    batches = pack([row(str(i), 100, 10, 0, "g") for i in range(8)], cap=145)
    assert [len(b.ids) for b in batches] == [140, 140]


def test_what_follows_the_last_trained_token_is_cut_off():
    (batch,) = pack([row("0", 3, 2, 50)], cap=10)
    assert len(batch.ids) == 5


def test_a_row_above_the_cap_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"sample 17 has 30 tokens.*20.*micro_tokens"):
        pack([row("17", 20, 10, 0)], cap=20)


def test_load_is_even():
    rng = np.random.default_rng(0)
    batches = pack([row(str(i), 1, int(n), 0) for i, n in enumerate(rng.integers(1, 40, 200))], cap=512, quadratic=0.01)
    tokens = [len(b.ids) for b in batches]
    assert max(tokens) <= 512
    assert max(tokens) / np.mean(tokens) < 1.05
    assert len(batches) == -(-sum(tokens) // 512)
