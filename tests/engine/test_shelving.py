"""Prompts on disk: what one engine has read another loads, to the bit, and faults cost time and never truth.

The network is tiny and random, sheets are short. Loaded keys are compared slot by slot with those that were
saved; answers with those of an engine without a cache.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor

from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.prefixes import PrefixTree
from manyhands.cache.sheets import Fetch, Wanted, sheet_names
from manyhands.cache.step import Choice
from manyhands.engine import shelving
from manyhands.engine.engine import Engine
from manyhands.engine.local_executor import LocalExecutor
from manyhands.engine.rebuild import places_of
from manyhands.engine.run import RunState
from manyhands.errors import OutputFailed
from manyhands.model import sheet_files
from manyhands.model import shelf as shelf_module
from manyhands.model.host_buffers import HostBuffers
from manyhands.model.sheet_files import SheetFiles
from manyhands.model.shelf import MemoryShelf
from manyhands.strategies.settings import SharedSettings
from manyhands.strategies.shared_prefix import Completions, shared_prefix
from tests.engine.small import NUM_IDS, TEXT, counting, finish, small_engine

SIZE = 16  # tokens of a sheet
PROMPT = tuple(7 * i % (NUM_IDS - 10) + 5 for i in range(5 * SIZE + 6))
SAMPLED = Choice(temperature=1.0)


def engine_on(folder: Path, **choices: Any) -> Engine:
    """A fresh engine with the same weights as all others."""
    return small_engine(4096, cache=str(folder), sheet_tokens=SIZE, **choices)


def write(engine: Engine, prompt: tuple[int, ...] = PROMPT, **more: Any) -> Completions:
    """Complete a prompt, and wait until what was saved of it is written."""
    settings = SharedSettings(**{"samples": 2, "max_tokens": 8, "choice": SAMPLED, **more})
    answer = engine.run(shared_prefix([prompt], TEXT, settings, tree=engine.prefixes))
    assert isinstance(answer, Completions)
    if (shelf := shelf_of(engine)) is not None:
        shelf.files.flush()
    return answer


def shelf_of(engine: Engine) -> MemoryShelf | None:
    assert isinstance(engine.executor, LocalExecutor)
    return engine.executor._shelf


def tokens_of(answer: Completions) -> list[tuple[int, ...]]:
    return [each.tokens for each in answer.completions]


def sheets(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.safetensors"))


def sheet_of(folder: Path, number: int, prompt: tuple[int, ...] = PROMPT) -> Path:
    name = sheet_names(prompt, SIZE, None)[number]
    (found,) = folder.glob(f"*/{name}.safetensors")
    return found


def memory_of(engine: Engine, prompt: tuple[int, ...] = PROMPT, tenant: str | None = None) -> Any:
    """Keys and values of a prompt's tokens as they lie in memory, all layers: two [L, N, ...]."""
    nodes, depth, _, _ = engine.prefixes._match(prompt, tenant)
    assert depth >= len(prompt) - 1
    blocks: list[Block] = [node.block for node in nodes if node.block is not None]
    slots = torch.cat(
        [
            torch.as_tensor(places_of(block, 0, block.num_tokens, engine.pool).slots)
            for block in blocks
        ]
    )
    assert isinstance(engine.executor, LocalExecutor)
    (stack,) = engine.executor.memory.stacks
    return stack.keys[:, slots], stack.values[:, slots]


