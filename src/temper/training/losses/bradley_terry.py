"""Bradley-Terry on scores of whole answers: -log sigmoid(s_chosen - s_rejected), as in InstructGPT (arXiv 2203.02155).

Streams: `scalar` (the trainer's scalar head where each answer ends, with gradient), `pair`, `chosen`.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn.functional import logsigmoid

from temper.training.losses.sequences import margin

streams: frozenset[str] = frozenset({"scalar", "pair", "chosen"})


def loss(logprobs: Tensor, streams: Mapping[str, Tensor], config: None) -> tuple[Tensor, dict[str, Tensor]]:
    gap = margin(streams["scalar"], streams)
    return -logsigmoid(gap), {"pair_accuracy": gap.detach() > 0}
