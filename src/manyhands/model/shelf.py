"""The shelf of one memory: keys and values of some slots, copied out to sheets and written back from them.

A sheet holds what lies in the slots as it lies there, for all layers, and the offset by which each token's keys
are rotated. Its form is that of the stores and not of a backend, so every backend finds what another has saved.
Written back to places with the same offsets, keys are the same to the bit; otherwise they are rotated by the
difference.

Copies are made on the device, behind all passes that were begun. On a GPU they reach the host by a copy that
nothing waits for but the thread that writes the file; and what was read comes by a copy that nothing waits for but the
thread that has read it (`model/landings.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhands.attention.eight_bits import is_mixed
from manyhands.attention.rotary import Rope, Rotations
from manyhands.attention.store import Targets
from manyhands.cache.places import Ints
from manyhands.cache.sheets import ShelfCounts
from manyhands.model.adapter import ModelAdapter
from manyhands.model.memory import Memory, free_bytes
from manyhands.model.sheet_files import Form, SheetFiles, Taken

_OFFSETS = "offsets"
# Bytes of a GPU in which sheets are checked, at most; and the share of what is free there beside the memory.
_MOST_LANDED, _SHARE_LANDED = 1 << 30, 8
# Entries of a configuration that say where it came from, and nothing of what is computed.
_ORIGIN = ("_name_or_path", "transformers_version", "_commit_hash")


class MemoryShelf:
    """Sheets of a Memory on disk."""

    def __init__(
        self, memory: Memory, adapter: ModelAdapter, folder: Path, *, sheet_tokens: int, limit: int
    ) -> None:
        """`limit` bounds the bytes of the folder. Raises OutputFailed where it cannot be written to."""
        self.memory = memory
        self.sheet_tokens = sheet_tokens
        forms = forms_of(memory, sheet_tokens)
        self.files = SheetFiles(
            folder.expanduser(),
            model_digest(adapter, forms),
            forms,
            limit=limit,
            pin=memory.device.type == "cuda",
            device=memory.device,
            most_landed=_most_landed(memory.device),
            on_host=(_OFFSETS,),
        )
        self._num_bytes = sum(form.num_bytes for form in forms.values())

    @property
    def counts(self) -> ShelfCounts:
        """See `Sheets.counts`."""
        return self.files.counts

    def num_saved(self, names: Sequence[str]) -> int:
        """See `Sheets.num_saved`."""
        return self.files.num_saved(names)

    def unsaved(self, names: Sequence[str]) -> list[int]:
        """See `Sheets.unsaved`."""
        return self.files.unsaved(names)

    def has_room(self) -> bool:
        """See `Sheets.has_room`."""
        return self.files.has_room(self._num_bytes)

    @torch.inference_mode()
    def save(self, name: str, places: tuple[Ints, Ints], order: int, used: int) -> None:
        """See `Sheets.save`."""
        slots, offsets = places
        try:
            at = torch.as_tensor(slots, device=self.memory.device)
            tensors = {
                f"{key}.{number}": tensor.index_select(1, at)
                for number, stack in enumerate(self.memory.stacks)
                for key, tensor in stack.tensors().items()
            }
            taken = self._to_host(tensors)
        except (torch.OutOfMemoryError, MemoryError):  # of the device, or the host
            self.missed(1)
            return
        tensors = {**taken.tensors, _OFFSETS: torch.as_tensor(offsets)}
        self.files.write(name, replace(taken, tensors=tensors), order, used)

    def read_ahead(self, names: Sequence[str]) -> None:
        """See `Sheets.read_ahead`."""
        self.files.read_ahead(names)

    def is_read(self, name: str, patience: float) -> bool | None:
        """See `Sheets.is_read`."""
        return self.files.is_read(name, patience)

    @torch.inference_mode()
    def load(self, name: str, first: int, places: tuple[Ints, Ints]) -> None:
        """See `Sheets.load`."""
        slots, offsets = places
        here = slice(first, first + len(slots))
        tensors, device = self.files.read(name), self.memory.device
        shifts = offsets - tensors[_OFFSETS].numpy()[here]
        is_turned = bool(shifts.any())
        at, by = self._sent(torch.from_numpy(np.stack((slots, shifts))))
        targets = Targets(at, Rotations(by))
        for number, stack in enumerate(self.memory.stacks):
            own = {
                key: tensors[f"{key}.{number}"][:, here].to(device, non_blocking=True)
                for key in stack.tensors()
            }
            stack.put(targets, own, is_turned=is_turned)
        if device.type == "cuda":
            fetched = torch.cuda.Event(blocking=True)
            fetched.record(torch.cuda.current_stream(device))
            self.files.is_fetched(name, fetched.synchronize)

    def _sent(self, integers: Tensor) -> Tensor:
        """On the device, behind all that it still has to do; the host does not wait for it."""
        if self.memory.device.type == "cuda":
            integers = integers.pin_memory()
        return integers.to(self.memory.device, non_blocking=True)

    def _to_host(self, tensors: dict[str, Tensor]) -> Taken:
        """The tensors in the host's memory, from a GPU by a copy that goes on beside passes."""
        device = self.memory.device
        if device.type != "cuda":
            return Taken(tensors, lambda: None)
        buffer = self.files.buffers.take(sum(tensor.nbytes for tensor in tensors.values()))
        parts = buffer.split([tensor.nbytes for tensor in tensors.values()])
        copies = {
            key: part.view(tensor.dtype).view(tensor.shape)
            for part, (key, tensor) in zip(parts, tensors.items(), strict=True)
        }
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for key, tensor in tensors.items():
                copies[key].copy_(tensor, non_blocking=True)
                tensor.record_stream(side)
            arrived = torch.cuda.Event()
            arrived.record(side)
        return Taken(copies, arrived.synchronize, buffer)

    def forget(self, names: Sequence[str]) -> None:
        """See `Sheets.forget`."""
        self.files.forget(names)

    def missed(self, num_sheets: int) -> None:
        """See `Sheets.missed`."""
        self.files.count(sheets_skipped=num_sheets)

    def found(self, num_tokens: int) -> None:
        """See `Sheets.found`."""
        self.files.count(tokens_found=num_tokens)


