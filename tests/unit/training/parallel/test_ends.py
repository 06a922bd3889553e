"""A rank that dies or fails: the others end within the limit, with an error that says which one it was."""

from __future__ import annotations

import subprocess
import time

import numpy as np
import pytest

from temper.core.errors import BackendError
from temper.core.trace import MicroBatch
from temper.models.lora import LoraConfig
from temper.models.policy import Policy
from temper.training.packing import Row, pack
from temper.training.parallel.sharded import spread
from temper.training.parallel.world import company
from temper.training.trainer import Config, Trainer

pytestmark = pytest.mark.timeout(600)  # a busy machine is no defect


def row(name: str, length: int, w: str = "w_ce") -> list[MicroBatch]:
    return pack([Row(name=name, ids=np.arange(length) + 3, streams={w: np.arange(length) / 100})], 100)


def trainer(bases, sharded: bool = False) -> Trainer:
    policy = Policy(bases["float32"], LoraConfig(rank=4), trainable=True)
    return Trainer(spread(policy) if sharded else policy, Config())


@pytest.mark.parametrize("sharded", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["copies", "sharded"])
def test_a_rank_that_dies_is_named_within_the_limit(bases, sharded):
    def killed() -> None:
        with company(2, 120) as world:
            two = trainer(bases, sharded)
            two.step(row("a", 9) + row("b", 8))
            world.seconds = 5.0
            world.children[0].kill()
            world.children[0].wait()
            began = time.monotonic()
            try:
                two.step(row("a", 9) + row("b", 8))
            finally:
                assert time.monotonic() - began < 60

    with pytest.raises(BackendError, match=r"rank 1.*last seen"):
        killed()


def test_what_one_rank_raises_ends_all_and_is_named(bases):
    children: list[subprocess.Popen[bytes]] = []

    def failed() -> None:
        with company(2, 120) as world:
            children.extend(world.children)
            trainer(bases).step(row("a", 9) + row("b", 8, "w_cee"))

    with pytest.raises(BackendError, match="rank 1 failed in step: ConfigError: no loss for the stream w_cee"):
        failed()
    assert children[0].returncode == 1


@pytest.mark.nightly
def test_what_the_driver_raises_outside_a_step_ends_its_followers(bases):
    children: list[subprocess.Popen[bytes]] = []

    def failed() -> None:
        with company(2, 120) as world:
            children.extend(world.children)
            trainer(bases)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failed()
    assert children[0].returncode == 1
