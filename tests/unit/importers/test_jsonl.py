"""Chat lines become tasks with a private answer; what has no place is counted; errors name file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from temper.core import registry
from temper.core.errors import ConfigError, MissingError
from temper.core.task import Message, ToolCall, ToolSpec

SCHEMA = {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}
# the tool call of OpenAI's function calling guide, in the form of the chat completions API
WEATHER = {
    "id": "w",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is the weather in Paris?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"location": "Paris"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "14"},
        {"role": "assistant", "content": "14 degrees"},
    ],
    "tools": [{"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": SCHEMA}}],
}


def read(path: Path, *rows: object, **settings: str):
    path = path / "data.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), "utf-8")
    module, config = registry.configure("importers", {"kind": "jsonl", **settings})
    importer = module.create(config)
    return list(importer.tasks(str(path))), importer.loss()


def test_a_prompt_and_its_answer(tmp_path):
    (task,), loss = read(tmp_path, {"prompt": "6 * 7?", "answer": 42}, domain="arithmetic", licence="MIT")
    assert task.messages == (Message("user", "6 * 7?"),)
    assert task.reference == {"answer": "42"}
    assert (task.domain, task.provenance.licence) == ("arithmetic", "MIT")
    assert loss == []


def test_a_conversation_with_tools_ends_before_its_answer(tmp_path):
    (task,), loss = read(tmp_path, WEATHER)
    assert task.id == "w"
    assert task.tools == (ToolSpec("get_weather", "d", SCHEMA),)
    assert task.messages[2] == Message("assistant", "", (ToolCall("get_weather", {"location": "Paris"}, "call_1"),))
    assert task.messages[3:] == (Message("tool", "14", name="get_weather"),)
    assert task.reference == {"answer": "14 degrees"}
    assert loss == []


def test_the_answer_is_never_in_the_prompt(tmp_path):
    said = [{"role": "user", "content": "6 * 7?"}, {"role": "assistant", "content": "six sevens are 42"}]
    (task,), loss = read(tmp_path, {"messages": said, "answer": "42"})
    assert task.messages == (Message("user", "6 * 7?"),)
    assert task.reference == {"answer": "42"}
    assert loss == ["assistant message beside an answer (1 times)"]


def test_what_has_no_place_is_counted(tmp_path):
    row = {"messages": [{"role": "user", "content": "?", "weight": 1}], "answer": "a", "source": "x", "empty": []}
    tasks, loss = read(tmp_path, row, row, "", {"prompt": "!", "answer": "b", "source": "y"})
    assert len(tasks) == 2
    assert sorted(loss) == ["messages.weight (2 times)", "repeated lines, left out (1 times)", "source (3 times)"]


def test_a_line_keeps_its_name_wherever_it_stands(tmp_path):
    one, two = {"prompt": "1", "answer": "1"}, {"prompt": "2", "answer": "2"}
    assert [t.id for t in read(tmp_path, one, two)[0]] == [t.id for t in read(tmp_path, two, one)[0]][::-1]


def test_an_empty_name_is_none(tmp_path):
    (task,), _ = read(tmp_path, {"prompt": "1", "answer": "1", "id": ""})
    assert task.id == read(tmp_path, {"prompt": "1", "answer": "1"})[0][0].id


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ('{"prompt": ', "expected a JSON object"),
        ('{"prompt": "\\ud800", "answer": "a"}', "expected a JSON object"),
        ([1], "Expected `object`, got `array`"),
        ('{"prompt": ' + "[" * 100_000, "expected a JSON object: .*recursion"),
        ({"prompt": "?", "messages": [], "answer": "a"}, "either 'messages' or 'prompt'"),
        ({"answer": "a"}, "either 'messages' or 'prompt'"),
        ({"prompt": "?"}, "an 'answer' or a last assistant message"),
        ({"prompt": " ", "answer": "a"}, "expected a user message"),
        ({"messages": [{"role": "user", "content": "?"}]}, "an 'answer' or a last assistant message"),
        ({"messages": [{"role": "developer", "content": "?"}], "answer": "a"}, r"\$\.messages\[0\]\.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}], "answer": "a"}, r"messages\[0\]\.content"),
        ({"prompt": "?", "answer": True}, r"\$\.answer"),
        ({"id": "first", "prompt": "?", "answer": "a"}, "'first' was given to line 1"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}]},
            "arguments of a call of 'f'",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"function": {"name": "f", "arguments": '{"a":' + "[" * 9999}}],
                    }
                ]
            },
            "arguments of a call of 'f': .*recursion",
        ),
    ],
)
def test_an_error_names_file_and_line(tmp_path, row, why):
    with pytest.raises(ConfigError, match=rf"data\.jsonl:2: .*{why}"):
        read(tmp_path, {"id": "first", "prompt": "?", "answer": "a"}, row)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(MissingError, match="no-such"):
        next(registry.find("importers", "jsonl").create().tasks(str(tmp_path / "no-such")))