def _most_landed(device: torch.device) -> int:
    """Bytes of a GPU in which sheets may be checked; passes need what is left. 0 elsewhere: there the host does."""
    if device.type != "cuda":
        return 0
    return min(_MOST_LANDED, free_bytes(device) // _SHARE_LANDED)


def forms_of(memory: Memory, sheet_tokens: int) -> dict[str, Form]:
    """The forms of the tensors of a sheet of this memory."""
    forms = {_OFFSETS: Form(torch.int64, (sheet_tokens,))}
    for number, stack in enumerate(memory.stacks):
        for key, tensor in stack.tensors().items():
            layers, _, *rest = tensor.shape
            forms[f"{key}.{number}"] = Form(tensor.dtype, (layers, sheet_tokens, *rest))
    return forms


def model_digest(adapter: ModelAdapter, forms: dict[str, Form]) -> str:
    """32 hex digits that stand for all that keys depend on besides the tokens. Reads all weights, the first time.

    That is the weights as they were loaded, rounded or not; the configuration; how each layer rotates; the
    numbers in which keys and values are stored, and the axes of keys in eight bits.
    """
    config = adapter.model.config.to_dict()
    told: dict[str, Any] = {
        "weights": adapter.fingerprint(),
        "config": {key: value for key, value in config.items() if key not in _ORIGIN},
        "dtype": str(adapter.dtype),
        "ropes": [_rope_digest(rope) for rope in adapter.ropes],
        "forms": {key: (str(form.dtype), form.shape) for key, form in forms.items()},
    }
    if any(form.dtype == torch.int8 for form in forms.values()):
        layers = zip(adapter.layers, adapter.ropes, strict=True)
        told["mixed"] = [is_mixed(shape.head_dim, rope) for shape, rope in layers]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _rope_digest(rope: Rope | None) -> str | None:
    if rope is None:
        return None
    frequencies = rope.inv_freq.cpu().contiguous().numpy().tobytes()
    told = f"{rope.rotary_dim} {rope.interleaved} ".encode() + frequencies
    return hashlib.sha256(told).hexdigest()
