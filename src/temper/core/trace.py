"""What happened: tokens by author, the episode as a tree of segments, exits, costs, events, verdicts, groups.

Token-level data are numpy arrays, one entry a token. A sample is a root-to-leaf path of a trace.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from msgspec import Struct, field

from temper.core.blame import TABLE, Blame, Fault, Status
from temper.core.task import Message

Cause = Literal["exited", "signalled", "deadline", "oom", "pids", "disk", "output", "policy", "backend-lost"]
Stop = Literal[
    "answer",  # a message without calls
    "done",  # the environment ended the episode
    "turns",
    "tokens",
    "context",  # the model's window is full
    "seconds",
    "malformed",
    "fault",
]


class Exit(Struct, frozen=True, kw_only=True):
    """How a command ended. `evidence` names the counter that proves the cause, e.g. `memory.events oom_kill=1`."""

    cause: Cause
    code: int = 0  # exit status, or the signal's number when signalled
    stdout: bytes = b""
    stderr: bytes = b""
    truncated: bool = False
    seconds: float = 0.0
    evidence: str = ""

    @property
    def ok(self) -> bool:
        return self.cause == "exited" and self.code == 0

    @property
    def text(self) -> str:
        """Both streams, as a person would see them."""
        return (self.stdout + self.stderr).decode("utf-8", "replace")


class Cost(Struct, frozen=True, kw_only=True):
    """Seconds by stage and tokens. Adds up with `+`."""

    queue: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    tool: float = 0.0
    verify: float = 0.0
    gradient: float = 0.0
    sync: float = 0.0
    tokens_in: int = 0
    tokens_out: int = 0

    @property
    def seconds(self) -> float:
        """Of all stages but the queue, where nothing is used."""
        return self.prefill + self.decode + self.tool + self.verify + self.gradient + self.sync

    def __add__(self, other: Cost) -> Cost:
        return Cost(**{f: getattr(self, f) + getattr(other, f) for f in self.__struct_fields__})


class Event(Struct, frozen=True, kw_only=True):
    """When (seconds since the run began), what, whom (trace, task, rank, ...), and why."""

    when: float
    what: str
    whom: str = ""
    why: str = ""
    data: dict[str, Any] = field(default_factory=dict)


class Segment(Struct, frozen=True, kw_only=True, eq=False):
    """A run of tokens by one author, and the messages that they encode.

    parent: index of the preceding segment in the trace, -1 for a root. ids: int32 (T,). trainable: bool (T,).
    logprobs: float32 (T,), the behaviour policy's, 0 where the token was not sampled. versions: int32 (T,), -1 there.
    `extras` are named columns of length T (routes, values, teacher top-k).
    Endpoints that show no tokens give empty arrays.
    """

    parent: int
    author: Literal["environment", "policy", "user"]
    messages: tuple[Message, ...]
    ids: np.ndarray
    trainable: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    policy: str = ""
    extras: dict[str, np.ndarray] = field(default_factory=dict)

    @staticmethod
    def given(messages: tuple[Message, ...], ids: Any, parent: int = -1) -> Segment:
        """A segment that nobody sampled: a prompt or an observation."""
        n = len(ids)
        return Segment(
            parent=parent,
            author="environment",
            messages=messages,
            ids=np.asarray(ids, np.int32),
            trainable=np.zeros(n, bool),
            logprobs=np.zeros(n, np.float32),
            versions=np.full(n, -1, np.int32),
        )

    def __len__(self) -> int:
        return len(self.ids)


class Trace(Struct, frozen=True, kw_only=True, eq=False):
    """One episode. `fault` is set when it could not be finished through no doing of the policy."""

    id: str
    task: str
    domain: str
    seed: int
    segments: tuple[Segment, ...] = ()
    stop: Stop = "answer"
    events: tuple[Event, ...] = ()
    cost: Cost = Cost()
    snapshots: tuple[str, ...] = ()
    fault: Fault | None = None

    @property
    def leaves(self) -> list[int]:
        parents = {s.parent for s in self.segments}
        return [i for i in range(len(self.segments)) if i not in parents]

    def path(self, leaf: int = -1) -> list[Segment]:
        """Segments from the root to `leaf`; -1 is the last segment written."""
        at = leaf if leaf >= 0 else len(self.segments) - 1
        found: list[Segment] = []
        while at >= 0:
            found.append(self.segments[at])
            at = self.segments[at].parent
        return found[::-1]

    def messages(self, leaf: int = -1) -> tuple[Message, ...]:
        return tuple(m for s in self.path(leaf) for m in s.messages)

    @property
    def answer(self) -> str:
        """Content of the last assistant message, "" when there is none."""
        for message in reversed(self.messages()):
            if message.role == "assistant":
                return message.content
        return ""

    @property
    def oldest_version(self) -> int:
        """The oldest policy version that sampled a token of this trace; -1 when none was sampled."""
        found = [int(s.versions[s.versions >= 0].min()) for s in self.segments if (s.versions >= 0).any()]
        return min(found, default=-1)


class Evidence(Struct, frozen=True):
    """Why a verdict is as it is, in words that may be handed back as feedback. `span`: offsets into the answer."""

    text: str
    span: tuple[int, int] | None = None


class Verdict(Struct, frozen=True, kw_only=True):
    """A grade, keyed by (trace, leaf, verifier hash): re-grading adds a record and never rewrites one.

    score: [0, 1], for people. rewards: by segment index, any real number, for training; empty means that the score
    is the reward of the whole path.
    """

    trace: str
    verifier: str
    status: Status
    blame: Blame
    score: float = 0.0
    leaf: int = -1
    rewards: dict[int, float] = field(default_factory=dict)
    components: dict[str, float] = field(default_factory=dict)
    evidence: tuple[Evidence, ...] = ()
    why: str = "graded"  # the word of the blame table

    @property
    def masked(self) -> bool:
        return self.status != "graded"

    @property
    def reward(self) -> float:
        return sum(self.rewards.values()) if self.rewards else self.score

    @staticmethod
    def ruled(what: str, trace: str, verifier: str, detail: str = "", **more: Any) -> Verdict:
        """A verdict that the blame table gives for `what`; a score only ever comes with `graded`."""
        ruling = TABLE[what]
        if ruling.training != "score":
            more["score"] = 0.0
        evidence = more.pop("evidence", ()) or ((Evidence(detail),) if detail else ())
        return Verdict(
            trace=trace, verifier=verifier, status=ruling.status, blame=ruling.blame, why=what,
            evidence=evidence, **more,
        )  # fmt: skip


class Sample(Struct, frozen=True, eq=False):
    """A path of a trace with its verdict: what is trained on."""

    trace: Trace
    verdict: Verdict
    leaf: int = -1


class Group(Struct, frozen=True, eq=False):
    """Samples that are compared with each other: those of one task from one fork point (-1: the start)."""

    task: str
    domain: str
    samples: tuple[Sample, ...]
    fork: int = -1


class MicroBatch(Struct, frozen=True, kw_only=True, eq=False):
    """Token trees, flattened, and what is predicted from them. T tokens in N segments, no padding; K predictions.

    ids: int64 (T,). positions: int64 (T,), going on where the parent ends. lengths: int64 (N,), summing to T. parents:
    int64 (N,), the index of the segment before, -1 for a root; a token sees its own segment causally and all ancestors
    whole. at: int64 (K,), the token from whose hidden state `targets` int64 (K,) are predicted; streams: float32 (K,)
    each, what the losses need of a prediction.

    below: batches that continue this one, for a tree too large for one batch. This one is then a single segment, which
    every root below has for its parent; `at` -1 below is its last token.
    """

    ids: np.ndarray
    positions: np.ndarray
    lengths: np.ndarray
    parents: np.ndarray
    at: np.ndarray
    targets: np.ndarray
    streams: dict[str, np.ndarray]
    below: tuple[MicroBatch, ...] = ()
