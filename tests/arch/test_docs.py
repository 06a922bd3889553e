"""What the documentation says can be done: commands parse, recipes and settings resolve, links lead somewhere.

Nothing is executed. Commands are lines of code fences that begin with `temper`.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

import temper.cli

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"))
}
FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.M | re.S)
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")
COMMANDS = sorted(
    {
        (page, shlex.join(shlex.split(line, comments=True)))
        for page, text in PAGES.items()
        for line in "\n".join(FENCE.findall(text)).splitlines()
        if line.split()[:1] == ["temper"]
    }
)


def parsed(line: str) -> tuple[str, dict[str, Any]]:
    """Verb and parameters. Raises the command line's own error for an option or argument that it does not take."""
    for module in pkgutil.iter_modules(temper.cli.__path__):
        if module.name != "__main__":
            importlib.import_module(f"temper.cli.{module.name}")  # adds its verb
    command: Any = typer.main.get_command(temper.cli.app)
    _, *words = shlex.split(line)
    while hasattr(command, "commands"):
        verb, *words = words
        assert verb in command.commands, f"no verb {verb!r}; there are {', '.join(command.commands)}"
        command = command.commands[verb]
    return verb, command.make_context(verb, words).params


def test_there_is_something_to_check():
    assert len(COMMANDS) > 5
    assert any(LINK.search(text) for text in PAGES.values())


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_commands_parse(page, line):
    verb, given = parsed(line)
    if verb == "bench" and given["name"]:
        assert (ROOT / "benchmarks" / f"{given['name'].replace('-', '_')}.py").exists()


def test_recipes_and_settings_resolve():
    from temper.runs import recipe

    for page, line in COMMANDS:
        verb, given = parsed(line)
        name = given.get("recipe") or ""
        if verb in ("run", "eval") and name and not name.endswith(".toml"):  # a reader's own file
            assert recipe.load(name, given["overrides"] or ()).name, f"{page}: {line}"


@pytest.mark.parametrize(
    ("page", "link"), [(page, link) for page, text in PAGES.items() for link in LINK.findall(text)]
)
def test_links_lead_somewhere(page, link):
    assert (ROOT / page).parent.joinpath(link).exists()


def test_methods_are_settings_of_an_rl_stage():
    """Each row of the table of methods in docs/training.md, as overrides of a recipe."""
    from temper.runs import recipe

    rows = re.findall(r"^\| ([^|`]+) \| (`[^|]*) \|$", PAGES["docs/training.md"], re.M)
    settings = {method: re.findall(r"`([\w.]+) = ([^`]+)`", cell) for method, cell in rows}
    settings = {method: found for method, found in settings.items() if found}
    assert {"GRPO", "DAPO", "IcePop", "PPO with a value model"} <= settings.keys()
    for found in settings.values():
        recipe.load("smoke", [f"stages.1.{key}={value}" for key, value in found])
