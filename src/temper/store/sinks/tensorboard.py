"""Metrics as TensorBoard scalars in the run's folder `tensorboard`, through tensorboardX (no torch).

Events are not shown there.
"""

from __future__ import annotations

from collections.abc import Mapping

from temper.core.errors import MissingError
from temper.core.trace import Event
from temper.store.run import RunDirectory


def create(config: None, run: RunDirectory) -> TensorBoard:
    return TensorBoard(run)


class TensorBoard:
    def __init__(self, run: RunDirectory) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise MissingError(
                "the sink 'tensorboard' needs tensorboardX: pip install 'temper-rl[tensorboard]'"
            ) from None
        self._writer = SummaryWriter(str(run.path / "tensorboard"))

    def event(self, event: Event) -> None:
        pass

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
