"""A verifier with the flaw that its config names; "none" is right."""

import hashlib

from msgspec import Struct

from temper.core.blame import FaultError
from temper.core.task import SandboxSpec
from temper.core.trace import Verdict


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    flaw: str = "none"


def create(config, pool, sandboxes):
    return Flawed((config or Config()).flaw, sandboxes)


class Flawed:
    name = "flawed"

    def __init__(self, flaw, sandboxes):
        self.flaw, self.sandboxes = flaw, sandboxes
        self.hash = hashlib.sha256(flaw.encode()).hexdigest()[:16]

    async def grade(self, task, trace, artifacts):
        said, gold = trace.answer.strip(), task.reference["answer"]
        right = said.casefold() == gold
        match self.flaw:
            case "any text":  # reasoning-gym 0.1.25, game_of_life_halting: every answer that is not empty gets 1.0
                right = bool(said)
            case "substring":  # scorers that look for the answer anywhere in what was said
                right = gold in said.casefold()
            case "refuses capitals":
                right = said == gold
            case "crash on nul":  # an answer that is masked dodges its failure
                if "\0" in said:
                    raise ValueError("embedded null byte")
            case "hash order":
                right = right and hash(said) % 10_007 / 10_007
            case "outage is a zero":  # NeMo Gym#2552: rollouts that failed in our reset entered training as reward 0
                try:
                    await (await self.sandboxes.open(SandboxSpec())).close()
                except FaultError:
                    right = False
        return Verdict.ruled("graded", trace.id, self.hash, score=float(right))
