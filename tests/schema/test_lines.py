"""A file of lines: going on, torn ends, headers, locks, and files that are something else."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from filelock import lock_descriptor

from manyhands.errors import BrokenTrace, InvalidRequest, OutputFailed, place_or_room
from manyhands.schema import lines as lines_module
from manyhands.schema.lines import Format, LineFile, raw_lines, read_lines

PLAIN = Format("a list", line="an entry", fields=("n",), begins=b'{"n": ', hint="remove it")
HEADED = Format(
    "a list",
    line="an entry",
    fields=(),
    begins=b'{"kind": "header"',
    schema=3,
    error=BrokenTrace,
    hint="remove it",
)
HEADER = {"kind": "header", "schema": 3, "task": "t", "budgets": [1, 2], "date": "today"}


def opened(
    path: Path, header: dict[str, Any] | None = HEADER, **more: Any
) -> tuple[LineFile, list[Any]]:
    """A file that goes on, and what it held."""
    file = LineFile(path, PLAIN if header is None else HEADED, **more)
    try:
        return file, file.resume(header)
    except BaseException:
        file.close()
        raise


def held(path: Path, header: dict[str, Any] | None = HEADER, **more: Any) -> list[Any]:
    """The lines of a file for a writer that goes on with it."""
    file, found = opened(path, header, **more)
    file.close()
    return found


def written(path: Path, *numbers: Any, header: dict[str, Any] | None = HEADER) -> Path:
    file, _ = opened(path, header)
    with file:
        for number in numbers:
            file.append({"n": number})
    return path


def test_a_second_start_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "x.jsonl"
    with pytest.raises(OutputFailed, match="No such file"):
        opened(path)
    file, found = opened(path, make_folder=True)
    with file:
        assert (found, file.is_new) == ([], True)
        file.append({"n": 1}, {"n": "ü\ud800\u2028\n"})
    file, found = opened(path, HEADER | {"date": "tomorrow", "command": "new"})
    with file:
        assert (found, file.is_new) == ([{"n": 1}, {"n": "ü\ud800\u2028\n"}], False)
        file.append({"n": 2})
        file.append()
    assert read_lines(path, HEADED) == [HEADER, {"n": 1}, {"n": "ü\ud800\u2028\n"}, {"n": 2}]
    assert path.read_bytes().isascii(), "a terminal obeys nothing in it"


@pytest.mark.parametrize("header", [HEADER, None])
def test_a_file_cut_anywhere_goes_on_behind_its_last_whole_line(
    tmp_path: Path, header: dict[str, Any] | None
) -> None:
    path = written(tmp_path / "x.jsonl", 1, "ü" * 9, 3, header=header)
    format, whole = (PLAIN if header is None else HEADED), path.read_bytes()
    others = int(header is not None)
    for size in range(len(whole) + 1):
        for zeros in (b"", b"\0" * 7):  # as a power cut may leave a line
            path.write_bytes(whole[:size] + zeros)
            num_whole = whole[:size].count(b"\n")
            if num_whole:
                assert len(read_lines(path, format)) == num_whole
            else:
                with pytest.raises(format.error, match="holds no whole line"):
                    read_lines(path, format)
            file, found = opened(path, header)
            with file:
                assert len(found) == max(0, num_whole - others)
                assert file.num_torn == len((whole[:size] + zeros).rpartition(b"\n")[2])
                file.append({"n": "new"})
            lines = whole.splitlines(keepends=True)
            kept = lines[: max(num_whole, others)]
            assert path.read_bytes() == b"".join(kept) + b'{"n": "new"}\n'


def test_other_facts_are_refused_and_named(tmp_path: Path) -> None:
    path, settings = tmp_path / "x.jsonl", {"layout": "combined", "budget": 4}
    written(path, 1, header=HEADER | {"settings": settings})
    before = path.read_bytes()
    other = HEADER | {"settings": settings | {"layout": "contiguous"}}
    said = r'made with settings {"layout": "combined"}; this run has {"layout": "contiguous"}'
    with pytest.raises(InvalidRequest, match=said) as found:
        opened(path, other)
    assert found.value.hint == "run it as before to go on, or remove the file"
    with pytest.raises(InvalidRequest) as found:
        opened(path, other, elsewhere="choose another --label")
    assert (
        found.value.hint == "run it as before to go on, choose another --label, or remove the file"
    )
    other = HEADER | {"settings": {"layout": "combined", "budget": None, "seed": 7}}
    said = (
        r'made with settings {"budget": 4, "seed": null}; this run has {"budget": null, "seed": 7}'
    )
    with pytest.raises(InvalidRequest, match=said):
        opened(path, other)
    with pytest.raises(InvalidRequest, match="made without more; this run has 1"):
        opened(path, HEADER | {"settings": settings, "more": 1})
    assert path.read_bytes() == before


@pytest.mark.parametrize("torn", ["", '{"n": 1'])
def test_a_header_alone_binds_nobody(tmp_path: Path, torn: str) -> None:
    path = written(tmp_path / "x.jsonl", header=HEADER | {"endpoint": "http://wrong/v1"})
    with path.open("a") as file:
        file.write(torn)
    right = HEADER | {"endpoint": "http://right/v1"}
    written(path, 2, header=right)
    assert read_lines(path, HEADED) == [right, {"n": 2}]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{broken", "line 2 of .* is not JSON: Expecting"),
        (b"[1]", "line 2 of .* is not an entry"),
        (b"{}", "line 2 of .* is not an entry"),
        (b"", "line 2 of .* is not JSON"),
        (b'"\xff"', r"line 2 of .* is not text \(UTF-8\)"),
        (b"[" * 100_000, "line 2 of .* is not JSON"),
        (b'{"n": ' + b"9" * 5000 + b"}", "line 2 of .* is not JSON"),
        (b"x" * (1 << 20), "line 2 of .* is longer than any line may be"),
    ],
)
def test_a_malformed_line_is_named_and_nothing_is_changed(
    tmp_path: Path, line: bytes, said: str
) -> None:
    path = written(tmp_path / "x.jsonl", 1, header=None)
    content = path.read_bytes() + line + b'\n{"n": 2}\n{"n": 3'
    path.write_bytes(content)
    for read in (lambda: read_lines(path, PLAIN), lambda: held(path, None)):
        with pytest.raises(InvalidRequest, match=said) as found:
            read()
        assert found.value.hint == "remove it"
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"kind": "header", "schema": 9}\n', "'header', schema 9; expected .* a list, schema 3"),
        (b'{"n": 1}\n', "begins with None, schema None"),
        (b"my thesis\n", "line 1 of .* is not JSON"),
        (b"my thesis", "is not an entry|is not a list"),
        (b'{"my": "configuration"}', "is not an entry|is not a list"),
    ],
)
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    for read in (lambda: read_lines(path, HEADED), lambda: held(path)):
        with pytest.raises(BrokenTrace, match=said):
            read()
    assert path.read_bytes() == content


def test_the_error_of_a_reader_of_one_line_names_the_place() -> None:
    assert PLAIN.checked("x", 3, lambda: 4) == 4
    for read, said in (
        (lambda: dict[str, int]()["n"], "line 3 of 'x' is not an entry: the field 'n' is missing"),
        (lambda: int("a"), "line 3 of 'x' is not an entry: invalid literal"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            PLAIN.checked("x", 3, read)


# -- what is no file of lines at all ---------------------------------------------------------------


@pytest.mark.parametrize("beginning", [b"", b'{"a": 1}\n', b'{"kind": "header", "schema": 1}\n'])
def test_a_file_of_gigabytes_is_refused_by_its_beginning(tmp_path: Path, beginning: bytes) -> None:
    path = tmp_path / "large"
    path.write_bytes(beginning)
    os.truncate(path, 1 << 42)  # 4 TiB, of which the disk keeps nothing
    for read in (
        lambda: read_lines(path, HEADED),
        lambda: held(path),
        lambda: list(raw_lines(path, "requests")),
    ):
        with pytest.raises((BrokenTrace, InvalidRequest)):
            read()
    assert path.stat().st_size == 1 << 42


def test_a_line_of_gigabytes_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_module, "_LONGEST", 1 << 21)
    path = tmp_path / "large"
    path.write_bytes(b'{"n": ' + b" " * (1 << 22))
    with pytest.raises(InvalidRequest, match=r"line 1 of .* is longer than any line may be"):
        read_lines(path, PLAIN)
    path.write_bytes(b'{"n": ' + b" " * (1 << 20) + b"1}\n")
    assert read_lines(path, PLAIN) == [{"n": 1}]


@pytest.mark.parametrize("given", [0, True, None, b"list.jsonl", 1.5])
def test_what_is_no_path_opens_nothing(given: Any) -> None:
    """A number would be an open file of somebody else's."""
    with pytest.raises(InvalidRequest, match=f"a {type(given).__name__} was given as a file"):
        read_lines(given, HEADED)


