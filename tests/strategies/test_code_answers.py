"""Runs whose answer is a program: a draft ends nothing, and the finisher writes to a closing fence."""

from __future__ import annotations

from dataclasses import replace

from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.sequential import sequential
from manyhands.strategies.settings import EndSettings, SoloSettings, TeamSettings
from tests.strategies.driver import PROMPT, Scripts, play, small_text

TEXT, THINKER = small_text(), small_text(thinking=True)
WORDS = replace(PROMPT, code_finisher="\nProgram:\n```python\n")
END = EndSettings(answer="code", finisher_tokens=40, reply=False)
BLOCK = ["```python\n", "p(1)", "\n```"]


def test_a_team_goes_on_behind_a_draft_and_is_asked_at_the_end() -> None:
    settings = TeamSettings(budget=24, check_every=0, end=END)
    played = play(
        hogwild("2+3", TEXT, settings, WORDS),
        Scripts(TEXT, Alice=[*BLOCK, "\\boxed{5}"], Bob=["b"] * 24, finisher=["p(2)\n", "```"]),
    )
    assert (played.answer.answer, played.answer.finish_reason) == ("p(2)\n", "budget")
    first = TEXT.decode(played.rows("finisher")[0].context)
    assert first.endswith("\nProgram:\n```python\n")


def test_the_last_block_of_one_worker_counts() -> None:
    settings = SoloSettings(budget=60, end=END)
    said = ["No:\n", *BLOCK, "\nBetter:\n", "```python\n", "p(3)", "\n```", None]
    played = play(sequential("2+3", TEXT, settings, WORDS), Scripts(TEXT, writer=said))
    assert (played.answer.answer, played.answer.finish_reason) == ("p(3)\n", "answer")
    assert played.answer.extra_passes == 0


def test_a_draft_among_thoughts_is_no_answer() -> None:
    settings = SoloSettings(budget=24, end=END)
    strategy = sequential("2+3", THINKER, settings, WORDS)
    played = play(strategy, Scripts(THINKER, writer=[*BLOCK, "x" * 40], finisher=["p(4)\n", "```"]))
    assert played.answer.answer == "p(4)\n"
