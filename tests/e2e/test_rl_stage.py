"""The RL stage in this process, on the tiny model: forks, groups that are replaced, conversations that are resumed."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest

from temper.core import config
from temper.core.errors import ConfigError
from temper.rollouts.resumed import Said
from temper.runs import driver, recipe
from temper.runs.stages.rl.records import Dropped, Opened, Rollout
from temper.scheduling.placement import worker_of
from temper.store.run import RunDirectory

PROCESSES = "temper.scheduling.executors.processes"
STOP = list("aeioustnrdmlkbcxyz0123456789")  # a random model ends no turn by itself


HERE_AND_AFAR = pytest.mark.parametrize("workers", [None, {"executor": "inline", "count": 2, "at_once": 4}])


def made(domains: list[str], workers=None, **rl) -> recipe.Recipe:
    stage = {"kind": "rl", "steps": 2, "sampling": {"stop": STOP}, "trainer": {"lr": 1e-3}} | rl
    tree = {
        "name": "tiny",
        "unaudited": domains,
        "verifier_workers": 1,
        "model": {"base": "tiny:"},
        "domains": [{"kind": kind} for kind in domains],
        "stages": [stage],
        "workers": workers,
        "evaluation": {"tasks": 2, "examples": 0},
    }
    return config.build(recipe.Recipe, tree, "test")


def play(made: recipe.Recipe, path) -> RunDirectory:
    asyncio.run(driver.start(made, path, []))
    return RunDirectory.view(path)


@pytest.mark.slow
@HERE_AND_AFAR
def test_forked_conversations_are_trained_with_the_credit_of_their_siblings(workers, tmp_path):
    forks = {"children": 3, "turns": [1, 2]}
    settings = {"forks": forks, "update": {"algorithm": "branches"}, "pacing": {"batch": 4, "group": 2}}
    run = play(made(["plugins.talk"], workers, **settings), tmp_path / "run")
    rollouts = {r.trace for r in run.log("rollouts", Rollout)}
    trees = [t for t in run.traces if t.id in rollouts and len(t.leaves) > 1]
    assert len(rollouts) == 2 * 4
    assert trees
    for tree in trees:
        graded = {v.leaf: v.score for v in run.verdicts if v.trace == tree.id}
        assert graded.keys() == set(tree.leaves)
        assert len(tree.leaves) == 3
    steps = {m.step: m.values for m in run.metrics if m.stage == "rl"}
    assert sum(values["samples"] for values in steps.values()) == 2 * 4 + 2 * len(trees)
    assert any(values["grad_norm"] > 0 for values in steps.values())


@pytest.mark.slow
def test_groups_that_teach_nothing_are_replaced_up_to_the_limit_and_it_shows(tmp_path):
    settings = {"update": {"algorithm": "dapo"}, "pacing": {"batch": 8, "group": 2, "eta": 0, "refill": 1}}
    settings |= {"sampling": {"stop": STOP[:-10]}}  # few answers have a digit
    run = play(made(["plugins.digits"], **settings), tmp_path / "run")
    dropped = list(run.log("dropped", Dropped))
    said = [e for e in run.events if e.what == "refilled"]
    assert [f"rl-{d.group}" for d in dropped] == [e.whom for e in said] != []
    assert "of at most 4 for step" in said[0].why
    steps = {m.step - 1: m.values for m in run.metrics if m.stage == "rl"}
    assert {step: v["groups_refilled"] for step, v in steps.items()} == {
        step: sum(d.step == step for d in dropped) for step in steps
    }
    for values in steps.values():
        assert values["groups_without_gradient"] == 0 or values["groups_refilled"] == 4


@pytest.mark.slow
@HERE_AND_AFAR
def test_conversations_in_the_middle_go_on_in_another_process_with_the_tokens_they_had(workers, tmp_path):
    path = tmp_path / "run"
    settings = {"pacing": {"batch": 8, "group": 4, "eta": 1}, "steps": 1}

    async def interrupted():
        work = asyncio.create_task(driver.start(made(["plugins.talk"], workers, **settings), path, []))
        while not (path / "turns.log").exists() or len(list(RunDirectory.view(path).log("turns", Said))) < 3:
            await asyncio.sleep(0.01)
            assert not work.done()
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work

    asyncio.run(interrupted())
    before = RunDirectory.view(path)
    ended = {r.trace for r in before.log("rollouts", Rollout)}
    said = {(s.trace, s.turn): s.reply for s in before.log("turns", Said) if s.trace not in ended}
    asyncio.run(driver.resume(path, [], []))
    run = RunDirectory.view(path)
    resumed = {e.whom for e in run.events if e.what == "resumed" and "said again" in e.why}
    assert resumed == {trace for trace, _ in said}
    traces = {t.id: t for t in run.traces}
    for (name, turn), reply in said.items():
        (sampled,) = (s for s in reply.segments if s.author == "policy")
        kept = traces[name].segments[2 * turn + 1]
        assert kept.ids.tolist() == sampled.ids.tolist()
        assert kept.logprobs.tolist() == sampled.logprobs.tolist()
        assert kept.versions.tolist() == sampled.versions.tolist()
    slots = [(r.group, r.slot) for r in run.log("rollouts", Rollout)]
    assert len(slots) == len(set(slots)) == 4 * len(list(run.log("groups", Opened)))


@pytest.mark.slow
def test_a_worker_that_is_killed_in_the_middle_costs_its_conversations_a_try_and_loses_or_doubles_none(
    tmp_path, descendants
):
    path = tmp_path / "run"
    workers = {"executor": "processes", "count": 2, "at_once": 4}
    settings = {"pacing": {"batch": 8, "group": 4, "eta": 1}, "steps": 3}
    killed = []

    async def bereft():
        work = asyncio.create_task(driver.start(made(["plugins.talk"], workers, **settings), path, []))
        while not work.done():
            await asyncio.sleep(0.01)
            started = (path / "turns.log").exists() and len(list(RunDirectory.view(path).log("turns", Said))) > 6
            if started and not killed:
                killed.append(
                    next(pid for pid in descendants() if PROCESSES in Path(f"/proc/{pid}/cmdline").read_text())
                )
                os.kill(killed[0], signal.SIGKILL)
        await work

    asyncio.run(bereft())
    run = RunDirectory.view(path)
    assert killed
    assert [e.what for e in run.events].count("worker lost") == 1
    steps = {m.step: m.values for m in run.metrics if m.stage == "rl"}
    assert [steps[n]["samples"] for n in sorted(steps)] == [8, 8, 8]
    slots = [(r.group, r.slot) for r in run.log("rollouts", Rollout)]
    assert len(slots) == len(set(slots)) == 4 * len(list(run.log("groups", Opened))) == 3 * 8
    kept = {r.trace for r in run.log("rollouts", Rollout)}
    traces = [t for t in run.traces if t.id in kept]
    assert len(traces) == len(kept), "each is stored once"
    lost = {t.id for t in run.traces if t.fault and t.fault.what == "worker-lost"}
    assert lost
    assert not lost & kept
    assert {e.whom for e in run.events if e.what == "retried"} == lost
    by_name, (gone,) = {t.id: t for t in traces}, {e.whom for e in run.events if e.what == "worker lost"}
    for name in lost:
        assert worker_of(by_name[f"{name.rpartition('-')[0]}-1"]) != gone


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ('[[stages]]\nkind = "rl"\nforks = {}', "forks need `branches`"),
        ('deterministic = true\n[[stages]]\nkind = "rl"\nfloor = 0.5', "decide by measured seconds"),
        (
            'deterministic = true\nstages = []\nengine = { kind = "scripted", sequences = [[1]] }',
            "which scripted has not",
        ),
    ],
)
def test_what_cannot_be_together_is_said_before_anything_runs(settings, words, tmp_path):
    path = tmp_path / "t.toml"
    path.write_text('name = "t"\nunaudited = ["arithmetic"]\ndomains = [{ kind = "arithmetic" }]\n' + settings)
    with pytest.raises(ConfigError, match=words):
        recipe.load(str(path))