def test_devices_folders_and_places_that_are_none(tmp_path: Path) -> None:
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    file.touch()
    for path, said in (
        ("/dev/zero", "it is not a regular file"),
        ("/dev/full", "it is not a regular file"),
        (pipe, "it is not a regular file"),
        (tmp_path, "Is a directory"),
        (file / "x.jsonl", "Not a directory"),
        (tmp_path / "none" / "x.jsonl", "No such file"),
        (tmp_path / ("x" * 300), "File name too long"),
        ("/proc/x.jsonl", "No such file|Permission denied"),
    ):
        with pytest.raises(OutputFailed, match=f"cannot be written: ({said})") as found:
            LineFile(Path(path), PLAIN)
        assert found.value.hint == lines_module.NOT_OPENED
    with pytest.raises(OutputFailed, match=r"Not a directory|File exists"):
        LineFile(file / "x.jsonl", PLAIN, make_folder=True)
    for path, said in (
        (tmp_path, "Is a directory"),
        (tmp_path / "none", "No such file"),
        ("/dev/zero", "line 1 of '/dev/zero' is longer than any line may be"),
        ("/dev/null", "holds no whole line"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            read_lines(path, PLAIN)
    for path, said in ((tmp_path, "Is a directory"), (tmp_path / "none", "No such file")):
        with pytest.raises(InvalidRequest, match=f"cannot be read: {said}"):
            list(raw_lines(path, "a list"))


def test_a_device_can_be_written_where_that_is_wanted(tmp_path: Path) -> None:
    for _ in range(2):  # at the same time, too: nobody has a device for himself
        with LineFile(Path("/dev/null"), PLAIN, sync=False, devices=True) as one:
            LineFile(Path("/dev/null"), PLAIN, sync=False, devices=True).close()
            one.clear()
            one.append({"n": 1})
    full = LineFile(Path("/dev/full"), PLAIN, sync=False, devices=True)
    with full, pytest.raises(OutputFailed, match="No space left on device"):
        full.append({"n": 1})


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("devices", [True, False])
def test_a_file_that_takes_what_the_command_prints_is_refused(
    tmp_path: Path, number: int, devices: bool
) -> None:
    path, usual = tmp_path / "out", os.dup(number)
    with path.open("wb") as file:
        os.dup2(file.fileno(), number)
        try:
            with pytest.raises(OutputFailed, match="what the command prints goes there, too"):
                LineFile(path, PLAIN, devices=devices)
        finally:
            os.dup2(usual, number)
            os.close(usual)
    assert not path.read_bytes()
    LineFile(path, PLAIN, devices=devices).close()


def test_a_file_that_may_only_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "x.jsonl", 1)
    usual = os.open

    def refused(place: Any, flags: int, *more: Any) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return usual(place, flags, *more)

    monkeypatch.setattr(os, "open", refused)  # a superuser is refused nothing
    with pytest.raises(OutputFailed, match="cannot be written: Permission denied"):
        LineFile(path, HEADED)
    assert len(read_lines(path, HEADED)) == 2


# -- one at a time ---------------------------------------------------------------------------------


def test_two_runs_do_not_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    file, _ = opened(path)
    with file:
        with pytest.raises(InvalidRequest, match="another run is writing to") as found:
            LineFile(path, HEADED, elsewhere="choose another --label")
        assert found.value.hint == "wait for it, choose another --label"
        code = "import sys; from tests.schema.test_lines import held, Path; held(Path(sys.argv[1]))"
        other = subprocess.run(
            [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60
        )
        assert "another run is writing to" in other.stderr
    assert held(path) == []


def test_one_that_takes_lines_out_keeps_the_file(tmp_path: Path) -> None:
    path, link = written(tmp_path / "x.jsonl", 1, 2, 3, 4, header=None), tmp_path / "link"
    path.chmod(0o640)
    link.symlink_to(path)
    late = os.open(path, os.O_RDWR)  # of one that opened it just before
    file, _ = opened(link, None)
    with file:
        file.keep(lambda line: line["n"] % 2 == 0)
        assert not os.path.samestat(os.fstat(late), path.stat())
        with pytest.raises(InvalidRequest, match="another run is writing to"):
            LineFile(path, PLAIN)
        file.append({"n": 6})
        inode = path.stat().st_ino
        file.keep(lambda line: True)
        assert path.stat().st_ino == inode, "nothing to take out, nothing to do"
    os.close(late)
    assert [line["n"] for line in read_lines(path, PLAIN)] == [2, 4, 6]
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert set(tmp_path.iterdir()) == {path, link}, "nothing is left beside it"


def test_a_file_that_was_replaced_while_it_was_opened_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, usual = written(tmp_path / "x.jsonl", 1), lock_descriptor

    def late(file: int, *, blocking: bool) -> bool:
        path.rename(tmp_path / "old")
        path.touch()
        return usual(file, blocking=blocking)

    monkeypatch.setattr(lines_module, "lock_descriptor", late)
    with pytest.raises(InvalidRequest, match="another run is writing to"):
        LineFile(path, HEADED)


def test_a_file_system_without_locks_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(file: int, *, blocking: bool) -> bool:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(lines_module, "lock_descriptor", without)
    assert held(written(tmp_path / "x.jsonl", 1)) == [{"n": 1}]


# -- full disks ------------------------------------------------------------------------------------


def test_a_full_disk_keeps_what_was_there(tmp_path: Path) -> None:
    """A real limit of the operating system: part of the line fits, the rest does not."""
    path = tmp_path / "x.jsonl"
    usual = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    file, _ = opened(path, elsewhere="or choose another --out")
    file.append({"n": 1})
    before = path.read_bytes()
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, hard))
        with pytest.raises(OutputFailed, match="cannot be written: File too large") as found:
            file.append({"n": 2}, {"n": "x" * 500})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, usual)
    assert found.value.hint == (
        "make room, or choose another --out; what was written so far is kept, "
        "and the same command goes on"
    )
    assert path.read_bytes() == before
    file.append({"n": 2})  # there is room again
    file.close()
    assert [line["n"] for line in held(path)] == [1, 2]


