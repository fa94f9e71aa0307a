r"""StepEnd: a break after a sentence ends a step, inside code and formulae it does not."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.text import StepEnd
from manyhands.text.steps import FORMULA_LIMIT, STEP_LIMIT

ENDS = [
    "So x = 4.\n\n",
    "Is it four?\n\n",
    "Done!\n\n",
    "And so on…\n\n",
    "**So x = 4.**\n\n",
    "_He said: “It is four.”_\n\n",
    'He said "four."\n\n',
    "(It is four.)\n\n",
    "`It is four.`\n\n",
    "Er sagte: „Es ist vier.“\n\n",
    "We get $x = 4.$\n\n",
    r"It is \(x = 4.\)" + "\n\n",
    r"It is \boxed{4}." + "\n\n",
    "It is done. ✅\n\n",
    "It costs \\$4.\n\n",
    "答案是四。\n\n",
    "答案是四！」\n\n",
    "الجواب أربعة؟\n\n",
    "उत्तर चार है।\n\n",
    "Four.  \n  \n",
    "Four.\r\n\r\n",
    "First:\n\n- one,\n- two.\n\n",
    "\n\nSo it is four.\n\n",
    "```python\na = 1.\n\nb = 2.\n```\nThat is the code.\n\n",
    "~~~\na.\n\n```\nb.\n~~~\nThat is the code.\n\n",
    "```` md\n```\na.\n```\n\n````\nThat is it.\n\n",
    "$$\nx = 4.\n$$\n\n",
    "\\[ x = 4.\n\n y \\]\nSo it is four.\n\n",
    "Inline ``` marks are no fence.\n\n",
    "A row \\\\[2pt] is no formula.\n\n",
    "```inline``` code is no fence.\n\n",
]
GOES_ON = [
    "We find:\n\n",
    "one,\n\n",
    "one;\n\n",
    "no mark\n\n",
    "# A heading\n\n",
    "One line.\nThe next",
    "One line.\n",
    "\n\n",
    "**\n\n",
    "Code.\n```python\na = 1.\n\n",
    "Code.\n  ~~~\na = 1.\n\n",
    "Code.\n```\na.\n~~~\n\n",
    "Code.\n````\na.\n```\n\n",
    "```\na.\n```python\n\n",
    "```\nprint('a.')\n1.\n```\n\n",
    "$$\nx = 4.\n\n",
    "\\[ x = 4.\n\n",
    "\\[ x \\\\[2pt] y = 4.\n\n",
    "$$$$ $$ x.\n\n",
]


def ended(pieces: Iterable[str]) -> int | None:
    """The number of the piece that ended the step."""
    step = StepEnd()
    return next((number for number, piece in enumerate(pieces) if step.push(piece)), None)


@pytest.mark.parametrize("text", ENDS)
def test_ends(text: str) -> None:
    assert ended([text]) == 0
    assert ended(text) == len(text) - 1


@pytest.mark.parametrize("text", GOES_ON)
def test_goes_on(text: str) -> None:
    assert ended([text]) is None
    assert ended(text) is None


@given(st.sampled_from(ENDS + GOES_ON), st.lists(st.integers(0, 60), max_size=6))
def test_pieces_of_any_size_agree(text: str, cuts: list[int]) -> None:
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(borders)]
    assert (ended(pieces) is not None) == (text in ENDS)


@given(st.lists(st.text("ab .?:)`~$[]\\\n\u3002\U0001f642é", max_size=9), max_size=12))
def test_a_piece_is_read_as_its_characters_are(pieces: list[str]) -> None:
    """Words of a line are read at once; nothing of what is known may differ."""
    whole, one_by_one = StepEnd(), StepEnd()
    for piece in pieces:
        ended_whole = whole.push(piece)
        ended_one_by_one = one_by_one.end is not None
        for char in piece:
            ended_one_by_one = one_by_one.push(char)
        assert ended_whole == ended_one_by_one
        if ended_whole:
            return
        assert vars(whole) == vars(one_by_one)


@pytest.mark.parametrize("size", [1, 7, 6001])
def test_a_long_line_ends_whatever_its_pieces(size: int) -> None:
    step, read = StepEnd(), 0
    while not step.push("a" * size):
        read += size
    assert read <= 6000 < read + size


def test_two_line_feeds_make_a_break() -> None:
    assert ended(["It is four.", "\n", "\n"]) == 2
    assert ended(["It is four.\n", "\n"]) == 1


def test_the_place_behind_the_break_is_kept() -> None:
    step = StepEnd()
    assert not step.push("It is four.")
    end: int | None = step.end
    assert end is None
    assert step.push(".\n\n\n- and")
    assert step.end == 3
    assert step.push("more")
    assert step.end == 3


def test_a_formula_that_nobody_closes_is_forgotten() -> None:
    step = StepEnd()
    assert not step.push("My shell says $$ is a number.\n\n")
    assert not step.push("More of it. " * (FORMULA_LIMIT // 12))
    assert step.push("Even more of it. The end.\n\n")


def test_the_cost_of_a_piece_does_not_grow() -> None:
    def seconds(step: StepEnd) -> float:
        start = time.perf_counter()
        for _ in range(2_000):
            step.push(" word")
        return time.perf_counter() - start

    first, long = StepEnd(), StepEnd()
    long.push("word " * 200_000)
    assert min(seconds(long) for _ in range(5)) < 20 * min(seconds(first) for _ in range(5)) + 0.05


ENDLESS = {
    "a list": "- one more thing, and nothing is said of it\n",
    "headings": "## Next part\n\n",
    "lines without a full stop": "x = 1 + 1\n",
    "formulas": "$$x = 1$$\n\n",
    "an open formula": "$$|x + 1\n\n",
    "an open fence": "```\n|a = 1.\n\n",
    "a line that never ends": "and then ",
}
FIRST = {"an open formula": 2, "an open fence": 2, "a line that never ends": 3}


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_long_step_ends_without_a_sentence(kind: str) -> None:
    opening, _, line = ENDLESS[kind].rpartition("|")
    step, size = StepEnd(), len(opening)
    assert not step.push(opening)
    while not step.push(line):
        size += len(line)
        assert size < 4 * STEP_LIMIT
    limit = FIRST.get(kind, 1) * STEP_LIMIT
    assert limit - len(line) <= size <= limit + len(line)
    assert step.end in (line.find("\n") + 1 or len(line), len(line))
