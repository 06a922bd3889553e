"""A recipe over two ranks that torchrun starts: it ends, its checkpoints are spread, and one rank goes on from them."""

import json
import os
import subprocess
import sys

import pytest
from test_run import HERE, finish, temper
from test_stages import RECIPE, STAGES


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_recipe_over_two_ranks_whose_weights_one_rank_takes_over(tmp_path):
    recipe = tmp_path / "two.toml"
    sharded = RECIPE.replace("[model]", "[model]\nshard = true")
    first, *_, last = STAGES.split("[[stages]]")[1:]  # sft and rl
    recipe.write_text(f"{sharded}[[stages]]{first}[[stages]]{last}")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "temper.cli"]
    again = ["run", str(recipe), "--root", str(tmp_path), "--name", "two"]
    subprocess.run([*command, *again], check=True, timeout=600, env=os.environ | {"PYTHONPATH": str(HERE)})
    run = tmp_path / "two"
    (folder,) = run.glob("checkpoints/sft-*/trainer")
    assert len(list(folder.glob("optimizer-*-of-00002.safetensors"))) == 2
    report = json.loads((run / "report.json").read_text())
    sft = report["measures"]["sft"]
    assert sft["after"] < sft["before"]
    assert finish(temper("run", "--resume", str(run), stdout=subprocess.DEVNULL), 200)[0] == 0
