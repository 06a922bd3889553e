"""Conversations that go on where an earlier process left them.

Sandboxes end with the process that held them. So what the policy had said is said again to a fresh world, tokens,
log-probs and versions as they were sampled, and the world must answer as it did; then the conversation goes on. Where
it answers otherwise (it looked at a clock, or a file outside) the conversation `parted`, and is a fault: there is
nothing to go on from. A turn is recorded when the next one begins, so that conversations of one turn cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from temper.core.blame import FaultError
from temper.core.protocols import ChatModel, Reply, SamplingParams
from temper.core.task import Message, ToolSpec
from temper.core.trace import Segment
from temper.engines.chat import added_since


class Said(Struct, frozen=True, kw_only=True, eq=False):
    """The reply to turn `turn` of a conversation that went on after it."""

    trace: str
    turn: int
    reply: Reply


class Resumed:
    """A `ChatModel` for one conversation: the replies of `said` first, then `model`'s, which `record` hears of."""

    def __init__(self, model: ChatModel, trace: str, said: Sequence[Reply], record: Callable[[Said], None]) -> None:
        self.name, self.parted = model.name, ""
        self._model, self._trace, self._said, self._record = model, trace, said, record
        self._turn = 0
        self._last: Said | None = None  # the newest that is not recorded

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        params: SamplingParams,
        history: Sequence[Segment] = (),
    ) -> Reply:
        turn, self._turn = self._turn, self._turn + 1
        if turn < len(self._said):
            if not _heard(self._said[turn], messages, history):
                self.parted = f"before turn {turn} the world did not answer as it had in the process that was lost"
                raise FaultError("preempted", "rollouts", self.parted)
            return self._said[turn]
        if self._last is not None:
            self._record(self._last)
        reply = await self._model.reply(messages, tools, params, history)
        self._last = Said(trace=self._trace, turn=turn, reply=reply)
        return reply


def _heard(reply: Reply, messages: Sequence[Message], history: Sequence[Segment]) -> bool:
    """Whether the reply was to these messages."""
    given = [m for segment in reply.segments if segment.author != "policy" for m in segment.messages]
    anew = bool(reply.segments) and reply.segments[0].parent < 0
    return given == (list(messages) if anew else list(added_since(messages, history) or ()))


def oldest(said: Sequence[Reply]) -> int:
    """The oldest version that sampled a token of these."""
    versions = [int(v) for reply in said for s in reply.segments for v in s.versions if v >= 0]
    return min(versions, default=0)
