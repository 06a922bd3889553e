"""TRL's GRPOTrainer as a peer: one step for each line on stdin, one line of JSON with its seconds for each.

Runs in TRL's own virtual environment and imports nothing of ours. Argument: a JSON file with the settings of
`benchmarks/rl_step.py`. The time of a step runs from before its generation to after its optimiser update.
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
from trl import GRPOConfig, GRPOTrainer

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def main(path: str, out: TextIO) -> None:
    spec = json.loads(Path(path).read_text("utf-8"))
    model = AutoModelForCausalLM.from_pretrained(spec["model"], dtype=spec["dtype"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=f"{spec['model']}/tokenizer.json", eos_token=spec["stop"], pad_token=spec["stop"]
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=arguments(spec),
        train_dataset=Dataset.from_list([{"prompt": p} for p in spec["prompts"]]),
        processing_class=tokenizer,
        peft_config=LoraConfig(
            r=spec["rank"], lora_alpha=2 * spec["rank"], target_modules=TARGETS, task_type="CAUSAL_LM"
        ),
        callbacks=[Turns(spec, out)],
    )
    trainer.train()


def arguments(spec: dict[str, Any]) -> GRPOConfig:
    return GRPOConfig(
        output_dir=spec["model"],
        per_device_train_batch_size=spec["peer_batch"],
        gradient_accumulation_steps=spec["rollouts"] // spec["peer_batch"],
        num_generations=spec["group"],
        max_completion_length=spec["max_new_tokens"],
        generation_kwargs={"min_new_tokens": spec["max_new_tokens"]},
        max_steps=spec["steps"],
        learning_rate=spec["lr"],
        lr_scheduler_type="constant",
        gradient_checkpointing=spec["gradient_checkpointing"],
        bf16=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        seed=spec["seed"],
    )


def reward(completions: list[str], **_: Any) -> list[float]:
    """The index in the group modulo 2: independent of what was written, and different within every group."""
    return [float(i % 2) for i in range(len(completions))]


class Turns(TrainerCallback):
    """Waits for the word before each step, and says how long it took."""

    def __init__(self, spec: dict[str, Any], out: TextIO) -> None:
        self.spec, self.out = spec, out
        self.began = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not sys.stdin.readline():
            sys.exit(0)
        self.began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        print(json.dumps({"seconds": time.perf_counter() - self.began}), file=self.out, flush=True)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        """Answers must have the wanted length, or the comparison is void."""
        length = (logs or {}).get("completions/mean_length")
        if length is not None and length != self.spec["max_new_tokens"]:
            raise RuntimeError(f"expected answers of {self.spec['max_new_tokens']} tokens, got {length} on average")


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print goes to the log, not between the answers
    main(sys.argv[1], answers)
