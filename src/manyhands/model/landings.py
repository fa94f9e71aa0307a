"""Landings: places on a GPU in which a sheet is checked, and where it lies until a memory takes it.

Nothing of a sheet is used before its checksums were compared. Made by the host, they read every byte once more, and a
host whose threads all copy files to memory has no memory traffic to spare: they took two fifths of the time that reading
took. A GPU has twenty times as much. So the thread that has read a sheet copies it to a landing, has the sums made of
what arrived there, and compares them with those of the file. The copy goes by a stream of the landing's own, so no pass
waits for it; the memory takes the sheet within the device.

There are few landings, for they take room that passes could use. A reader that finds none has the host make the sums: slower,
and no less right. So no reader waits for a landing, and no two readers for each other.

The checksum of a tensor is the CRC of the sums of its *runs*, as 64-bit words modulo 2^64, and of the bytes left over.
Sums run at the speed of memory, and a CRC of all bytes does not.
"""

from __future__ import annotations

import logging
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from manyhands.model.host_buffers import at_once

LOG = logging.getLogger("manyhands.cache")
RUN = 1 << 15  # bytes of a tensor that are added up before their sum enters the checksum
_WORD = 8  # bytes


class SheetPart(NamedTuple):
    """A tensor within the bytes of a sheet."""

    begin: int
    end: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def whole(self) -> int:
        """Where its last whole run ends."""
        return self.end - (self.end - self.begin) % RUN

    def of(self, content: Tensor) -> Tensor:
        """The tensor, a view of these bytes."""
        return content[self.begin : self.end].view(self.dtype).view(self.shape)


def checksum(content: np.ndarray, sums: np.ndarray | None = None) -> str:
    """The checksum of a tensor with these bytes [N] uint8; `sums` [N // RUN] of its runs if they are known."""
    whole = len(content) // RUN * RUN
    if sums is None:
        sums = content[:whole].view(np.uint64).reshape(-1, RUN // _WORD).sum(1)  # modulo 2^64
    return f"{zlib.crc32(content[whole:].tobytes(), zlib.crc32(sums.tobytes())):08x}"


class _Views(NamedTuple):
    """Views of a landing for sheets of one layout."""

    tensors: dict[str, Tensor]
    runs: tuple[tuple[Tensor, Tensor], ...]  # words [R, RUN / 8] int64, and where their sums go [R]
    told: dict[str, np.ndarray]  # the sums of each tensor's runs [R], on the host


class Landing:
    """A place for one sheet. One thread at a time uses it."""

    def __init__(self, size: int, device: torch.device) -> None:
        """For sheets of `size` bytes at most."""
        on_gpu = device.type == "cuda"
        self._place = torch.empty(size, dtype=torch.uint8, device=device)
        self._sums = torch.empty(size // RUN, dtype=torch.int64, device=device)
        self._told = torch.empty(size // RUN, dtype=torch.int64, pin_memory=on_gpu)
        self._stream = torch.cuda.Stream(device) if on_gpu else None
        self._arrived = torch.cuda.Event(blocking=True) if on_gpu else None  # no thread spins
        self._known: tuple[dict[str, SheetPart], _Views] | None = None

    def fits(self, content: Tensor, parts: Mapping[str, SheetPart]) -> bool:
        """Whether there is room for these bytes, and words begin where words of a GPU do."""
        return len(content) <= len(self._place) and not any(
            part.begin % _WORD for part in parts.values()
        )

    @torch.inference_mode()
    def bring(
        self, content: Tensor, parts: Mapping[str, SheetPart]
    ) -> tuple[dict[str, Tensor], dict[str, np.ndarray]]:
        """Copy the bytes of a sheet here: its tensors, and the sums [R] of the runs of each, as they arrived.

        Returns when the copy is made. The sums are overwritten by the next sheet.
        """
        views = self._views(dict(parts))
        stream = self._stream
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            self._place[: len(content)].copy_(content, non_blocking=True)
            for words, sums in views.runs:
                torch.sum(words, 1, out=sums)
            self._told.copy_(self._sums, non_blocking=True)
        if stream is not None and self._arrived is not None:
            self._arrived.record(stream)
            self._arrived.synchronize()
        return views.tensors, views.told

    def _views(self, parts: dict[str, SheetPart]) -> _Views:
        """Made once: all sheets of a model have the same layout."""
        if self._known is not None and self._known[0] == parts:
            return self._known[1]
        runs, told, first = [], {}, 0
        for key, part in parts.items():
            end = first + (part.whole - part.begin) // RUN
            if end > first:
                words = self._place[part.begin : part.whole].view(torch.int64)
                runs.append((words.view(-1, RUN // _WORD), self._sums[first:end]))
            told[key] = self._told[first:end].numpy()
            first = end
        tensors = {key: part.of(self._place) for key, part in parts.items()}
        views = _Views(tensors, tuple(runs), told)
        self._known = parts, views
        return views


class Landings:
    """Landings that are used again and again. Threads may take them and give them back."""

    def __init__(self, size: int, count: int, device: torch.device) -> None:
        """`count` of them, for sheets of `size` bytes; none where the device has no room for them."""
        size = -(-size // RUN) * RUN
        made: list[Landing] = []
        try:
            made.extend(Landing(size, device) for _ in range(count))
        except RuntimeError as error:  # torch's allocators raise nothing narrower for pinned memory
            LOG.warning("sheets are checked by the host: %s", error)
            made = []
        self._free: deque[tuple[Landing, Callable[[], object]]] = deque(
            (landing, at_once) for landing in made
        )

    @property
    def num_free(self) -> int:
        """Landings that may be taken."""
        return len(self._free)

    def take(self) -> Landing | None:
        """One that is free, when what was read of it is done; None if there is none."""
        try:
            landing, done = self._free.popleft()
        except IndexError:
            return None
        done()
        return landing

    def give_back(self, landing: Landing, done: Callable[[], object] = at_once) -> None:
        """It is needed no more once `done` returns."""
        self._free.append((landing, done))
