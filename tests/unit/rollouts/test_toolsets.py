"""Toolsets: schemas from signatures, strict arguments, errors as text, bounded output."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct

from temper.core.errors import ConfigError
from temper.core.task import ToolCall
from temper.rollouts.toolsets import ToolError, Toolset, bounded, signature, tool


class Account(Struct):
    balance: int = 10
    log: list[str] = []


class Bank(Toolset):
    State = Account

    @tool
    def pay(self, amount: int, to: Literal["ann", "bob"], note: str = "") -> dict[str, int]:
        """Pay somebody.

        Only the first line is shown.
        """
        if amount > self.state.balance:
            raise ToolError(f"only {self.state.balance} left")
        self.state.balance -= amount
        self.state.log.append(f"{to}:{note}")
        return {"left": self.state.balance}

    @tool
    async def close(self) -> None:
        """Close the account."""
        await asyncio.sleep(0)

    @tool
    def spam(self, size: Annotated[int, Meta(ge=0)]) -> str:
        """Print a lot."""
        return "x" * size

    def helper(self) -> None: ...


def call(toolset: Toolset, name: str, **arguments: Any) -> str:
    return asyncio.run(toolset.call(ToolCall(name, arguments)))


def test_signatures_become_json_schemas() -> None:
    pay, close, spam = Bank().specs()
    assert (pay.name, pay.description) == ("pay", "Pay somebody.")
    assert pay.parameters == {
        "type": "object",
        "properties": {
            "amount": {"type": "integer"},
            "to": {"enum": ["ann", "bob"]},
            "note": {"type": "string", "default": ""},
        },
        "required": ["amount", "to"],
        "additionalProperties": False,
    }
    assert close.parameters["properties"] == {}
    assert spam.parameters["properties"]["size"] == {"type": "integer", "minimum": 0}
    assert signature(pay) == "pay(amount: integer, to: 'ann' | 'bob', note: string = '')"


def test_plain_and_async_tools_change_the_state() -> None:
    bank = Bank()
    assert call(bank, "pay", amount=3, to="ann") == '{"left":7}'
    assert call(bank, "close") == "ok"
    assert bank.state == Account(7, ["ann:"])


def test_a_toolset_starts_from_the_state_it_is_given() -> None:
    assert call(Bank(Account(2)), "pay", amount=3, to="ann") == "error: only 2 left"


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("pya", {}, "error: no tool is called 'pya'; did you mean 'pay' or 'spam'?"),
        ("helper", {}, "error: no tool is called 'helper'"),
        (
            "pay",
            {"amount": 1},
            "error: expected pay(amount: integer, to: 'ann' | 'bob', note: string = ''): call missing",
        ),
        ("pay", {"amount": "1", "to": "ann"}, "Expected `int`, got `str` - at `$.amount`"),
        ("pay", {"amount": 1.5, "to": "ann"}, "Expected `int`, got `float`"),
        ("pay", {"amount": 1, "to": "eve"}, "Invalid enum value 'eve'"),
        ("pay", {"amount": 1, "to": "ann", "tip": 1}, "unknown field `tip`"),
        ("spam", {"size": -1}, "Expected `int` >= 0"),
    ],
)
def test_a_wrong_call_is_answered_with_what_was_expected(name: str, arguments: dict, why: str) -> None:
    bank = Bank()
    answer = call(bank, name, **arguments)
    assert answer.startswith("error: ")
    assert why in answer
    assert bank.state == Account()


def test_a_long_output_is_cut_to_its_beginning_and_end() -> None:
    assert bounded("é" * 10 + "END", 12) == "ééé\n[6 characters left out]\néEND"
    assert bounded("short", 12) == "short"


def test_a_huge_output_costs_no_second_copy() -> None:
    huge = "x" * (64 << 20)
    tracemalloc.start()
    cut = bounded(huge, 4096)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(cut) < 4200
    assert peak < 1 << 20


def test_a_tool_without_types_is_refused_by_name() -> None:
    class Loose(Toolset):
        @tool
        def go(self, where) -> None: ...

    with pytest.raises(ConfigError, match=r"Loose\.go: expected a named parameter with a type, got where"):
        Loose().specs()


def test_a_tool_that_would_hide_the_base_class_is_refused_by_name() -> None:
    class Hiding(Toolset):
        @tool
        def call(self) -> None: ...

    with pytest.raises(ConfigError, match=r"Hiding\.call: the base class uses this name"):
        Hiding().specs()
