"""A trained scorer as a verifier: a function from a conversation to a number, or a reward model in a folder.

Reference: {"answer": a good answer, "floor": a worthless one ("" by default)}. A scorer's own scale means nothing, so
the score is where the answer stands between these two, within [0, 1]: the good answer's score is 1, and whatever is no
better than the worthless one gets 0. A scorer that does not prefer the good answer cannot grade this task (gold-fails).
Component: raw. Training a scorer does not live here.
"""

from __future__ import annotations

import asyncio
import importlib
import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from temper.core.blame import FaultError
from temper.core.errors import ConfigError
from temper.core.task import Message
from temper.verifiers.grading import Given, Judgement, Plugin

Scorer = Callable[[Sequence[Message]], float]
_LONGEST = 32 << 10  # characters of an answer that are scored


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of `function` ("package.module:function") and `folder`: what the stage `reward` saved (`models.scalar`), or

    transformers' sequence classifier with one label."""

    function: str = ""
    folder: str = ""


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    answer: str
    floor: str = ""


async def judge(given: Given, reference: Reference, settings: Config) -> Judgement:
    answers = (reference.answer, reference.floor, given.answer[:_LONGEST])
    good, floor, raw = await asyncio.to_thread(given.state, given.task.messages, answers)
    if not math.isfinite(good) or not math.isfinite(floor):
        raise FaultError("verifier-crash", "verifiers.reward_model", f"no number: {good}, {floor}")
    if not math.isfinite(raw):
        raise FaultError("answer-exceeds-verifier", "verifiers.reward_model", f"the answer gets no number: {raw}")
    if good <= floor:
        raise FaultError("gold-fails", "verifiers.reward_model", f"the good answer gets {good}, the floor {floor}")
    found = min(1.0, max(0.0, (raw - floor) / (good - floor)))
    return Judgement(found, "" if found == 1 else f"{found:.2f} of the way to a good answer", {"raw": raw})


def _scores(config: Config) -> Callable[[Sequence[Message], Sequence[str]], list[float]]:
    """A function from what was asked and answers to it to their scores, one at a time."""
    scorer, one_at_a_time = _scorer(config), threading.Lock()

    def scores(asked: Sequence[Message], answers: Sequence[str]) -> list[float]:
        with one_at_a_time:
            return [float(scorer((*asked, Message("assistant", answer)))) for answer in answers]

    return scores


def _scorer(config: Config) -> Scorer:
    if bool(config.function) == bool(config.folder):
        raise ConfigError("reward_model: expected either 'function' or 'folder'")
    if config.function:
        module, _, name = config.function.partition(":")
        return getattr(importlib.import_module(module), name)
    if (Path(config.folder) / "reward_model.json").exists():
        from temper.models.scalar import Scorer

        return Scorer(config.folder)
    return _classifier(config.folder)


def _classifier(folder: str) -> Scorer:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, local_files_only=True).eval()
    return partial(_classify, model, AutoTokenizer.from_pretrained(folder, local_files_only=True))


def _classify(model: Any, tokenizer: Any, messages: Sequence[Message]) -> float:
    import torch

    turns = [{"role": message.role, "content": message.content} for message in messages]
    if tokenizer.chat_template:
        text = tokenizer.apply_chat_template(turns, tokenize=False)
    else:
        text = "\n".join(f"{turn['role']}: {turn['content']}" for turn in turns)
    with torch.no_grad():
        return model(**tokenizer(text, return_tensors="pt", truncation=True)).logits[0, 0].item()


create = Plugin(__name__, Config, Reference, judge, prepare=_scores)
