"""The time of the first word: blanks are none, and neither is a word that only follows the budget."""

from __future__ import annotations

from itertools import count

from benchmarks.first_word import summed, timed
from manyhands import Answer
from manyhands.strategies.events import Event, ReplyWritten, TokenWritten


def test_the_first_word_is_timed() -> None:
    said = [
        TokenWritten(3, 1, 7, "Hm"),
        ReplyWritten(5, "\n\n"),
        ReplyWritten(6, "It"),
        ReplyWritten(7, "is"),
    ]
    run = timed([*said, Answer("It is", forward_passes=9)], count().__next__)
    assert (run.first_pass, run.first_seconds, run.passes, run.seconds) == (6, 1, 9, 2)
    late: list[Event | Answer] = [
        ReplyWritten(9, "It"),
        Answer("It", finish_reason="budget", forward_passes=9),
    ]
    assert timed(late, count().__next__).first_pass is None
    found = summed([run, timed(late, count().__next__)])
    assert (found["runs"], found["without_a_word"], found["first_pass"]) == (2, 1, 6)
