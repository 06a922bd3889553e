"""Delivered Python files are read and not run: they compile, ruff finds nothing, the types hold.

Reference: {"paths": ["m.py"], "solution": {...}}. Config says what is asked for: `ruff` names rules ("E9", "F", "B"),
`types` asks mypy, and under `legacy` a finding that the task's own file has already is not held against the policy.
Whatever that file has of public names has to stay, and an unchanged file is no answer. Components: compile, interface,
ruff, types.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import warnings
from collections import Counter
from pathlib import Path

from msgspec import Struct

from temper.verifiers.checks.metrics import parsed, public
from temper.verifiers.grading import Given, Judgement, Plugin, Some

_LOOKING_AWAY = {
    "a comment": r"#\s*(?:type:\s*ignore|mypy:)", "the code": r"\bno_type_check|\bnot\s+(?:\w+\.)?TYPE_CHECKING",
}  # fmt: skip


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ruff: tuple[str, ...] = ("E9", "F")
    types: bool = False
    legacy: bool = False
    seconds: float = 20.0


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    paths: Some[str]
    solution: dict[str, str] = {}


async def judge(given: Given, reference: Reference, settings: Config) -> Judgement:
    before = given.task.sandbox.files if given.task.sandbox else {}
    new = {path: given.file(path).decode("utf-8", "replace") for path in reference.paths}
    old = {path: before[path].decode("utf-8", "replace") for path in reference.paths if path in before}
    if new == old:
        return Judgement(0.0, "nothing was changed")
    asked = (list(settings.ruff), settings.types, settings.legacy)
    gold = {path: reference.solution.get(path, old.get(path, "")) for path in reference.paths}
    components, why = await given.pool.judge(
        f"{__name__}:check", (new, old, *asked), (gold, old, *asked), bool, settings.seconds
    )
    return Judgement(float(not why), why, components)


def check(
    new: dict[str, str], old: dict[str, str], rules: list[str], types: bool, legacy: bool
) -> tuple[dict[str, float], str]:
    """Runs in a worker: components, why not. The first finding is named."""
    if wrong := _uncompiled(new):
        return {"compile": 0.0}, wrong
    whole = {path: text for path, text in old.items() if not _uncompiled({path: text})}
    try:
        before, after = (public({path: parsed(text) for path, text in files.items()}) for files in (whole, new))
    except ValueError as error:
        return {"compile": 0.0}, f"the interface cannot be read: {error}"
    gone = [name for name in before if name not in after]
    components = {"compile": 1.0, "interface": float(not gone)}
    whys = [f"{name} is gone" for name in gone]
    for name, find in (("ruff", lambda files: _ruff(files, rules)), ("types", _types)):
        if rules if name == "ruff" else types:
            more = _more(find(new), find(whole) if legacy else [])
            components[name] = float(not more)
            whys += more
    return components, whys[0] if whys else ""


def _uncompiled(files: dict[str, str]) -> str:
    for path, text in files.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(text, path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            return f"{path} does not compile: {error}"
    return ""


def _more(new: list[tuple[int, str]], old: list[tuple[int, str]]) -> list[str]:
    """Findings beyond the old ones; those are known by their text, as lines move."""
    known = Counter(text for _, text in old)
    more = []
    for line, text in new:
        known[text] -= 1
        if known[text] < 0:
            more.append(f"line {line}: {text}")
    return more


def _ruff(files: dict[str, str], rules: list[str]) -> list[tuple[int, str]]:
    from ruff import find_ruff_bin

    found = []
    for path, text in files.items():
        argv = [find_ruff_bin(), "check", "--isolated", "--no-cache", "--ignore-noqa", "--output-format=json"]
        argv += [f"--select={','.join(rules)}", f"--stdin-filename={path}", "-"]
        done = subprocess.run(
            argv, input=text.encode(), capture_output=True, check=False, env={"RAYON_NUM_THREADS": "1"}
        )
        if done.returncode not in (0, 1):
            raise OSError(f"ruff ended with {done.returncode}: {done.stderr[:300]!r}")
        found += [
            (item["location"]["row"], f"{path}: {item['code']} {item['message']}") for item in json.loads(done.stdout)
        ]
    return found


def _types(files: dict[str, str]) -> list[tuple[int, str]]:
    from mypy import api

    with tempfile.TemporaryDirectory() as folder:
        for path, text in files.items():
            place = Path(folder, path).resolve()
            if not place.is_relative_to(Path(folder).resolve()):
                raise ValueError(f"{path} leads out of its folder")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, "utf-8")
        options = ["--config-file=", "--cache-dir=/dev/null", "--no-error-summary", "--hide-error-context", "--strict"]
        out, error, status = api.run([*options, "--no-site-packages", folder])
    found = [
        (1, f"{path}: {what} tells mypy to look away")
        for path, text in files.items() for what, pattern in _LOOKING_AWAY.items() if re.search(pattern, text)
    ]  # fmt: skip
    for line in out.splitlines():
        if told := re.match(r"(.+?):(\d+): error: (.+)", line.removeprefix(f"{folder}/")):
            found.append((int(told[2]), f"{told[1]}: {told[3]}"))
    if status > 1 and not found:  # it gave up, which says nothing good about the types
        found.append((1, f"{', '.join(files)}: mypy gave up: {error.strip()[-200:]}"))
    return found


def _libraries(settings: Config) -> tuple[str, ...]:
    return ("ruff", "mypy") if settings.types else ("ruff",)


create = Plugin(__name__, Config, Reference, judge, libraries=_libraries, extra="code")
