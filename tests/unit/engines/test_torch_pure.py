"""The torch engine's decisions, without a model: prefix tree, scheduler, sampler."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from temper.core.protocols import SamplingParams
from temper.engines.torch.prefixes import PrefixTree
from temper.engines.torch.sampler import sample, uniform
from temper.engines.torch.scheduler import Request, Scheduler

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=12)


def tree(budget: int = 1000) -> PrefixTree:
    """Spans are the tokens themselves, so that a match can be read."""
    return PrefixTree(budget, lambda span, n: (span[:n], span[n:]))


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def insert(t: PrefixTree, tokens: np.ndarray) -> None:
    t.insert(tokens, lambda a, b: tokens[a:b].tolist())


def matched(t: PrefixTree, tokens: np.ndarray) -> list[int]:
    return [token for span, n in t.match(tokens) for token in span[:n]]


@given(st.lists(TOKENS, max_size=8), TOKENS)
def test_the_longest_known_prefix_is_found(known, asked):
    t = tree()
    for tokens in known:
        insert(t, ids(*tokens))
    agree = [next((i for i, (a, b) in enumerate(zip(k, asked)) if a != b), min(len(k), len(asked))) for k in known]  # noqa: B905
    assert matched(t, ids(*asked)) == asked[: max(agree, default=0)]
    assert t.size == len({tuple(k[: n + 1]) for k in known for n in range(len(k))})  # one token an edge of the trie


@given(st.lists(TOKENS, min_size=1, max_size=20), st.integers(1, 20))
@settings(max_examples=50)
def test_the_budget_holds_and_pinned_prefixes_stay(known, budget):
    t = tree(budget)
    pinned = ids(*known[0])[:budget]
    handle = t.pin(pinned)
    insert(t, pinned)
    for tokens in known:
        insert(t, ids(*tokens))
        assert t.size <= max(budget, len(pinned) + 12)
    assert matched(t, pinned) == pinned.tolist()
    t.release(handle)
    insert(t, np.full(budget, 7, np.int32))
    assert t.size <= budget


def test_the_least_recently_used_prefix_goes_first():
    t = tree(budget=4)
    insert(t, ids(1, 1))
    insert(t, ids(2, 2))
    matched(t, ids(1, 1))
    insert(t, ids(3, 3))
    assert matched(t, ids(2, 2)) == []
    assert matched(t, ids(1, 1)) == [1, 1]


def test_policies_know_their_own_prefixes_and_share_the_budget():
    t = tree(budget=6)
    for policy in ("a", "b"):
        t.insert(ids(1, 2, 3), lambda a, b, policy=policy: [policy] * (b - a), policy)
    assert [span for name in ("a", "b", "c") for span, _ in t.match(ids(1, 2, 3), name)] == [["a"] * 3, ["b"] * 3]
    pinned = t.pin(ids(1, 2, 3), "a")
    t.match(ids(1, 2, 3), "b")
    insert(t, ids(7, 7))  # the first policy's, over the budget: "a" was used longest ago and is pinned
    assert (t.size, len(t.match(ids(1, 2, 3), "a")), len(t.match(ids(1, 2, 3), "b"))) == (5, 1, 0)
    t.release(pinned)
    t.clear("a")
    assert (t.size, t.match(ids(1, 2, 3), "a"), matched(t, ids(7, 7))) == (2, [], [7, 7])


def run(scheduler: Scheduler, step) -> None:
    """One step without a model: every request that is ready gets token 9."""
    plan = scheduler.plan()
    step.append((len(plan.decode), [n for _, n in plan.chunks]))
    for request in scheduler.done(plan, lambda request, a, b: request.tokens[a:b].tolist()):
        request.append(9, 0.0, 0)
        if request.sampled == request.params.max_tokens:
            scheduler.remember(request, lambda r, a, b: r.tokens[a:b].tolist())
            scheduler.remove(request)


def scheduler(slots=4, room=10_000, chunk=32) -> Scheduler:
    return Scheduler(slots, room, chunk, tree())


def request(prompt, n=4, name="r") -> Request:
    return Request(name, np.asarray(prompt, np.int32), SamplingParams(max_tokens=n), 1000)


def test_a_group_that_arrives_together_is_prefilled_once():
    s, steps = scheduler(slots=8), []
    for _ in range(4):
        s.add(request(range(100)))
    while s.running or s.waiting:
        run(s, steps)
    assert sum(sum(chunks) for _, chunks in steps) == 100
    assert s.reused == 3 * 99  # the last prompt token is computed by each, since its output is sampled from


def test_a_long_prompt_does_not_stop_the_others_from_decoding():
    s, steps = scheduler(), []
    s.add(request([1], n=8))
    s.add(request(range(100)))
    for _ in range(4):
        run(s, steps)
    assert steps[0] == (1, [32])
    assert all(decoding == 1 and sum(chunks) <= 32 for decoding, chunks in steps)


def test_admission_waits_for_room_and_never_starves():
    s, steps = scheduler(slots=4, room=24), []
    for i in range(3):
        s.add(request([i] * 8, n=4))
    run(s, steps)
    assert (len(s.running), len(s.waiting)) == (2, 1)
    while s.running or s.waiting:
        run(s, steps)
    assert len(steps) < 20


def test_a_publish_takes_the_cache_away_or_keeps_it_but_old_prefixes_are_never_found():
    for mode, left in (("recompute", 0), ("keep", 8)):
        s, steps = scheduler(), []
        s.add(request(range(8), n=50))
        run(s, steps)
        dropped = s.published(mode)
        assert s.running[0].computed == left
        assert len(dropped) == (mode == "recompute")
        assert matched(s.tree, np.arange(8, dtype=np.int32)) == []
        run(s, steps)
        s.remember(s.running[0], lambda r, a, b: r.tokens[a:b].tolist())
        found = matched(s.tree, np.arange(8, dtype=np.int32))
        assert found == ([*range(8)] if mode == "recompute" else [])  # a mixed cache is never shared


def test_uniforms_are_splitmix64():
    # first outputs of SplitMix64 seeded with 1234567: https://rosettacode.org/wiki/Pseudo-random_numbers/Splitmix64
    from temper.engines.torch.sampler import _mix

    golden = 0x9E3779B97F4A7C15
    states = np.array([(1234567 + i * golden) % 2**64 for i in range(3)], np.uint64)
    with np.errstate(over="ignore"):
        assert _mix(states).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_uniforms_are_uniform_and_independent_of_order():
    u = uniform(np.repeat(np.arange(100), 100).tolist(), np.tile(np.arange(100), 100))
    assert abs(u.mean() - 0.5) < 0.01
    assert abs(u.var() - 1 / 12) < 0.002
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.03
    assert u[205] == uniform([2], [5])[0]


def test_samples_follow_the_distribution_at_the_temperature():
    logits, n = torch.randn(600, generator=torch.Generator().manual_seed(0)) * 2, 20_000
    params = [SamplingParams(temperature=0.7, seed=i) for i in range(n)]
    drawn, logprobs = sample(logits.repeat(n, 1), params, [0] * n)
    expected = (logits / 0.7).softmax(-1)
    counts = torch.bincount(drawn, minlength=600).double()
    likely = expected * n > 5
    chi2 = float(((counts - expected * n) ** 2 / (expected * n))[likely].sum())
    assert chi2 < int(likely.sum()) + 4 * (2 * int(likely.sum())) ** 0.5
    assert torch.allclose(logprobs, (logits / 0.7).log_softmax(-1)[drawn], atol=1e-5)


@pytest.mark.parametrize(("top_k", "top_p"), [(5, 1.0), (0, 0.5), (20, 0.8)])
def test_truncation_keeps_what_transformers_keeps(top_k, top_p):
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    logits, n = torch.randn(1, 300, generator=torch.Generator().manual_seed(1)) * 3, 4000
    kept = TopKLogitsWarper(top_k)(None, logits) if top_k else logits
    kept = TopPLogitsWarper(top_p)(None, kept) if top_p < 1 else kept
    params = [SamplingParams(top_k=top_k, top_p=top_p, seed=i) for i in range(n)]
    drawn, logprobs = sample(logits.repeat(n, 1), params, [3] * n)
    expected = kept.softmax(-1)[0]
    counts = torch.bincount(drawn, minlength=300)
    assert set(counts.nonzero()[:, 0].tolist()) <= set(expected.nonzero()[:, 0].tolist())
    assert torch.allclose(counts / n, expected, atol=0.04)
    assert torch.allclose(logprobs, logits.log_softmax(-1)[0][drawn], atol=1e-5)  # of the whole distribution


def test_greedy_takes_the_largest_and_reports_it_at_temperature_one():
    logits = torch.randn(3, 1000, generator=torch.Generator().manual_seed(2))
    drawn, logprobs = sample(logits.clone(), [SamplingParams(temperature=0.0)] * 3, [0, 1, 2])
    assert drawn.tolist() == logits.argmax(-1).tolist()
    assert torch.allclose(logprobs, logits.log_softmax(-1).max(-1).values, atol=1e-6)
