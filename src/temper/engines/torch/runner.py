"""One step of the engine: loads, forward pass, sampling, stops. Synchronous and single-threaded; no asyncio here.

All of an engine's state is here and in what it holds; it is touched by one thread at a time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import torch
from msgspec import Struct
from torch import Tensor
from torch.nn.functional import pad

from temper.core.errors import ConfigError, CorruptError, nearest
from temper.core.protocols import SamplingParams
from temper.engines.torch import Config, invariant
from temper.engines.torch.prefixes import PrefixTree
from temper.engines.torch.rows import Rows, Shape, Step, split
from temper.engines.torch.sampler import sample
from temper.engines.torch.scheduler import Plan, Request, Scheduler
from temper.models.attention import Packed
from temper.models.policy import Policies, Policy

_SCORED_ROWS = 512  # positions whose logits are held at once by `score`
_COLDEST = 1e-6  # above 0; logits divided by less may leave fp32, for which the weights would be blamed
_STOP_SLACK = 8  # tokens read before a stop string's own length, for multi-byte characters


class Stats(Struct):
    """Counters since the start. `keep_gap`: mean |log-prob sampled with a kept cache - exact|, and its largest."""

    steps: int = 0
    sampled: int = 0
    prompt_computed: int = 0
    prompt_reused: int = 0
    prefill_seconds: float = 0.0  # of the steps' time, by share of tokens
    decode_seconds: float = 0.0
    running: int = 0
    waiting: int = 0
    row_bytes: int = 0
    prefix_bytes: int = 0
    keep_gap_tokens: int = 0
    keep_gap_mean: float = 0.0
    keep_gap_max: float = 0.0


class Runner:
    """Holds the policies (the first is ""), the scheduler and the rows of one engine."""

    def __init__(self, config: Config, policy: Policy) -> None:
        _check_finite({**dict(policy.body.named_parameters()), "head": policy.head}, "the model's weights")
        self.policy, self.policies, self.versions, self.stats = policy, Policies(policy), {"": 0}, Stats()
        self.shape = Shape(policy.base.config, policy.head.dtype, policy.base.device)
        self.tile = invariant.TILE if config.batch_invariant else 0
        self.rows = (invariant.Lanes if self.tile else Rows)(self.shape, config.slots, config.row_mib << 20)
        self.tree: PrefixTree[Tensor] = PrefixTree((config.prefix_mib << 20) // self.shape.token_bytes, split)
        row_tokens = (config.row_mib << 20) // self.shape.token_bytes
        self.scheduler = Scheduler(config.slots, row_tokens, config.prefill_tokens, self.tree)
        if self.tile:
            invariant.check(self.policies, self.rows)
        self._gap_wanted: set[str] = set()  # policies: one request's gap is measured after each publish that kept

    def snapshot(self) -> Stats:
        """A copy of the counters, with how things stand now."""
        return msgspec.structs.replace(
            self.stats,
            prompt_reused=self.scheduler.reused,
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            row_bytes=self.rows.bytes,
            prefix_bytes=self.tree.size * self.shape.token_bytes,
        )

    def check(self, ids: np.ndarray, params: SamplingParams, policy: str = "") -> None:
        """Raise ConfigError for a request that can never run."""
        self.named(policy)
        vocabulary = self.policy.head.shape[0]
        if len(ids) == 0 or ids.min() < 0 or ids.max() >= vocabulary:
            raise ConfigError(f"expected a prompt of ids in [0, {vocabulary}), got {len(ids)} ids: {ids[:8]}")
        heat = params.temperature
        if not (heat == 0 or heat >= _COLDEST) or not 0 < params.top_p <= 1 or params.top_k < 0:
            raise ConfigError(
                f"expected a temperature of 0 or from {_COLDEST:g} on, 0 < top_p <= 1 and top_k >= 0, got {params}"
            )
        need = min(len(ids) + params.max_tokens, self.policy.base.context)
        if need > self.scheduler.row_tokens:
            room = self.scheduler.row_tokens
            raise ConfigError(f"a request of up to {need} tokens does not fit row_mib, which holds {room}: raise it")

    def named(self, policy: str) -> Policy:
        """Raises ConfigError for one that is not served."""
        if policy not in self.policies.by_name:
            raise ConfigError(f"no policy {policy!r} is served here; {nearest(policy, self.versions)}")
        return self.policies.by_name[policy]

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """Compute one step; gives the requests that got a token (some of them finished)."""
        began = time.perf_counter()
        plan = self.scheduler.plan()
        for request, spans in plan.loads:
            self.rows.load(request, spans)
        if self.tile:
            hidden = invariant.forward(self.policies, self.rows, plan)
        else:
            plan, hidden = self._forward(plan)
        sampling = self.scheduler.done(plan, self.rows.export)
        if sampling:
            self._sample(sampling, hidden, plan)
        self._count(plan, time.perf_counter() - began)
        return sampling

    def finish(self, request: Request, stop: Any = "") -> None:
        """Take a request out; what it computed stays findable for its next turn."""
        request.stop = request.stop or stop
        if request.row is not None:
            if request.stop != "aborted":
                self._measure_gap(request)
            self.scheduler.remember(request, self.rows.export)
            self.rows.free(request)
        self.scheduler.remove(request)

    def publish(self, weights: Mapping[str, Tensor], version: int, mode: str, policy: str = "") -> None:
        """Copy a policy's new weights in. Between two steps; the other policies' requests notice nothing.

        Raises CorruptError, and keeps the old ones, where a number is not finite.
        """
        _check_finite(weights, f"the weights of version {version}")
        self.named(policy).load_trainable(weights)
        self.versions[policy] = version
        for request in self.scheduler.published(mode, policy):
            self.rows.free(request)
        self._gap_wanted.discard(policy)
        if mode == "keep":
            self._gap_wanted.add(policy)

    def add(self, name: str, policy: Policy) -> None:
        """Serve one more policy, whose version is 0."""
        self.policies.add(name, policy)
        self.versions[name] = 0

    def remove(self, name: str) -> None:
        """Serve an added policy no longer, if it still was. It has no requests left."""
        if self.versions.pop(name, None) is not None:
            self.policies.remove(name)
            self.scheduler.tree.clear(name)

    @torch.inference_mode()
    def score(self, ids: np.ndarray, top_k: int = 0, heat: float = 1.0, policy: str = "") -> tuple[np.ndarray, Any]:
        """Log-prob of each token given those before it, and the top-k of each position; heat multiplies logits."""
        tokens = torch.from_numpy(ids.astype(np.int64)).to(self.shape.device)
        at = torch.arange(len(ids), device=tokens.device)
        hidden = self.named(policy).hidden(tokens, at, Packed([len(ids)]))
        found, tops = [torch.zeros(1)], []
        for at in range(0, len(ids) - 1, _SCORED_ROWS):
            rows = hidden[at : min(at + _SCORED_ROWS, len(ids) - 1)]
            logprobs = (rows @ self.policy.head.T).float().mul_(heat).log_softmax(-1)
            found.append(logprobs.gather(1, tokens[at + 1 : at + 1 + len(rows), None])[:, 0].cpu())
            if top_k:
                tops.append(logprobs.topk(top_k))
        best = None
        if tops:  # of the position that predicts each token; the first token has none
            best = tuple(torch.cat([t[i] for t in tops]).cpu().numpy() for i in (1, 0))
        return torch.cat(found).numpy(), best

    def _forward(self, plan: Plan) -> tuple[Plan, Tensor]:
        """The plan, decoding requests in the order of their rows, and its final hidden states (T, D), chunks last."""
        for request in plan.decode:
            self.rows.shelve(request)
        for request, _ in plan.chunks:
            self.rows.stage(request)
        layout = Step(self.rows, plan.chunks)
        plan = Plan(plan.loads, layout.decode, plan.chunks)
        ids = [request.tokens[-1:] for request in plan.decode]
        at = [np.array([request.computed for request in plan.decode], np.int64)]
        for request, n in plan.chunks:
            ids.append(request.tokens[request.computed : request.computed + n])
            at.append(np.arange(request.computed, request.computed + n))
        device = self.shape.device
        tokens = torch.from_numpy(np.concatenate(ids).astype(np.int64)).to(device)
        owners = [*((request.policy, 1) for request in plan.decode), *((r.policy, n) for r, n in plan.chunks)]
        whose = np.repeat(*map(np.array, zip(*owners, strict=True)))
        rows = {str(name): torch.from_numpy(np.flatnonzero(whose == name)).to(device) for name in np.unique(whose)}
        return plan, self.policies.hidden(tokens, torch.from_numpy(np.concatenate(at)).to(device), layout, rows)

    def _sample(self, sampling: list[Request], hidden: Tensor, plan: Plan) -> None:
        """Append a token to every request whose tokens are all computed, and see whether it ends."""
        ends = np.cumsum([n for _, n in plan.chunks], dtype=np.int64) + len(plan.decode) - 1
        last = [e for e, (request, _) in zip(ends, plan.chunks, strict=True) if request.computed == request.length]
        rows = [*range(len(plan.decode)), *last]
        size = self.tile or len(rows)
        for at in range(0, len(rows), size):
            some = sampling[at : at + size]
            short = size - len(some)
            logits = pad(hidden[rows[at : at + size]], (0, 0, 0, short)) @ self.policy.head.T
            params = [r.params for r in some] + [SamplingParams()] * short
            ids, logprobs = sample(logits, params, [r.sampled for r in some] + [0] * short)
            for request, token, logprob in zip(some, ids.tolist(), logprobs.tolist(), strict=False):
                version = self.versions[request.policy]
                if math.isnan(logprob):
                    raise CorruptError(
                        f"log-probs are not finite: the weights of version {version} are damaged, or too large for "
                        "their dtype; go on from an older checkpoint"
                    )
                request.append(token, logprob, version)
                request.stop = self._stop(request, token)
                if request.stop:
                    self.finish(request)
        self.stats.sampled += len(sampling)

    def _stop(self, request: Request, token: int) -> Any:
        params = request.params
        if token in params.stop_ids:
            return "stop"
        if params.stop:
            reach = max(len(text.encode()) for text in params.stop) + _STOP_SLACK
            tail = request.tokens[max(request.prompt, request.length - reach) :].tolist()
            text = self.policy.base.tokenizer.decode(tail, skip_special_tokens=False)
            if any(stop in text for stop in params.stop):
                return "stop"
        if request.sampled >= params.max_tokens:
            return "length"
        return "context" if request.length >= request.limit else ""

    def _measure_gap(self, request: Request) -> None:
        """After a publish that kept caches: how far one request's newest log-probs are from exact ones."""
        new = [i for i, version in enumerate(request.versions) if version == self.versions[request.policy]]
        if not (request.policy in self._gap_wanted and request.kept and new):
            return
        self._gap_wanted.discard(request.policy)
        heat = 1 / request.params.temperature if request.params.temperature > 0 else 1.0
        exact = self.score(request.tokens, heat=heat, policy=request.policy)[0][request.prompt :][new]
        gap = np.abs(exact - np.array(request.logprobs)[new])
        stats, n = self.stats, len(new)
        stats.keep_gap_mean = (stats.keep_gap_mean * stats.keep_gap_tokens + gap.sum()) / (stats.keep_gap_tokens + n)
        stats.keep_gap_max = max(stats.keep_gap_max, float(gap.max()))
        stats.keep_gap_tokens += n

    def _count(self, plan: Plan, seconds: float) -> None:
        prefilled = sum(n for _, n in plan.chunks)
        share = prefilled / max(1, prefilled + len(plan.decode))
        stats = self.stats
        stats.steps += 1
        stats.prompt_computed += prefilled
        stats.prefill_seconds += seconds * share
        stats.decode_seconds += seconds * (1 - share)


def _check_finite(weights: Mapping[str, Tensor], what: str) -> None:
    """Raises CorruptError: where weights come in, so that a run ends there, and not in attempts that all fail."""
    if name := next((name for name, weight in weights.items() if not weight.isfinite().all()), ""):
        raise CorruptError(f"{what} are damaged: {name} has numbers that are not finite; use an older checkpoint")
