"""A `ChatModel` over an OpenAI-compatible endpoint: judges, teachers, simulated users, evaluated models.

Endpoints show messages and no tokens, so that the segments carry empty arrays and cannot be trained on. Waits are
bounded, what may pass (429, 5xx, a lost connection) is tried again with jittered back-off, and what stays is
`Unreachable`; what will not is FaultError("engine-lost") too. Needs the extra `temper-rl[serve]`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from temper.core.blame import FaultError
from temper.core.errors import ConfigError, MissingError
from temper.core.protocols import Reply, SamplingParams
from temper.core.task import Message, ToolCall, ToolSpec
from temper.core.trace import Segment
from temper.engines.chat import added_since

MAX_WAIT = 30.0  # seconds between two attempts, whatever the endpoint asks for


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`api_key_env` names the variable of the environment that holds the key; it may be unset for local endpoints."""

    base_url: str | Annotated[tuple[str, ...], Meta(min_length=1)]  # http://127.0.0.1:8000/v1; for workers also several
    model: str
    api_key_env: str = "OPENAI_API_KEY"
    seconds: float = 120.0  # of one attempt
    retries: int = 5
    backoff: float = 1.0  # seconds before the first retry, doubled for each further one


class Unreachable(FaultError):
    """An endpoint that gives no answer, where another one might."""


def create(config: Config) -> OpenAIChat:
    return OpenAIChat(config)


class OpenAIChat:
    """`core.protocols.ChatModel`; close it with `close()`. Raises MissingError without httpx."""

    def __init__(self, config: Config) -> None:
        if not isinstance(config.base_url, str):
            raise ConfigError(f"expected one base_url here, got {len(config.base_url)}: give several to workers.model")
        try:
            import httpx
        except ModuleNotFoundError:
            raise MissingError("OpenAI-compatible endpoints need httpx: pip install 'temper-rl[serve]'") from None
        self.name = config.model
        self._config = config
        self._failures = httpx.HTTPError
        key = os.environ.get(config.api_key_env, "")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.AsyncClient(base_url=config.base_url, headers=headers, timeout=config.seconds)
        self._jitter = random.Random()

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        params: SamplingParams,
        history: Sequence[Segment] = (),
    ) -> Reply:
        status, answer = await self._post(_request(self.name, messages, tools, params))
        added = added_since(messages, history)
        if added is None:
            history, added = (), tuple(messages)
        given = Segment.given(added, (), parent=len(history) - 1)
        if status != 200:
            if status == 400 and re.search(r"context[ _]length", json.dumps(answer)):
                return Reply(Message("assistant"), (given,), "context")
            raise self._lost(f"status {status}: {json.dumps(answer)[:500]}")
        try:
            choice = answer["choices"][0]
            message = _message(choice["message"])
            stop = "length" if choice.get("finish_reason") == "length" else "stop"
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise self._lost(f"expected a chat completion, got {json.dumps(answer)[:500]} ({error!r})") from None
        said = replace(given, parent=len(history), author="policy", messages=(message,), policy=self.name)
        return Reply(message, (given, said), stop)

    async def close(self) -> None:
        await self._client.aclose()

    async def _post(self, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and decoded body. Tries again while that may help."""
        why = ""
        for attempt in range(self._config.retries + 1):
            asked = 0.0
            try:
                async with asyncio.timeout(self._config.seconds):  # httpx bounds single reads, not the whole
                    response = await self._client.post("chat/completions", json=body)
            except (self._failures, TimeoutError) as error:
                why = f"{type(error).__name__}: {error}"
            else:
                if response.status_code != 429 and response.status_code < 500:
                    try:
                        return response.status_code, response.json()
                    except ValueError:
                        raise self._lost(f"expected JSON, got {response.text[:500]!r}") from None
                why = f"status {response.status_code}: {response.text[:500]}"
                after = response.headers.get("retry-after", "")
                asked = float(after) if after.isdecimal() else 0.0
            if attempt < self._config.retries:
                wait = self._config.backoff * 2**attempt * self._jitter.uniform(0.5, 1.5)
                await asyncio.sleep(min(max(asked, wait), MAX_WAIT))
        raise self._lost(f"{self._config.retries + 1} attempts failed, the last with {why}", Unreachable)

    def _lost(self, detail: str, kind: type[FaultError] = FaultError) -> FaultError:
        return kind("engine-lost", f"engines.openai {self._config.base_url}", detail)


def _request(
    model: str, messages: Sequence[Message], tools: Sequence[ToolSpec], params: SamplingParams
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "messages": _wire(messages),
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "seed": params.seed,
    }
    if params.top_k:
        body["top_k"] = params.top_k  # beyond OpenAI's own API; vLLM and SGLang take it
    if params.stop:
        body["stop"] = list(params.stop)
    if tools:
        body["tools"] = [{"type": "function", "function": asdict(spec)} for spec in tools]
    return body


def _wire(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages in OpenAI's form. Tool results belong to the calls before them, in order."""
    wire: list[dict[str, Any]] = []
    pending: list[str] = []
    for n, message in enumerate(messages):
        if message.role == "tool" and pending:
            wire.append({"role": "tool", "content": message.content, "tool_call_id": pending.pop(0)})
            continue
        # The answer to a call that did not parse has no call to refer to.
        entry: dict[str, Any] = {"role": "user" if message.role == "tool" else message.role, "content": message.content}
        if message.calls:
            pending = [call.id or f"call_{n}_{k}" for k, call in enumerate(message.calls)]
            entry["tool_calls"] = [
                {
                    "id": id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
                }
                for id, call in zip(pending, message.calls, strict=True)
            ]
        wire.append(entry)
    return wire


def _message(answer: dict[str, Any]) -> Message:
    calls: list[ToolCall] = []
    malformed = ""
    for call in answer.get("tool_calls") or ():
        function = call["function"]
        try:
            arguments = msgspec.json.decode(function.get("arguments") or "{}", type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            malformed = f"expected a JSON object as arguments of {function['name']}: {error}"
            continue
        calls.append(ToolCall(function["name"], arguments, call.get("id") or ""))
    content = answer.get("content") or ""
    return Message("assistant", content, () if malformed else tuple(calls), malformed=malformed)
