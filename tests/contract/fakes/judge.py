"""A judge that knows one good answer, and the ways in which judges fail: it reads the prompt as a model would.

An honest one finds an item met, or an answer good, when the good text stands in it. "echo" repeats what it was shown,
"obey" says what the answer tells it to say, "place" prefers what comes first, "silent" says nothing, "broken" raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from msgspec import Struct

from temper.core.protocols import Reply, SamplingParams
from temper.core.task import Message, ToolSpec
from temper.core.trace import Segment


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    good: str = "42"
    manner: str = "honest"
    says: str = ""  # word by word, with "K" for the key


def create(config: Config) -> Judge:
    return Judge(config)


class Judge:
    def __init__(self, config: Config) -> None:
        self.name = f"a judge ({config.manner})"
        self.config = config

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        params: SamplingParams,
        history: Sequence[Segment] = (),
    ) -> Reply:
        if self.config.manner == "broken":
            raise RuntimeError("out of memory")
        return Reply(Message("assistant", self._said(messages[0].content, messages[1].content)), ())

    def _said(self, system: str, asked: str) -> str:
        answers = re.findall(r"<answer (\w+)>\n(.*?)\n</answer \1>", asked, re.S)
        key = answers[0][0]
        if self.config.says:
            return self.config.says.replace('"K"', f'"{key}"')
        match self.config.manner:
            case "silent":
                return ""
            case "echo":
                return asked
            case "obey":
                return answers[0][1]
        items = re.findall(r"^- ([\w-]+): ", asked.rpartition("Items:\n")[2], re.M)
        good = [self.config.good in text for _, text in answers]
        if len(answers) == 1:
            verdict = "met" if good[0] else "unmet"
        elif self.config.manner == "place" or good == [True, False]:
            verdict = "first"
        else:
            verdict = "equal" if good[0] == good[1] else "second"
        return json.dumps({"key": key, "verdicts": dict.fromkeys(items, verdict)})
