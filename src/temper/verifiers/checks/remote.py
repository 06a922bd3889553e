"""Runs inside a sandbox: tests in one process, the delivered modules in another. Standard library only.

Started behind `checks.values`, `checks.apart` and `checks.candidate`, with a job {"nonce", "modules": [dotted names],
"tests": {path: source}, "lines": {path: [numbers]}}. Reports {"nonce", "outcomes": {id: [ended, text]}, "covered":
[executed, asked]}, with the ids that pytest would give and `ended` one of passed, failed, skipped.

The tests see stand-ins: plain values cross by type and value, any other object is a `Remote` whose methods run over
there, and which is never equal to plain data, nor more or less. So an object that equals everything, an early exit, a
patched builtin or a planted conftest change nothing here. What such an object says of itself (`in`, its truth, its
methods' values) is its own word. The tests' process cannot be read or traced by the other one, which was forked before
the tests were known. Mutations of lists, dicts and sets that were passed as arguments come back; identity does not.

Messages are lines of JSON. To the candidate: ["get", module, name], ["call", target, method, args, kwargs], ["lines",
{path: numbers}] and ["covered"]. Back: ["value", form] or ["raised", names, text], and before that any number of
["changed", argument, form] and ["callback", function, args, kwargs], which is answered in the same way.
"""

from __future__ import annotations

import builtins
import json
import sys
import traceback
import types
from typing import Any

from temper.verifiers.checks.apart import apart, raised, report, unreadable  # in the sandbox: the sources before this
from temper.verifiers.checks.candidate import MUTABLE, Candidate, Side

_LONGEST = 1 << 22  # bytes of one message


def main() -> None:
    unreadable()
    link = Link(*apart(lambda receive, send: Candidate(receive, send).serve())[1:])
    job = json.load(sys.stdin)
    for name in sorted(job["modules"]):
        parent, _, last = name.rpartition(".")
        sys.modules[name] = Module(name, link)
        if parent:
            setattr(sys.modules.setdefault(parent, Module(parent, link)), last, sys.modules[name])
    outcomes: dict[str, list[str]] = {}
    if job["lines"]:
        link.ask("lines", job["lines"])
    for path, source in job["tests"].items():
        outcomes |= ran(path, source)
    covered = [len(link.ask("covered") or ()), sum(map(len, job["lines"].values()))] if job["lines"] else [0, 0]
    report(nonce=job["nonce"], outcomes=outcomes, covered=covered)


def ran(path: str, source: str) -> dict[str, list[str]]:
    """The outcome of every test function of one file; of the file itself when it cannot be imported."""
    module = types.ModuleType(path.rpartition("/")[2].removesuffix(".py"))
    module.__file__ = path
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, path, "exec"), module.__dict__)
    except BaseException as error:
        return {path: ["failed", explained(error, path, source)]}
    tests = [(name, value) for name, value in vars(module).items() if name.startswith("test") and callable(value)]
    for name, kind in list(vars(module).items()):
        if name.startswith("Test") and isinstance(kind, type):
            found = [method for method in vars(kind) if method.startswith("test")]
            tests += [(f"{name}::{method}", lambda k=kind, m=method: getattr(k(), m)()) for method in found]
    return {f"{path}::{name}": tried(test, path, source) for name, test in tests}


def tried(test: Any, path: str, source: str) -> list[str]:
    try:
        test()
    except BaseException as error:
        skip = getattr(sys.modules.get("unittest.case"), "SkipTest", ())  # no stand-in of the candidate's
        return ["skipped" if isinstance(error, skip) else "failed", explained(error, path, source)]
    return ["passed", ""]


