"""What happens after a fault of ours: how long a sample waits, and when starting more makes no sense for a while.

Which samples run again, and when their task is quarantined, is `pacing`'s decision; nobody sleeps here, and the time is
told.
"""

from __future__ import annotations

import hashlib

FIRST, MOST = 0.5, 30.0  # seconds


def backoff(attempt: int, name: str) -> float:
    """Seconds before the `attempt`-th try (0: none), between half and all of FIRST * 2^(attempt - 1), at most MOST.

    The jitter comes from `name`, so that samples that failed together come back apart and a replay waits the same.
    """
    if not attempt:
        return 0.0
    share = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") / 2**32
    return min(MOST, FIRST * 2.0 ** min(attempt - 1, 30)) * (0.5 + share / 2)


def exhausted(tries: int, workers: int, attempts: int) -> bool:
    """Whether what failed so often is given up. `workers`: the different ones that it failed on, 0 without names.

    One broken worker condemns nobody: where workers have names it takes `attempts` of them, or three times as many
    tries in all.
    """
    return (workers or tries) >= attempts or tries >= 3 * attempts


class Breaker:
    """Opens after `limit` faults in a row; then one probe may start every `cool` seconds until something works.

    An outage thus costs each sample about one try instead of all of them, and nobody is quarantined for it.
    """

    def __init__(self, limit: int = 8, cool: float = 15.0) -> None:
        self.limit, self.cool = limit, cool
        self.faults = 0  # in a row
        self._next = 0.0  # when a probe may start

    @property
    def open(self) -> bool:
        return self.faults >= self.limit

    def failed(self, now: float) -> bool:
        """A fault; whether it opened the breaker."""
        self.faults += 1
        if self.open:
            self._next = now + self.cool
        return self.faults == self.limit

    def worked(self) -> bool:
        """Something ended well; whether that closed the breaker."""
        was, self.faults = self.open, 0
        return was

    def wait(self, now: float) -> float:
        """Seconds until the next start may be tried; 0 when closed."""
        return max(0.0, self._next - now) if self.open else 0.0

    def started(self, now: float) -> None:
        """A sample starts: while open it is the probe, and the next one waits."""
        self._next = now + self.cool
