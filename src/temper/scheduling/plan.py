"""A run on paper before it is paid for: how machines divide among its stages, what a step takes, what holds it up.

Closed formulas say what a token, a step and a publish of weights cost; the simulator, with the policy of real runs,
what queues, tails and caches make of it. Every number that went in is printed with its source: what a file's
`[sources]` says of it, or for a default what `SOURCES` says; else "given" or "assumed".

Not modelled: contention on the network, uneven experts, machines that fail, time to load or to compile.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from temper.core import config
from temper.core.config import Amount, Count, Positive, Some
from temper.core.errors import ConfigError, MissingError
from temper.scheduling import pacing
from temper.scheduling.replicas import Config as Admission
from temper.scheduling.replicas import Speed
from temper.scheduling.scenario import Scenario, simulate
from temper.scheduling.scene import Cluster, Load, Outcome

PLANS = Path(__file__).parent / "plans"  # shipped examples
DRAWN = 4000  # groups whose lengths give the means
STEPS = 10  # simulated; the later half of them counts


class Model(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decoder. width: of a token between layers. head: mean size of a head's queries and values. kv: values that a
    token leaves in a layer's cache. active: parameters that a token passes, 0 for all. experts, top: of a layer, and
    those that a token visits. bytes: of a served parameter. lora: rank of adapters on every matrix; 0 trains all.
    """

    parameters: Positive
    layers: Some
    width: Some
    heads: Count
    head: Amount = 128
    kv: Amount = 2048
    vocabulary: Count = 0
    active: Amount = 0.0
    experts: Count = 0
    top: Count = 0
    bytes: Positive = 2.0
    lora: Count = 0

    @property
    def used(self) -> float:
        return self.active or self.parameters

    @property
    def token_bytes(self) -> float:
        """Of a token in the cache, two a value."""
        return 2.0 * self.kv * self.layers

    @property
    def trained(self) -> float:
        """Parameters with a gradient: all, or those of the adapters."""
        if not self.lora:
            return self.parameters
        attention = self.width * (2 * self.heads * self.head + self.kv)
        blocks = self.experts or 1
        layer = (self.parameters - 2 * self.vocabulary * self.width) / self.layers
        inner = (layer - attention) / (3 * self.width * blocks)  # gate, up, down
        sizes = 2 * (self.width + self.heads * self.head) + 2 * self.width + self.kv + blocks * 3 * (self.width + inner)
        return self.layers * self.lora * sizes

    def forward(self, context: float) -> float:
        """Operations of one token that attends to `context` others."""
        return 2 * self.used + 4 * context * self.heads * self.head * self.layers

    def touched(self, requests: float) -> float:
        """Parameters that a decode step of so many requests reads, where each visits its experts at random."""
        if not self.experts:
            return self.parameters
        rest = 1 - self.top / self.experts
        return self.parameters - (self.parameters - self.used) / rest * rest**requests


class Machine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """gpus, or whatever computes; of each: operations and bytes a second, bytes of memory, bytes a second to others.

    tensor, pipeline, expert: ranks of the trainer (experts are spread over its data-parallel ones). replica: those of
    an engine, which spread all experts. tools, verifiers: CPUs of sandboxes and workers; 0 asks how many are needed.
    """

    gpus: Some
    flops: Positive
    bandwidth: Positive
    memory: Positive
    link: Positive = 50e9
    tensor: Some = 1
    pipeline: Some = 1
    expert: Some = 1
    replica: Some = 1
    tools: Count = 0
    verifiers: Count = 0


class Assumed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shares of peak that are reached, and what else nobody knows before it is measured."""

    train: Positive = 0.4  # of operations
    prefill: Positive = 0.5
    decode: Positive = 0.4
    read: Positive = 0.6  # of memory's bandwidth
    sync: Positive = 0.4  # of the link, by a broadcast
    latency: Amount = 5e-5  # seconds of a layer in a decode step that are none of these
    moved: Amount = 3.0  # bytes of each value that an expert gets and gives back
    usable: Positive = 0.9  # of memory
    state: Amount = 16.0  # bytes of a trained parameter
    micro: Positive = 16384.0  # tokens of a micro-batch
    delta_start: Amount = 4.0  # seconds of a publish of changes, and served bytes a second that it compares and sends
    delta_rate: Positive = 5e10
    busy: Positive = 0.8  # of sandbox CPUs and verifiers, to size them


class Question(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`publish`: lora, full or delta. `sources`: where a number comes from, by its name ("machine.flops")."""

    model: Model
    machine: Machine
    load: Load
    pacing: pacing.Config = pacing.Config()
    admission: Admission = Admission()
    assumed: Assumed = Assumed()
    publish: str = "full"
    sources: dict[str, str] = field(default_factory=dict)


