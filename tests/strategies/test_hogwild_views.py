"""The text that each worker of a team reads in each pass, letter by letter.

The chat template leaves `user` and `assistant` lines in the decoded text; its marks are hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from manyhands.cache.step import GREEDY
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.settings import TeamSettings
from tests.strategies.driver import PROMPT, Played, Scripts, play, small_text

TEXT = small_text()
START = "user\nAlice and Bob: 2+3\nassistant\n\nPast"


def run(
    layout: str,
    passes: int,
    /,
    headers: str = "in_context",
    workers: int = 2,
    moves: str = "rotate",
    **said: Sequence[str | int | None],
) -> Played:
    settings = TeamSettings(
        workers=workers,
        layout=layout,
        budget=passes,
        check_every=0,
        headers=headers,
        moves=moves,
    )
    return play(hogwild("2+3", TEXT, settings, PROMPT), Scripts(TEXT, **said))


def read(played: Played, writer: str) -> list[str]:
    return [TEXT.decode(row.context) for row in played.rows(writer)]


SAID: dict[str, Any] = {"Alice": ["a", ".\n\n", "b", "c"], "Bob": ["x", "y", ".", "\n", "\n", "z"]}


def test_combined() -> None:
    played = run("combined", 7, **SAID)
    others, own = "\nOthers", "\nOwn"
    done = START + "\n\n**Alice [1]:**a"  # once Alice's first step is in the history
    assert read(played, "Alice") == [
        START + others + "\n\n**Bob [1]:**<..>" + own + "\n\n**Alice [1]:**",
        START + others + "\n\n**Bob [1]:**x<..>" + own + "\n\n**Alice [1]:**a",
        done + others + "\n\n**Bob [1]:**xy<..>" + own + ".\n\n**Alice [2]:**",
        done + others + "\n\n**Bob [1]:**xy.<..>" + own + ".\n\n**Alice [2]:**b",
        done + others + "\n\n**Bob [1]:**xy.\n<..>" + own + ".\n\n**Alice [2]:**bc",
        done
        + "\n\n**Bob [1]:**xy.\n"
        + others
        + "\n**Bob [2]:**<..>"
        + own
        + ".\n\n**Alice [2]:**bca",
        done
        + "\n\n**Bob [1]:**xy.\n"
        + others
        + "\n**Bob [2]:**z<..>"
        + own
        + ".\n\n**Alice [2]:**bcaa",
    ]
    assert read(played, "Bob")[1] == (
        START + others + "\n\n**Alice [1]:**a<..>" + own + "\n\n**Bob [1]:**x"
    )
    assert read(played, "Bob")[2] == (
        done + others + ".\n\n**Alice [2]:**<..>" + own + "\n\n**Bob [1]:**xy"
    )
    assert read(played, "Bob")[5] == (
        done
        + "\n\n**Bob [1]:**xy.\n"
        + others
        + ".\n\n**Alice [2]:**bca<..>"
        + own
        + "\n**Bob [2]:**"
    )


def test_combined_keeps_all_workers_at_one_position() -> None:
    played = run("combined", 7, **SAID)
    for one in played.passes[:7]:
        assert len({len(row.context) for row in one.rows if row.writer in ("Alice", "Bob")}) == 1


def test_contiguous() -> None:
    played = run("contiguous", 4, **SAID)
    assert read(played, "Alice") == [
        START + "\n\n**Bob [1]:**<..>\nOwn\n\n**Alice [1]:**",
        START + "\n\n**Bob [1]:**x<..>\nOwn\n\n**Alice [1]:**a",
        START + "\n\n**Bob [1]:**xy<..>\nOwn\n\n**Alice [1]:**a.\n\n**Alice [2]:**",
        START + "\n\n**Bob [1]:**xy.<..>\nOwn\n\n**Alice [1]:**a.\n\n**Alice [2]:**b",
    ]
    assert read(played, "Bob")[3] == (
        START + "\n\n**Alice [1]:**a.\n\n**Alice [2]:**b<..>\nOwn\n\n**Bob [1]:**xy."
    )
    assert played.rows("Alice")[3].blocks == (
        "prompt",
        "Bob 1",
        "more to come",
        "own header",
        "Alice 1",
    )


def test_interleaved() -> None:
    played = run("interleaved", 7, **SAID)
    own, done = "\nOwn", START + "\n\n**Alice [1]:**a"
    assert read(played, "Alice")[:4] == [
        START + own + "\n\n**Alice [1]:**",
        START + own + "\n\n**Alice [1]:**a",
        done + own + ".\n\n**Alice [2]:**",
        done + own + ".\n\n**Alice [2]:**b",
    ]
    assert read(played, "Bob") == [
        START + own + "\n\n**Bob [1]:**",
        START + own + "\n\n**Bob [1]:**x",
        done + own + "\n\n**Bob [1]:**xy",
        done + own + "\n\n**Bob [1]:**xy.",
        done + own + "\n\n**Bob [1]:**xy.\n",
        done + "\n\n**Bob [1]:**xy.\n" + own + "\n**Bob [2]:**",
        done + "\n\n**Bob [1]:**xy.\n" + own + "\n**Bob [2]:**z",
    ]


def test_one_worker_reads_the_words_of_one() -> None:
    start = START.replace("Alice and Bob", "Alone")
    played = run("combined", 2, workers=1, Alice=["a"])
    assert read(played, "Alice") == [
        start + "\nOthers\nOwn\n\n**Alice [1]:**",
        start + "\nOthers\nOwn\n\n**Alice [1]:**a",
    ]


def test_five_workers_read_each_other_in_ascending_order() -> None:
    played = run("combined", 2, workers=5)
    names = PROMPT.team(5)
    assert names[:4] == ("Alice", "Bob", "Carol", "Dave")
    for own, name in enumerate(names):
        others = [n for other, n in enumerate(names) if other != own]
        expected = ["prompt", "others' header"]
        expected += [part for n in others for part in (f"{n} 1", "more to come")]
        assert list(played.rows(name)[1].blocks) == [*expected, "own header", f"{name} 1"]


def test_everything_is_written_in_the_first_pass() -> None:
    opening = run("combined", 1, **SAID).passes[0]
    assert [row.blocks for row in opening.rows[:4]] == [
        ("prompt",),
        ("prompt", "others' header"),
        ("prompt", "others' header", "more to come"),
        ("prompt", "others' header", "own header"),
    ]
    assert opening.writers == ("Alice", "Bob")
    assert all(row.writer is None and row.choice is GREEDY for row in opening.rows[:4])
    assert [TEXT.decode(row.feed) for row in opening.rows] == [
        START,
        "\nOthers",
        "<..>",
        "\nOwn",
        "\n\n**Alice [1]:**",
        "\n\n**Bob [1]:**",
    ]


@pytest.mark.parametrize("layout", ["combined", "interleaved"])
def test_a_finished_step_is_encoded_again_where_it_now_stands(layout: str) -> None:
    """In the pass after its end it is fed behind the prompt and the history; nobody else reads more."""
    played = run(layout, 7, moves="reencode", **SAID)
    turned = run(layout, 7, **SAID)
    assert [read(played, name) for name in SAID] == [read(turned, name) for name in SAID]
    assert played.answer == turned.answer
    again = [
        (number, TEXT.decode(row.context), TEXT.decode(row.feed))
        for number, one in enumerate(played.passes[1:7], start=2)
        for row in one.rows
        if row.writer is None
    ]
    alice, bob = "\n\n**Alice [1]:**a", "\n\n**Bob [1]:**xy.\n"
    assert again == [(3, START + alice, alice), (6, START + alice + bob, bob)]
    assert played.rows("Alice")[5].frozen[1:3] == (True, False)  # Bob's is being written


def test_two_steps_that_end_together_are_encoded_again_in_their_order() -> None:
    said: dict[str, Any] = {"Alice": ["a", ".\n\n"], "Bob": ["x", ".\n\n"]}
    played = run("combined", 4, moves="reencode", **said)
    rows = [row for row in played.passes[2].rows if row.writer is None]
    alice, bob = "\n\n**Alice [1]:**a", "\n\n**Bob [1]:**x"
    assert [TEXT.decode(row.context) for row in rows] == [START + alice, START + alice + bob]


def test_headers_encoded_alone() -> None:
    played = run("combined", 2, headers="alone", **SAID)
    assert [row.blocks for row in played.passes[0].rows[:4]] == [
        ("prompt",),
        ("others' header",),
        ("more to come",),
        ("own header",),
    ]
    assert read(played, "Alice") == read(run("combined", 2, **SAID), "Alice")


def test_later_passes_feed_the_newest_token_alone() -> None:
    played = run("combined", 7, **SAID)
    assert played.passes[1].writers == ("Alice", "Bob")
    assert len(played.passes[1].rows) == 2
    fed = [TEXT.decode(row.feed) for row in played.rows("Alice")]
    assert fed == [
        "\n\n**Alice [1]:**",
        "a",
        ".\n\n**Alice [2]:**",
        "b",
        "c",
        "a",
        "a",
    ]


def test_a_prompt_may_leave_texts_empty() -> None:
    """Headers and markers are the user's to choose; one that is empty takes no row."""
    bare = replace(PROMPT, others_header="", own_header="", more_to_come="", past_header="")
    settings = TeamSettings(budget=2, check_every=0)
    played = play(hogwild("2+3", TEXT, settings, bare), Scripts(TEXT, **SAID))
    assert read(played, "Alice")[1] == (
        START.removesuffix("\nPast") + "\n\n**Bob [1]:**x\n\n**Alice [1]:**a"
    )


@pytest.mark.parametrize("layout", ["combined", "contiguous", "interleaved"])
def test_marker_and_own_header_are_finished_where_desks_are_seen(layout: str) -> None:
    """Once they are fed, and with the views that are made then: a trace tells it with these."""
    rows = run(layout, 6, **SAID).rows("Alice")
    seen = [dict(zip(row.blocks, row.frozen, strict=True)) for row in rows]
    parts = [(each.get("more to come"), each["own header"]) for each in seen]
    if layout == "interleaved":
        assert parts == [(None, False)] * 6
    else:
        assert parts == [(False, False)] + [(True, True)] * 5
