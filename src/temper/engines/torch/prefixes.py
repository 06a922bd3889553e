"""Which prefixes are kept: a radix tree from token sequences to spans of keys and values. Pure; spans are opaque.

Each policy has a root of its own, which holds one version of its weights: `clear` at its publish, so that nothing old
and nothing of another policy can ever be matched. The budget is shared: least recently used leaves go first when it is
passed, whoever's they are; pinned prefixes stay.
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
        self._pins: dict[str, tuple[str, np.ndarray]] = {}
        self._clock = 0
        self._pinned = 0
        self._roots: dict[str, Node[Span]] = {}

    def clear(self, policy: str = "") -> None:
        """Forget a policy's prefixes. Pins stay: they hold again once their prefix is inserted again."""
        if root := self._roots.pop(policy, None):
            self.size -= sum(len(node.tokens) for node in self._nodes(root))

    def match(self, tokens: np.ndarray, policy: str = "") -> list[tuple[Span, int]]:
        """Spans that cover the longest known prefix of `tokens`, in order, each with how many of its tokens to use."""
        found = []
        for node, shared in self._walk(tokens, policy):
            self._touch(node)
            found.append((node.span, shared))
        return found  # type: ignore[return-value]

    def insert(self, tokens: np.ndarray, store: Callable[[int, int], Span], policy: str = "") -> None:
        """Know `tokens` whole. `store(a, b)` is called for the part [a, b) that is new, if there is any."""
        node, at = self._roots.setdefault(policy, Node(np.empty(0, np.int32), None, None)), 0
        for node, shared in self._walk(tokens, policy):
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

    def pin(self, tokens: np.ndarray, policy: str = "") -> str:
        self._pinned += 1
        handle = f"pin-{self._pinned}"
        self._pins[handle] = policy, tokens.copy()
        return handle

    def release(self, handle: str) -> None:
        self._pins.pop(handle, None)

    def _walk(self, tokens: np.ndarray, policy: str) -> list[tuple[Node[Span], int]]:
        """Nodes along `tokens`, each with the number of its tokens that agree (the last may agree in part)."""
        path, node, at = [], self._roots.get(policy), 0
        while node and at < len(tokens) and (child := node.children.get(int(tokens[at]))):
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
        kept = {id(node) for policy, tokens in list(self._pins.values()) for node, _ in self._walk(tokens, policy)}
        while self.size > self.budget:
            nodes = [node for root in self._roots.values() for node in self._nodes(root)]
            leaves = [n for n in nodes if not n.children and id(n) not in kept]
            if not leaves:
                return
            for leaf in sorted(leaves, key=lambda n: n.used):
                assert leaf.parent is not None
                del leaf.parent.children[int(leaf.tokens[0])]
                self.size -= len(leaf.tokens)
                if self.size <= self.budget:
                    break

    def _nodes(self, root: Node[Span]) -> list[Node[Span]]:
        """All below the root."""
        found = list(root.children.values())
        for node in found:
            found.extend(node.children.values())
        return found
