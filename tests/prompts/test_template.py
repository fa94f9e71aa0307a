"""The check of every prompt, one of somebody's own too: texts and lists of texts, and nothing else."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields

import pytest

from manyhands.errors import InvalidRequest
from manyhands.prompts import TeamPrompt
from manyhands.prompts.load import TABLES
from manyhands.prompts.template import check_texts

LISTS = [field.name for field in fields(TeamPrompt) if field.type != "str"]


@dataclass(frozen=True)
class Relay:
    """A prompt as an author writes one: nothing but its fields and the check."""

    rules: str = "{question}"
    names: tuple[str, ...] = ("Ann", "Ben")

    def __post_init__(self) -> None:
        check_texts(self, {"rules": frozenset({"question"})}, {})


def test_a_list_of_a_file_becomes_a_tuple() -> None:
    """Else a prompt that was read from a file would not be the one that was written to it, nor have a hash."""
    table = tomllib.loads('names = ["Ann", "Ben"]')
    assert Relay(**table) == Relay()
    assert hash(Relay(**table)) == hash(Relay())


@pytest.mark.parametrize("value", ["Ann", 3, ["Ann", 3], None])
def test_what_is_no_list_of_texts_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"'names'.*expected a list of texts"):
        Relay(names=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", LISTS)
def test_a_lost_backslash_is_seen_in_lists_too(field: str) -> None:
    r"""TOML reads the `\b` of `"\boxed"` as a backspace, wherever it stands."""
    table = tomllib.loads(f'{field} = [" I begin with \\boxed"]')
    with pytest.raises(InvalidRequest, match=rf"'{field}' contains the control character U\+0008"):
        TeamPrompt(**table)


def test_a_field_that_no_file_can_hold_is_its_authors_mistake() -> None:
    @dataclass(frozen=True)
    class Counted:
        rounds: int = 2

    with pytest.raises(TypeError, match=r"Counted\.rounds is annotated as int"):
        check_texts(Counted(), {}, {})


def test_every_table_is_of_texts_and_lists_of_texts() -> None:
    for kind in TABLES.values():
        assert {field.type for field in fields(kind)} <= {"str", "tuple[str, ...]"}, kind