def explained(error: BaseException, path: str, source: str) -> str:
    """The line of the test that failed, and the error."""
    numbers = [frame.lineno or 0 for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    line = source.split("\n")[numbers[-1] - 1].strip() if numbers else ""
    return f"{line}: {type(error).__name__}: {str(error)[:200]}"


class Gone(BaseException):
    """The program ended, or answered out of form: nothing that a test may expect and catch."""


class Link(Side):
    """The tests' side: one request, and callbacks until its reply."""

    def __init__(self, receive: Any, send: Any) -> None:
        super().__init__(receive, send)
        self.errors: dict[str, type[Exception]] = {}
        self.changed: list[tuple[int, Any]] = []

    def ask(self, what: str, *content: Any) -> Any:
        self.write([what, *content])
        while True:
            match self.read():
                case ["callback", int(number), [*args], dict(kwargs)]:
                    self.write(self.called(number, args, kwargs))
                case ["value", [*form]]:
                    return self.decode(form)
                case ["changed", int(at), [*form]]:
                    self.changed.append((at, self.decode(form)))
                case ["raised", [*names], str(text)]:
                    raise self.error(names, text)
                case _:
                    raise Gone("the program answered out of form")

    def call(self, target: list[Any], name: str, args: Any, kwargs: Any) -> Any:
        self.changed = []
        value = self.ask("call", target, name, *self.forms(args, kwargs))
        for at, new in self.changed:
            old = args[at] if at < len(args) else None
            if type(old) in MUTABLE and type(old) is type(new):
                old.clear()
                old.extend(new) if isinstance(old, list) else old.update(new)
        return value

    def called(self, number: int, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
        try:
            positional, named = self.values(args, kwargs)
            return ["value", self.encode(self.owned[number](*positional, **named))]
        except Exception as error:
            return raised(error)

    def decode(self, form: list[Any]) -> Any:
        try:
            return super().decode(form)
        except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
            raise Gone("the program answered out of form") from None

    def refer(self, value: Any) -> list[Any]:
        if isinstance(value, Remote):
            return ["theirs", object.__getattribute__(value, "_number")]
        if isinstance(value, type) and getattr(builtins, value.__name__, None) is value:
            return ["builtin", value.__name__]
        if isinstance(value, type) and value.__name__ in self.errors:
            return ["theirs", value._number]  # type: ignore[attr-defined]
        return ["mine", self.own(value)]

    def resolve(self, form: list[Any]) -> Any:
        match form:
            case ["remote", int(number)]:
                return Remote(self, number)
            case ["error", int(number), [*names]]:
                return self.error_class([str(name) for name in names], number)
            case ["builtin", str(name)] if isinstance(getattr(builtins, name, None), type):
                return getattr(builtins, name)
            case ["mine", int(number)]:
                return self.owned[number]
        raise ValueError(form)

    def error(self, names: list[Any], text: str) -> BaseException:
        found = self.error_class([str(name) for name in names], -1)
        try:
            return found(text)
        except TypeError:  # such as UnicodeDecodeError, which wants more
            return Exception(f"{names[0]}: {text}")

    def error_class(self, names: list[str], number: int) -> type[Exception]:
        """The builtin class of that name, or a stand-in under its nearest builtin ancestor; never an exit."""
        known = [getattr(builtins, name, None) for name in names]
        base = next((k for k in known if isinstance(k, type) and issubclass(k, Exception)), None)
        if base is None:
            raise Gone(f"the program ended by {names[0]}")
        if names[0] == base.__name__:
            return base
        if names[0] not in self.errors:
            self.errors[names[0]] = type(names[0], (base,), {"_number": number})
        return self.errors[names[0]]

    def write(self, message: list[Any]) -> None:
        try:
            super().write(message)
        except OSError:
            raise Gone("the program ended early") from None

    def read(self) -> Any:
        line = self.receive.readline(_LONGEST)
        if not line.endswith(b"\n"):
            raise Gone("the program ended early")
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            raise Gone("the program answered out of form") from None


class Module(types.ModuleType):
    """A delivered module as the tests see it."""

    def __init__(self, name: str, link: Link) -> None:
        super().__init__(name)
        self.__dict__["_link"] = link

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)
        return self.__dict__["_link"].ask("get", self.__name__, name)


class Remote:
    """An object over there. Equal to nothing but what another object over there says of it."""

    def __init__(self, link: Link, number: int) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_number", number)

    def __getattr__(self, name: str) -> Any:
        return remote(self, "getattr", name)

    def __setattr__(self, name: str, value: Any) -> None:
        remote(self, "setattr", name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return remote(self, "", *args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and remote(self, "__eq__", other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(remote(self, "__hash__"))

    def __bool__(self) -> bool:
        return remote(self, "bool") is True

    def __instancecheck__(self, instance: Any) -> bool:
        return remote(self, "isinstance", instance) is True


def remote(self: Remote, name: str, *args: Any, **kwargs: Any) -> Any:
    link, number = object.__getattribute__(self, "_link"), object.__getattribute__(self, "_number")
    return link.call(["theirs", number], name, args, kwargs)


def _said(name: str) -> Any:
    return lambda self, *args: remote(self, name, *args)


def _scaled(name: str) -> Any:
    """An operation with a number, of which only an object may come."""

    def operation(self: Remote, other: Any) -> Any:
        found = remote(self, name, other)
        return found if isinstance(found, Remote) else NotImplemented

    return operation


def _among(name: str) -> Any:
    """An operation with another object only: against plain data, `f(x) - 3` could be 0 and `f(x) < 3` true for ever."""
    return lambda self, other: remote(self, name, other) if isinstance(other, Remote) else NotImplemented


for _kind, _names in (
    (
        _said,
        "repr str len iter next contains getitem setitem delitem enter exit neg abs int float index reversed format",
    ),
    (_scaled, "mul rmul truediv pow"),
    (_among, "lt le gt ge add sub mod floordiv matmul and or xor"),
):
    for _name in _names.split():
        setattr(Remote, f"__{_name}__", _kind(f"__{_name}__"))


if __name__ == "__main__":
    main()
