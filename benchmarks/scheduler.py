"""`temper bench scheduler`: the policy on pinned traces, beside the published policies, and against a real run.

Traces. Lengths are log-normal: median 2,500 tokens, spread of the logarithm 0.8 between tasks and 0.5 within one, cut
at 32,768; a slot makes one token a second. *Area-bound*: 512 groups of 16 on 256 slots, one step, nothing known of a
task before (`history`: the mean of 16 earlier samples of each is); makespan over max(area, longest), seeds 0 to 7.
*Tail-bound*: 200 steps of 128 groups of 16 on 1,024 slots from a cold start, seed 0, training free, and with a step
that takes a tenth of its batch's area; what is in flight at the end counts as waste. `tail/...`: policies of others.

*Speed*: 200 domains of equal share, whose rollouts take 1 to 100 times as long, batch 8,192 in groups of 2, eta 12, so
106,496 samples run at once; transitions are calls of the policy that did something, over the whole simulation's CPU
time; p99 is of single calls, on the wall. The share error is the largest over domains, relative, at the end.

*Bandit*: 600 tasks in four pools whose Beta priors were fitted to the default model's groups in the quickstart's RL
stage; a try's cost is log-normal (0.5) between tasks; every useful group raises its task's logit by 0.02; 2,400 useful
groups of 4; seeds 0 to 4. Uniform passes over the tasks in random order. Other priors are swept and reported.
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from temper.scheduling.baselines import Rounds, WindowedFifo
from temper.scheduling.curriculum import Curriculum
from temper.scheduling.pacing import Config, Pacing, Ticket, Wait
from temper.scheduling.simulator import Cluster, Load, Outcome, Policy, Simulation

SETTINGS = {
    "domains": 200, "tail_steps": 200, "area_seeds": 8, "speed_steps": 80, "bandit_seeds": 5, "failure": 0.05,
    "real_pairs": 5,
}  # fmt: skip
AREA = 2048 * 3870.0 / 1024  # seconds of a step whose slots are never idle, about
MEASURED = {"arithmetic": (0.225, 0.40), "code_repair": (1.05, 0.46), "sql": (5.25, 1.29), "tools": (1.02, 0.70)}
SWEEP = {"0.2,0.2": (0.2, 0.2), "0.5,0.5": (0.5, 0.5), "1,1": (1.0, 1.0), "0.3,1": (0.3, 1.0), "0.1,0.6": (0.1, 0.6)}


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """Measure; gives metrics, spreads where there are several seeds, and the settings used."""
    used = SETTINGS | settings
    metrics, spread = area(used["area_seeds"])
    for part in (
        tail(used["tail_steps"]), infra(used["failure"]), speed(used["domains"], used["speed_steps"]),
    ):  # fmt: skip
        metrics |= part
    saved = {name: bandit(pools, used["bandit_seeds"]) for name, pools in _priors().items()}
    errors = [asyncio.run(real(seed)) for seed in range(used["real_pairs"])]
    spread |= {"tokens_saved_vs_uniform": _three(saved["measured"]), "sim_vs_real_error": _three(errors)}
    metrics |= {f"tokens_saved/{name}": statistics.median(values) for name, values in saved.items()}
    metrics["tokens_saved_vs_uniform"] = statistics.median(saved["measured"])
    metrics["sim_vs_real_error"] = statistics.median(errors)
    return {"metrics": metrics, "spread": spread, "pairs": used["real_pairs"], "settings": used}


def area(seeds: int) -> tuple[dict[str, float], dict[str, list[float]]]:
    found: dict[str, list[float]] = {"area_ratio": [], "area_ratio/history": [], "area_ratio/fifo": []}
    for seed in range(seeds):
        config = Config(batch=512 * 16, group=16, eta=0, capacity=256)
        policies: dict[str, Policy] = {
            "area_ratio": Pacing(config, {"all": 1}, until=1),
            "area_ratio/history": _Remembering(Pacing(config, {"all": 1}, until=1), seed),
            "area_ratio/fifo": Rounds(512, 16, "all"),
        }
        for name, policy in policies.items():
            outcome = Simulation(policy, [Load()], Cluster(decode=256), 16, seed).run(1)
            found[name].append(outcome.seconds / outcome.bound)
    return {name: statistics.median(v) for name, v in found.items()}, {n: _three(v) for n, v in found.items()}


class _Remembering:
    """A pacing that is told, of each group it opens, the mean of 16 earlier samples of its task."""

    def __init__(self, pacing: Pacing, seed: int) -> None:
        self.pacing, self.seed, self.seen = pacing, seed, -1
        for name in ("tick", "finished", "failed", "batch", "trained"):
            setattr(self, name, getattr(pacing, name))

    @property
    def version(self) -> int:
        return self.pacing.version

    def admit(self) -> Ticket | Wait:
        ticket = self.pacing.admit()
        if isinstance(ticket, Ticket) and ticket.group > self.seen:
            self.seen = ticket.group
            rng = random.Random(f"{self.seed} {ticket.group}")  # the simulation's own draw begins with the scale
            scale = 2500 * rng.lognormvariate(0, 0.8)
            other = random.Random(f"history {self.seed} {ticket.group}")
            past = [min(32768, scale * other.lognormvariate(0, 0.5)) for _ in range(16)]
            self.pacing.expect(ticket.group, statistics.mean(past))
        return ticket


def tail(steps: int) -> dict[str, float]:
    """Ours, ours with training time, and the five published policies."""

    def go(policy: Policy, gradient: float = 0.0) -> Outcome:
        return Simulation(policy, [Load()], Cluster(decode=1024, gradient=gradient), 16).run(steps)

    ours = Config(batch=2048, group=16, eta=4, capacity=1024)
    free, costly = go(Pacing(ours, {"all": 1})), go(Pacing(ours, {"all": 1}), AREA / 10)
    metrics = {
        "tail_goodput": free.goodput,
        "tail_age_max": max(free.age_max, costly.age_max),
        "tail_length_bias_abs": max(abs(free.length_bias - 1), abs(costly.length_bias - 1)),
        "tail_training_goodput": costly.goodput,
    }
    others: dict[str, Policy] = {
        "fifo": Rounds(128, 16, "all"),
        "cancel-1.25": Rounds(128, 16, "all", 0.25, "cancel"),
        "tail-batching-1.25": Rounds(128, 16, "all", 0.25, "defer"),
        "partial-2.0": Rounds(128, 16, "all", 1.0, "carry"),
        "window-384": WindowedFifo(128, 16, "all", 384),
    }
    for name, outcome in {"temper": free, "temper-training": costly, **{n: go(p) for n, p in others.items()}}.items():
        metrics |= {
            f"tail/{name}/goodput": outcome.goodput, f"tail/{name}/waste": outcome.waste,
            f"tail/{name}/length_bias": outcome.length_bias, f"tail/{name}/age_mean": outcome.age_mean,
            f"tail/{name}/age_max": outcome.age_max,
        }  # fmt: skip
    return metrics


def infra(failure: float) -> dict[str, float]:
    """Extra rollouts over those that ended well, with so many lost, one step of 20,480 samples."""
    pacing = Pacing(Config(batch=20480, group=16, eta=0, capacity=1024, attempts=8), {"all": 1}, until=1)
    outcome = Simulation(pacing, [Load()], Cluster(decode=1024, failure=failure), 16).run(1)
    return {"infra_extra_share": outcome.started / outcome.trained - 1}


class _Timed:
    """Counts and times the calls of a policy."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.times: list[float] = []
        self.tick = policy.tick
        for name in ("admit", "finished", "failed", "batch", "trained"):
            setattr(self, name, self._timed(getattr(policy, name)))

    @property
    def version(self) -> int:
        return self.policy.version

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **more: Any) -> Any:
            began = time.perf_counter()
            result = call(*args, **more)
            if not isinstance(result, Wait):
                self.times.append(time.perf_counter() - began)
            return result

        return timed


