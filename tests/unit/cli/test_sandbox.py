"""`temper sandbox`: build, use, list and collect an image; a shell; errors that say what to do."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import temper.cli
from temper.core.errors import ConfigError, MissingError, TemperError

Run = Callable[..., Result]


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """sandbox("ls"): the command in an empty folder with an empty store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TEMPER_CACHE", str(tmp_path / "cache"))
    importlib.import_module("temper.cli.sandbox")

    def run(*words: str) -> Result:
        done = CliRunner().invoke(temper.cli.app, ["sandbox", *words])
        if isinstance(done.exception, TemperError):
            raise done.exception
        assert done.exit_code == 0, done.output
        return done

    return run


def test_an_image_from_its_description_to_its_end(sandbox: Run, tmp_path: Path) -> None:
    (tmp_path / "env.toml").write_text('run = ["echo $MODE > x"]\n[env]\nMODE = "test"\n')
    name = sandbox("build", "env.toml").stdout.strip()
    assert name.startswith("image:")
    assert sandbox("exec", "--image", name[6:12], "--", "sh", "-c", "cat x; echo $MODE").stdout == "test\ntest\n"
    assert sandbox("exec", "--image", "env.toml", "--", "cat", "x").stdout == "test\n"
    line = sandbox("ls").stdout
    assert line.startswith(name[6:])
    assert str(tmp_path / "env.lock") in line
    assert sandbox("gc", "--days", "0").stdout == ""
    (tmp_path / "env.lock").unlink()
    assert f"images/{name[6:]}.json" in sandbox("gc", "--days", "0", "--dry-run").stdout
    sandbox("gc", "--days", "0")
    assert sandbox("ls").stdout == ""


def test_a_shell_ends_with_its_status() -> None:
    command = [sys.executable, "-m", "temper.cli", "sandbox", "shell"]
    typed = "echo $PWD $((6 * 7))\nexit 3\n"
    done = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=60, env=os.environ)
    assert "/sandbox 42" in done.stdout
    assert done.returncode == 3, done.stderr


def test_errors_say_what_was_expected(sandbox: Run, tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="expected one image that begins 'abc', found 0"):
        sandbox("exec", "--image", "abc", "--", "true")
    with pytest.raises(MissingError, match=r"no description of an environment at missing\.toml"):
        sandbox("build", "missing.toml")
    (tmp_path / "env.toml").write_text('pyhton = ["numpy"]\n')
    with pytest.raises(ConfigError, match="unknown key 'pyhton'; did you mean 'python'"):
        sandbox("build", "env.toml")
    (tmp_path / "env.toml").write_text('base = "nowhere.tar"\n')
    with pytest.raises(MissingError, match=f"no base at {tmp_path}/nowhere.tar"):
        sandbox("build", "env.toml")
    with pytest.raises(ConfigError, match="expected host or host:port, got 'a b'"):
        sandbox("exec", "--network", "a b", "--", "true")
    for seconds in ("-1", "nan"):
        with pytest.raises(ConfigError, match=f"expected --seconds above 0, got {seconds}"):
            sandbox("exec", "--seconds", seconds, "--", "true")
