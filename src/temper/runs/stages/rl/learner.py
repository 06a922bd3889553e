"""The learning half of the stage: one update on chosen groups, watched by the guards, and its checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from temper.core.trace import Group
from temper.runs.stages.rl import Config
from temper.runs.stages.rl.records import Progress
from temper.runs.workshop import Workshop
from temper.training import guards, trainer
from temper.training.scoring import snapshot
from temper.training.stages import rl


class Learner:
    """`trained` are the numbers of the groups that the weights have seen."""

    def __init__(self, shop: Workshop, config: Config) -> None:
        self.shop, self.config = shop, config
        heat = config.sampling.temperature or 1.0  # behaviour log-probs are those at the sampling temperature
        self.trainer = trainer.Trainer(shop.policy, replace(config.trainer, temperature=heat))
        self.trainer.version = shop.version
        self.until = shop.version + config.steps
        self.trained: list[int] = []
        self._refused = False
        self._guards = guards.Guards(config.guards)
        self._reference = snapshot(shop.policy) if config.update.kl else None  # before a checkpoint is loaded

    @property
    def version(self) -> int:
        return self.trainer.version

    async def load(self) -> None:
        """Go on from the newest checkpoint, where there is one."""
        saved = self.shop.latest("rl")
        if saved:
            await self.shop.computed(self.trainer.load, saved / "trainer")
            self.trained = msgspec.json.decode((saved / "progress.json").read_bytes(), type=Progress).trained

    async def update(self, numbers: Sequence[int], groups: Sequence[Group]) -> tuple[dict[str, float], float]:
        """One step on these groups: its metrics, and the seconds it took."""
        began = self.shop.clock()
        metrics = await self.shop.computed(rl.step, self.trainer, groups, self.config.update, self._reference)
        for alarm in self._guards.observe(metrics):
            self.shop.event("alarm", "rl", alarm)
        self.trained += numbers
        self._refused = bool(metrics["skipped"])
        return metrics, self.shop.clock() - began

    async def save(self) -> None:
        """A checkpoint, when one is due: not of a refused update, so that there are some from before to go back to."""
        if (self._refused or self.version % self.config.checkpoint_every) and self.version < self.until:
            return
        with self.shop.run.checkpoint(f"rl-{self.version:06d}") as folder:
            await self.shop.computed(self.trainer.save, folder / "trainer")
            (folder / "progress.json").write_bytes(msgspec.json.encode(Progress(trained=self.trained)))
