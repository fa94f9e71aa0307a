"""Compiled kernels of a library for one kind of GPU: all others become zeros, which pack to next to nothing.

    small = pruned(library.read_bytes(), lambda kernels: kernels.arch == 90)

A library of CUDA kernels carries *fat binaries*: the same kernels for many kinds of GPU, one beside the other. The
driver picks one by what is written in front of each, and reads no other; so what is zeroed behind its header changes
nothing else in the file, and no place in it moves. A kernel that has been zeroed for the GPU that runs fails when it is
first called, and only then, for modules are loaded lazily.

A fat binary is a header (magic number, version 1, 16 bytes long, the size of what follows) and entries one behind
another. An entry has a header of its own (kind: 1 PTX, 2 machine code; its length; the size of what follows; at
byte 28 the architecture, 90 for Hopper), then the code, packed or not. The form is NVIDIA's own and not published; this is what
`cuobjdump --dump-elf` finds in the same files.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_MAGIC = struct.pack("<IHH", 0xBA55ED50, 1, 16)
_HEADER = struct.Struct("<8xQ")  # of a fat binary: bytes that follow
_ENTRY = struct.Struct("<H2xIQ12xI")  # kind, length of this header, bytes that follow, architecture
MACHINE_CODE = 2


@dataclass(frozen=True)
class Kernels:
    """One entry: the kernels of one source for one architecture."""

    kind: int
    arch: int
    start: int  # where the code begins, in bytes from the beginning of the library
    code: bytes

    @property
    def is_machine_code(self) -> bool:
        """Whether the GPU runs it as it is (PTX is compiled by the driver first)."""
        return self.kind == MACHINE_CODE


def kernels_of(library: bytes) -> Iterator[Kernels]:
    """Every entry of every fat binary of a library, in order."""
    at = library.find(_MAGIC)
    while at >= 0:
        (size,) = _HEADER.unpack_from(library, at)
        entry = at + _HEADER.size
        end = entry + size
        while entry < end:
            kind, header, num_bytes, arch = _ENTRY.unpack_from(library, entry)
            start = entry + header
            yield Kernels(kind, arch, start, library[start : start + num_bytes])
            entry = start + num_bytes
        at = library.find(_MAGIC, end)


def pruned(library: bytes, is_kept: Callable[[Kernels], bool]) -> bytes:
    """The library with zeros in the place of all kernels but those that are kept."""
    left = bytearray(library)
    for kernels in kernels_of(library):
        if not is_kept(kernels):
            left[kernels.start : kernels.start + len(kernels.code)] = bytes(len(kernels.code))
    return bytes(left)
