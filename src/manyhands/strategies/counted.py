"""A run that counts its passes: the course and the passes that all methods share.

A course has four parts: `begin` asks for memory, `work` makes the passes, `end` adds those that come behind, and
`result` is the answer. Rows in `opening` put prompts into memory: they are fed with the next pass, and what it
brought to them is in `opened`.

`strategies/budgeted.py` adds a budget, snapshots and endings for the methods that answer one question;
`strategies/shared_prefix.py` adds prompts that are found and rows that come and go.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Sequence
from typing import Protocol, TypeVar

from manyhands.cache.logprobs import Logprobs, logprobs_of, part_of
from manyhands.cache.step import Row, Step
from manyhands.errors import InvalidRequest
from manyhands.strategies.base import Answer, AnswerT, Work

AnswerT_co = TypeVar("AnswerT_co", bound=Answer, covariant=True)


class _Course(Protocol[AnswerT_co]):
    """The four parts of a run, the last of which says which kind of Answer it gives."""

    def begin(self) -> Work[None]: ...

    def work(self) -> Work[None]: ...

    def end(self) -> Work[None]: ...

    def result(self) -> AnswerT_co: ...


class CountedRun(ABC):
    """The passes of one run, and its course from `Reserve` to `Answer`."""

    def __init__(self) -> None:
        self.opening: list[Row] = []  # fed along with the next pass, besides the rows that write
        self.opened: tuple[int, ...] = ()  # the newest pass answered these for them
        self.logprobs: Sequence[Logprobs | None] = ()  # of the newest pass's tokens, row by row
        self.passes = 0

    def play(self: _Course[AnswerT]) -> Work[AnswerT]:
        """The strategy. InvalidRequest, in the run, for a part that is no generator."""
        for part in (self.begin, self.work, self.end):
            passes: object = part()
            if not isinstance(passes, Generator):
                raise InvalidRequest(
                    f"`{part.__name__}` of a {type(self).__name__} returned a {type(passes).__name__}; expected a generator",
                    hint="Write `yield from` before what it calls, as in `yield from self.write([0])`; without passes, `yield from ()`.",
                )
            yield from passes
        return self.result()

    @abstractmethod
    def begin(self) -> Work[None]:
        """Ask for the memory that the run may need."""

    @abstractmethod
    def work(self) -> Work[None]:
        """The passes that the run is made for."""

    def end(self) -> Work[None]:
        """Passes behind the work."""
        yield from ()

    @abstractmethod
    def result(self) -> Answer:
        """The answer of the run."""

    def prepare(self) -> None:
        """While a pass is made, or never: work of the passes behind it that does not need its tokens. Here, none."""
        return

    def forward(self, rows: Iterable[Row]) -> Work[tuple[int, ...]]:
        """One counted pass; the tokens chosen for `rows`, and in `logprobs` what was told of them.

        The rows of `opening` are fed with it.
        """
        tokens = yield Step((*self.opening, *rows), self.prepare)
        assert isinstance(tokens, tuple), "a step is answered with one token per row"
        num_others, self.opening = len(self.opening), []
        self.passes += 1
        self.opened, chosen = part_of(tokens, 0, num_others), part_of(tokens, num_others)
        self.logprobs = logprobs_of(chosen)
        return chosen
