"""Distillation by token: KL of the teacher's distribution to the policy's, over the tokens that the teacher names.

sum_k q_k (log q_k - log p_k), q the teacher's probabilities of its top k tokens made to add up to 1 (all tokens: the
full KL, as in arXiv 2306.13649). Streams: `soft`, sum_k q_k log p_k with gradient, which the trainer computes from
`teacher_ids` and `teacher_q`, (K, k) each, without holding the logits; `teacher_entropy`, -sum_k q_k log q_k.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

streams: frozenset[str] = frozenset({"soft", "teacher_entropy"})


def loss(logprobs: Tensor, streams: Mapping[str, Tensor], config: None) -> tuple[Tensor, dict[str, Tensor]]:
    divergence = -streams["teacher_entropy"] - streams["soft"]
    return divergence, {"kl_teacher": divergence.detach()}
