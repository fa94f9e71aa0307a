"""The tokens fed to a run, in integers, so that its keys and values can be made again.

A preemptible run (`engine/preemption.py`) is followed by a Past. Each pass appends a few integers;
blocks and views are only remembered weakly, so what the strategy lets go of is gone.

    found     tokens that were in a block when the run met it: another run's, a shared prefix
    fed       tokens that the run fed to it
    ours      blocks that hold nothing but what the run fed, and that no other run reads

When the run is preempted, the pages of *ours* are freed. Everything the run has read is then either
here, to be replayed, or still in memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from itertools import islice

from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.step import Step
from manyhands.cache.view import View
from manyhands.replay.trace import Recorder, Trace, TracedItem, TracedRow, flat
from manyhands.schema.lines import Line


class Past(Recorder):
    """A Recorder that keeps what it is told, without the words and the chosen tokens."""

    def __init__(self) -> None:
        self._lines: list[Line] = []  # of blocks and views just met
        super().__init__(self._lines.append)
        self._names: list[str] = []
        self.found: list[int] = []  # of each block, the tokens it held when the run met it
        self._items: list[tuple[TracedItem, ...]] = []  # of each view
        self._freezes: dict[int, list[int]] = {}
        self._num_rows = array("q")  # of each pass
        self._rows = array("q")  # of each row of all passes, its view
        self._sizes = array("q")  # and its number of tokens
        self._tokens = array("q")  # of all rows
        self._newly: dict[Block, int] = {}
        self._num_parts = 0  # passes in which part of a step was fed
        self._last_part: Step | None = None
        self._num_open = 0  # of them, those of the step that is fed
        self._has_gap = False  # a pass was not noted to its end
        self._held: list[Block] = []  # found, and to be read again when the run comes back

    def remember(self, step: Step, num_passes: int) -> None:
        """One forward pass, after its feeds have joined their blocks; `num_passes` came before it.

        Nothing is noted twice. Interrupted, a Past has a gap for good: its run is preempted no more.
        """
        if len(self._num_rows) - self._num_parts <= num_passes:
            self._note(step)
        self._num_open = 0

    def remember_part(self, part: Step) -> None:
        """A pass in which part of a step was fed. The same part twice is one pass."""
        if part is not self._last_part:
            self._note(part, is_part=True)

    def forget_parts(self) -> None:
        """The step of which parts were fed has failed, and its blocks are what they were before. Interrupted: a gap, see `remember`."""
        if self._has_gap or not self._num_open:
            return
        self._has_gap = True
        num_rows = sum(self._num_rows[len(self._num_rows) - self._num_open :])
        first = len(self._rows) - num_rows
        num_tokens = sum(self._sizes[first:])
        del self._num_rows[len(self._num_rows) - self._num_open :]
        del self._rows[first:], self._sizes[first:]
        del self._tokens[len(self._tokens) - num_tokens :]
        self._num_parts -= self._num_open
        self._num_open = 0
        self._last_part = None
        self._has_gap = False

    def _note(self, step: Step, *, is_part: bool = False) -> None:
        if self._has_gap:
            return
        self._has_gap = True
        views = self._views
        for row in step.rows:
            number = views.get(row.view)
            if number is None:
                number = self._meet(row.view, step)
            self._rows.append(number)
            self._sizes.append(len(row.feed))
            self._tokens.extend(row.feed)
        self._num_rows.append(len(step.rows))
        if is_part:
            self._num_parts += 1
            self._num_open += 1
            self._last_part = step
        self._has_gap = False

    def _meet(self, view: View, step: Step) -> int:
        self._newly = {row.view.own: len(row.feed) for row in step.rows}
        number = self._view_id(view)
        for line in self._lines:
            self._keep(line)
        self._lines.clear()
        self._newly = {}
        return number

    def _block_id(self, block: Block) -> int:
        if block not in self._blocks:
            self.found.append(block.num_tokens - self._newly.get(block, 0))
            if self.found[-1] and block.frozen:
                self._held.append(block)
        return super()._block_id(block)

    def _keep(self, line: Line) -> None:
        match line["kind"]:
            case "block":
                self._names.append(line["name"])
            case "view":
                self._items.append(tuple(line["blocks"]))
            case "freeze":
                self._freezes.setdefault(len(self._num_rows), []).append(line["block"])

    def ours(self, pool: PagePool, is_read: Callable[[Block], bool]) -> list[Block] | None:
        """The blocks whose pages can be freed. None if the run could not come back: it has read what
        is gone, or what another run writes too, or a pass is missing. `is_read`: whether another run is about to read it.
        """
        if self._has_gap:
            return None
        known = list(self._blocks.items())
        fed = self._num_fed()
        alive = {number for _, number in known}
        if any(found and number not in alive for number, found in enumerate(self.found)):
            return None
        if any(block.num_tokens != self.found[n] + fed[n] for block, n in known):
            return None
        if pool.states is not None and any(self.found[n] and fed[n] for _, n in known):
            return None  # the state with which it was found is gone
        return [
            block
            for block, n in known
            if fed[n] and not self.found[n] and not pool.is_kept(block) and not is_read(block)
        ]

    def _num_fed(self) -> list[int]:
        fed = [0] * len(self._names)
        owners = [flat(items)[-1] for items in self._items]
        for view, size in zip(self._rows, self._sizes, strict=True):
            fed[owners[view]] += size
        return fed

    def before_step(self) -> dict[int, int]:
        """Of blocks to which parts of the step were fed that goes on, how many tokens each had before it, by their numbers."""
        if not self._num_open:
            return {}
        first = sum(self._num_rows[: len(self._num_rows) - self._num_open])
        fed, owners = self._num_fed(), [flat(items)[-1] for items in self._items]
        sizes = {owners[view]: self.found[owners[view]] for view in self._rows[first:]}
        for number in sizes:
            sizes[number] += fed[number]
        for view, size in zip(self._rows[first:], self._sizes[first:], strict=True):
            sizes[owners[view]] -= size
        return sizes

    def trace(self) -> Trace:
        """The passes as a Trace, without the tokens that were chosen and the names of writers."""
        sizes, tokens = iter(self._sizes), iter(self._tokens)
        views = iter(self._rows)

        def rows(count: int) -> Iterator[TracedRow]:
            for view in islice(views, count):
                yield TracedRow(view, tuple(islice(tokens, next(sizes))), 0, None)

        passes = [tuple(rows(count)) for count in self._num_rows]
        return Trace({}, self._names, self._items, passes, self._freezes)

    def blocks(self) -> dict[int, Block]:
        """The blocks that are still there, by their numbers in the trace."""
        return {number: block for block, number in self._blocks.items()}
