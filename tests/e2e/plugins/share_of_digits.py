"""Verifier of `digits`: share of the sampled tokens that are digits, whether or not the answer was cut."""

from temper.core.trace import Verdict


def create(config, pool, sandboxes):
    return ShareOfDigits()


class ShareOfDigits:
    name = "share_of_digits"
    hash = "1"

    async def grade(self, task, trace, artifacts):
        text = trace.answer
        share = sum(c in "0123456789" for c in text) / max(len(text), 1)
        return Verdict.ruled("graded", trace.id, self.hash, score=share)
