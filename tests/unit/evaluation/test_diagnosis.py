"""The story of a run from its record, and a page of it that hostile words cannot break. Numbers worked out by hand."""

from html.parser import HTMLParser

import pytest

from temper.core.trace import Cost, Event
from temper.evaluation.diagnosis import diagnosis, elapsed, spending
from temper.evaluation.sections import page, section, text
from temper.scheduling.ledger import Spent
from temper.store.run import Metrics, RunDirectory

HOSTILE = "<script>alert(1)</script><img src=//evil.example onerror=x>\x1b[31m ‮'\" | end"
RECIPE = {
    "name": "small",
    "prices": {"verify": 0.5},
    "domains": [{"kind": "math", "share": 3.0}, {"kind": "sql", "share": 1.0}],
}


def events():
    yield Event(when=4.0, what="ready", data={"workers": {"compute": 1, "verification": 2}})
    yield Event(when=4.0, what="process", whom="1", data={"seconds_before": 6.0})
    yield Event(when=4.0, what="part", whom="rl", why="started")
    for group, domain, tokens in ((0, "math", 10), (1, "math", 30), (2, "sql", 80)):
        yield Event(when=8.0 + group, what="admitted", whom=f"rl-{group}-0-0", why=f"probe of group {group}")
        yield Event(when=8.0 + group, what="rollout", whom=f"rl-{group}-0-0", data={"domain": domain, "tokens": tokens})
    yield Event(when=11.0, what="quarantined", whom="rl-2-1-2", why=HOSTILE, data={"task": "sql-7"})
    yield Event(when=14.0, what="stopped", whom="rl", why=HOSTILE)
    yield Event(when=1.0, what="process", whom="2", data={"seconds_before": 0.0})  # taken up again
    yield Event(when=1.0, what="part", whom="rl", why="started")
    for version, groups in ((1, [0]), (2, [1])):
        yield Event(when=10.0 * version, what="trained", whom="rl", data={"groups": groups, "version": version})
    yield Event(when=91.0, what="alarm", whom="rl", why="entropy collapse")
    yield Event(when=91.0, what="part", whom="rl", why="finished")
    yield Event(when=92.0, what="finished", whom="small")


@pytest.fixture
def run(tmp_path):
    with RunDirectory.create(tmp_path / "run", RECIPE) as made:
        for event in events():
            made.events.append(event)
        for step, reward in ((1, 0.25), (2, float("nan")), (3, 0.75)):
            made.metrics.append(Metrics(step, "rl", {"reward": reward, "age": 0.5, "age_max": 1.0}))
        log = made.log("spent", Spent)
        log.append(Spent.of(Cost(decode=40.0, verify=150.0), domain="math", part="rl"))
        log.append(
            Spent.of(Cost(decode=10.0, verify=30.0, tokens_out=9), domain="sql", part="rl", measured={"decode": 40.0})
        )
        log.append(Spent.of(Cost(gradient=10.0), part="rl", bytes={"sync": 3 << 20}))
        yield made


def titled(run, title):
    return next(one for one in diagnosis(run) if one.title == title)


def test_time_is_counted_by_part_over_processes(run):
    assert elapsed(run.events) == {"loading": 4.0 + 6.0 + 1.0, "rl": 10.0 + 90.0, "between": 1.0}
    assert diagnosis(run)[0].lines[:2] == ("It finished.", "112 s in 2 processes.")


def test_the_bottleneck_is_said_with_what_widening_it_brings(run):
    """In 100 s the two verifiers were busy for 180, compute for 40 + 10: four leave 45 of their 90, compute 50."""
    where, by_domain = spending(run)
    head, row = where.rows
    assert dict(zip(head, row, strict=True)) == {
        "part": "rl",
        "seconds": "100.0",
        "compute busy": "50% of 1",
        "verification busy": "90% of 2",
        "of that": "decode 40.0, gradient 10.0",
        "worth widening": "verification is the bottleneck: 4 workers would add 67%",  # 100 / (100 - 90 + 50)
    }
    assert where.lines == ("Moved: sync 3.0 MiB.",)
    assert by_domain.rows == (
        ("domain", "decode s", "verify s", "gradient s", "tokens", "money"),
        ("(shared)", "0.0", "0.0", "10.0", "0", "0"),
        ("math", "32.0", "150.0", "0.0", "0", "75"),
        ("sql", "8.0", "30.0", "0.0", "9", "15"),
        ("all", "40.0", "180.0", "10.0", "9", ""),
        ("money", "0", "90", "0", "0", "90"),
    )


def test_bias_is_of_what_was_trained_against_what_was_graded_and_wanted(run):
    found = titled(run, "Bias of length and domain")
    assert found.lines == ("Trained rollouts are -50.0% longer than all 3 that were graded: the bias of length.",)
    assert found.rows[1:] == (
        ("math", "75.0%", "100.0%", "2", "2", "20.0", "20.0"),
        ("sql", "25.0%", "0.0%", "1", "0", "80.0", "–"),
    )


def test_steps_decisions_and_quarantined_tasks_are_there_with_their_reasons(run):
    steps = titled(run, "Steps")
    assert steps.rows[0][:4] == ("stage", "step", "at s", "reward")
    assert [row[2] for row in steps.rows[1:]] == ["10", "20", ""]
    assert steps.curves["rl: reward"] == [(1.0, 0.25), (3.0, 0.75)]
    decisions = {row[0]: row[1:] for row in titled(run, "Decisions").rows}
    assert decisions["admitted"] == ("3", "3 × probe of group #")
    assert {"admitted", "quarantined", "stopped", "alarm"} == decisions.keys() - {"decision"}
    assert titled(run, "Quarantined tasks").rows[1][:2] == ("sql-7", "rl-2-1-2")


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.words = set(), set(), ""

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.words += data


def test_the_page_stands_alone_and_hostile_words_stay_words(run):
    written = page(HOSTILE, diagnosis(run))
    parsed = Tags()
    parsed.feed(written)
    assert not parsed.tags & {"script", "img", "link", "iframe", "a", "base", "form"}
    assert not {name for name in parsed.attributes if name.startswith("on")} | parsed.attributes & {
        "src",
        "href",
        "style",
    }
    assert "default-src 'none'" in written
    assert "<script>alert(1)</script>" in parsed.words
    assert parsed.tags >= {"table", "svg", "polyline"}
    assert not {"\x1b", "‮"} & set(written)


def test_text_and_markdown_hold_no_control_characters(run):
    for form in (text(diagnosis(run)), "\n".join(map(section, diagnosis(run)))):
        assert "sql-7" in form
        assert not {"\x1b", "‮"} & set(form)


def test_a_run_that_has_just_begun_or_was_killed_can_be_told(tmp_path):
    with RunDirectory.create(tmp_path / "run", {"name": "new"}) as made:
        assert diagnosis(made)[0].lines == ("0 s in 0 processes.",)
        made.events.append(Event(when=2.0, what="part", whom="sft", why="started"))
        assert text(diagnosis(made)).startswith("new\n  No end is recorded: it runs, or was killed. Its last part: sft")
        assert page("new", diagnosis(made)).endswith("</html>\n")
