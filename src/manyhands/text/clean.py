r"""Text that crosses our doors: a user's problem on its way in, a model's text on a terminal.

`clean_problem` takes away what no problem means to say (control characters, half surrogates) and
refuses what cannot be worked on. A problem may well contain a prompt's own section headers or a
model's special tokens: the first are disarmed by `TeamPrompt.team_message`, which knows its
headers, the second by `Text.encode` and `Text.chat_prompt`, which know the vocabulary.

`printable` makes control characters visible instead of obeyed: a model that writes `\x1b[2J` must
not clear the user's screen, and a right-to-left override must not reorder a line.
"""

from __future__ import annotations

import re
from typing import Final

from manyhands.errors import InvalidRequest

MAX_PROBLEM_CHARS: Final = 1_000_000

_LINE_ENDS = re.compile("\r\n|[\r\x0b\x0c\x85\u2028\u2029]")
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\ufeff]")
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and line feed, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks, embeddings and overrides of direction
    "\u2028\u2029\ufeff\ud800-\udfff]"  # foreign line ends, byte order mark, half surrogates
)


def clean_problem(text: str) -> str:
    """The problem as workers will read it, or `InvalidRequest` where there is nothing to solve."""
    if len(text) > MAX_PROBLEM_CHARS:
        raise InvalidRequest(
            f"the problem has {len(text):,} characters, at most {MAX_PROBLEM_CHARS:,} are read",
            hint="shorten the problem, or give the workers only the part they need",
        )
    problem = cleaned(text)
    if not problem:
        found = "is empty" if not text else "holds nothing but blanks and control characters"
        raise InvalidRequest(
            f"the problem {found}, expected some text", hint="write what is to be solved"
        )
    return problem


def cleaned(text: str) -> str:
    """`text` as valid Unicode without control characters and outer blanks, every line end a line feed."""
    return _CONTROLS.sub("", _LINE_ENDS.sub("\n", well_formed(text))).strip()


def printable(text: str) -> str:
    """`text` with every character a terminal could obey replaced by a visible one."""
    return _UNPRINTABLE.sub(_visible, text)


def well_formed(text: str) -> str:
    """`text` as valid Unicode: surrogate pairs joined, half ones replaced by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _visible(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)  # Unicode's own pictures of controls: ␛ for ESC
    return "\u2421" if code == 0x7F else "\ufffd"
