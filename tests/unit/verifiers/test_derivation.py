"""Chains of reasoning, step by step. What follows from what is decided by hand in each case."""

# ruff: noqa: E501  (tables with one entry a line)

from __future__ import annotations

import pytest

from temper.verifiers import derivation

REFERENCE = {
    "given": ["2*x + 3 = 11", "y = x^2"],
    "goal": "y = 16",
    "solution": "1. 2*x + 3 = 11 [given]\n2. 2*x = 8 [from 1]\n3. x = 4 [from 2]\n4. y = x^2 [given]\n5. y = 16 [from 3, 4]",
}
GOLD = REFERENCE["solution"]

RIGHT = {
    "the gold chain": GOLD,
    "other labels and order": "7) y = x^2 [given]\n10) 2x + 3 = 11 [given]\n20) x = 4 [from 10]\n30) 16 = y [from steps 7 and 20]",
    "a fraction on the way": GOLD.replace("2. 2*x = 8", "2. x/2 = 2"),
}
WRONG = {
    "step 2": (GOLD.replace("2*x = 8", "2*x = 9"), "step 2 (2*x = 9) is wrong", "x = 4"),
    "step 3": (GOLD.replace("3. x = 4", "3. x = 5"), "step 3 (x = 5) is wrong", "does not follow from 2"),
    "not given": (GOLD.replace("1. 2*x + 3 = 11", "1. x = 4"), "step 1 (x = 4) is wrong", "not given"),
    "a circle": (GOLD.replace("[from 1]", "[from 3]"), "step 2 (2*x = 8) is circular", "step 3"),
    "itself": (GOLD.replace("[from 1]", "[from 2]"), "step 2 (2*x = 8) is circular", "step 2"),
    "a repetition": (GOLD.replace("3. x = 4 [from 2]", "3. 2*x = 8 [from 2]"), "step 3 (2*x = 8) is circular", "repeats step 2"),
    "a gap": (GOLD.replace("[from 3, 4]", "[from 4]"), "step 5 (y = 16) is gap", "more than what it cites"),
    "unused": (f"{GOLD.replace('5.', '6.')}".replace("6.", "5. 3*x = 12 [from 3]\n6."), "step 5 (3*x = 12) is unused", "rests on it"),
    "another goal": (GOLD.replace("5. y = 16", "5. y > 15"), "the last step does not say y = 16", ""),
    "not carried out": (GOLD.replace("5. y = 16", "5. y = 4*4"), "the last step does not say y = 16", ""),
    "no chain": ("y = 16", "is no step", ""),
    "nothing": ("", "there are no steps", ""),
    "an end that cannot be read": (GOLD.replace("5. y = 16", "5. y = = 16"), "step 5 (y = = 16) is wrong", "cannot be read"),
    "a program": (GOLD.replace("2*x = 8", "__import__('os').exit()"), "is wrong", "cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("case", RIGHT)
def test_chains_that_hold(judged, pool, case):
    verdict = judged(derivation.create(None, pool), REFERENCE, RIGHT[case])
    assert verdict.score == 1, verdict.evidence
    assert verdict.components["valid"] == verdict.components["goal"] == 1


@pytest.mark.parametrize("case", WRONG)
def test_the_first_bad_step_is_named(judged, pool, case):
    answer, named, more = WRONG[case]
    verdict = judged(derivation.create(None, pool), REFERENCE, answer)
    assert (verdict.status, verdict.score) == ("graded", 0)
    assert named in verdict.evidence[0].text
    assert more in verdict.evidence[0].text


FOLLOWS = [
    # premises, conclusion, whether it follows
    (["x^2 = 4"], "x = 2", False),
    (["x^2 = 4"], "x = 2 or x = -2", True),
    (["x = 2 or x = -2", "x > 0"], "x = 2", True),
    (["-3*x < 9"], "x > -3", True),
    (["-3*x < 9"], "x < -3", False),
    (["x*y = 6", "x = 2"], "y = 3", True),
    (["x*a = x*b"], "a = b", False),  # x may be 0
    (["x*a = x*b", "x != 0"], "a = b", True),
    (["x/x = 1"], "x != 0", False),  # nothing is said of a division by zero
    (["p -> q", "p"], "q", True),
    (["p -> q", "q"], "p", False),  # affirming the consequent
    (["p -> q", "not q"], "not p", True),
    (["p or q", "not q"], "p", True),
    (["n > 2", "n < 4"], "n = 3", True),  # n is an integer, x is not
    (["x > 2", "x < 4"], "x = 3", False),
    (["a < b", "b < c"], "a < c", True),
    (["a = sin(x)^2", "b = cos(x)^2"], "a + b = 1", True),
    (["a = sin(x)^2", "b = cos(x)^2"], "a - b = 1", False),
    (["y = exp(2*x)"], "log(y) = 2*x", True),
]


@pytest.mark.parametrize(("premises", "conclusion", "follows"), FOLLOWS)
def test_what_follows(judged, pool, premises, conclusion, follows):
    lines = [f"{n}. {premise} [given]" for n, premise in enumerate(premises, 1)]
    chain = "\n".join([*lines, f"9. {conclusion} [from {', '.join(str(n + 1) for n in range(len(premises)))}]"])
    reference = {
        "given": premises,
        "goal": conclusion,
        "solution": chain,
        "integers": ["n"],
        "propositions": ["p", "q"],
    }
    assert judged(derivation.create(None, pool), reference, chain).score == follows


def test_a_step_of_many_digits_is_none(judged, pool):
    reference = {"given": ["x = 1"], "goal": "x = 1", "solution": "1. x = 1 [given]"}
    verdict = judged(derivation.create(None, pool), reference, f"1. x = 1 [given]\n2. x = 1 [from {'9' * 5000}]")
    assert (verdict.status, verdict.score) == ("graded", 0.0), verdict


def test_a_leap_from_everything_is_a_gap(judged, pool):
    reference = {"given": ["a = 1", "b = a", "c = b"], "goal": "c = 1", "solution": "-"}
    given = "1. a = 1 [given]\n2. b = a [given]\n3. c = b [given]\n"
    leap = judged(derivation.create(None, pool), reference, f"{given}4. c = 1 [from 1, 2, 3]")
    steps = judged(derivation.create(None, pool), reference, f"{given}4. b = 1 [from 1, 2]\n5. c = 1 [from 3, 4]")
    assert (leap.score, leap.components["gaps"], steps.score) == (0, 1, 1)


def test_what_is_too_hard_is_not_shown_and_costs_little(judged, pool):
    reference = {"given": ["x > 1"], "goal": "x > 0", "solution": "1. x > 1 [given]\n2. x > 0 [from 1]"}
    hard = "x^6*y^5 - 3*x^4*y^6*z^5 + x^3*z^6*w^5 + y^6*w^6*v^5 > -x^6*v^6 - 7"
    answer = f"1. x > 1 [given]\n2. {hard} [from 1]\n3. x > 0 [from 2]"
    verdict = judged(derivation.create(derivation.Config(seconds=30), pool), reference, answer)
    assert (verdict.status, verdict.score) == ("graded", 0)
