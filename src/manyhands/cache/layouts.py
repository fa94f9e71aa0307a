"""Layouts: from a cast of blocks to the view of each worker (Hogwild! Inference, app. A, figure 8).

    combined      prompt, history, others' header, (other desk, marker)..., own header, own desk
    contiguous    prompt, (other desk, marker)..., own header, own desk
    interleaved   prompt, history, own header, own desk

Others stand in ascending order. A view takes any number of workers, one included, and an empty block
in it is legal: the desk of a worker that has not come yet, or has left.

In the contiguous layout nothing ever joins the history: each desk grows from start to end.
In the interleaved one, others are seen only through the history, when a step is finished.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from manyhands.cache.block import Block
from manyhands.cache.view import Beginning, View


@dataclass(frozen=True, eq=False)
class Cast:
    """All blocks of a team. Headers and marker are read by all workers, in the order the layout says."""

    prompt: Block
    others_header: Block  # "work in progress of others"
    own_header: Block  # "own work in progress"
    marker: Block  # "more to come", closes every desk but one's own
    desks: tuple[Block, ...]  # one per worker: the worker's own unfinished block
    history: tuple[Block, ...] = ()  # finished steps of all workers, in the order they finished
    last: Beginning | None = (
        None  # the past of the cast before this one, from which its own may go on
    )

    def other_desks(self, worker: int) -> tuple[Block, ...]:
        """The desks of the others, each closed by the marker, in ascending order of the workers."""
        whole, at = self.whole, 2 * worker + 1
        return whole[1:at] + whole[at + 2 : -1]

    @cached_property
    def past(self) -> Beginning:
        """Prompt and history: with them the views of all workers begin."""
        return Beginning((self.prompt, *self.history), self.last)

    @cached_property
    def whole(self) -> tuple[Block, ...]:
        """All desks, each closed by the marker, between the headers: made once for the views of all workers."""
        closed = [block for desk in self.desks for block in (desk, self.marker)]
        return (self.others_header, *closed, self.own_header)

    @cached_property
    def are_desks_apart(self) -> bool:
        """Whether each desk is a block of its own, as one that is written to has to be: looked up once for all views."""
        others = {self.others_header, self.own_header, self.marker}
        is_each_once = len(others.union(self.desks)) == len(others) + len(self.desks)
        return is_each_once and not self.past.has_any(self.desks)


def combined(cast: Cast, worker: int) -> View:
    """Token-wise synchrony with a shared history: the main layout of the paper."""
    whole, at = cast.whole, 2 * worker + 1
    blocks = whole[:at] + whole[at + 2 :] + cast.desks[worker : worker + 1]
    return View.checked(blocks, cast.past) if cast.are_desks_apart else View(blocks, cast.past)


def contiguous(cast: Cast, worker: int) -> View:
    """Token-wise synchrony, no history: each worker keeps all of its text on its own desk."""
    return View((cast.prompt, *cast.other_desks(worker), cast.own_header, cast.desks[worker]))


def interleaved(cast: Cast, worker: int) -> View:
    """Step-wise synchrony: others are read once their step is finished, and not before."""
    return View((cast.own_header, cast.desks[worker]), cast.past)


@dataclass(frozen=True)
class Layout:
    """A layout: the view of each worker, and what the rest of the house has to know of it.

    `keeps_history`: a finished step joins the common history, and its worker goes on at a fresh desk.
    `sees_desks`: what others, or some of them, have not finished yet is read, too.
    """

    view: Callable[[Cast, int], View]
    keeps_history: bool
    sees_desks: bool

    def __call__(self, cast: Cast, worker: int) -> View:
        """The view of one worker."""
        return self.view(cast, worker)


# A new layout is one function and one row.
LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {
        layout.view.__name__: layout
        for layout in (
            Layout(combined, keeps_history=True, sees_desks=True),
            Layout(contiguous, keeps_history=False, sees_desks=True),
            Layout(interleaved, keeps_history=True, sees_desks=False),
        )
    }
)


@dataclass(frozen=True)
class HistoryMove:
    """How a finished step comes into the history. `encodes_again`: its text is fed once more there."""

    encodes_again: bool


MOVES: Mapping[str, HistoryMove] = MappingProxyType(
    {
        "rotate": HistoryMove(encodes_again=False),  # its keys are rotated to where it now stands
        "reencode": HistoryMove(encodes_again=True),  # the ablation of app. E.1
    }
)


def in_context(prompt: Block, others_header: Block) -> tuple[Block, ...]:
    """A header is encoded behind the prompt and the header before it."""
    return prompt, others_header


def alone(prompt: Block, others_header: Block) -> tuple[Block, ...]:
    """A header is encoded by itself, as the authors' first code did."""
    return ()


# Blocks that headers read while they are encoded, from the prompt and the header of others' work.
HEADERS: Mapping[str, Callable[[Block, Block], tuple[Block, ...]]] = MappingProxyType(
    {context.__name__: context for context in (in_context, alone)}
)


def everything(cast: Cast, tails: Sequence[Block], *last: Block) -> View:
    """The view of the finisher and the final reply: all that was written, then what they write.

    This is the last worker's view in the combined layout (paper, app. C, early stopping), whatever
    the layout of the run: at the end no unfinished step may be lost. A tail holds what its
    worker has written and not yet been fed, so that a run can be asked for its answer in passing,
    without a trace: the desks themselves are not touched.
    """
    *others, (own, own_tail) = zip(cast.desks, tails, strict=True)
    return View(
        (
            cast.prompt,
            *cast.history,
            cast.others_header,
            *(block for desk, tail in others for block in (desk, tail, cast.marker)),
            cast.own_header,
            own,
            own_tail,
            *last,
        )
    )
