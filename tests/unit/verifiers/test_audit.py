"""The audit finds the flaws that verifiers of others had, and finds none in ours; its mutations are mutations."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from temper.core import registry
from temper.core.task import Case, Task
from temper.verifiers.audit import attacks, cards, mutations, screens
from temper.verifiers.audit.bench import opened
from temper.verifiers.audit.measure import measure
from temper.verifiers.audit.trials import Example, under_kills

sys.path.insert(0, str(Path(__file__).parent))  # the plugins in `audited`, in other processes too


def audited(flaw: str = "none", count: int = 6) -> cards.Card:
    settings = {"verifier": "audited.flawed", "flaw": flaw}
    return asyncio.run(measure("audited.words", settings, count))


@pytest.fixture(scope="module")
def sound() -> cards.Card:
    return audited()


def test_a_sound_verifier_has_no_failures(sound):
    assert sound.failures == ()
    assert sound.attacks_held == 1.0
    assert not any(sound.trials.values())
    assert (sound.false_positives.rate, sound.false_negatives.rate) == (0.0, 0.0)
    assert sound.tasks == sound.false_positives.tasks == sound.false_negatives.tasks == 6


def test_a_card_names_its_data_licence_sources_and_latency(sound):
    assert sound.identity.licences == ("CC0-1.0",)
    assert list(sound.identity.verifiers) == ["audited.flawed"]
    assert sound.sources["outside"] == 6
    assert 0 < sound.outside_share < 0.5
    assert 0 < sound.latency_ms["p50"] <= sound.latency_ms["p99"]


@pytest.mark.parametrize(
    ("flaw", "what"),
    [
        ("any text", "attack: refusal"),
        ("substring", "attack: all answers"),
        ("refuses capitals", "right: in capitals"),
        ("crash on nul", "attack: nul"),
    ],
)
def test_a_flawed_verifier_is_found_out(flaw, what):
    card = audited(flaw)
    assert what in {failure.what for failure in card.failures}, card.failures
    assert card.shortfall()


@pytest.mark.parametrize(
    ("flaw", "trial"),
    [("hash order", "the same from another process"), ("outage is a zero", "no sandbox to be had: masked")],
)
def test_a_trial_that_fails_says_which_answer_changed(flaw, trial):
    assert "words-train-" in audited(flaw).trials[trial]


def test_a_domain_with_few_tasks_is_measured_on_those_and_says_so():
    settings = {"verifier": "audited.flawed", "ends": 4}
    card = asyncio.run(measure("audited.words", settings, 20))
    assert card.tasks == 8  # four of each split
    assert "fewer than 250 distinct tasks" in cards.page(card)


# Python mutants


def calls(*args: int) -> list[list[object]]:
    return [["f", [x], {}] for x in args]


def test_mutants_change_one_thing_each():
    found = dict(mutations.python_mutants("def f(x):\n    return x + 2 if x > 1 else 0\n"))
    assert "def f(x):\n    return x - 2 if x > 1 else 0" in found.values()
    assert "def f(x):\n    return x + 2 if x >= 1 else 0" in found.values()
    assert len(set(found.values())) == len(found)


@pytest.mark.parametrize(
    ("mutant", "differs"),
    [
        ("def f(x):\n    return x + 3\n", True),
        ("def f(x):\n    return 2 + x\n", False),
        ("def f(x):\n    return None\n", True),
        ("def f(x):\n    return float(x + 2)\n", True),
        ("def g(x):\n    return x + 2\n", True),
    ],
)
def test_a_screen_tells_mutants_from_programs_that_mean_the_same(mutant, differs):
    gold = {"m.py": "from parts import two\n\ndef f(x):\n    return x + two\n", "parts.py": "two = 2\n"}
    assert screens.python(gold, {**gold, "m.py": mutant}, "m", calls(1, 5, -3)) is differs


def test_inputs_on_which_the_gold_solution_raises_prove_nothing():
    gold, mutant = "def f(x):\n    return 1 // 0\n", "def f(x):\n    return 7\n"
    assert not screens.python({"m.py": gold}, {"m.py": mutant}, "m", calls(1, 2))


# SQL mutants

PETS = "CREATE TABLE pets(name, age); INSERT INTO pets VALUES ('a', 1), ('b', 3), ('c', 5);"


def test_sql_mutants_are_confirmed_by_rows():
    query = "SELECT name FROM pets WHERE age > 2 ORDER BY age"
    found = dict(mutations.sql_mutants(query))
    assert found["the other order"] == "SELECT name FROM pets WHERE age > 2 ORDER BY age DESC"
    assert screens.sql([PETS], query, found["the other order"])
    assert not screens.sql([PETS], query, found["2 and one"].replace("> 3", ">= 3"))  # the same rows: no mutation
    assert screens.sql([PETS], query, "SELECT nothing FROM pets")


# Answers


def test_math_answers_are_respelled_and_spoilt():
    gold = Case(right=True, why="gold", answer="12*2=24\n24/16=3/2")
    task = Task(id="t", domain="d", messages=(), reference={})
    assert {"3/2", "\\boxed{\\frac{3}{2}}", "6/4"} <= {case.answer for case in mutations.forms("math", gold)}
    wrong = {miss.case.answer for miss in mutations.misses("math", task, gold)}
    assert "12*2=24\n24/16=5/2" in wrong
    assert gold.answer not in wrong


def test_a_program_attack_stands_before_the_untouched_file_and_takes_over_its_functions():
    task = Task(id="t", domain="d", messages=(), reference={})
    gold = Case(right=True, why="gold", artifacts={"m.py": b"def f(x):\n    return 1\n"})
    found = {case.why: case.artifacts for case in attacks.delivered(task, gold, ())}
    scope: dict[str, object] = {}
    exec(found["py: always-equal object"]["m.py"], scope)
    assert scope["f"](1) == "anything"  # type: ignore[operator]
    assert "conftest.py" in found["artifacts that were not asked for"]


def test_every_python_attack_compiles():
    for name, text in attacks.PROGRAMS.items():
        compile(text, name, "exec")


# Killed workers


def killed_while_grading(kills: int, seconds: float) -> tuple[str, int]:
    """Known math answers, exact and symbolic, over and over."""

    async def main() -> tuple[str, int]:
        module, config = registry.configure("domains", "arithmetic")
        domain = module.create(config)
        asked = [("19", "The answer is 19.", 1.0), ("19", "18", 0.0), ("1/2", "\\boxed{\\frac{2}{4}}", 1.0)]
        asked += [(str(n), f"{n}", 1.0) for n in range(20, 60)] + [(str(n), f"{n + 1}", 0.0) for n in range(60, 100)]
        first = next(iter(domain.tasks("train", 1)))
        async with opened(domain, cached=0) as bench:
            examples = []
            for n, (gold, said, score) in enumerate(asked):
                task = replace(first, id=str(n), reference={"answer": gold})
                case = Case(right=score == 1, why="known", answer=said)
                verdict = await bench.judge(task, case)
                assert (verdict.status, verdict.score) == ("graded", score)
                examples.append(Example(task, case, verdict))
            return await under_kills(bench, examples, kills, seconds), len(bench.pool.pids)

    return asyncio.run(main())


def test_workers_killed_at_random_change_no_verdict():
    assert killed_while_grading(15, 0.1)[0] == ""


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_thousand_workers_killed_at_random_change_no_verdict():
    assert killed_while_grading(1000, 0.2)[0] == ""
