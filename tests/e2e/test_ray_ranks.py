"""Training ranks that are actors of a Ray cluster in this process, or processes: loss and gradient of one rank."""

from __future__ import annotations

import asyncio
import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from test_run import finish, temper
from test_stages import RECIPE, STAGES

from temper.core.errors import ConfigError
from temper.models.load import load
from temper.models.lora import LoraConfig
from temper.models.policy import Policy
from temper.runs.ranks import Config, company
from temper.training import config
from temper.training.invariance import one_by_one, sample, stir
from temper.training.parallel import world
from temper.training.parallel.sharded import spread
from temper.training.trainer import Trainer

pytestmark = pytest.mark.timeout(600)


def learner(place) -> Trainer:
    made = Trainer(Policy(load("tiny:seed=1", "float64"), LoraConfig(rank=4), trainable=True), config.Config())
    stir(made)
    policy = Policy(made.policy.base, LoraConfig(rank=4), trainable=True)
    policy.load_trainable(made.policy.trainable())
    return Trainer(place(policy), config.Config())


@pytest.mark.parametrize(
    "executor", [pytest.param("ray", marks=pytest.mark.ray), pytest.param("processes", marks=pytest.mark.nightly)]
)
def test_two_workers_and_the_driver_have_the_loss_and_gradient_of_one_rank(executor):
    if executor == "ray":
        pytest.importorskip("ray")
    batches = one_by_one(sample(259))
    alone = learner(lambda policy: policy)
    expected = alone.accumulate(batches)["loss"]

    async def together() -> None:
        with ThreadPoolExecutor(1) as compute:
            async with company(Config(count=3, executor=executor, resources={"cpus": 0.5}), compute):
                for place in (lambda policy: policy, spread):
                    found = learner(place)
                    assert found.team.size == 3
                    assert found.accumulate(batches)["loss"] == pytest.approx(expected, rel=1e-12)
                    for name, p in found.optimizer.parameters.items():
                        whole = alone.optimizer.parameters[name].grad
                        assert torch.allclose(p.grad, found.team.cut(f".{name}", whole), rtol=1e-10, atol=1e-12), name
                with pytest.raises(ConfigError, match="torchrun has started ranks"):
                    async with company(Config(), compute):
                        pass

    asyncio.run(together())
    assert world.current() is None


@pytest.mark.ray
def test_a_recipe_names_its_ranks(tmp_path):
    """Spread over a driver and one actor; one rank reads what both wrote."""
    pytest.importorskip("ray")
    recipe = tmp_path / "two.toml"
    recipe.write_text(RECIPE.replace("[model]", "[model]\nshard = true") + STAGES[: STAGES.index("[[stages]]", 12)])
    again = ["run", str(recipe), "ranks.count=2", "--root", str(tmp_path), "--name", "two"]
    assert finish(temper(*again, stdout=subprocess.DEVNULL), 500)[0] == 0
    (folder,) = (tmp_path / "two").glob("checkpoints/sft-*/trainer")
    assert len(list(folder.glob("optimizer-*-of-00002.safetensors"))) == 2
    sft = json.loads((tmp_path / "two" / "report.json").read_text())["measures"]["sft"]
    assert sft["after"] < sft["before"]
