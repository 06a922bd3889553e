"""Reverse a text, character by character: a task with public learning curves (prime-rl, verifiers).

Level 1: one word. Level 2: three words. Level 3: a sentence with capitals, a number and marks. The words are made of
random syllables, so that no answer is known by heart. Success is the exact answer; what training sees is how near it is
(`verifiers.similarity`), as in the public task.
"""

from __future__ import annotations

import random

from temper.core.task import Limits, Message, Task
from temper.domains.generated import Draft
from temper.domains.written import Answers, Written

_ASK = "Reverse: "
_ONSETS, _VOWELS, _CODAS = "bdfghjklmnprstvz", "aeiou", "lmnrst"


def create(config: object = None) -> Written:
    return Written("reverse_text", "similarity", draw, lambda task: task.reference["answer"], right, wrong, second)


def draw(rng: random.Random, level: int) -> Draft:
    text = _sentence(rng) if level == 3 else " ".join(_word(rng) for _ in range(2 * level - 1))
    while text == text[::-1]:
        text = _word(rng)
    return posed(text)


def posed(text: str) -> Draft:
    """The task to reverse `text`, which is none that reads the same both ways."""

    def build(rng: random.Random) -> Task:
        tokens = 2 * len(text) + 4  # a token is at most a character; the rest is for saying too much
        return Task(
            id="",
            domain="reverse_text",
            messages=(Message("user", _ASK + text),),
            limits=Limits(turns=1, tokens=tokens, turn_tokens=tokens),
            reference={"answer": text[::-1]},
        )

    return Draft(text.casefold(), text, build)


def right(task: Task) -> Answers:
    gold = task.reference["answer"]
    yield "a line end before it", f"\n{gold}"
    yield "spaces around it", f"  {gold}  "
    yield "a tab behind it", f"{gold}\t"
    yield "on a line of its own", f"\n\n{gold}\n\n"


def wrong(task: Task) -> Answers:
    gold = task.reference["answer"]
    text, middle = gold[::-1], len(gold) // 2
    yield "the text itself", text
    yield "twice", gold + gold
    yield "the first letter is missing", gold[1:]
    yield "the last letter is missing", gold[:-1]
    yield "a letter is doubled", gold[:middle] + gold[middle] + gold[middle:]
    yield "another letter", f"{gold[:middle]}{'x' if gold[middle] != 'x' else 'y'}{gold[middle + 1 :]}"
    yield "other capitals", gold.swapcase()
    yield "with a word before it", f"Reversed: {gold}"
    if gold[0] != gold[-1]:
        yield "its ends changed places", f"{gold[-1]}{gold[1:-1]}{gold[0]}"
    if " " in gold:
        yield "words in reverse, letters not", " ".join(text.split(" ")[::-1])
        yield "letters in reverse, words not", " ".join(word[::-1] for word in text.split(" "))
        yield "without spaces", gold.replace(" ", "")


def second(task: Task, answer: str) -> bool:
    """The answer, read backwards, is what was asked."""
    asked, said = list(task.messages[-1].content.removeprefix(_ASK)), list(answer.strip())
    return len(asked) == len(said) and all(asked[-n - 1] == said[n] for n in range(len(said)))


def _word(rng: random.Random) -> str:
    syllables = [rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.randint(2, 3))]
    return "".join(syllables) + (rng.choice(_CODAS) if rng.random() < 0.5 else "")


def _sentence(rng: random.Random) -> str:
    words = [_word(rng) for _ in range(rng.randint(5, 8))]
    words[rng.randrange(1, len(words))] = str(rng.randint(10, 9999))
    comma = rng.randrange(1, len(words) - 1)
    words[comma] += ","
    return " ".join(words).capitalize() + rng.choice(".?!")
