"""EngineChat: tokens are never re-made, history is continued or branched, and leaving early aborts the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import repeat

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from temper.core import registry
from temper.core.protocols import SamplingParams
from temper.core.task import Message
from temper.engines.chat import EngineChat
from temper.engines.scripted import Config, ScriptedChat, ScriptedEngine, create
from temper.models.chat import ChatFormat


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return tokenizer


@pytest.fixture(scope="module")
def format(tokenizer: Tokenizer) -> ChatFormat:
    module, config = registry.configure("models.chat", "chatml")
    return module.create(config, tokenizer)


@pytest.fixture
def says(tokenizer: Tokenizer) -> Callable[..., ScriptedEngine]:
    def engine(*answers: str) -> ScriptedEngine:
        return create(Config(sequences=tuple(tuple(tokenizer.encode(answer).ids) for answer in answers)))

    return engine


def ask(chat: EngineChat | ScriptedChat, messages: Sequence[Message], history=(), **params):
    return asyncio.run(chat.reply(messages, (), SamplingParams(**params), history))


def test_a_reply_holds_the_prompt_and_what_was_sampled(format: ChatFormat, says, tokenizer: Tokenizer) -> None:
    question = Message("user", "2 + 3?")
    reply = ask(EngineChat(says("5<|im_end|>"), format, "learner"), [question])
    given, said = reply.segments
    assert reply.message == Message("assistant", "5")
    assert reply.stop == "stop"
    assert (given.parent, given.author, given.messages) == (-1, "environment", (question,))
    assert given.ids.tolist() == format.render([question]).tolist()
    assert (said.parent, said.author, said.policy) == (0, "policy", "learner")
    assert tokenizer.decode(said.ids.tolist(), skip_special_tokens=False) == "5<|im_end|>"
    assert said.trainable.all()
    assert said.versions.tolist() == [0, 0]


def test_the_engine_sees_the_very_tokens_it_sampled(format: ChatFormat, tokenizer: Tokenizer) -> None:
    odd = [tokenizer.token_to_id(letter) for letter in ("Ã", "a")]  # half a character: it cannot be encoded again
    seen: list[np.ndarray] = []

    def script(ids: np.ndarray, params: SamplingParams) -> list[int]:
        seen.append(ids)
        return [*odd, *format.stop_ids]

    chat = EngineChat(ScriptedEngine(script), format)
    first = ask(chat, [Message("user", "a")])
    messages = [Message("user", "a"), first.message, Message("user", "b")]
    second = ask(chat, messages, first.segments)
    assert [s.parent for s in second.segments] == [1, 2]
    assert second.segments[0].messages == (messages[2],)
    assert seen[1].tolist() == [*seen[0], *odd, *format.stop_ids, *second.segments[0].ids]


def test_a_history_that_was_rewritten_opens_a_branch_at_the_root(format: ChatFormat, says) -> None:
    chat = EngineChat(says("x<|im_end|>"), format)
    first = ask(chat, [Message("user", "a")])
    summary = [Message("user", "what was said so far"), Message("user", "b")]
    reply = ask(chat, summary, first.segments)
    assert [s.parent for s in reply.segments] == [-1, 0]
    assert reply.segments[0].ids.tolist() == format.render(summary).tolist()


def test_a_prompt_can_be_continued_again_without_a_given_segment(format: ChatFormat, says) -> None:
    chat = EngineChat(says("x<|im_end|>", "y<|im_end|>"), format)
    question = [Message("user", "a")]
    first = ask(chat, question)
    again = ask(chat, question, first.segments[:1])
    assert [(s.author, s.parent) for s in again.segments] == [("policy", 0)]
    assert again.message.content == "y"


def test_a_cut_reply_says_so_and_keeps_its_tokens(format: ChatFormat, says) -> None:
    reply = ask(EngineChat(says("a long answer<|im_end|>"), format), [Message("user", "a")], max_tokens=3)
    assert reply.stop == "length"
    assert (len(reply.segments[1]), reply.message.content) == (3, "a l")


def test_versions_are_those_of_the_sampling_step(format: ChatFormat, tokenizer: Tokenizer) -> None:
    async def scenario() -> list[int]:
        engine = create(Config(sequences=(tuple(tokenizer.encode("abcd<|im_end|>").ids),)))
        answer = asyncio.create_task(EngineChat(engine, format).reply([Message("user", "a")], (), SamplingParams()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await engine.publish({}, 3)
        return (await answer).segments[1].versions.tolist()

    versions = asyncio.run(scenario())
    assert versions == sorted(versions)
    assert {versions[0], versions[-1]} == {0, 3}


def test_cancelling_a_reply_aborts_the_request(format: ChatFormat, tokenizer: Tokenizer) -> None:
    aborted: list[str] = []

    class Watched(ScriptedEngine):
        def abort(self, request: str) -> None:
            aborted.append(request)
            super().abort(request)

    async def scenario() -> None:
        engine = Watched(lambda ids, params: repeat(ids[0]))
        chat = EngineChat(engine, format)
        answer = asyncio.create_task(chat.reply([Message("user", "a")], (), SamplingParams(max_tokens=10**6)))
        await asyncio.sleep(0.01)
        answer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answer

    asyncio.run(scenario())
    assert len(aborted) == 1


def test_an_aborted_request_ends_with_what_it_had(format: ChatFormat) -> None:
    async def scenario() -> tuple[int, str]:
        engine = ScriptedEngine(lambda ids, params: [ids[0]] * 100)
        sampled, stop = 0, ""
        async for chunk in engine.generate(np.array([1], np.int32), SamplingParams(), "r"):
            sampled, stop = sampled + len(chunk.ids), chunk.stop
            if sampled == 5:
                engine.abort("r")
        return sampled, stop

    assert asyncio.run(scenario()) == (5, "aborted")
