"""OpenAIChat against a real HTTP server on the loopback; wire forms as in OpenAI's API reference, chat completions."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from temper.core.blame import FaultError
from temper.core.protocols import Reply, SamplingParams
from temper.core.task import Message, ToolCall, ToolSpec
from temper.core.trace import Segment
from temper.engines.openai import Config, create

TOOLS = (ToolSpec("add", "Add two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}}),)


class Endpoint(ThreadingHTTPServer):
    """Answers the requests in turn with `answers` (status, body) and keeps what was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[tuple[int, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.hang = threading.Event()


class Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.asked.append({"path": self.path, "key": self.headers["authorization"], **json.loads(body)})
        status, answer = self.server.answers.pop(0)
        if status == 0:
            self.server.hang.wait(5)
            return
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    server = Endpoint()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.hang.set()
    server.shutdown()
    thread.join()
    server.server_close()


def completion(content: str | None, finish: str = "stop", **more: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": content, **more}, "finish_reason": finish}]}


def ask(endpoint: Endpoint, *messages: Message, history: tuple[Segment, ...] = (), **settings: Any) -> Reply:
    async def scenario() -> Reply:
        url = f"http://127.0.0.1:{endpoint.server_port}/v1"
        chat = create(Config(base_url=url, model="m", backoff=0.001, **settings))
        try:
            return await chat.reply(messages, TOOLS, SamplingParams(max_tokens=7, seed=3, stop=("\n",)), history)
        finally:
            await chat.close()

    return asyncio.run(scenario())


def test_an_answer_comes_with_segments_that_show_no_tokens(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "secret")
    endpoint.answers = [(200, completion("5"))]
    question = Message("user", "2 + 3?")
    reply = ask(endpoint, question, api_key_env="SOME_KEY")
    assert reply.message == Message("assistant", "5")
    assert [(s.author, s.parent, s.messages, len(s)) for s in reply.segments] == [
        ("environment", -1, (question,), 0),
        ("policy", 0, (reply.message,), 0),
    ]
    asked = endpoint.asked[0]
    assert (asked["path"], asked["key"], asked["model"]) == ("/v1/chat/completions", "Bearer secret", "m")
    assert (asked["max_tokens"], asked["seed"], asked["stop"]) == (7, 3, ["\n"])
    assert asked["tools"][0]["function"]["name"] == "add"


def test_tool_calls_and_their_results_travel_both_ways(endpoint: Endpoint) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    endpoint.answers = [(200, completion(None, "tool_calls", tool_calls=[call])), (200, completion("2"))]
    first = ask(endpoint, Message("user", "add"))
    assert first.message == Message("assistant", "", (ToolCall("add", {"a": 2}, "c1"),))
    messages = (Message("user", "add"), first.message, Message("tool", "2", name="add"))
    second = ask(endpoint, *messages, history=first.segments)
    assert endpoint.asked[1]["messages"][1]["tool_calls"] == [call]
    assert endpoint.asked[1]["messages"][2] == {"role": "tool", "content": "2", "tool_call_id": "c1"}
    assert [s.parent for s in second.segments] == [1, 2]
    assert second.segments[0].messages == messages[2:]


def test_arguments_that_are_no_json_object_are_malformed(endpoint: Endpoint) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "[1"}}
    endpoint.answers = [(200, completion("", "tool_calls", tool_calls=[call]))]
    assert "expected a JSON object as arguments of add" in ask(endpoint, Message("user", "?")).message.malformed


def test_what_may_pass_is_tried_again(endpoint: Endpoint) -> None:
    endpoint.answers = [(429, {}), (503, b"busy"), (200, completion("at last", "length"))]
    reply = ask(endpoint, Message("user", "?"))
    assert (reply.message.content, reply.stop, len(endpoint.asked)) == ("at last", "length", 3)


@pytest.mark.parametrize(
    ("answers", "requests", "why"),
    [
        ([(500, {})] * 3, 3, "3 attempts failed, the last with status 500"),
        ([(401, {"error": "no key"})], 1, "status 401.*no key"),
        ([(200, {"choices": []})], 1, "expected a chat completion"),
        ([(200, b"<html>")], 1, "expected JSON, got '<html>'"),
        ([(0, None)] * 3, 3, "3 attempts failed, the last with .*Timeout"),
    ],
)
def test_an_endpoint_that_fails_is_a_lost_engine(endpoint: Endpoint, answers: list, requests: int, why: str) -> None:
    endpoint.answers = answers
    with pytest.raises(FaultError, match=why) as caught:
        ask(endpoint, Message("user", "?"), retries=2, seconds=0.3)
    assert caught.value.fault.what == "engine-lost"
    assert len(endpoint.asked) == requests


def test_nobody_listens(endpoint: Endpoint) -> None:
    endpoint.server_port = 1
    with pytest.raises(FaultError, match="2 attempts failed, the last with ConnectError"):
        ask(endpoint, Message("user", "?"), retries=1)


def test_a_conversation_beyond_the_window_is_the_policys_affair(endpoint: Endpoint) -> None:
    endpoint.answers = [(400, {"error": {"code": "context_length_exceeded"}})]
    assert ask(endpoint, Message("user", "?")).stop == "context"
