"""Sums over ranks in one launch, by the interpreter: one process is all ranks, which push first and pull then.

On GPUs, with a process each: `tests/engine/ranks/test_on_gpus.py`.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import _symmetric_memory as symmetric

pytest.importorskip("triton", reason="Triton comes for Linux only")

from manyhands.model import layers
from manyhands.model.kernels import one_shot
from manyhands.model.kernels.norms import join
from manyhands.model.kernels.one_shot import Meeting, meet
from manyhands.model.layers import Form, Norm
from manyhands.model.parallel import finding
from manyhands.model.parallel.peers import Peers

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the kernels are compiled here, and run on the GPU only"
)
WIDTH, PLACES, EPS = 24, 4, 1e-6


# The two ways to know that a row has come.
WAYS = pytest.mark.parametrize("by_flags", [False, True], ids=["words", "flags"])


class Ranks:
    """All ranks' buffers in one process."""

    def __init__(
        self, size: int, dtype: torch.dtype = torch.float32, *, by_flags: bool = False
    ) -> None:
        words = torch.int64 if dtype == torch.float32 else torch.int32
        kind = dtype if by_flags else words
        self.buffers = [torch.zeros(2, size, PLACES, WIDTH, dtype=kind) for _ in range(size)]
        self.flags = [torch.zeros(size, PLACES, dtype=torch.int32) for _ in range(size)]
        addresses, flags = (
            torch.tensor([each.data_ptr() for each in every])
            for every in (self.buffers, self.flags)
        )
        self.meetings = [
            Meeting(
                rank,
                addresses,
                torch.zeros(PLACES, dtype=torch.int32),
                torch.zeros(1, dtype=torch.int32),
                WIDTH,
                flags if by_flags else None,
            )
            for rank in range(size)
        ]

    def push(self, parts: list[Tensor], *ranks: int) -> None:
        for rank in ranks or range(len(parts)):
            meet(self.meetings[rank], None, parts[rank], pull=False)

    def pull(self, parts: list[Tensor], patience: int = 1) -> list[Tensor]:
        return [
            meet(each, None, part, push=False, patience=patience)[0]
            for each, part in zip(self.meetings, parts, strict=True)
        ]


def parts_of(size: int, tokens: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(tokens, WIDTH).to(dtype) for _ in range(size)]


@WAYS
@pytest.mark.parametrize("size", [2, 3])
def test_sums_of_any_number_of_tokens_one_behind_another(size: int, by_flags: bool) -> None:
    """Places lag behind each other as numbers of tokens change; each counts its own epochs."""
    torch.manual_seed(0)
    ranks = Ranks(size, by_flags=by_flags)
    for tokens in (1, 4, 2, 1, 1, 3, 4):
        parts = parts_of(size, tokens)
        ranks.push(parts)
        sums = ranks.pull(parts)
        expected = sum(parts[1:], parts[0])
        assert all(torch.equal(found, expected) for found in sums)
    assert ranks.meetings[0].epochs.tolist() == [7, 4, 3, 2]


@WAYS
@pytest.mark.parametrize(
    ("dtype", "last"), [(torch.float32, 2**31 - 1), (torch.float16, 2**16 - 1)], ids=str
)
def test_counts_go_on_behind_the_largest_that_a_word_bears(
    dtype: torch.dtype, last: int, by_flags: bool
) -> None:
    """And words of two epochs before are none of this one's: the control at each epoch leaves out one push."""
    ranks = Ranks(2, dtype, by_flags=by_flags)
    for meeting in ranks.meetings:
        meeting.epochs.fill_(last - 3)
    for flags in ranks.flags:
        flags.fill_(last - 3)
    for _ in range(6):
        parts = parts_of(2, 2, dtype)
        expected = (parts[0].float() + parts[1].float()).to(dtype)
        ranks.push(parts, 0)
        missed = meet(ranks.meetings[0], None, parts[0], push=False, patience=1)[0]
        assert missed.isnan().all()
        for meeting in ranks.meetings[:1]:  # as if it had not looked
            meeting.epochs[:2] -= 1
            meeting.stop.zero_()
        ranks.push(parts, 1)
        assert all(torch.equal(found, expected) for found in ranks.pull(parts))
    assert ranks.meetings[0].epochs[0] == (last + 3 + 2**31) % 2**32 - 2**31


