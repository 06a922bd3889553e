"""ChatML (`<|im_start|>role`, text, `<|im_end|>`), with tool calls in a style of its own file.

No default system prompt is inserted. Tools are introduced in the system turn, which is made where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from types import ModuleType
from typing import Literal

import numpy as np
from msgspec import Struct
from tokenizers import Tokenizer

from temper.core.errors import RefusedError
from temper.core.task import Message, ToolSpec
from temper.models.chat import hermes, pythonic
from temper.models.chat.calls import CallError

START, END, EOS = "<|im_start|>", "<|im_end|>", "<|endoftext|>"


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    style: Literal["pythonic", "hermes"] = "pythonic"


def create(config: Config, tokenizer: Tokenizer) -> ChatML:
    return ChatML(tokenizer, {"pythonic": pythonic, "hermes": hermes}[config.style])


class ChatML:
    """`models.chat.ChatFormat`. Raises RefusedError for a tokenizer without the two control tokens."""

    def __init__(self, tokenizer: Tokenizer, style: ModuleType) -> None:
        self._style = style
        self._tokenizer = Tokenizer.from_str(tokenizer.to_str())  # a copy, as the next lines change it
        self._tokenizer.encode_special_tokens = True  # text that looks like a control token stays text
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        start, end, eos = (tokenizer.token_to_id(token) for token in (START, END, EOS))
        if start is None or end is None or {start, end} & set(self._encode(START + END)):
            raise RefusedError(f"ChatML needs a tokenizer with {START} and {END} as special tokens")
        self._start, self._end = start, end
        self.stop_ids: tuple[int, ...] = (end,) if eos is None else (end, eos)
        added = tokenizer.get_added_tokens_decoder()
        self._special = {id for id, token in added.items() if token.special} | set(self.stop_ids)
        self._break = self._encode("\n")
        self._prompt = [start, *self._encode("assistant\n")]

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), after: np.ndarray | None = None
    ) -> np.ndarray:
        ids: list[int] = []
        if after is not None:
            closed = len(after) > 0 and int(after[-1]) == self._end
            ids += self._break if closed else [self._end, *self._break]
        for role, text in self._turns(messages, tools, introduce=after is None and bool(tools)):
            ids += [self._start, *self._encode(f"{role}\n{text}"), self._end, *self._break]
        return np.asarray(ids + self._prompt, np.int32)

    def parse(self, ids: np.ndarray, tools: Sequence[ToolSpec] = ()) -> Message:
        body = ids.tolist()
        if body and body[-1] in self.stop_ids:
            body.pop()
        text = self._tokenizer.decode(body, skip_special_tokens=False)
        if not self._special.isdisjoint(body):
            return Message("assistant", text, malformed="expected text, got a control token inside the message")
        if not tools:
            return Message("assistant", text)
        try:
            return self._style.read(text, tools)
        except CallError as error:
            return Message("assistant", text, malformed=str(error))

    def write(self, message: Message, tools: Sequence[ToolSpec] = ()) -> np.ndarray:
        return np.asarray([*self._encode(self._style.write(message, tools)), self._end], np.int32)

    def _turns(self, messages: Sequence[Message], tools: Sequence[ToolSpec], introduce: bool) -> list[tuple[str, str]]:
        """(role, text) of each turn."""
        turns: list[tuple[str, str]] = []
        for role, several in groupby(messages, key=lambda message: message.role):
            if role == "tool":
                turns += self._style.results([message.content for message in several])
            elif role == "assistant":
                turns += [(role, self._style.write(message, tools)) for message in several]
            else:
                turns += [(role, message.content) for message in several]
        if introduce:
            introduction = self._style.describe(tools)
            if turns and turns[0][0] == "system":
                turns[0] = ("system", f"{turns[0][1]}\n\n{introduction}")
            else:
                turns.insert(0, ("system", introduction))
        return turns

    def _encode(self, text: str) -> list[int]:
        clean = text.encode("utf-8", "replace").decode()  # a lone surrogate becomes "?"
        return self._tokenizer.encode(clean, add_special_tokens=False).ids
