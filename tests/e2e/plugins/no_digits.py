"""Verifier of `digits_kept`'s held-out tasks: an answer without digits."""

from temper.core.trace import Verdict


def create(config, pool, sandboxes):
    return NoDigits()


class NoDigits:
    name = "no_digits"
    hash = "1"

    async def grade(self, task, trace, artifacts):
        return Verdict.ruled(
            "graded", trace.id, self.hash, score=float(not any(c in "0123456789" for c in trace.answer))
        )
