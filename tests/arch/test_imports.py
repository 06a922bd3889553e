"""The house rules that a machine can hold: import order, no heavy import at the top, one folder that knows Ray."""

import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "temper"


def test_rooms_import_downwards_only():
    from importlinter.cli import lint_imports

    assert lint_imports(config_filename=str(SOURCE.parents[1] / "pyproject.toml")) == 0


def test_importing_temper_is_light():
    code = "import sys, temper, temper.core.protocols, temper.cli; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "temper.cli" in loaded
    assert not {"torch", "ray", "transformers", "scipy", "pandas"} & set(loaded)


def test_nothing_is_unpickled():
    for path in SOURCE.rglob("*.py"):
        text = path.read_text("utf-8")
        assert "import pickle" not in text, path
        assert "torch.load(" not in text, path


def test_there_is_no_utils():
    assert not [p for p in SOURCE.rglob("*") if p.stem in {"utils", "helpers", "common", "misc"}]


def test_ray_is_imported_in_one_folder():
    allowed = SOURCE / "scheduling" / "executors"
    for path in SOURCE.rglob("*.py"):
        if allowed not in path.parents:
            assert "import ray" not in path.read_text("utf-8"), path
