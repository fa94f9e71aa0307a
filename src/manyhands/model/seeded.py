"""Random numbers of torch from a seed, and the caller's own left as they were.

`torch.manual_seed` seeds the generators of every device, and `torch.random.fork_rng(devices=[])` puts that of the CPU alone
back. A program that loads a model between two draws on its GPU would draw the same numbers after each load. So nothing here
calls the former: `seeded` seeds the generators that its caller draws from, and gives these back. Threads take turns, for a
generator is the whole process's: two that seeded it at once would draw each other's numbers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_CPU = torch.device("cpu")
_turns = threading.RLock()


@contextmanager
def seeded(seed: int, device: torch.device = _CPU) -> Iterator[None]:
    """Numbers drawn inside, on the CPU or on `device`, are this seed's; behind it every generator is as it was."""
    on_gpu = [device] if device.type == "cuda" else []
    with _turns, torch.random.fork_rng(devices=on_gpu):
        torch.default_generator.manual_seed(seed)
        for each in on_gpu:
            with torch.cuda.device(each):
                torch.cuda.manual_seed(seed)
        yield
