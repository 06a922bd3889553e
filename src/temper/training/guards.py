"""Watches over a stage's metrics: alarms, said once each, and an end to a run whose updates are all refused.

A state machine over the metrics of steps, without I/O; the driver makes events of what it says. What a step alone can
see (a gradient that is not finite, a spike) the optimiser refuses by itself. Baselines are the first steps that this
process saw. Whether the reward is being gamed needs held-out tasks, and is `evaluation.gaming`'s to say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from msgspec import Struct

from temper.core.errors import BackendError

BASELINE = 5  # steps


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits from which a metric is an alarm.

    gap: mean difference of log-probs between engine and trainer at age 0, in nats. kl: to the behaviour policy.
    entropy: share of its baseline below which it has collapsed. length: multiple of the baseline's answers.
    refused: updates skipped in a row after which the stage ends.
    """

    gap: float = 0.05
    kl: float = 0.5
    entropy: float = 0.1
    length: float = 3.0
    refused: int = 10


class Guards:
    def __init__(self, config: Config) -> None:
        self.config = config
        self._first: defaultdict[str, list[float]] = defaultdict(list)
        self._ringing: set[str] = set()
        self._refused = 0

    def observe(self, metrics: Mapping[str, float]) -> list[str]:
        """What is newly wrong after this step. Raises BackendError after too many refused updates in a row."""
        self._refused = self._refused + 1 if metrics.get("skipped") else 0
        if self._refused >= self.config.refused:
            raise BackendError(
                f"{self._refused} updates in a row were refused, the last with a gradient norm of "
                f"{metrics.get('grad_norm', float('nan')):.3g}: go on with a lower lr, or look at the batches that "
                "these steps trained on. The newest checkpoint holds the last update that was applied; delete it to go "
                "back to the one before"
            )
        found = {
            "update refused": f"gradient norm {metrics.get('grad_norm', 0.0):.3g}" if self._refused else "",
            "engine-trainer gap": self._above(metrics, "logprob_gap", self.config.gap),
            "policy drift": self._above(metrics, "kl_behaviour", self.config.kl),
            "entropy collapse": self._against(metrics, "entropy", self.config.entropy, fell=True),
            "length explosion": self._against(metrics, "answer_tokens", self.config.length, fell=False),
        }
        wrong = {name: why for name, why in found.items() if why}
        new = [f"{name}: {why}" for name, why in wrong.items() if name not in self._ringing]
        self._ringing = set(wrong)
        return new

    def _above(self, metrics: Mapping[str, float], name: str, limit: float) -> str:
        value = metrics.get(name, 0.0)
        return f"{name} is {value:.3g}, above {limit:g}" if not value <= limit else ""

    def _against(self, metrics: Mapping[str, float], name: str, times: float, fell: bool) -> str:
        if name not in metrics:
            return ""
        value, first = metrics[name], self._first[name]
        if len(first) < BASELINE:
            first.append(value)
            return ""
        limit = times * sum(first) / len(first)
        if value < limit if fell else value > limit:
            return f"{name} is {value:.3g}, {'below' if fell else 'above'} {limit:.3g}, {times:g} times its beginning"
        return ""