SOURCES = {
    "machine.link": "one port of 400 Gb/s a GPU",
    "assumed.train": "Llama 3 405B on 8,192 and 16,384 H100: 0.38 to 0.43 (arXiv 2407.21783, table 4)",
    "assumed.sync": "235B parameters in bf16 over NCCL in 23.7 s: 20 of 50 GB/s (verl, fully_async.md)",
    "assumed.moved": "one byte there, two back (DeepSeek-V3, arXiv 2505.09343, section 2.3.2)",
    "assumed.state": "mixed-precision Adam: 2 + 2 + 12 (ZeRO, arXiv 1910.02054, section 3.1)",
    "assumed.delta_start": "7B in 3.9 to 4.9 s (verl, delta_weight_sync.md)",
    "assumed.delta_rate": "235B in 11.4 to 14.9 s (the same)",
}
FORMULAS = (
    "a forward pass of a token is 2 x its parameters + 4 x context x heads x head x layers; training is three, or "
    "two with adapters, as frozen weights need no gradient",
    "a decode step reads the weights touched and the caches, or does its operations, whichever is longer; then experts "
    "exchange width x top x `moved` bytes a token over the link, and every layer takes `latency`",
    "a pipeline of p stages and m micro-batches takes (m + p - 1) / m as long (GPipe, arXiv 1811.06965)",
    "a full broadcast takes the served bytes over one link: who receives passes on",
    "after a publish replicas read their caches again; siblings share their prompt's cache",
    "routing replay sends two bytes a token, layer and visited expert from engines to the trainer",
    "GPUs go one unit after the other to the stage with most to do; where not all stages fit, they take turns on all, "
    "and what the others hold is not counted",
)


class Answer(Struct, frozen=True, kw_only=True):
    """gpus: by stage. stages: seconds of a step's without queues or tails. longest: seconds of a rollout as long as may
    be. sync: seconds by method. routes: bytes a step. cluster: what was simulated.
    """

    gpus: dict[str, int]
    stages: dict[str, float]
    longest: float
    sync: dict[str, float]
    routes: float
    cluster: Cluster
    outcome: Outcome


def ask(name: str, overrides: Sequence[str] = ()) -> Question:
    """A shipped example by its name, or a file's path."""
    shipped = PLANS / f"{name}.toml"
    if not shipped.exists() and not Path(name).exists():
        known = ", ".join(sorted(path.stem for path in PLANS.glob("*.toml")))
        raise MissingError(f"no plan {name!r}: give a TOML file, or one of {known}")
    return config.build(Question, config.load(shipped if shipped.exists() else name, overrides), "plan")


def answer(q: Question, seed: int = 0) -> Answer:
    """Raises ConfigError where the model fits no replica, or the machine no trainer."""
    paper = _Paper(q, seed)
    gpus, shared = _split(q, paper.stages)
    stages, cluster, load = paper.stages(gpus), paper.cluster(gpus, shared), q.load
    outcome, _ = simulate(Scenario(steps=STEPS, seed=seed, policy=q.pacing, cluster=cluster, loads=(load,)))
    alone = load.cap * cluster.speed.step(cluster.admission.limit) + load.turns * load.tool + load.verify
    return Answer(
        gpus=gpus, stages=stages, longest=alone, sync=paper.sync, cluster=cluster,
        routes=2.0 * q.model.layers * q.model.top * paper.own * q.pacing.batch, outcome=outcome,
    )  # fmt: skip


