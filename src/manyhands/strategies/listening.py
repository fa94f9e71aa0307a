"""Words said to a run from outside while it goes on: Listen, and Heard.

A strategy that yields `Listen()` is sent `Heard(items)`: what was said to its run since it last
listened, most often nothing. It never waits. An item is plain data:

    Said              a person (or a program) says something to the team
    AddWorker         one more worker shall join
    PauseWorker       a worker shall write nothing for now; ResumeWorker: it goes on
    DismissWorker     a worker shall leave; its words stay
    AnswerNow         the time is up

What an item cannot say by itself (an empty text, say) is refused when it is made, with InvalidRequest.
Whether the run can follow it depends on the run at that very pass: what it cannot follow, it refuses
with a `RequestRefused` event, and goes on.

A run with things said is as exact as any other. What is heard is all that comes in, and it is recorded with
the number of the Listen that heard it; so a strategy that is sent the same tokens and the same Heards does
the same once more. The two sides:

    heard = yield Listen()                      # the strategy; strategies/base.py has the contract
    run.say(Said("Try it mod 7.", "Dana"))      # anybody, from any thread; engine/run.py
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from manyhands.errors import InvalidRequest
from manyhands.schema.setting import as_found, is_whole, own_number
from manyhands.strategies.registry import Registry
from manyhands.text.clean import cleaned

MAX_SAID_CHARS = 100_000
MAX_NAME_CHARS = 80
MAX_UNHEARD_CHARS = 4 * MAX_SAID_CHARS  # that wait until a run hears them, `Item.num_chars` counted
MAX_TOLD_CHARS = 10 * MAX_UNHEARD_CHARS  # that a run is told in its life
# Characters for which an item counts without its texts: it takes about as many bytes.
_ITEM_CHARS = 100


@dataclass(frozen=True)
class Item:
    """Root of what may be said to a run."""

    def __init_subclass__(cls) -> None:
        ITEMS.add(cls)

    @property
    def num_chars(self) -> int:
        """The characters for which it counts: those of its texts, and some for itself."""
        held = (getattr(self, each.name) for each in fields(self))
        return _ITEM_CHARS + sum(len(each) for each in held if isinstance(each, str))


ITEMS: Registry[Item] = Registry("item")


@dataclass(frozen=True)
class Said(Item):
    """`author` says `text`. Everybody reads it from the next pass on.

    The text is kept without control characters, as a problem is (`text/clean.py`). Raises InvalidRequest for an empty text, one of more than MAX_SAID_CHARS characters, and a name that is
    not one line.
    """

    text: str
    author: str

    def __post_init__(self) -> None:
        _check_name(self.author, "author")
        _check_text(self.text, f"the text that {self.author} said")
        object.__setattr__(self, "text", cleaned(self.text))
        if not self.text:
            raise InvalidRequest(
                f"{self.author} said nothing: the text is empty, or holds blanks and controls alone",
                hint="Say it in words.",
            )
        if len(self.text) > MAX_SAID_CHARS:
            raise InvalidRequest(
                f"{self.author} said {len(self.text)} characters at once; "
                f"expected at most {MAX_SAID_CHARS}",
                hint="Say the part that matters.",
            )


@dataclass(frozen=True)
class AddWorker(Item):
    """A worker of this name joins. Raises InvalidRequest for a name that is not one line."""

    name: str

    def __post_init__(self) -> None:
        _check_name(self.name, "worker")


@dataclass(frozen=True)
class PauseWorker(Item):
    """The worker of this number writes nothing until it is resumed."""

    worker: int

    def __post_init__(self) -> None:
        _check_number(self)


@dataclass(frozen=True)
class ResumeWorker(Item):
    """A paused worker writes again."""

    worker: int

    def __post_init__(self) -> None:
        _check_number(self)


@dataclass(frozen=True)
class DismissWorker(Item):
    """The worker leaves for good; what it was writing is kept as a finished step."""

    worker: int

    def __post_init__(self) -> None:
        _check_number(self)


@dataclass(frozen=True)
class AnswerNow(Item):
    """The work ends; the finisher is asked for the answer, as at the end of the budget."""


@dataclass(frozen=True)
class Listen:
    """Yielded by a strategy that wants to know what was said. See the module's letter."""


@dataclass(frozen=True)
class Heard:
    """The items said since the strategy last listened, in the order in which it was said."""

    items: tuple[Item, ...] = ()


NOTHING = Heard()


def check_item(item: object) -> None:
    """Raise InvalidRequest for what cannot be said to a run."""
    if not isinstance(item, Item):
        raise InvalidRequest(
            f"a {type(item).__name__} was said to a run; expected one of {', '.join(ITEMS.kinds)}",
            hint='For example: run.say(Said("Try it mod 7.", "Dana")).',
        )


def does_not_listen() -> InvalidRequest:
    """The error of words to a run of a method that hears none."""
    return InvalidRequest(
        "this method does not listen", hint="The method hogwild does: its workers read it."
    )


_LARGEST_NUMBER = 1 << 63  # of a worker: a team that has none of this number says it back


def _check_text(found: object, what: str) -> None:
    if not isinstance(found, str):
        raise InvalidRequest(
            f"{what} is of type {type(found).__name__}; expected a text",
            hint='For example: run.say(Said("Try it mod 7.", "Dana")).',
        )


def _check_name(name: str, whose: str) -> None:
    _check_text(name, f"the {whose}'s name")
    if not name.strip() or len(name.splitlines()) != 1 or len(name) > MAX_NAME_CHARS:
        raise InvalidRequest(
            f"the {whose}'s name is {name[: MAX_NAME_CHARS + 1]!r}; "
            f"expected one line of 1 to {MAX_NAME_CHARS} characters",
            hint="Give a short name.",
        )


def _check_number(item: PauseWorker | ResumeWorker | DismissWorker) -> None:
    """Hold the number of a worker as Python's own: what was heard is written to traces."""
    worker = own_number(item.worker)
    if not is_whole(worker) or abs(worker) > _LARGEST_NUMBER:
        raise InvalidRequest(
            f"the worker is {as_found(worker)}; expected its number",
            hint="The first worker is number 0.",
        )
    object.__setattr__(item, "worker", worker)
