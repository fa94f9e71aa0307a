"""The picture never leaves its frame, whatever the text and however many the workers."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from manyhands.cli.columns import picture
from manyhands.prompts import TeamPrompt
from manyhands.strategies.account import Account
from manyhands.strategies.events import (
    ReplyWritten,
    StepBegun,
    StepEnded,
    TokenWritten,
    WorkerPaused,
    WorkerStopped,
)

NASTY = st.text(
    st.sampled_from("ab c\t\n\r\x1b[]:/\\数é👩‍👩‍👧\u0301\u202e\u200b\x00\x9b✓│▌"), max_size=60
)


def written(workers: int, texts: list[str], reply: str = "") -> Account:
    account = Account(TeamPrompt().team(workers))
    for index, text in enumerate(texts):
        worker = index % workers
        account.take(StepBegun(index, worker, index + 1, ""))
        account.take(TokenWritten(index, worker, 5, text))
        if index % 3 == 0:
            account.take(StepEnded(index, worker, index + 1, text.strip()))
    if reply:
        account.take(ReplyWritten(9, reply))
    return account


@example(1, ["\u200d\u200d:::::::::::::"], "", "", 5, 6)  # joiners without a width
@settings(max_examples=150, deadline=None)
@given(
    workers=st.integers(1, 30),
    texts=st.lists(NASTY, max_size=8),
    reply=NASTY,
    status=NASTY,
    width=st.integers(1, 130),
    height=st.integers(1, 40),
)
def test_inside_the_frame(
    workers: int, texts: list[str], reply: str, status: str, width: int, height: int
) -> None:
    lines = picture(written(workers, texts, reply), status, width, height)
    assert 1 <= len(lines) <= height
    for line in lines:
        assert line.cell_len <= width
        assert not set(line.plain) & set("\x1b\x9b\x00\r\n\t\u202e")


@pytest.mark.parametrize(
    ("workers", "per_row"), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 3), (6, 3), (8, 4)]
)
def test_columns_of_an_eighty_column_terminal(workers: int, per_row: int) -> None:
    account = written(workers, ["word " * 100] * workers)
    lines = [line.plain for line in picture(account, ("status",), 80, 40)]
    names = TeamPrompt().team(workers)
    assert [name in lines[0] for name in names] == [i < per_row for i in range(workers)]
    assert lines[0].count("│") == per_row - 1
    assert lines[-1] == "status"


def test_only_as_many_lines_as_the_text_needs() -> None:
    account = written(2, ["One.", "Two."])
    assert [line.plain.rstrip() for line in picture(account, ("status",), 80, 24)] == [
        "Alice [1]                              │ Bob [2]",
        "✓ One.                                 │ Two.▌",
        "▌                                      │",
        "status",
    ]


def test_the_words_of_who_has_stopped_or_waits_stand_there_without_a_cursor() -> None:
    account = written(3, ["One", "Two", "Three"])
    account.take(WorkerStopped(3, 0))
    account.take(WorkerPaused(3, 2))
    lines = [line.plain for line in picture(account, ("status",), 80, 24)]
    assert [cell.split() for cell in lines[0].split("│")] == [
        ["Alice", "[1]", "done"], ["Bob", "[2]"], ["Carol", "[3]", "paused"]
    ]  # fmt: skip
    assert [cell.strip() for cell in lines[1].split("│")] == ["✓ One", "Two▌", "Three"]


def test_many_workers_have_a_line_each() -> None:
    account = written(20, ["word " * 30] * 20)
    account.take(WorkerStopped(3, 2))
    lines = [line.plain for line in picture(account, ("status",), 80, 12)]
    assert len(lines) == 12
    assert lines[1].startswith("Bob [2] ")
    assert lines[1].endswith(" word word")
    assert lines[2].startswith("Carol [3] done ")
    assert lines[-2] == "… and 10 more"


def test_the_newest_text_is_what_is_seen() -> None:
    account = written(1, ["", " ".join(f"w{i}" for i in range(5000))])
    seen = "\n".join(line.plain for line in picture(account, ("status",), 40, 10))
    assert "w4999▌" in seen
    assert "w0 " not in seen


def test_a_reply_that_goes_on_behind_the_budget_is_seen() -> None:
    """A column shows what its worker writes in passes of the work; the rest of a reply stands in none."""
    account = Account(["Writer", "Thinker"], solo=True)
    for event in (TokenWritten(4, 0, 7, "So"), ReplyWritten(4, "So"), TokenWritten(4, 1, 8, "12")):
        account.take(event)
    assert not any("Reply" in line.plain for line in picture(account, (), 80, 24))
    account.take(ReplyWritten(4, " it is 7"))
    *_, title, reply = (line.plain for line in picture(account, (), 80, 24))
    assert (title, reply.strip()) == ("Reply", "So it is 7")
