"""What a run has spent, all its processes together: recorded, held against its budget, and where it falls short."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from temper.core.errors import BudgetError
from temper.core.protocols import Metered
from temper.core.trace import Cost
from temper.evaluation.diagnosis import elapsed
from temper.runs.recipe import Recipe
from temper.scheduling.ledger import Ledger, Spent
from temper.store.run import RunDirectory


class Accounts:
    """`meters`, where they can tell, and `workers` (by pool) are set once they are known."""

    def __init__(
        self, recipe: Recipe, run: RunDirectory, event: Callable[..., None], clock: Callable[[], float]
    ) -> None:
        self._ledger = Ledger(recipe.prices, recipe.budget)
        self._log, self._path, self._event, self._clock = run.log("spent", Spent), run.path, event, clock
        for spent in self._log:
            self._ledger.add(spent)
        self._before = sum(elapsed(run.events).values())
        self._busy: Mapping[str, float] = {}
        self.meters: tuple[object, ...] = ()
        self.workers: dict[str, int] = {}
        self.begin("loading")

    def begin(self, part: str) -> None:
        """What is spent from now on belongs to this part of the run."""
        self._part, self._began, self._advice = part, self._clock(), ""
        self.part = Ledger()

    def spend(self, cost: Cost, domain: str = "", **more: Any) -> None:
        """Record a cost; `more` are other fields of `Spent`."""
        meters = [meter for meter in self.meters if isinstance(meter, Metered)]
        busy = {stage: seconds for meter in meters for stage, seconds in meter.busy().items()}
        since = {stage: seconds - self._busy.get(stage, 0.0) for stage, seconds in busy.items()}
        self._busy = busy
        spent = Spent.of(cost, domain=domain, part=self._part, measured=since, **more)
        self._log.append(spent)
        self._ledger.add(spent)
        self.part.add(spent)

    def afford(self) -> None:
        """Raises BudgetError when a budget of the recipe is used up."""
        for name, why in self._ledger.exceeded(self._before + self._clock()).items():
            raise BudgetError(
                f"the budget is used up: {why}. Nothing finished is lost; go on with a larger one: "
                f"temper run --resume {self._path} budget.{name}=..."
            )

    def advise(self) -> None:
        """An event when this part turns out to be short of something else than it was."""
        found = self.part.suggestion(self.workers, self._clock() - self._began)
        advice = f"{found.stage} {found.workers}" if found else ""
        if found and advice != self._advice:
            self._event("bottleneck", self._part, str(found))
        self._advice = advice
