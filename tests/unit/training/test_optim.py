"""The optimiser against torch's AdamW, its schedules in closed form, gradients that are not finite."""

from __future__ import annotations

import pytest
import torch
from torch.nn import Parameter

from temper.core import config as configs
from temper.core.errors import ConfigError, CorruptError
from temper.training.optim import Config, Optimizer, learning_rate


def parameters() -> dict[str, Parameter]:
    torch.manual_seed(0)
    return {"matrix": Parameter(torch.randn(4, 3)), "vector": Parameter(torch.randn(5))}


def test_agrees_with_torch_adamw_and_clipping():
    mine, theirs = parameters(), parameters()
    optimizer = Optimizer(mine, Config(lr=0.05, weight_decay=0.1, clip=0.5))
    decay = [{"params": [theirs["matrix"]], "weight_decay": 0.1}, {"params": [theirs["vector"]], "weight_decay": 0.0}]
    reference = torch.optim.AdamW(decay, lr=0.05)
    for step in range(5):
        for k in mine:
            grad = torch.sin(torch.arange(mine[k].numel()) + step).view_as(mine[k])
            mine[k].grad, theirs[k].grad = grad.clone(), grad.clone()
        norm = torch.nn.utils.clip_grad_norm_(theirs.values(), 0.5)
        reference.step()
        assert optimizer.step()["grad_norm"] == pytest.approx(float(norm))
    for k in mine:
        torch.testing.assert_close(mine[k], theirs[k])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing(bad):
    mine, untouched = parameters(), parameters()
    optimizer = Optimizer(mine, Config())
    mine["matrix"].grad = torch.full((4, 3), bad)
    mine["vector"].grad = torch.ones(5)
    assert optimizer.step()["skipped"] == 1
    assert all(torch.equal(mine[k], untouched[k]) for k in mine)
    assert all(not t.any() for t in optimizer.state().values())
    assert all(p.grad is None for p in mine.values())
    mine["vector"].grad = torch.ones(5)
    assert optimizer.step()["skipped"] == 0


def test_schedules():
    def rates(schedule: str) -> list[float]:
        config = Config(lr=1.0, warmup=1, schedule=schedule, steps=5)
        return [learning_rate(config, step) for step in range(6)]

    assert rates("constant") == [0.5, 1, 1, 1, 1, 1]
    assert rates("linear") == [0.5, 1, 0.75, 0.5, 0.25, 0]
    assert rates("cosine") == pytest.approx([0.5, 1, 0.853553, 0.5, 0.146447, 0], abs=1e-6)
    with pytest.raises(ConfigError, match="needs steps above warmup"):
        configs.build(Config, {"schedule": "linear"})


def test_state_of_other_parameters_is_refused():
    optimizer = Optimizer(parameters(), Config())
    with pytest.raises(CorruptError, match=r"first\.vector"):
        optimizer.load_state({**optimizer.state(), "first.vector": torch.zeros(6)}, 1, 1)


def test_a_spike_is_refused_and_the_next_step_is_not():
    mine = parameters()
    optimizer = Optimizer(mine, Config(spike=5.0))

    def step(size: float) -> float:
        mine["vector"].grad = torch.full((5,), size)
        return optimizer.step()["skipped"]

    assert [step(size) for size in (9.0, *[1.0] * 7)] == [0] * 8, "nothing is a spike before the norms are known"
    before = mine["vector"].clone()
    assert step(5.5) == 1
    assert torch.equal(before, mine["vector"])
    assert step(4.5) == 0
    assert optimizer.updates == 9


def test_half_precision_moves_by_steps_smaller_than_it_can_show():
    """Under a constant gradient Adam moves by lr a step; below 1 bf16 has a value every 1/256, forty of these steps."""
    mine = {"w": Parameter(torch.ones(4, dtype=torch.bfloat16))}
    optimizer = Optimizer(mine, Config(lr=1e-4))

    def steps(optimizer: Optimizer, count: int) -> torch.Tensor:
        for _ in range(count):
            optimizer.parameters["w"].grad = torch.full((4,), 0.01, dtype=torch.bfloat16)
            optimizer.step()
        return optimizer.parameters["w"]

    assert torch.equal(steps(optimizer, 1), torch.ones(4, dtype=torch.bfloat16))
    again = Optimizer({"w": Parameter(mine["w"].detach().clone())}, Config(lr=1e-4))
    again.load_state(optimizer.state(), optimizer.steps, optimizer.updates)
    assert torch.equal(steps(optimizer, 99), torch.full((4,), 0.99, dtype=torch.bfloat16))
    assert torch.equal(steps(again, 99), mine["w"])
    with torch.no_grad():
        mine["w"].fill_(2.0)  # by somebody else
    optimizer.parameters["w"].grad = torch.full((4,), 0.01, dtype=torch.bfloat16)
    optimizer.step()
    assert optimizer.master["w"].tolist() == pytest.approx([2 - 1e-4] * 4, abs=1e-6)
