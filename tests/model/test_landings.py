"""Landings: sums made there are the host's, a damaged sheet is refused, and a reader that finds none goes on without."""

from __future__ import annotations

import dataclasses
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from manyhands.model import sheet_files
from manyhands.model.landings import RUN, Landing, Landings, SheetPart, checksum
from manyhands.model.sheet_files import VERSION, Form, SheetFiles, Taken

CPU = torch.device("cpu")
FORMS = {
    "offsets": Form(torch.int64, (16,)),  # no whole run
    "keys": Form(torch.bfloat16, (3, 16, 2048)),  # six whole runs
    "values": Form(torch.float32, (2, 16, 513)),  # two, and bytes left over
}
ROOM = 1 << 20  # bytes; three sheets


def tensors_of(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        key: torch.randn(form.shape, generator=generator).mul(99).to(form.dtype)
        for key, form in FORMS.items()
    }


def files_in(folder: Path, most_landed: int = ROOM, most_waiting: int = 1 << 30) -> SheetFiles:
    return SheetFiles(
        folder,
        "model",
        FORMS,
        limit=1 << 30,
        most_waiting=most_waiting,
        device=CPU,
        most_landed=most_landed,
        on_host=["offsets"],
    )


def write(files: SheetFiles, *names: str) -> None:
    for number, name in enumerate(names):
        files.write(name, Taken(tensors_of(number), lambda: None), number, 0)
    files.flush()


def read(files: SheetFiles, *names: str) -> None:
    files.read_ahead(names)
    assert all(files.is_read(name, 10.0) for name in names)


def same(found: dict[str, Tensor], seed: int) -> bool:
    wanted = tensors_of(seed)
    return all(torch.equal(found[key], wanted[key]) for key in FORMS)


