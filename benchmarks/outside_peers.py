"""FlashAttention 3 and FlashInfer at one situation's work, on the same pages.

Both attend sequences: so many queries over so many paged keys. Every strip is a sequence here, whose queries are those
of all rows that read it, each turned to where the row stands on the strip's ruler. One call reads every key once,
and a kernel of this file merges what a row got from its strips. Turning queries and planning come before the
clock; of all ways in which a peer can be asked, its fastest is the one that counts (`fastest`). Latents, and FlashMLA
beside them, are in `benchmarks/latent_peers.py`.

`benchmarks/outsiders.py` says how they are had. Without them a peer is left out, with the reason (`Outsiders`).

    E  entries: (query, strip) pairs      T  queries      B  sequences      H  query heads      G  key/value heads
"""

from __future__ import annotations

import importlib
import math
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from benchmarks.op_peers import Peer
from benchmarks.outsiders import FA3_LIBRARY, FLASHINFER_PACKAGES, FLASHMLA_LIBRARY, HEAD_DIM
from benchmarks.situations import Situation, slots_of
from benchmarks.timing import milliseconds
from manyhands.attention.entries import Entries
from manyhands.attention.latents import LatentStore
from manyhands.attention.rotary import rotate

FA3, FLASHMLA, FLASHINFER = "FlashAttention 3", "FlashMLA", "FlashInfer"
NAMES = (FA3, FLASHINFER)
_LIBRARIES = {FA3: FA3_LIBRARY, FLASHMLA: FLASHMLA_LIBRARY}
BOUND = "FlashAttention 3, unturned (a bound)"
_SPLITS = (0, 1, 16)  # of keys, in FlashAttention 3; 0: as it chooses
_WORKSPACE = 512 << 20  # bytes


@dataclass(frozen=True, eq=False)
class Way:
    """One way to ask: a call that gives [E, H, Dv] and log-sum-exps; these times `to_log_2` are of log 2.

    Log-sum-exps are [E, H], or [B, queries of each, H] where every sequence has equally many.
    """

    call: Callable[[], tuple[Tensor, Tensor]]
    to_log_2: float = 1.0


@dataclass(frozen=True, eq=False)
class Sequences:
    """The question to all of them: q [E, H, D], turned; keys [pages, page, G, D] and values [pages, page, G, Dv].

    Sequence b has queries indptr[b] to indptr[b + 1] and the first lengths[b] keys of its pages. `token` [E] says
    whose partials come out; None: all is there with the queries of the situation as they stand.
    """

    q: Tensor
    keys: Tensor
    values: Tensor
    indptr: np.ndarray  # [B + 1]
    pages: Sequence[np.ndarray]
    lengths: np.ndarray  # [B]
    token: np.ndarray | None = None
    is_causal: bool = False  # the last query is lined up with the last key
    rotary: int | None = None  # of latents: the dims of queries and keys that are in front of them

    @property
    def heads(self) -> tuple[int, int]:
        """H and G."""
        return self.q.shape[1], self.keys.shape[2]

    @property
    def scale(self) -> float:
        """The factor of scores (`Situation.call`)."""
        return float(self.q.shape[2] ** -0.5)

    def ints(self, x: np.ndarray) -> Tensor:
        """On the device, as all of them want them."""
        return torch.as_tensor(x, dtype=torch.int32, device=self.q.device)

    def page_table(self) -> Tensor:
        """The pages of every sequence, filled up with zeros."""
        table = np.zeros((len(self.pages), max(map(len, self.pages))), dtype=np.int32)
        for row, pages in zip(table, self.pages, strict=True):
            row[: len(pages)] = pages
        return self.ints(table)


