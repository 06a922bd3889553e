"""`reverse_text` of mixed difficulty, right or wrong and nothing between: words of two to five syllables."""

from __future__ import annotations

import random

from temper.domains import reverse_text
from temper.domains.generated import Draft
from temper.domains.written import Written


def create(config: object = None) -> Written:
    return Written(
        "variants.mixed_reverse", "exact", draw, lambda task: task.reference["answer"], reverse_text.right,
        reverse_text.wrong,
    )  # fmt: skip


def draw(rng: random.Random, level: int) -> Draft:
    """A consonant before every vowel: no such word reads the same both ways."""
    syllables = (rng.choice("bdfghjklmnprstvz") + rng.choice("aeiou") for _ in range(rng.randint(2, 5)))
    return reverse_text.posed("".join(syllables))
