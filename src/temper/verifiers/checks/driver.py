"""Runs inside a sandbox: calls functions of a delivered module and reports what they gave. Standard library only.

Started as `python3 -I -S -c SOURCE` (`checks.values` and then this), with a JSON job on stdin:
{"nonce", "module": dotted name, "calls": [{"function", "args", "kwargs"}]}, values in the form of `checks.values`.
The last line of stdout is {"nonce", "outcomes": [["value", form] | ["raised", [class names], text] | ["gone", text]]}.

The candidate runs in a child that has no access to stdin or stdout, learns one call at a time, and never sees an
expected value: a forged outcome has to be right to be of use. An early exit leaves calls without an outcome.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from temper.verifiers.checks.values import decode, encode  # in the sandbox: the source in front of this

_REPLY = 1 << 16  # bytes of one outcome


def main() -> None:
    to_child, to_parent = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(to_child[1])
        os.close(to_parent[0])
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        candidate(os.fdopen(to_child[0], "rb"), to_parent[1])
        os._exit(0)
    os.close(to_child[0])
    os.close(to_parent[1])
    job = json.load(sys.stdin)
    outcomes = converse(job, os.fdopen(to_child[1], "wb", 0), os.fdopen(to_parent[0], "rb"))
    print("\n" + json.dumps({"nonce": job["nonce"], "outcomes": outcomes}), flush=True)


def converse(job: dict[str, Any], send: Any, receive: Any) -> list[Any]:
    """Parent: one request, one reply; the first reply is about the import."""
    outcomes: list[Any] = []
    for request in ({"module": job["module"]}, *job["calls"]):
        try:
            send.write(json.dumps(request).encode() + b"\n")
            line = receive.readline()
        except BrokenPipeError:
            line = b""
        try:
            outcome = json.loads(line)
        except ValueError:
            outcome = ["gone", "the program ended before it answered"]
        if "module" not in request:
            outcomes.append(outcome)
        elif outcome[0] != "value":
            return [outcome] * len(job["calls"])
    return outcomes


def candidate(requests: Any, replies: int, dumps: Any = json.dumps, loads: Any = json.loads) -> None:
    """Child: imports the module and calls. Functions that a candidate might replace are bound beforehand."""
    sys.path.insert(0, ".")
    module: Any = None
    for line in requests:
        request = loads(line)
        try:
            if module is None:
                module = __import__(request["module"], fromlist=["*"])
                outcome: list[Any] = ["value", ["none"]]
            else:
                args = [decode(form) for form in request["args"]]
                kwargs = {name: decode(form) for name, form in request["kwargs"].items()}
                outcome = ["value", encode(getattr(module, request["function"])(*args, **kwargs))]
        except BaseException as error:
            outcome = ["raised", [kind.__name__ for kind in type(error).__mro__], str(error)[:300]]
        data = dumps(outcome).encode()
        if len(data) > _REPLY:
            data = dumps(["value", ["object", "a value too large to report"]]).encode()
        os.write(replies, data + b"\n")


if __name__ == "__main__":
    main()
