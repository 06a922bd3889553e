"""What compiling, ruff and mypy say about Python texts. Nothing is run."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import warnings
from collections import Counter
from pathlib import Path

from ruff import find_ruff_bin

from temper.verifiers.checks.metrics import parsed, public


def check(
    new: dict[str, str], old: dict[str, str], rules: list[str], types: bool, legacy: bool
) -> tuple[dict[str, float], str]:
    """(components, why not). The first finding is named."""
    if wrong := _uncompiled(new):
        return {"compile": 0.0}, wrong
    whole = {path: text for path, text in old.items() if not _uncompiled({path: text})}
    before, after = (public({path: parsed(text) for path, text in files.items()}) for files in (whole, new))
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
        out, _, _ = api.run([*options, "--no-site-packages", folder])
    ignored = r"#\s*(?:type:\s*ignore|mypy:)"
    found = [
        (1, f"{path}: a comment tells mypy to look away") for path, text in files.items() if re.search(ignored, text)
    ]
    for line in out.splitlines():
        path, _, rest = line.removeprefix(f"{folder}/").partition(":")
        number, _, text = rest.partition(": error: ")
        if text:
            found.append((int(number), f"{path}: {text}"))
    return found
