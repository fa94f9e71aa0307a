"""A try of peers' memory: whatever goes wrong in it, sums go on through the process group, and the reason is told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from manyhands.model.parallel import finding
from manyhands.model.parallel.finding import find_peers
from tests.model.parallel.threads import Meeting, ThreadCollectives

CPU = torch.device("cpu")
WIDTH = 8


class Two:
    """Rank 0 of two that hold the same terms, and of which the other always could; notes what was asked of it."""

    size, rank, group = 2, 0, "both"
    peers: Any = None
    about_peers = ""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def gather(self, x: Tensor) -> Tensor:
        self.asked.append("gather")
        return torch.stack((x, x))

    def sum(self, x: Tensor) -> Tensor:
        self.asked.append("sum")
        return x + 1


def summed(x: Tensor, patience: int) -> Tensor:
    return (x.float() + x.float()).to(x.dtype)


def off_by_a_bit(x: Tensor, patience: int) -> Tensor:
    return torch.nextafter(summed(x, patience), torch.tensor(9.0)) if len(x) == 2 else 2 * x


def uncompiled(x: Tensor, patience: int) -> Tensor:
    raise NotImplementedError("no such instruction\nin 300 lines of it")


def found(monkeypatch: pytest.MonkeyPatch, sums: Callable[[Tensor, int], Tensor]) -> Two:
    meeting = SimpleNamespace(epochs=torch.zeros(1), width=WIDTH)
    peers = SimpleNamespace(meeting=meeting, dtype=torch.float32, sum=sums)
    monkeypatch.setattr(finding, "_trouble", lambda *_: "")
    monkeypatch.setattr(finding, "_taken", lambda *_: torch.zeros(1))
    monkeypatch.setattr(finding, "_joined", lambda *_: peers)
    monkeypatch.setattr(finding, "_draw_level", lambda *_: None)
    both = Two()
    cuda: Any = SimpleNamespace(type="cuda", index=0)
    monkeypatch.setattr(finding, "_all", lambda group, could, _: int(group.sum(int(could))) == 2)
    find_peers(both, WIDTH, torch.float32, cuda)  # type: ignore[arg-type]
    return both


def test_sums_that_are_right_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    both = found(monkeypatch, summed)
    assert both.peers is not None
    assert "through peers' memory" in both.about_peers


@pytest.mark.parametrize(
    ("sums", "reason"),
    [(off_by_a_bit, "its sums were wrong or did not arrive"), (uncompiled, "no such instruction")],
)
def test_sums_that_are_not_leave_the_process_group_its_work(
    monkeypatch: pytest.MonkeyPatch, sums: Callable[[Tensor, int], Tensor], reason: str
) -> None:
    """The ranks stay in step: all terms are listed before a sum is tried, so each one's next collective is the same."""
    both, usual = found(monkeypatch, sums), found(monkeypatch, summed)
    assert both.peers is None
    assert both.about_peers == f"not through peers' memory: {reason}"
    assert both.asked == usual.asked == [*["sum"] * 3, *["gather"] * 5, "sum"]


def test_on_a_cpu_nothing_is_tried() -> None:
    both = Two()
    find_peers(both, WIDTH, torch.float32, CPU)  # type: ignore[arg-type]
    assert (both.peers, both.asked, both.about_peers) == (None, [], "")


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ((0, 0, 0), (2, 2, 2)),
        ((4, 0, 0), (6, 6, 6)),  # rank 0 has met ranks that are gone
        ((4, 0, -1), (6, 2, -1)),  # torch does not say it of one
        ((1, 0, 0), (3, 4, 4)),  # a meeting that failed midway: not to be mended, and nothing hangs
    ],
)
def test_ranks_whose_processes_have_met_others_draw_level(
    monkeypatch: pytest.MonkeyPatch, before: tuple[int, ...], behind: tuple[int, ...]
) -> None:
    """Each meeting with oneself takes two words, as one with others does."""
    told = threading.local()

    def words_by_now(_: torch.device) -> int:
        told.words += 2 if told.words >= 0 else 0
        words: int = told.words
        return words

    monkeypatch.setattr(finding, "_words_by_now", words_by_now)

    def level(part: ThreadCollectives) -> int:
        told.words = before[part.rank]
        finding._draw_level(part, CPU)  # type: ignore[arg-type]
        words: int = told.words
        return words

    assert tuple(Meeting(3).run(level)) == behind


def test_a_group_of_one_is_found_by_its_name() -> None:
    """As torch looks it up for a meeting, which wants a GPU; its store lists the words that were left there."""
    resolve = vars(torch.distributed.distributed_c10d)["_resolve_process_group"]
    with finding._group_of_one() as (name, store):
        found = resolve(name)
        assert (found.rank(), found.size()) == (0, 1)
        store.set(f"{finding._WORDS}7/0", "a word")
        assert store.list_keys() == [f"{finding._WORDS}7/0"]
    with pytest.raises(RuntimeError, match="alone"):
        resolve(name)
