"""How much of a pass is begun for a guess: what the device has to do while the host finds out whether the guess is right.

A recording has parts. For a guess its first ones are begun, the *head*. If the head is shorter than the host takes, the
device waits for the host in every pass; if it is longer, a wrong guess costs more than it must. How long the host takes
depends on the machine, on the rows and on the strategy, and differs by a factor of four; so it is not known beforehand. It
is seen: where a guess was right, marks behind the parts tell how far the device has come by then.

    the device is done with all of them, once in four times    one part more
    it is in the last part but one, nineteen times of twenty    one part less

Where the device is done with the longest head too, as with a small network, no head is long enough: then whole passes may be begun.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from manyhands.engine.recorder import Mark, Repeat

_PART_BYTES = 3 << 29  # of weights: half a millisecond on an H200
_MOST_PARTS = 3  # of a head
_FIRST = 2  # parts of a head, until it is known better
_SEEN = 16  # about so many of the last right guesses count
_TOO_OFTEN, _NEARLY_ALWAYS = 0.25, 0.95


def part_ends(
    num_bytes: int, num_layers: int, attending: Sequence[int] | None = None
) -> tuple[int, ...]:
    """The layers at which parts of a network with so many bytes of weights end; behind the last of them comes the rest.

    No head has more than half of the layers. With one layer the only part ends at its attention. `attending`: the layers with attention, in
    order; None: all. Each part ends at one of them: the last one in time, or where all come later, the first.
    """
    most = num_layers // 2
    layers = _PART_BYTES * num_layers / max(1, num_bytes)
    ends = (max(1, round(layers * count)) for count in range(1, _MOST_PARTS + 1))
    wanted = sorted({min(most, end) for end in ends})
    if attending is None:
        return tuple(wanted)
    return tuple(
        sorted({max((at for at in attending if at <= end), default=attending[0]) for end in wanted})
    )


class Heads:
    """The length of heads, in parts, as it was right lately."""

    def __init__(self, ends: Sequence[int], mark: Callable[[], Mark]) -> None:
        """`ends`: of the parts that a head may have, see `part_ends`."""
        self._marks = [mark() for _ in ends]
        self.num_parts = min(_FIRST, len(ends))
        self._num_begun = 0
        self._idle = self._spare = 0.0  # shares of the last guesses
        self.are_too_short = False  # all of them, the longest included

    def begin(self, parts: Sequence[Repeat]) -> None:
        """Begin these parts of a recording, `num_parts` of them, each with a mark behind it."""
        for repeat, mark in zip(parts, self._marks, strict=False):
            repeat()
            mark.record()
        self._num_begun = len(parts)

    def was_right(self) -> None:
        """The host has found that the guess is right, and is about to ask for the rest."""
        begun, self._num_begun = self._num_begun, 0
        if begun != self.num_parts:
            return  # none, or the length has changed since
        num_done = sum(mark.query() for mark in self._marks[:begun])
        self._idle += ((num_done == begun) - self._idle) / _SEEN
        self._spare += ((num_done <= begun - 2) - self._spare) / _SEEN
        is_longest = begun == len(self._marks)
        self.are_too_short = is_longest and self._idle > _TOO_OFTEN
        if self._idle > _TOO_OFTEN and not is_longest:
            self._change(begun + 1)
        elif self._spare > _NEARLY_ALWAYS:
            self._change(begun - 1)

    def _change(self, num_parts: int) -> None:
        self.num_parts = num_parts
        self._idle = self._spare = 0.0
