"""Several endpoints of one model for real: HTTP servers in processes of their own, one of which is killed."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from temper.cli.why import why
from temper.core.blame import FaultError
from temper.core.errors import ConfigError
from temper.core.protocols import SamplingParams
from temper.core.task import Message
from temper.engines import openai
from temper.runs.endpoints import Conversation, Endpoints
from temper.runs.farm import Config
from temper.runs.recipe import DomainEntry, Model, Recipe
from temper.runs.workshop import opened
from temper.scheduling.placement import worker_of
from temper.store.run import RunDirectory

sys.path.insert(0, str(Path(__file__).parent))  # workers get this process's path
from worlds.errands import task as errand


class Served:
    """Endpoints "a" and "b", which answer once `go` is there."""

    def __init__(self, folder):
        self.folder, self.go, self.processes, self.ports = folder, folder / "go", {}, {"a": 0, "b": 0}
        for name in self.ports:
            self.start(name)

    def start(self, name):
        argv = [
            sys.executable,
            str(Path(__file__).parent / "worlds" / "endpoint.py"),
            str(self.folder),
            name,
            str(self.ports[name]),
        ]
        self.processes[name] = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        self.ports[name] = int(self.processes[name].stdout.readline())

    def kill(self, name):
        self.processes[name].kill()
        self.processes[name].wait()
        self.processes[name].stdout.close()

    def url(self, name):
        return f"http://127.0.0.1:{self.ports[name]}/v1"

    def asked(self, name):
        log = self.folder / name
        return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.fixture
def served(tmp_path):
    found = Served(tmp_path)
    yield found
    for name, process in found.processes.items():
        if process.returncode is None:
            found.kill(name)


def talking(served, at_once, cool, play, path=""):
    """What `play(conversation)` gives, where `conversation(name)` begins one, and the events of all of them."""
    events = []

    async def scenario():
        chats = {
            url: openai.create(openai.Config(base_url=url + path, model="m", retries=0))
            for url in map(served.url, served.ports)
        }
        endpoints = Endpoints(chats, at_once, cool)
        found = await play(lambda name: Conversation(endpoints, name, events, time.monotonic))
        for chat in chats.values():
            await chat.close()
        return found

    return asyncio.run(scenario()), [(event.what, event.whom) for event in events], [event.why for event in events]


def turn(conversation, *said):
    messages = (Message("system", "be brief"), *(Message("user", text) for text in said))
    return conversation.reply(messages, (), SamplingParams())


async def until(condition):
    while not condition():
        await asyncio.sleep(0.01)


def test_rollouts_of_a_killed_endpoint_end_well_on_the_other_and_say_so(served, tmp_path, capsys):
    model = {"kind": "openai", "base_url": [served.url("a"), served.url("b")], "model": "m", "backoff": 0.01}
    recipe = Recipe(
        name="errands", model=Model(base="tiny:"), verifier_workers=1, domains=(DomainEntry(kind="worlds.errands"),),
        stages=(), workers=Config(executor="inline", count=1, at_once=8, model=model),
    )  # fmt: skip

    async def play(run):
        async with opened(recipe, run, []) as shop:
            playing = [shop.attempt(errand(n), shop.model, SamplingParams(), f"t-{n}") for n in range(8)]
            gathered = asyncio.gather(*playing)
            await until(lambda: served.asked("a") >= 3 and served.asked("a") + served.asked("b") >= 8)
            served.kill("a")
            served.go.touch()
            return await gathered

    with RunDirectory.create(tmp_path / "run", recipe) as run:
        played = asyncio.run(play(run))
    assert [(trace.fault, verdict.score) for trace, verdict in played] == [(None, 1.0)] * 8
    assert {worker_of(trace) for trace, _ in played} == {"worker-1"}
    told = [event.what for event in RunDirectory.view(tmp_path / "run").events]
    assert told.count("moved") >= served.asked("a") >= 3
    assert told.count("opened") == 1
    first = next(t.id for t, _ in played if any(e.what == "moved" for e in t.events))
    why(tmp_path / "run", first)
    story = capsys.readouterr().out
    assert f"on {served.url('a')}" in story
    assert "away from engines.openai" in story
    assert f"on {served.url('b')}" in story


def test_conversations_go_where_their_prompt_is_known_and_stay_until_it_is_fuller_than_the_tolerance(served):
    """A tenth of twenty is two: the first three of one prompt share an endpoint, and the fourth has the other."""

    async def play(conversation):
        talks = [conversation(f"t{n}") for n in range(4)]
        turns = [asyncio.ensure_future(turn(talk, f"question {n}")) for n, talk in enumerate(talks)]
        await until(lambda: served.asked("a") + served.asked("b") == 4)
        asked = served.asked("a"), served.asked("b")
        served.go.touch()
        await asyncio.gather(*turns)
        for talk in talks:
            await turn(talk, "question", "and then?")
        return asked, (served.asked("a"), served.asked("b"))

    found, told, reasons = talking(served, 20, 15.0, play)
    assert found == ((3, 1), (6, 2))
    assert told == [("placed", f"t{n}") for n in range(4)], "the second turns stay where they were"
    assert [text.split(": ", 1)[1].split(";")[0] for text in reasons[1:3]] == ["its prefix is there"] * 2


def test_an_endpoint_that_comes_back_is_tried_by_one_request_and_then_used(served):
    async def play(conversation):
        served.go.touch()
        for name in served.ports:
            served.kill(name)
        with pytest.raises(FaultError, match="ConnectError") as caught:
            await turn(conversation("lost"), "?")
        served.start("a")
        first = conversation("first")
        await turn(first, "?")
        first.close()
        await asyncio.gather(*(turn(conversation(f"t{n}"), "?") for n in range(3)))
        return caught.value.fault.what

    what, told, _ = talking(served, 4, 0.05, play)
    assert what == "engine-lost"
    lost = [kind for kind, whom in told if whom == "lost" and kind != "placed"]
    assert (lost[0], lost[-1], lost.count("opened"), "moved" in lost) == ("opened", "opened", 2, True)
    assert ("closed", "first") in told
    assert served.asked("a") == 4


def test_what_another_endpoint_would_refuse_as_well_is_not_moved(served):
    """A path that is not there is answered with 404: the fault is told, and both stay in use."""

    async def play(conversation):
        with pytest.raises(FaultError, match="404"):
            await turn(conversation("t"), "?")

    _, told, _ = talking(served, 4, 15.0, play, "/nowhere")
    assert told == [("placed", "t")]


def test_several_addresses_are_refused_where_one_is_meant():
    with pytest.raises(ConfigError, match=r"one base_url here, got 2.*workers\.model"):
        openai.create(openai.Config(base_url=("http://a", "http://b"), model="m"))
