"""Sheets: a prompt's keys and values outside of memory, found again by content.

A long document is read once. What a prefix tree (`cache/prefixes.py`) holds is gone with its engine; a Shelf
keeps it on disk, in sheets of `sheet_tokens` tokens each:

    prompt     |......256......|......256......|.......|       the rest is short, and is fed
    sheets      name 0          name 1

Keys and values of a token depend on that token and on everything before it. So the name of a sheet is a digest
of its own tokens *and of the name before it*, and the chain begins with the owner: content of one tenant is
never found by another, and equal tokens behind another beginning have another name. The weights, their dtype
and the form of the stored numbers belong to the folder (`model/sheet_files.py`).

A lease asks its tree, the tree asks the shelf. Sheets that are there become nodes of the tree, which a `Fetch`
writes between passes; whatever reads them waits, as it would for another run that feeds them. A sheet that turns
out to be unusable is fed like any other text.
"""

from __future__ import annotations

import json
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple, Protocol

from manyhands.cache.block import Block
from manyhands.cache.prefix_nodes import Node, Tokens


def sheet_names(tokens: Sequence[int], size: int, owner: str | None) -> list[str]:
    """The names of the whole sheets of a prompt, in order; each stands for all tokens up to its end."""
    digest = sha256(json.dumps(["manyhands sheet", size, owner]).encode()).digest()
    names = []
    for end in range(size, len(tokens) + 1, size):
        digest = sha256(digest + array("q", tokens[end - size : end]).tobytes()).digest()
        names.append(digest.hex())
    return names


@dataclass(frozen=True)
class ShelfCounts:
    """Counts of a shelf so far. Tokens were `found` if their keys came from disk and were not fed."""

    tokens_found: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    sheets_refused: int = 0  # torn, damaged, of another kind: their tokens were fed
    sheets_dropped: int = 0  # removed to keep to the size of the folder, or as the disk was full
    # Not saved: the disk was slower than the prompts came, or full of what others have, or of what was used since.
    sheets_skipped: int = 0


class Wanted(NamedTuple):
    """A node to be written, and where on the path of its prompt it begins."""

    node: Node
    start: int


class Fetch:
    """Nodes of one path that are written from sheets, the first one first."""

    def __init__(self, wanted: Iterable[Wanted], names: Sequence[str]) -> None:
        self.wanted = deque(wanted)
        self.names = names  # of all sheets of the path
        self.num_tokens = 0  # written so far

    def give_up(self) -> None:
        """Leave what is not written to whatever wants to read it: it is fed."""
        for node, _ in self.wanted:
            node.feeder = None
        self.wanted.clear()


class Shelf(Protocol):
    """Asked by a prefix tree for keys that it does not hold. Tokens are those of a prompt, from its beginning."""

    sheet_tokens: int

    def num_saved(self, tokens: Tokens, tenant: str | None) -> int:
        """How many of the first tokens are in sheets: a multiple of `sheet_tokens`."""

    def fetch(self, wanted: Sequence[Wanted], tokens: Tokens, tenant: str | None) -> Fetch:
        """Begin to write these nodes, each of which lies within one sheet of the prompt."""

    def keep(self, path: Sequence[Block], tenant: str | None) -> None:
        """Save what is not saved yet of a path that is written, in whole sheets."""
