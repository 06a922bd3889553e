"""The trainer: micro-batches in, one optimiser step, metrics out. It knows streams and losses, and no algorithm.

Every stream `w_NAME` is the weight of loss component NAME; the step's loss is the plain sum of weight * loss over all
micro-batches, so how they were cut cannot change it. `version` counts steps, skipped ones too: it is the number that
the weights are published under. A checkpoint is safetensors and JSON; `store` makes it atomic and checks its hashes.
No random number is drawn here, so there is no generator to save. Data order and cursors belong to the stages.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec import Struct
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from temper.core import registry
from temper.core.errors import ConfigError, CorruptError, MissingError, nearest
from temper.core.trace import MicroBatch
from temper.models import lora
from temper.models.attention import Packed
from temper.models.policy import Policy
from temper.models.scalar import HEAD, ScalarHead
from temper.training import optim
from temper.training.logprobs import logprobs, soft_logprobs
from temper.training.losses import LARGEST, whole
from temper.training.optim import Optimizer
from temper.training.scoring import predicted

LOSSES: dict[str, dict[str, Any]] = {
    "pg": {"kind": "ppo_clip"},
    "ce": {"kind": "cross_entropy"},
    "kl": {"kind": "kl"},
    "value": {"kind": "value"},
    "reward": {"kind": "bradley_terry"},
    "preference": {"kind": "dpo"},
    "distill": {"kind": "distill"},
}


class Config(optim.Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`micro_tokens`: cap of a micro-batch. `temperature`: what was sampled at. `losses`: tables by component.

    A token of a 135 M model in fp32 holds about 1.8 MB until its backward, and larger micro-batches are not faster.

    `losses` adds to or replaces entries of `LOSSES`, e.g. `losses.pg = {kind = "cispo", high = 0.3}`.
    `scalar`: train a scalar head beside the policy, which losses see as the stream `scalar`.
    """

    micro_tokens: int = 2048
    temperature: float = 1.0
    scalar: bool = False
    losses: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)


class Counters(Struct, frozen=True, kw_only=True):
    """`steps` drives the schedule; `updates` are those that were not skipped, for the moments' bias correction.

    `norms`: the last gradient norms, by which a spike is told.
    """

    version: int
    steps: int
    updates: int
    norms: list[float] = []


