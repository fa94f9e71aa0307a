"""The blocks that each worker reads, as they change: a page draws views from them (`strategies/events.py::ViewsChanged`)."""

from __future__ import annotations

from collections.abc import Iterator

from manyhands.cache.step import StandIn, Step
from manyhands.cache.view import View
from manyhands.replay.trace import Recorder
from manyhands.schema.lines import Line
from manyhands.strategies.events import BlockIds, ViewsChanged, block_ids


class Seating(Recorder):
    """A Recorder of views alone. Blocks have the numbers that a trace of the run gives them."""

    def __init__(self) -> None:
        # A method of its own would be a circle, which waits for a collection of garbage.
        self._lines: list[Line] = []
        super().__init__(self._lines.append)
        self._new: dict[int, str] = {}  # blocks that no event has named yet
        self._seats: dict[str, int] = {}  # of each writer, the number of the view that it reads

    def changes(self, step: Step, forward_pass: int) -> Iterator[ViewsChanged]:
        """One event if a writer of this step reads another view than before, or has just come."""
        views = {}
        for row in (step.origin if isinstance(step, StandIn) else step).rows:
            number = self._view_id(row.view)
            if row.writer is not None and self._seats.get(row.writer) != number:
                self._seats[row.writer] = number
                views[row.writer] = self._ids(row.view)
        self._new |= {line["id"]: line["name"] for line in self._lines if line["kind"] == "block"}
        self._lines.clear()
        if views:
            blocks, self._new = self._new, {}
            yield ViewsChanged(forward_pass, views, blocks)

    def _ids(self, view: View) -> tuple[BlockIds, ...]:
        return tuple(block_ids(self._item(item)) for item in view.items)
