"""Several verifiers as one, with their scores and components kept apart by name.

Settings: {"rule": "gate", "parts": [{"name": "tests", "verifier": {"kind": "code"}, "weight": 2.0}, ...]}; the task's
reference is an object with each part's reference under its name. Rules:

- sum: the weighted mean of the parts
- gate: the weighted mean of the others, if the first part is right, else 0
- sequence: the parts in order up to the first that is not right; the weighted mean, with 0 for those not reached
- minimum: the worst part

A part that cannot be graded masks the whole, under the part's own blame; nothing is averaged over what is missing.
`shaping` adds rewards by segment for training and leaves the score, which is for people, alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from temper.core import registry
from temper.core.errors import ConfigError
from temper.core.protocols import SandboxBackend, Verifier
from temper.core.task import Task
from temper.core.trace import Evidence, Trace, Verdict
from temper.verifiers.grading import fingerprint, grade
from temper.verifiers.pool import Pool


class Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    verifier: dict[str, Any]  # a table with `kind`
    weight: float = 1.0


class Shaping(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is taken off the rewards of the policy's segments.

    turn: for each turn after the first. malformed: for each message that did not parse. Length as in DAPO (arXiv
    2503.14476): nothing up to `length` sampled tokens, then linearly up to `length_weight` at `length + slack`.
    """

    turn: float = 0.0
    malformed: float = 0.0
    length: int = 0  # 0: no penalty
    slack: int = 1
    length_weight: float = 1.0


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rule: Literal["sum", "gate", "sequence", "minimum"]
    parts: list[Part]
    shaping: Shaping | None = None


class Combined:
    """`core.protocols.Verifier`."""

    name = "combine"

    def __init__(self, config: Config, pool: Pool, sandboxes: SandboxBackend) -> None:
        names = [part.name for part in config.parts]
        if not names or len(set(names)) < len(names) or min(part.weight for part in config.parts) <= 0:
            raise ConfigError(f"combine: expected parts with distinct names and positive weights, got {names}")
        self._config = config
        self._parts: dict[str, Verifier] = {}
        for part in config.parts:
            module, settings = registry.configure("verifiers", part.verifier)
            self._parts[part.name] = module.create(settings, pool, sandboxes)
        parts = [msgspec.structs.replace(p, verifier={"hash": self._parts[p.name].hash}) for p in config.parts]
        self.hash = fingerprint(msgspec.structs.replace(config, parts=parts), __name__)

    async def grade(self, task: Task, trace: Trace, artifacts: Mapping[str, bytes]) -> Verdict:
        if not isinstance(task.reference, Mapping) or task.reference.keys() != self._parts.keys():
            detail = f"task {task.id}, combine: expected a reference for each of {', '.join(self._parts)}"
            return Verdict.ruled("reference-missing", trace.id, self.hash, detail)
        verdicts = await self._verdicts(task, trace, artifacts)
        for name, verdict in verdicts.items():
            if verdict.masked:
                detail = "; ".join(evidence.text for evidence in verdict.evidence)
                return Verdict.ruled(verdict.why, trace.id, self.hash, f"{name}: {detail}")
        components = {}
        for name, verdict in verdicts.items():
            components[name] = verdict.score
            components |= {f"{name}.{key}": value for key, value in verdict.components.items()}
        evidence = tuple(Evidence(f"{name}: {e.text}", e.span) for name, v in verdicts.items() for e in v.evidence)
        score = self._score({name: verdict.score for name, verdict in verdicts.items()})
        rewards, taken = shaped(score, trace, self._config.shaping) if self._config.shaping else ({}, {})
        more = {"score": score, "rewards": rewards, "components": components | taken, "evidence": evidence}
        return Verdict.ruled("graded", trace.id, self.hash, **more)

    async def _verdicts(self, task: Task, trace: Trace, artifacts: Mapping[str, bytes]) -> dict[str, Verdict]:
        """Of the parts that the rule needs."""

        async def one(name: str) -> Verdict:
            asked = msgspec.structs.replace(task, reference=task.reference[name])
            return await grade(asked, trace, artifacts, self._parts[name])

        found: dict[str, Verdict] = {}
        waiting = list(self._parts)
        while waiting:
            ahead = {"sequence": 1, "gate": 1 if not found else len(waiting)}.get(self._config.rule, len(waiting))
            now, waiting = waiting[:ahead], waiting[ahead:]
            found |= zip(now, await asyncio.gather(*map(one, now)), strict=True)
            if any(found[name].masked or found[name].score < 1 for name in now):
                break
        return found

    def _score(self, scores: Mapping[str, float]) -> float:
        """`scores` lacks the parts that were not reached."""
        if self._config.rule == "minimum":
            return min(scores.values())
        parts = self._config.parts
        if self._config.rule == "gate":
            gate, *parts = parts
            if scores[gate.name] < 1 or not parts:
                return float(scores[gate.name] == 1)
        return sum(p.weight * scores.get(p.name, 0.0) for p in parts) / sum(p.weight for p in parts)


create = Combined


def shaped(score: float, trace: Trace, shaping: Shaping) -> tuple[dict[int, float], dict[str, float]]:
    """Rewards by segment, which sum to the score less what is taken off, and what is, by name."""
    path, at = [], len(trace.segments) - 1
    while at >= 0:
        path.append(at)
        at = trace.segments[at].parent
    own = [n for n in reversed(path) if trace.segments[n].author == "policy"]
    if not own:
        return {}, {}
    malformed = {n: sum(bool(message.malformed) for message in trace.segments[n].messages) for n in own}
    rewards = {n: -shaping.turn * (n != own[0]) - shaping.malformed * malformed[n] for n in own}
    tokens = sum(len(trace.segments[n]) for n in own)
    over = min(1.0, max(0, tokens - shaping.length) / shaping.slack) if shaping.length else 0.0
    rewards[own[-1]] += score - shaping.length_weight * over
    taken = {
        "shaping.turns": -shaping.turn * (len(own) - 1),
        "shaping.malformed": -shaping.malformed * sum(malformed.values()),
        "shaping.length": -shaping.length_weight * over,
    }
    return rewards, taken
