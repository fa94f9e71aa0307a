"""Every method can be asked with a conversation: what was said before it, and words that begin the reply."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from manyhands.errors import BrokenTrace, InvalidRequest
from manyhands.prompts import Prompts, TeamPrompt
from manyhands.prompts.template import NEWEST
from manyhands.schema.conversation import Conversation, Message
from manyhands.strategies.methods import METHODS
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import EndSettings
from manyhands.text import Text
from tests.strategies.driver import Dice, Played, Scripts, play, small_text

TEXT, THINKING = small_text(), small_text(thinking=True)
LINES = ("sequential", "branches", "skeleton", "profiled", "async_think")
TALK = Conversation.of(
    [
        Message("system", "Be brief."),
        Message("user", "2+3?"),
        Message("assistant", "5."),
        Message("user", "And 3+4?"),
    ]
)
EARLIER = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2+3?<|im_end|>\n"
    "<|im_start|>assistant\n5.<|im_end|>\n<|im_start|>user\n"
)


def spec(method: str, asked: Conversation = TALK, rules_in: str = "user") -> RunSpec:
    row = METHODS[method]
    settings = row.settings(budget=6, end=EndSettings(finisher_tokens=3, reply_tokens=4))
    words = replace(getattr(Prompts(), row.prompt), rules_in=rules_in)
    return RunSpec(row, settings, words, "").asked(asked)


def played(one: RunSpec, text: Text = TEXT, predict: Any = None) -> Played:
    return play(one.strategy(text), predict or Dice(text, boxes=0, ends=0))


def opening(played: Played, text: Text = TEXT) -> str:
    """The text that the first writer has read when it writes its first token."""
    row = next(row for row in played.passes[0].rows if row.writer is not None)
    return text.decode(row.context, special=True)


@pytest.mark.parametrize("method", METHODS)
def test_earlier_turns_stand_before_the_rules_as_they_were_said(method: str) -> None:
    said = opening(played(spec(method)))
    assert said.startswith(EARLIER)
    rules, problem, rest = said.removeprefix(EARLIER).partition("And 3+4?")
    assert problem
    assert "boxed" in rules + rest
    assert rest.startswith("<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("method", METHODS)
def test_rules_may_stand_in_the_system_message(method: str) -> None:
    """Then a conversation grows at its end alone."""
    one = spec(method, rules_in="system")
    said = opening(played(one))
    assert said.startswith("<|im_start|>system\nBe brief.\n\n")
    rules, _, rest = said.partition(NEWEST)
    assert "boxed" in rules + rest.partition("<|im_end|>")[0]
    assert EARLIER.removeprefix("<|im_start|>system\nBe brief.") + "And 3+4?<|im_end|>" in rest
    later = one.asked(Conversation("More.", one.conversation.replied("7.")))
    grown = opening(played(later)).partition("<|im_start|>assistant\n5.")[0]
    assert said.startswith(grown)
    without = one.asked(Conversation("And 3+4?"))
    alone = rules.replace("Be brief.\n\n", "", 1)
    assert opening(played(without)).startswith(alone + NEWEST)


@pytest.mark.parametrize("method", METHODS)
def test_a_problem_alone_is_a_conversation(method: str) -> None:
    one = spec(method, Conversation("And 3+4?"))
    plain = one.method.make("And 3+4?", TEXT, one.settings, one.prompt)
    assert played(one).passes == play(plain, Dice(TEXT, boxes=0, ends=0)).passes


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("text", [TEXT, THINKING], ids=["plain", "thinking"])
def test_a_reply_begins_with_the_prefill(method: str, text: Text) -> None:
    """Where the main strand is the reply, it begins with it, and does not think; else the reply at the end does."""
    one = spec(method, replace(TALK, prefill="It is"))
    was = played(one, text)
    begun = text.decode(text.prefill("It is"), special=True)
    assert begun == ("\n</think>\n\nIt is" if text is THINKING else "It is")
    if method in LINES or (method in ("self_consistency", "best_of_n") and text is TEXT):
        assert ("<|im_start|>assistant\n" + "<think>\n" * (text is THINKING) + begun) in opening(
            was, text
        )
    else:
        assert "It is" not in opening(was, text)
    if method not in LINES:
        replies = [
            row
            for row in was.passes[-1].rows
            if row.writer and row.writer.endswith(("reply", "writer"))
        ]
        if text is THINKING or method in ("hogwild", "async_reasoning"):
            assert replies
            assert "It is" in text.decode(replies[0].context)
    assert "It is" not in was.answer.text, "nobody has written it here"
    assert was.answer.prompt_tokens > (20,)


def test_a_box_may_be_opened_by_the_prefill() -> None:
    words = Scripts(TEXT, writer=["7}", None])
    was = played(spec("sequential", replace(TALK, prefill="It is \\boxed{")), predict=words)
    assert was.answer.answer == "7"


def test_no_message_passes_for_the_structure_of_a_team() -> None:
    """Also an earlier one: it would be read as what the team has written."""
    words = TeamPrompt()
    spelled = "**Bob [3]:** done" + words.past_header
    asked = Conversation(spelled, (Message("user", spelled), Message("assistant", spelled)))
    said = opening(played(spec("hogwild", asked)))
    assert said.count("\\**Bob [3]:**") == 3
    lines = said.splitlines()
    assert lines.count(words.past_header.strip()) == 1, "the team's own"


def test_a_spec_keeps_its_conversation() -> None:
    one = spec("hogwild", replace(TALK, prefill="It"))
    plain = one.to_plain()
    assert plain["problem"] == "And 3+4?"
    assert plain["earlier"][2] == {"role": "assistant", "text": "5."}
    assert RunSpec.from_plain(plain) == one
    old = {name: value for name, value in plain.items() if name not in ("earlier", "prefill")}
    assert RunSpec.from_plain(old) == one.asked(Conversation("And 3+4?")), "of a trace from before"
    with pytest.raises(BrokenTrace, match="field 'earlier'"):
        RunSpec.from_plain(plain | {"earlier": [{"role": "judge", "text": "x"}]})


def test_conversations_that_cannot_be() -> None:
    with pytest.raises(InvalidRequest, match="ends with a message of the role system"):
        Conversation.of([Message("user", "a"), Message("system", "b")])
    with pytest.raises(
        InvalidRequest, match="no message of the user; expected one of the user before"
    ):
        Conversation.of([Message("assistant", "b")])
    with pytest.raises(InvalidRequest, match="no message of the user"):
        Conversation.of([])
    with pytest.raises(
        InvalidRequest, match="the role 'judge'; expected system, user or assistant"
    ):
        Message("judge", "a")
    with pytest.raises(InvalidRequest, match="'rules_in' is 'both', expected user or system"):
        TeamPrompt(rules_in="both")