@WAYS
def test_a_rank_that_is_ahead_spoils_nothing(by_flags: bool) -> None:
    """It may push for the next epoch before the others have read this one, and not for the one behind."""
    ranks = Ranks(2, by_flags=by_flags)
    now, then = parts_of(2, 2), parts_of(2, 2)
    ranks.push(now)
    ahead = meet(ranks.meetings[1], None, now[1], push=False)[0]
    ranks.push(then, 1)
    behind = meet(ranks.meetings[0], None, now[0], push=False)[0]
    assert torch.equal(behind, ahead)
    ranks.push(then, 0)
    assert all(torch.equal(found, then[0] + then[1]) for found in ranks.pull(then))


@WAYS
def test_a_rank_that_never_comes_leaves_no_numbers(by_flags: bool) -> None:
    """The control: without the other's push a sum cannot be right, and is not."""
    ranks = Ranks(2, by_flags=by_flags)
    parts = parts_of(2, 2)
    ranks.push(parts, 0)
    assert ranks.pull(parts, patience=3)[0].isnan().all()
    assert ranks.meetings[0].stop.item() == 1
    # The other is still missing: the next sum gives up at the first look, though patience is long.
    assert meet(ranks.meetings[0], None, parts[0], patience=1 << 30)[0].isnan().all()


@WAYS
def test_rows_may_lie_apart(by_flags: bool) -> None:
    """As halves of wider ones do, those of the residual too. Without a norm none is given back."""
    ranks = Ranks(2, by_flags=by_flags)
    first, second, residual = (torch.randn(1, 3, 2 * WIDTH)[..., WIDTH:] for _ in range(3))
    ranks.push([first, second])
    total, normed = meet(ranks.meetings[0], residual, first, push=False)
    assert torch.equal(total, first + second + residual)
    assert normed is None


