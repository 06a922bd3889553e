"""Chat formats: messages to tokens and back, incremental, token-exact and free of torch.

A plugin is a module with `create(config, tokenizer) -> ChatFormat`, where `tokenizer` is a `tokenizers.Tokenizer`.
Loading tokenizers belongs to `models.load`. Three rules hold for every format:

- What was sampled is never tokenised again. `render` gives only the tokens of messages that were added since.
- The tokens that close a sampled turn (a line break, or an end token that a cut turn lacks) open the next given one.
- Text inside messages cannot become a control token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from temper.core.task import Message, ToolSpec


class ChatFormat(Protocol):
    """Ids are int32 (T,). `stop_ids` end a sampled turn and belong to it."""

    stop_ids: tuple[int, ...]

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), after: np.ndarray | None = None
    ) -> np.ndarray:
        """Tokens of given `messages`, and of the prompt for the next reply.

        `after` is what the policy sampled just before; None at the start, where the tools are introduced.
        """
        ...

    def parse(self, ids: np.ndarray, tools: Sequence[ToolSpec] = ()) -> Message:
        """The assistant message in sampled tokens. A call that does not parse strictly sets `malformed`."""
        ...

    def write(self, message: Message, tools: Sequence[ToolSpec] = ()) -> np.ndarray:
        """What a policy samples to say `message`; `parse` gives the message back."""
        ...
