"""What `temper run` removes, and what it refuses to be asked together."""

import pytest
from typer.testing import CliRunner

from temper.cli import app, run, why
from temper.core.errors import ConfigError, RefusedError
from temper.store.run import RunDirectory

VERBS = (run, why)  # importing them adds them; one alone would take no name


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
    run._remove(path)
    assert not path.exists()
    RunDirectory.create(path, {"name": "smoke"}).close()


def test_resume_refuses_what_belongs_to_a_new_run_by_name(tmp_path):
    said = refused("--resume", str(tmp_path), "--name", "x", "--root", "runs", "--dry-run", "--from-scratch", "smoke")
    assert "leave out --name, --root, --dry-run, --from-scratch, the recipe 'smoke'" in said
