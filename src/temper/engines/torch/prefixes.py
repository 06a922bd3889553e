"""Which prefixes are kept: a radix tree from token sequences to spans of keys and values. Pure; spans are opaque.

The tree holds one weight version at a time: `clear` at a publish, so that nothing old can ever be matched. Least
recently used leaves go first when the budget is passed; pinned prefixes stay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

Span = TypeVar("Span")


class Node(Generic[Span]):
    """An edge of the tree: its tokens (n,) and the span that holds their keys and values."""

    __slots__ = ("children", "parent", "span", "tokens", "used")

    def __init__(self, tokens: np.ndarray, span: Span | None, parent: Node[Span] | None) -> None:
        self.tokens, self.span, self.parent = tokens, span, parent
        self.children: dict[int, Node[Span]] = {}
        self.used = 0


class PrefixTree(Generic[Span]):
    """`split(span, n)` gives the spans of the first n tokens and of the rest. `budget` is in tokens."""

    def __init__(self, budget: int, split: Callable[[Span, int], tuple[Span, Span]]) -> None:
        self.budget, self._split = budget, split
        self.size = 0  # tokens held
        self._pins: dict[str, np.ndarray] = {}
        self._clock = 0
        self._pinned = 0
        self.clear()

    def clear(self) -> None:
        """Forget every prefix. Pins stay: they hold again once their prefix is inserted again."""
        self._root: Node[Span] = Node(np.empty(0, np.int32), None, None)
        self.size = 0

    def match(self, tokens: np.ndarray) -> list[tuple[Span, int]]:
        """Spans that cover the longest known prefix of `tokens`, in order, each with how many of its tokens to use."""
        found = []
        for node, shared in self._walk(tokens):
            self._touch(node)
            found.append((node.span, shared))
        return found  # type: ignore[return-value]

    def insert(self, tokens: np.ndarray, store: Callable[[int, int], Span]) -> None:
        """Know `tokens` whole. `store(a, b)` is called for the part [a, b) that is new, if there is any."""
        node, at = self._root, 0
        for node, shared in self._walk(tokens):
            self._touch(node)
            at += shared
            if shared < len(node.tokens):
                node = self._cut(node, shared)
        if at == len(tokens):
            return
        rest = tokens[at:].copy()
        leaf = node.children[int(rest[0])] = Node(rest, store(at, len(tokens)), node)
        self._touch(leaf)
        self.size += len(rest)
        self._evict()

    def pin(self, tokens: np.ndarray) -> str:
        self._pinned += 1
        handle = f"pin-{self._pinned}"
        self._pins[handle] = tokens.copy()
        return handle

    def release(self, handle: str) -> None:
        self._pins.pop(handle, None)

    def _walk(self, tokens: np.ndarray) -> list[tuple[Node[Span], int]]:
        """Nodes along `tokens`, each with the number of its tokens that agree (the last may agree in part)."""
        path, node, at = [], self._root, 0
        while at < len(tokens) and (child := node.children.get(int(tokens[at]))):
            rest = tokens[at : at + len(child.tokens)]
            differ = np.flatnonzero(child.tokens[: len(rest)] != rest)
            shared = int(differ[0]) if len(differ) else len(rest)
            path.append((child, shared))
            if shared < len(child.tokens):
                break
            node, at = child, at + shared
        return path

    def _touch(self, node: Node[Span]) -> None:
        self._clock += 1
        node.used = self._clock

    def _cut(self, node: Node[Span], n: int) -> Node[Span]:
        """Split an edge after n tokens; gives the upper half."""
        assert node.span is not None and node.parent is not None  # noqa: PT018
        first, second = self._split(node.span, n)
        upper = Node(node.tokens[:n], first, node.parent)
        upper.used = node.used
        node.parent.children[int(node.tokens[0])] = upper
        node.tokens, node.span, node.parent = node.tokens[n:], second, upper
        upper.children[int(node.tokens[0])] = node
        return upper

    def _evict(self) -> None:
        """Drop leaves, oldest first, until the budget holds or only pinned ones are left."""
        if self.size <= self.budget:
            return
        kept = {id(node) for tokens in list(self._pins.values()) for node, _ in self._walk(tokens)}
        while self.size > self.budget:
            leaves = [n for n in self._leaves(self._root) if id(n) not in kept]
            if not leaves:
                return
            for leaf in sorted(leaves, key=lambda n: n.used):
                assert leaf.parent is not None
                del leaf.parent.children[int(leaf.tokens[0])]
                self.size -= len(leaf.tokens)
                if self.size <= self.budget:
                    break

    def _leaves(self, root: Node[Span]) -> list[Node[Span]]:
        found, stack = [], list(root.children.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            if not node.children:
                found.append(node)
        return found
