"""Every method with a model that writes messages in channels, as gpt-oss does: the final one alone is the reply."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tokenizers import AddedToken

from manyhands.cache.step import Choice
from manyhands.prompts.async_reasoning import AsyncReasoningPrompt
from manyhands.prompts.async_think import AsyncThinkPrompt
from manyhands.prompts.branches import BranchPrompt
from manyhands.schema.conversation import Conversation
from manyhands.strategies.account import Account
from manyhands.strategies.async_reasoning import async_reasoning
from manyhands.strategies.async_think import async_think
from manyhands.strategies.base import Strategy
from manyhands.strategies.branches import branches
from manyhands.strategies.events import ReplyWritten, StepEnded, TokenWritten
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.methods import METHODS
from manyhands.strategies.sequential import sequential
from manyhands.strategies.settings import (
    AsyncReasoningSettings,
    AsyncThinkSettings,
    BranchSettings,
    EndSettings,
    SharedSettings,
    SoloSettings,
    TeamSettings,
)
from manyhands.strategies.shared_prefix import Completion, Completions, Prompt, shared_prefix
from manyhands.text import Text
from manyhands.text.grammar import Grammar
from tests.strategies.driver import PROMPT, WHOLE, Played, Scripts, SeenRow, play
from tests.text.small_tokenizers import harmony

FINAL = "<|start|>assistant<|channel|>final<|message|>"
COMMENTARY = "<|start|>assistant<|channel|>commentary to=functions.add<|message|>"
OPENED = "<|start|>assistant<|channel|>analysis<|message|>"
END = EndSettings(finisher=False, reply_tokens=20)
ATTEMPTS: dict[str, Any] = {"workers": 2, "budget": 40, "end": END}


def harmony_text(*, thinking: bool = True) -> Text:
    tokenizer = harmony()
    tokenizer.add_tokens([AddedToken(piece, special=False, normalized=False) for piece in WHOLE])
    return Text(tokenizer, thinking=thinking)


TEXT = harmony_text()


def lines(*pieces: str) -> list[str | int | None]:
    """The tokens that a writer says; marks are tokens of their own."""
    return [token for piece in pieces for token in TEXT.markup(piece)]


def run(strategy: Strategy, **said: list[Any]) -> Played:
    named = {name.replace("_", " "): lines(*words) for name, words in said.items()}
    return play(strategy, Scripts(TEXT, **named))


def spelled(row: SeenRow) -> str:
    return TEXT.decode(row.context, special=True)


def replied(played: Played) -> str:
    return "".join(event.text for event in played.of(ReplyWritten))


WRITES = [f"Hm.<|end|>{FINAL}It is \\boxed{{7}}.", "<|return|>"]
SOLO = ("sequential", "branches", "skeleton", "async_think", "profiled")


def solo(name: str) -> Strategy:
    method = METHODS[name]
    return method.make("3+4?", TEXT, replace(method.settings(), end=END), None)


@pytest.mark.parametrize("name", SOLO)
def test_the_final_channel_is_the_reply_of_a_strand(name: str) -> None:
    played = run(solo(name), writer=WRITES)
    answer = played.answer
    assert (answer.text, answer.answer, answer.finish_reason) == (
        "It is \\boxed{7}.",
        "7",
        "answer",
    )
    assert replied(played) == "It is \\boxed{7}."
    written = "".join(e.text for e in played.of(TokenWritten) if not e.worker)
    assert written == "Hm.It is \\boxed{7}."
    assert [step.text for step in answer.steps] == ["Hm.", "It is \\boxed{7}."]
    assert [e.text for e in played.of(StepEnded)] == ["Hm."]
    account = Account(["Writer"], solo=True)
    for event in played.events:
        account.take(event)
    assert [step.text for step in account.thoughts()] == ["Hm."]
    assert account.reply == "It is \\boxed{7}."


@pytest.mark.parametrize("name", SOLO)
@pytest.mark.parametrize("end", ["<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>"])
def test_a_reply_ends_with_its_message(name: str, end: str) -> None:
    played = run(solo(name), writer=[f"Hm.<|end|>{FINAL}Four.{end}", "analysis"])
    assert played.answer.text == replied(played) == "Four."
    assert played.answer.finish_reason == "stopped"


@pytest.mark.parametrize("name", SOLO)
def test_a_call_of_a_tool_is_no_reply(name: str) -> None:
    """There are none here. The turn ends, and what was written is thinking."""
    played = run(solo(name), writer=[f"Hm.<|end|>{COMMENTARY}{{}}<|call|>"])
    assert replied(played) == ""
    assert [step.text for step in played.answer.steps] == ["Hm.\n\n{}"]
    assert played.answer.finish_reason == "stopped"


def test_a_reply_of_so_many_tokens_does_not_end_before() -> None:
    settings = SoloSettings(end=END, choice=Choice(min_tokens=99), budget=20)
    played = run(sequential("3+4?", TEXT, settings, PROMPT), writer=[f"Hm.<|end|>{FINAL}Fo"])
    size = len(TEXT.markup(f"Hm.<|end|>{FINAL}"))
    rows = played.rows("writer")
    assert [row.choice.forbidden for row in rows[:size]] == [TEXT.eos] * size
    assert {row.choice.forbidden for row in rows[size:]} == {TEXT.reply_end}


# -- teams -----------------------------------------------------------------------------------------


def test_a_team_works_within_one_message_and_replies_in_another() -> None:
    """Desks stand in the analysis; the end of a message is the end of a worker."""
    settings = TeamSettings(workers=2, budget=30, check_every=0, end=END)
    played = run(
        hogwild("3+4?", TEXT, settings, PROMPT),
        Alice=["3 and 4.\n\n", "So 7.", "<|end|>"],
        Bob=["Hm.\n\n", "<|channel|>"],
        reply=["It is 7.", "<|return|>"],
    )
    for name in ("Alice", "Bob"):
        begun = spelled(played.rows(name)[0])
        assert begun.count(OPENED) == 1
        assert begun.index(OPENED) < begun.index("\nOwn")
    steps = [(step.worker, step.text) for step in played.answer.steps]
    assert sorted(steps) == [(0, "3 and 4."), (0, "So 7."), (1, "Hm.")]
    assert played.answer.finish_reason == "stopped"
    (first, *_) = played.rows("reply")
    said = spelled(first).rpartition(OPENED)[2]
    assert said.endswith(f"\nReply:<|end|>{FINAL}"), "nothing between the mark and the reply"
    assert said.count("<|end|>") == 1, "no worker's end was fed"
    assert played.answer.text == replied(played) == "It is 7."


def test_a_finisher_asks_within_the_thinking() -> None:
    settings = TeamSettings(
        workers=2, budget=3, check_every=0, end=EndSettings(answer="boxed", reply_tokens=20)
    )
    words = PROMPT
    played = run(
        hogwild("3+4?", TEXT, settings, words),
        finisher=["7}"],
        reply=["It is 7.<|end|>", "more"],
    )
    asked = spelled(played.rows("finisher")[0])
    assert asked.endswith("\nFinal \\boxed{")
    assert "<|end|>" not in asked.rpartition(OPENED)[2]
    assert played.answer.answer == "7"
    assert played.answer.text == "It is 7."


@pytest.mark.parametrize("name", ["self_consistency", "best_of_n"])
def test_attempts_are_thoughts(name: str) -> None:
    method = METHODS[name]
    settings = replace(method.settings(), **ATTEMPTS)
    attempt = ["Hm. \\boxed{7}", "<|end|>", "start"]
    said: dict[str, Any] = {f"attempt_{n}": attempt for n in (1, 2)}
    said |= {"reply": ["It is 7.<|return|>"], "attempt_1's_reply": ["It is 7.<|return|>"]}
    said["finisher"] = ["7}"]
    played = run(method.make("3+4?", TEXT, settings, None), **said)
    assert [step.text for step in played.answer.steps] == ["Hm. \\boxed{7}"] * 2
    assert played.answer.answer == "7"
    (reply,) = {
        row.writer for one in played.passes for row in one.rows if "reply" in (row.writer or "")
    }
    assert spelled(played.rows(reply or "")[0]).endswith(FINAL)


def test_attempts_that_do_not_think_are_replies() -> None:
    method, text = METHODS["self_consistency"], harmony_text(thinking=False)
    settings = replace(method.settings(), **ATTEMPTS)
    said = {f"attempt {n}": lines("It is \\boxed{7}.<|end|>", "no") for n in (1, 2)}
    played = play(method.make("3+4?", text, settings, None), Scripts(text, **said))
    assert [step.text for step in played.answer.steps] == ["It is \\boxed{7}."] * 2
    assert played.rows("attempt 1")[0].context[-3:] == text.markup(FINAL)[-3:]


def test_a_writer_beside_a_thinker_stays_in_its_message() -> None:
    settings = AsyncReasoningSettings(budget=40, probe_every=0, end=END)
    strategy = async_reasoning("3+4?", TEXT, settings, AsyncReasoningPrompt())
    played = run(strategy, thinker=["3 and 4.", "<|end|>"], writer=["It is 7.<|end|>", "no"])
    first = played.rows("writer")[0]
    assert spelled(first).endswith(f"appear here.]<|end|>{FINAL}")
    assert played.answer.text == replied(played) == "It is 7."
    settings = AsyncReasoningSettings(budget=30, probe_every=1, end=END)
    script, both = Scripts(TEXT), []
    for pick in (min, max):  # one of them is the probe's yes
        played = play(
            async_reasoning("3+4?", TEXT, settings, AsyncReasoningPrompt()),
            lambda row, pick=pick: pick(row.choice.allowed) if row.choice.allowed else script(row),  # type: ignore[misc]
        )
        both += [one for one in played.passes if {"thinker", "writer"} <= set(one.writers)]
    assert both
    for one in both:  # it waits for the thoughts, so it does not end
        assert one.row("writer").choice.forbidden >= TEXT.reply_end


def test_a_worker_of_an_organiser_returns_what_stands_in_its_final_channel() -> None:
    settings = AsyncThinkSettings(workers=1, budget=90, worker_tokens=60, end=END)
    prompt = AsyncThinkPrompt()
    played = run(
        async_think("3+4?", TEXT, settings, prompt),
        writer=["<FORK-1>ab</FORK-1><JOIN-1>", "x" * 30],
        worker_1=[f"I return <RETURN>0</RETURN>.<|end|>{FINAL}so <RETURN>7</RETURN>"],
    )
    assert "<RETURN-1>\n7\n</RETURN-1>" in spelled(played.rows("writer")[-1])


def test_parts_in_the_reply_end_with_their_message() -> None:
    settings = BranchSettings(end=END)
    played = run(
        branches("3+4?", TEXT, settings, BranchPrompt()),
        writer=[f"Hm.<|end|>{FINAL}\n####A:", "B:", "%%%%", " So.<|return|>"],
        branch_1=["one", "<|end|>"],
        branch_2=["two", "<|return|>"],
    )
    assert played.answer.text == "A: one\nB: two\n So."
    assert "final" not in "".join(step.text for step in played.answer.steps)


# -- plain completions -----------------------------------------------------------------------------


def complete(settings: SharedSettings, *written: str, prompt: Any = "3+4?") -> Completion:
    strategy = shared_prefix([prompt], TEXT, settings)
    script = Scripts(TEXT, **{"prompt 0, sample 0": lines(*written)})
    answer = play(strategy, script).answer
    assert isinstance(answer, Completions)
    return answer.completions[0]


def test_a_completion_of_a_chat() -> None:
    thought = f"Hm.<|end|>{OPENED}So.<|end|>{FINAL}"
    for end in ("<|return|>", "<|end|>", "<|call|>"):
        settings = SharedSettings(max_tokens=60, choice=Choice(logprobs=0))
        found = complete(settings, thought, " It is 7.", end)
        assert (found.text, found.thinking, found.finish_reason) == (
            "It is 7.",
            "Hm.\n\nSo.",
            "stop",
        )
        assert found.thinking_tokens == len(TEXT.markup(thought))
    short = complete(SharedSettings(max_tokens=5), thought)
    assert (short.text, short.finish_reason, short.thinking_tokens) == ("", "length", 5)
    called = complete(SharedSettings(max_tokens=99), f"Hm.<|end|>{COMMENTARY}{{}}<|call|>")
    assert (called.text, called.thinking, called.finish_reason) == ("", "Hm.\n\n{}", "stop")


def test_a_completion_of_a_plain_prompt_is_told_as_it_stands() -> None:
    prompt = Prompt(TEXT.chat_prompt("3+4?"))
    found = complete(SharedSettings(max_tokens=60), f"Hm.<|end|>{FINAL}7.<|return|>", prompt=prompt)
    assert (found.text, found.thinking) == ("Hm.assistantfinal7.", "")


def test_a_form_begins_with_the_reply() -> None:
    strategy = shared_prefix(
        ["3+4?"],
        TEXT,
        SharedSettings(max_tokens=60, grammar=Grammar("regex", "[ab]{3}")),
    )
    thought = list(TEXT.markup(f"Hm.<|end|>{FINAL}"))
    letter = TEXT.encode("a")[0]

    def predict(row: SeenRow) -> int:
        if row.writer is None:
            return 0
        assert (row.choice.mask is None) == bool(thought)
        return thought.pop(0) if thought else letter

    answer = play(strategy, predict).answer
    assert isinstance(answer, Completions)
    assert (answer.text, answer.completions[0].finish_reason) == ("aaa", "stop")


def test_a_prefill_is_continued() -> None:
    settings = SoloSettings(end=END)
    asked = Conversation("3+4?", prefill="It is")
    played = run(sequential(asked, TEXT, settings, PROMPT), writer=[" 7.<|end|>"])
    assert played.answer.text == "7."
    assert spelled(played.rows("writer")[0]).endswith(f"{FINAL}It is")


@pytest.mark.parametrize("stop", ["ab", "b\n\n"])
def test_no_stop_text_begins_in_the_thinking_and_ends_in_the_reply(stop: str) -> None:
    found = complete(
        SharedSettings(max_tokens=60, stop=(stop,)),
        f"Hm {stop[0]}<|end|>{FINAL}{stop[1:]}7<|return|>",
    )
    assert (found.thinking, found.text) == (f"Hm {stop[0]}", f"{stop[1:]}7".lstrip())


def test_a_character_that_the_thinking_leaves_incomplete_is_none_of_the_reply() -> None:
    (first, *_) = (token for token in TEXT.encode("é") if TEXT.decode([token]) != "é")
    script = Scripts(TEXT, **{"prompt 0, sample 0": [first, *lines(f"<|end|>{FINAL}7<|return|>")]})
    answer = play(shared_prefix(["3+4?"], TEXT, SharedSettings(max_tokens=60)), script).answer
    assert isinstance(answer, Completions)
    assert (answer.completions[0].thinking, answer.text) == ("\ufffd", "7")
