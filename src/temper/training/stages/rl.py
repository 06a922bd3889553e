"""Reinforcement learning, the pure part: groups of graded samples to micro-batches, and one update on them.

The global count of `pg` is over all graded samples, those of groups that teach nothing included; samples whose
advantage is 0 have no gradient and are therefore not computed (unless a KL term or a value is to be learnt from them),
but counted in the metrics. Masked samples are in no mean. Sampling, pacing and publishing belong to `scheduling` and
`runs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from msgspec import Struct

from temper.core import registry
from temper.core.errors import ConfigError
from temper.core.trace import Group, MicroBatch, Sample
from temper.training.packing import Row, pack
from temper.training.stages import Path, path

if TYPE_CHECKING:
    from temper.training.scoring import Weights
    from temper.training.trainer import Trainer


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`algorithm`: its name, or a table with `kind` and its settings. `aggregate`: the loss is a mean over tokens
    (DAPO), or over sequences of their means (GRPO, GSPO). `share`: compute a group's prompt once a micro-batch.

    `kl`: weight of the KL to the policy that the stage began with (component `kl`). `entropy`: weight of the entropy
    bonus. `value`: weight of the component `value`, for algorithms that need values. `proximal`: what the clip is
    around (`losses`): the policy that sampled, the current one, or one on the way, one version old.
    """

    algorithm: str | dict[str, Any] = "grpo"
    aggregate: Literal["token", "sequence"] = "token"
    share: bool = True
    kl: float = 0.0
    entropy: float = 0.0
    value: float = 0.5
    proximal: Literal["behaviour", "current", "interpolated"] = "behaviour"


def step(
    trainer: Trainer, items: Sequence[Group], config: Config, reference: Weights | None = None
) -> dict[str, float]:
    """One update on these groups. The version rises also when they teach nothing.

    `reference`: weights of the policy that `kl` pulls to. Raises ConfigError where the algorithm needs values and the
    trainer has no scalar head.
    """
    from temper.training.scoring import lent

    module, _ = registry.configure("training.algorithms", config.algorithm)
    groups = [[_Asked(g, n, s) for s in g.samples] for n, g in enumerate(items)]
    every = [asked for group in groups for asked in group if not asked.sample.verdict.masked]
    if "values" in module.needs:
        if trainer.scalar is None:
            raise ConfigError(f"{module.__name__} needs values: set the trainer's scalar = true")
        for asked, scored in zip(every, trainer.score([a.row({}) for a in every]), strict=True):
            assert scored.values is not None
            asked.values = scored.values
    if config.kl:
        if reference is None:
            raise ConfigError("kl needs the weights of a reference policy, and this stage was given none")
        with lent(trainer.policy, reference):
            found = trainer.score([a.row({}) for a in every])
        for asked, scored in zip(every, found, strict=True):
            asked.reference = scored.logprobs
    cap, ranks = trainer.config.micro_tokens, trainer.team.size
    batches, metrics = micro_batches(items, config, cap, trainer.version, ranks, groups)
    return metrics | trainer.step(batches)


def micro_batches(
    groups: Sequence[Group],
    config: Config,
    cap: int,
    version: int = 0,
    ranks: int = 1,
    asked: Sequence[Sequence[_Asked]] = (),
) -> tuple[list[MicroBatch], dict[str, float]]:
    """Micro-batches of the groups, and what is to be known about these. `version`: of the weights to be updated.

    `asked`: the groups' samples with what was measured of them, where anything was.
    """
    asked = asked or [[_Asked(g, n, s) for s in g.samples] for n, g in enumerate(groups)]
    module, settings = registry.configure("training.algorithms", config.algorithm)
    advantages, returns = _credit(module, settings, groups, asked)
    graded = [
        (a, np.broadcast_to(np.asarray(credit, np.float32), len(a.path.ids)), goal)
        for group, credits, goals in zip(asked, advantages, returns, strict=True)
        for a, credit, goal in zip(group, credits, goals, strict=True)
        if not a.sample.verdict.masked
    ]
    counts = np.array([a.mask.sum() for a, _, _ in graded], np.int64)
    shares = np.zeros(len(counts))
    if config.aggregate == "token":
        shares[:] = 1 / max(counts.sum(), 1)
    else:
        shares[counts > 0] = 1 / ((counts > 0).sum() * counts[counts > 0])
    rows = [
        a.row(_streams(a, credit, goal, a.mask * share, config, version))
        for (a, credit, goal), share in zip(graded, shares, strict=True)
        if a.mask.any() and (credit[a.mask].any() or goal is not None or a.reference is not None or config.entropy)
    ]
    flat = [not any(np.nan_to_num(np.asarray(credit)).any() for credit in credits) for credits in advantages]
    every = sum(len(g.samples) for g in groups)
    metrics = {
        "samples": float(every),
        "samples_masked": float(every - len(graded)),
        "samples_without_gradient": float(len(graded) - len(rows)),
        "groups": float(len(groups)),
        "groups_without_gradient": float(sum(flat)),
    }
    if graded:
        metrics["reward"] = float(np.mean([a.sample.verdict.reward for a, _, _ in graded]))
        metrics["answer_tokens"] = float(counts.mean())
    return pack(rows, cap, share=config.share, ranks=ranks), metrics


class _Asked:
    """A sample on its way to a row: its path, where it is trained, and what was measured of it."""

    def __init__(self, group: Group, number: int, sample: Sample) -> None:
        self.sample = sample
        self.family = f"{group.task}/{number}"
        self.path: Path = path(sample.trace, sample.leaf)
        self.mask = self.path.sampled
        self.values = np.zeros(len(self.path.ids), np.float32)
        self.reference: np.ndarray | None = None

    def row(self, streams: dict[str, np.ndarray]) -> Row:
        streams = streams or {"w_pg": self.mask.astype(np.float32)}
        return Row(name=self.sample.trace.id, ids=self.path.ids, streams=streams, family=self.family)


def _credit(
    module: ModuleType, settings: Any, groups: Sequence[Group], asked: Sequence[Sequence[_Asked]]
) -> tuple[Sequence[Sequence[Any]], Sequence[Sequence[np.ndarray | None]]]:
    """Advantages of each sample, and the returns that its values are to be."""
    more = [] if settings is None else [settings]
    if "values" not in module.needs:
        return module.advantages(groups, *more), [[None] * len(g.samples) for g in groups]
    values = [[a.values for a in group] for group in asked]
    return module.advantages(groups, *more, values), module.targets(groups, *more, values)


def _streams(
    asked: _Asked, advantage: np.ndarray, goal: np.ndarray | None, weight: np.ndarray, config: Config, version: int
) -> dict[str, np.ndarray]:
    p = asked.path
    streams = {"w_pg": weight, "advantage": advantage, "behaviour": p.logprobs, "version": p.versions}
    if goal is not None:
        streams |= {"w_value": config.value * weight, "returns": goal, "old_value": asked.values}
    if asked.reference is not None:
        streams |= {"w_kl": config.kl * weight, "reference": asked.reference}
    if config.entropy:
        streams["w_entropy"] = config.entropy * weight
    if config.proximal == "current":
        streams["nearness"] = np.ones(len(p.ids))
    elif config.proximal == "interpolated":
        streams["nearness"] = nearness(p.versions, version)
    return streams


def nearness(versions: np.ndarray, version: int) -> np.ndarray:
    """Where the policy one version before `version` lies between the one that sampled (0) and the current one (1)."""
    age = np.maximum(version - versions, 1)
    return (age - 1) / age