@pytest.mark.parametrize("missing", [0, WIDTH - 1, None], ids=["first", "last", "flag"])
def test_a_row_that_comes_late_is_waited_for(
    missing: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes behind the hundredth look, and until then one of its words is missing, or its flag."""
    ranks, parts = Ranks(2, by_flags=missing is None), parts_of(2, 1)
    ranks.push(parts)
    late = ranks.flags[0] if missing is None else ranks.buffers[0][1, 1, 0, missing]
    came, looked, looks = late.clone(), one_shot._looked, 0

    def looked_again(*given: Any) -> Any:
        nonlocal looks
        looks += 1
        if looks == 100:
            late.copy_(came)
        return looked(*given)

    late.zero_()
    monkeypatch.setattr(one_shot, "_looked", looked_again)
    found = meet(ranks.meetings[0], None, parts[0], push=False, patience=1000)[0]
    assert torch.equal(found, parts[0] + parts[1])
    assert (looks, ranks.meetings[0].stop.item()) == (101, 0)


@pytest.mark.parametrize("form", [0, 1, 2])
@pytest.mark.parametrize("post", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@WAYS
def test_residual_and_norms_are_those_of_two_launches(
    form: int, post: bool, dtype: torch.dtype, by_flags: bool
) -> None:
    torch.manual_seed(1)
    ranks = Ranks(2, dtype, by_flags=by_flags)
    parts, (residual,) = parts_of(2, 3, dtype), parts_of(1, 3, dtype)
    norms = [(torch.randn(WIDTH).to(dtype), EPS) for _ in range(2)]
    behind = norms[0] if post else None
    ranks.push(parts)
    total, normed = meet(ranks.meetings[1], residual, parts[1], behind, norms[1], form, push=False)
    ranks = Ranks(2, dtype, by_flags=by_flags)
    ranks.push(parts)
    summed = ranks.pull(parts)[0]
    expected = join(residual, summed, behind, norms[1], form)
    assert expected[0] is not None
    assert expected[1] is not None
    assert normed is not None
    assert torch.equal(total, expected[0])
    assert torch.equal(normed, expected[1])


def joined(form: Form, is_post: bool, is_pre: bool) -> tuple[Peers, Tensor, Tensor, list[Any]]:
    """Peers of rank 0 to whom rank 1 has pushed, rank 0's x, the sum of both, and the norms."""
    torch.manual_seed(2)
    ranks, parts = Ranks(2), parts_of(2, 3)
    ranks.push(parts, 1)
    norms = [
        Norm(torch.nn.Parameter(torch.randn(WIDTH)), EPS, form) if is_there else None
        for is_there in (is_post, is_pre)
    ]
    peers = Peers(ranks.meetings[0], torch.float32, ranks)
    return peers, parts[0], parts[0] + parts[1], norms


@torch.inference_mode()
@pytest.mark.parametrize("form", [0, 1, 2])
@pytest.mark.parametrize("is_post", [False, True])
@pytest.mark.parametrize("is_pre", [False, True])
def test_peers_join_as_layers_do(form: Form, is_post: bool, is_pre: bool) -> None:
    """Without a norm behind it the sum stands for its own."""
    peers, x, summed, norms = joined(form, is_post, is_pre)
    residual = torch.randn(3, WIDTH)
    found = peers.join(residual, x, *norms)
    assert found is not None
    expected = layers.join(residual, summed, *norms)
    for one, other in zip(found, expected, strict=True):
        # In float32; the order of a sum of 24 squares is another one.
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    assert is_pre or found[1] is found[0]
    assert peers.num_made == 1


@torch.inference_mode()
def test_peers_make_no_norms_of_two_forms() -> None:
    """And count no sum then, for none was made."""
    peers, x, summed, norms = joined(0, True, True)
    norms[1].form = 2
    assert peers.join(None, x, *norms) is None
    assert peers.num_made == 0
    assert torch.equal(peers.sum(x), summed)
    assert peers.num_made == 1


@pytest.mark.parametrize("size", [2, 3])
def test_words_rows_and_flags_lie_apart_in_the_memory_of_each_rank(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each way is used with the most tokens that it may have, the last places too, and none spoils what another has under way."""
    torch.manual_seed(1)
    monkeypatch.setattr(finding, "PLACES", 3)
    monkeypatch.setattr(finding, "PLACES_OF_TWO", 5)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(finding, "_bounded", lambda group: nullcontext())
    dtype = torch.float32
    memories = [
        torch.full((sum(finding._parts(size, WIDTH, dtype)),), 7, dtype=torch.uint8)
        for _ in range(size)
    ]
    addresses = [memory.data_ptr() for memory in memories]
    handle = SimpleNamespace(buffer_ptrs=addresses)
    monkeypatch.setattr(symmetric, "rendezvous", lambda memory, group: handle)
    found = []
    for rank, memory in enumerate(memories):
        group: Any = SimpleNamespace(rank=rank, size=size, group="all")
        found.append(finding._joined(memory, group, WIDTH, dtype))
    assert all((peers.many is not None) is (size == 2) for peers in found)
    meetings: list[list[Meeting]] = [[peers.meeting for peers in found]]
    if size == 2:
        meetings.append([many for peers in found if (many := peers.many) is not None])
    for _ in range(3):  # both halves, and the first one again
        pushed = []
        for each in meetings:
            parts = parts_of(size, each[0].places)
            for meeting, part in zip(each, parts, strict=True):
                meet(meeting, None, part, pull=False)
            pushed.append((each, parts))
        for each, parts in pushed:
            expected = sum(parts[1:], parts[0])
            for meeting, part in zip(each, parts, strict=True):
                assert torch.equal(meet(meeting, None, part, push=False, patience=1)[0], expected)
