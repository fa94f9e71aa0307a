"""Stop texts of a method: its reply is the one without them, up to the first, and nothing else is cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from manyhands.errors import InvalidRequest
from manyhands.prompts.votes import VotesPrompt
from manyhands.strategies.best_of_n import best_of_n
from manyhands.strategies.events import ReplyWritten, TokenWritten
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.self_consistency import self_consistency
from manyhands.strategies.sequential import sequential
from manyhands.strategies.settings import (
    BestSettings,
    BranchSettings,
    EndSettings,
    SharedSettings,
    SkeletonSettings,
    SoloSettings,
    TeamSettings,
    VoteSettings,
)
from manyhands.text.stops import StopWatch
from tests.strategies import test_branches, test_skeleton
from tests.strategies.driver import PROMPT, Played, Scripts, play, small_text

TEXT = small_text()
REPLY = "So it is this: ab, and then abc. END of it."
END = EndSettings(finisher=False, reply_tokens=60)


def _hogwild(end: EndSettings) -> Played:
    lines: dict[str, Any] = {
        "Alice": ["One abc.\n\n", None],
        "Bob": [None],
        "reply": [f" {REPLY}", None],
    }
    settings = TeamSettings(budget=40, end=end)
    return play(hogwild("q", TEXT, settings, PROMPT), Scripts(TEXT, **lines))


def _sequential(end: EndSettings) -> Played:
    settings = SoloSettings(budget=99, end=end)
    return play(sequential("q", TEXT, settings, PROMPT), Scripts(TEXT, writer=[REPLY, None]))


def _attempts(method: Any, settings: Any) -> Callable[[EndSettings], Played]:
    lines = {"attempt 1": [REPLY, None], "attempt 2": ["No.", None], "reply": [REPLY, None]}

    def run(end: EndSettings) -> Played:
        strategy = method("q", TEXT, replace(settings, end=end), VotesPrompt("Q: {question}"))
        return play(strategy, Scripts(TEXT, **lines))

    return run


RUNS: dict[str, Callable[[EndSettings], Played]] = {
    "hogwild": _hogwild,
    "sequential": _sequential,
    "branches": lambda end: test_branches.run(
        BranchSettings(end=end),
        writer=[*test_branches.A_B, "So.", None],
        **test_branches.FILLED,
    ),
    "skeleton": lambda end: test_skeleton.run(SkeletonSettings(end=end, budget=120)),
    "self_consistency": _attempts(self_consistency, VoteSettings(budget=99, workers=2)),
    "best_of_n": _attempts(best_of_n, BestSettings(budget=99, workers=2)),
}


def told(played: Played) -> str:
    return "".join(e.text for e in played.of(ReplyWritten) if isinstance(e, ReplyWritten))


@pytest.mark.parametrize("name", RUNS)
def test_a_reply_ends_where_a_stop_text_would_begin(name: str) -> None:
    run = RUNS[name]
    free = run(END)
    whole = told(free)
    assert len(whole) > 20, "control"
    assert free.answer.stopped_at is None
    for at in range(0, len(whole) - 3, 5):
        stop = whole[at : at + 3]
        if not stop.strip():
            continue
        played = run(replace(END, stop=("never", stop)))
        kept = whole[: whole.index(stop)]
        assert told(played).strip() == played.answer.text == kept.strip()
        assert played.answer.stopped_at == stop
        if name in ("sequential", "branches", "skeleton"):
            assert len(played.passes) <= len(free.passes)
            shown = [e.text for e in played.of(TokenWritten) if isinstance(e, TokenWritten)]
            assert name != "sequential" or "".join(shown) == kept
    unseen = run(replace(END, stop=("never", f"{whole[-2:]}x")))  # held back, and then told
    assert told(unseen).strip() == whole.strip()
    assert replace(unseen.answer, steps=()) == replace(free.answer, steps=())


def test_a_stop_text_that_is_not_told_as_a_reply_is_cut_too() -> None:
    """Without passes for a reply the answer's text is what the team wrote."""
    end = EndSettings(finisher=False, reply=False)
    assert _hogwild(end).answer.text == "One abc."
    answer = _hogwild(replace(end, stop=("abc",))).answer
    assert (answer.text, answer.stopped_at) == ("One", "abc")


def test_a_reply_that_is_cut_by_the_total_keeps_what_was_held_back() -> None:
    end = EndSettings(finisher=False, total=16)
    free = _hogwild(end)
    held = told(free)[-1] + "never"
    assert told(_hogwild(replace(end, stop=(held,)))) == told(free)


def test_pieces_of_any_size() -> None:
    text, stops = "a\nb\n\nc END", ["\n\n", "END"]
    for size in range(1, len(text)):
        watch = StopWatch(stops)
        kept = "".join(watch.push(text[at : at + size]) for at in range(0, len(text), size))
        assert (kept, watch.found, watch.release()) == ("a\nb", "\n\n", "")
    assert StopWatch([]).cut(text) == text


@pytest.mark.parametrize("wrong", [(5,), ("a", None), (b"a",)])
def test_stop_texts_are_texts(wrong: Any) -> None:
    for kind in (EndSettings, SharedSettings):
        with pytest.raises(InvalidRequest, match=r"stop has .*; expected texts"):
            kind(stop=wrong)


@pytest.mark.parametrize("name", RUNS)
def test_a_reply_that_a_bound_ends_is_told_from_one_that_ends_by_itself(name: str) -> None:
    free = RUNS[name](END).answer
    spent = free.forward_passes + free.extra_passes
    assert not free.is_cut
    assert not RUNS[name](replace(END, total=spent + 5)).answer.is_cut
    for total in (spent // 2, spent - 2):
        assert RUNS[name](replace(END, total=total)).answer.is_cut, total
    stopped = RUNS[name](replace(END, stop=(free.text[3:6],))).answer
    assert (stopped.stopped_at, stopped.is_cut) == (free.text[3:6], False)


@pytest.mark.parametrize("stop", [(), ("END",)])
def test_a_stop_text_in_the_thinking_ends_nothing(stop: tuple[str, ...]) -> None:
    text = small_text(thinking=True)
    think_end = text.think_end
    assert think_end is not None
    script = Scripts(text, writer=["Hm. END of this?", think_end, f" {REPLY}", None])
    settings = SoloSettings(budget=99, end=replace(END, stop=stop))
    played = play(sequential("q", text, settings, PROMPT), script)
    assert played.answer.stopped_at == (stop[0] if stop else None)
    assert "Hm. END of this?" in played.answer.steps[0].text
    assert told(played).endswith(REPLY.partition("END")[0] if stop else REPLY)