@pytest.mark.parametrize(("sync", "expected"), [(True, 3), (False, 0)])
def test_how_durable_a_line_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: bool, expected: int
) -> None:
    """The folder's name for it, the header, and one line."""
    calls: list[int] = []
    usual = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (calls.append(file), usual(file)))
    file, _ = opened(tmp_path / "x.jsonl", sync=sync)
    with file:
        file.append({"n": 1})
        assert json.loads((tmp_path / "x.jsonl").read_bytes().splitlines()[1]) == {"n": 1}
    assert len(calls) == expected


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.ENOSPC, "make room"),
        (errno.EFBIG, "make room"),
        (errno.ENOTDIR, "choose another place"),
        (errno.EEXIST, "choose another place"),
        (errno.ENOENT, "choose another place"),
        (errno.EROFS, "choose a place that you may write to"),
        (errno.EACCES, "choose a place that you may write to"),
    ],
)
def test_a_hint_fits_what_kept_a_file_from_being_written(number: int, hint: str) -> None:
    assert place_or_room(OSError(number, "no")) == hint


def test_a_new_file_that_got_no_line_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full from its beginning on. One that was there before stays, and so does one with a line."""

    def full(*given: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    new, old, kept = (tmp_path / f"{name}.jsonl" for name in ("new", "old", "kept"))
    old.touch()
    files = [LineFile(path, PLAIN) for path in (new, old, kept)]
    files[-1].append({"n": 1})
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        for file in files:
            with pytest.raises(OutputFailed, match="No space left on device"):
                file.append({"n": 2})
    for file in files:
        file.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.jsonl", "old.jsonl"]
    assert kept.read_text() == '{"n": 1}\n'


def test_lines_of_a_file_that_was_removed_are_not_lost_in_silence(tmp_path: Path) -> None:
    """By its name, or with its folder. A file that was moved is written to where it is."""
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "x.jsonl", tmp_path / "folder" / "x.jsonl"):
        with LineFile(path, PLAIN, elsewhere="give another place") as file:
            file.append({"n": 1})
            path.rename(moved := path.with_name("moved.jsonl"))
            file.append({"n": 2})
            assert len(read_lines(moved, PLAIN)) == 2
            moved.unlink()
            with pytest.raises(OutputFailed, match="was removed while it was written to") as found:
                file.append({"n": 3})
            assert "give another place; what it held is gone" in str(found.value.hint)
            path.write_text("somebody else's")
        assert path.read_text() == "somebody else's"


@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.ENOSPC, "make room; nothing was written"), (errno.EACCES, lines_module.NOT_OPENED)],
)
def test_a_disk_without_room_for_another_name_is_to_get_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    def full(*given: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(OutputFailed) as found:
        LineFile(tmp_path / "x.jsonl", PLAIN)
    assert found.value.hint == said
