"""A run that stops at its budget, says which, goes on with a larger one, and tells its story over both processes."""

import pytest
from plugins import drive
from test_run import RECIPE, trained_groups

from temper.evaluation.diagnosis import diagnosis
from temper.evaluation.sections import text
from temper.scheduling.ledger import Spent
from temper.store.run import RunDirectory


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_run_stops_at_its_budget_and_goes_on_with_a_larger_one(tmp_path):
    (tmp_path / "tiny.toml").write_text(RECIPE + "[budget]\ntokens = 3400\n[prices]\ntokens = 0.001\n")
    folder = tmp_path / "tiny"
    code, errors = drive.run(tmp_path / "tiny.toml", folder).finish(400)
    assert (code, "tokens" in errors, "budget.tokens=" in errors) == (7, True, True)
    with RunDirectory.view(folder) as run:
        assert [e.whom for e in run.events if e.what == "stopped"] == ["rl"]
        before = [t.id for t in run.traces]
    code, errors = drive.Command("run", "--resume", folder, "budget.tokens=100000").finish(400)
    assert code == 0, errors
    with RunDirectory.view(folder) as run:
        traces = {t.id: t for t in run.traces}
        assert set(before) < set(traces)
        assert len(traces) == sum(1 for _ in run.traces)  # none was run twice
        assert len(set(trained_groups(run))) == len(trained_groups(run)) == 8
        spent = list(run.log("spent", Spent))
        stored = sum(t.cost.tokens_in + t.cost.tokens_out for t in traces.values())
        assert sum(one.tokens for one in spent) >= stored > 3400  # and the gold answers, which are not stored
        story = text(diagnosis(run))
    assert "It finished." in story
    assert "2 processes" in story
    assert "budget is used up" in story
    for form in ("report.md", "why.html"):
        assert "Spent by domain" in (folder / form).read_text("utf-8")
