"""Verdicts a second, fully isolated, against math-verify called directly and against a subprocess for each check.

Ours go the whole way: `grade`, the verifier, the pool's workers or a sandbox; nothing comes from the cache. Peers and
we take turns. math-verify's own test cases are read from its source distribution (PyPI; or `cases=FOLDER` with its
tests); of its `parametrize`d (gold, prediction) pairs each round takes a part. A hang is a check that sleeps for ever;
it is charged its limit twice (the second time on a fresh worker), and what it costs beyond is measured.
"""

from __future__ import annotations

import ast
import asyncio
import itertools
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from temper.core import registry
from temper.core.errors import MissingError
from temper.core.protocols import Verifier
from temper.core.task import Message, SandboxSpec, Task
from temper.core.trace import Segment, Trace, Verdict
from temper.verifiers.grading import grade
from temper.verifiers.pool import LimitError, Pool

SETTINGS = {
    "pairs": 5, "plain": 4000, "own_cases": 100, "code_seconds": 3.0, "in_flight": 16, "workers": 2, "cases": "",
}  # fmt: skip
VERSION = "0.9.0"
HANG_SECONDS = 1.0
CODE = {"code": "fork", "code_fresh_interpreter": "process", "code_fresh_sandbox": "sandbox"}
PROGRAM = "def f(xs):\n    return sorted(set(xs))[:%d]\n"


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """Gives metrics, their spread over the pairs, and the settings. Raises MissingError without math-verify's tests."""
    chosen = {**SETTINGS, **settings}
    return asyncio.run(_measure(chosen, _own_cases(chosen["cases"])))


async def _measure(chosen: dict[str, Any], own: list[tuple[str, str]]) -> dict[str, Any]:
    series: dict[str, list[float]] = {}
    sandboxes = registry.find("sandboxes", "local").create()
    async with Pool(workers=chosen["workers"], cached=0) as pool:
        math = registry.find("verifiers", "math").create(None, pool, sandboxes)
        await _math(math, _plain(200, 0) + own[:80], chosen, {})  # warm: workers have imported what they need
        for n in range(chosen["pairs"]):
            plain = _plain(chosen["plain"], n + 1)
            part = random.Random(n).sample(own, min(chosen["own_cases"], len(own)))
            ours = await _math(math, plain, chosen, series, "math")
            theirs = _directly(plain[:400])
            _note(series, math_verify_plain_per_s=theirs, vs_math_verify_plain=ours / theirs)
            ours = await _math(math, part, chosen, series, "own_cases")
            theirs = _directly(part)
            _note(series, math_verify_own_cases_per_s=theirs, vs_math_verify=ours / theirs)
            _note(series, subprocess_each_per_s=_subprocesses(plain[:10]))
            for key, start in CODE.items():
                await _code(key, start, pool, sandboxes, chosen, series)
            _note(series, hang_cost_over_limit_s=await _hang(pool))
    await sandboxes.close()
    metrics = {key: statistics.median(values) for key, values in series.items()}
    spread = {key: [min(v), statistics.median(v), max(v)] for key, v in series.items()}
    return {"metrics": metrics, "spread": spread, "pairs": chosen["pairs"], "settings": chosen}


def _plain(n: int, seed: int) -> list[tuple[str, str]]:
    """(gold, answer): numbers and fractions in the forms that models write, two thirds of them right."""
    rng = random.Random(seed)
    found = []
    for _ in range(n):
        a, b = rng.randint(-(10**6), 10**6), rng.randint(2, 999)
        gold = rng.choice((str(a), f"{a}/{b}", f"{a / 100:.2f}"))
        said = gold if rng.random() < 2 / 3 else f"{a + 1}"
        found.append(
            (gold, rng.choice(("{}", "\\boxed{{{}}}", "So the answer is {}.", "12 + 7 = 19\n#### {}")).format(said))
        )
    return found


async def _math(
    verifier: Verifier, pairs: Sequence[tuple[str, str]], chosen: dict[str, Any], series: dict[str, list[float]],
    key: str = "warm",
) -> float:  # fmt: skip
    """Verdicts a second; each waits for its turn among `in_flight` times four."""
    jobs = [_episode(f"{key}-{n}", {"answer": gold}, said) for n, (gold, said) in enumerate(pairs)]
    rate, p99 = await _rate([lambda job=job: grade(*job, {}, verifier) for job in jobs], 4 * chosen["in_flight"])
    _note(series, **{f"{key}_per_s": rate, f"{key}_p99_ms": p99})
    return rate


