"""Ranks as threads of one process: what is cut and where parts meet, without processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class ThreadCollectives:
    """One rank of several that are threads."""

    name = "threads"
    peers: Any = None

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank, self.size = rank, meeting.size
        self._meeting = meeting
        self.num_made = 0

    def alone(self) -> AbstractContextManager[None]:
        return nullcontext()

    def sum(self, x: Tensor) -> Tensor:
        self.num_made += 1
        return torch.stack(self._meeting.all_of(self.rank, x)).sum(0)

    def gather(self, x: Tensor) -> Tensor:
        self.num_made += 1
        return torch.stack(self._meeting.all_of(self.rank, x))

    def take_over(self, x: Tensor) -> None:
        self.num_made += 1
        x.copy_(self._meeting.all_of(self.rank, x.clone())[0])


class Meeting:
    def __init__(self, size: int) -> None:
        self.size = size
        self._there: list[Any] = [None] * size
        self._barrier = threading.Barrier(size, timeout=120)

    def abort(self) -> None:
        """Every rank that waits, or will, has an error."""
        self._barrier.abort()

    def all_of(self, rank: int, x: Tensor) -> list[Tensor]:
        self._there[rank] = x
        self._barrier.wait()
        found = list(self._there)
        self._barrier.wait()
        return found

    def run(self, work: Callable[[ThreadCollectives], T]) -> list[T]:
        """The result of `work` on each rank; the first error of any."""
        results: list[Any] = [None] * self.size
        errors: list[BaseException] = []

        def one(rank: int) -> None:
            try:
                with torch.inference_mode():
                    results[rank] = work(ThreadCollectives(rank, self))
            except BaseException as error:
                if not isinstance(error, threading.BrokenBarrierError):
                    errors.append(error)
                self._barrier.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return results
