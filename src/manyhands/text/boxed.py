r"""The final answer: what stands inside the last complete `\boxed{...}`.

Braces are balanced (`\boxed{\frac{1}{2}}` is `\frac{1}{2}`), escaped ones do not count, `\fbox`
serves as well. A box that is still open is no answer, and neither is an empty one or one that only
repeats the instruction (`\boxed{}`, `\boxed{...}`, `\boxed{your answer}`). A box that holds nothing
but another box means what the inner one holds.

`BoxWatch` reads pieces of any size, character by character, at a cost that does not grow with the
text read so far; `boxed_answer` is a watch that was shown the whole text at once.
"""

from __future__ import annotations

import re

_BOXES = frozenset({"boxed", "fbox"})
_LONGEST = 1 + max(map(len, _BOXES))  # of a longer command's name we keep no more than this
_MEANS_SOMETHING = frozenset("\\{}")  # outside of boxes and commands
_PLACEHOLDER = re.compile(
    r"""[\s.…?_]*                                             # nothing, dots, blanks to fill in
      | \\[lcv]?dots[bcimo]?
      | (?:\\(?:text(?:bf|it|rm)?|mathrm)\s*)? [{<\[(]? \s*
        (?:(?:insert|the|your|my|final)[\s_-]+)* (?:answer|result|solution) (?:[\s_-]+here)?
        \s* [}>\])]?""",
    re.VERBOSE | re.IGNORECASE,
)


def boxed_answer(text: str) -> str | None:
    """The answer in the last complete box of `text`, or None."""
    return BoxWatch().push(text)


class BoxWatch:
    """Watches text go by; `push` returns the answer of a box that the piece completes."""

    def __init__(self) -> None:
        self._boxes: list[tuple[int, int]] = []  # open boxes: (depth around it, start in _inside)
        self._inside: list[str] = []  # characters since the outermost open box began
        self._depth = 0
        self._command: str | None = None  # letters after a backslash, while they come
        self._box_named = False  # `\boxed` was read, its brace was not

    def push(self, piece: str) -> str | None:
        """Read on. The answer of the last box closed by `piece`, None if none was."""
        if not self._boxes and self._command is None and _MEANS_SOMETHING.isdisjoint(piece):
            if self._box_named:
                self._box_named = not piece.strip()
            return None
        answer = None
        for char in piece:
            closed = self._read(char)
            if closed is not None:
                answer = closed
        return answer

    def _read(self, char: str) -> str | None:
        if self._boxes:
            self._inside.append(char)
        if self._command is not None:
            if char.isascii() and char.isalpha():
                self._command = (self._command + char)[:_LONGEST]
                return None
            escaped = self._command == ""  # `\{`, `\}` and `\\` stand for themselves
            self._box_named = self._command in _BOXES
            self._command = None
            if escaped:
                return None
        if char == "\\":
            self._command, self._box_named = "", False
        elif char == "{":
            self._open()
        elif char == "}":
            return self._close()
        elif not char.isspace():
            self._box_named = False
        return None

    def _open(self) -> None:
        if self._box_named:
            self._boxes.append((self._depth, len(self._inside)))
            self._box_named = False
        if self._boxes:
            self._depth += 1

    def _close(self) -> str | None:
        self._box_named = False
        if not self._boxes:
            return None
        self._depth -= 1
        depth, start = self._boxes[-1]
        if self._depth > depth:
            return None
        self._boxes.pop()
        content = "".join(self._inside[start:-1])
        if not self._boxes:
            self._inside.clear()
        return _answer(content)


def _answer(content: str) -> str | None:
    content = content.strip()
    wrapped = re.match(r"\\(?:boxed|fbox)\s*\{", content)
    if wrapped and _closes_at_end(content, wrapped.end()):
        return _answer(content[wrapped.end() : -1])
    return None if _PLACEHOLDER.fullmatch(content) else content


def _closes_at_end(content: str, start: int) -> bool:
    """Whether the brace opened just before `start` is closed by the last character."""
    depth = 1
    for brace in re.finditer(r"\\.|[{}]", content[start:], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return start + brace.end() == len(content)
    return False
