"""A prompt file: what it leaves out stays, what it misspells is an error, dumps load back."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.errors import InvalidRequest
from manyhands.prompts import TeamPrompt, dump_prompt, load_prompt


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "team.toml"


def test_missing_keys_keep_their_defaults(file: Path) -> None:
    file.write_text('[team]\nown_header = "\\n\\n### Mine"\nnames = ["Ada", "Ben"]\n')
    expected = TeamPrompt(own_header="\n\n### Mine", names=("Ada", "Ben"))
    assert load_prompt(file) == expected


def test_the_defaults_load_back(file: Path) -> None:
    file.write_text(dump_prompt(TeamPrompt()), encoding="utf-8")
    assert load_prompt(file) == TeamPrompt()


def test_long_texts_are_dumped_over_several_lines() -> None:
    assert "\nYou are a team of {count}: {names}." in dump_prompt(TeamPrompt())


def test_a_text_that_cannot_stand_as_it_is_is_quoted(file: Path) -> None:
    for text in ["a\n'''b\nc", "a\nb\nc'", "\na\nb\n"]:
        prompt = TeamPrompt(finisher=text)
        file.write_text(dump_prompt(prompt))
        assert load_prompt(file) == prompt


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\"'\\\t"))
FREE = TEXT.filter(lambda text: "{" not in text)


@given(FREE, FREE, FREE, st.lists(st.sampled_from(["Ada", 'B"en', "数", "C\\"]), unique=True))
def test_any_prompt_loads_back(
    tmp_path_factory: pytest.TempPathFactory,
    rules: str,
    header: str,
    finisher: str,
    names: list[str],
) -> None:
    prompt = TeamPrompt(
        rules=rules + "{problem}", own_header=header, finisher=finisher, names=tuple(names)
    )
    path = tmp_path_factory.getbasetemp() / "dumped.toml"
    path.write_bytes(dump_prompt(prompt).encode())
    assert load_prompt(path) == prompt


@pytest.mark.parametrize(
    ("content", "message", "hint"),
    [
        ('[team]\nruls = "x"', "unknown keys: 'ruls'", "known keys: rules, solo_rules"),
        ('rules = "x"', "'rules' outside the tables", "under one of [team]"),
        ('[teem]\nrules = "x"', "unknown table [teem]", "[team], [branches]"),
        ("team = 3", "'team' as a int", "write [team]"),
        ('[branches]\nruls = "x"', "'ruls' under [branches]", "known keys: rules, finisher"),
        ('[branches]\nrules = "x"', "[branches]: prompt field 'rules' lacks", "{question}"),
        ("", "has no table", "begin with one of [team]"),
        ("[team]\nown_header = 3", "'own_header' is a int", ""),
        ('[team]\nnames = "Ada"', "expected a list", ""),
        ('[team]\nstep_prefix = "{nam}"', "unknown placeholder {nam}", "{name}, {step}"),
        ('[team]\nrules = "\\cdot"', "not valid TOML", "backslash twice"),
        ('[team]\nfinisher = "\\boxed{"', "control character U+0008", "backslash twice"),
        ('[team]\nfinisher = "\\frac"', "control character U+000C", "backslash twice"),
    ],
)
def test_mistakes_are_named(file: Path, content: str, message: str, hint: str) -> None:
    file.write_text(content)
    with pytest.raises(InvalidRequest) as caught:
        load_prompt(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)
    assert hint in caught.value.hint


def test_a_file_that_is_not_there(file: Path) -> None:
    with pytest.raises(InvalidRequest, match="No such file"):
        load_prompt(file)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        load_prompt(tmp_path)


def test_a_file_that_is_not_utf8(file: Path) -> None:
    file.write_bytes(b'[team]\nrules = "\xff"')
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        load_prompt(file)


def test_a_dump_is_plain_toml() -> None:
    assert set(tomllib.loads(dump_prompt(TeamPrompt()))) == {"team"}
