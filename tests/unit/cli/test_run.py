"""What `temper run` removes, what it refuses to be asked together, and how early."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from temper.cli import app, evaluate, run
from temper.core.errors import ConfigError, RefusedError
from temper.store.run import RunDirectory

VERBS = (evaluate, run)  # importing them adds them


def refused(*words: str) -> str:
    error = CliRunner().invoke(app, ["run", *words]).exception
    assert isinstance(error, ConfigError | RefusedError), error
    return str(error)


def test_from_scratch_removes_runs_only(tmp_path):
    kept = tmp_path / "precious" / "work.txt"
    kept.parent.mkdir()
    kept.write_text("mine")
    (tmp_path / "link").symlink_to(kept.parent)
    for name in ("precious", "link"):
        said = refused("smoke", "--root", str(tmp_path), "--name", name, "--from-scratch")
        assert "is no run; only runs are removed" in said
    assert kept.read_text() == "mine"


@pytest.mark.parametrize("name", ["../x", "..", ".", "a/b", "/tmp/x"])
def test_a_name_cannot_leave_the_root(name, tmp_path):
    assert "name of one directory" in refused("smoke", "--root", str(tmp_path), "--name", name, "--from-scratch")


def test_from_scratch_leaves_a_live_run_alone(tmp_path):
    with RunDirectory.create(tmp_path / "smoke", {"name": "smoke"}):
        assert "already open" in refused("smoke", "--root", str(tmp_path), "--from-scratch")
        assert (tmp_path / "smoke" / "recipe.json").exists()


@pytest.mark.parametrize("damaged", [False, True])
def test_a_dead_run_is_removed_damaged_or_not(damaged, tmp_path):
    path = tmp_path / "smoke"
    RunDirectory.create(path, {"name": "smoke"}).close()
    if damaged:
        (path / "traces.log").write_bytes(b"something else")
    run.remove(path)
    assert not path.exists()
    RunDirectory.create(path, {"name": "smoke"}).close()


def test_an_evaluation_replaces_evaluations_only(tmp_path):
    RunDirectory.create(tmp_path / "trained", {"name": "smoke", "stages": [{"kind": "sft"}]}).close()
    (tmp_path / "precious").mkdir()
    for name, why in (("trained", "a run that trains"), ("precious", "is no run"), ("../x", "name of one directory")):
        result = CliRunner().invoke(app, ["eval", "smoke", "--root", str(tmp_path), "--name", name])
        assert isinstance(result.exception, ConfigError)
        assert why in str(result.exception)
    assert (tmp_path / "trained" / "recipe.json").exists()
    assert (tmp_path / "precious").exists()


def test_ranks_that_do_not_know_each_other_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    assert "start them with torchrun" in refused("smoke")


def test_resume_refuses_what_belongs_to_a_new_run_by_name(tmp_path):
    said = refused("--resume", str(tmp_path), "--name", "x", "--root", "runs", "--dry-run", "--from-scratch", "smoke")
    assert "leave out --name, --root, --dry-run, --from-scratch, the recipe 'smoke'" in said


ALL = """
import json, sys
from temper import cli
for words in json.loads(sys.argv[1]):
    sys.argv = ["temper", *words]
    try:
        cli.main()
    except SystemExit as end:
        print(*words, end.code, "torch" in sys.modules)
"""
WRONG = [
    (["nosuch"], 3),
    (["quickstart", "colour=1"], 2),
    (["quickstart", "seed=one"], 2),
    (["quickstart", "domains.0.level=9"], 2),
    (["quickstart", "engine.slotz=1"], 2),
    (["quickstart", "stages.0.data.bach=1"], 2),
    (["quickstart", "stages.1.trainer.lrr=1"], 2),
    (["quickstart", "stages.1.trainer.losses.pg.kind=nosuch"], 3),
    (["quickstart", "stages.1.kind=preference", "stages.1.sampling.heat=1"], 2),
    (["--resume", "nosuch"], 3),
    (["smoke", "--dry-run"], 0),
]


def test_what_is_wrong_with_a_recipe_is_said_before_torch_is_loaded(tmp_path):
    asked = json.dumps([["run", *words] for words, _ in WRONG])
    done = subprocess.run([sys.executable, "-c", ALL, asked], capture_output=True, text=True, cwd=tmp_path)
    ends = [line for line in done.stdout.splitlines() if line.startswith("run ")]
    assert ends == [" ".join(["run", *words, str(code), "False"]) for words, code in WRONG], done.stderr
    assert not list(tmp_path.iterdir())
