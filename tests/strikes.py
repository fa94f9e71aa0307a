"""Interrupts at every line of a story: its lines are noted once, and `KeyboardInterrupt` is raised at each of them.

A story is told in steps, and a step that was struck is asked for again. So a telling has room for a strike in each
of its steps, and there are as many tellings as the step with most places has. `--every-case` has one for each place.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from types import CodeType, FrameType
from typing import Any, NamedTuple

Line = tuple[CodeType, int]


class Place(NamedTuple):
    """One of the times at which a line is run: the `time`-th in a step of a story."""

    step: int
    code: CodeType
    line: int
    time: int = 1

    def __str__(self) -> str:
        return f"{self.code.co_qualname}, line {self.line}, in step {self.step}"


class Watch:
    """Notes the lines that are run in watched code; given places, raises at them, and once more `again` lines later."""

    def __init__(
        self,
        is_watched: Callable[[CodeType], bool],
        places: Iterable[Place] = (),
        again: int | None = None,
    ) -> None:
        self.is_watched, self.again = is_watched, again
        self.lines: list[tuple[int, Line]] = []  # with the step that ran each
        self.struck: list[Place] = []
        self.num_strikes = 0
        self.step = -1
        self._places = {place.step: place for place in places}
        self._notes = not self._places
        self._next: Place | None = None
        self._times_left = 0
        self._until_again: int | None = None

    def begin_step(self) -> None:
        self.step += 1
        self._next = self._places.get(self.step)
        self._times_left = self._next.time if self._next else 0
        self._until_again = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """An attempt at a step. A strike ends it: Python takes the function away that has raised."""
        is_armed = self._notes or self._next is not None or self._until_again is not None
        sys.settrace(self._call if is_armed else None)
        try:
            yield
        finally:
            sys.settrace(None)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if self._notes:
            return self._note if self.is_watched(code) else None
        if self._next is not None:
            return self._strike_there if code is self._next.code else None
        return self._strike_again if self.is_watched(code) else None

    def _note(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.lines.append((self.step, (frame.f_code, frame.f_lineno)))
        return self._note

    def _strike_there(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and self._next is not None and frame.f_lineno == self._next.line:
            self._times_left -= 1
            if not self._times_left:
                self.struck.append(self._next)
                self._next, self._until_again = None, self.again
                self._strike()
        return self._strike_there

    def _strike_again(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and self._until_again is not None:
            self._until_again -= 1
            if not self._until_again:
                self._until_again = None
                self._strike()
        return self._strike_again

    def _strike(self) -> None:
        self.num_strikes += 1
        sys.settrace(None)
        raise KeyboardInterrupt

    @property
    def names(self) -> set[str]:
        """Of the functions whose lines were noted."""
        return {code.co_name for _, (code, _) in self.lines}

    def places(self, times: Callable[[int], Iterable[int]]) -> list[Place]:
        """Of the lines that were noted: of each that was run so often, those of its `times`, in the order of the story."""
        where: dict[Line, list[int]] = defaultdict(list)
        for index, (_, line) in enumerate(self.lines):
            where[line].append(index)
        chosen = {its[time - 1] for its in where.values() for time in times(len(its))}
        found, counts = [], dict[tuple[int, Line], int]()
        for index, noted in enumerate(self.lines):
            counts[noted] = counts.get(noted, 0) + 1
            if index in chosen:
                step, line = noted
                found.append(Place(step, *line, counts[noted]))
        return found


def first_and_last(times: int) -> set[int]:
    return {1, times}


def every_time(times: int) -> range:
    return range(1, times + 1)


def tellings(places: Sequence[Place]) -> list[tuple[Place, ...]]:
    """As few as there can be, with at most one place of a step in each."""
    of_steps: dict[int, list[Place]] = defaultdict(list)
    for place in places:
        of_steps[place.step].append(place)
    together = zip_longest(*of_steps.values())
    return [tuple(place for place in each if place is not None) for each in together]


def strike_all(
    places: Sequence[Place], tell: Callable[[tuple[Place, ...]], Watch], *, alone: bool
) -> None:
    """Has the story told with a strike at every place; `alone`: one in each telling.

    Places that earlier strikes of their telling have led past are told again without the others, until all are struck.
    """
    waiting = [(place,) for place in places] if alone else tellings(places)
    while waiting:
        missed: list[Place] = []
        for telling in waiting:
            watch = tell(telling)
            assert watch.struck, f"not struck: {telling[0]}"
            missed += [place for place in telling if place not in watch.struck]
        waiting = tellings(missed)
