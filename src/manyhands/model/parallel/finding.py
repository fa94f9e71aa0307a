"""Whether GPUs of several ranks can write to each other's memory: tried when a model is loaded, on all ranks at once.

It depends on the machine. Memory is taken and made known to all, sums go through it (`peers.py`), and the numbers
are compared with terms that the process group has listed. Where any rank has trouble none has peers, sums go on
through NCCL, and the reason is kept for people.

The memory comes from torch (`torch.distributed._symmetric_memory`); multicast stays off (`engine/ranks/group.py`).

Torch makes memory known to all in a *rendezvous*, in which each rank waits for all others. It does not let other
threads of its process run meanwhile, so nothing could tell it that another rank has gone elsewhere. Therefore the
ranks agree, before it, that each has its memory; and it gives up after `_LONGEST_MEETING`.

Torch numbers the words of its meetings by process. Rank 0 may have had some with ranks of an earlier model, whose processes are
gone; and new ones would leave their words under other numbers. So each rank meets itself alone first, in a store of its own where
its number can be seen, and goes on with that until it has come as far as the others.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from manyhands.model import kernels
from manyhands.model.parallel.collectives import GroupCollectives
from manyhands.model.parallel.peers import FEW, Peers

if TYPE_CHECKING:
    from manyhands.model.kernels.one_shot import Meeting

PLACES = 256  # tokens of one sum by words
# Tokens of one by flags, over two ranks: NCCL is faster with more. A program with a wide row has many registers, so fewer are under way.
PLACES_OF_TWO, _PLACES_OF_WIDE = 2048, 512
_WIDE = 4096  # numbers of a row; of 5 120 NCCL adds up 1 024 tokens in 65 µs, and flags in 68 (`ranks_sums.json`)
_TRIES = 1, 3, PLACES, 2, 1  # tokens of the sums that are compared
_PATIENCE = 1 << 24  # looks at a flag while it is tried: seconds, as a kernel is compiled first
_LONGEST_MEETING = datetime.timedelta(seconds=30)  # all ranks come at once; it takes milliseconds
_WORDS = "CUDASymmetricMemory/"  # how torch calls them in a store, in front of their numbers
_NUMBERS, _UNKNOWN = itertools.count(), -1
_KINDS = ("cuda",)  # of devices on which it is tried
_FAILURES = (
    RuntimeError,
    AttributeError,
    ImportError,
    TypeError,
)  # of torch, whose interface is not stable yet


def find_peers(
    collectives: GroupCollectives, width: int, dtype: torch.dtype, device: torch.device
) -> None:
    """Give these collectives peers for rows of this width, if it can be; all ranks call it at once.

    `device` is this rank's; on a CPU nothing is tried. The attempt, or why it failed, is told in `about_peers`.
    """
    if device.type in _KINDS and collectives.size > 1:
        collectives.peers, collectives.about_peers = _found(collectives, width, dtype, device)


def _found(
    collectives: GroupCollectives, width: int, dtype: torch.dtype, device: torch.device
) -> tuple[Peers | None, str]:
    """Peers, and the words about them. Every rank makes the same collectives up to the first that any rank lost."""
    trouble, memory, peers = _trouble(collectives, width, dtype, device), None, None
    if _all(collectives, not trouble, device):
        try:
            memory = _taken(collectives.size, width, dtype, device)
        except _FAILURES as error:
            trouble = _said(error)
        if _all(collectives, memory is not None, device):
            _draw_level(collectives, device)
            assert memory is not None, "all ranks have theirs"
            try:
                peers = _joined(memory, collectives, width, dtype)
            except _FAILURES as error:
                trouble = _said(error)
            if not _all(collectives, peers is not None, device):
                peers = None
    if peers is not None:
        trouble = _wrong(peers, peers.meeting, collectives, _TRIES)
        peers = peers if _all(collectives, not trouble, device) else None
    if peers is None:
        return None, f"not through peers' memory: {trouble or 'another rank cannot'}"
    about = f"those of up to {peers.most_tokens} tokens through peers' memory"
    if peers.many is not None:
        tries = FEW + 1, peers.many.places, PLACES
        trouble = _wrong(peers, peers.many, collectives, tries)
        if not _all(collectives, not trouble, device):
            peers.keep_few()
            about = f"those of up to {peers.most_tokens} tokens through peers' memory, more not: {trouble or 'another rank cannot'}"
    return peers, about


def _trouble(
    collectives: GroupCollectives, width: int, dtype: torch.dtype, device: torch.device
) -> str:
    """Trouble that is known before anything is tried; "" is none."""
    if not kernels.usable(torch.empty(0, dtype=dtype, device=device)):
        return f"no kernel for {dtype} on {device}"
    others = [rank for rank in range(collectives.size) if rank != device.index]
    if not all(torch.cuda.can_device_access_peer(device.index, other) for other in others):
        return "a GPU cannot reach another one's memory"
    return "" if width * dtype.itemsize % 16 == 0 else f"rows of {width} are not aligned"


def _taken(size: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory of this rank, uint8, which the others do not know yet. RuntimeError where it cannot be had."""
    from torch.distributed import _symmetric_memory

    symmetric: Any = _symmetric_memory
    taken: Tensor = symmetric.empty(
        sum(_parts(size, width, dtype)), dtype=torch.uint8, device=device
    )
    return taken


