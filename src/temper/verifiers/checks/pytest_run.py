"""Runs inside a sandbox: pytest over named test files, each result named to a parent process. See `verifiers.tests`.

Started behind `checks.values` and `checks.apart`, with a job {"nonce", "tests": [paths], "lines": {}, "delivered":
[paths], "bundle": the zip with pytest}; reports what `checks.remote` reports. Delivered code runs in the process that
runs pytest.
"""

from __future__ import annotations

import ast
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

from temper.verifiers.checks.apart import Coverage, apart, report  # in the sandbox: the sources in front of this
from temper.verifiers.checks.values import encode, faithful


def main() -> None:
    job = json.load(sys.stdin)
    nonce = job.pop("nonce")
    _, receive, _ = apart(lambda _, send: run(job, send.fileno()))
    outcomes: dict[str, list[str]] = {}
    covered = 0
    for line in receive:
        try:
            name, ended, text = map(str, json.loads(line))
            covered = int(ended) if name == "covered" else covered
        except (ValueError, TypeError, RecursionError):  # not from pytest
            continue
        if name != "covered" and outcomes.get(name, ["passed"])[0] == "passed":  # a failure stays
            outcomes[name] = [ended, text]
    asked = sum(map(len, job["lines"].values()))
    report(nonce=nonce, outcomes=outcomes, covered=[covered, asked])


def run(job: dict[str, Any], send: int, dumps: Any = json.dumps, write: Any = os.write) -> None:
    sys.path[:0] = [job["bundle"], "."]
    sys.dont_write_bytecode = True
    import pytest
    from _pytest.assertion import rewrite

    known = {
        kind.__eq__ for module in list(sys.modules.values()) for kind in vars(module).values() if isinstance(kind, type)
    }
    held = {str(Path(path).absolute()): Path(path).read_bytes() for path in job["tests"]}
    rewrite.rewrite_asserts = strictly(rewrite.rewrite_asserts, held)
    sys._temper_equal = equality(known)  # type: ignore[attr-defined]
    mine, given_up = set(job["delivered"]), pytest.xfail.Exception
    coverage = Coverage(job["lines"])

    class Told:
        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_makereport(self, call: Any) -> Any:
            """Delivered code may not call a test off."""
            frames = [os.path.relpath(entry.path) for entry in call.excinfo.traceback] if call.excinfo else []
            report = yield
            if report.skipped and mine.intersection(frames):
                expected = hasattr(report, "wasxfail") and not isinstance(call.excinfo.value, given_up)
                report.outcome = report.outcome if expected else "failed"
            return report

        def pytest_runtest_logreport(self, report: Any) -> None:
            ended = "passed" if hasattr(report, "wasxfail") and report.outcome == "skipped" else report.outcome
            if report.when == "call" or ended != "passed":
                crash = getattr(getattr(report.longrepr, "reprcrash", None), "message", "") if report.longrepr else ""
                write(send, dumps([report.nodeid, ended, str(crash)[:300]]).encode() + b"\n")

    if job["lines"]:
        sys.settrace(coverage.trace)
    pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir=.", "-c", os.devnull, *job["tests"]], plugins=[Told()])
    write(send, dumps(["covered", str(len(coverage.seen)), ""]).encode() + b"\n")


def strictly(rewrite_asserts: Any, held: dict[str, bytes]) -> Any:
    """Tests in which `a == b` is decided by `equality`. Raises ImportError for one that is not what was `held`."""

    class Strict(ast.NodeTransformer):
        def visit_Compare(self, node: ast.Compare) -> ast.AST:
            self.generic_visit(node)
            if len(node.ops) != 1 or not isinstance(node.ops[0], ast.Eq):
                return node
            function = ast.parse("__import__('sys')._temper_equal", mode="eval").body
            call = ast.Call(function, [node.left, *node.comparators], [])
            return ast.fix_missing_locations(ast.copy_location(call, node))

    def rewritten(tree: ast.Module, source: bytes, path: str, *more: Any) -> None:
        if held.get(path, source) != source:
            raise ImportError(f"{path} was changed")
        Strict().visit(tree)
        rewrite_asserts(tree, source, path, *more)

    return rewritten


def equality(known: set[Any], same: Any = encode, whole: Any = faithful) -> Any:
    """Equality in which plain data equal only plain data, or objects that compare as a library's classes do."""

    def trusted(value: Any) -> bool:
        if whole(same(value)):
            return True
        if isinstance(value, list | tuple | set | frozenset | dict):
            inside = [*value, *value.values()] if isinstance(value, dict) else value
            return all(map(trusted, inside)) and type(value).__eq__ in known
        return isinstance(type(value).__eq__, types.WrapperDescriptorType) or type(value).__eq__ in known

    def equal(a: Any, b: Any) -> Any:
        either = whole(same(a)) or whole(same(b))
        return False if either and not (trusted(a) and trusted(b)) else a == b

    return equal


if __name__ == "__main__":
    main()
