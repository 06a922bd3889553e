"""Two trainers that take turns: ours in this process, TRL's in a child in its own virtual environment.

The child takes a step for each line that it is sent, so the two never compute at once; both see the same batches in the
same order. The first pair warms both up and does not count. `.venv-trl` is made on first use.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from temper.core.errors import BackendError, ConfigError
from temper.models.load import Base

ROOT = Path(__file__).parents[2]
PACKAGES = ("trl==1.16.0", "peft", "transformers==5.17.0", "datasets")


def compare(
    base: Base, used: dict[str, Any], data: list[dict[str, Any]], ours: Callable[[int], tuple[float, float]]
) -> dict[str, Any]:
    """A benchmark's result. `ours` takes the n-th step and gives seconds and loss; `data` is TRL's, `batch` a step."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        peer = Trl(base, "trl_offline.py", used | {"data": data, "steps": used["pairs"] + 1}, Path(folder))
        try:
            for pair in range(used["pairs"] + 1):
                (mine, my_loss), answer = ours(pair), peer.step()
                print(f"pair {pair}: {mine:.1f} s, TRL {answer['seconds']:.1f} s", file=sys.stderr, flush=True)
                if pair:
                    theirs, their_loss = answer["seconds"], answer["loss"]
                    values = {"vs_trl": theirs / mine, "seconds_ours": mine, "seconds_trl": theirs}
                    for name, value in (values | {"loss_ours": my_loss, "loss_trl": their_loss}).items():
                        found.setdefault(name, []).append(value)
        finally:
            peer.close()
    metrics = {name: statistics.median(values) for name, values in found.items()}
    spread = {name: [min(values), metrics[name], max(values)] for name, values in found.items()}
    mine, theirs = (sum(found[name]) for name in ("loss_ours", "loss_trl"))
    metrics["loss_gap"] = abs(mine - theirs) / abs(theirs)
    return {"metrics": metrics, "spread": spread, "pairs": used["pairs"], "settings": used}


def lengths(count: int, used: dict[str, Any]) -> np.ndarray:
    """Log-normal numbers of tokens, at least 8 and at most 1,024."""
    rng = np.random.default_rng(used["seed"])
    drawn = np.exp(rng.normal(np.log(used["median"]), used["sigma"], count))
    return drawn.round().astype(int).clip(8, 1024)


def words(base: Base) -> np.ndarray:
    """Ids of whole-word tokens, a sequence of which reads back from its text."""
    ids = sorted(i for token, i in base.tokenizer.get_vocab().items() if token[0] == "Ġ" and token[1:].isascii())
    texts = {i: base.tokenizer.decode([i]) for i in ids}
    known = [i for i, text in texts.items() if text.strip().isalpha() and base.tokenizer.encode(text).ids == [i]]
    if not known:
        raise ConfigError(f"{base.name} has no tokens that are whole words: choose another model")
    return np.array(known)


class Trl:
    """A trainer in a child process that takes a step for each line it is sent."""

    def __init__(self, base: Base, script: str, spec: dict[str, Any], folder: Path) -> None:
        base.config.save_pretrained(folder)
        base.tokenizer.save(str(folder / "tokenizer.json"))
        save_file(base.tensors, folder / "model.safetensors", metadata={"format": "pt"})
        spec = spec | {"model": str(folder), "stop": base.tokenizer.id_to_token(base.stop_ids[0])}
        (folder / "spec.json").write_text(json.dumps(spec), "utf-8")
        command = [environment(), Path(__file__).parent / script, folder / "spec.json"]
        self._log = (folder / "trl.log").open("w+b")
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log)

    def step(self) -> dict[str, float]:
        """Let it take one step; its `seconds` and what else it tells. Raises BackendError with its log when it died."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            self._child.stdin.write(b"step\n")
            self._child.stdin.flush()
            answer = self._child.stdout.readline()
        except BrokenPipeError:
            answer = b""
        if not answer:
            self._log.seek(0)
            raise BackendError(f"TRL ended: {self._log.read().decode('utf-8', 'replace')[-2000:]}")
        found: dict[str, float] = json.loads(answer)
        return found

    def close(self) -> None:
        self._child.kill()
        self._child.wait()
        self._log.close()


def environment() -> Path:
    """The interpreter of `.venv-trl`, made on first use with the torch that we run."""
    folder = ROOT / ".venv-trl"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        install = [python, "-m", "pip", "install", "--quiet"]
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([*install, f"torch=={torch.__version__.split('+')[0]}"], check=True)
        subprocess.run([*install, *PACKAGES], check=True)
        (folder / "ready").touch()
    return python
