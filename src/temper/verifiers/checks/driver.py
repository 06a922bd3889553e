"""Runs inside a sandbox: calls functions of a delivered module and reports what they gave. Standard library only.

Started behind `checks.values`, `checks.apart` and, where need be, `checks.schedules`, with a marshalled job on stdin:
{"nonce", "module": dotted name, "calls": [{"function", "args", "kwargs", "schedules", "watch"}]}, values in the form of
`checks.values`. Stdout ends with a line of the nonce and a line of JSON a call: ["value", form] (of a watched call: of
the value and the arguments as they are then), ["raised", [class names], text], ["gone", text] or, of a call under
schedules, ["each", [the different outcomes]].

The candidate learns one call at a time and never sees an expected value: a forged outcome has to be right to be of
use. Its lines are passed on unread. An early exit leaves calls without an outcome. Imports little, as half the time of
a small program is the interpreter's start.
"""

from __future__ import annotations

import marshal
import os
import sys
from _json import encode_basestring_ascii as quoted
from typing import Any

from temper.verifiers.checks.apart import apart, raised  # in the sandbox: the sources in front of this
from temper.verifiers.checks.schedules import under
from temper.verifiers.checks.values import decode, encode

_REPLY = 1 << 16  # bytes of one outcome
_IMPORTED = b'["value", ["none"]]\n'


def main() -> None:
    _, receive, send = apart(lambda requests, replies: candidate(requests, replies.fileno()))
    job = marshal.load(sys.stdin.buffer)
    outcomes = converse(job, send, receive)
    sys.stdout.buffer.write(b"".join([b"\n", job["nonce"].encode(), b"\n", *outcomes]))
    sys.stdout.buffer.flush()
    os._exit(0)  # a quarter of the time of a small program would be the interpreter's end


def converse(job: dict[str, Any], send: Any, receive: Any) -> list[bytes]:
    """Parent: one request, one reply; the first reply is about the import."""
    outcomes: list[bytes] = []
    for request in ({"module": job["module"]}, *job["calls"]):
        try:
            send.write(marshal.dumps(request))
            line = receive.readline(2 * _REPLY)
        except BrokenPipeError:
            line = b""
        if not line.endswith(b"\n"):
            line = b'["gone", "the program ended before it answered"]\n'
        if "module" not in request:
            outcomes.append(line)
        elif line != _IMPORTED:
            return [line] * len(job["calls"])
    return outcomes


def candidate(requests: Any, replies: int, load: Any = marshal.load, write: Any = os.write) -> None:
    """Child: imports the module and calls. Functions that a candidate might replace are bound beforehand."""
    sys.path.insert(0, ".")
    module: Any = None
    while True:
        try:
            request = load(requests)
        except EOFError:
            return
        try:
            if module is None:
                module = __import__(request["module"], fromlist=["*"])
                outcome: list[Any] = ["value", ["none"]]
            else:
                outcome = answered(getattr(module, request["function"]), request)
        except BaseException as error:
            outcome = raised(error)
        data = written(outcome).encode()
        if len(data) > _REPLY:
            data = b'["value", ["object", "a value too large to report"]]'
        write(replies, data + b"\n")


def answered(function: Any, request: dict[str, Any]) -> list[Any]:
    def call() -> list[Any]:
        args = [decode(form) for form in request["args"]]
        kwargs = {name: decode(form) for name, form in request["kwargs"].items()}
        try:
            value = function(*args, **kwargs)
            return ["value", encode((value, args) if request["watch"] else value)]
        except BaseException as error:
            return raised(error)

    if not request["schedules"]:
        return call()
    outcomes: list[Any] = []
    for seed in range(request["schedules"]):
        outcome = under(seed, call)
        if outcome not in outcomes:
            outcomes.append(outcome)
    return ["each", outcomes[:20]]


def written(outcome: Any) -> str:
    """JSON of lists, texts and truth values."""
    if isinstance(outcome, list):
        return f"[{', '.join(map(written, outcome))}]"
    return quoted(outcome) if isinstance(outcome, str) else "true" if outcome is True else "false"


if __name__ == "__main__":
    main()
