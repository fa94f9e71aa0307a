"""Files that are there as a whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from manyhands.schema.whole import whole_file, whole_files, write_whole


def test_a_file_takes_the_place_of_an_earlier_one_with_its_mode(tmp_path: Path) -> None:
    path, link = tmp_path / "a.txt", tmp_path / "link.txt"
    write_whole(path, "one\r\ntwo\n")
    assert path.read_bytes() == b"one\r\ntwo\n"
    ordinary = tmp_path / "ordinary"
    ordinary.touch()
    assert path.stat().st_mode == ordinary.stat().st_mode
    path.chmod(0o640)
    link.symlink_to(path)
    write_whole(link, "three")
    assert link.is_symlink()
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("three", 0o640)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.txt", "link.txt", "ordinary"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_fails_leaves_what_was_there(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "a.txt"
    path.write_text("before")

    def fail() -> None:
        with whole_file(path) as fresh:
            fresh.write_text("half")
            raise error

    with pytest.raises(type(error)) as caught:
        fail()
    if isinstance(caught.value, OSError):
        assert caught.value.filename == str(path)
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_folder_that_is_not_there_is_said_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "none" / "a.txt"
    with pytest.raises(FileNotFoundError) as caught:
        write_whole(path, "text")
    assert caught.value.filename == str(path)


def test_bytes_are_on_the_disk_before_they_stand_in_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some disks say only then that they are full."""
    path = tmp_path / "a.txt"
    path.write_text("before")

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "text")
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_files_are_put_in_their_places_together_and_the_last_ones_behind_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b").write_text("before")
    (tmp_path / ".unfinished").mkdir()
    (tmp_path / ".unfinished" / "killed").write_text("half")
    put, replace = list[str](), os.replace

    def noted(source: Path, target: Path) -> None:
        put.append(target.relative_to(tmp_path).as_posix())
        replace(source, target)

    monkeypatch.setattr(os, "replace", noted)
    with whole_files(tmp_path, last=["a"]) as fresh:
        (fresh / "in").mkdir()
        for name in ("a", "b", "in/c"):
            (fresh / name).write_text(name)
        assert (tmp_path / "b").read_text() == "before"
    assert put == ["b", "in/c", "a"]
    assert [(tmp_path / name).read_text() for name in put] == put
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "in"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_none_of_several_files_is_put_where_one_fails(tmp_path: Path, error: BaseException) -> None:
    (tmp_path / "b").write_text("before")

    def fail() -> None:
        with whole_files(tmp_path) as fresh:
            (fresh / "a").write_text("a")
            (fresh / "b").write_text("half")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert os.listdir(tmp_path) == ["b"]
    assert (tmp_path / "b").read_text() == "before"
