"""Nothing that was once written is lost: torn ends, full disks, second starts, other settings."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
from pathlib import Path

import pytest

from manyhands.errors import InvalidRequest, OutputFailed
from manyhands.evaluation.lines import LinesFile, read_lines

HEADER = {"task": "t", "budgets": [1, 2], "date": "today"}


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_a_second_start_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a" / "x.jsonl"
    with LinesFile(path, HEADER) as file:
        file.append({"n": 1})
    with LinesFile(path, HEADER | {"date": "tomorrow"}) as file:
        assert file.lines == [{"n": 1}]
        file.append({"n": 2})
    header, found = read_lines(path)
    assert header["date"] == "today"
    assert found == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_torn_last_line_is_mended(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "x.jsonl"
    with LinesFile(path, HEADER) as file:
        file.append({"n": 1})
        file.append({"n": "ü"})
    path.write_bytes(path.read_bytes()[:-cut])
    assert read_lines(path)[1] == [{"n": 1}]
    with LinesFile(path, HEADER) as file:
        assert file.lines == [{"n": 1}]
        file.append({"n": 3})
    assert read_lines(path)[1] == [{"n": 1}, {"n": 3}]


def test_a_torn_header_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"schema": 1, "kin')
    with LinesFile(path, HEADER) as file:
        assert file.lines == []
    assert len(lines(path)) == 1


def test_other_settings_are_refused_and_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    settings = {"layout": "combined", "budget": 4}
    with LinesFile(path, HEADER | {"settings": settings}) as file:
        file.append({"n": 1})
    before = path.read_bytes()
    other = HEADER | {"settings": settings | {"layout": "contiguous"}}
    with pytest.raises(
        InvalidRequest, match=r'settings {"layout": "combined"}; .*"contiguous"'
    ) as found:
        LinesFile(path, other)
    assert found.value.hint == "run it as before to go on, or remove the file"
    with pytest.raises(InvalidRequest) as found:
        LinesFile(path, other, elsewhere="--label")
    assert "to go on, choose another --label, or remove" in found.value.hint
    assert path.read_bytes() == before


@pytest.mark.parametrize("torn", ["", '{"n": 1'])
def test_a_header_alone_binds_nobody(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "x.jsonl"
    LinesFile(path, HEADER | {"endpoint": "http://wrong/v1"}).close()
    with path.open("a") as file:
        file.write(torn)
    with LinesFile(path, HEADER | {"endpoint": "http://right/v1"}) as mended:
        assert mended.lines == []
        mended.append({"n": 2})
    header, found = read_lines(path)
    assert header["endpoint"] == "http://right/v1"
    assert found == [{"n": 2}]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{broken", "line 2: it is not JSON"),
        ("[1]", "line 2: it is a list"),
        ("\udcff", "line 2: it is not JSON"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "x.jsonl"
    LinesFile(path, HEADER).close()
    with path.open("a", errors="surrogateescape") as file:
        file.write(line + '\n{"n": 2}\n')
    with pytest.raises(InvalidRequest, match=said) as found:
        LinesFile(path, HEADER)
    assert "remove that line" in found.value.hint


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"kind": "header", "schema": 9}\n', "schema 9"),
        ('{"n": 1}\n', "does not begin with a header"),
        ("", "no whole line"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidRequest, match=said):
        read_lines(path)


def test_two_runs_do_not_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with LinesFile(path, HEADER), pytest.raises(InvalidRequest, match="another run is writing"):
        LinesFile(path, HEADER)
    LinesFile(path, HEADER).close()


def test_a_full_disk_keeps_what_was_there(tmp_path: Path) -> None:
    """A real limit of the operating system: part of the line fits, the rest does not."""
    path = tmp_path / "x.jsonl"
    usual = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    file = LinesFile(path, HEADER)
    file.append({"n": 1})
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, hard))
        with pytest.raises(OutputFailed, match="cannot be written") as found:
            file.append({"n": "x" * 500})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, usual)
    assert "kept" in found.value.hint
    assert read_lines(path)[1] == [{"n": 1}]
    assert path.read_bytes().endswith(b"}\n")
    file.append({"n": 2})  # there is room again
    file.close()
    assert read_lines(path)[1] == [{"n": 1}, {"n": 2}]


def test_a_line_that_did_not_reach_the_disk_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.jsonl"
    with LinesFile(path, HEADER) as file:

        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(OutputFailed, match="No space left"):
                file.append({"n": 1})
        assert len(lines(path)) == 1
        file.append({"n": 2})
    assert json.loads(lines(path)[1]) == {"n": 2}


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputFailed):
        LinesFile(tmp_path / "file" / "x.jsonl", HEADER)