def same(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> bool:
    size = 5 * SIZE  # the tokens in sheets; logits behind them may differ in their last bits
    return all(torch.equal(a[:, :size], b[:, :size]) for a, b in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def expected() -> Completions:
    return write(small_engine(4096))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder with one prompt, and the keys of the engine that wrote it. Tests copy it."""
    folder = tmp_path_factory.mktemp("saved")
    engine = engine_on(folder)
    write(engine)
    return folder, memory_of(engine)


@pytest.fixture
def folder(saved: tuple[Path, Any], tmp_path: Path) -> Path:
    place = tmp_path / "cache"
    (model,) = saved[0].iterdir()
    (place / model.name).mkdir(parents=True)
    for path in model.iterdir():
        (place / model.name / path.name).write_bytes(path.read_bytes())
    return place


@pytest.fixture(params=[0, 1 << 20], ids=["on the host", "where they land"])
def _checked_there(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sheets are checked by the host; or as on a GPU, in some memory of the device."""
    monkeypatch.setattr(shelf_module, "_most_landed", lambda device: request.param)


@pytest.mark.usefixtures("_checked_there")
def test_what_was_read_once_is_loaded_to_the_bit(
    saved: tuple[Path, Any], folder: Path, expected: Completions
) -> None:
    engine = engine_on(folder)
    answer = write(engine)
    assert tokens_of(answer) == tokens_of(expected)
    assert answer.found == (5 * SIZE,)
    assert engine.usage.tokens_fed < len(PROMPT)
    assert same(memory_of(engine), saved[1])
    counts = engine.shelf_counts
    assert counts.tokens_found == 5 * SIZE
    assert counts.bytes_read == sum(path.stat().st_size for path in sheets(folder)[:5])
    assert (counts.bytes_written, counts.sheets_refused) == (0, 0)


def test_all_landings_are_free_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a run that ended, one that was cancelled, and a sheet that was refused."""
    monkeypatch.setattr(shelf_module, "_most_landed", lambda device: 1 << 20)
    flip_data(sheet_of(folder, 3))
    engine = engine_on(folder)
    shelf = shelf_of(engine)
    assert shelf is not None
    landings = shelf.files.landings
    num_free, taken, take = landings.num_free, [], landings.take
    assert num_free >= 3
    monkeypatch.setattr(landings, "take", lambda: taken.append(take()) or taken[-1])
    settings = SharedSettings(max_tokens=5)
    run = engine.submit(shared_prefix([PROMPT], TEXT, settings, tree=engine.prefixes))
    while not engine.shelf_counts.tokens_found:
        engine.step()
    engine.cancel(run)
    engine.step()
    engine.prefixes.clear()
    write(engine)
    assert len(taken) > 3
    deadline = time.monotonic() + 10
    while landings.num_free < num_free and time.monotonic() < deadline:
        time.sleep(0.01)  # a reader may be at work for nothing still
    assert landings.num_free == num_free


def test_sheets_are_read_into_pieces_that_are_used_again(
    folder: Path, expected: Completions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: there are fewer pieces than sheets, and all of them are free again, also that of a torn file."""
    monkeypatch.setattr(
        sheet_files, "HostBuffers", lambda size, count, pin: HostBuffers(size, 3, pin=False)
    )
    torn = sheet_of(folder, 4)
    torn.write_bytes(torn.read_bytes()[:-7])
    for _ in range(2):
        engine = engine_on(folder)
        shelf = shelf_of(engine)
        assert shelf is not None
        taken: list[Any] = []
        take = shelf.files.buffers.take
        monkeypatch.setattr(
            shelf.files.buffers,
            "take",
            lambda size, take=take, taken=taken: taken.append(take(size)) or taken[-1],
        )
        assert tokens_of(write(engine)) == tokens_of(expected)
        kept = shelf.files.buffers._kept
        assert sum(content.data_ptr() in kept for content in taken) >= 3, "pieces were out"
        deadline = time.monotonic() + 10
        while shelf.files.buffers.num_free < 3 and time.monotonic() < deadline:
            time.sleep(0.01)  # a reader may be at work for nothing still
        assert shelf.files.buffers.num_free == 3
        assert engine.shelf_counts.tokens_found >= 4 * SIZE


def test_control_a_sheet_of_other_keys_shows(folder: Path, expected: Completions) -> None:
    """With a right checksum nothing protects from wrong numbers: the comparison itself can fail."""
    engine = engine_on(folder)
    shelf = shelf_of(engine)
    assert shelf is not None
    read = shelf.files._checked

    def turned(name: str, content: Tensor) -> Any:
        found = read(name, content)
        found.tensors["keys.0"] = -found.tensors["keys.0"]
        return found

    shelf.files._checked = turned  # type: ignore[method-assign]
    assert tokens_of(write(engine)) != tokens_of(expected)


def test_the_name_of_a_sheet_is_that_of_everything_before_it() -> None:
    names = sheet_names(PROMPT, SIZE, None)
    assert len(names) == 5 == len(set(names))
    assert sheet_names(PROMPT[: 2 * SIZE + 3], SIZE, None) == names[:2]
    changed = (PROMPT[0] + 1, *PROMPT[1:])
    for other in (sheet_names(changed, SIZE, None), sheet_names(PROMPT, SIZE, "somebody")):
        assert not set(other) & set(names), "the first token, or the owner, is in all of them"
    behind = (*PROMPT[: 4 * SIZE], 3, *PROMPT[4 * SIZE + 1 :])
    assert sheet_names(behind, SIZE, None)[:4] == names[:4]
    assert sheet_names(PROMPT, 2 * SIZE, None)[0] not in names


def test_only_what_was_seen_before_it_is_found(folder: Path) -> None:
    """A prompt that begins like another finds its sheets up to where they part."""
    engine = engine_on(folder)
    parted = (*PROMPT[: 2 * SIZE + 5], 3, 3, 3, *PROMPT[2 * SIZE + 8 :])
    answer = write(engine, parted)
    assert answer.found == (2 * SIZE,)
    assert tokens_of(answer) == tokens_of(write(small_engine(4096), parted))


def test_names_are_made_once_for_a_prompt_and_never_for_another_owner(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tree asks what is there and has it fetched; the same prompt of somebody else has other names."""
    made: list[str | None] = []

    def named(tokens: Any, size: int, owner: str | None) -> list[str]:
        made.append(owner)
        return sheet_names(tokens, size, owner)

    monkeypatch.setattr(shelving, "sheet_names", named)
    own = engine_on(folder).shelving
    assert own is not None
    for tenant in (None, None, "one", "one", None):
        found = own.num_saved(PROMPT, tenant)
        assert found == (0 if tenant else 5 * SIZE)
    assert made == [None, "one", None]
    assert own.num_saved(PROMPT[: 3 * SIZE], None) == 3 * SIZE


@pytest.mark.parametrize(("held", "length"), [(0, 40 * SIZE), (SIZE + 5, 9 * SIZE + 3), (3, 5)])
def test_what_is_wanted_is_cut_where_sheets_end(held: int, length: int) -> None:
    """One node for each sheet, in order; what memory holds and what no sheet has are nodes of their own."""
    asked: list[list[Wanted]] = []

    class Shelf:
        sheet_tokens = SIZE

        def num_saved(self, tokens: Any, tenant: str | None) -> int:
            return len(tokens) // SIZE * SIZE

        def fetch(self, wanted: Any, tokens: Any, tenant: str | None) -> Fetch:
            asked.append(list(wanted))
            return Fetch(wanted, [])

        def keep(self, path: Any, tenant: str | None) -> None:
            """Nothing is saved."""

    tree, prompt = PrefixTree(PagePool(1000, 4)), tuple(range(length))
    tree._insert(prompt[:held], None)
    for node in tree._roots[None].children.values():
        assert node.block is not None
        node.block.tokens.extend(node.tokens)
        node.block.freeze()
    tree.shelf = Shelf()
    lease = tree.lease([prompt])
    assert lease is not None
    nodes = lease._leaves[0].chain()
    assert tuple(token for node in nodes for token in node.tokens) == prompt
    stop = length // SIZE * SIZE
    ends = [end for end in range(SIZE, stop + 1, SIZE) if end > held]
    wanted = asked[0] if asked else []
    for each, begin, end in zip(wanted, [held, *ends], ends, strict=False):
        assert each.start == begin
        assert each.node.tokens == prompt[each.start : end]
        assert each.node in nodes
    assert len(wanted) == len(ends)


def test_of_another_owner_nothing_is_found(tmp_path: Path) -> None:
    first = engine_on(tmp_path)
    write(first, tenant="one")
    second = engine_on(tmp_path)
    assert write(second, tenant="another").found == (0,)
    assert second.shelf_counts.tokens_found == 0
    assert write(second, tenant="one").found == (5 * SIZE,)


def test_files_are_for_one_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    write(engine_on(folder))
    found = [folder, *folder.iterdir(), *sheets(folder)]
    assert len(found) == 7
    assert all(path.stat().st_mode & 0o077 == 0 for path in found)


def test_memory_goes_before_the_disk_and_both_together(folder: Path, saved: Any) -> None:
    """The beginning is in memory, the rest on disk: it is laid behind it, and nothing is rotated."""
    engine = engine_on(folder)
    write(engine, PROMPT[: 2 * SIZE + 5])
    assert engine.shelf_counts.tokens_found == 2 * SIZE
    answer = write(engine)
    assert answer.found == (5 * SIZE,)
    # The four tokens behind the second sheet were fed, and their keys are a little other ones.
    fed = slice(2 * SIZE + 4)
    for ours, theirs in zip(memory_of(engine), saved[1], strict=True):
        assert torch.equal(ours[:, : 2 * SIZE], theirs[:, : 2 * SIZE])
        assert torch.equal(ours[:, fed.stop : 5 * SIZE], theirs[:, fed.stop : 5 * SIZE])
    assert engine.shelf_counts.tokens_found == 5 * SIZE - 4


@pytest.mark.usefixtures("_checked_there")
def test_keys_that_stood_elsewhere_are_rotated(folder: Path, expected: Completions) -> None:
    """Where the strip goes on with something else, a sheet begins a strip of its own."""
    engine = engine_on(folder)
    engine.pool.follow = lambda block, before: None  # type: ignore[method-assign]
    assert tokens_of(write(engine)) == tokens_of(expected)
    assert engine.shelf_counts.tokens_found == 5 * SIZE


def test_readers_go_on_while_the_engine_is_elsewhere(tmp_path: Path) -> None:
    """Before a sheet is written to memory, more of them are asked for than readers read at once."""
    prompt = tuple(7 * i % (NUM_IDS - 10) + 5 for i in range(40 * SIZE + 1))
    write(engine_on(tmp_path), prompt, max_tokens=1)
    engine = engine_on(tmp_path)
    shelf = shelf_of(engine)
    assert shelf is not None
    settings = SharedSettings(max_tokens=1)
    run = engine.submit(shared_prefix([prompt], TEXT, settings, tree=engine.prefixes))
    engine.step()
    assert engine.shelf_counts.tokens_found == 0
    assert len(shelf.files._reading) == 40 > 2 * shelf.files._readers._max_workers
    while not run.done:
        engine.step()
    assert engine.shelf_counts.tokens_found == 40 * SIZE


def test_many_runs_wait_for_one_fetch_beside_others(folder: Path, expected: Completions) -> None:
    engine = engine_on(folder)
    settings = SharedSettings(samples=2, max_tokens=8, choice=SAMPLED)
    prompts = [PROMPT, PROMPT, (*PROMPT[: SIZE + 3], 9, 9), (4, 5, 6)]
    asked = [shared_prefix([each], TEXT, settings, tree=engine.prefixes) for each in prompts]
    answers = engine.run_all(asked)
    alone = [write(small_engine(4096), prompt) for prompt in prompts]
    for answer, right in zip(answers, alone, strict=True):
        assert isinstance(answer, Completions)
        assert tokens_of(answer) == tokens_of(right)
    assert tokens_of(alone[0]) == tokens_of(expected)
    assert engine.shelf_counts.bytes_read == sum(p.stat().st_size for p in sheets(folder)[:5])
    engine.prefixes.clear()
    assert engine.pool.num_free_pages == engine.pool.num_pages


def test_prompts_of_one_run_that_part_within_a_sheet(folder: Path) -> None:
    prompts = [PROMPT, (*PROMPT[: SIZE + 3], 9, 9, 9)]
    settings = SharedSettings(max_tokens=5, choice=SAMPLED)
    found = []
    for engine in (engine_on(folder), small_engine(4096)):
        answer = engine.run(shared_prefix(prompts, TEXT, settings, tree=engine.prefixes))
        assert isinstance(answer, Completions)
        found.append(tokens_of(answer))
    assert found[0] == found[1]


def test_a_run_that_is_cancelled_leaves_nothing_behind(folder: Path) -> None:
    engine = engine_on(folder)
    settings = SharedSettings(max_tokens=5)
    run = engine.submit(shared_prefix([PROMPT], TEXT, settings, tree=engine.prefixes))
    while not engine.shelf_counts.tokens_found:
        engine.step()
    engine.cancel(run)
    engine.step()
    assert engine.shelving is not None
    assert not engine.shelving._fetches
    shelf = shelf_of(engine)
    assert shelf is not None
    assert not shelf.files._reading
    engine.prefixes.clear()
    assert engine.pool.num_free_pages == engine.pool.num_pages


# -- faults ----------------------------------------------------------------------------------------


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def flip_data(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-9] ^= 4
    path.write_bytes(content)


def flip_header(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(b"checksum" if b"checksum" in content else b"shape") + 8] ^= 1
    path.write_bytes(content)


def rename(path: Path) -> None:
    other = sheet_of(path.parents[1], 2)
    path.write_bytes(other.read_bytes())


def empty(path: Path) -> None:
    path.write_bytes(b"")


def other_tensors(path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"keys": torch.zeros(3)}, path)


def endless(path: Path) -> None:
    """A header that tells of a place without end, which JSON can say."""
    content = path.read_bytes()
    first = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:first])
    header["offsets"]["data_offsets"][0] = float("inf")
    words = json.dumps(header).encode()
    path.write_bytes(len(words).to_bytes(8, "little") + words + content[first:])


FAULTS: list[Callable[[Path], None]] = [
    *(cut, flip_data, flip_header, rename, empty, other_tensors, endless),
]


@pytest.mark.usefixtures("_checked_there")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_damaged_sheet_is_named_and_fed_again(
    fault: Callable[[Path], None],
    folder: Path,
    expected: Completions,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = sheet_of(folder, 1)
    whole = path.read_bytes()
    fault(path)
    engine = engine_on(folder)
    with caplog.at_level(logging.WARNING):
        answer = write(engine)
    assert tokens_of(answer) == tokens_of(expected)
    assert answer.found == (SIZE,), "the sheets behind it are not there without it"
    assert str(path) in caplog.text
    assert engine.shelf_counts.sheets_refused == 1
    assert engine.shelving is not None
    assert not engine.shelving._fetches, "given up, it writes to nothing that is fed"
    assert len(path.read_bytes()) == len(whole), "it was saved anew"
    again = engine_on(folder)
    assert tokens_of(write(again)) == tokens_of(expected)
    assert again.shelf_counts.tokens_found == 5 * SIZE


def test_other_weights_and_another_dtype_find_nothing(folder: Path) -> None:
    engine = engine_on(folder)
    assert isinstance(engine.executor, LocalExecutor)
    network = engine.executor.adapter.model
    with torch.no_grad():
        next(iter(network.parameters()))[0, 0] += 1
    settings = engine.settings
    other = Engine(LocalExecutor(engine.executor.adapter, settings), None, settings)
    assert write(other).found == (0,)
    assert len({path.parent for path in sheets(folder)}) == 2


def test_a_disk_that_is_full_is_told_once_and_serving_goes_on(
    tmp_path: Path,
    expected: Completions,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    engine = engine_on(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert tokens_of(write(engine)) == tokens_of(expected)
    assert caplog.text.count("No space left on device") == 1
    assert engine.shelf_counts.sheets_skipped == 5
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "nothing is left of them"


class SmallDisk:
    """A disk of so many bytes, as it seems to a program that brings files to it. `num_others`: bytes of other programs."""

    def __init__(self, folder: Path, num_bytes: int, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.num_bytes, self.num_others = folder, num_bytes, 0
        self._sync = os.fsync
        patch.setattr(os, "fsync", self.bring)

    def bring(self, number: int) -> None:
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        if sum(path.stat().st_size for path in files) + self.num_others > self.num_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._sync(number)


def test_on_a_disk_that_is_smaller_than_the_cache_may_be_the_oldest_go(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    size = sheet_of(folder, 0).stat().st_size
    SmallDisk(folder, int(7.5 * size), monkeypatch)
    engine = engine_on(folder)
    other, third = tuple(reversed(PROMPT)), (3, *PROMPT)
    write(engine, other)
    assert len(sheets(folder)) == 7
    assert (engine.shelf_counts.sheets_dropped, engine.shelf_counts.sheets_skipped) == (3, 0)
    write(engine, third)
    assert (engine.shelf_counts.sheets_dropped, engine.shelf_counts.sheets_skipped) == (8, 0)
    assert caplog.text.count("the disk is full with") == 1
    assert f"{7 * size} bytes of sheets, of the {32 * 2**30} that the cache may take" in caplog.text
    again = engine_on(folder)
    assert write(again, third).found == (5 * SIZE,)
    assert write(again, other).found == (2 * SIZE,), "of the older chain the last sheets went first"


def test_sheets_do_not_go_for_a_disk_that_another_program_fills(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other program takes what is freed. So many sheets go as the new one would take the place of, and not all."""
    size = sheet_of(folder, 0).stat().st_size
    disk = SmallDisk(folder, 1 << 30, monkeypatch)
    engine = engine_on(folder)
    disk.num_others = 1 << 30
    with caplog.at_level(logging.WARNING):
        write(engine, tuple(reversed(PROMPT))[: SIZE + 3])
    left = len(sheets(folder))
    assert left == 2, f"of five, each of {size} bytes"
    assert (engine.shelf_counts.sheets_dropped, engine.shelf_counts.sheets_skipped) == (3, 1)
    assert caplog.text.count("No space left on device") == 1


@pytest.mark.parametrize("is_full", [False, True])
def test_no_sheet_goes_for_one_that_is_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    """Of a prompt that is larger than the cache, or than the disk, the beginning stays: without it the rest is not found."""
    write(engine_on(tmp_path / "whole"))
    size = sheet_of(tmp_path / "whole", 0).stat().st_size
    folder, limit = tmp_path / "small", 3.5 * size
    if is_full:
        SmallDisk(folder, int(limit), monkeypatch)
    engine = engine_on(folder, cache_size=1.0 if is_full else limit / 2**30)
    write(engine)
    assert (engine.shelf_counts.sheets_dropped, engine.shelf_counts.sheets_skipped) == (0, 2)
    assert write(engine_on(folder)).found == (3 * SIZE,)


def test_sheets_that_are_dated_in_the_future_go(folder: Path) -> None:
    """A clock that was put right would else keep them until it has come there."""
    size = sheet_of(folder, 0).stat().st_size
    for path in sheets(folder):
        os.utime(path, (time.time() + 3600,) * 2)
    engine = engine_on(folder, cache_size=5.5 * size / 2**30)
    write(engine, tuple(reversed(PROMPT)))
    assert engine.shelf_counts.sheets_dropped == 5
    assert write(engine_on(folder), tuple(reversed(PROMPT))).found == (5 * SIZE,)


@pytest.mark.parametrize("num_needed", [1, 2, 9])
def test_a_cache_begins_on_a_disk_that_is_full_of_its_sheets(
    folder: Path, monkeypatch: pytest.MonkeyPatch, num_needed: int
) -> None:
    """Another model's folder has no room there. Where nothing helps, no more than a few sheets have gone."""
    before = len(sheets(folder))
    make: Any = sheet_files._make_folders

    def full(*given: Path) -> None:
        if before - len(sheets(folder)) < num_needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        make(*given)

    monkeypatch.setattr(sheet_files, "_make_folders", full)
    if num_needed > before:
        with pytest.raises(OutputFailed, match="No space left on device"):
            engine_on(folder)
        num_needed = 3
    else:
        engine_on(folder)
    assert len(sheets(folder)) == before - num_needed


def test_what_a_disk_holds_is_found_when_it_may_only_be_read(
    folder: Path, expected: Completions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files cannot be marked as used then."""
    engine = engine_on(folder)

    def refused(*given: object, **more: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", refused)
    found = write(engine)
    assert found.found == (5 * SIZE,)
    assert tokens_of(found) == tokens_of(expected)


def test_a_cache_that_its_user_has_emptied_takes_what_comes(
    tmp_path: Path, expected: Completions, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is deleted: what is in the folder, or the folder itself."""
    place = tmp_path / "cache"
    engine = engine_on(place)
    for number, removed in enumerate((place, *place.iterdir())):
        shutil.rmtree(removed)
        other = (number + 1, *PROMPT[1:])
        write(engine, other)
        assert len(sheets(place)) == 5, removed
        (own,) = place.iterdir()
        assert {path.stat().st_mode & 0o777 for path in (place, own)} == {0o700}
        write(engine)
    assert tokens_of(write(engine_on(place))) == tokens_of(expected)
    assert not caplog.records


def test_a_cache_that_is_shut_meanwhile_stops_no_pass(
    tmp_path: Path, expected: Completions, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_on(tmp_path)
    looked_at = os.stat

    def shut(path: Any, *more: Any, **named: Any) -> Any:
        if str(path).endswith(".safetensors"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return looked_at(path, *more, **named)

    monkeypatch.setattr(os, "stat", shut)
    assert tokens_of(write(engine)) == tokens_of(expected)


def test_a_folder_that_cannot_be_made_is_an_error_at_the_door(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputFailed, match="cannot be written to"):
        engine_on(tmp_path / "file" / "cache")


def test_of_a_prompt_that_has_no_room_the_first_sheets_are_kept(tmp_path: Path) -> None:
    """Without them the others are never found; they were written first, and dropped first."""
    write(engine_on(tmp_path))
    size = sheet_of(tmp_path, 0).stat().st_size
    other = tuple(reversed(PROMPT))
    engine = engine_on(tmp_path, cache_size=7.5 * size / 2**30)
    write(engine, other)
    assert len(sheets(tmp_path)) == 7
    assert write(engine_on(tmp_path)).found == (2 * SIZE,), "that was never asked for again"
    small = engine_on(tmp_path / "small", cache_size=3.5 * size / 2**30)
    write(small)
    assert write(engine_on(tmp_path / "small")).found == (3 * SIZE,)


def test_a_prompt_that_goes_on_keeps_what_stands_in_front(tmp_path: Path) -> None:
    """The next turn of a conversation is found by the sheets of those before it, so all of them count as used with it."""
    write(engine_on(tmp_path), PROMPT[: 2 * SIZE + 1])
    size = sheet_of(tmp_path, 0).stat().st_size
    write(engine_on(tmp_path))
    others = engine_on(tmp_path, cache_size=6.5 * size / 2**30)
    write(others, tuple(reversed(PROMPT))[: 3 * SIZE + 1])
    assert write(engine_on(tmp_path)).found == (3 * SIZE,)


def test_no_file_but_sheets_is_counted_or_removed(tmp_path: Path) -> None:
    """A folder may be given in which models lie, whose weights have the same format."""
    then = 1_000_000_000
    theirs = [
        tmp_path / place
        for place in (
            "qwen/model.safetensors",
            "qwen/.download.part",
            f"{32 * 'a'}/own.safetensors",
        )
    ]
    for path in theirs:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(1 << 20))
        os.utime(path, (then, then))
    write(engine_on(tmp_path / "other"))
    size = sheet_of(tmp_path / "other", 0).stat().st_size
    engine = engine_on(tmp_path, cache_size=3.5 * size / 2**30)
    write(engine)
    assert all(path.exists() for path in theirs)
    write(engine, tuple(reversed(PROMPT)))
    assert all(path.exists() for path in theirs)
    assert engine.shelf_counts.sheets_dropped == 3
    assert engine.shelf_counts.sheets_skipped == 2 + 2, "of prompts that are larger than the folder"


def test_a_folder_from_before_versions_were_named_is_taken_over(
    folder: Path, expected: Completions, caplog: pytest.LogCaptureFixture
) -> None:
    (named,) = folder.iterdir()
    digest = named.name.partition("-")[0]
    named.rename(folder / digest)
    engine = engine_on(folder)
    again = write(engine)
    assert tokens_of(again) == tokens_of(expected)
    assert again.found == (5 * SIZE,)
    assert [path.name for path in folder.iterdir()] == [f"{digest}-v{sheet_files.VERSION}"]
    assert not caplog.records
    # Another process, older, has made its own beside it: both stay, and the size is that of both.
    shutil.copytree(named, folder / digest)
    size = sheets(folder)[0].stat().st_size
    both = engine_on(folder, cache_size=7.5 * size / 2**30)
    assert write(both).found == (5 * SIZE,)
    write(both, tuple(reversed(PROMPT)))
    assert len(sheets(folder)) == 7
    assert not caplog.records


@pytest.mark.parametrize("ours", ["1", "3"])
def test_sheets_of_another_version_are_told_and_left_alone(
    ours: str,
    folder: Path,
    expected: Completions,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether it is the older or the newer one; without a version in its name a folder is of the second."""
    (named,) = folder.iterdir()
    bare = folder / (32 * "a")
    shutil.copytree(named, bare)
    dead = named / ".dead.part"
    dead.write_bytes(b"torn")
    os.utime(dead, (1_000_000_000, 1_000_000_000))
    theirs = {path: path.stat().st_mtime_ns for path in folder.glob("*/*")}
    assert len(theirs) == 11
    size = sheets(folder)[0].stat().st_size
    monkeypatch.setattr(sheet_files, "VERSION", ours)
    engine = engine_on(folder, cache_size=3.5 * size / 2**30)
    (told,) = [record.getMessage() for record in caplog.records]
    assert ", ".join(sorted([bare.name, named.name])) in told
    answer = write(engine)
    assert tokens_of(answer) == tokens_of(expected)
    assert answer.found == (0,)
    assert engine.shelf_counts.sheets_refused == 0
    assert {path: path.stat().st_mtime_ns for path in theirs} == theirs, "touched"
    assert len(list(folder.glob(f"*-v{ours}/*"))) == 3
    again = write(engine_on(folder))
    assert tokens_of(again) == tokens_of(expected)
    assert again.found == (3 * SIZE,)


def test_the_folder_keeps_to_its_size_and_the_newest_stay(
    folder: Path, expected: Completions
) -> None:
    size = sheet_of(folder, 0).stat().st_size
    engine = engine_on(folder, cache_size=7.5 * size / 2**30)
    write(engine)
    other = tuple(reversed(PROMPT))
    write(engine, other)
    assert len(sheets(folder)) == 7
    assert engine.shelf_counts.sheets_dropped == 3
    again = engine_on(folder)
    assert write(again, other).found == (5 * SIZE,)
    left = engine_on(folder)
    assert write(left).found == (2 * SIZE,), "of the older chain the last sheets went first"


def test_copies_that_wait_are_bounded(tmp_path: Path) -> None:
    """Sheets that have no room are copied before a later pass, if they are still there."""
    engine = engine_on(tmp_path)
    shelf = shelf_of(engine)
    assert shelf is not None
    shelf.files.most_waiting = 0
    write(engine)
    assert not sheets(tmp_path)
    assert engine.shelf_counts.sheets_skipped == 0
    shelf.files.most_waiting = 3 * shelf._num_bytes
    other = tuple(reversed(PROMPT))
    write(engine, other)
    write(engine, other)
    shelf.files.flush()
    assert engine.shelving is not None
    assert not engine.shelving._unsaved
    assert len(sheets(tmp_path)) == 10
    assert engine.shelf_counts.sheets_skipped == 0
    assert write(engine_on(tmp_path)).found == (5 * SIZE,)


def waiting_engine(folder: Path, prompt: tuple[int, ...] = PROMPT) -> tuple[Engine, MemoryShelf]:
    """An engine that has read a prompt and had no room to save it; there is room now."""
    engine = engine_on(folder)
    shelf = shelf_of(engine)
    assert shelf is not None
    shelf.files.most_waiting = 0
    write(engine, prompt)
    shelf.files.most_waiting = 1 << 30
    return engine, shelf


def test_a_pass_begins_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may give no more of them, and then the engine would fail."""
    engine = engine_on(tmp_path)

    def none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    write(engine)
    assert sheets(tmp_path)


def test_paths_that_are_gone_before_they_had_room_are_counted(tmp_path: Path) -> None:
    """Their keys may be those of others by then, and are not looked at."""
    engine, shelf = waiting_engine(tmp_path)
    engine.prefixes._roots.clear()
    assert engine.shelving is not None
    engine.shelving.step(is_alone=True)
    shelf.files.flush()
    assert engine.shelf_counts.sheets_skipped == 5
    assert not sheets(tmp_path)


def test_a_path_that_was_divided_meanwhile_is_saved_where_it_lies(
    tmp_path: Path, saved: tuple[Path, Any]
) -> None:
    engine, _ = waiting_engine(tmp_path)
    write(engine, (*PROMPT[: 2 * SIZE + 3], *PROMPT[:SIZE]))  # another question about the same text
    write(engine, (9,) * 4)
    assert engine.shelf_counts.sheets_skipped == 0
    again = engine_on(tmp_path)
    assert write(again).found == (5 * SIZE,)
    assert same(memory_of(again), saved[1])


def test_prompts_that_share_a_text_wait_for_its_sheets_once(tmp_path: Path) -> None:
    engine, shelf = waiting_engine(tmp_path)
    shelf.files.most_waiting = 0
    write(engine, (*PROMPT[: 4 * SIZE], 7, 7))
    assert engine.shelving is not None
    assert [list(left.numbers) for left in engine.shelving._unsaved] == [[0, 1, 2, 3, 4]]


def test_a_sheet_is_tried_once_whatever_becomes_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is smaller than a prompt drops some of its sheets; they are not saved again for ever."""
    engine, shelf = waiting_engine(tmp_path)
    assert engine.shelving is not None
    shelf.files.limit = 5 * shelf._num_bytes // 2
    tried: list[str] = []
    save = shelf.save
    monkeypatch.setattr(shelf, "save", lambda name, *more: (tried.append(name), save(name, *more)))
    for step in range(20):
        engine.shelving.step(is_alone=True)
        shelf.files.flush()
        assert len(tried) <= 4 * (step + 1), "a few before each pass"
    assert len(tried) == len(set(tried)) == 5
    assert not engine.shelving._unsaved
    assert not engine.shelving._waiting


def test_the_oldest_prompts_that_wait_are_given_up(tmp_path: Path) -> None:
    engine, shelf = waiting_engine(tmp_path)
    shelf.files.most_waiting = 0
    assert engine.shelving is not None
    for number in range(64):
        write(engine, (20 + number, *PROMPT[: SIZE - 1], 5))
    assert len(engine.shelving._unsaved) == 64
    assert engine.shelf_counts.sheets_skipped == 5


def test_a_piece_that_a_device_fetches_is_taken_when_it_has(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sheet_files, "HostBuffers", lambda size, count, pin: HostBuffers(size, 1, pin=False)
    )
    shelf = shelf_of(engine_on(folder))
    assert shelf is not None
    files, (first, second, *_) = shelf.files, sheet_names(PROMPT, SIZE, None)
    waited: list[str] = []
    files.read_ahead([first])
    assert files.is_read(first, 5.0)
    assert files.buffers.num_free == 0
    files.is_fetched(first, lambda: waited.append(first))
    files.forget([first])
    assert (files.buffers.num_free, waited) == (1, [])
    files.read_ahead([second])
    assert files.is_read(second, 5.0)
    assert waited == [first]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        b"\2" + bytes(7) + b"[]",
        b"\2" + bytes(7) + b"{}",
        b"\x14" + bytes(7) + b'{"__metadata__":"x"}',
        b"\3" + bytes(7) + b'"x"',
        (200_000).to_bytes(8, "little") + 200_000 * b"[",
    ],
    ids=["empty", "short", "a list", "no word", "a string", "a bare string", "nested deeply"],
)
def test_a_file_of_anything_is_refused_and_keeps_no_piece(
    folder: Path, content: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        sheet_files, "HostBuffers", lambda size, count, pin: HostBuffers(size, 1, pin=False)
    )
    sheet_of(folder, 0).write_bytes(content)
    shelf = shelf_of(engine_on(folder))
    assert shelf is not None
    name = sheet_names(PROMPT, SIZE, None)[0]
    shelf.files.read_ahead([name])
    assert shelf.files.is_read(name, 5.0) is False
    shelf.files.forget([name])
    assert shelf.files.buffers.num_free == 1
    assert "is not used, and its tokens are fed" in caplog.text


def test_a_file_that_is_much_too_long_is_not_read(
    folder: Path, expected: Completions, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor is memory asked for it, which there may not be: that ended every run."""
    os.truncate(sheet_of(folder, 1), 1 << 40)  # it has holes
    answer = write(engine_on(folder))
    assert tokens_of(answer) == tokens_of(expected)
    assert "1099511627776 bytes; expected about" in caplog.text


def test_a_host_without_memory_for_a_sheet_feeds_its_tokens(
    folder: Path,
    expected: Completions,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = engine_on(folder)
    shelf = shelf_of(engine)
    assert shelf is not None

    def refuse(num_bytes: int) -> None:
        raise MemoryError(f"no memory for {num_bytes} bytes")

    monkeypatch.setattr(shelf.files.buffers, "take", refuse)
    assert tokens_of(write(engine)) == tokens_of(expected)
    assert "no memory for" in caplog.text


def test_what_dead_writers_left_is_removed_and_no_others(tmp_path: Path) -> None:
    write(engine_on(tmp_path))
    own = sheets(tmp_path)[0].parent
    old, young = own / ".old.part", own / ".young.part"
    for path in (old, young):
        path.write_bytes(b"torn")
    then = time.time() - 7200
    os.utime(old, (then, then))
    write(engine_on(tmp_path))
    assert not old.exists()
    assert young.exists()


class Struck(BaseException):
    """An interrupt."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # struck in `open`
def test_a_writer_that_is_killed_at_any_line_leaves_a_whole_sheet_or_none(
    saved: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is cleaned up behind a kill; what lies under a sheet's name is whole all the same."""
    path = sheet_of(saved[0], 0)
    content = path.read_bytes()
    parts = [
        memoryview(content)[at : at + len(content) // 3]
        for at in range(0, len(content), len(content) // 3)
    ]
    files = SheetFiles(tmp_path, path.parent.name.partition("-")[0], {}, limit=1 << 30)
    place = tmp_path / path.parent.name / path.name
    monkeypatch.setattr(os, "unlink", lambda path: None)
    code = SheetFiles._put_once.__code__
    outcomes = []
    for at in range(1, 40):
        place.unlink(missing_ok=True)
        lines = count(1)

        def strike(
            frame: FrameType, event: str, _: object, at: int = at, lines: Iterator[int] = lines
        ) -> Any:
            if frame.f_code is not code:
                return None
            if event == "line" and next(lines) == at:
                raise Struck
            return strike

        try:
            sys.settrace(strike)
            files._put_once(path.stem, parts, 0)
        except Struck:
            pass
        else:
            break
        finally:
            sys.settrace(None)
        outcomes.append(place.read_bytes() == content if place.exists() else None)
    assert len(outcomes) > 7
    assert set(outcomes) <= {None, True}, "torn"
    assert place.read_bytes() == content, "undisturbed"
    assert list(tmp_path.rglob("*.part")), "as a kill leaves them"


def struck_loads(engine: Engine) -> Iterator[None]:
    """Runs in which the n-th call of something that loading is made of is struck, one after the other."""
    shelf = shelf_of(engine)
    assert shelf is not None
    places: list[tuple[object, str]] = [
        (engine.pool, "follow"),
        (engine.pool, "promise"),
        (shelf, "load"),
        (engine.pool, "keep"),
        (engine.prefixes, "fetched"),
    ]
    for owner, name in places:
        real = getattr(owner, name)

        def strike(*args: Any, real: Any = real, calls: list[int] = [], **kw: Any) -> Any:  # noqa: B006
            calls.append(1)
            if len(calls) == 2:
                raise Struck
            return real(*args, **kw)

        setattr(owner, name, strike)
        yield
        setattr(owner, name, real)


@pytest.mark.usefixtures("_checked_there")
def test_a_load_that_is_struck_can_go_on(folder: Path, expected: Completions) -> None:
    engine = engine_on(folder)
    settings = SharedSettings(samples=2, max_tokens=8, choice=SAMPLED)
    for _ in struck_loads(engine):
        engine.prefixes.clear()
        assert engine.pool.num_free_pages == engine.pool.num_pages
        run = engine.submit(shared_prefix([PROMPT], TEXT, settings, tree=engine.prefixes))
        num_struck = 0
        while not run.done:
            try:
                engine.step()
            except Struck:
                num_struck += 1
        answer = run.result()
        assert isinstance(answer, Completions)
        assert num_struck == 1
        assert tokens_of(answer) == tokens_of(expected)


# -- in eight bits ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("_checked_there")
def test_keys_in_eight_bits_are_saved_and_loaded_as_they_are(folder: Path) -> None:
    """Of a sheet in another form nothing is taken; in their own form they are the same to the bit."""
    prompt = PROMPT[: 5 * SIZE + 1]  # all of it but its last token lies in sheets
    first = engine_on(folder, kv_cache_dtype="int8")
    assert write(first, prompt).found == (0,), "what is there has the dtype of the network"
    second = engine_on(folder, kv_cache_dtype="int8")
    loaded, found = write(second, prompt), write(first, prompt)
    assert loaded.found == found.found == (5 * SIZE,), "one on disk, one in memory"
    assert tokens_of(loaded) == tokens_of(found)
    assert memory_of(first, prompt)[0].dtype == torch.int8
    assert same(memory_of(second, prompt), memory_of(first, prompt))


def test_a_token_in_eight_bits_takes_little_more_than_a_quarter_of_float32() -> None:
    plain = small_engine(512)
    rounded = small_engine(512, overcommit=2.0, kv_cache_dtype="int8")
    numbers = 2 * 2 * (8 + 8)  # layers, heads, dims
    assert plain.facts.token_bytes == 4 * numbers
    assert rounded.facts.token_bytes == numbers + 2 * 2 * 2 * 4
    assert "in eight bits" in rounded.facts.about_memory
    assert rounded._scheduler.preemption.overcommit == 1.0, "no run leaves memory"


# -- a folder of many sheets -----------------------------------------------------------------------


def sheet_files_in(folder: Path, limit: int) -> SheetFiles:
    """Sheets of eight bytes."""
    return SheetFiles(folder, "f" * 32, {"x": sheet_files.Form(torch.int64, (1,))}, limit=limit)


def put(files: SheetFiles, *numbers: int) -> None:
    """Write sheets, the last one as the newest."""
    for number in numbers:
        taken = sheet_files.Taken({"x": torch.tensor([number])}, lambda: None)
        files.write(f"{number:064x}", taken, 0, time.time_ns())
    files.flush()


def numbers_in(files: SheetFiles) -> list[int]:
    return sorted(int(path.stem, 16) for path in sheets(files.folder))


@pytest.fixture
def size(tmp_path: Path) -> int:
    """Bytes of one of them."""
    files = sheet_files_in(tmp_path / "measured", 1 << 20)
    put(files, 0)
    return sheets(files.folder)[0].stat().st_size


def test_a_sheet_that_is_written_costs_no_look_at_all_the_others(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is looked at once, and once more before it goes: with ten thousand it took 0.28 s a sheet."""
    many = 300
    files = sheet_files_in(tmp_path / "cache", many * size)
    put(files, *range(many))
    again = sheet_files_in(tmp_path / "cache", many * size)
    looks = [0]
    stat = os.stat

    def counting_stat(*args: Any, **more: Any) -> os.stat_result:
        looks[0] += 1
        return stat(*args, **more)

    monkeypatch.setattr(os, "stat", counting_stat)
    put(again, many)
    assert looks[0] >= many, "control: the first look is at all of them"
    looks[0] = 0
    put(again, *range(many + 1, many + 21))
    assert looks[0] < 5 * 20
    assert numbers_in(again) == list(range(21, many + 21))
    assert again.counts.sheets_dropped == 21


def test_the_names_of_a_large_folder_are_read_seldom(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sheet_files, "_FEW", 10)
    monkeypatch.setattr(sheet_files, "_SELDOM", 1 << 40)
    files = sheet_files_in(tmp_path, 30 * size)
    put(files, *range(30))
    reads, scandir = [0], os.scandir

    def counting_scandir(path: Any) -> Any:
        reads[0] += 1
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counting_scandir)
    put(files, *range(30, 40))
    assert not reads[0]
    assert numbers_in(files) == list(range(10, 40))
    monkeypatch.setattr(sheet_files, "_SELDOM", 0)
    put(files, 40)
    assert reads[0], "control"


def test_two_that_share_a_folder_keep_to_its_size_together(tmp_path: Path, size: int) -> None:
    """Each hears of what the other has written, used and removed, and of a folder that was emptied."""
    one, two = (sheet_files_in(tmp_path, 6 * size) for _ in range(2))
    put(one, 0, 1, 2)
    put(two, 3, 4, 5)
    assert one.num_saved([f"{0:064x}"]) == 1, "used just now"
    put(one, 6)
    assert numbers_in(one) == [0, 2, 3, 4, 5, 6]
    put(two, 7, 8)
    assert numbers_in(one) == [0, 4, 5, 6, 7, 8]
    put(one, 9)
    assert numbers_in(one) == [0, 5, 6, 7, 8, 9]
    assert (one.counts.sheets_dropped, two.counts.sheets_dropped) == (2, 2)
    for path in sheets(tmp_path):
        path.unlink()
    put(two, 10, 11, 12, 13, 14, 15)
    put(one, 16)
    assert numbers_in(one) == [11, 12, 13, 14, 15, 16]
    assert one.counts.sheets_skipped == two.counts.sheets_skipped == 0


def test_a_sheet_that_cannot_be_removed_is_tried_again(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sheet_files_in(tmp_path, 3 * size)
    put(files, 0, 1, 2)
    unlink = os.unlink

    def shut(path: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "unlink", shut)
    put(files, 3)
    assert files.counts.sheets_skipped == 1
    monkeypatch.setattr(os, "unlink", unlink)
    put(files, 4)
    assert numbers_in(files) == [1, 2, 4]


def test_a_sheet_that_is_written_often_is_known_once(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused and written anew, it counts once; what is remembered of the times before does not pile up."""
    monkeypatch.setattr(sheet_files, "_FEW", 10)
    files = sheet_files_in(tmp_path, 3 * size)
    put(files, *[0] * 40, 1)
    assert files._kept.num_bytes == 2 * size
    assert len(files._kept._order) <= 2 * 2 + 10
    put(files, 2, 3)
    assert numbers_in(files) == [1, 2, 3]


# -- runs that wait for memory while others are fetched --------------------------------------------

LONG = tuple(7 * i % (NUM_IDS - 10) + 5 for i in range(25 * SIZE))
OTHER = tuple(11 * i % (NUM_IDS - 10) + 5 for i in range(25 * SIZE))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Sheets do not come while this holds True."""
    waits, is_read = [False], MemoryShelf.is_read
    monkeypatch.setattr(
        MemoryShelf,
        "is_read",
        lambda shelf, name, patience: None if waits[0] else is_read(shelf, name, patience),
    )
    return waits


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_a_run_waits_for_memory_while_the_only_other_one_waits_for_the_disk(
    tmp_path: Path, kv_cache_dtype: str, slow: list[bool]
) -> None:
    """No run has a step then, and yet memory will be free again: it was told that there is none."""
    write(engine_on(tmp_path, kv_cache_dtype=kv_cache_dtype), LONG)
    engine = small_engine(
        1000, cache=str(tmp_path), sheet_tokens=SIZE, kv_cache_dtype=kv_cache_dtype
    )
    settings = SharedSettings(max_tokens=8)
    slow[0] = True
    first, second = (
        engine.submit(shared_prefix([prompt], TEXT, settings, tree=engine.prefixes))
        for prompt in (LONG, OTHER)
    )
    for _ in range(5):
        engine.step()
    assert not second.done
    slow[0] = False
    finish(engine, first, second)
    for run in (first, second):
        answer: Any = run.result()
        assert len(answer.completions) == 1


def test_a_run_that_left_memory_waits_outside_while_the_only_other_one_waits_for_the_disk(
    tmp_path: Path, slow: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelving, "_AT_ONCE", 1)  # a sheet before each pass
    write(engine_on(tmp_path), LONG)
    engine = small_engine(800, cache=str(tmp_path), sheet_tokens=SIZE)
    pool = engine.pool
    first = engine.submit(counting((9, 8), 60))
    engine.step()
    settings = SharedSettings(max_tokens=8)
    fetches = engine.submit(shared_prefix([LONG], TEXT, settings, tree=engine.prefixes))
    engine.step()
    leaves = engine.submit(counting(OTHER[:200], 100))
    engine.step()
    # All but one sheet: they take the room that the run which leaves had.
    assert engine.shelving is not None
    while len(engine.shelving._fetches[0].wanted) > 1:
        engine.step()
    slow[0] = True
    assert engine._scheduler.preemption.preempt()
    assert leaves.state is RunState.PREEMPTED
    held = Block()
    pool.reserve([(held, SIZE * (pool.num_free_pages - 2))])
    finish(engine, first)
    for _ in range(5):
        engine.step()
    assert leaves.state is RunState.PREEMPTED, "another run is to end"
    slow[0] = False
    del held
    finish(engine, leaves, fetches)
    assert leaves.result().text == engine_text(OTHER[:200], 100)
    assert fetches.result()


def engine_text(prompt: tuple[int, ...], num_tokens: int) -> str:
    """The text that a run writes alone."""
    return small_engine(4096).run(counting(prompt, num_tokens)).text
