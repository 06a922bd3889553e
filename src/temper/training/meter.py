"""Sums and counts over micro-batches and ranks, so that a step's metrics are means over tokens whatever the cut."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

from torch import Tensor

from temper.store import codec
from temper.training.losses import LARGEST

_FRAME = tuple[dict[str, float], dict[str, float], dict[str, float]]


class Meter:
    """Of one rank, until `joined`. Of a name with a count the mean is given, of others the sum."""

    def __init__(self) -> None:
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.counts: defaultdict[str, float] = defaultdict(float)
        self.largest: dict[str, float] = {}

    def observe(self, found: Tensor, entropy: Tensor, streams: Mapping[str, Tensor], version: int) -> None:
        """What is true of any loss: size, entropy, and where tokens were sampled, distance to the behaviour policy."""
        self.sums["trained_tokens"] += len(found)
        self._mean("entropy", entropy)
        if "version" not in streams or "behaviour" not in streams:
            return
        sampled = streams["version"] >= 0
        d = (found - streams["behaviour"])[sampled]
        ratio = d.clamp(-LARGEST, LARGEST).exp()
        age = version - streams["version"][sampled]
        self._mean("ratio", ratio)
        self._mean("kl_behaviour", ratio - 1 - d)  # k3, of the behaviour policy to the current one
        self._mean("age", age)
        self._largest("ratio_max", ratio)
        self._largest("age_max", age)
        gap = d[age == 0].abs()  # the same weights in engine and trainer: numerics alone
        self._mean("logprob_gap", gap)
        self._largest("logprob_gap_max", gap)

    def component(self, name: str, loss: float, diagnostics: Mapping[str, Tensor], trained: Tensor) -> None:
        self.sums[f"loss_{name}"] += loss
        self.sums["loss"] += loss
        for key, values in diagnostics.items():
            self._mean(key, values[trained])

    def frame(self) -> bytes:
        return codec.encode((self.sums, self.counts, self.largest))

    @staticmethod
    def joined(frames: Iterable[bytes]) -> Meter:
        """One meter of several ranks' `frame()`s."""
        whole = Meter()
        for frame in frames:
            sums, counts, largest = codec.decode(frame, _FRAME)
            for mine, theirs in ((whole.sums, sums), (whole.counts, counts)):
                for name, value in theirs.items():
                    mine[name] += value
            for name, value in largest.items():
                whole.largest[name] = max(whole.largest.get(name, -math.inf), value)
        return whole

    def metrics(self) -> dict[str, float]:
        found = {k: value / (self.counts.get(k) or 1.0) for k, value in self.sums.items() if self.counts.get(k) != 0}
        return {"loss": 0.0, "trained_tokens": 0.0} | found | self.largest

    def _mean(self, name: str, values: Tensor) -> None:
        self.sums[name] += float(values.sum())
        self.counts[name] += len(values)

    def _largest(self, name: str, values: Tensor) -> None:
        if len(values):
            self.largest[name] = max(self.largest.get(name, -math.inf), float(values.max()))
