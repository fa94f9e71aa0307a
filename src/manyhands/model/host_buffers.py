"""The host's memory that a GPU can fetch by itself, in pieces that are used again and again.

A driver takes a hundredth of a second to pin what a sheet of keys holds, and several times that where many threads ask. Sheet
by sheet that took longer than all else that loading does. So one piece is asked for at the start, and cut.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from threading import Lock

import torch
from torch import Tensor

LOG = logging.getLogger("manyhands.cache")
_PAGE = 4096  # bytes; pieces begin at whole ones


def at_once() -> None:
    """No wait: no device uses the piece."""


class HostBuffers:
    """Pieces of `size` bytes. Threads may take them and give them back.

    A piece that is not given back, since an interrupt came between, is missed: memory of their own serves others.
    """

    def __init__(self, size: int, count: int, *, pin: bool) -> None:
        """`count` of them are kept; `pin`: they, and what is had besides, can be fetched by a GPU."""
        self.size = -(-size // _PAGE) * _PAGE
        self._pin = pin
        self._lock = Lock()
        self._free: deque[tuple[Tensor, Callable[[], object]]] = deque()
        try:
            whole = torch.empty(count * self.size, dtype=torch.uint8, pin_memory=pin)
        except RuntimeError as error:  # the host has not so much to pin: slower, and no less right
            LOG.warning(
                "no %d MiB of the host's memory can be pinned: %s", count * self.size >> 20, error
            )
            count, whole = 0, torch.empty(0, dtype=torch.uint8)
        pieces = whole.split(self.size) if count else ()
        self._kept = {piece.data_ptr(): piece for piece in pieces}
        self._free.extend((piece, at_once) for piece in pieces)

    @property
    def num_free(self) -> int:
        """Pieces that may be taken."""
        return len(self._free)

    def take(self, num_bytes: int) -> Tensor:
        """So many bytes: of a piece that is free, or memory of their own if there is none or none is so large.

        Where no more can be pinned, it is ordinary memory: slower, and no less right. Raises MemoryError where there is none at all.
        """
        found = None
        if num_bytes <= self.size:
            with self._lock:
                found = self._free.popleft() if self._free else None
        if found is None:
            return self._of_its_own(num_bytes)
        piece, done = found
        done()
        return piece[:num_bytes]

    def _of_its_own(self, num_bytes: int) -> Tensor:
        """Memory that is no piece."""
        for pin in (True, False) if self._pin else (False,):
            try:
                return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pin)
            except RuntimeError as error:  # torch's allocators raise nothing narrower
                refused = error
        raise MemoryError(f"the host has no memory for {num_bytes} bytes") from refused

    def give_back(self, content: Tensor, done: Callable[[], object] = at_once) -> None:
        """The bytes are needed no more once `done` returns. Memory that is no piece is left to whoever refers to it."""
        piece = self._kept.get(content.data_ptr())
        if piece is not None:
            with self._lock:
                self._free.append((piece, done))
