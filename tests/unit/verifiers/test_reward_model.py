"""A scorer between a good answer and a worthless one: a function, and a real classifier from a folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from temper.core.errors import ConfigError
from temper.verifiers import reward_model

sys.path.insert(0, str(Path(__file__).parents[2] / "contract"))  # where `fakes` are

REFERENCE = {"answer": "forty-two bottles"}


@pytest.mark.parametrize(("answer", "score", "raw"), [("forty-two bottles", 1, 17), ("bottles", 0.5, 7), ("no", 0, -3)])
def test_the_score_is_where_the_answer_stands(judged, answer, score, raw):
    verifier = reward_model.create(reward_model.Config(function="fakes.scorer:score"))
    verdict = judged(verifier, REFERENCE, answer)
    assert (verdict.score, verdict.components["raw"]) == (score, raw)


def test_a_scorer_that_does_not_prefer_the_good_answer_cannot_grade(judged):
    verifier = reward_model.create(reward_model.Config(function="fakes.scorer:score"))
    assert judged(verifier, {"answer": "no"}, "forty-two bottles").why == "gold-fails"


def test_an_answer_that_the_scorer_cannot_take_is_worth_nothing(judged):
    verifier = reward_model.create(reward_model.Config(function="fakes.scorer:overflowing"))
    verdict = judged(verifier, REFERENCE, "forty-two bottles " * 10)
    assert (verdict.status, verdict.score, verdict.why) == ("graded", 0.0, "answer-exceeds-verifier")
    assert judged(verifier, {"answer": "bottles " * 20}, "no").masked  # nor the good one


def test_one_of_function_and_folder():
    with pytest.raises(ConfigError, match="either"):
        reward_model.create(reward_model.Config())


@pytest.mark.slow
def test_a_classifier_from_a_folder(judged, tmp_path):
    """A tiny random Llama with one label: whatever it prefers, the better of two answers gets 1 and the other 0."""
    from transformers import LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerFast

    from temper.models.load import load

    tokenizer = load("tiny:").tokenizer
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path)
    LlamaForSequenceClassification(
        LlamaConfig(vocab_size=tokenizer.get_vocab_size(), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                    num_attention_heads=2, num_labels=1, pad_token_id=0)
    ).save_pretrained(tmp_path)  # fmt: skip
    verifier = reward_model.create(reward_model.Config(folder=str(tmp_path)))
    first = judged(verifier, {"answer": "yes", "floor": "no"}, "yes")
    second = judged(verifier, {"answer": "no", "floor": "yes"}, "no")
    assert {first.why, second.why} == {"graded", "gold-fails"}
    assert 1.0 in (first.score, second.score)


@pytest.mark.slow
def test_a_folder_of_the_reward_stage(judged, tmp_path):
    """The same with a head over an adapter, as the stage `reward` stores it."""
    import msgspec
    import torch

    from temper.models import lora
    from temper.models.load import load
    from temper.models.policy import Policy
    from temper.models.scalar import MODEL, Description, ScalarHead

    config = lora.LoraConfig(rank=2)
    policy = Policy(load("tiny:"), config, trainable=True)
    head = ScalarHead(policy)
    with torch.no_grad():
        head.parameters["scalar_head.weight"].normal_(generator=torch.Generator().manual_seed(0))
    lora.save(policy.trainable(), config, tmp_path, "tiny:")
    head.save(tmp_path)
    described = Description(base="tiny:", dtype="float32", chat={"kind": "chatml"})
    (tmp_path / MODEL).write_bytes(msgspec.json.encode(described))
    verifier = reward_model.create(reward_model.Config(folder=str(tmp_path)))
    first = judged(verifier, {"answer": "yes", "floor": "no"}, "yes")
    second = judged(verifier, {"answer": "no", "floor": "yes"}, "no")
    assert {first.why, second.why} == {"graded", "gold-fails"}
    assert 1.0 in (first.score, second.score)
