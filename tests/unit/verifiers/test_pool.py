"""The pool: limits cost what they say and nothing else; a killed worker costs no verdict."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from temper.core.blame import FaultError
from temper.core.errors import BackendError
from temper.verifiers.pool import LimitError, Pool

sys.path.insert(0, str(Path(__file__).parent))  # workers get this process's path


def run(coroutine):
    return asyncio.run(coroutine)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_hang_costs_its_limit_twice_and_the_others_are_answered():
    async def main():
        async with Pool(workers=2) as pool:
            await asyncio.gather(*(pool.run("jobs:slow_double", -n) for n in range(1, 20)))  # both are warm
            began = time.monotonic()
            hang = asyncio.ensure_future(pool.run("jobs:spin", 1, seconds=0.5))
            answers = await asyncio.gather(*(pool.run("jobs:double", n) for n in range(100)))
            with pytest.raises(LimitError, match="CPU in 0"):
                await hang
            return answers, time.monotonic() - began

    answers, seconds = run(main())
    assert answers == [2 * n for n in range(100)]
    assert seconds > 1.0


def test_a_hang_within_a_batch_costs_those_behind_it_nothing():
    async def main():
        async with Pool(workers=2) as pool:
            await asyncio.gather(*(pool.run("jobs:hang_at", n, -1) for n in range(300)))  # known to be quick
            began = time.monotonic()
            jobs = {n: asyncio.ensure_future(pool.run("jobs:hang_at", n, 350, seconds=1.0)) for n in range(300, 700)}
            hang = jobs.pop(350)
            answers = await asyncio.gather(*jobs.values())
            seconds = time.monotonic() - began
            with pytest.raises(LimitError):
                await hang
            return answers == list(jobs), seconds

    right, seconds = run(main())
    assert right
    assert seconds < 0.8


def test_large_jobs_and_small_ones_travel_together():
    async def main():
        async with Pool(workers=1) as pool:
            await asyncio.gather(*(pool.run("jobs:echo", str(n)) for n in range(50)))
            texts = [str(n) * (1 if n % 3 else 200_000) for n in range(60)]
            return texts == await asyncio.gather(*(pool.run("jobs:echo", text) for text in texts))

    assert run(main())


@pytest.mark.parametrize("function", ["hoard", "deep", "segfault", "sleep"])
def test_explosions_are_limits_too(function):
    async def main():
        async with Pool(workers=1, memory=1 << 29) as pool:
            with pytest.raises(LimitError):
                await pool.run(f"jobs:{function}", 1, seconds=0.3)
            return await pool.run("jobs:double", 4)

    assert run(main()) == 8


def test_a_check_that_raises_is_the_verifiers_fault_and_is_not_tried_again():
    async def main():
        async with Pool(workers=1) as pool:
            with pytest.raises(FaultError, match="ZeroDivisionError") as caught:
                await pool.run("jobs:broken", 1)
            with pytest.raises(FaultError, match="No module named 'nowhere'"):
                await pool.run("nowhere:function", 1)
            with pytest.raises(FaultError, match="unsupported"):
                await pool.run("jobs:unspeakable", 1)
            return caught.value.fault.what

    assert run(main()) == "verifier-crash"


def test_the_gold_answer_decides_who_exceeded_the_limit():
    async def fault(answer, gold):
        async with Pool(workers=1) as pool:
            with pytest.raises(FaultError) as caught:
                await pool.judge("jobs:hang_unless_gold", (answer,), (gold,), bool, 0.2)
            return caught.value.fault.what

    assert run(fault("bomb", "gold")) == "answer-exceeds-verifier"
    assert run(fault("bomb", "other bomb")) == "verifier-limit"


def test_workers_killed_at_random_change_no_verdict():
    async def main(pool, stop):
        def killer():
            rng = random.Random(0)
            while not stop.wait(rng.uniform(0.05, 0.4)):
                if pool.pids:
                    os.kill(rng.choice(pool.pids), signal.SIGKILL)
                    kills.append(1)

        kills: list[int] = []
        thread = threading.Thread(target=killer)
        async with pool:
            thread.start()
            answers = await asyncio.gather(*(pool.run("jobs:slow_double", n) for n in range(200)))
            stop.set()
            thread.join()
        return answers, len(kills)

    answers, kills = run(main(Pool(workers=2), threading.Event()))
    assert answers == [2 * n for n in range(200)]
    assert kills >= 3


def test_the_process_that_workers_are_forked_from_may_be_killed_too():
    async def main():
        async with Pool(workers=2) as pool:
            before = await asyncio.gather(*(pool.run("jobs:slow_double", n) for n in range(20)))
            parent = int(Path(f"/proc/{pool.pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
            assert parent != os.getpid()
            jobs = [asyncio.ensure_future(pool.run("jobs:slow_double", n)) for n in range(20, 100)]
            await asyncio.sleep(0.1)
            os.kill(parent, signal.SIGKILL)
            return before + await asyncio.gather(*jobs)

    assert run(main()) == [2 * n for n in range(100)]


def test_results_are_cached_by_content_and_workers_recycled():
    async def main():
        async with Pool(workers=1, recycle=3, cached=4) as pool:
            first = [await pool.run("jobs:pid", n) for n in range(4)]
            again = [await pool.run("jobs:pid", n) for n in range(4)]
            return first, again

    first, again = run(main())
    assert first == again
    assert first[0] == first[2] != first[3]


def test_two_event_loops_share_a_pool():
    async def main(pool):
        async with pool:
            other = await asyncio.to_thread(lambda: asyncio.run(pool.run("jobs:double", 21)))
            return other, await pool.run("jobs:double", 4)

    assert run(main(Pool(workers=1))) == (42, 8)


def test_a_cancelled_job_hurts_nobody():
    async def main():
        async with Pool(workers=1) as pool:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(pool.run("jobs:sleep", 1, seconds=0.5), 0.1)
            return await pool.run("jobs:double", 1)

    assert run(main()) == 2


def test_closing_fails_what_waits_and_ends_all_workers():
    async def main():
        async with Pool(workers=1) as pool:
            jobs = [asyncio.ensure_future(pool.run("jobs:sleep", n, seconds=60)) for n in range(3)]
            while not (pids := pool.pids):
                await asyncio.sleep(0.01)
        results = await asyncio.gather(*jobs, return_exceptions=True)
        with pytest.raises(BackendError, match="not open"):
            await pool.run("jobs:double", 1)
        return results, pids

    results, pids = run(main())
    assert all(isinstance(result, BackendError) for result in results)
    assert pids
    assert not any(map(alive, pids))


def test_workers_import_nothing_heavy_and_die_with_their_owner():
    program = """
import asyncio, os, signal
from temper.verifiers.pool import Pool
async def main():
    async with Pool(workers=1) as pool:
        print(await pool.run("jobs:modules"), pool.pids[0], flush=True)
        asyncio.ensure_future(pool.run("jobs:spin", 1, seconds=60))
        await asyncio.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    path = os.pathsep.join([entry for entry in sys.path if entry])
    owner = subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": path}, capture_output=True, text=True)
    heavy, _, pid = owner.stdout.strip().rpartition(" ")
    assert heavy == "[]", owner.stderr
    deadline = time.monotonic() + 3
    while alive(int(pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(int(pid))
