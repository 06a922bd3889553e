"""Questions about a long chronicle whose answer lies in sentences far apart; each has to be quoted.

Level 1: one sentence among a dozen. Level 2: two sentences among sixty (who built it, where that person was born). Level
3: three among two hundred. Other works, people and towns of the same kind stand in between, so that only the chain of
sentences leads to the answer.
"""

# ruff: noqa: E501, SIM905  (tables with one entry a line)

from __future__ import annotations

import random

import msgspec

from temper.core.task import Task
from temper.domains.dossier import Page, gold, right, second, task, wrong
from temper.domains.generated import Draft
from temper.domains.written import Written
from temper.verifiers import documents

NAME = "long_document"
OTHERS = {1: 10, 2: 58, 3: 200}  # sentences beside the evidence

_FIRST = "Ada Bram Cleo Dara Edda Finn Gita Hugo Inga Joel Kaia Lars Mona Nils Olga Pavo Rosa Sven Tove Ulla".split()
_LAST = "Abbott Becker Carver Dalton Ekman Fowler Graves Hobbs Irving Jansen Keller Lowell Marsh Norris Osgood Palmer Quade Rhodes Stone Turner".split()
_WORKS = "bridge mill library theatre harbour tower school market canal chapel".split()
_NAMES = "Amber Bishop Copper Dune Elder Fern Golden Hazel Iron Jade Knoll Lark Maple North Olive Pine Quarry River Silver Thorn".split()
_TOWNS = "Arden Brook Corby Denby Elton Farley Grove Hollow Ilton Jarrow Kelso Lydd Marlow Newby Oakham Penryn Rowley Selby Thirsk Upton".split()


_SENTENCES = (
    "The {place} was built by {person}.", "{person} was born in {home}.", "{person} was taught by {other}.",
    "The {place} was opened in {year}.", "In {year} a flood reached the {place}.", "{person} left {town} in {year}.",
    "The {place} was repaired in {year}.", "{person} and {other} wrote a book in {year}.",
)  # fmt: skip


def create(config: object = None) -> Written:
    return Written(NAME, "documents", draw, gold, right, wrong, second)


def draw(rng: random.Random, level: int) -> Draft:
    people = [f"{first} {last}" for first, last in zip(rng.sample(_FIRST, 20), rng.sample(_LAST, 20), strict=True)]
    work = f"{rng.choice(_NAMES)} {rng.choice(_WORKS)}"
    builder, teacher, *_ = people
    town = rng.choice(_TOWNS)
    chain = {
        1: [f"The {work} was built by {builder}."],
        2: [f"The {work} was built by {builder}.", f"{builder} was born in {town}."],
        3: [
            f"The {work} was built by {builder}.",
            f"{builder} was taught by {teacher}.",
            f"{teacher} was born in {town}.",
        ],
    }[level]
    name, value, ask = {
        1: ("builder", builder, f"Who built the {work}?"),
        2: ("town", town, f"In which town was the builder of the {work} born?"),
        3: ("town", town, f"In which town was the teacher of the builder of the {work} born?"),
    }[level]

    def build(rng: random.Random) -> Task:
        lines = [*chain, *_others(rng, people[2:], work, OTHERS[level])]
        rng.shuffle(lines)
        page = Page()
        page.add("CHRONICLE", "\n")
        spans = {line: page.add(line, "\n" if n % 6 == 5 else " ") for n, line in enumerate(lines)}
        fact = documents.Fact([[spans[line]] for line in chain], value)
        reference = msgspec.to_builtins(documents.Reference(page.text.strip(), {name: documents.Field("text", [fact])}))
        return task(NAME, reference, f"{ask} Quote a list of all sentences that the answer rests on.", 120 * level)

    # The rest of the chronicle follows from its number; it is only written for the tasks that are taken.
    return Draft(" ".join(chain), f"{' '.join(chain)} {people} {rng.randrange(10**6)}", build)


def _others(rng: random.Random, people: list[str], work: str, n: int) -> list[str]:
    """Distinct sentences of the same kinds about other works and people."""
    found: dict[str, None] = {}
    places = {person: rng.choice(_TOWNS) for person in people}
    while len(found) < n:
        person, other = rng.choice(people), rng.choice(people)
        place = f"{rng.choice(_NAMES)} {rng.choice(_WORKS)}"
        line = rng.choice(_SENTENCES).format(
            place=place, person=person, other=other, home=places[person], town=rng.choice(_TOWNS), year=rng.randint(1700, 1999)
        )  # fmt: skip
        if place != work and person != other:
            found[line] = None
    return list(found)
