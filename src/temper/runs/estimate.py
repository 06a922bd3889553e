"""What a recipe will cost, before it is run: tokens counted on gold episodes, seconds from stated rates."""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

from temper.core import config, registry
from temper.runs.recipe import Recipe
from temper.runs.stages import distill, preference, rejection, reward, rl, sft

# Tokens a second on 2 cores (AVX-512) in fp32 with SmolLM2-135M; they scale with cores and inversely with parameters.
RATES = {"prefill": 1000.0, "decode": 300.0, "gradient": 300.0}
SAMPLE_TASKS = 16


def estimate(recipe: Recipe) -> str:
    """The resolved recipe and a table of tokens and minutes by part, with every assumption said."""
    given, written = _lengths(recipe)
    parts: list[tuple[str, float, float, float]] = []  # name, prompt tokens, sampled tokens, gradient tokens
    evaluations = recipe.evaluation.tasks * recipe.evaluation.tries
    parts.append(("evaluate base", evaluations * given, evaluations * written, 0))
    for table in recipe.stages:
        module, settings = registry.configure("runs.stages", table)
        sampled, trained = _episodes(module, settings)
        parts.append((table["kind"], sampled * given, sampled * written, trained * (given + written)))
        if not getattr(module, "beside", False):
            parts.append((f"evaluate {table['kind']}", evaluations * given, evaluations * written, 0))
    lines = [config.dump(recipe), "", f"An episode: {given:.0f} tokens given, {written:.0f} written (gold answers)."]
    total = 0.0
    for name, prompt, sampled, trained in parts:
        seconds = prompt / RATES["prefill"] + sampled / RATES["decode"] + trained / RATES["gradient"]
        total += seconds
        lines.append(f"{name:16} {prompt + sampled + trained:10,.0f} tokens  {seconds / 60:6.1f} min")
    rates = ", ".join(f"{name} {rate:g}" for name, rate in RATES.items())
    lines.append(f"{'in all':16} {'':17}  {total / 60:6.1f} min at {rates} tokens/s (2 cores, 135 M parameters, fp32)")
    return "\n".join(lines)


def _episodes(module: ModuleType, settings: Any) -> tuple[float, float]:
    """Episodes that a stage samples, and those that it trains on, at most; 0 for a stage that is not ours."""
    if module is sft:
        return 0, settings.demonstrations * settings.data.epochs
    if module is rl:
        episodes, probe = settings.steps * settings.pacing.batch, settings.probe
        looks = -(-settings.steps // probe.every) if 0 < probe.every < settings.steps else 0
        return episodes + looks * probe.tasks, episodes
    if module is distill:
        return (episodes := settings.steps * settings.batch * settings.answers) + settings.held, episodes
    if module not in (rejection, reward, preference):
        return 0, 0
    sampled = (settings.tasks + settings.held) * settings.answers
    if module is rejection:
        return sampled, settings.tasks * settings.keep * settings.data.epochs
    return sampled, 2 * settings.tasks * settings.data.epochs  # both answers of a pair


def _lengths(recipe: Recipe) -> tuple[float, float]:
    """Mean tokens given and written in an episode, by shares; counted as 3 characters a token, tool output left out."""
    given = written = 0.0
    weight = sum(d.share for d in recipe.domains)
    for entry in recipe.domains:
        module, settings = registry.configure("domains", {"kind": entry.kind, **entry.settings})
        domain = module.create(settings)
        tasks = list(itertools.islice(domain.tasks("train", entry.level, recipe.seed), SAMPLE_TASKS))
        share = entry.share / weight / len(tasks)
        for task in tasks:
            gold = domain.gold(task)
            given += share * (sum(len(m.content) / 3 + 5 for m in task.messages) + 5 * len(gold))
            written += share * sum(
                len(m.content) / 3 + sum(8 + len(str(c.arguments)) / 3 for c in m.calls) for m in gold
            )
    return given, written
