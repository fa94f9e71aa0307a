"""Where a conversation belongs: the same place for all its turns, and few moves when replicas come and go."""

from __future__ import annotations

from typing import Any

import pytest

from manyhands.cluster.affinity import BEGINNING, key_of, mark_of, ranked, replica_of_run


def chat(*said: str, **more: Any) -> dict[str, Any]:
    roles = ["system", *["user", "assistant"] * len(said)]
    return {
        "messages": [{"role": r, "content": t} for r, t in zip(roles, said, strict=False)],
        **more,
    }


def test_all_turns_of_a_conversation_have_one_key() -> None:
    key = key_of("me", chat("Be short.", "Who?"))
    assert key == key_of("me", chat("Be short.", "Who?", "I.", "Why?", stream=True, seed=4))
    others = (
        key_of("you", chat("Be short.", "Who?")),
        key_of("me", chat("Be short.", "What?")),
        key_of("me", chat("Be long.", "Who?")),
    )
    assert len({key, *others}) == 4


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "Once"},
        {"prompt": [4, 5, 6]},
        {"problem": "Once"},
        {"input": "Once", "instructions": "Be short."},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Once"}]}]},
        chat("a"),
    ],
)
def test_every_route_that_makes_text_has_a_key(body: dict[str, Any]) -> None:
    assert key_of("me", body) is not None
    assert key_of("me", body) == key_of("me", {**body, "temperature": 1})


def test_a_question_has_one_place_by_whichever_route_it_comes() -> None:
    asked: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": "Once"}]},
        {"input": "Once"},
        {"input": [{"role": "user", "content": "Once"}]},
        {"problem": "Once"},
    ]
    assert len({key_of("me", body) for body in asked}) == 1


@pytest.mark.parametrize("body", [{}, [], None, 3, {"messages": []}, {"messages": ""}])
def test_what_has_no_beginning_may_lie_anywhere(body: Any) -> None:
    assert key_of("me", body) is None


@pytest.mark.parametrize(
    "body",
    [{"messages": [3, "x"]}, {"messages": [{"role": 3}]}, chat("a", {})],  # type: ignore[arg-type]
)
def test_what_a_replica_will_refuse_does_no_harm(body: Any) -> None:
    key_of("me", body)


def test_questions_about_one_long_document_come_to_one_place() -> None:
    document = "x" * BEGINNING
    assert key_of("me", chat(document, "Who?")) == key_of("me", chat(document, "Where?"))


def test_few_conversations_move_when_a_replica_goes_or_comes() -> None:
    keys = [key_of("me", {"prompt": f"Question {n}?"}) or "" for n in range(600)]
    four = {key: ranked(key, "abcd")[0] for key in keys}
    three = {key: ranked(key, "abd")[0] for key in keys}
    counts = [list(four.values()).count(name) for name in "abcd"]
    assert min(counts) > 110, counts
    assert all(three[key] == four[key] for key in keys if four[key] != "c")
    assert all(three[key] == ranked(key, "abcd")[1] for key in keys if four[key] == "c")
    five = {key: ranked(key, "dcbae")[0] for key in keys}
    assert all(five[key] in (four[key], "e") for key in keys)


def test_a_run_says_which_replica_has_it() -> None:
    mark = mark_of("k3v9x0qz")
    assert replica_of_run(f"run_{mark}q-8sTi2") == "k3v9x0qz"
    assert replica_of_run("run_abcdefghij") is None
    assert replica_of_run("list") is None
    assert replica_of_run(f"run_{mark_of('ab')}rest") == mark_of("ab")[:-1]
