"""Godot 4 scenes in text form (`.tscn`, format 3): read strictly, without the engine, in time linear in their length.

`read` gives the scene, `problems` what its parts refer to and is not there: resources, parents, ends of connections.
Scripts are never run. What scenes have to contain is in `checks.scenes`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_LONGEST, _DEEPEST = 4 << 20, 48
_MOST = 20  # problems that are told
_TOKEN = re.compile(
    r"""[ \t\r\n]*(?:;[^\n]*\n?[ \t\r\n]*)*
    (?:(?P<string>[&^@]?"(?:[^"\\]|\\.)*")
      |(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
      |(?P<word>[+-]?[A-Za-z_][\w/.]*)
      |(?P<mark>[\[\](){}:,=]))""",
    re.X | re.S,
)
_LINE = re.compile(r"[ \t\r\n]*(?:;[^\n]*\n?[ \t\r\n]*)*(?:(?P<section>\[)|(?P<key>[^\s=\"\[\]]+|\"[^\"\n]*\")[ \t]*=)")
_BLANK = re.compile(r"(?:[ \t\r\n]+|;[^\n]*)*")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}
_WORDS = {"true": True, "false": False, "null": None, "nil": None, "inf": float("inf"), "nan": float("nan")}
_WORDS |= {"-inf": -float("inf"), "inf_neg": -float("inf")}
_ORDER = {"gd_scene": 0, "ext_resource": 1, "sub_resource": 2, "node": 3, "connection": 4, "editable": 4}
_NEEDED = {
    "gd_scene": ("format",), "ext_resource": ("type", "path", "id"), "sub_resource": ("type", "id"), "node": ("name",),
    "connection": ("signal", "from", "to", "method"), "editable": ("path",),
}  # fmt: skip


class BrokenError(Exception):
    """The text is no scene; the message names the line."""


class Call(NamedTuple):
    """A constructed value such as `Vector2(1, 2)` or `ExtResource("1")`."""

    name: str
    args: list[Any]


class Section(NamedTuple):
    """`[kind key=value ...]` and the lines below it."""

    kind: str
    line: int
    attributes: dict[str, Any]
    properties: dict[str, Any]


class Node(NamedTuple):
    """`path` is from the root, which is "."; `source`: the file that an instance comes from, "" for others."""

    name: str
    path: str
    type: str
    source: str
    properties: dict[str, Any]


def read(content: bytes) -> list[Section]:
    """Sections in order. Raises BrokenError."""
    if len(content) > _LONGEST:
        raise BrokenError(f"longer than {_LONGEST} bytes")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BrokenError(f"no UTF-8 text: {error}") from None
    reader = _Reader(text)
    sections: list[Section] = []
    while not reader.ended():
        found = _LINE.match(text, reader.at)
        if found is None:
            raise reader.error("expected a section in brackets, or key = value")
        reader.at = found.end()
        if found["section"]:
            sections.append(Section(reader.word(), reader.line(), reader.attributes(), {}))
        elif not sections:
            raise reader.error("expected [gd_scene ...] first")
        else:
            sections[-1].properties[found["key"].strip('"')] = reader.value()
    return sections


def problems(sections: list[Section], project: frozenset[str] | None = None) -> list[str]:
    """What keeps the scene from loading. `project`: files that are there, relative to res:// (None: not known)."""
    return list(itertools.islice(_problems(sections, project), _MOST))


def nodes(sections: list[Section]) -> list[Node]:
    """The nodes of a scene without problems, root first."""
    sources = {s.attributes["id"]: s.attributes["path"] for s in sections if s.kind == "ext_resource"}
    found = []
    for section in sections:
        if section.kind == "node":
            given, instance = section.attributes, section.attributes.get("instance")
            source = sources.get(instance.args[0], "") if isinstance(instance, Call) else ""
            kind, source = str(given.get("type", "")), source.removeprefix("res://")
            found.append(Node(given["name"], _path(section), kind, source, section.properties))
    return found


def _problems(sections: list[Section], project: frozenset[str] | None) -> Iterator[str]:
    if not sections or sections[0].kind != "gd_scene" or sections[0].attributes.get("format") not in (3, 4):
        yield "expected [gd_scene format=3] first"
        return
    last = 0  # only the first may be [gd_scene]
    for section in sections:
        if _ORDER.get(section.kind, -1) < last:
            yield f"line {section.line}: [{section.kind[:30]}] is unknown, or out of its order"
        last = max(last, _ORDER.get(section.kind, 0), 1)
        for key in _NEEDED.get(section.kind, ()):
            if key not in section.attributes:
                yield f"line {section.line}: [{section.kind}] without {key}"
            elif key != "format" and not isinstance(section.attributes[key], str | int | Call):
                yield f"line {section.line}: {key} is no text"
    yield from _resources(sections, project)
    yield from _tree(sections)


def _resources(sections: list[Section], project: frozenset[str] | None) -> Iterator[str]:
    known: dict[str, set[Any]] = {"ExtResource": set(), "SubResource": set()}
    for section in sections:
        for name, id in _references((list(section.attributes.values()), list(section.properties.values()))):
            if id not in known[name]:
                yield f"line {section.line}: {name}({id!r:.40}) is not defined above"
        kind = {"ext_resource": "ExtResource", "sub_resource": "SubResource"}.get(section.kind)
        if kind:
            id, path = section.attributes.get("id"), section.attributes.get("path")
            if isinstance(id, str | int) and id in known[kind]:
                yield f"line {section.line}: the id {id!r:.40} is used twice"
            known[kind].add(id if isinstance(id, str | int) else None)
            if kind == "ExtResource" and project is not None and str(path).removeprefix("res://") not in project:
                yield f"line {section.line}: {path!r:.80} is not in the project"


