"""Attention over trees against one masked softmax over everything, in fp64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from temper.models import attention
from temper.models.attention import Packed

HEADS, KV, WIDTH, SCALE = 4, 2, 8, 0.3


def dense(query, key, value, seen):
    """Plain softmax attention; seen: bool (T, S)."""
    key, value = (x.repeat_interleave(HEADS // KV, 1) for x in (key, value))
    scores = (query @ key.transpose(-1, -2) * SCALE).masked_fill(~seen, -torch.inf)
    return (scores.softmax(-1) @ value).transpose(1, 2)


def visible(lengths, parents):
    """bool (T, T): what each token of the tree sees."""
    ends = torch.tensor([0, *lengths]).cumsum(0).tolist()
    seen = torch.zeros(ends[-1], ends[-1], dtype=torch.bool)
    for i, n in enumerate(lengths):
        rows = slice(ends[i], ends[i + 1])
        seen[rows, rows] = torch.ones(n, n, dtype=torch.bool).tril()
        above = parents[i]
        while above >= 0:
            seen[rows, ends[above] : ends[above + 1]] = True
            above = parents[above]
    return seen


@st.composite
def trees(draw):
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))
    parents, path = [], []
    for i in range(len(lengths)):
        parents.append(draw(st.sampled_from([-1, *path])))
        path = [*path[: path.index(parents[-1]) + 1], i] if parents[-1] >= 0 else [i]
    return lengths, parents


@pytest.fixture(params=["fused", "plain"])
def kernels(request, monkeypatch):
    """Every device but the CPU runs the plain ones."""
    if request.param == "plain":
        monkeypatch.setattr(attention, "_kernel", attention._plain)
        monkeypatch.setattr(attention, "_kernel_backward", attention._plain_backward)


@pytest.mark.usefixtures("kernels")
def test_any_tree_with_anything_above_it_is_one_softmax():
    @settings(max_examples=60, deadline=None)
    @given(tree=trees(), above=st.lists(st.integers(1, 7), max_size=2), seed=st.integers(0, 99))
    def check(tree, above, seed):
        lengths, parents = tree
        generator = torch.Generator().manual_seed(seed)

        def draw(heads, tokens):
            return torch.randn(1, heads, tokens, WIDTH, dtype=torch.float64, generator=generator).requires_grad_()

        total = sum(lengths)
        query, key, value = draw(HEADS, total), draw(KV, total), draw(KV, total)
        past = [(draw(KV, n), draw(KV, n)) for n in above]
        layout = Packed(lengths, parents, [{0: pair} for pair in past])
        found = layout.attend(0, query, key, value, SCALE)
        keys, values = (torch.cat([*(p[i] for p in past), x], 2) for i, x in enumerate((key, value)))
        seen = torch.cat([torch.ones(total, sum(above), dtype=torch.bool), visible(lengths, parents)], 1)
        expected = dense(query, keys, values, seen)
        assert torch.allclose(found, expected, atol=1e-12, rtol=0)
        leaves = [query, key, value, *(x for pair in past for x in pair)]
        weight = torch.randn(found.shape, dtype=found.dtype, generator=generator)
        gradients = [torch.autograd.grad((x * weight).sum(), leaves) for x in (found, expected)]
        assert all(torch.allclose(a, b, atol=1e-12, rtol=0) for a, b in zip(*gradients, strict=True))

    check()


def test_an_order_that_is_not_depth_first_is_refused():
    with pytest.raises(AssertionError, match="depth-first"):
        Packed([2, 2, 2, 2], [-1, 0, 0, 1])
