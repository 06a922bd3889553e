"""Progress of a run: a live panel on a terminal, one line at a time elsewhere. Decides nothing."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from temper.core.protocols import Sink
from temper.core.trace import Event

LINE_SECONDS = 5.0  # between two lines about the same part of the run, without a terminal
QUIET = ("admitted", "rollout", "outcome", "trained")


@contextlib.contextmanager
def display(path: Path) -> Iterator[Sink]:
    console = Console(stderr=True)
    if not sys.stderr.isatty():
        yield Lines(console)
        return
    panel = Panel(path)
    with Live(panel, console=console, refresh_per_second=4):
        yield panel


class State:
    """What is known of the run so far."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.part = "loading"
        self.part_began = self.began
        self.done = self.total = 0
        self.values: dict[str, float] = {}
        self.last = ""

    def event(self, event: Event) -> None:
        if event.what == "part" and event.why == "started":
            self.part, self.part_began, self.done, self.total, self.values = event.whom, time.monotonic(), 0, 0, {}
        if "done" in event.data:
            self.done, self.total = event.data["done"], event.data["total"]
        if event.what not in QUIET:
            self.last = f"{event.what} {event.whom} {event.why}".strip()

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.values = dict(values)

    def close(self) -> None:
        pass

    @property
    def line(self) -> str:
        """One line: part, how far, the numbers that matter, time gone and time left."""
        words = [f"{time.monotonic() - self.began:6.0f} s", f"{self.part:14}"]
        if self.total:
            words.append(f"{self.done}/{self.total}")
        for key in ("loss", "reward", "success", "age_max", "tokens_per_second"):
            if key in self.values:
                words.append(f"{key} {self.values[key]:.3g}")
        words += [f"{k.removeprefix('reward/')} {v:.2f}" for k, v in self.values.items() if k.startswith("reward/")]
        left = self.left
        return "  ".join(words + ([f"{left:.0f} s left in this part"] if left is not None else []))

    @property
    def left(self) -> float | None:
        """Seconds left in this part at its speed so far."""
        if not self.done or not self.total:
            return None
        return (time.monotonic() - self.part_began) / self.done * (self.total - self.done)


class Lines(State):
    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console
        self.printed = 0.0

    def event(self, event: Event) -> None:
        super().event(event)
        if event.what not in QUIET and event.what != "progress":
            self._print(f"{time.monotonic() - self.began:6.0f} s  {self.last}")
        elif time.monotonic() - self.printed > LINE_SECONDS:
            self._print(self.line)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        super().metrics(step, values)
        if "reward" in values or time.monotonic() - self.printed > LINE_SECONDS:
            self._print(self.line)

    def _print(self, text: str) -> None:
        self.printed = time.monotonic()
        self.console.print(Text(text), soft_wrap=True)


class Panel(State):
    """Drawn anew by rich whenever it refreshes."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.finished: list[str] = []

    def event(self, event: Event) -> None:
        if event.what == "part" and event.why == "finished":
            self.finished.append(f"{event.whom} {time.monotonic() - self.part_began:.0f} s")
        super().event(event)

    def __rich__(self) -> Group:
        table = Table.grid(padding=(0, 2))
        for key, value in self.values.items():
            table.add_row(Text(key, style="dim"), Text(f"{value:.4g}"))
        bar = ""
        if self.total:
            filled = round(30 * self.done / self.total)
            bar = "█" * filled + "░" * (30 - filled)
        return Group(
            Text(f"{self.path}   " + " · ".join(self.finished), style="dim"),
            Text(f"{bar} {self.line}"),
            table,
            Text(self.last, style="dim"),
        )
