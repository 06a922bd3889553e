"""Verifier of `digits` and `talk`: share of the last answer that is digits (or `symbols`), cut or not."""

from msgspec import Struct

from temper.core.trace import Verdict


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    symbols: str = "0123456789"


def create(config, pool, sandboxes):
    return ShareOfDigits(config.symbols)


class ShareOfDigits:
    name = "share_of_digits"
    hash = "1"

    def __init__(self, symbols):
        self.symbols = symbols

    async def grade(self, task, trace, artifacts):
        text = trace.answer
        share = sum(c in self.symbols for c in text) / max(len(text), 1)
        return Verdict.ruled("graded", trace.id, self.hash, score=share)
