"""The judges' words, and what a file may do to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyhands.errors import InvalidRequest
from manyhands.prompts.judging import JudgingPrompt, load_judging


def test_values_are_never_searched_for_placeholders() -> None:
    said = JudgingPrompt().message(
        "quality", question="What is {answer}?", reference="{question}", answer="\\boxed{answer}"
    )
    assert "What is {answer}?" in said
    assert "\n{question}\n" in said
    assert "\\boxed{3}" in said


def test_a_file_replaces_what_it_names(tmp_path: Path) -> None:
    file = tmp_path / "judges.toml"
    file.write_text("[judging]\nquality = 'Points for {answer} in \\boxed{}.'\n")
    prompt = load_judging(file)
    assert prompt.message("quality", answer="x") == "Points for x in \\boxed{}."
    assert prompt.collaborativeness == JudgingPrompt().collaborativeness


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[judging]\nqality = ''", "unknown keys"),
        ("[judging]\nquality = 'no place for it'", "lacks the placeholder {answer}"),
        ("[judging]\nquality = '{answer} {mood}'", "unknown placeholder {mood}"),
        ("[judging]\nquality = 3", "expected text"),
        ("[other]\nx = 1", "should have one table"),
        ("judging = 1", "should have one table"),
        ("[judging]\n[team]\n", "should have one table"),
        ("[judging", "not valid TOML"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "judges.toml"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=said):
        load_judging(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        load_judging(tmp_path / "none.toml")
    (tmp_path / "noise.toml").write_bytes(b"[judging]\n\xff")
    with pytest.raises(InvalidRequest, match=r"not UTF-8 .byte 10."):
        load_judging(tmp_path / "noise.toml")
