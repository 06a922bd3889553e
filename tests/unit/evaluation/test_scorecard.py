"""Counting by task and domain, comparing by task, and a report that says no more than its numbers."""

import json

import pytest
from msgspec.structs import replace

from temper.core.errors import ConfigError
from temper.core.trace import Verdict
from temper.evaluation.compare import compare
from temper.evaluation.outcome import Outcome
from temper.evaluation.page import markdown
from temper.evaluation.plot import draw
from temper.evaluation.scorecard import Facts, build, write
from temper.store.codec import decode, encode
from temper.store.run import Metrics, RunDirectory

FACTS = Facts(name="quick", model="tiny", commit="abc", wall_s=90.0, unaudited=("sql",), settings={"age": 1.5})


def outcome(task, stage="rl", score=1.0, why="graded", domain="math", **more):
    verdict = Verdict.ruled(why, f"{stage}-{task}", "exact", score=score)
    return Outcome(task=task, domain=domain, level=1, stage=stage, verdict=verdict, stop="answer", **more)


def test_masked_rollouts_are_in_no_mean_and_are_counted():
    summary = build(
        [
            outcome("a"),
            outcome("b", score=0.0),
            outcome("c", why="malformed"),
            outcome("d", score=0.5),
            outcome("e", why="engine-lost", attempts=3),
            outcome("f", why="gold-fails"),
            outcome("g", why="verifier-crash"),
        ],
        FACTS,
    )["stages"]["rl"]["overall"]
    assert (summary["success"], summary["n"], summary["rollouts"]) == (0.25, 4, 7)
    assert summary["score"] == 1.5 / 4
    assert summary["malformed"] == 1
    assert summary["masked"] == {"infra": 1, "invalid": 2}
    assert summary["retried"] == 2


def test_overall_is_the_mean_over_tasks_and_macro_that_over_domains():
    outcomes = [outcome(f"m{i}") for i in range(3)] + [outcome("s", domain="sql", score=0.0)]
    stage = build(outcomes, FACTS)["stages"]["rl"]
    assert (stage["overall"]["success"], stage["macro"]) == (0.75, 0.5)
    assert stage["domains"]["math"]["n"] == 3


def test_a_task_with_several_rollouts_counts_once():
    """pass@2 of 4 rollouts with 2 right, by hand: 1 - C(2,2)/C(4,2) = 5/6; with 1 right: 1 - C(3,2)/6 = 1/2."""
    outcomes = [outcome("a", score=float(i < 2)) for i in range(4)] + [
        outcome("b", score=float(i < 1)) for i in range(4)
    ]
    report = build(outcomes, FACTS)
    summary = report["stages"]["rl"]["overall"]
    assert (summary["success"], summary["n"]) == (0.375, 2)
    assert summary["pass_at"] == {"2": pytest.approx((5 / 6 + 1 / 2) / 2), "4": 1.0}
    assert "| solved by one of 2 answers |  | 66.7 % |" in markdown(report)


def test_comparing_pairs_by_task_and_leaves_the_others_out():
    before = [outcome("a", score=0.0), outcome("b"), outcome("c", score=0.0), outcome("d")]
    after = [outcome("c"), outcome("b"), outcome("a", score=0.0), outcome("d", why="network"), outcome("e")]
    found = compare(before, after)
    assert (found.overall.mean, found.overall.n) == (pytest.approx(1 / 3), 3)
    assert (found.gained, found.lost, found.unpaired) == (("c",), (), 2)


def three_stages():
    """40 tasks a domain; SQL, which had learned, forgets all in the last stage."""
    solved = {"base": {"math": 4, "sql": 4}, "sft": {"math": 16, "sql": 16}, "rl": {"math": 24, "sql": 0}}
    return [
        outcome(f"{domain}{i}", stage, score=float(i < n), domain=domain)
        for stage, domains in solved.items()
        for domain, n in domains.items()
        for i in range(40)
    ]


def test_the_files_of_a_report_hold_the_keys_that_readers_rely_on(tmp_path):
    with RunDirectory.create(tmp_path, {}) as run:
        run.metrics.append(Metrics(0, "rl", {"reward/math": 0.1, "heldout": 0.3}))
        run.metrics.append(Metrics(1, "rl", {"reward/math": 0.4, "reward/sql": 0.2}))
        write(run, three_stages(), FACTS)
    report = json.loads((tmp_path / "report.json").read_text())
    assert list(report["stages"]) == ["base", "sft", "rl"]
    assert set(report["gain"]) == {"base_to_sft", "sft_to_rl", "base_to_rl"}
    assert (report["commit"], report["wall_s"]) == ("abc", 90.0)
    for stage in report["stages"].values():
        for summary in (stage["overall"], *stage["domains"].values()):
            assert summary["low"] <= summary["success"] <= summary["high"]
            assert summary["n"] in (40, 80)
    gain = report["gain"]["base_to_rl"]
    assert gain["mean"] == pytest.approx((24 - 8) / 80)
    assert gain["low"] < gain["mean"] < gain["high"]
    assert gain["domains"]["sql"]["mean"] == pytest.approx(-4 / 40)
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    assert "report.png" in (tmp_path / "report.md").read_text()


def test_the_page_names_what_fell_what_is_not_clear_and_what_is_not_audited():
    page = markdown(build(three_stages(), FACTS))
    assert page.startswith("# quick: 10.0 % → 30.0 % of held-out tasks\n")
    assert "Fell: math" not in page
    assert "Fell: sql (base → rl" in page
    assert "without a current error card (law 7): `sql`" in page
    assert "- age: 1.5" in page
    unclear = markdown(
        build([outcome("a", "base"), outcome("a", "rl"), outcome("b", "base"), outcome("b", score=0.0)], FACTS)
    )
    assert "-50.0 points (-100.0 to +100.0)**, which these tasks cannot tell from zero" in unclear
    assert "## Alarms" not in page
    alarming = markdown(build(three_stages(), replace(FACTS, alarms=("rl: reward hacking: <b>\n# lost",))))
    assert "## Alarms\n\n- rl: reward hacking: <b>\\n# lost\n" in alarming


def test_a_report_of_one_stage_or_of_masked_rollouts_alone_can_be_read():
    for outcomes in ([outcome("a")], [outcome("a", "base", why="network"), outcome("a", why="network")]):
        report = build(outcomes, FACTS)
        assert "## By domain" in markdown(report)
        assert draw(report, {}).startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match="nothing was evaluated"):
        build([], FACTS)


def test_an_outcome_can_be_stored():
    assert decode(encode(outcome("a")), Outcome) == outcome("a")
