r"""The marks of a parallel block, found in text while it is written (PDOS, section 3, stage 1).

    Let us look at each of them.
    ####Anna:......              marker, title, title end, placeholder
    ####Ben:......
    ####%%%%                     terminator

Everything is matched on decoded text, so it does not matter how a tokenizer cuts a mark, or whether
it glues one to its neighbours. `MarkerWatch` finds the first mark in running text and holds back what
may become one; `TitleReader` reads what stands behind a marker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields

from manyhands.errors import InvalidRequest
from manyhands.schema.setting import setting


@dataclass(frozen=True)
class MarkerProfile:
    """The four marks. A model that was trained on others gets a profile of its own."""

    marker: str = setting("####", "Opens a title.", by="set")
    title_end: str = setting(":", "Closes a title.", by="set")
    placeholder: str = setting("......", "Stands behind a title until its branch begins.", by="set")
    terminator: str = setting("####%%%%", "Closes a block of branches.", by="set")

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, str) or not value.strip() or len(value.splitlines()) != 1:
                raise InvalidRequest(
                    f"the mark '{field.name}' is {value!r}; expected one line that is not blank"
                )
        if self.terminator == self.marker or self.marker in self.placeholder + self.title_end:
            raise InvalidRequest(
                f"the marker {self.marker!r} is the terminator or part of another mark",
                hint="make all marks different; only the terminator may begin with the marker",
            )

    @property
    def closing(self) -> str:
        """The text that closes a block behind a marker: the terminator, less the marker it begins with."""
        return self.terminator.removeprefix(self.marker)

    def title(self, title: str) -> str:
        """The words that open a branch."""
        return self.marker + title + self.title_end

    def between_titles(self) -> str:
        """The words that are forced behind a title's end."""
        return f"{self.placeholder}\n{self.marker}"


class MarkerWatch:
    """Watches text go by up to the first mark. `push` returns text that is certainly none.

    After `found` is set, `rest` is the text behind it and nothing more is read. `pending` is held
    back: it is the beginning of a mark, so far.
    """

    def __init__(self, marks: Iterable[str]) -> None:
        self._marks = sorted(marks, key=len, reverse=True)  # the longest one wins
        self.found: str | None = None
        self.rest = ""
        self.pending = ""

    def push(self, piece: str) -> str:
        """Read on, and return what became certain."""
        text, self.pending = self.pending + piece, ""
        places = [(text.find(mark), mark) for mark in self._marks if mark in text]
        if places:
            start, self.found = min(places, key=lambda place: place[0])
            self.rest = text[start + len(self.found) :]
            return text[:start]
        held = max((_overlap(text, mark) for mark in self._marks), default=0)
        self.pending = text[len(text) - held :]
        return text[: len(text) - held]


class MarkEraser:
    """Leaves markers and terminators out of running text, where they have no meaning any more.

    `push` returns text that is certain; `rest` is the text that is held back, should nothing follow.
    """

    def __init__(self, profile: MarkerProfile) -> None:
        self._marks = (profile.terminator, profile.marker)  # the longer one first
        self._pattern = re.compile("|".join(map(re.escape, self._marks)))
        self._pending = ""

    def push(self, piece: str) -> str:
        """Read on, and return what became certain."""
        text = self._pending + piece
        size = len(text) - max(_overlap(text, mark) for mark in self._marks)
        self._pending = text[size:]
        return self._pattern.sub("", text[:size])

    @property
    def rest(self) -> str:
        """The text that is held back, without the marks in it."""
        return self._pattern.sub("", self._pending)


class TitleReader:
    """Reads what stands behind a marker in an open block.

    `outcome` is None while it is undecided, then "title", "closed" (by the terminator) or "broken":
    a line that ends, or another marker, before the title does, or an empty title. `rest` is what
    was read beyond the mark that decided.
    """

    def __init__(self, profile: MarkerProfile) -> None:
        self._profile = profile
        self.text = ""
        self.title = self.rest = ""
        self.outcome: str | None = None

    @property
    def words(self) -> str:
        """The text that was read, less a terminator: text like any other if the marker before it was none."""
        return self.rest if self.outcome == "closed" else self.text

    def push(self, piece: str) -> None:
        """Read on."""
        self.text += piece
        bare, closing = self.text.lstrip(" "), self._profile.closing
        if bare.startswith(closing):
            self.outcome, self.rest = "closed", bare[len(closing) :]
        elif not closing.startswith(bare):  # else it may still become the terminator
            self._read_title()

    def _read_title(self) -> None:
        title, end, rest = self.text.partition(self._profile.title_end)
        if "\n" in title or self._profile.marker in title or (end and not title.strip()):
            self.outcome = "broken"
        elif end:
            self.outcome, self.title, self.rest = "title", title.strip(), rest


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of `text` could begin `mark`."""
    longest = min(len(text), len(mark) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(mark[:size])), 0)
