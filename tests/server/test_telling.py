"""A team's thinking as one text: whole steps, nothing lost, the first to write has the floor."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from manyhands.server.telling import Teller, Told
from manyhands.strategies.events import (
    Event,
    ReplyWritten,
    StepBegun,
    StepCut,
    StepEnded,
    TokenWritten,
    WorkerPaused,
)
from tests.server.house import NAME, TEXT, House, make_house, running
from tests.strategies.driver import Scripts


def told(events: list[Event], *names: str, solo: bool = False) -> list[Told]:
    teller = Teller(names or ("Alice", "Bob"), solo=solo)
    pieces = [piece for event in events for piece in teller.take(event)]
    return [*pieces, *teller.rest()]


def thinking(pieces: list[Told]) -> str:
    return "".join(piece.text for piece in pieces if piece.worker is not None)


def wrote(worker: int, text: str) -> TokenWritten:
    return TokenWritten(1, worker, 0, text)


def test_steps_of_two_stand_one_behind_the_other() -> None:
    events: list[Event] = [StepBegun(0, 0, 1, ""), StepBegun(0, 1, 1, "")]
    for a, b in (("one", "uno"), (" two", " dos"), (".\n\n", " tres")):
        events += [wrote(0, a), wrote(1, b)]
    events[-1:] = [StepEnded(1, 0, 1, "one two."), StepBegun(1, 0, 2, ""), events[-1]]
    events += [wrote(0, "next"), wrote(1, "."), StepEnded(1, 1, 1, "uno dos tres.")]
    pieces = told(events)
    assert thinking(pieces) == (
        "**Alice [1]:** one two.\n\n**Bob [1]:** uno dos tres.\n\n**Alice [2]:** next"
    )
    assert pieces[0] == Told("**Alice [1]:** one", 0, 1)  # at once


def test_a_paused_worker_gives_the_floor_away_and_gets_it_back_under_its_name() -> None:
    events: list[Event] = [wrote(0, "a"), wrote(1, "x"), WorkerPaused(1, 0), wrote(1, "y")]
    assert thinking(told(events)) == "**Alice [1]:** a\n\n**Bob [1]:** xy"


def test_a_reply_has_no_blanks_around_it() -> None:
    events = [ReplyWritten(1, text) for text in (" \n", " 1:", " 84 ", "\n", "is", " \n")]
    assert [piece.text for piece in told(list(events))] == ["1:", " 84", " \nis"]


def test_a_step_without_text_is_not_told() -> None:
    events: list[Event] = [StepBegun(0, 0, 1, ""), StepBegun(0, 1, 1, "")]
    events += [StepEnded(1, 0, 1, ""), wrote(1, "b"), StepEnded(2, 1, 1, "b")]
    assert thinking(told(events)) == "**Bob [1]:** b"
    assert not thinking(told([events[0], StepEnded(1, 0, 1, "")]))


def test_what_is_cut_before_it_was_told_is_not_told() -> None:
    events: list[Event] = [
        StepBegun(0, 0, 1, ""), StepBegun(0, 1, 1, ""), wrote(0, "a"), wrote(1, "b\n**Alice [9]:**"),
        StepCut(1, 1, 1, "\n**Alice [9]:**"), StepEnded(1, 1, 1, "b"),
    ]  # fmt: skip
    assert thinking(told(events)) == "**Alice [1]:** a\n\n**Bob [1]:** b"


def test_a_lone_line_is_reply_or_thinking() -> None:
    events: list[Event] = [
        wrote(0, "hm"), wrote(0, " so"), wrote(0, "4"), ReplyWritten(3, "4"), wrote(0, "!"),
        ReplyWritten(4, "!"),
    ]  # fmt: skip
    pieces = told(events, "Writer", solo=True)
    assert thinking(pieces) == "hm so"
    assert "".join(piece.text for piece in pieces if piece.worker is None) == "4!"


def test_random_teams_lose_nothing_and_part_no_step() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        names = [f"W{n}" for n in range(rng.randint(1, 5))]
        steps: dict[tuple[int, int], str] = {}
        current = [1] * len(names)
        events: list[Event] = [StepBegun(0, w, 1, "") for w in range(len(names))]
        for _ in range(rng.randint(1, 80)):
            worker = rng.randrange(len(names))
            key = worker, current[worker]
            word = f"{worker}{rng.choice('abc')} "
            steps[key] = steps.get(key, "") + word
            events.append(wrote(worker, word))
            if rng.random() < 0.2:
                events.append(StepEnded(0, *key, steps[key].strip()))
                current[worker] += 1
                events.append(StepBegun(0, worker, current[worker], ""))
        text = thinking(told(events, *names))
        expected = {f"**W{w} [{s}]:** {said.strip()}" for (w, s), said in steps.items()}
        assert set(text.split("\n\n")) == expected
        assert len(text.split("\n\n")) == len(expected)


# -- a stream and the whole answer ---------------------------------------------

POINTS = {"point_1": ["It blows.", None], "point_2": ["Hot.", None]}
# The words of the main strand, with settings.
SKELETONS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "outline": ([" wind\n2. sun\n\n", "So 7.", None], {}),
    "outline that the turn ends": ([" wind\n2. sun", None], {}),
    **{
        f"cut after {budget}": ([" wind\n2. sun\n\n", "So 7.", None], {"budget": budget})
        for budget in range(1, 24)
    },
    "outline of one word": ([" wind", None], {}),
    "none": ([" It is 7, and I say so at once.", None], {"title_tokens": 3}),
    "none, then empty lines": (
        [" It is 7, and I say so\n\n\n\nat once.\n\nSo", " yes.", None],
        {"title_tokens": 3},
    ),
    "nothing": ([None], {}),
    "blanks": (["\n\n", None], {}),
    "lines that are no outline": (
        [" a\n", "2. b", " or c, and more than a title\n\n"],
        {"title_tokens": 3},
    ),
    "longer than an outline": (
        [" It is so much that I say, and more than", " that."],
        {"outline_tokens": 9},
    ),
    "cut": ([" It is so much that I say, and more than", " that."], {"budget": 12}),
}


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with running(make_house()) as house:
        yield house


@pytest.mark.parametrize("case", SKELETONS)
def test_a_stream_of_an_outline_and_its_whole_answer_tell_the_same(house: House, case: str) -> None:
    """Each word once, whether it is a word of the reply or of an outline, which only its end says."""
    written, settings = SKELETONS[case]
    end = {"end": {"finisher": False}}
    asked = {
        "model": f"{NAME}:skeleton",
        "messages": [{"role": "user", "content": "who"}],
        "temperature": 0,
        "manyhands": {**end, **settings},
    }
    told: list[tuple[str, list[str]]] = []
    for stream in (False, True):
        said = {"writer": written, **POINTS}
        house.model.dice = Scripts(
            TEXT, **{name.replace("_", " "): [*words] for name, words in said.items()}
        )
        given = {**asked, "stream": stream}
        answer = httpx2.post(f"{house.url}/v1/chat/completions", json=given, timeout=20)
        assert answer.status_code == 200, answer.text
        if stream:
            events = [line[6:] for line in answer.text.split("\n") if line.startswith("data: {")]
            deltas = [
                json.loads(line)["choices"][0]["delta"] for line in events if '"choices":[{' in line
            ]
            content, thought = (
                "".join(delta.get(key) or "" for delta in deltas)
                for key in ("content", "reasoning_content")
            )
        else:
            message = answer.json()["choices"][0]["message"]
            content, thought = message["content"], message.get("reasoning_content", "")
        told.append((content.strip(), sorted(thought.split("\n\n**"))))
    (reply, steps), streamed = told
    assert reply == streamed[0]
    assert steps == streamed[1]
    if (
        case == "outline"
    ):  # its points are told by their writers, and in the reply that they are joined to
        assert [part for part in steps if part.startswith(("sun [", "wind ["))] == [
            "sun [1]:** Hot.",
            "wind [1]:** It blows.",
        ]
        assert "It blows." in reply
        assert "Hot." in reply
    assert bool(steps[0]) == case.startswith("outline") or case.startswith("cut after")