class Trainer:
    """Owns the optimiser of one policy. `step` blocks; run it in a thread beside an event loop."""

    def __init__(self, policy: Policy, config: Config) -> None:
        self.policy = policy
        self.config = config
        self.version = 0
        self.scalar = ScalarHead(policy) if config.scalar else None
        more = self.scalar.parameters if self.scalar else {}
        self.optimizer = Optimizer(policy.trainable() | more, config)
        self.losses = {
            name: registry.configure("training.losses", table) for name, table in (LOSSES | config.losses).items()
        }

    def step(self, batches: Sequence[MicroBatch]) -> dict[str, float]:
        """Gradient over all `batches`, one update, version + 1. A gradient that is not finite changes nothing."""
        start = time.perf_counter()
        metrics = self.accumulate(batches) | self.optimizer.step()
        self.version += 1
        sizes = [len(batch.ids) for batch in _every(batches)]
        seconds = time.perf_counter() - start
        return metrics | {"tokens": float(sum(sizes)), "micro_batches": float(len(sizes)), "seconds": seconds}

    def accumulate(self, batches: Sequence[MicroBatch]) -> dict[str, float]:
        """Gradients over all `batches` into the parameters' `.grad`, and the metrics; no update."""
        meter = _Meter()
        for parameter in self.optimizer.parameters.values():
            parameter.grad = None  # of a step that was interrupted
        for batch in batches:
            self._backward(batch, (), meter)
        return meter.metrics()

    @torch.no_grad()
    def evaluate(self, batches: Sequence[MicroBatch]) -> dict[str, float]:
        """Losses and diagnostics as of a step, and nothing changes."""
        meter = _Meter()
        for batch, wanted in predicted(self.policy, batches):
            self._loss(batch, wanted, meter)
        return meter.metrics()

    def state(self) -> dict[str, Any]:
        """Everything that a step depends on. Tensors are live, not copies."""
        return {
            "weights": {k: p.detach() for k, p in self.optimizer.parameters.items()},
            "optimizer": self.optimizer.state(),
            "counters": Counters(
                version=self.version,
                steps=self.optimizer.steps,
                updates=self.optimizer.updates,
                norms=self.optimizer.norms,
            ),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over a `state()`. Raises CorruptError or ConfigError when it is another policy's."""
        counters = state["counters"]
        self.optimizer.load_state(state["optimizer"], counters.steps, counters.updates)
        self.optimizer.norms = list(counters.norms)
        weights = dict(state["weights"])
        if self.scalar is not None:
            with torch.no_grad():
                for name, parameter in self.scalar.parameters.items():
                    parameter.copy_(weights.pop(name))
        self.policy.load_trainable(weights)
        self.version = counters.version

    def save(self, folder: str | Path) -> None:
        """Write the adapter in PEFT's format (or the model in the hub's), moments and counters into a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        state = self.state()
        self._save_weights({k: state["weights"][k] for k in self.policy.trainable()}, folder)
        if self.scalar is not None:
            self.scalar.save(folder)
        save_file({k: t.cpu() for k, t in state["optimizer"].items()}, folder / "optimizer.safetensors")
        (folder / "trainer.json").write_bytes(msgspec.json.encode(state["counters"]))

    def load(self, folder: str | Path) -> None:
        """Read what `save` wrote. Raises MissingError, CorruptError, ConfigError when it is another policy's."""
        folder = Path(folder)
        try:
            counters = msgspec.json.decode((folder / "trainer.json").read_bytes(), type=Counters)
            optimizer = load_file(folder / "optimizer.safetensors")
            weights = lora.load(folder)[1] if self.policy.adapter else load_file(folder / "model.safetensors")
            if self.scalar is not None:
                weights |= load_file(folder / HEAD)
        except FileNotFoundError as error:
            raise MissingError(f"no whole trainer checkpoint at {folder}: {error}") from None
        except (msgspec.MsgspecError, SafetensorError, UnicodeDecodeError) as error:
            raise CorruptError(f"the trainer checkpoint at {folder} does not read: {error}; use an older one") from None
        self.load_state({"weights": weights, "optimizer": optimizer, "counters": counters})

    def _save_weights(self, weights: Mapping[str, Tensor], folder: Path) -> None:
        base = self.policy.base
        if self.policy.adapter is not None:
            lora.save(weights, self.policy.adapter, folder, base.name)
            return
        save_file({k: t.cpu().contiguous() for k, t in weights.items()}, folder / "model.safetensors")
        base.config.save_pretrained(folder)
        base.tokenizer.save(str(folder / "tokenizer.json"))

    def _backward(self, batch: MicroBatch, above: tuple[_Above, ...], meter: _Meter) -> None:
        """Gradients of this micro-batch and those below it, which leave in `above` what they owe to it."""
        put = self._put
        layout = Packed(batch.lengths, batch.parents, [a.kept for a in above], keep=bool(batch.below))
        hidden = self.policy.hidden(put(batch.ids), put(batch.positions), layout)
        ends: list[Tensor] = []
        if len(batch.at):
            before = [above[-1].last] if above else []  # its index is -1 + 1
            at = self._put(batch.at + len(before))
            # index_select's backward is deterministic, that of hidden[...] is not
            ends = [self._loss(batch, torch.cat([*before, hidden]).index_select(0, at), meter)]
        if not batch.below:
            torch.autograd.backward(ends)
            return
        me = _Above(layout.kept, hidden)
        for under in batch.below:
            self._backward(under, (*above, me), meter)
        me.backward(ends)

    def _loss(self, batch: MicroBatch, wanted: Tensor, meter: _Meter) -> Tensor:
        """This micro-batch's part of the step's loss, from the states that its predictions are made from (K, D)."""
        put = self._put
        found, entropy = logprobs(wanted, self.policy.head, put(batch.targets), self.config.temperature, entropy=True)
        streams = {k: put(v).to(found.dtype) for k, v in batch.streams.items()}
        if self.scalar is not None:
            streams["scalar"] = self.scalar(wanted)
        if "teacher_ids" in streams:
            ids, q = streams["teacher_ids"].long(), streams["teacher_q"]
            streams["soft"] = soft_logprobs(wanted, self.policy.head, ids, q, self.config.temperature)
        meter.observe(found.detach(), entropy, streams, self.version)
        total = found.new_zeros(())
        for name in (k.removeprefix("w_") for k in streams if k.startswith("w_")):
            module, config = self._component(name, streams)
            if batch.below and whole(module, config):
                raise ConfigError(
                    f"loss {module.__name__} needs whole sequences, and a tree of {len(batch.ids)} shared tokens with "
                    "trained ones among them is too large for one micro-batch: raise the trainer's micro_tokens"
                )
            weight = streams[f"w_{name}"]
            values, diagnostics = module.loss(found, streams | {"weight": weight}, config)
            part = (values * weight).sum()
            meter.component(name, float(part.detach()), diagnostics, weight != 0)
            total = total + part
        return total

    def _component(self, name: str, streams: Mapping[str, Tensor]) -> tuple[Any, Any]:
        if name not in self.losses:
            raise ConfigError(f"no loss for the stream w_{name}; {nearest(name, self.losses)}")
        module, config = self.losses[name]
        missing = module.streams - streams.keys()
        if missing:
            raise ConfigError(
                f"loss {module.__name__} of component {name} needs the streams {', '.join(sorted(missing))}"
            )
        return module, config

    def _put(self, array: Any) -> Tensor:
        return torch.from_numpy(array).to(self.policy.base.device)


def _every(batches: Iterable[MicroBatch]) -> Iterator[MicroBatch]:
    for batch in batches:
        yield batch
        yield from _every(batch.below)


class _Above:
    """A computed segment as those below it see it: keys and values by layer, and the last hidden state `last` (1, D).

    They are leaves of the graphs below, which add up their gradients here; `backward` takes them on, once.
    """

    def __init__(self, kept: Mapping[int, tuple[Tensor, Tensor]], hidden: Tensor) -> None:
        self._outputs = [x for pair in kept.values() for x in pair] + [hidden[-1:]]
        self._leaves = [x.detach().requires_grad_() for x in self._outputs]
        self.kept = {layer: (self._leaves[2 * i], self._leaves[2 * i + 1]) for i, layer in enumerate(kept)}
        self.last = self._leaves[-1]

    def backward(self, ends: Sequence[Tensor]) -> None:
        pairs = zip(self._outputs, self._leaves, strict=True)
        owed = [(x, leaf.grad) for x, leaf in pairs if x.requires_grad and leaf.grad is not None]
        torch.autograd.backward([*ends, *(x for x, _ in owed)], [*(None for _ in ends), *(g for _, g in owed)])


class _Meter:
    """Sums and counts over micro-batches, so that metrics are means over tokens whatever the cut."""

    def __init__(self) -> None:
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.totals: defaultdict[str, float] = defaultdict(float)
        self.largest: dict[str, float] = {}

    def observe(self, found: Tensor, entropy: Tensor, streams: Mapping[str, Tensor], version: int) -> None:
        """What is true of any loss: size, entropy, and where tokens were sampled, distance to the behaviour policy."""
        self.totals["trained_tokens"] += len(found)
        self._mean("entropy", entropy)
        if "version" not in streams or "behaviour" not in streams:
            return
        sampled = streams["version"] >= 0
        d = (found - streams["behaviour"])[sampled]
        ratio = d.clamp(-LARGEST, LARGEST).exp()
        age = version - streams["version"][sampled]
        self._mean("ratio", ratio)
        self._mean("kl_behaviour", ratio - 1 - d)  # k3, of the behaviour policy to the current one
        self._mean("age", age)
        self._largest("ratio_max", ratio)
        self._largest("age_max", age)
        gap = d[age == 0].abs()  # the same weights in engine and trainer: numerics alone
        self._mean("logprob_gap", gap)
        self._largest("logprob_gap_max", gap)

    def component(self, name: str, loss: float, diagnostics: Mapping[str, Tensor], trained: Tensor) -> None:
        self.totals[f"loss_{name}"] += loss
        self.totals["loss"] += loss
        for key, values in diagnostics.items():
            self._mean(key, values[trained])

    def metrics(self) -> dict[str, float]:
        means = {k: self.sums[k] / n for k, n in self.counts.items() if n}
        return {"loss": 0.0, "trained_tokens": 0.0} | self.totals | means | self.largest

    def _mean(self, name: str, values: Tensor) -> None:
        self.sums[name] += float(values.sum())
        self.counts[name] += len(values)

    def _largest(self, name: str, values: Tensor) -> None:
        if len(values):
            self.largest[name] = max(self.largest.get(name, -math.inf), float(values.max()))
