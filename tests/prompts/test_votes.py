"""The words of self-consistency and best-of-n, and of chain-of-draft."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from manyhands.errors import InvalidRequest
from manyhands.prompts import Prompts, TeamPrompt, load_prompts
from manyhands.prompts.chain_of_draft import INSTRUCTION, drafted
from manyhands.prompts.votes import VotesPrompt


def test_an_attempt_is_asked_for_like_one_worker_alone() -> None:
    asked = VotesPrompt().message("What {problem}?")
    assert asked == TeamPrompt().solo_message("What {problem}?")


def test_a_model_brings_its_own_words_for_one_worker(tmp_path: Path) -> None:
    file = tmp_path / "manyhands.toml"
    file.write_text('[team]\nsolo_rules = "Alone: {problem}"\n', encoding="utf-8")
    assert load_prompts(file).votes == VotesPrompt(rules="Alone: {question}")
    file.write_text(
        '[team]\nsolo_rules = "Alone: {problem}"\n[votes]\nrules = "Try: {question}"\n',
        encoding="utf-8",
    )
    assert load_prompts(file).votes.rules == "Try: {question}"
    own = Prompts(votes=VotesPrompt(rules="Try: {question}"))
    file.write_text('[team]\nsolo_rules = "Alone: {problem}"\n', encoding="utf-8")
    assert load_prompts(file, own).votes == own.votes
    assert load_prompts(file, own).team.solo_rules == "Alone: {problem}"
    file.write_text('[votes]\ngrade = "Grade:"\n', encoding="utf-8")
    assert load_prompts(file).votes == VotesPrompt(grade="Grade:")


@pytest.mark.parametrize(
    ("field", "value", "found"),
    [
        ("rules", "{problem}", "unknown placeholder {problem}"),
        ("rules", "nothing", "lacks the placeholder {question}"),
        ("grade", "{number}", "unknown placeholder {number}"),
        ("between", None, "is a NoneType"),
    ],
)
def test_mistakes(field: str, value: Any, found: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        VotesPrompt(**{field: value})
    assert found in str(error.value)


def test_drafts_are_asked_for_in_every_methods_rules_and_nowhere_else() -> None:
    before, after = Prompts(), drafted(Prompts())
    changed = []
    for table in fields(Prompts):
        old, new = getattr(before, table.name), getattr(after, table.name)
        for field in fields(old):
            was, now = getattr(old, field.name), getattr(new, field.name)
            if was != now:
                changed.append(f"{table.name}.{field.name}")
                assert field.name.endswith("rules")
                assert now == INSTRUCTION + was
    assert set(changed) >= {
        "team.rules",
        "team.solo_rules",
        "branches.rules",
        "skeleton.rules",
        "profiled.rules",
        "async_reasoning.rules",
        "async_think.rules",
        "async_think.worker_rules",
        "votes.rules",
    }
    assert drafted(before, "Short. ").votes.message("Q?").startswith("Short. ")
