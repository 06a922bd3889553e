"""Contracts: terms and clauses to be drawn from a generated agreement, each with the sentence that it rests on.

Level 1: one term of a short agreement. Level 2: three terms of eight clauses. Level 3: five fields of a long agreement,
clauses among them, between sentences that name other amounts and times. At levels 2 and 3 the sentence for one of the
fields is often left out, and then null is right.
"""

# ruff: noqa: E501  (tables with one entry a line)

from __future__ import annotations

import random
from collections.abc import Callable

from temper.domains.dossier import Entry, Sheet, gold, right, second, task, wrong
from temper.domains.generated import Draft
from temper.domains.written import Written

NAME = "legal"


def create(config: object = None) -> Written:
    return Written(NAME, "documents", draw, gold, right, wrong, second)


_STATES = "Delaware Texas Ohio Nevada Oregon Maine Utah Georgia Kansas Vermont".split()  # noqa: SIM905
_FIRMS = "Alder Birch Cedar Dover Ember Falcon Garnet Harbor Indigo Juniper Kestrel Linden".split()  # noqa: SIM905
_FORMS = "Inc. LLC Ltd. Corp.".split()  # noqa: SIM905
_MONTHS = "January February March April May June July August September October November December".split()  # noqa: SIM905
_NUMBERS = {
    10: "ten",
    15: "fifteen",
    20: "twenty",
    30: "thirty",
    45: "forty-five",
    60: "sixty",
    90: "ninety",
    120: "one hundred twenty",
}


def _law(rng: random.Random) -> Entry:
    state = rng.choice(_STATES)
    form = rng.choice(
        ["This Agreement is governed by the laws of the State of {}.", "The laws of {} govern this Agreement."]
    )
    return Entry(form.format(state), "law", "text", state)


def _notice(rng: random.Random) -> Entry:
    n, word = rng.choice(list(_NUMBERS.items()))
    form = rng.choice(
        [
            "Either party may end this Agreement on {} ({}) days' written notice.",
            "This Agreement ends {} ({}) days after notice of termination.",
        ]
    )
    return Entry(form.format(word, n), "notice", "amount", f"{n} days", (f"{word} ({n}) days",))


def _cap(rng: random.Random) -> Entry:
    n = rng.randint(10, 900) * 1000
    form = rng.choice(
        ["Liability under this Agreement is limited to ${:,}.", "Neither party is liable for more than ${:,}."]
    )
    return Entry(form.format(n), "cap", "amount", f"${n:,}", (f"${n:,}.00", f"{n} dollars"))


def _fee(rng: random.Random) -> Entry:
    n = rng.randint(20, 950) * 10
    form = rng.choice(["The Client pays a fee of ${:,} each month.", "The monthly fee is ${:,}."])
    return Entry(form.format(n), "fee", "amount", f"${n:,}", (f"USD {n}",))


def _term(rng: random.Random) -> Entry:
    n = rng.randint(1, 8)
    form = rng.choice(["The initial term is {} months.", "This Agreement runs for a term of {} months."])
    return Entry(form.format(12 * n), "term", "amount", f"{12 * n} months", (f"{n} year{'s' * (n > 1)}",))


def _effective(rng: random.Random) -> Entry:
    year, month, day = rng.randint(2015, 2029), rng.randint(1, 12), rng.randint(1, 28)
    form = rng.choice(["This Agreement takes effect on {}.", "The effective date is {}."])
    date = f"{_MONTHS[month - 1]} {day}, {year}"
    return Entry(form.format(date), "effective", "date", date, (f"{year}-{month:02}-{day:02}",))


def _provider(rng: random.Random) -> Entry:
    firm = f"{rng.choice(_FIRMS)} {rng.choice(_FORMS)}"
    return Entry(f"{firm} is the Provider of the services.", "provider", "text", firm)


def _clause(name: str, *forms: str) -> Callable[[random.Random], Entry]:
    return lambda rng: Entry(rng.choice(forms).format(n=rng.randint(2, 9), firm=rng.choice(_FIRMS)), name, "clause")


TERMS = (_law, _notice, _cap, _fee, _term, _effective, _provider)
CLAUSES = (
    _clause("assignment", "Neither party assigns this Agreement without the written consent of the other.", "The Provider may assign this Agreement to {firm} Holdings only."),
    _clause("confidentiality", "Each party keeps the other's information secret for {n} years after the end of this Agreement.", "Neither party discloses what it learns from the other for {n} years."),
    _clause("competition", "For {n} years the Provider serves no competitor of the Client.", "The Client hires none of the Provider's staff for {n} years."),
    _clause("audit", "The Client may inspect the Provider's records {n} times a year.", "Records are open to the Client's auditors for {n} years."),
)  # fmt: skip
FILLERS = (
    "Invoices are payable within {n} days of receipt.", "Headings are for convenience only.", "Late payments bear interest of {n} percent.",
    "Notices are sent by registered mail.", "The parties meet every {n} weeks.", "Each party bears its own costs.",
    "A deposit of ${m},000 is held in escrow.", "No waiver is valid unless in writing.", "The annex lists {n} sites.",
    "Changes to the annex need {n} days of review.", "The Provider keeps insurance of ${m}0,000.", "Disputes go to mediation first.",
)  # fmt: skip


def draw(rng: random.Random, level: int) -> Draft:
    terms = [make(rng) for make in rng.sample(TERMS, {1: 1, 2: 4, 3: 6}[level])]
    clauses = [make(rng) for make in rng.sample(CLAUSES, {1: 0, 2: 0, 3: 3}[level])]
    fillers = [
        Entry(text.format(n=rng.randint(2, 9), m=rng.randint(1, 9)))
        for text in rng.sample(FILLERS, {1: 3, 2: 4, 3: 9}[level])
    ]
    asked = [*rng.sample(terms, {1: 1, 2: 3, 3: 3}[level]), *rng.sample(clauses, min(2, len(clauses)))]
    missing = [rng.choice(asked)] if level > 1 and rng.random() < 0.5 else []
    entries = [entry for entry in (*terms, *clauses, *fillers) if entry not in missing]
    rng.shuffle(entries)
    reference = Sheet("SERVICE AGREEMENT", entries, missing).reference([entry.name for entry in asked])
    asked_for = task(NAME, reference, "Draw these terms from the agreement.", 100 * len(asked))
    identity = "; ".join(
        sorted(f"{entry.name}={'' if entry in missing else entry.value or entry.sentence}" for entry in asked)
    )
    return Draft(identity, asked_for.messages[0].content, lambda rng: asked_for)
