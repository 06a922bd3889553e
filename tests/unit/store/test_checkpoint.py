"""A checkpoint is whole or it is not there, and damage is found before it is used."""

import subprocess
import sys

import pytest

from temper.core.errors import ConfigError, CorruptError
from temper.store import checkpoint


def save(root, name, content=b"weights", keep=2):
    with checkpoint.write(root, name, keep) as folder:
        (folder / "optim").mkdir()
        (folder / "adapter.safetensors").write_bytes(content)
        (folder / "optim" / "state.bin").write_bytes(content[::-1])
    return root / name


def test_the_newest_of_its_kind_is_found_and_only_the_last_ones_are_kept(tmp_path):
    for name in ("rl-9", "rl-10", "sft-50", "rl-000011"):
        save(tmp_path, name)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rl-000011", "rl-10", "sft-50"]
    assert checkpoint.latest(tmp_path, "rl") == checkpoint.Latest(tmp_path / "rl-000011")
    assert checkpoint.latest(tmp_path, "dpo") == checkpoint.Latest(None)


def damage(how, folder):
    file = folder / "optim" / "state.bin"
    if how == "a byte":
        file.write_bytes(b"x" + file.read_bytes()[1:])
    elif how == "cut short":
        file.write_bytes(file.read_bytes()[:-1])
    elif how == "missing":
        file.unlink()
    elif how == "added":
        (folder / "more").write_bytes(b"")
    elif how == "manifest cut":
        manifest = folder / checkpoint.MANIFEST
        manifest.write_bytes(manifest.read_bytes()[:20])


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("a byte", "state.bin"),
        ("cut short", "state.bin"),
        ("missing", "state.bin"),
        ("added", "more"),
        ("manifest cut", "manifest"),
    ],
)
def test_a_damaged_one_is_named_and_skipped_for_the_one_before(tmp_path, how, named):
    good, bad = save(tmp_path, "rl-1"), save(tmp_path, "rl-2")
    damage(how, bad)
    checkpoint.verify(good)
    with pytest.raises(CorruptError, match=named):
        checkpoint.verify(bad)
    found = checkpoint.latest(tmp_path, "rl")
    assert found.folder == good
    assert len(found.skipped) == 1
    assert "rl-2" in found.skipped[0]


def test_an_error_while_writing_leaves_no_trace(tmp_path):
    save(tmp_path, "rl-1")

    def fails():
        with checkpoint.write(tmp_path, "rl-2", 1) as folder:
            (folder / "half").write_bytes(b"x")
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fails()
    assert [p.name for p in tmp_path.iterdir()] == ["rl-1"]


def test_one_written_again_replaces_the_first(tmp_path):
    save(tmp_path, "rl-1", b"old")
    folder = save(tmp_path, "rl-1", b"new")
    assert (folder / "adapter.safetensors").read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["rl-1"]


def test_what_a_crash_left_is_cleaned_and_one_about_to_be_replaced_comes_back(tmp_path):
    code = """
import os, sys
from pathlib import Path
from temper.store import checkpoint
with checkpoint.write(Path(sys.argv[1]), "rl-2", 2) as folder:
    (folder / "half").write_bytes(b"x")
    os.kill(os.getpid(), 9)
"""
    save(tmp_path, "rl-1")
    subprocess.run([sys.executable, "-c", code, str(tmp_path)])
    assert (tmp_path / ".new-rl-2" / "half").exists()
    (tmp_path / "rl-1").rename(tmp_path / ".old-rl-1")
    checkpoint.clean(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["rl-1"]
    checkpoint.verify(tmp_path / "rl-1")


FULL_DISK = """
import sys
from pathlib import Path
import numpy as np
from safetensors.numpy import save_file
from temper.core.errors import BackendError
from temper.store import checkpoint
root, big = Path(sys.argv[1], "checkpoints"), {"w": np.zeros(200_000, np.float32)}
with checkpoint.write(root, "rl-1", 2) as folder:
    (folder / "weights").write_bytes(b"w")
for save in (save_file, lambda big, path: np.save(path, big["w"]), lambda big, path: path.write_bytes(big["w"])):
    try:
        with checkpoint.write(root, "rl-2", 2) as folder:
            save(big, folder / "weights.npy")
    except BackendError as error:
        print(error)
    checkpoint.verify(root / "rl-1")
    assert [p.name for p in root.iterdir()] == ["rl-1"]
"""


def test_a_full_disk_leaves_the_older_ones_whatever_library_was_writing(on_a_small_disk, tmp_path):
    done = on_a_small_disk(FULL_DISK)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"the disk at {tmp_path} takes no more") == 3


def test_a_name_without_a_number_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="KIND-NUMBER"):
        save(tmp_path, "../rl")