def speed(domains: int, steps: int) -> dict[str, float]:
    loads = [
        Load(name=f"domain-{i:03}", slow=100 ** (i / (domains - 1)), median=100, between=0.3, within=0.3, cap=2000)
        for i in range(domains)
    ]
    pacing = Pacing(Config(batch=8192, group=2, eta=12), {load.name: 1 for load in loads})
    policy = _Timed(pacing)
    began = time.process_time()
    outcome = Simulation(policy, loads, Cluster(decode=0), 2).run(steps)
    seconds = time.process_time() - began
    times = sorted(policy.times)
    realised, target = pacing.shares.realised, pacing.shares.target
    return {
        "transitions_per_s": len(times) / seconds,
        "decision_p99_ms": times[int(0.99 * len(times))] * 1e3,
        "in_flight": outcome.in_flight,
        "share_error_max": max(abs(realised[n] / target[n] - 1) for n in target),
        "speed/age_max": outcome.age_max,
    }


def _priors() -> dict[str, dict[str, tuple[float, float]]]:
    return {"measured": MEASURED} | {name: {"one": prior} for name, prior in SWEEP.items()}


def bandit(pools: dict[str, tuple[float, float]], seeds: int, size: int = 4, wanted: int = 2400) -> list[float]:
    """Share of tokens saved, by seed."""
    saved = []
    for seed in range(seeds):
        rng = random.Random(seed)
        names = list(pools)
        tasks = [(names[i % len(names)], rng.lognormvariate(0, 0.5)) for i in range(600)]
        rates = [min(1 - 1e-9, max(1e-9, rng.betavariate(*pools[name]))) for name, _ in tasks]
        costs = [_sampled(chooser, tasks, list(rates), size, wanted, seed) for chooser in (_uniform, _chosen)]
        saved.append(1 - costs[1] / costs[0])
    return saved


