"""Workers that are processes: apart from this one, killed when told, and gone when their owner is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from temper.core.blame import FaultError
from temper.core.errors import MissingError
from temper.scheduling.executors import inline, processes, ray

CONTRACT = str(Path(__file__).parents[2] / "contract")  # where `workers` is
sys.path.insert(0, CONTRACT)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_process_is_another_one_and_inline_is_not():
    async def pid(executor):
        worker = await executor.spawn("workers:Counter", {"from": 0}, {"cpus": 2})
        try:
            return await worker.call("pid", seconds=10), await worker.call("threads", seconds=10)
        finally:
            await executor.close()

    there, threads = asyncio.run(pid(processes.create()))
    assert there != os.getpid()
    assert not alive(there)
    assert threads == "2"
    assert asyncio.run(pid(inline.create()))[0] == os.getpid()


@pytest.mark.parametrize("end", ["limit", "stranger"])
def test_an_ended_process_is_named_with_its_status(end):
    async def run():
        executor = processes.create()
        worker = await executor.spawn("workers:Counter", {"from": 0}, {})
        pid = await worker.call("pid", seconds=10)
        if end == "stranger":
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(FaultError, match="its process ended with -9") as error:
            await worker.call("sleep", 30.0, seconds=0.05 if end == "limit" else 10)
        await executor.close()
        return error.value.fault.what, alive(pid)

    assert asyncio.run(run()) == ("wait-limit" if end == "limit" else "worker-lost", False)


def test_a_busy_process_dies_with_its_owner():
    code = (
        "import asyncio, sys; from temper.scheduling.executors import processes\n"
        "async def run():\n"
        "    worker = await processes.create().spawn('workers:Counter', {'from': 0}, {})\n"
        "    print(await worker.call('pid', seconds=10), flush=True)\n"
        "    await worker.call('sleep', 60.0, seconds=90)\n"
        "asyncio.run(run())"
    )
    path = os.pathsep.join([CONTRACT, *filter(None, sys.path)])
    owner = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    with owner:
        pid = int(owner.stdout.readline())
        assert alive(pid)
        owner.kill()
    deadline = time.monotonic() + 5
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(pid)


def test_without_ray_its_executor_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingError, match=r"temper-rl\[ray\]"):
        ray.create()
