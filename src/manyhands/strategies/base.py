"""The contract between a strategy and whoever drives it.

A strategy is a generator. It *yields* a Step and is *sent* one token per row: the token chosen from
the logits after that row's feed. It returns its Answer. In between it may yield

    Reserve    how much memory it will need at most; it is resumed once there is room for it
    Event      something that a person watching would like to know; it is resumed at once
    Listen     it is resumed at once, with what was said to the run from outside (Heard), maybe nothing

    def echo(prompt):
        yield Reserve(num_tokens=len(prompt) + 10, num_blocks=1)
        view, feed = View([Block()]), prompt
        for _ in range(10):
            (token,) = yield Step([Row(view, feed)])
            feed = (token,)
        return Answer(text="...")

A step may bring work along that its driver can do while the step is fed (`Step.meanwhile`), or leave.

A strategy that listens does so first of all, before it reserves or asks for a pass: so its driver knows
whether there is anybody to talk to. A driver to which nothing can be said sends `Heard()`.

A strategy is run once, and does not run the engine itself: for another strategy's answer it says
`answer = yield from another`, whose rows are then its own.

Closing the generator cancels the strategy, and what its blocks held is freed. An error of the engine
(no memory, a context too long), and whatever `Reserve.renew` raises, is thrown into the generator that asked, and only
there.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from manyhands.cache.step import Row, Step
from manyhands.errors import InvalidRequest
from manyhands.schema.plain import hold_own
from manyhands.schema.setting import (
    as_found,
    check_function,
    check_given,
    is_whole,
    own_number,
)
from manyhands.strategies.events import Event
from manyhands.strategies.listening import Heard, Listen


@dataclass(frozen=True)
class Reserve:
    """An upper bound of what the strategy will keep in memory, in tokens and in blocks.

    `renew` says it anew while the strategy waits, where that depends on what others do. Asked again, for
    no more than it has, the strategy goes on before the next pass: so it can wait for others.
    `num_shared_tokens` are those of them that a prefix tree will keep for others too.

    `prompt` is the row of the first step that puts the prompt into memory, counted with the others. Its block
    is only read afterwards, and no use is made of its token: so keys that are there already can stand in
    for it (`strategies/prompt_sharing.py`).
    """

    num_tokens: int
    num_blocks: int
    renew: Callable[[], Reserve] | None = field(default=None, compare=False, repr=False)
    num_shared_tokens: int = 0
    prompt: Row | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("num_tokens", "num_blocks", "num_shared_tokens"):
            value = own_number(getattr(self, name))
            if not is_whole(value) or value < 0:
                raise InvalidRequest(
                    f"a strategy reserves with {name} {as_found(value)}; expected a whole number, 0 or more",
                    hint="Write Reserve(num_tokens=500, num_blocks=2), for instance.",
                )
            object.__setattr__(self, name, value)
        if self.renew is not None:
            check_function(self.renew, "to renew a reservation", "Let it return a Reserve.")
        if self.prompt is not None:
            hint = "Give the row of the first step that feeds it."
            check_given(self.prompt, Row, "as the prompt of a reservation", hint)

    def now(self) -> Reserve:
        """The bound as it is now. Raises what `renew` raises, and InvalidRequest if that says no bound."""
        if self.renew is None:
            return self
        found: object = self.renew()
        if not isinstance(found, Reserve):
            raise InvalidRequest(
                f"a reservation was renewed by a {type(found).__name__}; expected a Reserve",
                hint="Let the function that is given as `renew` return one.",
            )
        return found


@dataclass(frozen=True)
class FinishedStep:
    """One step of one worker as it stands in the transcript, and the passes in which it was written.

    `checked`: it began with the question whether the work is redundant.
    """

    worker: int
    step: int
    text: str
    first_pass: int
    last_pass: int
    checked: bool = False

    def __post_init__(self) -> None:
        _hold(self, FinishedStep)


@dataclass(frozen=True)
class Answer:
    """The result of a run, and its evidence.

    `answer` is the content of the final box, None if there was none; `text` the reply to the user.
    `finish_reason` is "answer" (a box was closed), "stopped" (every worker ended its turn), "budget",
    "context" (the model's positions reach no further) or "asked" (for the answer, by `AnswerNow`). `forward_passes` are those counted against
    the budget; `extra_passes` those of the finisher, of snapshots and of the reply, which no method is
    charged for (paper, section 4.1). `tokens` were written by each worker, prefixes not counted.
    `prompt_tokens` are those of each prompt, and `found` of them were in memory when the run came.
    `stopped_at` is the stop text at which the reply was cut, None if it came to none. `is_cut`: the reply ends
    where budget, context or another bound had it end, and not by itself.

    Numbers of other libraries are held as Python's own, lists and arrays as tuples. Raises InvalidRequest for a value of another
    kind: an `answer` is a text, or None.
    """

    text: str
    answer: str | None = None
    finish_reason: str = "stopped"
    forward_passes: int = 0
    extra_passes: int = 0
    tokens: tuple[int, ...] = ()
    steps: tuple[FinishedStep, ...] = ()
    snapshots: Mapping[int, str | None] = field(default_factory=dict)
    prompt_tokens: tuple[int, ...] = ()
    found: tuple[int, ...] = ()
    stopped_at: str | None = None
    is_cut: bool = False

    def __post_init__(self) -> None:
        _hold(self, Answer)


def _hold(value: Answer | FinishedStep, kind: type[Any]) -> None:
    try:
        hold_own(value, kind)
    except TypeError as error:
        name = type(value).__name__
        raise InvalidRequest(
            f"the fields of {name} do not fit: {error}",
            hint=f"Write {name}(...) with texts and numbers as they are annotated.",
        ) from error


Asked = Step | Reserve | Listen | Event
"""All that a strategy may yield."""

Sent = tuple[int, ...] | Heard | None
"""What it is sent: one token per row of a Step, a Heard for a Listen, and None for the others."""

Strategy = Generator[Asked, Any, Answer]
"""A strategy. Which kind of `Sent` a `yield` gives depends on what was asked, and no type says that: so it is Any."""

AnswerT = TypeVar("AnswerT", bound=Answer)
"""The kind of Answer that a strategy returns, where what is made of the strategy depends on it."""


def check_generator(strategy: object) -> None:
    """Raise InvalidRequest if this is no strategy, as when its function was given uncalled."""
    if not isinstance(strategy, Generator):
        is_course = callable(getattr(strategy, "play", None))  # a CountedRun, whose room is above
        raise InvalidRequest(
            f"a {type(strategy).__name__} was given as a strategy; expected a generator",
            hint="Give what its `play` returns."
            if is_course
            else "Call the function that yields steps, and give what it returns.",
        )


T = TypeVar("T")
Work = Generator[Asked, Sent, T]
"""Part of a strategy; T is what comes of it. A whole one whose Answer is of a kind of its own, as `Work[Completions]`."""
