"""TRL's SFTTrainer or DPOTrainer as a peer: one step for each line on stdin, one line of JSON with seconds and loss.

Runs in TRL's own virtual environment and imports nothing of ours. Argument: a JSON file with the settings of
`benchmarks/sft.py` or `benchmarks/dpo.py`, which say how each is set up.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
KINDS = {
    "sft": (SFTTrainer, SFTConfig, {"padding_free": True, "max_length": None}),
    "dpo": (DPOTrainer, DPOConfig, {"precompute_ref_log_probs": True, "max_length": None, "beta": 0.1}),
}


def main(path: str, out: TextIO) -> None:
    spec = json.loads(Path(path).read_text("utf-8"))
    trainer, config, more = KINDS[spec["stage"]]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=f"{spec['model']}/tokenizer.json", eos_token=spec["stop"], pad_token=spec["stop"]
    )
    trainer(
        model=AutoModelForCausalLM.from_pretrained(spec["model"], dtype=spec["dtype"]),
        args=config(**arguments(spec), **more),
        train_dataset=Dataset.from_list(spec["data"]),
        processing_class=tokenizer,
        peft_config=LoraConfig(
            r=spec["rank"], lora_alpha=2 * spec["rank"], target_modules=TARGETS, task_type="CAUSAL_LM"
        ),
        callbacks=[Turns(out)],
    ).train()


def arguments(spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "output_dir": spec["model"],
        "per_device_train_batch_size": spec["peer_batch"],
        "gradient_accumulation_steps": spec["batch"] // spec["peer_batch"],
        "max_steps": spec["steps"],
        "learning_rate": spec["lr"],
        "lr_scheduler_type": "constant",
        "train_sampling_strategy": "sequential",
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "bf16": False,
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "seed": spec["seed"],
    }


class Turns(TrainerCallback):
    """Waits for the word before each step, and says how long it took and what it lost."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.began = self.seconds = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not sys.stdin.readline():
            sys.exit(0)
        self.began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seconds = time.perf_counter() - self.began

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if logs and "loss" in logs:
            print(json.dumps({"seconds": self.seconds, "loss": float(logs["loss"])}), file=self.out, flush=True)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print goes to the log, not between the answers
    main(sys.argv[1], answers)