def _sampled(chooser: Any, tasks: Any, rates: list[float], size: int, wanted: int, seed: int) -> float:
    """Tokens until so many groups had both outcomes."""
    rng = random.Random(f"tries {seed}")
    useful, spent = 0, 0.0
    for pick, commit, observe in chooser(tasks, size, rng):
        found = [0, 0]
        while sum(found) < size and commit(*found):
            found[rng.random() >= rates[pick]] += 1
            spent += tasks[pick][1]
        if sum(found) == size and all(found):
            useful += 1
            rates[pick] = 1 / (1 + (1 / rates[pick] - 1) * math.exp(-0.02))
        if useful == wanted:
            return spent
        observe(*found, tasks[pick][1])
    raise AssertionError("a chooser ended")


def _uniform(tasks: Any, size: int, rng: random.Random) -> Any:
    del size
    while True:
        for pick in rng.sample(range(len(tasks)), len(tasks)):
            yield pick, lambda passed, failed: True, lambda passed, failed, seconds: None


def _chosen(tasks: Any, size: int, rng: random.Random) -> Any:
    curriculum = Curriculum(size)
    for pick in rng.sample(range(len(tasks)), len(tasks)):
        curriculum.offer(str(pick), tasks[pick][0])
    for tried in range(10**9):
        name = curriculum.choose()
        assert name is not None
        curriculum.version = tried // 64
        yield (
            int(name),
            lambda passed, failed, name=name: curriculum.commit(name, passed, failed),
            lambda passed, failed, seconds, name=name: curriculum.observe(name, passed, failed, seconds),
        )


async def real(seed: int) -> float:
    """Relative error of the simulator's seconds for 8 steps of sleeping processes, 16 at once.

    The cost of starting a process is measured first and given to the simulator.
    """
    load = Load(median=0.5, between=0.4, within=0.4, cap=2.0)
    start = statistics.median([await _slept(0.0) for _ in range(15)])
    config = Config(batch=32, group=4, eta=2, capacity=16)
    expected = Simulation(Pacing(config, {"all": 1}), [replace(load, tool=start)], Cluster(decode=0), 4, seed).run(8)
    pacing, lengths = Pacing(config, {"all": 1}), {}
    running: dict[asyncio.Task[float], tuple[Ticket, int]] = {}
    began = time.monotonic()
    while pacing.version < 8:
        pacing.tick(time.monotonic() - began)
        while isinstance(ticket := pacing.admit(), Ticket):
            if ticket.group not in lengths:
                lengths[ticket.group] = load.draw(random.Random(f"{seed} {ticket.group}"), 4)
            work = asyncio.create_task(_slept(lengths[ticket.group][ticket.slot]))
            running[work] = (ticket, pacing.version)
        chosen = pacing.batch()
        if not isinstance(chosen, Wait):
            pacing.trained(chosen)
            continue
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        pacing.tick(time.monotonic() - began)
        for work in done:
            pacing.finished(*running.pop(work))
    took = time.monotonic() - began
    await asyncio.gather(*running)
    return abs(expected.seconds / took - 1)


async def _slept(seconds: float) -> float:
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec("sleep", f"{seconds:.4f}")
    await process.wait()
    return time.monotonic() - began


def _three(values: list[float]) -> list[float]:
    return [min(values), statistics.median(values), max(values)]