class Outsiders:
    """The peers of these names, as far as a folder of `benchmarks/outsiders.py` has them; `missing` says why not."""

    def __init__(
        self, folder: Path | None, device: torch.device, names: Sequence[str] = NAMES
    ) -> None:
        self.missing: dict[str, str] = {}
        self._flashinfer: Any = None
        if folder is None or device.type != "cuda":
            why = "no folder with it (--outsiders)" if folder is None else "it runs on a GPU alone"
            self.missing = dict.fromkeys(names, why)
            return
        for name in names:
            if name == FLASHINFER:
                self._import_flashinfer(folder)
            else:
                self._load(name, folder / _LIBRARIES[name])

    def _load(self, name: str, library: Path) -> None:
        try:
            torch.ops.load_library(str(library))
        except OSError as error:
            self.missing[name] = f"its library cannot be loaded: {error}"

    def _import_flashinfer(self, folder: Path) -> None:
        # A kernel that was not compiled ahead is left out: compiling one takes minutes of the machine's time.
        os.environ["FLASHINFER_DISABLE_JIT"] = "1"
        sys.path.append(str(folder / FLASHINFER_PACKAGES))
        try:
            self._flashinfer = importlib.import_module("flashinfer")
        except ImportError as error:
            self.missing[FLASHINFER] = f"it cannot be imported: {error}"

    def peers(self, situation: Situation, family: str) -> dict[str, Callable[[], Peer | None]]:
        """How each peer that is there is prepared, at its best; None: it cannot say what is to be computed."""
        asked = None
        if situation.q.dtype == torch.bfloat16 and situation.q.shape[2] == HEAD_DIM:
            asked = whole(situation) if family == "prefills" else strips(situation)
        asking = {FA3: _of_fa3, FLASHINFER: self._of_flashinfer}
        return {
            name: partial(_peer, situation, asked, ways)
            for name, ways in asking.items()
            if name not in self.missing
        }

    def bound(self, situation: Situation) -> tuple[Peer, Tensor] | None:
        """FlashAttention 3 where all rows read the same keys, as one sequence: no merge, but another answer.

        A row's queries stand as they came, and not turned for each strip: nothing that a team could use, and less
        work than any right answer in as many launches. With it comes what it has to be, in float64.
        """
        asked = unturned(situation)
        if FA3 in self.missing or asked is None:
            return None
        work = _peer(situation, asked, _of_fa3)
        assert work is not None
        return work, plain(asked)

    def _of_flashinfer(self, asked: Sequences) -> list[Callable[[], Way]]:
        """Its batch wrapper with both sets of kernels, and the one that walks all work in one launch."""
        batch = [
            partial(flashinfer_batch, self._flashinfer, asked, kind) for kind in ("fa2", "fa3")
        ]
        return [*batch, partial(flashinfer_whole, self._flashinfer, asked)]


def _of_fa3(asked: Sequences) -> list[Callable[[], Way]]:
    dense = [partial(fa3_dense, asked)] if asked.is_causal else []
    return [*(partial(fa3, asked, splits) for splits in _SPLITS), *dense]


_Ways = Callable[[Sequences], list[Callable[[], Way]]]


def _peer(situation: Situation, asked: Sequences | None, ways: _Ways) -> Peer | None:
    """The fastest way, and the merge behind it."""
    if asked is None:
        return None
    way = fastest(ways(asked), situation.q.device)
    token = asked.token
    if token is None:
        return lambda: way.call()[0]
    if len(token) == len(situation.q):  # one partial a query
        back = torch.as_tensor(np.argsort(token), device=situation.q.device)
        is_sorted = bool(np.all(np.diff(token) > 0))
        return (lambda: way.call()[0]) if is_sorted else (lambda: way.call()[0][back])
    return merging(way, asked, token, len(situation.q))


def strips(situation: Situation) -> Sequences | None:
    """Every strip with the rows that read it. None if some reader of a strip sees fewer keys than another."""
    plan, store = situation.plan, situation.store
    entries = Entries.of(plan)
    first = entries.strip_indptr[:-1]
    reach = np.minimum(entries.high, entries.offset + 1)
    same = np.repeat(reach[first], np.diff(entries.strip_indptr))
    if entries.low.any() or not np.array_equal(reach, same):
        return None
    device = situation.q.device
    token, offset = (torch.as_tensor(x, device=device) for x in (entries.token, entries.offset))
    q = rotate(situation.q[token], offset, store.rope)
    keys, values = (x.unflatten(0, (-1, plan.page_size)) for x in (store.keys, store.values))
    ends, lengths, tables = entries.strip_indptr, reach[first], tuple(plan.reads.pages)
    shown = entries.token, False, _rotary(situation)
    return Sequences(q, keys, values, ends, tables, lengths, *shown)