async def _code(
    key: str, start: str, pool: Pool, sandboxes: Any, chosen: dict[str, Any], series: dict[str, list[float]]
) -> None:
    module, config = registry.configure("verifiers", {"kind": "code", "interpreter": {"start": start}})
    verifier = module.create(config, pool, sandboxes)
    spec = SandboxSpec(files={"m.py": b""})

    def one(n: int) -> Callable[[], Awaitable[Verdict]]:
        k = n % 5 + 1
        cases = [{"function": "f", "args": [[3, 1, 2, 1, n]], "expect": sorted({1, 2, 3, n})[:k]}]
        task, trace = _episode(f"{key}-{n}", {"module": "m.py", "cases": cases}, "", sandbox=spec, artifacts=("m.py",))
        return lambda: grade(task, trace, {"m.py": (PROGRAM % k).encode()}, verifier)

    await _rate([one(n) for n in range(2 * chosen["in_flight"])], chosen["in_flight"], right=True)  # warm
    jobs = (one(n) for n in itertools.count())
    rate, p99 = await _rate(jobs, chosen["in_flight"], chosen["code_seconds"], right=True)
    _note(series, **{f"{key}_per_s": rate, f"{key}_p99_ms": p99})


async def _rate(
    jobs: Iterable[Callable[[], Awaitable[Verdict]]], in_flight: int, seconds: float = 1e9, right: bool = False
) -> tuple[float, float]:
    """Graded verdicts a second, and the 99th percentile of what one took in milliseconds."""
    waiting = iter(jobs)
    taken: list[float] = []
    began = time.perf_counter()

    async def work() -> None:
        for job in waiting:
            start = time.perf_counter()
            verdict = await job()
            taken.append(time.perf_counter() - start)
            assert verdict.score == 1 or not right, verdict
            if start - began > seconds:
                return

    await asyncio.gather(*(work() for _ in range(in_flight)))
    return len(taken) / (time.perf_counter() - began), statistics.quantiles(taken, n=100)[98] * 1000


def _directly(pairs: Sequence[tuple[str, str]]) -> float:
    """math-verify in this process, the way its documentation calls it."""
    from math_verify import parse, verify

    began = time.perf_counter()
    for gold, said in pairs:
        verify(parse(gold), parse(said))
    return len(pairs) / (time.perf_counter() - began)


def _subprocesses(pairs: Sequence[tuple[str, str]]) -> float:
    """A new interpreter for every check, with our own check in it."""
    program = "import sys; from temper.verifiers.checks.answers import check; check(*sys.argv[1:])"
    began = time.perf_counter()
    for gold, said in pairs:
        subprocess.run([sys.executable, "-c", program, said, gold], check=True)
    return len(pairs) / (time.perf_counter() - began)


async def _hang(pool: Pool) -> float:
    began = time.perf_counter()
    try:
        await pool.run("time:sleep", 1000, seconds=HANG_SECONDS)
    except LimitError:
        return time.perf_counter() - began - 2 * HANG_SECONDS
    raise AssertionError("a check that never ends came back")


def _episode(id: str, reference: Any, said: str, **task: Any) -> tuple[Task, Trace]:
    asked = Task(id=id, domain="bench", messages=(Message("user", "?"),), reference=reference, **task)
    segments = (Segment.given((*asked.messages, Message("assistant", said)), []),)
    return asked, Trace(id=id, task=id, domain="bench", seed=0, segments=segments)


def _own_cases(folder: str) -> list[tuple[str, str]]:
    """The (gold, prediction, ...) tuples that math-verify's tests are parametrized with."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(folder) if folder else _source(Path(scratch))
        texts = [path.read_text("utf-8") for path in sorted(root.rglob("test_*.py"))]
    found: dict[tuple[str, str], None] = {}
    for text in texts:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Tuple) and len(node.elts) >= 3:
                values = [e.value for e in node.elts[:2] if isinstance(e, ast.Constant) and isinstance(e.value, str)]
                if len(values) == 2:
                    found[values[0], values[1]] = None
    if not found:
        raise MissingError(f"no test cases of math-verify in {folder or 'its source distribution'}: give cases=FOLDER")
    return list(found)


def _source(folder: Path) -> Path:
    """math-verify's source distribution, unpacked."""
    wanted = ["--no-deps", "--no-binary", ":all:", "--dest", str(folder), f"math-verify=={VERSION}"]
    done = subprocess.run([sys.executable, "-m", "pip", "download", "-q", *wanted], capture_output=True, text=True)
    archives = list(folder.glob("*.tar.gz"))
    if done.returncode or not archives:
        raise MissingError(f"math-verify's source is not to be had: give cases=FOLDER. pip said: {done.stderr[-300:]}")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(folder, filter="data")
    return folder


def _note(series: dict[str, list[float]], **values: float) -> None:
    for key, value in values.items():
        series.setdefault(key, []).append(value)
