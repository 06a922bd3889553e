"""The trainer: micro-batches in, one optimiser step, metrics out. It knows streams and losses, and no algorithm.

Every stream `w_NAME` is the weight of loss component NAME; the step's loss is the plain sum of weight * loss over all
micro-batches, so how they were cut, and over how many ranks they were dealt, cannot change it. `version` counts steps,
skipped ones too: it is the number that the weights are published under. A checkpoint is safetensors and JSON, and can
be read by any number of ranks; `store` makes it atomic and checks its hashes. No random number is drawn here, so there
is no generator to save. Data order and cursors belong to the stages, ranks to `parallel`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec import Struct
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from temper.core import registry
from temper.core.errors import ConfigError, CorruptError, MissingError, nearest
from temper.core.trace import MicroBatch
from temper.models import lora
from temper.models.policy import Policy
from temper.models.scalar import ScalarHead
from temper.training.config import Config
from temper.training.logprobs import logprobs, soft_logprobs
from temper.training.losses import whole
from temper.training.meter import Meter
from temper.training.optim import Optimizer
from temper.training.packing import Row, pack
from temper.training.parallel.team import Team
from temper.training.scoring import Kept, Scored, forward, predicted, score

LOSSES: dict[str, dict[str, Any]] = {
    "pg": {"kind": "ppo_clip"},
    "ce": {"kind": "cross_entropy"},
    "kl": {"kind": "kl"},
    "entropy": {"kind": "entropy"},
    "value": {"kind": "value"},
    "reward": {"kind": "bradley_terry"},
    "preference": {"kind": "dpo"},
    "distill": {"kind": "distill"},
}


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
        self.team = Team(policy, config)
        parameters = {**self.team.parameters(policy), **(self.scalar.parameters if self.scalar else {})}
        self.optimizer = Optimizer(parameters, config, self.team.norm)
        self.losses = {
            name: registry.configure("training.losses", table) for name, table in (LOSSES | config.losses).items()
        }

    def pack(self, rows: Sequence[Row], together: bool = False) -> list[MicroBatch]:
        """Rows as micro-batches of this trainer's size, equally many for each rank; see `packing.pack`."""
        return pack(rows, self.config.micro_tokens, together=together, ranks=self.team.size)

    def step(self, batches: Sequence[MicroBatch]) -> dict[str, float]:
        """Gradient over all `batches`, one update, version + 1. A gradient that is not finite changes nothing."""
        start = time.perf_counter()
        with self.team.act("step", batches, version=self.version) as mine:
            metrics = self.accumulate(mine) | self.optimizer.step()
        self.version += 1
        sizes = [len(batch.ids) for batch in _every(batches)]
        seconds = time.perf_counter() - start
        return metrics | {"tokens": float(sum(sizes)), "micro_batches": float(len(sizes)), "seconds": seconds}

    def accumulate(self, batches: Sequence[MicroBatch]) -> dict[str, float]:
        """Gradients over all `batches` into the parameters' `.grad`, and the metrics; no update."""
        meter = Meter()
        with self.team.act("accumulate", batches, version=self.version) as mine:
            for parameter in self.optimizer.parameters.values():
                parameter.grad = None  # of a step that was interrupted
            for number, batch in enumerate(mine, 1):
                self._backward(batch, (), meter, last=number == len(mine))
            return Meter.joined(self.team.total(self.optimizer.parameters, meter.frame())).metrics()

    @torch.no_grad()
    def evaluate(self, batches: Sequence[MicroBatch]) -> dict[str, float]:
        """Losses and diagnostics as of a step, and nothing changes."""
        meter = Meter()
        for batch, wanted in predicted(self.policy, batches):
            self._loss(batch, wanted, meter)
        return meter.metrics()

    def score(self, rows: Sequence[Row], cap: int = 0) -> list[Scored]:
        """What the policy says of rows, as a step would measure them. `cap`: of a micro-batch, 0 for a step's."""
        config = self.config
        cap = cap or config.micro_tokens
        return score(self.policy, rows, cap, temperature=config.temperature, scalar=self.scalar)

    def save(self, folder: str | Path) -> None:
        """Write the adapter in PEFT's format (or the model in the hub's), moments and counters into a folder.

        Moments that are spread over ranks are a file for each of these.
        """
        folder = Path(folder)
        counters = Counters(
            version=self.version,
            steps=self.optimizer.steps,
            updates=self.optimizer.updates,
            norms=self.optimizer.norms,
        )
        with self.team.act("save", folder=str(folder)):
            folder.mkdir(parents=True, exist_ok=True)
            name, moments = self.team.part(self.optimizer.state())
            if name:
                save_file({k: t.cpu() for k, t in moments.items()}, folder / name)
            weights = self.policy.trainable()
            if self.team.first:
                self._save_weights(weights, folder)
                if self.scalar is not None:
                    self.scalar.save(folder)
                (folder / "trainer.json").write_bytes(msgspec.json.encode(counters))

    def load(self, folder: str | Path) -> None:
        """Read what `save` wrote. Raises MissingError, CorruptError, ConfigError when it is another policy's."""
        folder = Path(folder)
        with self.team.act("load", folder=str(folder)):
            try:
                counters = msgspec.json.decode((folder / "trainer.json").read_bytes(), type=Counters)
                moments = self._moments(folder)
                weights = lora.load(folder)[1] if self.policy.adapter else load_file(folder / "model.safetensors")
            except FileNotFoundError as error:
                raise MissingError(f"no whole trainer checkpoint at {folder}: {error}") from None
            except (msgspec.MsgspecError, SafetensorError, UnicodeDecodeError) as error:
                raise CorruptError(
                    f"the trainer checkpoint at {folder} does not read: {error}; use an older one"
                ) from None
            self.optimizer.load_state(moments, counters.steps, counters.updates)
            self.optimizer.norms = list(counters.norms)
            if self.scalar is not None:
                self.scalar.load(folder)
            self.policy.load_trainable(weights)
        self.version = counters.version

    def _moments(self, folder: Path) -> dict[str, Tensor]:
        """This rank's, from the rows of however many ranks."""
        files = sorted(folder.glob("optimizer*.safetensors"))
        if not files:
            raise FileNotFoundError("optimizer.safetensors")
        with contextlib.ExitStack() as stack:
            parts = [stack.enter_context(safe_open(file, "pt")) for file in files]
            names = {name: None for part in parts for name in part.keys()}  # noqa: SIM118
            return {
                name: self.team.cut(name, torch.cat([p.get_tensor(name) for p in parts if name in p.keys()]))  # noqa: SIM118
                for name in names
            }

    def _save_weights(self, weights: Mapping[str, Tensor], folder: Path) -> None:
        base = self.policy.base
        if self.policy.adapter is not None:
            lora.save(weights, self.policy.adapter, folder, base.name)
            return
        save_file({k: t.cpu().contiguous() for k, t in weights.items()}, folder / "model.safetensors")
        base.config.save_pretrained(folder)
        base.tokenizer.save(str(folder / "tokenizer.json"))

    def _backward(self, batch: MicroBatch, above: tuple[_Above, ...], meter: Meter, last: bool = False) -> None:
        """Gradients of this micro-batch and those below it, which leave in `above` what they owe to it."""
        seen = [(a.kept, a.last) for a in above]
        wanted, hidden, kept = forward(self.policy, batch, seen, self.config.gradient_checkpointing)
        ends: list[Tensor] = []
        if len(batch.at):
            ends = [self._loss(batch, wanted, meter)]
        elif not batch.below:  # it is there to make the calls that other ranks make (`packing.deal`)
            ends = [hidden.sum() * 0]
        if not batch.below:
            torch.autograd.backward(ends + (self.team.last() if last else []))
            return
        me = _Above(kept, hidden)
        for under in batch.below:
            self._backward(under, (*above, me), meter)
        me.backward(ends + (self.team.last() if last else []))

    def _loss(self, batch: MicroBatch, wanted: Tensor, meter: Meter) -> Tensor:
        """This micro-batch's part of the step's loss, from the states that its predictions are made from (K, D)."""
        put = self._put
        heat, explores = self.config.temperature, "w_entropy" in batch.streams
        found, entropy = logprobs(wanted, self.policy.head, put(batch.targets), heat, True, explores)
        streams = {k: put(v).to(found.dtype) for k, v in batch.streams.items()}
        assert entropy is not None
        if explores:
            streams["entropy"] = entropy
        if self.scalar is not None:
            streams["scalar"] = self.scalar(wanted)
        if "teacher_ids" in streams:
            ids, q = streams["teacher_ids"].long(), streams["teacher_q"]
            streams["soft"] = soft_logprobs(wanted, self.policy.head, ids, q, self.config.temperature)
        meter.observe(found.detach(), entropy.detach(), streams, self.version)
        total = found.new_zeros(())
        for name in (k.removeprefix("w_") for k in streams if k.startswith("w_")):
            module, config = self._component(name, streams)
            if any(len(under.at) for under in _every(batch.below)) and whole(module, config):
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

    def __init__(self, kept: Kept, hidden: Tensor) -> None:
        self._outputs = [x for pair in kept.values() for x in pair] + [hidden[-1:]]
        self._leaves = [x.detach().requires_grad_() for x in self._outputs]
        self.kept = {layer: (self._leaves[2 * i], self._leaves[2 * i + 1]) for i, layer in enumerate(kept)}
        self.last = self._leaves[-1]

    def backward(self, ends: Sequence[Tensor]) -> None:
        if self.last.grad is None:  # keys and values of the last layer are not among what it gives
            self.last.grad = torch.zeros_like(self.last)
        pairs = zip(self._outputs, self._leaves, strict=True)
        owed = [(x, leaf.grad) for x, leaf in pairs if x.requires_grad and leaf.grad is not None]
        torch.autograd.backward([*ends, *(x for x, _ in owed)], [*(None for _ in ends), *(g for _, g in owed)])