class _Paper:
    """Mean lengths, and by GPUs of each stage what a step takes without queues or tails."""

    def __init__(self, q: Question, seed: int) -> None:
        rng, load, model, machine = random.Random(f"lengths {seed}"), q.load, q.model, q.machine
        drawn = [length for _ in range(DRAWN) for length in load.draw(rng, q.pacing.group)]
        self.q, self.sync, reads = q, publish_seconds(q), load.turns * load.reads
        self.made = sum(drawn) / len(drawn)  # tokens of a rollout
        self.own = self.made + reads  # and of its tools
        around = sum(x * x for x in drawn) / sum(drawn) / 2 + reads / 2
        self.context = load.prompt + around  # of a token, by the mean
        self.held = load.prompt / q.pacing.group + around  # of a request in the cache
        room = machine.replica * machine.memory * q.assumed.usable - model.parameters * model.bytes
        self.cache, longest = room / model.token_bytes, load.prompt + load.cap + reads
        self.read = model.forward(self.context / 2) / machine.replica / machine.flops / q.assumed.prefill  # a token
        if self.cache < longest:
            raise ConfigError(
                f"{machine.replica} GPUs hold the weights and {max(0.0, self.cache):.3g} tokens of cache, but the "
                f"longest rollout needs {longest:g}: give machine.replica more"
            )
        if q.publish not in self.sync:
            raise ConfigError(f"publish must be one of {', '.join(self.sync)}, got {q.publish!r}")

    def requests(self, gpus: Mapping[str, int]) -> float:
        """That a replica runs at once: as many as may be open, and its cache holds."""
        pace, replicas = self.q.pacing, gpus["decode"] // self.q.machine.replica
        slots = min((pace.eta + 1) * pace.batch, pace.capacity or math.inf)
        return max(1.0, min(slots / replicas, self.cache / self.held))

    def stages(self, gpus: Mapping[str, int]) -> dict[str, float]:
        q, requests, shared = self.q, self.requests(gpus), self.q.load.prompt / self.q.pacing.group
        steps = q.pacing.batch * self.made / requests / (gpus["decode"] // q.machine.replica)
        readers = (gpus["prefill"] or gpus["decode"]) / q.machine.replica
        return {
            "gradient": train_step(q, q.pacing.batch * (shared + self.own), self.context, gpus["gradient"]),
            "prefill": q.pacing.batch * (shared + self.own - self.made) * self.read / readers,
            "decode": steps * decode_step(q, requests, self.context)
            + self.sync[q.publish] + requests * self.held * self.read,
        }  # fmt: skip

    def cluster(self, gpus: Mapping[str, int], shared: bool) -> Cluster:
        q, stages, requests = self.q, self.stages(gpus), self.requests(gpus)
        whole = sum(stages.values()) if shared else max(stages.values())
        rate = q.pacing.batch / whole / q.assumed.busy  # rollouts a second, over the share in which workers are busy
        step, half = (decode_step(q, n, self.context) for n in (requests, requests / 2))
        each = 2 * (step - half) / requests
        return Cluster(
            replicas=gpus["decode"] // q.machine.replica, prefill=gpus["prefill"] // q.machine.replica,
            cache=self.cache, speed=Speed(prefill=self.read, base=max(0.0, step - each * requests), each=each),
            admission=replace(q.admission, limit=math.ceil(requests)), shared=shared, sync=self.sync[q.publish],
            tool=q.machine.tools or math.ceil(rate * q.load.turns * q.load.tool),
            verify=q.machine.verifiers or math.ceil(rate * q.load.verify), gradient=stages["gradient"],
        )  # fmt: skip


def decode_step(q: Question, requests: float, context: float) -> float:
    """Seconds in which each of a replica's requests makes one token."""
    model, machine, assumed, gpus = q.model, q.machine, q.assumed, q.machine.replica
    size = model.touched(requests) * model.bytes + requests * context * model.token_bytes
    read = size / (gpus * machine.bandwidth * assumed.read)
    work = requests * model.forward(context) / (gpus * machine.flops * assumed.decode)
    moved = requests / gpus * model.top * model.width * assumed.moved / machine.link if gpus > 1 else 0.0
    return max(read, work) + model.layers * (moved + assumed.latency)


def train_step(q: Question, tokens: float, context: float, gpus: int) -> float:
    """Seconds of a gradient of so many tokens; frozen weights save the third of it that is theirs."""
    machine, assumed = q.machine, q.assumed
    micro = max(1.0, tokens * machine.tensor * machine.pipeline / gpus / assumed.micro)
    work = tokens * (2 if q.model.lora else 3) * q.model.forward(context)
    return work / (gpus * machine.flops * assumed.train) * (micro + machine.pipeline - 1) / micro


def publish_seconds(q: Question) -> dict[str, float]:
    """By method; adapters of rank 32 where the model has none."""
    served, link = q.model.parameters * q.model.bytes, q.machine.link * q.assumed.sync
    adapters = 2 * replace(q.model, lora=q.model.lora or 32).trained
    return {
        "lora": adapters / link, "full": served / link, "delta": q.assumed.delta_start + served / q.assumed.delta_rate
    }  # fmt: skip


def _split(q: Question, stages: Callable[[dict[str, int]], dict[str, float]]) -> tuple[dict[str, int], bool]:
    """GPUs by stage: one unit after the other to the stage that takes longest; all for each where not all fit."""
    machine, model = q.machine, q.model
    unit = machine.pipeline * math.lcm(machine.tensor, machine.expert)
    held = model.trained * q.assumed.state + (2 * model.parameters if model.lora else 0.0)
    least = math.ceil(held / (machine.memory * q.assumed.usable) / unit) * unit
    if max(least, machine.replica) > machine.gpus:
        raise ConfigError(f"the trainer needs {least} GPUs and a replica {machine.replica}, there are {machine.gpus}")
    gpus, units = {"gradient": least}, {"gradient": unit, "prefill": machine.replica, "decode": machine.replica}
    gpus |= {"prefill": machine.replica, "decode": machine.replica}
    if sum(gpus.values()) > machine.gpus:
        whole = machine.gpus // machine.replica * machine.replica
        return {"gradient": machine.gpus // unit * unit, "prefill": 0, "decode": whole}, True
    while True:
        seconds = stages(gpus)
        longest = max(seconds, key=lambda stage: seconds[stage])
        if sum(gpus.values()) + units[longest] > machine.gpus:
            return gpus, False
        gpus[longest] += units[longest]


def report(q: Question, a: Answer) -> list[str]:
    """The answer in lines, and then every number that went in with its source."""
    out, cluster, requests = a.outcome, a.cluster, a.cluster.admission.limit
    used = sorted(out.utilisation.items(), key=lambda pair: -pair[1])
    lines = [
        f"a step      {out.pace:.3g} s, {q.pacing.batch * 3600 / out.pace:.3g} rollouts an hour; the busiest stage is "
        f"{used[0][0]}: " + ", ".join(f"{stage} {share:.0%}" for stage, share in used),
        "on paper    " + ", ".join(f"{stage} {seconds:.3g} s" for stage, seconds in a.stages.items())
        + f"; the longest rollout {a.longest:.3g} s, within {q.pacing.eta + 1} steps",
        f"{q.machine.gpus} GPUs".ljust(12) + ("in turns: " if cluster.shared else "")
        + ", ".join(f"{stage} {n}" for stage, n in a.gpus.items() if n),
        f"replicas    {cluster.replicas} of {q.machine.replica} GPUs, {requests} requests at once, each of which makes "
        f"a token in {cluster.speed.step(requests) * 1e3:.3g} ms, {cluster.cache:.3g} tokens of cache",
        f"sandboxes   {out.in_flight} open at once, {out.in_flight * q.load.memory:.4g} GiB, {cluster.tool} CPUs; "
        f"{cluster.verify} verifier workers",
        "weights     " + ", ".join(f"{n} {seconds:.3g} s" for n, seconds in a.sync.items()) + f"; taken: {q.publish}",
        f"age         {out.age_mean:.2f} by the mean, {out.age_max} at most, of {q.pacing.eta} allowed",
        f"caches      {out.migrations} migrations, {out.preemptions} preemptions, {out.expired} given up during tools, "
        f"{out.prefilled / out.steps:.3g} tokens read a step",
    ]  # fmt: skip
    if q.model.experts:
        lines.append(f"routes      {a.routes / 1e9:.3g} GB a step from engines to the trainer")
    lines += ["", f"Simulated: {STEPS} steps, the later half counted. What went in:"]
    lines += [f"  {name} = {value} ({source})" for name, value, source in _assumptions(q)]
    return [*lines, "Formulas:", *(f"  {line}" for line in FORMULAS)]


def _assumptions(q: Question) -> Iterator[tuple[str, object, str]]:
    tree, given = msgspec.to_builtins(q), q.sources
    for part in ("model", "machine", "load", "pacing", "admission", "assumed"):
        kind = type(getattr(q, part))
        standard = {f.name: f.default for f in msgspec.structs.fields(kind)}
        for name, value in tree[part].items():
            path, usual = f"{part}.{name}", value == standard[name]
            shown = f"{value:.6g}" if isinstance(value, float) else value
            yield path, shown, given.get(path) or (SOURCES.get(path, "assumed") if usual else "given")
