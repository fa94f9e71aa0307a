"""Files of a user that have no end, or lie too deep in themselves: each has one clear error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from manyhands.cli.serve import keys_of
from manyhands.cli.serve_options import ServeOptions
from manyhands.errors import InvalidRequest
from manyhands.prompts.load import brings_words, load_prompts
from manyhands.schema.bounded import read_small
from manyhands.schema.toml import read_toml
from manyhands.school.recipe import read_recipe


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_bytes(b"12345")
    assert read_small(path, most=5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_small(path, most=4)


def test_a_device_without_an_end_is_no_toml() -> None:
    """It was read until the machine had no memory left."""
    with pytest.raises(InvalidRequest, match="cannot be read: it has more than 16,777,216 bytes"):
        read_toml(Path("/dev/zero"), "the recipe")


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "a = " + "{a = " * 100_000])
def test_tables_in_tables_without_end(text: str, tmp_path: Path) -> None:
    path = tmp_path / "deep.toml"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match="too deep in each other"):
        read_toml(path, "the recipe")


def test_a_number_with_more_digits_than_python_reads(tmp_path: Path) -> None:
    path = tmp_path / "long.toml"
    path.write_text("a = " + "1" * 5000)
    with pytest.raises(InvalidRequest, match="the recipe holds a number of too many digits"):
        read_toml(path, "the recipe")


def test_a_device_without_an_end_holds_no_keys() -> None:
    with pytest.raises(InvalidRequest, match="cannot be read: it has more than"):
        keys_of(ServeOptions(api_key_file=Path("/dev/zero")))


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_a_name_that_no_file_has(name: str) -> None:
    """It was said to hold a number of too many digits."""
    for read in (load_prompts, read_recipe):
        with pytest.raises(InvalidRequest, match="cannot be read"):
            read(name)


@pytest.mark.parametrize("wrong", [None, 5, b"x"])
def test_what_is_no_path(wrong: Any) -> None:
    for read in (load_prompts, read_recipe, brings_words if wrong is not None else load_prompts):
        with pytest.raises(
            InvalidRequest, match=f"a {type(wrong).__name__} was given as a.*; expected a path"
        ):
            read(wrong)
