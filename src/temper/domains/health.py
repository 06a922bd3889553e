"""Discharge letters: diagnosis, doses, allergies and appointments to be drawn from a generated letter, with evidence.

Level 1: one field of a short letter. Level 2: three of eight sentences. Level 3: five, with several medicines, each with
its dose, between sentences about other values. What the letter does not state is null: an allergy that was made up is the
mistake that counts here.
"""

# ruff: noqa: E501, SIM905  (tables with one entry a line)

from __future__ import annotations

import random

from temper.domains.dossier import Entry, Sheet, gold, right, second, task, wrong
from temper.domains.generated import Draft
from temper.domains.written import Written

NAME = "health"


def create(config: object = None) -> Written:
    return Written(NAME, "documents", draw, gold, right, wrong, second)


_DIAGNOSES = (
    "pneumonia",
    "asthma",
    "migraine",
    "gout",
    "anaemia",
    "appendicitis",
    "bronchitis",
    "sciatica",
    "cellulitis",
    "atrial fibrillation",
)
_SUBSTANCES = ("penicillin", "latex", "aspirin", "iodine", "peanuts", "codeine", "sulfa drugs", "shellfish")
_DRUGS = (
    "amoxicillin ibuprofen metformin lisinopril warfarin omeprazole prednisone furosemide sertraline digoxin".split()
)
_OFTEN = ("once a day", "twice a day", "three times a day", "every six hours", "at bedtime", "with meals")
_MONTHS = "January February March April May June July August September October November December".split()
_WARDS = ("Ward 3", "Ward 7", "the day clinic", "the surgical ward", "the stroke unit")


def _diagnosis(rng: random.Random) -> Entry:
    name = rng.choice(_DIAGNOSES)
    form = rng.choice(["The final diagnosis is {}.", "The patient was treated for {}."])
    return Entry(form.format(name), "diagnosis", "text", name)


def _allergy(rng: random.Random) -> Entry:
    name = rng.choice(_SUBSTANCES)
    form = rng.choice(["The patient is allergic to {}.", "There is a known allergy to {}."])
    return Entry(form.format(name), "allergy", "text", name)


def _weight(rng: random.Random) -> Entry:
    n = rng.randint(450, 1200)
    return Entry(
        f"Body weight on admission was {n / 10:.1f} kg.", "weight", "amount", f"{n / 10:.1f} kg", (f"{n * 100} g",)
    )


def _visit(rng: random.Random) -> Entry:
    year, month, day = rng.randint(2018, 2029), rng.randint(1, 12), rng.randint(1, 28)
    date = f"{day} {_MONTHS[month - 1]} {year}"
    form = rng.choice(["The next appointment is on {}.", "Please come back on {} for a check."])
    return Entry(form.format(date), "next_visit", "date", date, (f"{year}-{month:02}-{day:02}",))


def _stay(rng: random.Random) -> Entry:
    n = rng.randint(2, 28)
    form = rng.choice(["The patient stayed for {} days.", "Discharge followed after {} days."])
    return Entry(form.format(n), "stay", "amount", f"{n} days", (f"{24 * n} hours",))


def _ward(rng: random.Random) -> Entry:
    ward = rng.choice(_WARDS)
    return Entry(f"Care was given on {ward}.", "ward", "text", ward)


def _medicines(rng: random.Random, n: int) -> list[Entry]:
    """Doses by medicine; or, of more than one, the list of what is taken."""
    found = []
    for drug in rng.sample(_DRUGS, n):
        dose = rng.choice((1, 2, 5, 10, 20, 25, 40, 50, 75, 100, 250, 500))
        sentence = f"{drug.capitalize()} {dose} mg is to be taken {rng.choice(_OFTEN)}."
        if n == 1:
            found.append(Entry(sentence, f"dose_of_{drug}", "amount", f"{dose} mg", (f"0.{dose:03} g",)))
        else:
            found.append(Entry(sentence, "medicines", "text", drug))
    return found


FIELDS = (_diagnosis, _allergy, _weight, _visit, _stay, _ward)
FILLERS = (
    "Blood pressure was {n}0/7{n} mmHg at rest.", "The patient slept well.", "The wound was dressed every {n} hours.", "A chest film showed no change.",
    "The patient is to drink {n} litres a day.", "Temperature fell to 37.{n} °C.", "Walking is possible with help.", "Appetite is good.",
    "The pulse was 7{n} a minute.", "A relative was informed by telephone.", "Sodium was 13{n} mmol/L.", "No visitors were allowed for {n} days.",
)  # fmt: skip


def draw(rng: random.Random, level: int) -> Draft:
    singles = [make(rng) for make in rng.sample(FIELDS, {1: 1, 2: 3, 3: 5}[level])]
    medicines = _medicines(rng, {1: 1, 2: 1, 3: 3}[level])
    known = [*singles, medicines[0]]
    asked = rng.sample(known, {1: 1, 2: 3, 3: 5}[level])
    spare = [entry for entry in asked if entry.name != "medicines"]
    missing = [rng.choice(spare)] if level > 1 and rng.random() < 0.5 else []
    fillers = [Entry(text.format(n=rng.randint(2, 9))) for text in rng.sample(FILLERS, {1: 2, 2: 4, 3: 9}[level])]
    entries = [entry for entry in (*singles, *medicines, *fillers) if entry not in missing]
    rng.shuffle(entries)
    reference = Sheet("DISCHARGE LETTER", entries, missing).reference([entry.name for entry in asked])
    asked_for = task(NAME, reference, "Draw these facts from the letter.", 120 * len(asked))
    stated = [entry for entry in (*singles, *medicines) if entry.name in reference["fields"] and entry not in missing]
    identity = "; ".join(sorted(f"{entry.name}={entry.value}" for entry in stated)) + "".join(
        f" no {e.name}" for e in missing
    )
    return Draft(identity, asked_for.messages[0].content, lambda rng: asked_for)
