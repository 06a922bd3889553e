"""The trainer: the loss knows no micro-batches, a resumed run is bit-equal, broken checkpoints are named."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from temper.core.errors import ConfigError, CorruptError, MissingError
from temper.core.trace import Group, MicroBatch, Sample
from temper.models.attention import Packed
from temper.training.invariance import sample
from temper.training.logprobs import logprobs
from temper.training.packing import Row, pack
from temper.training.stages import path, rl
from temper.training.trainer import Trainer


@pytest.fixture(scope="session")
def groups(group) -> list[Group]:
    return [group("a", [1.0, 0.0, None, 1.0]), group("b", [0.5, 0.0, 0.25]), group("c", [0.0, 1.0], turns=3)]


def gradients(trainer: Trainer, batches: list[MicroBatch]) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradient of a step that is not taken."""
    loss = trainer.accumulate(batches)["loss"]
    return loss, {k: p.grad.clone() for k, p in trainer.policy.trainable().items()}


@pytest.mark.parametrize("loss", ["ppo_clip", "cispo", "gspo"])
@pytest.mark.parametrize(("full", "aggregate"), [(False, "token"), (False, "sequence"), (True, "token")])
def test_loss_and_gradient_do_not_depend_on_packing(trainer, groups, loss, full, aggregate):
    settings = {"dtype": "float64", "full": full, "losses": {"pg": {"kind": loss}}}
    learner = trainer(**settings)

    def packed(cap: int, share: bool) -> list[MicroBatch]:
        return rl.micro_batches(groups, rl.Config(share=share, aggregate=aggregate), cap)[0]

    expected_loss, expected = gradients(learner, packed(64, share=False))
    for cap, share in [(4096, False), (4096, True), (64, True)]:
        found_loss, found = gradients(learner, packed(cap, share))
        assert found_loss == pytest.approx(expected_loss, abs=1e-12)
        assert max((found[k] - expected[k]).abs().max() for k in expected) < 1e-12


def test_gradient_is_that_of_plain_padded_transformers(trainer, bases):
    """Cross-entropy through an untouched transformers model, one sequence at a time, is the outside reference."""
    from transformers import AutoModelForCausalLM

    mine = trainer("float64", full=True, losses={"ce": {"kind": "cross_entropy"}})
    rng = np.random.default_rng(0)
    rows = [Row(name=str(n), ids=rng.integers(3, 259, n), streams={"w_ce": np.arange(n) / 99}) for n in (2, 9, 17)]
    reference = AutoModelForCausalLM.from_config(bases["float64"].config, dtype=torch.float64)
    reference.load_state_dict(bases["float64"].tensors, strict=False)
    total = 0.0
    for row in rows:
        ids = torch.from_numpy(row.ids)
        logp = torch.log_softmax(reference(ids[None]).logits[0, :-1], -1).gather(1, ids[1:, None])[:, 0]
        total = total - (logp * torch.from_numpy(row.streams["w_ce"][1:].astype(np.float32))).sum()
    total.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in reference.parameters()])
    metrics = mine.step(pack(rows, 4096))
    assert metrics["loss"] == pytest.approx(total.item(), rel=1e-7)  # theirs rounds to fp32 in its norms
    assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-7)


def test_a_forked_conversation_too_large_for_one_batch_has_the_same_gradient(trainer):
    """Four levels of forks, trained turns among what is shared, down to batches three deep."""
    rng = np.random.default_rng(3)

    def turns(depth: int) -> list[tuple[np.ndarray, np.ndarray]]:
        mine = rng.integers(3, 259, 24), np.arange(24) >= 16
        below = [path for _ in range(2) for path in turns(depth - 1)] if depth else [(np.zeros(0, int), np.zeros(0))]
        return [(np.append(mine[0], ids), np.append(mine[1], trained)) for ids, trained in below]

    rows = [
        Row(name=str(i), ids=ids, streams={"w_ce": trained / 100 * (i + 1)}, family="g")
        for i, (ids, trained) in enumerate(turns(3))
    ]

    learner = trainer("float64", losses={"ce": {"kind": "cross_entropy"}})
    expected_loss, expected = gradients(learner, pack(rows, 4096, share=False))
    assert pack(rows, 100)[0].below[0].below[0].below
    for cap in (4096, 170, 100):
        loss, found = gradients(learner, pack(rows, cap))
        assert loss == pytest.approx(expected_loss, rel=1e-12)
        assert max((found[k] - expected[k]).abs().max() for k in expected) < 1e-12


