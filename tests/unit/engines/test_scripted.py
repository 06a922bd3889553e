"""ScriptedChat turns given messages into demonstrations: the tokens that a policy would have sampled for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from temper.core import registry
from temper.core.blame import FaultError
from temper.core.errors import ConfigError
from temper.core.protocols import Reply, SamplingParams
from temper.core.task import Message, ToolCall, ToolSpec
from temper.engines.scripted import Config, ScriptedChat
from temper.models.chat import ChatFormat

TOOLS = (ToolSpec("add", "", {"properties": {"a": {}, "b": {}}, "required": ["a", "b"]}),)


@pytest.fixture(scope="module")
def format() -> ChatFormat:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    module, config = registry.configure("models.chat", "chatml")
    return module.create(config, tokenizer)


def ask(chat: ScriptedChat, messages: Sequence[Message], history=(), max_tokens: int = 64) -> Reply:
    return asyncio.run(chat.reply(messages, TOOLS, SamplingParams(max_tokens=max_tokens), history))


def test_a_gold_message_becomes_trainable_tokens(format: ChatFormat) -> None:
    gold = Message("assistant", "", (ToolCall("add", {"a": 2, "b": 3}),))
    reply = ask(ScriptedChat([gold], format), [Message("user", "2 + 3?")])
    said = reply.segments[1]
    assert reply.message == gold
    assert said.ids.tolist() == format.write(gold, TOOLS).tolist()
    assert said.trainable.all()
    assert not said.logprobs.any()
    assert not said.versions.any()


def test_a_function_sees_the_conversation(format: ChatFormat) -> None:
    chat = ScriptedChat(lambda messages: Message("assistant", messages[-1].content.upper()), format)
    assert ask(chat, [Message("user", "echo")]).message.content == "ECHO"


def test_a_gold_message_beyond_the_limit_is_cut_like_any_other(format: ChatFormat) -> None:
    reply = ask(ScriptedChat([Message("assistant", "a long answer")], format), [Message("user", "?")], max_tokens=4)
    assert (reply.stop, reply.message.content, len(reply.segments[1])) == ("length", "a lo", 4)


def test_a_script_that_is_too_short_is_a_fault_of_ours(format: ChatFormat) -> None:
    with pytest.raises(FaultError, match="no message for this turn"):
        ask(ScriptedChat([], format), [Message("user", "?")])


@pytest.mark.parametrize("sequences", [(), ((),), ((1,), ())])
def test_a_script_that_says_nothing_is_refused(sequences) -> None:
    with pytest.raises(ConfigError, match="empty"):
        Config(sequences=sequences)


@pytest.mark.parametrize("token", [-1, 300])
def test_a_token_outside_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(ConfigError, match=f"got {token}"):
        Config(sequences=((1, token),)).check(300)