@pytest.mark.parametrize("size", [8, RUN - 8, RUN, RUN + 8, 5 * RUN, 5 * RUN + 3 * 8])
def test_sums_made_there_are_those_of_the_host(size: int) -> None:
    """Words of all kinds: their sums go beyond 64 bits, and signs are no matter."""
    content = torch.randint(0, 256, (16 + 2 * size,), dtype=torch.uint8)
    content[16 : 16 + size] = 255
    parts = {
        "first": SheetPart(16, 16 + size, torch.int8, (size,)),
        "second": SheetPart(16 + size, 16 + 2 * size, torch.int64, (size // 8,)),
    }
    landing = Landing(len(content), CPU)
    assert landing.fits(content, parts)
    tensors, sums = landing.bring(content, parts)
    for key, part in parts.items():
        own = content[part.begin : part.end].numpy()
        assert len(sums[key]) == size // RUN
        assert checksum(own, sums[key]) == checksum(own)
        assert torch.equal(tensors[key], part.of(content))


def test_a_landing_refuses_what_it_cannot_add_up() -> None:
    landing = Landing(1000, CPU)
    assert not landing.fits(torch.zeros(1001, dtype=torch.uint8), {})
    odd = {"odd": SheetPart(4, 12, torch.float32, (2,))}
    assert not landing.fits(torch.zeros(12, dtype=torch.uint8), odd)


def test_sheets_of_another_layout_land_too() -> None:
    landing = Landing(4 * RUN, CPU)
    for begin in (0, 64, 8):
        content = torch.randint(0, 256, (begin + 2 * RUN,), dtype=torch.uint8)
        parts = {"own": SheetPart(begin, begin + 2 * RUN, torch.uint8, (2 * RUN,))}
        _, sums = landing.bring(content, parts)
        own = content[begin:].numpy()
        assert checksum(own, sums["own"]) == checksum(own)


def test_a_sheet_that_landed_is_the_one_that_was_written(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    write(files, "one", "two")
    num_free = files.landings.num_free
    assert num_free >= 2
    read(files, "one", "two")
    assert files.landings.num_free == num_free - 2
    assert same(files.read("one"), 0)
    assert same(files.read("two"), 1)
    own = files._reading["one"].result()
    assert own is not None
    assert own.content is None, "what it was read to serves others"
    assert own.landing is not None
    own.landing._place.zero_()
    assert torch.equal(own.tensors["offsets"], tensors_of(0)["offsets"]), "the host has them"
    assert not own.tensors["keys"].any(), "a control: these lie there"
    files.forget(["one", "two"])
    assert files.landings.num_free == num_free


def test_who_finds_no_landing_has_the_host_check(tmp_path: Path) -> None:
    """A reader waits for no landing, or two of them could wait for each other."""
    names = [f"sheet {number}" for number in range(9)]
    files = files_in(tmp_path)
    write(files, *names)
    read(files, *names)
    assert files.landings.num_free == 0
    assert all(same(files.read(name), number) for number, name in enumerate(names))
    landed = [files._reading[name].result() for name in names]
    assert 0 < sum(each is not None and each.landing is not None for each in landed) < len(names)


def test_a_landing_is_used_again_when_its_device_is_done(tmp_path: Path) -> None:
    files = files_in(tmp_path, most_landed=400_000)
    assert files.landings.num_free == 1
    write(files, "one", "two")
    read(files, "one")
    waited: list[str] = []
    files.is_fetched("one", lambda: waited.append("one"))
    files.forget(["one"])
    assert waited == []
    read(files, "two")
    assert waited == ["one"]
    assert same(files.read("two"), 1)


def test_a_sheet_whose_words_do_not_begin_as_those_of_a_device_keeps_no_landing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its header was written by another library, say: the host checks it."""
    monkeypatch.delitem(FORMS, "offsets")
    files = SheetFiles(
        tmp_path,
        "model",
        FORMS,
        limit=1 << 30,
        most_waiting=1 << 30,
        device=CPU,
        most_landed=ROOM,
    )
    write(files, "one")
    path = tmp_path / f"model-v{VERSION}" / "one.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little") + 4
    path.write_bytes(
        size.to_bytes(8, "little") + content[8 : size + 4] + b"    " + content[size + 4 :]
    )
    num_free = files.landings.num_free
    read(files, "one")
    assert same(files.read("one"), 0)
    assert files.landings.num_free == num_free > 0


def test_what_several_threads_count_is_all_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, usual = files_in(tmp_path), dataclasses.replace

    def slowly(*known: Any, **more: Any) -> Any:
        time.sleep(0.005)
        return usual(*known, **more)

    monkeypatch.setattr(sheet_files, "replace", slowly)
    with ThreadPoolExecutor(8) as threads:
        for _ in range(16):
            threads.submit(files.count, sheets_refused=1)
    assert files.counts.sheets_refused == 16


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("at", [40, -1, -5000, -200_000, -262_350])
def test_a_damaged_sheet_is_refused_and_keeps_no_landing(
    at: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the header, behind the last run, within runs, and where there is none."""
    files = files_in(tmp_path)
    write(files, "one")
    num_free = files.landings.num_free
    flip(tmp_path / f"model-v{VERSION}" / "one.safetensors", at)
    files.read_ahead(["one"])
    assert files.is_read("one", 10.0) is False
    assert "one.safetensors is not used, and its tokens are fed" in caplog.text
    assert files.counts.sheets_refused == 1
    assert files.landings.num_free == num_free


def test_what_is_checked_is_what_arrived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that goes wrong on its way is refused, though the file is right."""
    files = files_in(tmp_path)
    write(files, "one")
    usual = Landing.bring

    def wrong(self: Landing, content: Tensor, parts: dict[str, SheetPart]) -> object:
        sent = content.clone()
        sent[parts["keys"].begin + RUN] ^= 1
        return usual(self, sent, parts)

    monkeypatch.setattr(Landing, "bring", wrong)
    files.read_ahead(["one"])
    assert files.is_read("one", 10.0) is False


def out_of_memory(*_: object) -> None:
    raise torch.OutOfMemoryError("no memory")


@pytest.mark.parametrize("name", ["bring", "__init__"])
def test_a_device_without_memory_leaves_it_to_the_host(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Landing, name, out_of_memory)
    files = files_in(tmp_path)
    assert (files.landings.num_free == 0) == (name == "__init__")
    write(files, "one")
    read(files, "one")
    assert same(files.read("one"), 0)
    files.forget(["one"])


def test_nothing_is_made_where_nothing_may_land() -> None:
    assert Landings(100, 0, CPU).take() is None


def test_so_many_sheets_are_read_ahead_and_the_first_in_any_case(tmp_path: Path) -> None:
    """As many as there is memory for. A fetch gets the sheet it waits for, or two fetches could wait for each other's room."""
    names = [f"sheet {number}" for number in range(6)]
    files = files_in(tmp_path, most_waiting=4 * 330_000)
    write(files, *names)
    files.read_ahead(names[:5])
    assert list(files._reading) == names[:3]
    files.read_ahead(names[4:])
    assert list(files._reading) == [*names[:3], names[4]]
    files.forget(names[:3])
    files.read_ahead(names[4:])
    assert list(files._reading) == names[4:]
    assert files.is_read(names[5], 10.0)


def test_a_file_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, whatever the size of the pieces; and one that ends early is refused."""
    monkeypatch.setattr(sheet_files, "_AT_ONCE", 1000)
    files = files_in(tmp_path)
    write(files, "one", "two")
    read(files, "one")
    assert same(files.read("one"), 0)
    path = tmp_path / f"model-v{VERSION}" / "two.safetensors"
    path.write_bytes(path.read_bytes()[:-1500])
    files.read_ahead(["two"])
    assert files.is_read("two", 10.0) is False


def test_control_readers_that_begin_early_are_there(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    deadline = time.monotonic() + 10
    while files._readers._work_queue.qsize() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert len(files._readers._threads) == files._readers._max_workers


def test_the_checksum_of_a_file_is_what_it_was() -> None:
    """Files of before are still found: the number was made by the code that wrote them."""
    content = (np.arange(3 * RUN + 17, dtype=np.uint64) % 251).astype(np.uint8)
    assert checksum(content) == "e523b4c5"


def test_what_dead_writers_have_left_goes_with_the_next_sheet(tmp_path: Path) -> None:
    """Of any model, and not only at a start: a server that is killed again and again would fill the disk."""
    files = files_in(tmp_path)
    other = tmp_path / (32 * "b")  # another model's
    other.mkdir()
    old, new = other / ".old.part", other / ".new.part"
    for path in (old, new):
        path.touch()
    os.utime(old, (time.time() - 3000,) * 2)
    write(files, "0")
    assert not old.exists()
    assert new.exists(), "its writer may be alive"
    os.utime(new, (time.time() - 3000,) * 2)
    files_in(tmp_path)
    assert not new.exists()
