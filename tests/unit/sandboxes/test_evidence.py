"""Counters become causes as the blame table needs them."""

from __future__ import annotations

import signal
from typing import Any

import msgspec
import pytest

from temper.core.blame import TABLE
from temper.core.task import SandboxSpec
from temper.sandboxes.evidence import exit_of, judge
from temper.sandboxes.wire import Ending

SPEC = SandboxSpec(memory=1000, pids=10, output=5)
PLAIN = Ending("exited", 1, 1_500_000, 0, 0, 0, 0, 0, 1 << 20, 99, b"out", b"err")


def ending(**changes: Any) -> Ending:
    return msgspec.structs.replace(PLAIN, **changes)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({}, "exited"),
        ({"ended": "signalled", "code": signal.SIGSEGV}, "signalled"),
        ({"ended": "deadline"}, "deadline"),
        ({"ended": "cpu"}, "deadline"),
        ({"ended": "signalled", "code": signal.SIGXCPU}, "deadline"),
        ({"ended": "output"}, "output"),
        ({"ended": "memory"}, "oom"),
        ({"oom_kills": 1}, "oom"),
        ({"ended": "lost", "oom_kills": 1}, "oom"),  # the killer chose the command's pid 1
        ({"ended": "deadline", "oom_kills": 1}, "oom"),
        ({"peak_memory": 1000}, "oom"),
        ({"forks_refused": 3}, "pids"),
        ({"ended": "deadline", "forks_refused": 3}, "pids"),
        ({"peak_tasks": 10}, "pids"),
        ({"disk_free": 0}, "disk"),
        ({"inodes_free": 0}, "disk"),
        ({"ended": "signalled", "code": signal.SIGXFSZ}, "disk"),
        ({"ended": "signalled", "code": signal.SIGSYS}, "policy"),
        ({"ended": "lost"}, "backend-lost"),
    ],
)
def test_each_counter_has_its_cause(changes: dict[str, Any], cause: str) -> None:
    found, evidence = judge(ending(**changes), SPEC, 2.0)
    assert found == cause
    assert evidence
    assert cause in TABLE


def test_a_command_that_succeeds_just_exited() -> None:
    bruised = ending(code=0, oom_kills=2, forks_refused=2, disk_free=0)
    assert judge(bruised, SPEC, 2.0) == ("exited", "")
    assert exit_of(bruised, SPEC, 2.0).ok


def test_a_fault_of_ours_is_never_the_policys() -> None:
    assert TABLE[judge(ending(ended="lost"), SPEC, 2.0)[0]].blame == "infrastructure"
