r"""When does a worker's step end? (Hogwild! Inference, app. C; our reading of it.)

A step is about a paragraph. It ends with the token that completes a paragraph break, `\n\n`, if
the text before the break ends a sentence and neither a code fence nor a display formula is open:

    "So x = 4.\n\n"          ends: full stop, break
    "**So x = 4.**" "\n" "\n"   ends: closing marks hide nothing, two tokens make one break
    "We find:\n\n"           goes on: a colon announces more
    "```\na = 1.\n\n"        goes on: the fence is open

Sentence ends are those of many scripts (`。`, `؟`, `।`, …). A line of blanks counts as empty.
A `$$` or `\[` that is not closed within FORMULA_LIMIT characters was no formula: without this
a stray `$$` would keep its step open forever.

Headings, lists and formulas may go on without any full stop, and the others would never find them in
the history. So a long step ends sooner than a sentence does: from STEP_LIMIT characters on at any line feed
outside of fences and formulas, from twice as many on at any line feed, from three times as many on with
the piece that has just been read.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

FORMULA_LIMIT: Final = 4_000
STEP_LIMIT: Final = 2_000
_FENCE_LINE_LIMIT = 200  # a longer line is no fence; keeps the state small

_SENTENCE_ENDS = frozenset(
    ".?!"
    "\u2026\u203c\u203d\u2047\u2048\u2049\u2e2e"  # ellipsis, double and mixed marks
    "\u3002\uff0e\uff61\uff01\uff1f\ufe12\ufe52\ufe56\ufe57"  # Chinese, Japanese, full width
    "\u061f\u06d4\u0589\u037e"  # Arabic, Urdu, Armenian, Greek
    "\u0964\u0965\u104b\u17d4\u17d5\u0f0d\u0f0e"  # Indic, Burmese, Khmer, Tibetan
    "\u1362\u1367\u1803\u1809\u166e\u1c7e\u1c7f\uabeb\ua4ff"  # Ethiopic, Mongolian and others
)
# may stand between the punctuation and the break: plain quotes, Markdown emphasis, inline formula
_CLOSING_MARKS = frozenset("\"'*_`$")
# closing brackets, quotes of either direction (German closes with “), pictographs and their parts
_CLOSING_KINDS = frozenset({"Pe", "Pf", "Pi", "So", "Mn", "Cf"})
_MARKS = frozenset("\n\\$")  # of ends of lines, of escapes and formulas
_FORMULAE = {"$$": "$$", r"\[": r"\]"}  # the opening of a display formula: its end
_FENCE = re.compile(r"\s*(?:(`{3,})([^`]*)|(~{3,})(.*))", re.DOTALL)


class StepEnd:
    r"""Reads one step's text piece by piece. Make a new one for the next step.

    After `push` returned True, `end` is the index in that piece just behind the break. A token may
    carry text beyond it (`"\n\n\n"`, `"\n\n-"`): the step ends all the same, and `piece[end:]` is
    that text. A finished `StepEnd` reads nothing more and stays True.
    """

    def __init__(self) -> None:
        self.end: int | None = None
        self._num_chars = 0
        self._sentence_ended = False
        self._line = ""  # the beginning of the current line, enough to recognise a fence
        self._line_blank = False  # the first line has no break before it, so it is not a blank one
        self._fence = ""  # the marks that opened the code block we are in
        self._formula = ""  # the end of the display formula we are in
        self._formula_chars = 0
        self._previous = ""  # an unpaired backslash or dollar sign

    def push(self, piece: str) -> bool:
        """Read the newest piece. True if the step ended within it."""
        if self.end is not None:
            return True
        if not (self._fence or self._formula or self._previous) and _MARKS.isdisjoint(piece):
            self._read_words(piece)
            return self.end is not None
        for index, char in enumerate(piece):
            self._num_chars += 1
            if char == "\n":
                if self._end_line():
                    self.end = index + 1
                    return True
            else:
                self._read(char)
        if self._num_chars > 3 * STEP_LIMIT:
            self.end = len(piece)
        return self.end is not None

    def _read_words(self, piece: str) -> None:
        """A piece within a line, outside of code and formulas, without a mark that could begin one: as most are."""
        self._num_chars += len(piece)
        if len(self._line) <= _FENCE_LINE_LIMIT:
            self._line += piece
        if piece.strip():
            self._line_blank = False
        for char in reversed(piece):
            if char.isalpha():  # as most are; no mark is a letter
                self._sentence_ended = False
                break
            if char in _SENTENCE_ENDS:
                self._sentence_ended = True
                break
            if not _is_transparent(char):
                self._sentence_ended = False
                break
        if self._num_chars > 3 * STEP_LIMIT:
            self.end = len(piece)

    def _end_line(self) -> bool:
        """A line feed came. True if it completes a break that ends the step."""
        is_break = self._line_blank
        self._previous = ""
        if not self._formula:
            self._match_fence()
        self._line, self._line_blank = "", True
        if self._num_chars > 2 * STEP_LIMIT:
            return True
        if self._fence or self._formula:
            return False
        return (is_break and self._sentence_ended) or self._num_chars > STEP_LIMIT

    def _match_fence(self) -> None:
        found = _FENCE.fullmatch(self._line)
        if not found or len(self._line) > _FENCE_LINE_LIMIT:
            return
        marks, info = found[1] or found[3], found[2] or found[4] or ""
        if not self._fence:
            self._fence = marks
        elif marks.startswith(self._fence) and not info.strip():
            self._fence = ""
        self._sentence_ended = False  # code is no sentence, whatever it ends with

    def _read(self, char: str) -> None:
        if len(self._line) <= _FENCE_LINE_LIMIT:
            self._line += char
        if not char.isspace():
            self._line_blank = False
        if self._fence:
            return
        if self._formula:
            self._formula_chars += 1
            if self._formula_chars > FORMULA_LIMIT:
                self._formula = ""
        previous, self._previous = self._previous, ""
        if previous == "\\":
            self._read_escaped(char)
        elif char == "\\":
            self._previous = "\\"
        elif previous == "$" and char == "$":
            self._mark_formula("$$")
        else:
            if char == "$":
                self._previous = "$"
            if char in _SENTENCE_ENDS:
                self._sentence_ended = True
            elif not _is_transparent(char):
                self._sentence_ended = False

    def _read_escaped(self, char: str) -> None:
        r"""The character after a backslash: `\[`, `\]`, `\)`, or one that stands for itself."""
        self._mark_formula("\\" + char)
        if char not in ")]}" and not _is_transparent(char):
            self._sentence_ended = False

    def _mark_formula(self, mark: str) -> None:
        """Open or close a display formula if `mark` does so here."""
        if self._formula:
            if mark == self._formula:
                self._formula = ""
        elif mark in _FORMULAE:
            self._formula, self._formula_chars = _FORMULAE[mark], 0


def _is_transparent(char: str) -> bool:
    """Whether a sentence's end is still the end of the text if `char` follows it."""
    return char.isspace() or char in _CLOSING_MARKS or unicodedata.category(char) in _CLOSING_KINDS
