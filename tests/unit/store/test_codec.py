"""Records survive the way to bytes and back, and bytes that are no record are refused."""

import pickle

import msgspec
import numpy as np
import pytest

from temper.core.blame import Fault
from temper.core.task import Message, ToolCall
from temper.core.trace import Cost, Event, Evidence, MicroBatch, Segment, Trace, Verdict
from temper.store.codec import decode, encode


def a_trace(name: str = "t1", tokens: int = 5) -> Trace:
    prompt = Segment.given((Message("user", "2 + 2?"),), range(tokens))
    answer = Segment(
        parent=0,
        author="policy",
        messages=(Message("assistant", "4", calls=(ToolCall("add", {"a": 2, "b": [1, None]}, "c1"),)),),
        ids=np.array([7, 8], np.int32),
        trainable=np.array([True, False]),
        logprobs=np.array([-0.5, -1.25], np.float32),
        versions=np.array([3, 3], np.int32),
        extras={"routes": np.zeros((2, 4), np.uint8)},
    )
    event = Event(when=1.5, what="tool", data={"bytes": 3, "loss": np.float32(0.5)})
    return Trace(
        id=name, task="k", domain="math", seed=1, segments=(prompt, answer), events=(event,), cost=Cost(decode=0.1),
        fault=Fault("network", "here"),
    )  # fmt: skip


def test_a_trace_comes_back_with_its_arrays_types_and_shapes():
    back = decode(encode(a_trace()), Trace)
    answer = back.segments[1]
    assert (answer.ids.dtype, answer.trainable.dtype, answer.logprobs.dtype) == (np.int32, bool, np.float32)
    assert answer.logprobs.tolist() == [-0.5, -1.25]
    assert answer.extras["routes"].shape == (2, 4)
    assert answer.ids.flags.writeable
    assert back.messages() == a_trace().messages()
    assert (back.fault, back.cost) == (Fault("network", "here"), Cost(decode=0.1))
    assert back.events[0].data == {"bytes": 3, "loss": 0.5}
    assert encode(back) == encode(a_trace())


def test_a_verdict_with_rewards_by_segment_comes_back_equal():
    verdict = Verdict(
        trace="t",
        verifier="v",
        status="graded",
        blame="policy",
        rewards={1: -0.5, 3: 2.0},
        evidence=(Evidence("no", (0, 2)),),
    )
    assert decode(encode(verdict), Verdict) == verdict


def test_an_empty_array_and_a_micro_batch_come_back():
    batch = MicroBatch(
        ids=np.arange(4),
        positions=np.arange(4),
        lengths=np.array([4]),
        parents=np.array([-1]),
        at=np.array([0, 1]),
        targets=np.array([1, 2]),
        streams={"w": np.ones(0, np.float32)},
    )
    back = decode(encode(batch), MicroBatch)
    assert back.ids.tolist() == [0, 1, 2, 3]
    assert back.streams["w"].shape == (0,)


@pytest.mark.parametrize(
    "array",
    [
        ("|O", (1,), pickle.dumps("x")),
        ("<M8[s]", (1,), b"12345678"),
        ("no such type", (1,), b""),
        ("<i4", (3,), b"12345678"),
        ("<i4", (-1, -2), b"12345678"),
        ("<i4", (1 << 62, 4), b""),
        "text",
    ],
)
def test_an_array_that_is_not_plain_numbers_is_refused_with_its_place(array):
    tree = msgspec.msgpack.decode(encode(a_trace()))
    tree["segments"][0]["ids"] = array
    with pytest.raises(msgspec.ValidationError, match=r"at `\$\.segments\[0\]\.ids`"):
        decode(msgspec.msgpack.encode(tree), Trace)


def test_objects_are_never_written():
    for value in (np.array([object()]), object(), {1, 2, object()}):
        with pytest.raises(TypeError):
            encode(Event(when=0.0, what="x", data={"value": value}))
