"""A writer reads its own tokens: text, turn ends, step ends, and its own luck."""

from __future__ import annotations

from dataclasses import fields

import pytest

from manyhands.cache.block import Block
from manyhands.cache.step import GREEDY, Choice, Row
from manyhands.cache.view import View
from manyhands.errors import InvalidRequest
from manyhands.strategies.writer import Writer
from tests.strategies.driver import small_text

TEXT = small_text()


def test_tokens_become_text() -> None:
    writer = Writer(TEXT, GREEDY, 0, "Alice")
    pieces = [writer.read(token, TEXT.eos) for token in TEXT.encode("né.")]
    assert "".join(pieces) == writer.step_text == "né."
    assert writer.num_tokens == len(pieces)
    assert writer.feed == writer.unread == TEXT.encode(".")


def test_a_turns_end_is_neither_text_nor_fed() -> None:
    writer = Writer(TEXT, GREEDY, 0, "Alice")
    writer.read(TEXT.encode("a")[0], TEXT.eos)
    assert writer.read(min(TEXT.eos), TEXT.eos) == ""
    assert writer.stopped
    assert writer.feed == writer.unread == ()
    assert writer.num_tokens == 1


def test_a_character_cut_off_by_the_turns_end_is_not_lost_in_silence() -> None:
    writer = Writer(TEXT, GREEDY, 0, "Alice")
    halves = TEXT.encode("数")  # several bytes, none of them text by itself
    assert len(halves) > 1
    assert writer.read(halves[0], TEXT.eos) == ""
    assert writer.read(min(TEXT.eos), TEXT.eos) == "\ufffd"


def test_a_new_step_forgets_the_old_one() -> None:
    writer = Writer(TEXT, GREEDY, 0, "Alice")
    writer.box.push("\\boxed{8")
    assert writer.ends_step(writer.read(TEXT.encode("a")[0], TEXT.eos)) is False
    view = View([Block("desk")])
    writer.begin_step(view, (1, 2))
    assert (writer.view, writer.feed, writer.step_text) == (view, (1, 2), "")
    assert writer.box.push("}") is None


def test_rows_carry_the_name_and_a_draw() -> None:
    view = View([Block()])
    greedy, lucky = (
        Writer(TEXT, c, 1, "Alice") for c in (GREEDY, Choice(temperature=1.0, top_k=3))
    )
    for writer in (greedy, lucky):
        writer.begin_step(view, (5,))
    assert greedy.row().choice is GREEDY
    first, second = lucky.row(), lucky.row()
    assert (first.view, first.feed, first.writer) == (view, (5,), "Alice")
    assert first.choice.top_k == 3
    assert first.choice.draw != second.choice.draw
    again = Writer(TEXT, Choice(temperature=1.0), 1, "Alice")
    again.begin_step(view, (5,))
    assert again.row().choice.draw == first.choice.draw


def test_the_row_of_a_writer_is_a_row_like_others() -> None:
    writer = Writer(TEXT, Choice(temperature=1.0, frequency_penalty=1.0), 0, "Alice")
    writer.begin_step(View((Block(), Block())), (3, 4))
    made = writer.row()
    usual = Row(made.view, (3, 4), made.choice, "Alice", writer.tally)
    for field in fields(Row):
        assert getattr(made, field.name) == getattr(usual, field.name), field.name
    writer.feed = ()
    with pytest.raises(InvalidRequest, match="feeds no token"):
        writer.row()
    writer.feed = (3,)
    writer.view.own.freeze()
    with pytest.raises(InvalidRequest, match="is frozen"):
        writer.row()


def test_what_reads_a_step_may_be_made_ahead() -> None:
    writers = [Writer(TEXT, GREEDY, 0, "Alice") for _ in range(2)]
    told = []
    for writer in writers:
        for piece in ("So \\boxed{7", "}. It is.\n\n", "\\boxed{8} Yes.\n\n"):
            if writer is writers[0]:
                writer.prepare()
            for token in TEXT.encode(piece):
                text = writer.read(token, TEXT.eos)
                told.append((text, writer.box.push(text), writer.ends_step(text)))
            writer.begin_step(View((Block(),)), (1,))
    half = len(told) // 2
    assert told[:half] == told[half:]
