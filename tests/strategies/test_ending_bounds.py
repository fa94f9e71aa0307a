"""A bound for all passes of a run, and runs that are asked for no box."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from manyhands.errors import InvalidRequest
from manyhands.prompts.async_reasoning import AsyncReasoningPrompt
from manyhands.prompts.async_think import AsyncThinkPrompt
from manyhands.prompts.branches import BranchPrompt
from manyhands.prompts.skeleton import SkeletonPrompt
from manyhands.prompts.votes import VotesPrompt
from manyhands.strategies.async_reasoning import async_reasoning
from manyhands.strategies.async_think import async_think
from manyhands.strategies.base import Strategy
from manyhands.strategies.best_of_n import best_of_n
from manyhands.strategies.branches import branches
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.self_consistency import self_consistency
from manyhands.strategies.sequential import sequential
from manyhands.strategies.settings import (
    AsyncReasoningSettings,
    AsyncThinkSettings,
    BestSettings,
    BranchSettings,
    EndSettings,
    SkeletonSettings,
    SoloSettings,
    TeamSettings,
    VoteSettings,
)
from manyhands.strategies.skeleton import skeleton
from tests.strategies.driver import PROMPT, Played, Scripts, play, small_text

TEXT = small_text()
METHODS: dict[str, tuple[Callable[..., Strategy], Callable[..., Any], Any]] = {
    "hogwild": (hogwild, TeamSettings, PROMPT),
    "sequential": (sequential, SoloSettings, PROMPT),
    "branches": (branches, BranchSettings, BranchPrompt("Q: {question}")),
    "skeleton": (skeleton, SkeletonSettings, SkeletonPrompt("Q: {question}")),
    "async_reasoning": (
        async_reasoning,
        AsyncReasoningSettings,
        AsyncReasoningPrompt("Q: {question}"),
    ),
    "async_think": (async_think, AsyncThinkSettings, AsyncThinkPrompt("Q: {question}")),
    "vote": (self_consistency, VoteSettings, VotesPrompt("Q: {question}")),
    "best": (best_of_n, BestSettings, VotesPrompt("Q: {question}")),
}


def run(name: str, end: EndSettings, problem: str = "2+3", **more: Any) -> Played:
    method, kind, prompt = METHODS[name]
    settings = kind(budget=40, end=end, **more)
    return play(method(problem, TEXT, settings, prompt), Scripts(TEXT))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("total", [1, 2, 9, 10, 11, 12, 14, 17, 30])
def test_no_run_takes_more_passes_than_its_total(name: str, total: int) -> None:
    end = EndSettings(finisher_tokens=8, reply_tokens=5, total=total)
    played = run(name, end, snapshots=(3,))
    answer = played.answer
    assert len(played.passes) == answer.forward_passes + answer.extra_passes <= total
    assert answer.finish_reason == "budget"
    unbounded = run(name, EndSettings(finisher_tokens=8, reply_tokens=5), snapshots=(3,)).answer
    assert unbounded.forward_passes + unbounded.extra_passes > 30, "control"


@pytest.mark.parametrize("name", METHODS)
def test_the_work_ends_in_time_for_the_finisher(name: str) -> None:
    answer = run(name, EndSettings(finisher_tokens=8, reply_tokens=5, total=20)).answer
    assert answer.forward_passes == (11 if name == "best" else 12)
    without = run(name, EndSettings(finisher=False, reply=False, total=20)).answer
    assert without.forward_passes == (19 if name == "best" else 20)


def test_a_total_that_suffices_changes_nothing() -> None:
    free = run("hogwild", EndSettings(finisher_tokens=8, reply_tokens=5))
    bound = run("hogwild", EndSettings(finisher_tokens=8, reply_tokens=5, total=53))
    assert bound.passes == free.passes
    assert bound.answer == free.answer


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    ("answer", "problem", "asks"),
    [
        ("boxed", "Write a poem.", True),
        ("none", "2+3", False),
        ("auto", "Write a poem.", False),
        ("auto", "What is two and two? Put it into \\boxed{}.", True),
        ("auto", "2+3", True),
    ],
)
def test_a_box_is_asked_for_where_one_belongs(
    name: str, answer: str, problem: str, asks: bool
) -> None:
    end = EndSettings(finisher_tokens=8, reply_tokens=5, answer=answer)
    played = run(name, end, problem, snapshots=(3,))
    writers = {writer for one in played.passes for writer in one.writers}
    assert any(writer.endswith("finisher") for writer in writers) == asks
    assert played.answer.answer is None
    assert played.answer.text


@pytest.mark.parametrize("wrong", [{"total": 0}, {"answer": "maybe"}])
def test_wrong_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(wrong))):
        EndSettings(**wrong)
