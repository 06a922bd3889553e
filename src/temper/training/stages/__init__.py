"""Stages: what one optimiser step is made of. A module with `step(trainer, items, ...) -> metrics`.

Here is what they share: the tokens of a path. Loops, engines, progress and checkpoints belong to `runs`; a stage holds
no state, so a step counter (and, for RL, the scheduler's ledger) is all that a resume needs.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from temper.core.trace import Trace


class Path(Struct, frozen=True, eq=False):
    """A root-to-leaf path as arrays (n,): ids int32, trainable bool, logprobs float32, versions int32."""

    ids: np.ndarray
    trainable: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray

    @property
    def sampled(self) -> np.ndarray:
        """bool (n,): tokens that the policy wrote and is trained on."""
        return self.trainable & (self.versions >= 0)


def path(trace: Trace, leaf: int = -1) -> Path:
    """The tokens from the root to `leaf`. The first token has nothing before it and is never trained."""
    segments = trace.path(leaf)
    columns = [[getattr(s, name) for s in segments] for name in Path.__struct_fields__]
    ids, trainable, logprobs, versions = (np.concatenate(c) if c else np.zeros(0, np.int32) for c in columns)
    trainable = trainable.astype(bool)
    trainable[:1] = False
    return Path(ids, trainable, logprobs, versions)
