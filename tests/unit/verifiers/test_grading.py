"""The one way to a verdict: faults are masked, the policy's own limits score 0, and our crashes are ours."""

from __future__ import annotations

import asyncio

import pytest

from temper.core.blame import Fault, FaultError
from temper.core.errors import BackendError, MissingError
from temper.core.task import Message, Task
from temper.core.trace import Segment, Trace, Verdict
from temper.verifiers import exact
from temper.verifiers.grading import Judgement, closure, fingerprint, grade

TASK = Task(id="t", domain="d", messages=(), reference={"answer": "yes"})
SAID = (Segment.given((Message("assistant", "yes"),), []),)


class Raises:
    name, hash = "raises", "0"

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def grade(self, task, trace, artifacts) -> Verdict:
        raise self.error


def verdict(verifier=None, task=TASK, **trace) -> Verdict:
    episode = Trace(id="x", task="t", domain="d", seed=0, segments=SAID, **trace)
    return asyncio.run(grade(task, episode, {}, verifier or exact.create()))


def test_a_finished_episode_is_scored():
    assert verdict().score == verdict(stop="done").score == 1.0
    assert verdict().verifier == exact.create().hash


@pytest.mark.parametrize("stop", ["turns", "tokens", "context", "seconds", "malformed"])
def test_the_policys_own_limit_is_a_graded_zero_whatever_it_delivered(stop):
    found = verdict(stop=stop)
    assert (found.status, found.blame, found.score, found.why) == ("graded", "policy", 0.0, stop)


@pytest.mark.parametrize("what", ["backend-lost", "engine-lost", "environment-broken", "lease-lost"])
def test_a_fault_is_masked_and_never_a_zero(what):
    found = verdict(stop="fault", fault=Fault(what, "somewhere"))
    assert (found.masked, found.why) == (True, what)


def test_a_fault_without_a_name_is_masked_too():
    assert verdict(stop="fault").masked


def test_a_task_without_a_usable_reference_is_the_tasks_fault():
    for reference in (None, "yes", {}, {"answer": 1}, {"answer": "yes", "typo": 1}):
        task = Task(id="t", domain="d", messages=(), reference=reference)
        assert verdict(task=task).why == "reference-missing"


def test_a_verifier_that_raises_is_the_verifiers_fault():
    assert verdict(Raises(KeyError("x"))).why == "verifier-crash"
    assert verdict(Raises(FaultError("network", "judge"))).status == "infra"


def test_what_breaks_on_our_side_while_grading_is_infrastructure():
    found = verdict(Raises(BackendError("the verifier pool was closed")))
    assert (found.status, found.blame, found.why) == ("infra", "infrastructure", "backend-lost")


def test_several_reasons_make_one_judgement():
    assert Judgement.of([]) == Judgement(1.0)
    assert Judgement.of(["a", "b", "c", "d"], {"x": 0.5}) == Judgement(0.0, "a; b; c", {"x": 0.5})


def test_the_hash_covers_what_a_verifier_imports_and_what_it_names_for_workers_and_boxes():
    checks = {f"temper.verifiers.checks.{name}" for name in ("scenes", "tscn", "gltf", "gltf_scene", "gltf_asset")}
    assert checks <= closure(("temper.verifiers.scene",))
    boxed = {"temper.verifiers.boxes", *(f"temper.verifiers.checks.{n}" for n in ("values", "apart", "driver"))}
    assert boxed <= closure(("temper.verifiers.refactor",)), "by way of `code`"
    assert "temper.verifiers.pool" not in closure(("temper.verifiers.math",)), "it decides about no answer"


def test_the_hash_changes_with_settings_source_and_table(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    module, table = tmp_path / "hashed_plugin.py", tmp_path / "hashed_plugin.toml"
    found = []
    for source, data in (("x = 1", ""), ("x = 2", ""), ("x = 2", "y = 1"), ("x = 2", "y = 2")):
        module.write_text(source)
        table.write_text(data)
        found += [fingerprint(config, "hashed_plugin") for config in (exact.Config(), exact.Config(strip=False))]
    assert len(set(found)) == 8
    assert fingerprint(exact.Config(), "hashed_plugin") == found[-2]


def test_a_library_that_is_missing_is_named_with_what_brings_it():
    with pytest.raises(MissingError, match=r"needs no-such-library: pip install 'temper-rl\[cad\]'"):
        fingerprint(exact.Config(), "temper.verifiers.exact", libraries=("no-such-library",), extra="cad")