def _rotary(situation: Situation) -> int | None:
    """The dims of a key in front of its latent; None: keys and values are apart."""
    store = situation.store
    return store.keys.shape[2] - store.value_dim if isinstance(store, LatentStore) else None


def unturned(situation: Situation) -> Sequences | None:
    """All rows over all strips as one sequence. None unless every row reads all, in whole pages."""
    asked = strips(situation)
    if asked is None:
        return None
    page, num_rows = situation.plan.page_size, situation.plan.num_tokens
    if (asked.lengths % page).any() or (np.diff(asked.indptr) != num_rows).any():
        return None
    used = [
        table[: length // page] for table, length in zip(asked.pages, asked.lengths, strict=True)
    ]
    ends, length = np.array([0, num_rows]), np.array([asked.lengths.sum()])
    return Sequences(situation.q, asked.keys, asked.values, ends, [np.concatenate(used)], length)


def plain(asked: Sequences) -> Tensor:
    """The right answer of one sequence of all rows, in float64 [T, H, D]."""
    num_heads, num_kv_heads = asked.heads
    pages = torch.as_tensor(asked.pages[0], device=asked.q.device)
    keys, values = (
        x[pages].flatten(0, 1)[: int(asked.lengths[0])].double() for x in (asked.keys, asked.values)
    )
    q = asked.q.double().unflatten(1, (num_kv_heads, num_heads // num_kv_heads))
    scores = torch.einsum("tgrd,ngd->tgrn", q, keys) / math.sqrt(q.shape[3])
    return torch.einsum("tgrn,ngd->tgrd", scores.softmax(-1), values).flatten(1, 2)


def whole(situation: Situation) -> Sequences:
    """Each row as one sequence over all that it reads, laid in pages anew, every key where it stands in the view.

    What all rows read first, at one place, they share page by page. The last query of a row is lined up with its last key.
    """
    plan, device, store = situation.plan, situation.q.device, situation.store
    page = plan.page_size
    slots, bases = zip(*(_read_by(situation, row) for row in range(plan.num_rows)), strict=True)
    lengths = np.array([len(each) for each in slots])
    shared = int(min(lengths))
    for row in range(1, plan.num_rows):
        same = slots[row][:shared] == slots[0][:shared]
        same &= bases[row][:shared] == bases[0][:shared]
        shared = int(np.argmin(same)) if not same.all() else shared
    shared = shared // page * page if plan.num_rows > 1 else 0
    runs, tables, num_pages = [np.arange(shared)], [], shared // page
    for length in lengths:
        own = -(-(length - shared) // page)
        runs.append(np.minimum(np.arange(shared, shared + own * page), length - 1))
        behind = np.arange(num_pages, num_pages + own)
        tables.append(np.concatenate((np.arange(shared // page), behind)))
        num_pages += own
    rows = (0, *range(plan.num_rows))

    def laid(of_rows: tuple[np.ndarray, ...]) -> Tensor:
        parts = [of_rows[row][run] for row, run in zip(rows, runs, strict=True)]
        return torch.as_tensor(np.concatenate(parts), device=device)

    at = laid(slots)
    keys, values = (
        x.unflatten(0, (-1, page))
        for x in (rotate(store.keys[at], laid(bases), store.rope), store.values[at])
    )
    q = rotate(situation.q, torch.as_tensor(plan.positions, device=device), store.rope)
    shown = None, plan.num_tokens > plan.num_rows, _rotary(situation)
    return Sequences(q, keys, values, plan.row_indptr, tables, lengths, *shown)


def _read_by(situation: Situation, row: int) -> tuple[np.ndarray, np.ndarray]:
    """The slots of all keys that a row reads, in the order of its view, and where each one's ruler begins there."""
    reads = situation.plan.reads
    strip = np.repeat(np.arange(len(reads.pages)), np.diff(reads.strip_indptr))
    mine = np.flatnonzero(reads.row == row)
    mine = mine[np.argsort(reads.base[mine] + reads.low[mine])]
    bounds = [(int(reads.low[n]), int(reads.high[n])) for n in mine]
    slots = [
        slots_of(situation.plan, int(strip[n]), *span) for n, span in zip(mine, bounds, strict=True)
    ]
    return np.concatenate(slots), np.repeat(reads.base[mine], [b - a for a, b in bounds])


def fa3(asked: Sequences, splits: int) -> Way:
    """FlashAttention 3 over these sequences, its schedule made ahead; of latents, in the form that it has for them."""
    ops = torch.ops._vllm_fa3_C
    none = None
    q, to_latents, keys = _for_fa3(asked)
    table, indptr, lengths = asked.page_table(), asked.ints(asked.indptr), asked.ints(asked.lengths)
    most_q, most_k = int(np.diff(asked.indptr).max()), int(asked.lengths.max())
    dims, page, causal = (q.shape[2], asked.values.shape[3]), keys.shape[1], asked.is_causal
    schedule = ops.get_scheduler_metadata(
        *(len(asked.pages), most_q, most_k, *asked.heads, *dims, q.dtype, lengths),
        *(indptr, none, none, none, none, page, 0, causal, -1, -1, False, splits, none, 0),
    )

    def attend() -> tuple[Tensor, Tensor]:
        out, lse, *_ = ops.fwd(
            *(q, keys, asked.values, none, none, to_latents, none, indptr, none, none, none),
            *(lengths, most_q, most_k, table, none, none, none, none, none, none, none, none),
            *(asked.scale, causal, -1, -1, 0.0, True, schedule, splits, none, 0, none, 1, 0, none),
        )
        return out, lse.T

    return Way(attend, 1 / math.log(2))


def fa3_dense(asked: Sequences) -> Way:
    """FlashAttention 3 over one sequence of `whole`, told nothing of pages.

    With pages it loads keys by tensor maps only where they are as long as its tiles, mostly of 128 keys; of 64 they are not.
    """
    assert len(asked.pages) == 1, "of one row"
    none = None
    q, to_latents, keys = _for_fa3(asked)
    length = int(asked.lengths[0])
    keys, values = (x.flatten(0, 1)[:length] for x in (keys, asked.values))
    ends, ends_of_keys = asked.ints(asked.indptr), asked.ints(np.array([0, length]))

    def attend() -> tuple[Tensor, Tensor]:
        out, lse, *_ = torch.ops._vllm_fa3_C.fwd(
            *(q, keys, values, none, none, to_latents, none, ends, ends_of_keys, none, none),
            *(none, len(q), length, none, none, none, none, none, none, none, none, none),
            *(asked.scale, asked.is_causal, -1, -1, 0.0, True, none, 0, none, 0, none, 1, 0, none),
        )
        return out, lse.T

    return Way(attend, 1 / math.log(2))


def _for_fa3(asked: Sequences) -> tuple[Tensor, Tensor | None, Tensor]:
    """Queries, those to latents where there are any, and keys, which then are rotated dims alone."""
    if asked.rotary is None:
        return asked.q, None, asked.keys
    at = asked.rotary
    return asked.q[..., :at], asked.q[..., at:], asked.keys[..., :at]


def _tables(asked: Sequences) -> tuple[Tensor, Tensor, Tensor]:
    """Where each sequence's pages begin, the pages, and the keys on each last one, as FlashInfer wants them."""
    page = asked.keys.shape[1]
    used = -(-asked.lengths // page)
    pages = [table[:count] for table, count in zip(asked.pages, used, strict=True)]
    on_last = asked.lengths - (used - 1) * page
    indptr = np.concatenate(([0], np.cumsum(used)))
    return asked.ints(indptr), asked.ints(np.concatenate(pages)), asked.ints(on_last)


def flashinfer_batch(flashinfer: Any, asked: Sequences, kind: str) -> Way:
    """FlashInfer's batch wrapper, planned."""
    workspace = torch.empty(_WORKSPACE, dtype=torch.uint8, device=asked.q.device)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend=kind)
    dtype = asked.q.dtype
    wrapper.plan(
        *(asked.ints(asked.indptr), *_tables(asked), *asked.heads),
        *(asked.q.shape[2], asked.keys.shape[1]),
        causal=asked.is_causal,
        q_data_type=dtype,
        kv_data_type=dtype,
    )
    return Way(partial(wrapper.run, asked.q, (asked.keys, asked.values), return_lse=True))


def flashinfer_whole(flashinfer: Any, asked: Sequences) -> Way:
    """FlashInfer's one launch that walks a list of all work, planned."""
    wrapper = flashinfer.BatchAttention("NHD", str(asked.q.device))
    dims = asked.q.shape[2]
    indptr, pages, _ = _tables(asked)
    wrapper.plan(
        *(asked.ints(asked.indptr), indptr, pages, asked.ints(asked.lengths), *asked.heads),
        *(dims, dims, asked.keys.shape[1]),
        causal=asked.is_causal,
        q_data_type=asked.q.dtype,
        kv_data_type=asked.q.dtype,
    )
    return Way(partial(wrapper.run, asked.q, (asked.keys, asked.values)))


def fastest(ways: list[Callable[[], Way]], device: torch.device) -> Way:
    """The way that takes least time, of those that can be prepared and run; one that cannot is told by a warning."""
    times: dict[Way, float] = {}
    failed = None
    for prepare in ways:
        try:
            way = prepare()
            times[way] = milliseconds(way.call, device)
        except RuntimeError as error:
            failed = error
            warnings.warn(f"a way to ask a peer does not run: {error}", stacklevel=2)
    if not times:
        raise RuntimeError(f"no way to ask it runs: {failed}")
    return min(times, key=times.__getitem__)


def merging(way: Way, asked: Sequences, token: np.ndarray, num_tokens: int) -> Peer:
    """A way, and one more launch that merges the partials of every query."""
    device = asked.q.device
    order = torch.as_tensor(np.argsort(token, kind="stable"), dtype=torch.int32, device=device)
    counts = np.bincount(token, minlength=num_tokens)
    indptr = asked.ints(np.concatenate(([0], np.cumsum(counts))))
    num_heads, dims = asked.q.shape[1], asked.values.shape[3]
    at_once = min(16, triton.next_power_of_2(int(counts.max())))

    def attend() -> Tensor:
        partials, lses = way.call()
        lses = lses if lses.dim() == 3 else lses[None]
        out = partials.new_empty(num_tokens, num_heads, dims)
        _merge_kernel[num_tokens, num_heads](
            *(partials, lses, order, indptr, out, lses.shape[1], *lses.stride(), way.to_log_2),
            HEADS=num_heads,
            DIMS=dims,
            AT_ONCE=at_once,
            num_warps=max(1, dims // 128),
        )
        return out

    return attend


@triton.jit  # type: ignore[untyped-decorator]
def _merge_kernel(  # type: ignore[no-untyped-def]
    partials,  # [E, H, Dv]
    lses,  # [B, queries, H], in any order of memory
    order,  # [E]: entries, those of a query one behind the other
    indptr,  # [T + 1]
    out,  # [T, H, Dv]
    queries,
    lse_sequence,
    lse_query,
    lse_head,
    to_log_2,
    HEADS: tl.constexpr,
    DIMS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Program (query, head)."""
    token, head = tl.program_id(0), tl.program_id(1)
    start, end = tl.load(indptr + token), tl.load(indptr + token + 1)
    p, d = tl.arange(0, AT_ONCE), tl.arange(0, DIMS)
    largest = -1e30
    total = 0.0
    summed = tl.zeros([DIMS], dtype=tl.float32)
    for first in range(start, end, AT_ONCE):
        is_here = first + p < end
        entry = tl.load(order + first + p, mask=is_here, other=0).to(tl.int64)
        of_lse = entry // queries * lse_sequence + entry % queries * lse_query + head * lse_head
        lse = tl.load(lses + of_lse, mask=is_here, other=-1e30) * to_log_2
        new = tl.maximum(largest, tl.max(lse, 0))
        weight = tl.where(is_here, tl.exp2(lse - new), 0.0)
        at = (entry * HEADS + head)[:, None] * DIMS + d[None, :]
        x = tl.load(partials + at, mask=is_here[:, None], other=0.0).to(tl.float32)
        kept = tl.exp2(largest - new)
        summed = summed * kept + tl.sum(x * weight[:, None], 0)
        total = total * kept + tl.sum(weight, 0)
        largest = new
    target = out + (token.to(tl.int64) * HEADS + head) * DIMS + d
    tl.store(target, (summed / total).to(out.dtype.element_ty))
