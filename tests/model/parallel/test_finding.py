"""A try of peers' memory: whatever goes wrong in it, sums go on through the process group, and the reason is told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from manyhands.model import kernels
from manyhands.model.parallel import finding
from manyhands.model.parallel.finding import find_peers
from manyhands.model.parallel.peers import Peers
from tests.model.parallel.threads import Meeting, ThreadCollectives

CPU = torch.device("cpu")
# Ranks ask this of each other until they have each other's memory: three times whether all could.
FOUND = ["sum", "sum", "level", "sum"]
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


Sums = Callable[[Tensor, int, Any], Tensor]


def summed(x: Tensor, patience: int, by: object) -> Tensor:
    return (x.float() + x.float()).to(x.dtype)


def off_by_a_bit(x: Tensor, patience: int, by: object) -> Tensor:
    return torch.nextafter(summed(x, patience, by), torch.tensor(9.0)) if len(x) == 2 else 2 * x


def uncompiled(x: Tensor, patience: int, by: object) -> Tensor:
    raise NotImplementedError("no such instruction\nin 300 lines of it")


def found(
    monkeypatch: pytest.MonkeyPatch, sums: Sums, places_of_many: int = 0, places: int = 256
) -> Two:
    meetings: list[Any] = [
        SimpleNamespace(
            epochs=torch.zeros(1), width=WIDTH, places=many, stop=torch.ones(1, dtype=torch.int32)
        )
        for many in (places, places_of_many)
    ]
    peers = Peers(meetings[0], torch.float32, many=meetings[1] if places_of_many else None)
    monkeypatch.setattr(peers, "sum", sums)
    monkeypatch.setattr(finding, "_trouble", lambda *_: "")
    monkeypatch.setattr(finding, "_taken", lambda *_: torch.zeros(1))
    monkeypatch.setattr(finding, "_joined", lambda *_: peers)
    monkeypatch.setattr(finding, "_draw_level", lambda group, _: group.asked.append("level"))
    return tried(monkeypatch)


def tried(monkeypatch: pytest.MonkeyPatch) -> Two:
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
    monkeypatch: pytest.MonkeyPatch, sums: Sums, reason: str
) -> None:
    """The ranks stay in step: all terms are listed before a sum is tried, so each one's next collective is the same."""
    both, usual = found(monkeypatch, sums), found(monkeypatch, summed)
    assert both.peers is None
    assert both.about_peers == f"not through peers' memory: {reason}"
    assert both.asked == usual.asked == [*FOUND, *["gather"] * 5, "sum"]


@pytest.mark.parametrize(
    ("where", "asked"), [("_trouble", FOUND[:1]), ("_taken", FOUND[:2]), ("_joined", FOUND)]
)
@pytest.mark.parametrize("is_own", [True, False], ids=["own", "others"])
def test_ranks_go_on_as_far_as_all_could(
    where: str, asked: list[str], is_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A way that one of them lacks is left out by all, which make the same collectives up to there, and none behind."""
    found(monkeypatch, summed)

    def cannot(*_: object) -> str:
        if where == "_trouble":
            return "no way"
        raise RuntimeError("no way\nof 300")

    def could(two: Two, x: Tensor) -> Tensor:
        two.asked.append("sum")
        return x + int(len(two.asked) < len(asked))

    if is_own:
        monkeypatch.setattr(finding, where, cannot)
    else:
        monkeypatch.setattr(Two, "sum", could)
    both = tried(monkeypatch)
    assert (both.peers, both.asked) == (None, asked)
    reason = "no way" if is_own else "another rank cannot"
    assert both.about_peers == f"not through peers' memory: {reason}"


def test_sums_of_many_tokens_that_are_not_right_leave_those_of_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both kinds are tried, each by its own meeting; behind a try in which a rank waited in vain none has to give up."""
    tried: list[tuple[int, int]] = []

    def few_are_right(x: Tensor, patience: int, by: Any) -> Tensor:
        tried.append((by.places, len(x)))
        return summed(x, patience, by) + int(by.places == 2048)

    usual, both = found(monkeypatch, summed, 2048), found(monkeypatch, few_are_right, 2048)
    assert usual.about_peers == "those of up to 2048 tokens through peers' memory"
    assert usual.peers.many is not None
    assert usual.peers.meeting.stop.item() == 1, "as it was"
    assert both.about_peers == (
        "those of up to 256 tokens through peers' memory, more not: its sums were wrong or did not arrive"
    )
    assert (both.peers.many, both.peers.meeting.stop.item()) == (None, 0)
    assert tried == [*((256, n) for n in (1, 3, 256, 2, 1)), *((2048, n) for n in (33, 2048, 256))]
    assert both.asked == usual.asked == [*FOUND, *["gather"] * 5, "sum", *["gather"] * 3, "sum"]


def test_few_tokens_go_by_words_and_more_by_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = found(monkeypatch, summed, 2048).peers
    x = {tokens: torch.zeros(tokens, WIDTH) for tokens in (1, 32, 33, 256, 257, 2048, 2049)}
    assert [peers.can_sum(each) for each in x.values()] == [True] * 6 + [False]
    places = [peers._meeting_of(each).places for each in x.values()]
    assert places[:-1] == [256, 256, 2048, 2048, 2048, 2048]
    peers.keep_few()
    assert [peers.can_sum(each) for each in x.values()] == [True] * 4 + [False] * 3
    assert {peers._meeting_of(x[tokens]).places for tokens in (1, 33, 256)} == {256}


@pytest.mark.parametrize(
    ("size", "width", "most"), [(2, WIDTH, 2048), (2, 4096, 2048), (2, 5120, 512), (3, WIDTH, 0)]
)
def test_memory_is_taken_for_words_rows_and_flags_apart(size: int, width: int, most: int) -> None:
    """Over more than two ranks there are words alone; of wide rows fewer go by flags."""
    words, rows, flags = finding._parts(size, width, torch.bfloat16)
    assert words == 2 * size * finding.PLACES * width * 4
    assert (rows, flags) == (2 * size * most * width * 2, size * most * 4)


@pytest.mark.parametrize(
    ("width", "usable", "reached", "trouble"),
    [
        (8, True, {0, 2}, ""),
        (12, True, {0, 2}, "rows of 12 are not aligned"),
        (8, False, {0, 2}, "no kernel for torch.bfloat16 on cuda:1"),
        (8, True, {2}, "a GPU cannot reach another one's memory"),
    ],
)
def test_trouble_that_is_known_before(
    width: int, usable: bool, reached: set[int], trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the second of three: each of the others is to be reached, and no rank has to reach itself."""
    three: Any = SimpleNamespace(size=3)
    monkeypatch.setattr(kernels, "usable", lambda x: usable)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda _, other: other in reached)
    device = torch.device("cuda", 1)
    assert finding._trouble(three, width, torch.bfloat16, device) == trouble


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
