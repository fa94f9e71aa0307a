"""Files of a user that have no end, or lie too deep in themselves: each has one clear error."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyhands.cli.serve import keys_of
from manyhands.cli.serve_options import ServeOptions
from manyhands.errors import InvalidRequest
from manyhands.schema.bounded import read_small
from manyhands.schema.toml import read_toml


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
