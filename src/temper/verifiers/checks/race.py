"""Runs inside a sandbox: the delivered function and the solution, in turns, their CPU clocks read from outside.

Started behind `checks.values` and `checks.apart`, with a job {"nonce", "module", "function", "solution": source,
"calls": [forms of argument lists]} and the number of turns as its argument. Reports {"nonce", "seconds",
"solution_seconds": CPU time of all calls in the quickest turn, "wrong": [[call, why]], "broken": why the solution
itself does not run}. Every turn has processes of its own, so that nothing can be kept from one to the next.
"""

from __future__ import annotations

import json
import sys
import time
import types
from typing import Any

from temper.verifiers.checks.apart import apart, report, unreadable  # in the sandbox: the sources in front of this
from temper.verifiers.checks.values import decode, encode, normal

_LONGEST = 1 << 20


class Runner:
    """A child that calls one function; forked before anything is known."""

    def __init__(self) -> None:
        self.pid, self.replies, self.send = apart(serve)

    def ask(self, message: Any) -> tuple[Any, float]:
        """(reply, CPU seconds); the reply of one that is gone is None."""
        clock = (~self.pid << 3) | 2  # the kernel's MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED)
        try:
            began = time.clock_gettime(clock)
            self.send.write(json.dumps(message).encode() + b"\n")
            line = self.replies.readline(_LONGEST)
            return json.loads(line), time.clock_gettime(clock) - began
        except (OSError, ValueError, RecursionError):
            return None, 0.0


def main() -> None:
    unreadable()
    pairs = [(Runner(), Runner()) for _ in range(int(sys.argv[1]))]
    job = json.load(sys.stdin)
    turns = [turn(solution, delivered, job) for solution, delivered in pairs]
    worst = next((found for found in turns if found["wrong"] or found["broken"]), turns[0])
    quickest = {key: min(found[key] for found in turns) for key in ("seconds", "solution_seconds")}
    report(nonce=job["nonce"], **worst | quickest)


def turn(solution: Runner, delivered: Runner, job: dict[str, Any]) -> dict[str, Any]:
    """All calls once, each by the solution and then by the other, up to the first wrong answer."""
    spent = taken = 0.0
    wrong: list[Any] = []
    started = solution.ask(["source", job["solution"], job["function"]])[0]
    broken = "" if started == "ready" else f"the solution does not start: {started}"
    delivered.ask(["module", job["module"], job["function"]])
    for number, call in enumerate(job["calls"]):
        if broken or wrong:
            break
        (expected, more), (got, longer) = solution.ask(["call", call]), delivered.ask(["call", call])
        spent, taken = spent + more, taken + longer
        if not expected or expected[0] != "value":
            broken = f"call {number + 1} of the solution: {expected}"[:500]
        elif normal(got) != normal(expected):
            kind = got[0] if isinstance(got, list) and got else "gone"
            wrong = [[number, str(got[1]) if kind == "raised" else "it ended, or gave a wrong value"]]
    return {"seconds": taken, "solution_seconds": spent, "wrong": wrong, "broken": broken}


def serve(requests: Any, replies: Any) -> None:
    function: Any = None
    sys.path.insert(0, ".")
    for line in requests:
        kind, *content = json.loads(line)
        try:
            if kind == "call":
                reply: Any = ["value", encode(function(*decode(content[0])))]
            else:
                if kind == "module":
                    module = __import__(content[0], fromlist=["*"])
                else:
                    module = types.ModuleType("solution")
                    exec(compile(content[0], "solution.py", "exec"), module.__dict__)
                function = getattr(module, content[1])
                reply = "ready"
        except BaseException as error:
            reply = ["raised", f"{type(error).__name__}: {error}"[:300]]
        data = json.dumps(reply).encode()
        replies.write((data if len(data) < _LONGEST else b'["raised", "a value too large to report"]') + b"\n")


if __name__ == "__main__":
    main()
