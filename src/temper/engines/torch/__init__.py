"""The engine that runs transformers' decoders in this process: continuous batching on CPU or CUDA.

One idea a file: `prefixes` (which keys and values are kept, pure), `scheduler` (what the next step computes, pure),
`rows` (where keys and values lie, and attention over them), `invariant` (the same numbers in any batch), `sampler`
(from logits to a token), `runner` (one step), `engine` (the asynchronous shell). Not here: many devices,
quantisation, speculative decoding.
"""

from __future__ import annotations

from concurrent.futures import Executor
from typing import TYPE_CHECKING

from msgspec import Struct

from temper.core.config import Count, Some

if TYPE_CHECKING:
    from temper.engines.torch.engine import TorchEngine
    from temper.models.load import Base
    from temper.models.lora import LoraConfig


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """slots: requests that run at once. prefill_tokens: prompt tokens computed in one step beside the decoding ones.

    row_mib: keys and values that running requests may come to need (admission waits for room); while rows grow, and
    so move, up to twice that is taken for each power of two that is in use. prefix_mib: those of finished prefixes.
    batch_invariant: a request's tokens and log-probs are bit for bit the same whatever else runs; slower (`invariant`).
    """

    slots: Some = 64
    prefill_tokens: Some = 512
    row_mib: Some = 2048
    prefix_mib: Count = 1024
    batch_invariant: bool = False


def create(
    config: Config,
    *,
    base: Base,
    adapter: LoraConfig | None = None,
    full: bool = False,
    executor: Executor | None = None,
) -> TorchEngine:
    """An engine over `base`, publishing an `adapter`, or all weights with `full`, or nothing.

    Steps run on `executor`, which must run one call at a time; by default a thread of the engine's own.
    """
    from temper.engines.torch.engine import TorchEngine
    from temper.models.policy import Policy

    return TorchEngine(config, Policy(base, adapter, full=full), executor)
