"""Losses over pairs and whole answers, reward models and distillation: closed forms, masks, packing, files."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
import torch

from temper.core import registry
from temper.core.errors import ConfigError, CorruptError, MissingError
from temper.core.task import Message
from temper.core.trace import Sample, Segment, Trace, Verdict
from temper.models.chat import chatml
from temper.models.load import load
from temper.models.scalar import MODEL, Description, Scorer
from temper.training.logprobs import soft_logprobs
from temper.training.losses import Corrections, bradley_terry, dpo, importance, ipo, kto, simpo, value
from temper.training.losses import distill as distill_loss
from temper.training.packing import Row, pack
from temper.training.scoring import lent, score, snapshot
from temper.training.stages import distill, path, preference, reward, rl
from temper.training.stages.distill import Taught
from temper.training.stages.pairs import Pair, pairs

# two answers of 2 and 1 trained tokens, and a token that is not trained
LOGP = [-1.0, -2.0, -9.0, -3.0]
REFERENCE = [-1.5, -2.5, -1.0, -2.0]
STREAMS = {
    "reference": REFERENCE,
    "weight": [1 / 3, 1 / 3, 0, 1 / 3],
    "pair": [0, 0, 0, 0],
    "sequence": [0, 0, 0, 1],
    "chosen": [1, 1, 1, -1],
}


def total(module, config, logp=LOGP, **streams) -> float:
    put = {k: torch.tensor(v, dtype=torch.float64) for k, v in (STREAMS | streams).items()}
    found, _ = module.loss(torch.tensor(logp, dtype=torch.float64), put, config)
    return float((found * put["weight"]).sum())


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


def test_losses_over_pairs_are_their_papers_formulas():
    # log-ratios: 0.5 + 0.5 = 1 for the chosen answer, -1 for the rejected one; by mean 0.5 and -1
    assert total(dpo, dpo.Config(beta=0.1)) == pytest.approx(-log_sigmoid(0.2))
    assert total(dpo, dpo.Config(beta=0.1, smoothing=0.25)) == pytest.approx(
        -0.75 * log_sigmoid(0.2) - 0.25 * log_sigmoid(-0.2)
    )
    assert total(ipo, ipo.Config(beta=0.25)) == pytest.approx((1.5 - 2) ** 2)
    assert total(simpo, simpo.Config(beta=2.0, gamma=1.0)) == pytest.approx(-log_sigmoid(2 * (-1.5 + 3) - 1))
    assert total(bradley_terry, None, scalar=[0.0, 2.0, 7.0, 0.5], weight=[0, 0.5, 0, 0.5]) == pytest.approx(
        -log_sigmoid(1.5)
    )


def test_kto_weighs_each_answer_by_itself():
    weight = [1 / 4, 1 / 4, 0, 1 / 2]  # 1 / (answers * tokens)
    found = total(kto, kto.Config(beta=0.5, bad=2.0), weight=weight, anchor=[0.2] * 4)
    good, bad = 1 - 1 / (1 + math.exp(-0.5 * 0.8)), 1 - 1 / (1 + math.exp(-0.5 * 1.2))
    assert found == pytest.approx((good + 2 * bad) / 2)


def test_a_pair_torn_apart_is_noticed():
    with pytest.raises(AssertionError, match="both answers"):
        total(dpo, dpo.Config(), chosen=[1, 1, 1, 1])


@pytest.mark.parametrize(("clip", "expected"), [(None, [0.5, 0.0]), (0.2, [0.5, 0.32])])
def test_value_loss_is_ppos(clip, expected):
    streams = {"scalar": [1.0, 1.0], "returns": [0.0, 1.0], "old_value": [0.9, 0.0]}
    found, _ = value.loss(torch.zeros(2), {k: torch.tensor(v) for k, v in streams.items()}, value.Config(clip=clip))
    assert found.tolist() == pytest.approx(expected)


def test_sequences_whose_mean_weight_is_far_off_are_rejected_whole():
    # verl's geometric rejection: exp(mean log-ratio) of each sequence against the interval
    logp = torch.tensor([-1.0, -1.0, -1.0, -1.0])
    behaviour = torch.tensor([-1.0, -3.0, -1.1, -0.9])
    streams = {"behaviour": behaviour, "sequence": torch.tensor([0.0, 0, 1, 1]), "weight": torch.ones(4)}
    _, weight = importance(logp, streams, Corrections(cap=math.inf, reject=(0.5, 2.0)))
    assert weight.tolist() == [0, 0, 1, 1]


def test_soft_log_probs_are_the_dense_ones():
    torch.manual_seed(0)
    hidden = torch.randn(7, 8, dtype=torch.float64, requires_grad=True)
    head = torch.randn(20, 8, dtype=torch.float64, requires_grad=True)
    ids = torch.stack([torch.randperm(20)[:5] for _ in range(7)])
    q = torch.rand(7, 5, dtype=torch.float64)
    upstream = torch.randn(7, dtype=torch.float64)
    found = soft_logprobs(hidden, head, ids, q, 0.7)
    expected = (torch.log_softmax(hidden @ head.T / 0.7, -1).gather(1, ids) * q).sum(1)
    torch.testing.assert_close(found, expected)
    mine, theirs = (torch.autograd.grad(x @ upstream, (hidden, head)) for x in (found, expected))
    torch.testing.assert_close(mine, theirs)


def test_distillation_of_a_full_distribution_is_its_kl():
    q = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64)
    p = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64)
    streams = {"soft": (q * p.log()).sum(1), "teacher_entropy": -(q * q.log()).sum(1)}
    found, _ = distill_loss.loss(torch.zeros(1), streams, None)
    expected = torch.distributions.kl_divergence(torch.distributions.Categorical(q), torch.distributions.Categorical(p))
    torch.testing.assert_close(found, expected)


@pytest.fixture(scope="session")
def compared(group) -> list[Pair]:
    return pairs([group(name, [0.0, 1.0, None, 0.5]) for name in "abcd"] + [group("e", [1.0, 1.0]), group("f", [None])])


def test_pairs_are_the_best_against_the_worst(compared):
    assert [p.name for p in compared] == ["a-1/a-0", "b-1/b-0", "c-1/c-0", "d-1/d-0"]


def test_a_pair_stays_in_one_micro_batch_or_is_refused_by_name(compared):
    references = {preference.key(s): np.zeros(len(path(s.trace).ids)) for p in compared for s, _ in p.sides}
    rows = preference.rows(compared, references)
    for batch in pack(rows, 45, together=True):
        for number in np.unique(batch.streams["pair"]):
            assert set(batch.streams["chosen"][batch.streams["pair"] == number]) == {1, -1}
        assert len(batch.ids) <= 45
    long = max(([a, b] for a, b in zip(rows[::2], rows[1::2], strict=True)), key=lambda r: min(len(x.ids) for x in r))
    with pytest.raises(ConfigError, match=f"{long[0].name}, {long[1].name} belong together"):
        pack(long, max(len(r.ids) for r in long), together=True)


@pytest.mark.parametrize("kind", ["dpo", "ipo", "simpo", "kto"])
def test_the_dpo_family_prefers_the_chosen_answer_whatever_the_packing(trainer, compared, kind):
    losses = {"preference": {"kind": kind}}
    wide, narrow = (trainer("float64", losses=losses, lr=1e-3, micro_tokens=cap) for cap in (4096, 45))
    initial = snapshot(wide.policy)
    references = preference.reference(wide, compared)
    for learner in (wide, narrow):
        steps = [preference.step(learner, compared, references, initial) for _ in range(4)]
        assert steps[-1]["loss"] < steps[0]["loss"]
        assert steps[-1]["reward_margin"] > steps[0]["reward_margin"]
    for k, p in wide.policy.trainable().items():
        torch.testing.assert_close(p, narrow.policy.trainable()[k], rtol=0, atol=1e-10)


def test_the_reference_is_measured_at_the_temperature_that_is_trained_at(trainer, compared):
    learner = trainer("float64", temperature=0.7)
    metrics = preference.step(learner, compared, preference.reference(learner, compared))
    assert metrics["reward_margin"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["loss"] == pytest.approx(math.log(2), abs=1e-6)


def test_the_common_point_of_kto_is_measured_also_where_a_moved_answer_is_longer_than_a_micro_batch(trainer):
    """A long prompt with a short answer and the reverse: each fits, the long answer to the long prompt does not."""

    def asked(name: str, prompt: int, answer: int) -> Pair:
        samples = []
        for number in range(2):
            written = Segment.given((), np.arange(3, 3 + answer) + number, parent=0)
            written.trainable[:], written.versions[:] = True, 0
            segments = (Segment.given((), np.arange(3, 3 + prompt)), written)
            trace = Trace(id=f"{name}-{number}", task=name, domain="d", seed=0, segments=segments)
            samples.append(Sample(trace, Verdict.ruled("graded", trace.id, "v", score=1.0 - number)))
        return Pair(name, *samples)

    items = [asked("a", 30, 2), asked("b", 2, 14)]
    losses = {"preference": {"kind": "kto"}}
    points = []
    for cap in (34, 4096):
        learner = trainer("float64", losses=losses, micro_tokens=cap)
        references = preference.reference(learner, items)
        initial = {k: torch.zeros_like(p) for k, p in learner.policy.trainable().items()}
        points.append(preference.step(learner, items, references, initial)["loss"])
    assert points[0] == pytest.approx(points[1], rel=1e-6)


def test_a_policy_scores_its_rows_as_it_trains_them(trainer, group):
    learner = trainer("float64")
    g = group("a", [1.0, 0.0, 1.0], turns=3)
    rows = [
        Row(name=str(i), ids=p.ids, streams={"w_ce": p.trainable.astype(float)}, family="g")
        for i, p in enumerate(path(s.trace) for s in g.samples)
    ]
    whole, split = (score(learner.policy, rows, cap) for cap in (4096, 50))
    for row, a, b in zip(rows, whole, split, strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-6)
        assert (a.logprobs != 0).tolist() == row.trained.tolist()
    loss = learner.evaluate(pack(rows, 4096))["loss"]
    assert loss == pytest.approx(-sum(s.logprobs.sum(dtype=np.float64) for s in whole), rel=1e-6)
    before = snapshot(learner.policy)
    with lent(learner.policy, {k: torch.zeros_like(t) for k, t in before.items()}):
        assert not any(p.any() for p in learner.policy.trainable().values())
    assert all(torch.equal(before[k], p) for k, p in learner.policy.trainable().items())


def test_a_reward_model_orders_its_pairs_and_is_read_back(trainer, compared, tmp_path):
    learner = trainer(lr=1e-2, scalar=True, micro_tokens=60)
    assert not reward.margins(learner, compared).any()
    for _ in range(10):
        metrics = reward.step(learner, compared)
    gaps = reward.margins(learner, compared)
    assert (gaps > 0).all()
    assert metrics["pair_accuracy"] == 1
    assert metrics["loss"] < math.log(2)
    learner.save(tmp_path)
    again = trainer(scalar=True)
    again.load(tmp_path)
    assert reward.margins(again, compared).tolist() == pytest.approx(gaps.tolist(), abs=1e-5)
    (tmp_path / "scalar_head.safetensors").unlink()
    with pytest.raises(MissingError, match="scalar_head"):
        again.load(tmp_path)
    with pytest.raises(ConfigError, match="scalar = true"):
        reward.margins(trainer(), compared)


def test_a_stored_reward_model_scores_as_it_was_trained(trainer, tmp_path):
    chat = chatml.create(chatml.Config(), load("tiny:seed=1").tokenizer)
    asked = (Message("user", "count"),)

    def sample(text: str, score: float) -> Sample:
        ids = chat.write(Message("assistant", text))
        n = len(ids)
        written = Segment(
            parent=0, author="policy", messages=(), ids=ids, trainable=np.ones(n, bool),
            logprobs=np.zeros(n, np.float32), versions=np.zeros(n, np.int32),
        )  # fmt: skip
        trace = Trace(id=text, task="t", domain="d", seed=0, segments=(Segment.given((), chat.render(asked)), written))
        return Sample(trace, Verdict.ruled("graded", text, "v", score=score))

    pair = Pair("p", sample("one two", 1.0), sample("no", 0.0))
    learner = trainer(lr=1e-2, scalar=True)
    for _ in range(3):
        reward.step(learner, [pair])
    learner.save(tmp_path)
    described = Description(base="tiny:seed=1", dtype="float32", chat={"kind": "chatml"})
    (tmp_path / MODEL).write_bytes(msgspec.json.encode(described))
    scorer = Scorer(tmp_path)
    good, bad = (scorer((*asked, Message("assistant", text))) for text in ("one two", "no"))
    (gap,) = reward.margins(learner, [pair])
    assert gap > 0.01
    assert good - bad == pytest.approx(gap, abs=1e-4)


def test_calibration_by_hand():
    # margins log 4 and log 1.5: chances 0.8, 0.6; the second of each kind is wrong
    gaps = np.log([4, 1 / 4, 1.5, 1.5])
    found = reward.calibration(gaps)
    assert found.accuracy == 0.75
    assert found.log_loss == pytest.approx(-np.log([0.8, 0.2, 0.6, 0.6]).mean())
    assert found.error == pytest.approx((abs(0.8 - 0.5) + abs(0.6 - 1)) / 2)
    assert [n for _, _, n in found.bins] == [2, 2]


@pytest.mark.parametrize("k", [8, 259])
def test_distillation_lowers_the_divergence(trainer, group, k):
    learner = trainer(lr=5e-3)
    rng = np.random.default_rng(0)
    items = []
    for sample in group("a", [1.0, 0.0, 0.5]).samples:
        n = len(path(sample.trace).ids) - 1
        ids = np.stack([rng.permutation(259)[:k] for _ in range(n)])
        items.append(Taught(sample, ids, np.log(rng.dirichlet(np.ones(k), n))))
    first, *_, last = [distill.step(learner, items)["kl_teacher"] for _ in range(8)]
    assert first > 0
    assert last < 0.9 * first


def test_ppo_learns_values_and_a_kl_holds_it_to_its_reference(trainer, group):
    learner = trainer(lr=3e-3, scalar=True, temperature=0.7)
    groups = [group("a", [1.0, 1.0], turns=2), group("b", [1.0, 1.0])]
    config = rl.Config(algorithm={"kind": "ppo", "lam": 0.9}, kl=0.1)
    initial = snapshot(learner.policy)
    steps = [rl.step(learner, groups, config, initial) for _ in range(12)]
    assert steps[0]["loss_kl"] == pytest.approx(0, abs=1e-6)
    assert steps[-1]["loss_kl"] > 0
    assert steps[-1]["value_error"] < 0.5 * steps[0]["value_error"]
    assert steps[0]["samples_without_gradient"] == 0  # equal rewards teach the values
    with pytest.raises(ConfigError, match="scalar = true"):
        rl.step(trainer(), groups, config, initial)
    with pytest.raises(ConfigError, match="reference policy"):
        rl.step(learner, groups, rl.Config(kl=0.1))


@pytest.mark.parametrize("name", sorted(registry.names("training.algorithms")))
def test_every_algorithm_takes_a_step_with_masked_and_empty_samples(trainer, group, name):
    learner = trainer(scalar=True)
    (empty,) = group("e", [0.0]).samples
    hollow = Sample(type(empty.trace)(id="h", task="t", domain="d", seed=0), empty.verdict)
    mixed = group("a", [1.0, 0.0, None, 0.25], turns=2)
    mixed = type(mixed)(mixed.task, mixed.domain, (*mixed.samples, hollow))
    metrics = rl.step(learner, [mixed, group("b", [None, None])], rl.Config(algorithm=name))
    assert metrics["samples_masked"] == 3
    assert metrics["trained_tokens"] > 0
    assert math.isfinite(metrics["grad_norm"])
    assert metrics["grad_norm"] > 0


def test_a_scalar_head_of_another_width_is_refused(trainer, tmp_path):
    from safetensors.torch import save_file

    learner = trainer(scalar=True)
    save_file({"scalar_head.weight": torch.zeros(1, 3)}, tmp_path / "scalar_head.safetensors")
    with pytest.raises(CorruptError, match="width 128"):
        learner.scalar.load(tmp_path)


def test_sampled_tokens_are_those_that_the_policy_wrote(group):
    (sample,) = group("a", [1.0], turns=2).samples
    p = path(sample.trace)
    assert p.sampled.sum() == p.trainable.sum()
