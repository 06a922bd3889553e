"""Environment workers on two Ray nodes of this machine: one is killed in the middle; and what Ray costs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from temper.core import config
from temper.core.blame import FaultError
from temper.core.errors import RefusedError
from temper.core.protocols import SamplingParams
from temper.core.trace import Trace, Verdict
from temper.domains import terminal
from temper.evaluation.runner import evaluate
from temper.models.load import load
from temper.runs import driver
from temper.runs.arena import Order, Plan
from temper.runs.farm import Config, Farm, lost
from temper.runs.recipe import Recipe
from temper.runs.stages.rl.records import Rollout
from temper.runs.worker import Setup
from temper.scheduling.executors import ray
from temper.scheduling.placement import worker_of
from temper.store import codec
from temper.store.run import RunDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))  # where `workers` is; workers get this process's path

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

ROLLOUTS, KILLED_AFTER = 500, 150


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of one CPU each; the second, which has a resource of its own, is given as well."""
    library = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": 100 << 20}
    nodes = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    try:
        second = nodes.add_node(**size, resources={"big_disk": 1})
        library.init(nodes.address, log_to_driver=False, logging_level=logging.ERROR)
        yield nodes, second
    finally:
        library.shutdown()
        nodes.shutdown()


def setup() -> Setup:
    plan = Plan(domains={"terminal": {}}, sandbox={"kind": "local"}, verifier_workers=1)
    return Setup(plan=plan, tokenizer=load("tiny:").tokenizer.to_str(), chat={"kind": "chatml"})


def test_workers_go_to_nodes_that_have_what_they_need_and_no_node_is_asked_for_more(cluster):
    _, second = cluster

    async def parent(resources):
        """The process that started the worker: the raylet of its node."""
        executor = ray.create()
        try:
            worker = await executor.spawn("workers:Counter", {"from": 1}, resources)
            return int(Path(f"/proc/{await worker.call('pid', seconds=10)}/stat").read_text().split()[3])
        finally:
            await executor.close()

    raylet = second.all_processes["raylet"][0].process.pid
    assert [asyncio.run(parent({"cpus": 0.5, "big_disk": 1})) for _ in range(3)] == [raylet] * 3
    for resources in ({"big_disk": 2}, {"cpus": 2}, {"gpus": 0.5, "big_disk": 1}):
        with pytest.raises(RefusedError, match="none of the 2 nodes"):
            asyncio.run(parent(resources))


def cpu_seconds() -> float:
    """Of this process, of all that descend from it, and of their children that ended."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            found[int(stat.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    total, family = 0, [os.getpid()]
    for pid in family:
        total += found[pid][1]
        family += [child for child, (parent, _) in found.items() if parent == pid]
    return total / os.sysconf("SC_CLK_TCK")


def test_a_cluster_costs_little_more_than_processes(cluster, record_property):
    """CPU time, which other work on the machine hardly changes; in turns, workers started and warm."""
    tasks = list(itertools.islice(terminal.create().tasks("train", 1), 150))

    async def cost(executor):
        ready = asyncio.Semaphore(0)
        event = lambda what, *_, **__: what == "worker ready" and ready.release()  # noqa: E731
        async with Farm(Config(executor=executor, at_once=16), setup(), event, time.monotonic) as farm:
            await ready.acquire()
            await ready.acquire()

            async def play(name):
                orders = (
                    Order(trace=f"{name}-{n}", task=task, model="gold", params=SamplingParams())
                    for n, task in enumerate(tasks)
                )
                return await asyncio.gather(*map(farm.attempt, orders))

            await play("warm")
            before = cpu_seconds()
            await play("measured")
            return (cpu_seconds() - before) / len(tasks)

    found = {"processes": [], "ray": []}
    for executor in ("processes", "ray", "ray", "processes"):
        found[executor].append(asyncio.run(cost(executor)))
    record_property("cpu_seconds", found)
    assert sum(found["ray"]) < 1.25 * sum(found["processes"]), found


def test_the_policy_is_trained_on_episodes_that_nodes_play_each_once(cluster, tmp_path):
    pacing = {"batch": 8, "group": 4, "eta": 1}
    tree = {
        "name": "tiny",
        "unaudited": ["plugins.talk"],
        "verifier_workers": 1,
        "model": {"base": "tiny:"},
        "workers": {"executor": "ray", "count": 2, "at_once": 4},
        "domains": [{"kind": "plugins.talk"}],
        "stages": [{"kind": "rl", "steps": 3, "pacing": pacing, "sampling": {"stop": list("aeiou0123456789")}}],
        "evaluation": {"tasks": 4, "examples": 0},
    }
    asyncio.run(driver.start(config.build(Recipe, tree, "test"), tmp_path / "run", []))
    run = RunDirectory.view(tmp_path / "run")
    slots = Counter((r.group, r.slot) for r in run.log("rollouts", Rollout))
    assert len(slots) == 3 * 8
    assert set(slots.values()) == {1}
    assert {worker_of(trace) for trace in run.traces} == {"worker-1", "worker-2"}
    assert not [trace.fault for trace in run.traces if trace.fault]
    versions = {int(v) for t in run.traces for s in t.segments if s.author == "policy" for v in s.versions}
    assert max(versions) == 3, "the newest weights were evaluated there, too"


def test_all_rollouts_finish_once_though_a_node_is_killed_in_the_middle(cluster):
    nodes, second = cluster
    tasks = list(itertools.islice(terminal.create().tasks("train", 1), ROLLOUTS))
    told, finished, killing = [], [], []

    async def run():
        event = lambda what, whom="", why="", **data: told.append((what, whom, why))  # noqa: E731
        async with Farm(Config(executor="ray", at_once=16), setup(), event, time.monotonic) as farm:

            async def one(task):
                order = Order(trace=task.id, task=task, model="gold", params=SamplingParams())
                try:
                    trace, verdicts = await farm.attempt(order)
                except FaultError as error:
                    fault = error.fault
                    return lost(order, error, 0.0), Verdict.ruled(fault.what, task.id, "", fault.detail)
                return codec.decode(trace, Trace), *codec.decode(verdicts, tuple[Verdict, ...])

            async def recorded(task):
                trace, verdict = await one(task)
                if not verdict.masked:
                    finished.append((task.id, worker_of(trace)))
                if len(finished) == KILLED_AFTER:
                    assert [what for what, *_ in told].count("worker ready") == 2
                    killing.append(asyncio.create_task(asyncio.to_thread(nodes.remove_node, second, False)))
                return trace, verdict

            outcomes = await evaluate(tasks, recorded, 32)
            await asyncio.gather(*killing)
            return outcomes

    outcomes = asyncio.run(run())
    assert [o.task for o in outcomes] == [task.id for task in tasks]
    assert all(o.success for o in outcomes)
    assert set(Counter(task for task, _ in finished).values()) == {1}, "none is finished twice"
    assert set(Counter(worker for _, worker in finished)) >= {"worker-1", "worker-2"}
    again = [o.attempts for o in outcomes if o.attempts > 1]
    assert again, "something ran on the node when it was killed"
    assert set(again) == {2}
    assert [what for what, *_ in told].count("worker lost") == 1