def _references(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Call):
        if value.name in ("ExtResource", "SubResource"):
            yield value.name, value.args[0] if len(value.args) == 1 and isinstance(value.args[0], str | int) else None
        value = value.args
    for item in [*value.keys(), *value.values()] if isinstance(value, dict) else value:
        if isinstance(item, Call | dict | list):
            yield from _references(item)


def _tree(sections: list[Section]) -> Iterator[str]:
    paths: set[str] = set()
    instances: set[str] = set()  # whose children are in another file
    for section in sections:
        given, where = section.attributes, f"line {section.line}"
        if section.kind == "node" and isinstance(given.get("name"), str):
            path, parent = _path(section), given.get("parent")
            if re.search("[/:]", given["name"]) or given["name"].strip(".") == "":  # the editor's rule is stricter
                yield f"{where}: {given['name'][:40]!r} is no name of a node"
            if ("parent" in given) == (not paths):
                yield f"{where}: expected one root, first and without parent"
            elif parent is not None and str(parent) not in paths and not _inside(str(parent), instances):
                yield f"{where}: the parent {parent!r:.60} is not defined above"
            if path in paths:
                yield f"{where}: a second node {path[:60]!r}"
            if "instance" in given or "instance_placeholder" in given:
                instances.add(path)
            elif not isinstance(given.get("type"), str) and not _inside(path, instances):
                yield f"{where}: a node without type or instance"
            paths.add(path)
        for end in {"connection": ("from", "to"), "editable": ("path",)}.get(section.kind, ()):
            if str(given.get(end)) not in paths and not _inside(str(given.get(end)), instances):
                yield f"{where}: {end} names {given.get(end)!r:.60}, which is not there"
    if not paths:
        yield "a scene without nodes"


def _path(section: Section) -> str:
    parent, name = section.attributes.get("parent"), section.attributes["name"]
    return "." if parent is None else name if parent == "." else f"{parent}/{name}"


def _inside(path: str, instances: set[str]) -> bool:
    """Whether a path leads into an instance, whose own nodes are not known here."""
    parts = path.split("/")
    return "." in instances or any("/".join(parts[:n]) in instances for n in range(1, len(parts) + 1))


class _Reader:
    """A cursor over the text."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self._counted, self._lines = 0, 1

    def line(self) -> int:
        self._lines += self.text.count("\n", self._counted, self.at)
        self._counted = self.at
        return self._lines

    def error(self, what: str) -> BrokenError:
        return BrokenError(f"line {self.line()}: {what}")

    def ended(self) -> bool:
        """Whether nothing but blanks and comments is left; they are passed over."""
        if blank := _BLANK.match(self.text, self.at):
            self.at = blank.end()
        return self.at == len(self.text)

    def token(self) -> tuple[str, str]:
        found = _TOKEN.match(self.text, self.at)
        if found is None or found.lastgroup is None:
            raise self.error(f"expected a value, found {self.text[self.at : self.at + 20]!r}")
        self.at = found.end()
        return found.lastgroup, found[found.lastgroup]

    def peek(self, mark: str) -> bool:
        found = _TOKEN.match(self.text, self.at)
        if found is None or found["mark"] != mark:
            return False
        self.at = found.end()
        return True

    def word(self) -> str:
        kind, text = self.token()
        if kind != "word":
            raise self.error(f"expected a name, found {text[:20]!r}")
        return text

    def expect(self, mark: str) -> None:
        if not self.peek(mark):
            raise self.error(f"expected {mark!r}")

    def attributes(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not self.peek("]"):
            name = self.word()
            self.expect("=")
            found[name] = self.value()
        return found

    def value(self, depth: int = 0) -> Any:
        if depth > _DEEPEST:
            raise self.error(f"values are nested more than {_DEEPEST} deep")
        kind, text = self.token()
        if kind == "string":
            return _unescaped(text.lstrip("&^@")[1:-1])
        if kind == "number":
            return int(text) if re.fullmatch(r"[+-]?\d{1,18}", text) else float(text)
        if text == "[":
            return list(self.listed("]", self.item, depth))
        if text == "{":
            return dict(self.listed("}", self.pair, depth))
        if kind == "mark":
            raise self.error(f"expected a value, found {text!r}")
        if self.text.startswith("[", self.at):  # the types in Array[...] and Dictionary[..., ...]
            while not self.peek("]"):
                self.token()
        if self.text.startswith("(", self.at):
            self.at += 1
            return Call(text, list(self.listed(")", self.item, depth)))
        if text not in _WORDS:
            raise self.error(f"expected a value, found {text[:40]!r}")
        return _WORDS[text]

    def listed(self, end: str, read: Callable[[int], Iterator[Any]], depth: int) -> Iterator[Any]:
        """What `read` gives between commas, up to `end`."""
        while not self.peek(end):
            yield from read(depth + 1)
            if not self.peek(","):
                self.expect(end)
                return

    def item(self, depth: int) -> Iterator[Any]:
        start = self.at
        kind, text = self.token()
        if kind == "word" and text not in _WORDS and not self.text.startswith(("(", "["), self.at):
            yield text  # the class in Object(Class, ...)
        else:
            self.at = start
            yield self.value(depth)
        if self.peek(":"):
            yield self.value(depth)

    def pair(self, depth: int) -> Iterator[tuple[Any, Any]]:
        key = self.value(depth)
        self.expect(":")
        yield key if isinstance(key, str | int | float | None) else repr(key), self.value(depth)


def _unescaped(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        code = found[1]
        return chr(int(code[1:], 16)) if len(code) > 1 and int(code[1:], 16) < 0x110000 else _ESCAPES.get(code, code)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{6}|.)", one, text, flags=re.S) if "\\" in text else text
