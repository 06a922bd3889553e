"""Runs inside a sandbox, behind `checks.apart` and in front of `checks.remote`: the side of the delivered modules.

`Side` is what both ends of the link have in common, `Candidate` imports and calls, as it is asked to by messages that
`checks.remote` describes. It is as hostile as what it imports: nothing here is believed over there. Standard library.
"""

from __future__ import annotations

import builtins
import json
import operator
import sys
import types
from typing import Any

from temper.verifiers.checks.apart import Coverage, raised  # in the sandbox: the sources in front of this
from temper.verifiers.checks.values import decode, encode

MUTABLE = (list, dict, set)


class Side:
    """One end: values by their forms, what has none by `refer` and `resolve`."""

    def __init__(self, receive: Any, send: Any) -> None:
        self.receive, self.send = receive, send
        self.owned: list[Any] = []  # what the other side knows by its number

    def own(self, value: Any) -> int:
        self.owned.append(value)
        return len(self.owned) - 1

    def refer(self, value: Any) -> list[Any]:
        raise NotImplementedError

    def resolve(self, form: list[Any]) -> Any:
        raise NotImplementedError

    def encode(self, value: Any) -> list[Any]:
        return encode(value, refer=self.refer)

    def decode(self, form: list[Any]) -> Any:
        return decode(form, self.resolve)

    def forms(self, args: Any, kwargs: Any) -> list[Any]:
        return [[self.encode(arg) for arg in args], {key: self.encode(value) for key, value in kwargs.items()}]

    def values(self, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
        return [self.decode(form) for form in args], {key: self.decode(form) for key, form in kwargs.items()}

    def write(self, message: list[Any]) -> None:
        self.send.write(json.dumps(message).encode() + b"\n")


class Candidate(Side):
    """Imports and calls."""

    coverage = Coverage({})

    def serve(self) -> None:
        sys.path.insert(0, ".")
        for line in self.receive:
            try:
                reply = ["value", self.encode(self.answer(*json.loads(line)))]
            except BaseException as error:
                reply = raised(error)
            self.write(reply)

    def answer(self, what: str, *content: Any) -> Any:
        if what == "get":
            module = __import__(content[0], fromlist=["*"])
            public = [name for name in vars(module) if not name.startswith("_")]
            return getattr(module, *content[1:], *([public] if content[1] == "__all__" else []))
        if what == "lines":
            self.coverage = Coverage(content[0])
            return sys.settrace(self.coverage.trace)
        if what == "covered":
            return sorted(self.coverage.seen)
        target, name, forms, more = content
        args, kwargs = self.values(forms, more)
        value = self.method(self.decode(target), name)(*args, **kwargs)
        for at, (form, arg) in enumerate(zip(forms, args, strict=True)):
            if type(arg) in MUTABLE and (now := self.encode(arg)) != form:
                self.write(["changed", at, now])
        return value

    def method(self, target: Any, name: str) -> Any:
        """What `name` does to the target; an operation works as Python has it, with all its ways to fall back."""
        if not name:
            return target
        if name == "isinstance":
            return lambda instance: isinstance(instance, target)
        if name in ("getattr", "setattr", "bool"):
            return lambda *args: getattr(builtins, name)(target, *args)
        function = getattr(operator, name, None) or getattr(builtins, name.strip("_"), None)
        return (lambda *args: function(target, *args)) if function else getattr(target, name)

    def callback(self, number: int) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.write(["callback", number, *self.forms(args, kwargs)])
            kind, *content = json.loads(self.receive.readline())
            if kind == "value":
                return self.decode(content[0])
            found = next((getattr(builtins, name) for name in content[0] if hasattr(builtins, name)), Exception)
            raise found(content[1])

        call._number = number  # type: ignore[attr-defined]
        return call

    def refer(self, value: Any) -> list[Any]:
        if isinstance(value, types.FunctionType) and hasattr(value, "_number"):
            return ["mine", value._number]
        if isinstance(value, type) and getattr(builtins, value.__name__, None) is value:
            return ["builtin", value.__name__]
        if isinstance(value, type) and issubclass(value, Exception):
            return ["error", self.own(value), [kind.__name__ for kind in value.__mro__]]
        return ["remote", self.own(value)]

    def resolve(self, form: list[Any]) -> Any:
        kind, content = form
        if kind == "theirs":
            return self.owned[content]
        return getattr(builtins, content) if kind == "builtin" else self.callback(content)
