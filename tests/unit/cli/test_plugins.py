"""`temper new`, `temper check verifier`, `temper audit`: what a template gives works, and a broken one is told."""

from __future__ import annotations

import importlib
import json
import pkgutil
from itertools import islice
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import temper.cli
from temper.core import registry


@pytest.fixture
def temper_(tmp_path, monkeypatch):
    """temper_("new", ...): the command in an empty folder that is on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in pkgutil.iter_modules(temper.cli.__path__):
        if module.name != "__main__":
            importlib.import_module(f"temper.cli.{module.name}")

    def run(*words: str) -> Result:
        return CliRunner().invoke(temper.cli.app, list(words))

    return run


def test_a_new_verifier_keeps_its_contract(temper_):
    assert temper_("new", "verifier", "made_here.capitals").exit_code == 0
    result = temper_("check", "verifier", "made_here.capitals")
    assert result.exit_code == 0, result.output
    assert "kept     attack: judge injection" in result.output
    assert "kept     right: in small letters" in result.output


def test_a_shipped_verifier_is_tried_on_what_its_contract_suite_has(temper_):
    result = temper_("check", "verifier", "exact")
    assert result.exit_code == 0, result.output
    assert "kept     right: the gold answer" in result.output


def test_a_verifier_that_pays_for_anything_is_told_so(temper_):
    temper_("new", "verifier", "made_too.generous")
    path = Path("made_too/generous.py")
    path.write_text(path.read_text().replace("return said.strip()", "return bool(said.strip()) or said"))
    result = temper_("check", "verifier", "made_too.generous")
    assert result.exit_code == 1
    assert "broken   wrong: another word  graded 1" in result.output
    assert "kept     attack: empty" in result.output


def test_a_new_domain_has_tasks_and_can_be_audited(temper_):
    assert temper_("new", "domain", "made_also.reversed_words").exit_code == 0
    domain = registry.find("domains", "made_also.reversed_words").create()
    task = next(iter(domain.tasks("train", 1)))
    assert task.domain == "made_also.reversed_words"
    assert len({task.id for task in islice(domain.tasks("train", 2), 300)}) == 300
    result = temper_("audit", "made_also.reversed_words", "--json", "card.json")
    assert result.exit_code == 0, result.output
    metrics = json.loads(Path("card.json").read_text())["metrics"]
    assert metrics["attacks_held_min"] == 1.0
    assert metrics["fpr_high_max"] <= 0.015
    assert metrics["distinct_tasks_min"] == 300
    assert Path("made_also/cards/reversed_words.json").exists()
    again = temper_("audit", "made_also.reversed_words")
    assert "Fit to train on." in again.output
    assert "known answers" not in again.output, "a current card is not measured again"


@pytest.mark.parametrize("name", ["plain", "not-a.name", "a..b", "made_of.class"])
def test_a_name_that_cannot_be_imported_is_refused(temper_, name):
    result = temper_("new", "domain", name)
    assert "expected a dotted path" in str(result.exception)


def test_a_name_that_another_module_would_hide_is_refused(temper_):
    assert "would hide" in str(temper_("new", "domain", "json.words").exception)
    assert not Path("json").exists()


def test_a_plugin_that_cannot_be_written_is_told(temper_, monkeypatch):
    monkeypatch.chdir("/proc")
    assert "cannot be created" in str(temper_("new", "domain", "made_nowhere.words").exception)


def test_an_audit_whose_figures_have_nowhere_to_go_does_not_begin(temper_):
    result = temper_("audit", "arithmetic", "--json", "nowhere/card.json")
    assert "cannot be created" in str(result.exception)
    assert "known answers" not in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["audit", "arithmetic", "nosuch"], "no plugin of domains is called 'nosuch'"),
        (["audit", "arithmetic", "--mine", "run"], "one of them"),
        (["check", "sandbox", "local", "--only", "clim/"], "did you mean 'climb/'"),
        (["bench", "sandbox", "start=4"], "unknown setting 'start'; did you mean 'starts'"),
        (["bench", "sandbox", "starts=many"], "starts: expected int, got 'many'"),
        (["bench", "sandbox", "--json", "nowhere/s.json"], "cannot be created"),
    ],
)
def test_what_cannot_be_measured_is_said_before_anything_is(temper_, words, said):
    result = temper_(*words)
    assert said in str(result.exception)
    assert not result.output