class Peak(TorchDispatchMode):
    """`most`: bytes that tensors made inside held at once, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._hold(tensor.untyped_storage())
        return out

    def _hold(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return

        def freed() -> None:
            self.now -= size
            self._known.remove(key)

        weakref.finalize(storage, freed)
        self._known.add(key)
        self.now += size
        self.most = max(self.most, self.now)


@pytest.mark.parametrize("full", [False, True], ids=["adapter", "all weights"])
def test_checkpointed_gradients_are_the_same_bits(trainer, groups, full):
    """Packed rows, trees, and a tree over micro-batches."""
    plain, again = (trainer("float64", full, gradient_checkpointing=on) for on in (False, True))
    packed = [rl.micro_batches(groups, rl.Config(share=share), cap)[0] for cap, share in ((4096, False), (4096, True))]
    rows = sample(259)
    split = pack(rows, max(len(row.ids) for row in rows) + 16)
    assert any(batch.below for batch in split)
    for batches in (*packed, split):
        expected_loss, expected = gradients(plain, batches)
        loss, found = gradients(again, batches)
        assert loss == expected_loss
        assert all(torch.equal(found[k], expected[k]) for k in expected)


@pytest.mark.parametrize("full", [False, True], ids=["adapter", "all weights"])
def test_checkpointing_holds_less_at_once(trainer, full):
    """Of four layers, so that what is held is the inputs of four and all of one."""
    rows = [Row(name=str(n), ids=np.arange(512) % 256 + 3, streams={"w_ce": np.arange(512) / 1e5}) for n in range(2)]
    most = {}
    for on in (False, True):
        learner = trainer(full=full, gradient_checkpointing=on)
        batches = pack(rows, 1024)
        learner.accumulate(batches)  # gradients are there
        with Peak() as peak:
            learner.accumulate(batches)
        most[on] = peak.most
    assert most[True] < 0.6 * most[False], most


def likelihood(learner: Trainer, sample: Sample) -> float:
    p = path(sample.trace)
    layout = Packed([len(p.ids)])
    with torch.no_grad():
        hidden = learner.policy.hidden(torch.from_numpy(p.ids).long(), torch.arange(len(p.ids)), layout)
        found, _ = logprobs(hidden[:-1], learner.policy.head, torch.from_numpy(p.ids[1:]).long())
    return float(found[torch.from_numpy(p.trainable[1:])].sum())


def test_metrics_of_a_stale_batch(trainer, group):
    learner = trainer()
    learner.version = 3
    groups = [group("a", [1.0, 0.0], version=1), group("b", [1.0, 0.0], version=3)]
    metrics = rl.step(learner, groups, rl.Config())
    assert learner.version == 4
    assert metrics["age_max"] == 2
    assert 0 < metrics["age"] < 2
    assert 0 < metrics["logprob_gap"] <= metrics["logprob_gap_max"]
    assert metrics["kl_behaviour"] > 0
    assert 0 < metrics["entropy"] < np.log(259)


def test_a_batch_that_teaches_nothing_still_counts_as_a_step(trainer, group):
    learner = trainer()
    before = {k: p.clone() for k, p in learner.policy.trainable().items()}
    metrics = rl.step(learner, [group("a", [1.0, 1.0]), group("b", [None, 0.0])], rl.Config())
    assert learner.version == 1
    assert metrics["trained_tokens"] == metrics["loss"] == 0
    assert metrics["groups_without_gradient"] == 2
    assert all(torch.equal(before[k], p) for k, p in learner.policy.trainable().items())


def test_an_entropy_weight_alone_makes_a_policy_less_certain(trainer, group):
    learner = trainer(lr=1e-2)
    flat = [group("a", [1.0, 1.0, 1.0, 1.0])]
    found = [rl.step(learner, flat, rl.Config(entropy=1.0)) for _ in range(4)]
    assert found[-1]["entropy"] > found[0]["entropy"]
    assert found[0]["loss"] == pytest.approx(-found[0]["entropy"], rel=1e-5)


def test_a_missing_stream_or_loss_is_named(trainer):
    ids = np.arange(3, 9)
    with pytest.raises(ConfigError, match="w_pgg; did you mean 'pg'"):
        trainer().step(pack([Row(name="r", ids=ids, streams={"w_pgg": np.arange(6)})], 64))
    with pytest.raises(ConfigError, match="needs the streams advantage, behaviour"):
        trainer().step(pack([Row(name="r", ids=ids, streams={"w_pg": np.arange(6)})], 64))


def test_rewarded_answers_become_likelier(trainer, group):
    learner = trainer(lr=3e-3)
    (good, bad) = group("c", [1.0, 0.0], turns=3).samples
    before = likelihood(learner, good), likelihood(learner, bad)
    for _ in range(3):
        rl.step(learner, [Group("c", "d", (good, bad))], rl.Config())
    assert likelihood(learner, good) > before[0]
    assert likelihood(learner, bad) < before[1]


@pytest.mark.parametrize("full", [False, True])
def test_a_resumed_trainer_is_bit_equal(trainer, groups, tmp_path, full):
    whole, first, second = (trainer(full=full, schedule="cosine", warmup=1, steps=9) for _ in range(3))
    for learner in (whole, first):
        for _ in range(2):
            rl.step(learner, groups, rl.Config())
    first.save(tmp_path / "at-2")
    second.load(tmp_path / "at-2")
    metrics = [rl.step(learner, groups, rl.Config()) for learner in (whole, second)]
    for m in metrics:
        del m["seconds"]
    assert metrics[0] == metrics[1]
    assert second.version == 3
    for (k, p), q in zip(whole.policy.trainable().items(), second.policy.trainable().values(), strict=True):
        assert torch.equal(p, q), k


def test_broken_checkpoints_are_named(trainer, tmp_path):
    learner = trainer()
    with pytest.raises(MissingError, match="no whole trainer checkpoint"):
        learner.load(tmp_path / "nothing")
    for name in ("trainer.json", "optimizer.safetensors", "adapter_model.safetensors"):
        folder = tmp_path / name
        learner.save(folder)
        (folder / name).write_bytes((folder / name).read_bytes()[:-5])
        with pytest.raises(CorruptError, match="does not read"):
            learner.load(folder)