def _parts(size: int, width: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """Bytes of a rank's memory: of words, of rows, and of these rows' flags."""
    words = 2 * size * PLACES * width * 2 * dtype.itemsize
    places = places_by_flags(size, width)
    return words, 2 * size * places * width * dtype.itemsize, size * places * torch.int32.itemsize


def places_by_flags(size: int, width: int) -> int:
    """Tokens of a sum by flags at most; 0 over more than two ranks, since a row would go to each of the others whole, where NCCL sends parts."""
    if size > 2:
        return 0
    return PLACES_OF_TWO if width <= _WIDE else _PLACES_OF_WIDE


def _draw_level(collectives: GroupCollectives, device: torch.device) -> None:
    """Let all ranks come to the same number of words; where that is not known, or cannot be, the meeting fails in time."""
    own = _words_by_now(device)
    all_ranks = collectives.gather(torch.tensor(own, dtype=torch.int64, device=device))
    while _UNKNOWN < own < int(all_ranks.max()) and int(all_ranks.min()) > _UNKNOWN:
        own = _words_by_now(device)


def _words_by_now(device: torch.device) -> int:
    """How many words this process has exchanged in meetings, those of one with itself alone included; _UNKNOWN where torch does not say."""
    from torch.distributed import _symmetric_memory

    symmetric: Any = _symmetric_memory
    try:
        with _group_of_one() as (name, store):
            symmetric.rendezvous(symmetric.empty(16, dtype=torch.uint8, device=device), name)
            keys = store.list_keys()
        parts = (key.partition(_WORDS) for key in keys)
        return max(int(behind.split("/")[0]) for _, found, behind in parts if found)
    except (*_FAILURES, LookupError, ValueError):
        return _UNKNOWN


@contextmanager
def _group_of_one() -> Iterator[tuple[str, Any]]:
    """The name of a group in which this process is alone, as torch looks it up, and the group's store."""
    groups: Any = vars(dist.distributed_c10d)
    name, store = f"manyhands, alone {next(_NUMBERS)}", vars(dist)["HashStore"]()
    alone = groups["ProcessGroup"](store, 0, 1)
    alone._set_group_name(name)
    groups["_register_process_group"](name, alone)
    try:
        yield name, store
    finally:
        groups["_unregister_process_group"](name)


def _joined(memory: Tensor, collectives: GroupCollectives, width: int, dtype: torch.dtype) -> Peers:
    """Memory that all can write to, empty and ready. RuntimeError where it cannot be had."""
    from torch.distributed import _symmetric_memory

    from manyhands.model.kernels.one_shot import Meeting

    symmetric: Any = _symmetric_memory
    rank, device = collectives.rank, memory.device
    group = dist.group.WORLD if collectives.group is None else collectives.group
    with _bounded(group):
        handle = symmetric.rendezvous(memory, group)
    addresses = list(handle.buffer_ptrs)
    if addresses[rank] != memory.data_ptr():
        raise RuntimeError("torch's symmetric memory begins elsewhere than its tensor")
    memory.zero_()
    torch.cuda.synchronize(device)
    words, rows, flags = _parts(collectives.size, width, dtype)
    buffers = torch.tensor(addresses, dtype=torch.int64, device=device)

    def counts(places: int) -> Tensor:
        return torch.zeros(places, dtype=torch.int32, device=device)

    stop, many = counts(1), None
    if flags:
        of_rows, of_flags = buffers + words, buffers + words + rows
        places = places_by_flags(collectives.size, width)
        many = Meeting(rank, of_rows, counts(places), stop, width, of_flags)
    few = Meeting(rank, buffers, counts(PLACES), stop, width)
    return Peers(few, dtype, (memory, handle), many)  # `_all` waits until every rank's is empty


@contextmanager
def _bounded(group: Any) -> Iterator[None]:
    """Inside, whoever waits for a word of another rank gives up in time, with torch's DistStoreError."""
    store: Any = vars(dist.distributed_c10d)["_get_process_group_store"](group)
    usual = store.timeout
    store.set_timeout(_LONGEST_MEETING)
    try:
        yield
    finally:
        store.set_timeout(usual)


def _wrong(
    peers: Peers, meeting: Meeting, collectives: GroupCollectives, tries: Sequence[int]
) -> str:
    """Trouble with sums of so many tokens by a meeting, which must be the very bits of terms that are listed and added in order; "" is none.

    All terms are listed before the first sum is tried: a rank whose kernel cannot be compiled must not leave the others
    in another collective than its own next one.
    """
    device, rounds = peers.meeting.epochs.device, []
    numbers = torch.Generator(device).manual_seed(collectives.rank)
    for tokens in tries:
        x = torch.randn(tokens, peers.meeting.width, generator=numbers, device=device)
        x = x.to(peers.dtype)
        terms = collectives.gather(x).float()
        expected = terms[0]
        for term in terms[1:]:
            expected = expected + term
        rounds.append((x, expected.to(peers.dtype)))
    try:
        found = [torch.equal(peers.sum(x, _PATIENCE, meeting), expected) for x, expected in rounds]
    except (
        Exception
    ) as error:  # Triton has errors of its own, and a sum that cannot be made is no reason to end
        return _said(error)
    return "" if all(found) else "its sums were wrong or did not arrive"


def _said(error: Exception) -> str:
    """The first line of an error, for people."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _all(collectives: GroupCollectives, could: bool, device: torch.device) -> bool:
    """Whether every rank could."""
    number = torch.tensor(int(could), dtype=torch.int64, device=device)
    return int(collectives.sum(number)) == collectives.size
