"""The nodes of a prefix tree: each is one block, its children are what can follow it.

A node belongs to its parent. It knows its parent only weakly, so that an unused tree is gone
at once, and its pages with it. `cache/prefixes.py` is the tree.
"""

from __future__ import annotations

import weakref

from manyhands.cache.block import Block

Tokens = tuple[int, ...]


class Node:
    """One block of the tree. `tokens` are those it is meant for, written or not."""

    __slots__ = ("__weakref__", "block", "children", "feeder", "parent", "pins", "tokens", "used")

    def __init__(self, tokens: Tokens, block: Block, parent: Node | None) -> None:
        self.tokens = tokens
        self.block: Block | None = block  # None: no longer in the tree
        self.parent = weakref.ref(parent) if parent is not None else None
        self.children: dict[int, Node] = {}  # by their first token
        self.pins = 0  # prompts of leases whose paths lead through here
        self.feeder: object | None = None  # which lease, or which fetch, is writing it
        self.used = 0  # when it was last let go

    @property
    def is_written(self) -> bool:
        """Whether all of its tokens are in memory."""
        return self.block is not None and self.block.num_tokens == len(self.tokens)

    @property
    def is_passed(self) -> bool:
        """Whether leases hold it on their way to others: none ends here, and none just feeds it or what stands on it."""
        held = [child for child in self.children.values() if child.pins]
        ends_here = self.pins > sum(child.pins for child in held)
        return bool(held) and not ends_here and not any(each.feeder for each in (self, *held))

    @property
    def is_idle_leaf(self) -> bool:
        """Whether nothing stands on it and no lease holds it, so that it may go."""
        return not self.children and not self.pins and self.parent is not None

    def chain(self) -> list[Node]:
        """The nodes from the first below the root to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent()
        return nodes[::-1]


def is_current(used: int, number: int, node: Node) -> bool:
    """Whether an entry of the idle ones still tells the truth."""
    return node.block is not None and node.is_idle_leaf and node.used == used


def common_length(known: Tokens, tokens: Tokens, start: int) -> int:
    """How many tokens of `known` stand in `tokens` from `start` on."""
    high = min(len(known), len(tokens) - start)
    if known[:high] == tokens[start : start + high]:
        return high
    low = 0
    while high - low > 1:  # known[:low] is the same, known[:high] is not
        middle = (low + high) // 2
        if known[low:middle] == tokens[start + low : start + middle]:
            low = middle
        else:
            high = middle
    return low
