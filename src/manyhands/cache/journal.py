"""An undo log: a change of several parts that is complete or has not happened.

An interrupt (Ctrl-C) may be raised between any two bytecodes, also in the middle of a change of several
lists. A Journal notes what each part was *before* it is changed. Leaving the change forgets the notes,
in one store: at that moment the change has happened.

    with journal:
        journal.keep_tail(pages, len(pages))     the list may become longer,
        pages.append(7)
        journal.keep(strip, "num_tokens")        the attribute another,
        strip.num_tokens += 16
        journal.keep_item(places, block)         and the mapping may have another item here
        places[block] = strip

Notes are absolute (this attribute was 3, this list ended so), so taking back can be interrupted too and
done again. An interrupt may even prevent the clean-up of its own change; the next change does it then.
Therefore changes are never nested: notes that are found at the beginning of a change belong to an
earlier one that came to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

_NOTHING = object()


class Journal:
    """The notes of one change at a time. Entered, it begins a change; left, the change has happened."""

    def __init__(self) -> None:
        self.notes: list[Callable[[], object]] = []  # each makes one part what it was

    def keep(self, thing: Any, *names: str) -> None:
        """Note attributes of `thing`."""
        for name in names:
            self.notes.append(partial(setattr, thing, name, getattr(thing, name)))

    def keep_each(self, name: str, things: Sequence[Any]) -> None:
        """Note one attribute of many things; one note for all, where `keep` makes one for each."""
        values = [*map(attrgetter(name), things)]
        self.notes.append(partial(_set_each, name, things, values))

    def keep_tail(self, items: list[Any], start: int = 0) -> None:
        """Note what `items` holds from index `start` on; what stands before it must not change."""
        self.notes.append(partial(items.__setitem__, slice(start, None), items[start:]))

    def keep_item(self, mapping: dict[Any, Any], key: Any) -> None:
        """Note the item of `mapping` under `key`, or that there is none."""
        old = mapping.get(key, _NOTHING)
        undo = partial(mapping.pop, key, None)
        self.notes.append(undo if old is _NOTHING else partial(mapping.__setitem__, key, old))

    def take_back(self) -> None:
        """Make everything what it was, the newest note first."""
        while self.notes:
            self.notes[-1]()
            self.notes.pop()

    def __enter__(self) -> Journal:
        self.take_back()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.take_back()
        self.notes = []


def _set_each(name: str, things: Sequence[Any], values: Sequence[object]) -> None:
    for thing, value in zip(things, values, strict=True):
        setattr(thing, name, value)
