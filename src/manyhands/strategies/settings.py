"""All choices of the strategies, as frozen dataclasses that are checked when they are made.

The words are the same everywhere: a `budget` counts forward passes, `snapshots` are smaller budgets at
which the answer is also wanted, `choice` says how tokens are chosen and `seed` drives every draw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from manyhands.cache.layouts import LAYOUTS
from manyhands.cache.step import GREEDY, Choice
from manyhands.errors import InvalidRequest
from manyhands.text.markers import MarkerProfile

MAX_WORKERS = 256
HEADER_MODES = ("in_context", "alone")
MOVES = ("rotate", "reencode")
ANSWERS = ("boxed", "none", "auto")
JOINS = ("reencode", "stitch", "keep")


def check_budget(budget: int, snapshots: tuple[int, ...]) -> None:
    """InvalidRequest unless `budget` is a number of passes, and all snapshots are smaller ones."""
    if budget < 1:
        raise InvalidRequest(f"budget is {budget}; expected 1 forward pass or more")
    if not all(0 < snapshot < budget for snapshot in snapshots):
        raise InvalidRequest(
            f"snapshots are {snapshots}; expected passes below the budget of {budget}"
        )


@dataclass(frozen=True)
class EndSettings:
    """How to end. The paper allows 16 tokens for integers, 64 for formulae, 1024 for code.

    `answer` says whether an answer in a box is asked for: `boxed`; `none`, for open questions, whose
    answer is the reply; or `auto`, boxed where the problem speaks of a box or holds a digit. `total`
    bounds the passes of the whole run: the work ends in time for the finisher, which is followed by a
    reply as far as passes are left. Snapshots count, too.
    """

    finisher: bool = True  # ask for the answer when the budget is spent
    finisher_tokens: int = 64
    # The finisher encodes all text anew, as one ordinary sequence; the reply reads the blocks.
    reencode: bool = False
    reply: bool = True  # write a reply to the user
    reply_tokens: int = 512
    answer: str = "boxed"
    total: int | None = None  # passes of work, snapshots, finisher and reply; None: no bound

    def __post_init__(self) -> None:
        for name in ("finisher_tokens", "reply_tokens"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} is {getattr(self, name)}; expected 1 or more")
        if self.total is not None and self.total < 1:
            raise InvalidRequest(f"total is {self.total}; expected 1 forward pass or more, or none")
        if self.answer not in ANSWERS:
            raise InvalidRequest(f"answer is {self.answer!r}; expected one of {', '.join(ANSWERS)}")

    def asks(self, problem: str) -> bool:
        """Whether an answer to this problem is asked for, if none was found."""
        has_box = "boxed" in problem or any(char.isdigit() for char in problem)
        return self.finisher and (self.answer == "boxed" or (self.answer == "auto" and has_box))


@dataclass(frozen=True)
class Away:
    """Worker `worker` takes no part in passes `first`..`last` (from 1): joins late, or pauses."""

    worker: int
    first: int
    last: int


@dataclass(frozen=True)
class TeamSettings:
    """All choices of a team run.

    `budget` counts forward passes. `check_every` is the number of tokens, over all workers, between
    redundancy checks; 0 asks for none. `snapshots` are smaller budgets at which the answer is also
    wanted. `headers` says whether section headers are encoded after the prompt (`in_context`) or by
    themselves (`alone`, as the authors' first code did). `moves` says how a finished step comes into
    the history: its keys are turned (`rotate`), or its text is fed once more where it now stands
    (`reencode`, the ablation of app. E.1). `insertions` put words in a worker's mouth at the beginning
    of a step: (worker, step from 1) -> text.
    """

    workers: int = 2
    layout: str = "combined"
    budget: int = 2048
    check_every: int = 1024
    headers: str = "in_context"
    moves: str = "rotate"
    choice: Choice = GREEDY
    seed: int = 0
    snapshots: tuple[int, ...] = ()
    away: tuple[Away, ...] = ()
    insertions: Mapping[tuple[int, int], str] = field(default_factory=dict)
    end: EndSettings = field(default_factory=EndSettings)

    def __post_init__(self) -> None:
        limits = (
            ("workers", self.workers, 1 <= self.workers <= MAX_WORKERS, f"1 to {MAX_WORKERS}"),
            ("check_every", self.check_every, self.check_every >= 0, "0 (never) or more tokens"),
            ("layout", self.layout, self.layout in LAYOUTS, f"one of {', '.join(LAYOUTS)}"),
            ("headers", self.headers, self.headers in HEADER_MODES, "in_context or alone"),
            ("moves", self.moves, self.moves in MOVES, "rotate or reencode"),
        )
        for name, value, ok, expected in limits:
            if not ok:
                raise InvalidRequest(f"{name} is {value!r}; expected {expected}")
        check_budget(self.budget, self.snapshots)
        if self.moves == "reencode" and self.layout == "contiguous":
            raise InvalidRequest(
                "moves is 'reencode', and in the contiguous layout nothing moves",
                hint="choose the layout combined or interleaved",
            )


@dataclass(frozen=True)
class SoloSettings:
    """All choices of a sequential run; the same words as in `TeamSettings`."""

    budget: int = 2048
    choice: Choice = GREEDY
    seed: int = 0
    snapshots: tuple[int, ...] = ()
    end: EndSettings = field(default_factory=EndSettings)

    def __post_init__(self) -> None:
        check_budget(self.budget, self.snapshots)


@dataclass(frozen=True)
class BranchSettings:
    """All choices of a run with parallel branches; the other words as in `SoloSettings`.

    `join` says how finished branches become one text again: `reencode`, `stitch` or `keep` (see
    `strategies/branch_joins.py`). A block holds at most `max_branches` titles of `title_tokens` each,
    a branch writes at most `branch_tokens`. After `max_blocks` blocks, or with 0 of them, the run is
    ordinary sequential decoding. With `join_distance`, whoever runs this is asked to measure how far
    each join was from the exact text (`replay/joins.py`); the run itself stays as it is.
    """

    budget: int = 2048
    join: str = "reencode"
    max_blocks: int = 4
    max_branches: int = 16
    branch_tokens: int = 256
    title_tokens: int = 48
    choice: Choice = GREEDY
    seed: int = 0
    snapshots: tuple[int, ...] = ()
    join_distance: bool = False
    markers: MarkerProfile = field(default_factory=MarkerProfile)
    end: EndSettings = field(default_factory=EndSettings)

    def __post_init__(self) -> None:
        if self.join not in JOINS:
            raise InvalidRequest(f"join is {self.join!r}; expected one of {', '.join(JOINS)}")
        if self.max_blocks < 0:
            raise InvalidRequest(f"max_blocks is {self.max_blocks}; expected 0 (none) or more")
        for name in ("max_branches", "branch_tokens", "title_tokens"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} is {getattr(self, name)}; expected 1 or more")
        check_budget(self.budget, self.snapshots)
