"""How many threads of a CPU a command takes: torch's own number, or one where the network is small.

Each product of a pass is divided among all threads, and all meet at its end. A product of a small network takes
microseconds, so meeting costs more than is saved, and beside a busy program it costs far more: a thread that has been
taken off its core keeps the others waiting, hundreds of times in a pass.

This is the command line's choice. `Engine.load` leaves torch as its caller has set it.
"""

from __future__ import annotations

import os
from pathlib import Path

from manyhands.hub import is_gguf

# Bytes of weights up to which one thread is taken. The bundled model has 20 MB, and with two threads one team at a time is
# 9 to 14% slower (bundled_speed.json); a SmolLM2 of 94 MB in its file is faster with two (cpu.json). In between nothing
# was measured.
SMALL_WEIGHTS = 64 << 20
_SAID = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # by these a user has chosen


def weight_bytes(place: str) -> int | None:
    """Bytes of the weights' files in a folder or a GGUF file; None where no such file is here."""
    path = Path(place).expanduser()
    files = [path] if is_gguf(place) else [*path.glob("*.safetensors")]
    sizes = [file.stat().st_size for file in files if file.is_file()]
    return sum(sizes) if sizes else None


def take_one(num_bytes: int) -> None:
    """Have torch take one thread from now on, if weights of so many bytes are few and the user has not chosen."""
    if num_bytes > SMALL_WEIGHTS or any(name in os.environ for name in _SAID):
        return
    import torch

    torch.set_num_threads(1)
