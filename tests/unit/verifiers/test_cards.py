"""Cards: clustered intervals, and when a card lets a domain be trained on."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from temper.core import registry
from temper.core.errors import ConfigError
from temper.runs import recipe as recipes
from temper.verifiers.audit import cards

sys.path.insert(0, str(Path(__file__).parent))  # the plugins in `audited`

NONE = cards.rate({str(n): [False] for n in range(300)})


@pytest.mark.parametrize(
    ("errors", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_intervals_are_those_of_newcombe_1998_table_1_method_3(errors, n, low, high):
    found = cards.rate({str(task): [task < errors] for task in range(n)})
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)


def test_answers_to_one_task_count_as_one():
    many = cards.rate({"a": [True] * 50} | {str(n): [False] * 50 for n in range(9)})
    few = cards.rate({"a": [True]} | {str(n): [False] for n in range(9)})
    assert (many.rate, many.low, many.high) == (few.rate, few.low, few.high)
    assert (many.tasks, many.cases) == (10, 500)


def test_three_hundred_tasks_without_an_error_are_enough_and_two_hundred_are_not():
    assert NONE.high <= cards.FALSE_POSITIVES
    assert cards.rate({str(n): [False] for n in range(200)}).high > cards.FALSE_POSITIVES


@pytest.fixture
def words(copied) -> str:
    """The name of a domain that has no card yet."""
    return copied("audited.words")


@pytest.fixture
def card(words):
    """A card of that domain that is as good as can be."""
    domain = registry.find("domains", words)
    card = cards.Card(
        domain=words,
        identity=cards.identity(domain.create()),
        tasks=300,
        false_positives=NONE,
        false_negatives=NONE,
        attacks={"empty": (6, 6)},
        sources={"author": 300, "outside": 300},
        trials={"the same when repeated": ""},
        latency_ms={"p50": 1.0, "p99": 2.0},
    )
    cards.save(domain, card)
    return domain, card


def test_a_card_reads_back_as_it_was_and_allows_training(card, words):
    domain, written = card
    assert cards.load(domain) == written
    assert cards.problem(words) == ""


def test_a_domain_without_a_card_is_refused(words):
    assert cards.problem(words) == "it was never audited"


@pytest.mark.parametrize(
    ("settings", "changed"),
    [({"verifier": "math"}, "verifiers"), ({"verifier": "exact", "ends": 5}, "data")],
)
def test_a_card_ends_when_what_it_measured_changes(card, words, settings, changed):
    assert cards.problem(words, settings) == f"since its audit it has changed: {changed}"


@pytest.mark.parametrize(
    ("worse", "why"),
    [
        ({"attacks": {"empty": (5, 6)}}, "held 83.3% of the attacks"),
        ({"false_positives": cards.rate({str(n): [n == 0] for n in range(300)})}, "false positives may be 1.86%"),
        ({"trials": {"repeated": "t, gold: 1 became 0"}}, "repeated: t, gold: 1 became 0"),
    ],
)
def test_a_card_that_shows_a_bad_verifier_allows_nothing(card, words, worse, why):
    domain, good = card
    cards.save(domain, replace(good, **worse))
    assert why in cards.problem(words)


def test_the_page_escapes_what_came_out_of_answers(card):
    hostile = cards.Failure(task="t|u", what="<script>alert(1)</script>", found="a\n| b | c |")
    page = cards.page(replace(card[1], failures=(hostile,)))
    assert "<script>" not in page
    assert "| t&#124;u | &lt;script&gt;alert(1)&lt;/script&gt; | a &#124; b &#124; c &#124; |" in page


def test_the_summary_tells_the_worst_of_each_figure(card):
    good = card[1]
    bad = replace(good, attacks={"empty": (1, 2)}, sources={"author": 3, "sample": 1})
    metrics = msgspec.json.decode(cards.summary({"good": good, "bad": bad}, "abc"))["metrics"]
    assert metrics == {
        "fpr_high_max": NONE.high, "fnr_high_max": NONE.high, "attacks_held_min": 0.5, "distinct_tasks_min": 300,
        "outside_share_min": 0.25,
    }  # fmt: skip


# The trainer's gate


@pytest.fixture
def recipe(tmp_path, words):
    path = tmp_path / "words.toml"
    path.write_text(
        f'name = "words"\nunaudited = []\n[model]\nbase = "tiny:"\n[[domains]]\nkind = "{words}"\n'
        '[[stages]]\nkind = "sft"\n'
    )
    return str(path)


def test_the_trainer_refuses_a_domain_without_a_card_by_its_name_and_reason(recipe, words):
    with pytest.raises(ConfigError, match=f"{words}: it was never audited.*temper audit {words}"):
        recipes.load(recipe)


def test_an_exception_is_allowed_by_name_and_reported(recipe, words):
    loaded = recipes.load(recipe, [f'unaudited=["{words}"]'])
    assert recipes.exceptions(loaded) == (words,)


def test_with_a_current_card_no_exception_is_needed_nor_reported(card, recipe, words):
    assert recipes.exceptions(recipes.load(recipe)) == ()
    assert recipes.exceptions(recipes.load(recipe, [f'unaudited=["{words}"]'])) == ()


def test_evaluation_alone_needs_no_card(recipe):
    assert recipes.load(recipe, ["stages=[]"]).stages == ()
