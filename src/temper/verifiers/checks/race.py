"""Runs inside a sandbox: the delivered function and the solution, in turns, their CPU clocks read from outside.

Started like `checks.driver`, behind `checks.values`, with a job {"nonce", "module", "function", "solution": source,
"calls": [forms of argument lists]} and the number of turns as its argument. The last line of stdout is {"nonce",
"seconds", "solution_seconds": CPU time of all calls in the quickest turn, "wrong": [[call, why]], "broken": why the
solution itself does not run}. Every turn has processes of its own, so that nothing can be kept from one to the next.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
import types
from typing import Any

from temper.verifiers.checks.values import decode, encode, normal  # in the sandbox: the source in front of this

_UNREADABLE, _PR_SET_DUMPABLE = 0, 4
_LONGEST = 1 << 20


class Runner:
    """A child that calls one function; forked before anything is known."""

    def __init__(self) -> None:
        receive, self.send = os.pipe()
        self.receive, send = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.send)
            os.close(self.receive)
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(null, stream)
            serve(os.fdopen(receive, "rb"), send)
            os._exit(0)
        os.close(receive)
        os.close(send)
        self.replies = os.fdopen(self.receive, "rb")

    def ask(self, message: Any) -> tuple[Any, float]:
        """(reply, CPU seconds); the reply of one that is gone is None."""
        clock = (~self.pid << 3) | 2  # the kernel's MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED)
        try:
            began = time.clock_gettime(clock)
            os.write(self.send, json.dumps(message).encode() + b"\n")
            line = self.replies.readline(_LONGEST)
            return json.loads(line), time.clock_gettime(clock) - began
        except (OSError, ValueError, RecursionError):
            return None, 0.0


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, _UNREADABLE)
    pairs = [(Runner(), Runner()) for _ in range(int(sys.argv[1]))]
    job = json.load(sys.stdin)
    turns = [turn(solution, delivered, job) for solution, delivered in pairs]
    report = {"nonce": job["nonce"], "wrong": [], "broken": ""}
    report |= next((found for found in turns if found["wrong"] or found["broken"]), {})
    for key in ("seconds", "solution_seconds"):
        report[key] = min(found[key] for found in turns)
    print("\n" + json.dumps(report), flush=True)


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


def serve(requests: Any, replies: int) -> None:
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
        os.write(replies, (data if len(data) < _LONGEST else b'["raised", "a value too large to report"]') + b"\n")


if __name__ == "__main__":
    main()
