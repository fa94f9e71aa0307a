"""The one op in Triton: a few launches per layer, whatever the rows and however deep the sharing.

    append   rotated keys and values of all new tokens to paged memory; queries for keys in eight bits
    move     tokens to other slots, in all layers at once, between passes
    attend   the work list (work.py): every item loads its keys once for all rows that read them;
             large and small tiles are two launches of one kernel, side by side; lone rows have a
             kernel of their own, and on Hopper so have the largest tiles, latents and few rows
             in eight bits
    merge    the partials of every token, added up in float32; a token with one partial of a large
             tile needs none where a pass is a long prompt: its output is left at once

Works on CUDA devices in bfloat16, float16 and float32, and, slowly, on the CPU under Triton's interpreter
(TRITON_INTERPRET=1), which is how it is tested without a GPU. Kernels in Gluon, those for Hopper alone, have no
interpreter: without a GPU they are compiled, and their machine code is looked at (tests/test_compiled.py).

    T  new tokens      H  query heads      G  key/value heads      D, Dv  head dims      S  slots
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from manyhands.attention.attend import Backend, LayerCall, LeftNorms
from manyhands.attention.compile_count import start_counting
from manyhands.attention.eight_bits import EightBitStack, EightBitStore
from manyhands.attention.kernels.append import append_kernel
from manyhands.attention.kernels.attend import LOG2E, attend_kernel
from manyhands.attention.kernels.lone import lone_kernel
from manyhands.attention.kernels.merge import merge_kernel
from manyhands.attention.kernels.move import move_kernel
from manyhands.attention.kernels.overlap import launch_options
from manyhands.attention.kernels.queries import ENTRIES, queries_kernel
from manyhands.attention.latents import LatentStack, LatentStore
from manyhands.attention.launches import (
    BETWEEN_ROWS,
    BROAD,
    FEW_ROWS,
    LATENT_ROWS,
    SMALL_KEYS,
    SMALL_ROWS,
    SPECIALISED_BOX,
    SPECIALISED_ROWS,
    SPECIALISED_WIDTH,
    Launch,
    Launches,
    Merge,
    has_gluon,
    least_for_latents,
    least_shared_memory,
    shared_memory,
)
from manyhands.attention.prepared import Capacity, Prepared, frequencies, pack
from manyhands.attention.rotary import Rope
from manyhands.attention.store import LayerShape, LayerStore, Moved, StoreStack
from manyhands.attention.work import Occupancy, Tiling, begin_beside, cdiv, cut, power_of_two
from manyhands.cache.plan import Plan
from manyhands.native.plain import ITEM_FIELDS

_DOT = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}
_TENSOR_MAPS = (9, 0)  # compute capability
_MOST_ROWS = 128  # query heads per key/value head that one tile can hold
_MOST_BROAD_ROWS = 64  # the same where heads are broad
_LARGE_ROWS = 64  # of a large tile; where heads are small, twice as many
_LARGEST_HEAD = 512
_LARGEST_LATENT = 512
_LONG = 8192  # keys from which on tensor maps bring those of half a large tile faster
_LEAST_LEFT = 1024  # tokens of a pass that leaves outputs of most at once, at least
_HALVED_ROWS = 32  # of tiles alone whose partials have 16 bits, at least
_LATENT_ROWS = (64, 32)  # of a large tile: the first that fits
_LATENT_PART = 16  # query heads that read latents in one program, at most
# Dims of latents that specialised tiles know, beside as many rotated ones as a box is wide.
_LATENT_DIMS = (256, 512)
_LATENT_KEYS = 64  # of an iteration of these tiles
_LEAST_DIMS = 16  # of a product; heads with fewer are padded
_SPECIALISED_DIM = 128  # of heads, that all kernels of specialised warps know
_NARROW_DIM = 64  # of heads, that kernels of keys in 16 bits know besides: for prompts, without a second group of few rows
_TO_STAND = 512  # programs that make queries stand, unless they would have too many entries each
_URGENT = -1  # priority of a stream


class TritonBackend(Backend):
    """The backend for the layers of one network, on one device.

    How work is cut and launched was measured on an H200. One work list serves all layers, whatever their
    shapes: its tiles are cut for the most query heads that share a key head, and where fewer share one
    some rows of a tile stay empty. Launches are chosen for each shape.
    """

    name = "triton"
    takes_norms = True

    def __init__(
        self,
        layers: Sequence[LayerShape],
        dtype: torch.dtype,
        device: torch.device,
        tiling: Tiling | None = None,
        *,
        eight_bits: bool = False,
    ) -> None:
        """`dtype` is the network's. `eight_bits`: stores are `EightBitStore`s, which no tensor map loads."""
        start_counting()
        self.interpreted = device.type != "cuda"
        shapes = set(layers)
        stored = torch.int8 if eight_bits else dtype
        self.tiling = tiling or _tiling(shapes, dtype, stored, device)
        launches = {shape: _launches(self.tiling, shape, dtype, stored, device) for shape in shapes}
        self.launches = tuple(launches[shape] for shape in layers)
        self.is_expanded = all(shape.is_expanded for shape in shapes)
        self._side: torch.cuda.Stream | None = None
        self._stretches: dict[int, list[_Paired]] = {}

    def prepare(self, plan: Plan, device: torch.device) -> Prepared:
        """The work list of a plan, cut on the host and sent in one transfer."""
        work = cut(plan, self.tiling).leaving(self.tiling)
        capacity = Capacity.of(plan, work)
        buffer = torch.empty(
            capacity.num_integers, dtype=torch.int32, pin_memory=device.type == "cuda"
        )
        pack(plan, work, capacity, buffer.numpy())
        return Prepared(buffer.to(device, non_blocking=True), capacity, plan.page_size)

    def append(
        self,
        store: LayerStore,
        k: Tensor,
        v: Tensor,
        prepared: Prepared,
        left: tuple[Tensor, LeftNorms] | None = None,
    ) -> None:
        """See `Backend.append`."""
        q, norms = left or (None, None)
        self._write(store, k, v, prepared, q, norms, None)

    def run_layer(
        self,
        store: LayerStore,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        prepared: Prepared,
        call: LayerCall,
    ) -> Tensor:
        """See `Backend.run_layer`. Queries for keys in eight bits are made ready where these are written."""
        if not isinstance(store, EightBitStore) or call.query_scale is not None:
            return super().run_layer(store, q, k, v, prepared, call)
        q = _dense_heads(q)
        standing = _room_to_stand(q, prepared)
        self._write(store, k, v, prepared, q, call.norms, (standing, _scaling_of(call)))
        return self._read(store, standing, prepared, call)

    def _write(
        self,
        store: LayerStore,
        k: Tensor,
        v: Tensor,
        prepared: Prepared,
        q: Tensor | None,
        norms: LeftNorms | None,
        stands: tuple[Tensor, float] | None,
    ) -> None:
        """Keys and values to the store; queries normed in place, or to the room where they stand, by that scaling."""
        k, v = _dense_heads(k), _dense_heads(v)
        num_queries = 0 if q is None else q.shape[1]
        q = k if q is None else q
        assert q.stride(-1) == 1, "heads are read, and normed, where they lie"
        standing, scaling = stands or (q, 1.0)
        given = norms or LeftNorms((k, 0.0), (k, 0.0), 0)
        num_tokens, num_heads, _ = k.shape
        num_entries = len(standing) if stands else 0
        dims = _dims(store)
        head_dim, value_dim = dims["HEAD_DIM"], dims["VALUE_DIM"]
        cos, sin = prepared.tables(store.rope, head_dim // 2)
        heads = min(8, power_of_two(num_heads))
        blocks = cdiv(num_heads, heads) + cdiv(num_queries, heads)
        append_kernel[(max(num_tokens, _programs_to_stand(num_entries)), blocks)](
            k,
            v,
            store.keys,
            store.values,
            *_scales(store),
            cos[prepared.key_tables :],
            sin[prepared.key_tables :],
            prepared.key_offset,
            prepared.key_page,
            prepared.pages,
            *k.stride()[:2],
            *v.stride()[:2],
            q,
            *q.stride()[:2],
            given.query[0],
            given.key[0],
            given.query[1],
            given.key[1],
            cos,
            sin,
            prepared.entry_token,
            prepared.entry_high,
            standing,
            scaling,
            num_tokens,
            num_entries,
            NUM_QUERY_HEADS=num_queries,
            NORMED=norms is not None,
            STANDS=stands is not None,
            FORM=given.form,
            NUM_HEADS=num_heads,
            **dims,
            **_rotation(store.rope, head_dim),
            PAGE=prepared.page_size,
            HEADS=heads,
            HALF=power_of_two(head_dim // 2),
            VALUE=power_of_two(value_dim),
            EIGHT_BITS=isinstance(store, EightBitStore),
            MIXINGS=_mixings(store),
            num_warps=4,
            **launch_options(k.device),
        )

    def move(self, stack: StoreStack, moved: Moved) -> None:
        """See `Backend.move`. One launch for all layers that pair their dims alike."""
        for paired in self._paired(stack):
            self._move(paired, stack, moved)

    def _move(self, layers: _Paired, stack: StoreStack, moved: Moved) -> None:
        _, num_slots, num_heads, _ = stack.keys.shape
        dims = _dims(stack)
        head_dim, value_dim = dims["HEAD_DIM"], dims["VALUE_DIM"]
        radians = moved.shifts.offsets.float()[:, None, None] * layers.frequencies
        heads = min(8, power_of_two(num_heads))
        grid = (len(moved.sources), len(layers.kind), cdiv(num_heads, heads))
        move_kernel[grid](
            stack.keys[layers.first :],
            stack.values[layers.first :],
            *(scales[layers.first :] for scales in _scales(stack)),
            moved.sources,
            moved.targets,
            radians.cos(),
            radians.sin(),
            layers.kind,
            len(layers.frequencies),
            num_slots,
            NUM_HEADS=num_heads,
            **dims,
            **_rotation(layers.rope, head_dim),
            HEADS=heads,
            HALF=power_of_two(head_dim // 2),
            VALUE=power_of_two(value_dim),
            EIGHT_BITS=isinstance(stack, EightBitStack),
            MIXINGS=_mixings(stack.stores[layers.first]),
            num_warps=2,
            enable_fp_fusion=False,  # as plain PyTorch has it, to the bit
        )

    def _paired(self, stack: StoreStack) -> list[_Paired]:
        """The layers of a stack in stretches that pair their dims alike, looked up once."""
        key = stack.keys.data_ptr()
        if key not in self._stretches:
            self._stretches[key] = _stretches(stack)
        return self._stretches[key]

    def attend(self, store: LayerStore, q: Tensor, prepared: Prepared, call: LayerCall) -> Tensor:
        """See `Backend.attend`."""
        if call.query_scale is not None:
            q = call.query_scale.apply(q, prepared.position)
        q = _dense_heads(q)
        if isinstance(store, EightBitStore):
            q = _standing(store, q, prepared, call)
        return self._read(store, q, prepared, call)

    def _read(self, store: LayerStore, q: Tensor, prepared: Prepared, call: LayerCall) -> Tensor:
        """Queries meet the store: q [T, H, D] as the network makes them, or [E, H, D] as keys in eight bits stand."""
        capacity, num_heads, value_dim = prepared.capacity, q.shape[1], store.value_dim
        out = q.new_empty(capacity.tokens, num_heads, value_dim)
        # Large tiles first: they take longest, and small ones fill what they leave.
        lists = [
            (prepared.large, capacity.large_rows, True),
            (prepared.small, capacity.small_rows, False),
        ]
        lists = [one for one in lists if len(one[0])]
        beside = is_beside(capacity, self.tiling)
        # With one partial per token there is nothing to merge, but for a sink that kernels do not know.
        is_direct = capacity.most_partials == 1 and self._know_sinks(store, capacity, call)
        if is_direct:
            partials, lses = out, out
        else:
            shape = (capacity.partials, num_heads)
            have_factors = are_halved(capacity, self.tiling)
            dtype = torch.float16 if have_factors else torch.float32
            partials = q.new_empty(*shape, value_dim, dtype=dtype)
            lses = q.new_empty(*shape, *([2] if have_factors else []), dtype=torch.float32)
        is_one_stream = len(lists) == 1 or beside
        reading = _Reading(
            self, store, q, prepared, call, out, partials, lses, is_direct, is_one_stream
        )
        if is_one_stream or self.interpreted:
            for place, one in enumerate(lists):
                reading.launch(*one, is_beside=beside and place > 0)
        else:
            self._side_by_side(reading, *lists)
        if not is_direct:
            merge = Merge.of(capacity.most_partials, num_heads, value_dim)
            blocks = cdiv(num_heads, merge.heads), cdiv(value_dim, merge.dims)
            first, end = capacity.first_merged, capacity.end_merged or capacity.tokens
            merge_kernel[(end - first, *blocks)](
                partials,
                lses,
                prepared.partial_indptr[first:],
                out if call.sinks is None else call.sinks,
                out[first:],
                HAS_SINKS=call.sinks is not None,
                NUM_HEADS=num_heads,
                VALUE_DIM=value_dim,
                VALUE=merge.dims,
                AT_ONCE=merge.at_once,
                HEADS=merge.heads,
                num_warps=merge.num_warps,
                **launch_options(q.device, overlap=is_one_stream),
            )
        return out

    def _know_sinks(self, store: LayerStore, capacity: Capacity, call: LayerCall) -> bool:
        """Whether the kernels of such a pass give the layer's sinks their share, if it has any: those of tiles in 16 or 32 bits."""
        are_others = isinstance(store, EightBitStore | LatentStore) or capacity.small_rows == 1
        return call.sinks is None or not are_others

    def _side_by_side(self, reading: _Reading, large: _Items, small: _Items) -> None:
        """Both kinds of tiles on two streams at once."""
        device = reading.q.device
        if self._side is None:
            self._side = torch.cuda.Stream(device, priority=_URGENT)
        side, ours = self._side, torch.cuda.current_stream(device)
        side.wait_stream(ours)
        try:
            with torch.cuda.stream(side):
                reading.launch(*large)
            reading.launch(*small)
        finally:
            # All work behind waits for both kinds, and memory that they read goes to such work alone: it belongs to this stream.
            ours.wait_stream(side)


def _room_to_stand(q: Tensor, prepared: Prepared) -> Tensor:
    """For queries [T, H, D], once for each entry: [E, H, D]."""
    return q.new_empty(prepared.capacity.entries, *q.shape[1:])


def _programs_to_stand(num_entries: int) -> int:
    """Programs side by side for the queries of so many entries, padding among them."""
    return max(min(num_entries, _TO_STAND), -(-num_entries // int(ENTRIES.value)))


def _standing(store: EightBitStore, q: Tensor, prepared: Prepared, call: LayerCall) -> Tensor:
    """Queries q [T, H, D] as keys of the store stand, scaled: [E, H, D] (`kernels/queries.py`)."""
    _, num_heads, head_dim = q.shape
    cos, sin = prepared.tables(store.rope, head_dim // 2)
    heads = min(8, power_of_two(num_heads))
    standing = _room_to_stand(q, prepared)
    programs = _programs_to_stand(len(standing))
    queries_kernel[(programs, cdiv(num_heads, heads))](
        *(q, cos, sin, prepared.entry_token, prepared.entry_high, standing, *q.stride()[:2]),
        *(_scaling_of(call), len(standing)),
        NUM_HEADS=num_heads,
        HEAD_DIM=head_dim,
        **_rotation(store.rope, head_dim),
        HEADS=heads,
        HALF=power_of_two(head_dim // 2),
        MIXINGS=_mixings(store),
        num_warps=4,
        **launch_options(q.device),
    )
    return standing


def _scaling_of(call: LayerCall) -> float:
    """The factor of queries: scores are exponents of two then, unless a softcap bends them first."""
    return call.scaling if call.softcap is not None else call.scaling * LOG2E.value


def _mixings(store: LayerStore) -> int:
    """Stages in which kernels mix the dims of keys; 0: they do not."""
    if not isinstance(store, EightBitStore) or not store.is_mixed:
        return 0
    return store.keys.shape[-1].bit_length() - 1


@dataclass(frozen=True, eq=False)
class _Paired:
    """Neighbouring layers, from `first` on, that pair their dims alike: as `rope` says, if it is not None.

    `frequencies` [F, D / 2] are their different ones, `kind` [layers] says which is whose.
    """

    first: int
    rope: Rope | None
    frequencies: Tensor
    kind: Tensor


def _stretches(stack: StoreStack) -> list[_Paired]:
    head_dim, device = _dims(stack)["HEAD_DIM"], stack.keys.device
    ropes = [store.rope for store in stack.stores]
    found = []
    pairing = [tuple(_rotation(rope, head_dim).values()) for rope in ropes]
    for _, group in groupby(range(len(ropes)), key=pairing.__getitem__):
        layers = list(group)
        kinds = {id(ropes[layer]): ropes[layer] for layer in layers}
        index = {key: number for number, key in enumerate(kinds)}
        kind = [index[id(ropes[layer])] for layer in layers]
        rows = [frequencies(rope, head_dim // 2, device) for rope in kinds.values()]
        found.append(
            _Paired(
                layers[0],
                ropes[layers[0]],
                torch.stack(rows),
                torch.tensor(kind, dtype=torch.int32, device=device),
            )
        )
    return found


_Items = tuple[Tensor, int, bool]  # a list of items, rows of their tiles, whether these are large
# The kernels that attend differ in these: the function, how it is given keys and values, with tables of rotation where queries
# do not stand yet, and its options.
_Kernel = tuple[Any, tuple[Any, ...], dict[str, Any]]


class _Reading:
    """One layer that reads its store in one pass.

    tiles                     kernel                      keys and values come as
    of latents, on Hopper     specialised_latents_kernel  boxes
    large, on Hopper          specialised_kernel          boxes (in eight bits specialised_eight_bits_kernel)
    few small ones, likewise  small_eight_bits_kernel     tensors, values in words; in eight bits alone
    large, small              attend_kernel               tensors, and tensor maps of them
    small, of one row         lone_kernel                 tensors
    """

    def __init__(
        self,
        backend: TritonBackend,
        store: LayerStore,
        q: Tensor,
        prepared: Prepared,
        call: LayerCall,
        out: Tensor,
        partials: Tensor,
        lses: Tensor,
        is_direct: bool,
        is_one_stream: bool,
    ) -> None:
        self.backend, self.store, self.q = backend, store, q
        self.prepared, self.call = prepared, call
        self.launches = backend.launches[call.layer]
        self.is_latent = isinstance(store, LatentStore)
        num_heads = q.shape[1]
        tiling = backend.tiling
        self.num_kv_heads = (
            _num_parts(num_heads, _part_of(tiling)) if self.is_latent else store.num_kv_heads
        )
        self.group = num_heads // self.num_kv_heads
        # Of a chunk, lows are made by the launch in front, and kernels read these before their wait (`kernels/overlap.py`).
        self.overlaps = is_one_stream and call.chunk is None
        self.eight_bits = isinstance(store, EightBitStore)
        self.dims = _dims(store)
        head_dim = self.dims["HEAD_DIM"]
        self.tables = prepared.tables(store.rope, head_dim // 2)
        rotation = _rotation(store.rope, head_dim)
        self.interleaved = rotation["INTERLEAVED"]
        self.rotary_dim = rotation["ROTARY_DIM"]
        # The order in which `kernels/pairs.py` leaves dims is that of memory.
        self.is_whole = self.interleaved or self.rotary_dim == head_dim
        fits = prepared.page_size % self.launches.large.keys == 0
        self.is_mapped = self.launches.is_mapped and fits and self.is_whole and not self.eight_bits
        # Kernels know windows. A chunk is one, a superset that bounds their walks, and lows of its own.
        self.lows = prepared.lows(call.chunk)
        self.partials = partials, lses
        self.options = {
            "window": call.reach or 0,
            "HEAD_DIM": head_dim,
            "PAGE": prepared.page_size,
            "HAS_WINDOW": call.reach is not None,
            "DIRECT": is_direct,
        }
        self.out = out

    def launch(self, items: Tensor, rows: int, is_large: bool, *, is_beside: bool = False) -> None:
        """Launch the kernel for these items; `is_beside`: small ones, and large ones were launched in front."""
        num_items = len(items) // ITEM_FIELDS
        grid = self.num_kv_heads, num_items
        if self._are_latents(rows):
            kernel, given, options = self._latents()
            options["num_pieces"] = num_pieces = self.num_kv_heads * num_items
            grid = min(num_pieces, self.backend.tiling.num_processors), 1
        elif is_large and self._is_specialised():
            kernel, given, options = self._specialised(rows)
            options["num_pieces"] = num_pieces = self.num_kv_heads * num_items
            in_turns = self.prepared.capacity.in_turns
            most = self.backend.tiling.num_processors if in_turns else num_pieces
            grid = min(num_pieces, most), 1
        elif is_large:
            rows = power_of_two(rows)  # specialised ones may have others
            kernel, given, options = self._tiles(rows, self.launches.of_large(rows))
            options |= self._outputs(are_large=True)
        else:
            occupancy = self.prepared.capacity.occupancy
            if self._are_integers(rows, occupancy):
                kernel, given, options = self._integers(rows)
            elif rows == 1:
                kernel, given, options = self._lone(self.launches.lone)
            else:
                rows = power_of_two(rows)
                launch = self.launches.of_small(rows, occupancy, self.is_mapped)
                kernel, given, options = self._tiles(rows, launch)
                options |= self._outputs(are_large=False)
            if is_beside:  # lows were there before the large ones began
                overlapping = launch_options(self.q.device)
                options |= {"BESIDE": overlapping["OVERLAP"], **overlapping}
        prepared = self.prepared
        kernel[grid](
            *(self.q, *given, prepared.entry_token, prepared.entry_offset, self.lows),
            *(prepared.entry_high, prepared.entry_partial, items, prepared.pages),
            *(*self.partials, *self.q.stride()[:2]),
            **self.options,
            **options,
        )

    def _outputs(self, *, are_large: bool) -> dict[str, Any]:
        """Options of kernels that may leave outputs of some tokens, and give sinks their share of these."""
        leaves = are_large and self.prepared.capacity.end_merged > 0
        sinks = self.call.sinks if leaves or self.options["DIRECT"] else None
        return {
            "out": self.out,
            "sinks": self.out if sinks is None else sinks,
            "LEAVES": leaves,
            "HAS_SINKS": sinks is not None,
        }

    def _is_specialised(self) -> bool:
        """Whether large tiles are specialised, with this layer's scores."""
        tiling, page_size = self.backend.tiling, self.prepared.page_size
        fits = tiling.key_tile % SPECIALISED_BOX == page_size % SPECIALISED_BOX == 0
        is_right = self.prepared.capacity.is_specialised and fits and self.call.softcap is None
        if self.backend.is_expanded:
            return is_right and self.rotary_dim == SPECIALISED_WIDTH
        if self.eight_bits:  # its kernel has been measured without these alone
            is_other = self.options["DIRECT"] or self.options["HAS_WINDOW"]
            is_right = is_right and not is_other and self.q.dtype == torch.bfloat16
        return is_right and self.is_whole

    def _specialised(self, rows: int) -> _Kernel:
        from manyhands.attention.kernels import specialised, specialised_eight_bits

        options = {
            "GROUP": self.group,
            "NUM_KV_HEADS": self.num_kv_heads,
            "num_warps": 4,
            **launch_options(self.q.device, overlap=self.overlaps),
        }
        stored = self.store.keys, self.store.values
        if not self.eight_bits:
            options["scaling"] = _scaling_of(self.call)
            options["INTERLEAVED"] = self.interleaved
            options |= self._outputs(are_large=True)
            options["FEW"] = rows % (SPECIALISED_ROWS // 2)
            rotary = self.rotary_dim if self.backend.is_expanded else 0
            options["ROTARY"] = rotary
            tables = self.prepared.tables(self.store.rope, rotary // 2) if rotary else self.tables
            given = *map(specialised.boxes, stored), *tables
            return specialised.specialised_kernel, given, options
        maps = map(specialised_eight_bits.boxes, stored)
        options |= specialised_eight_bits.options(rows)
        kernel = specialised_eight_bits.specialised_eight_bits_kernel
        return kernel, (*maps, *_scales(self.store)), options

    def _are_latents(self, rows: int) -> bool:
        """Whether tiles of so many rows are specialised ones of latents, with this layer's scores."""
        tiling, page_size = self.backend.tiling, self.prepared.page_size
        fits = tiling.key_tile % SPECIALISED_BOX == page_size % SPECIALISED_BOX == 0
        has_kernel = self.is_latent and rows <= tiling.latent_rows
        return has_kernel and fits and self.is_whole and self.call.softcap is None

    def _latents(self) -> _Kernel:
        from manyhands.attention.kernels import specialised, specialised_latents

        options = {
            "GROUP": self.group,
            "NUM_PARTS": self.num_kv_heads,
            "LATENT": self.dims["VALUE_DIM"],
            "INTERLEAVED": self.interleaved,
            "scaling": _scaling_of(self.call),
            "num_warps": 8,
            **launch_options(self.q.device, overlap=self.overlaps),
        }
        given = specialised.boxes(self.store.keys), *self.tables
        return specialised_latents.specialised_latents_kernel, given, options

    def _are_integers(self, rows: int, occupancy: int) -> bool:
        """Whether small tiles of so many rows multiply integers, with this layer's scores."""
        fits = self.prepared.page_size % SMALL_KEYS == 0 and self.call.softcap is None
        has_kernel = self.backend.tiling.between_rows > 0 and rows in SMALL_ROWS
        return has_kernel and occupancy == Occupancy.FEW and fits and self.is_whole

    def _integers(self, rows: int) -> _Kernel:
        from manyhands.attention.kernels import small_eight_bits

        options = {
            "GROUP": self.group,
            "NUM_KV_HEADS": self.num_kv_heads,
            **small_eight_bits.options(rows),
            **launch_options(self.q.device, overlap=self.overlaps),
        }
        given = self.store.keys, self.store.values.view(torch.int32), *_scales(self.store)
        return small_eight_bits.small_eight_bits_kernel, given, options

    def _lone(self, launch: Launch) -> _Kernel:
        options = {"NUM_HEADS": self.num_kv_heads, **self._options_of(launch)}
        given = (self.store.keys, self.store.values, *_scales(self.store), *self.tables)
        return lone_kernel, given, options

    def _tiles(self, rows: int, launch: Launch) -> _Kernel:
        keys, values = self.store.keys, self.store.values
        is_mapped = launch.two_walks and self.is_mapped
        in_words = self._are_words() and not launch.transposed
        if in_words:
            keys, values = keys.view(torch.int16), values.view(torch.int16)
        maps = [_tensor_map(x, launch.keys) if is_mapped else None for x in (keys, values)]
        options = {
            "GROUP": self.group,
            "NUM_KV_HEADS": self.num_kv_heads,
            "BESIDE": False,
            "TWO_WALKS": launch.two_walks,
            "MAPPED": is_mapped,
            "TRANSPOSED": launch.transposed,
            "LATENT": self.is_latent,
            "WORDS": in_words,
            "KEY_STRIDE": self.dims["KEY_STRIDE"],
            "VALUE_STRIDE": self.dims["VALUE_STRIDE"],
            "DOT": tl.float32 if self.backend.interpreted else _DOT[self.q.dtype],
            "ROWS": rows,
            "num_stages": launch.num_stages,
        }
        given = (keys, values, *_scales(self.store), *maps, *self.tables)
        return attend_kernel, given, options | self._options_of(launch)

    def _are_words(self) -> bool:
        """Whether keys and values in eight bits can come two dims at a time, in the order of memory."""
        dims = self.dims["HEAD_DIM"], self.dims["VALUE_DIM"]
        are_powers = all(dim == power_of_two(dim) and dim >= 2 * _LEAST_DIMS for dim in dims)
        return self.eight_bits and self.is_whole and are_powers

    def _options_of(self, launch: Launch) -> dict[str, Any]:
        """Options of the kernels written in Triton."""
        head_dim, value_dim = self.dims["HEAD_DIM"], self.dims["VALUE_DIM"]
        return {
            "scaling": self.call.scaling,
            "softcap": self.call.softcap or 1.0,
            "VALUE_DIM": value_dim,
            "ROTARY_DIM": self.rotary_dim,
            "INTERLEAVED": self.interleaved,
            "HAS_SOFTCAP": self.call.softcap is not None,
            "EIGHT_BITS": self.eight_bits,
            "KEYS": launch.keys,
            "HALF": max(_LEAST_DIMS // 2, power_of_two(head_dim // 2)),
            "VALUE": max(_LEAST_DIMS, power_of_two(value_dim)),
            "num_warps": launch.num_warps,
            **launch_options(self.q.device, overlap=self.overlaps),
        }


def refusal(layers: Iterable[LayerShape], dtype: torch.dtype, device: torch.device) -> str | None:
    """Why these kernels cannot serve such layers on this device; None if they can."""
    if device.type != "cuda" and not _is_interpreting():
        return f"they run on a CUDA device, and the model is on {device.type}"
    if dtype not in _DOT:
        return f"they know bfloat16, float16 and float32, not {str(dtype).removeprefix('torch.')}"
    if (
        dtype == torch.bfloat16
        and device.type == "cuda"
        and torch.cuda.get_device_capability(device) < (8, 0)
    ):
        return "this GPU has no bfloat16 of its own (use --dtype float16)"
    shapes = list(dict.fromkeys(layers))
    for shape in shapes:
        if shape.is_latent:
            reason = _latent_refusal(shape, dtype, device)
            if reason is not None:
                return reason
            continue
        size = max(shape.head_dim, shape.value_dim)
        if shape.head_dim % 2 or size > _LARGEST_HEAD:
            size = shape.head_dim if shape.head_dim % 2 else size
            return f"the head size is {size}; they know even sizes up to {_LARGEST_HEAD}"
        if shape.group > _MOST_ROWS:
            return f"{shape.group} query heads share a key head; they know up to {_MOST_ROWS}"
    return _broad_refusal(shapes, dtype, device)


def _broad_refusal(
    shapes: Collection[LayerShape], dtype: torch.dtype, device: torch.device
) -> str | None:
    """Why broad heads cannot be served; None if they can, or there are none."""
    broad = [shape for shape in shapes if _is_broad(shape)]
    if not broad:
        return None
    largest = max(shape.group for shape in shapes)
    if largest > _MOST_BROAD_ROWS:
        return (
            f"{largest} query heads share a key head beside heads of more than {BROAD}; they know up to "
            f"{_MOST_BROAD_ROWS} there"
        )
    rows = max(_LARGE_ROWS, power_of_two(largest))
    least = max(least_shared_memory(rows, _head_bytes(shape, dtype)) for shape in broad)
    if least > shared_memory(device):
        size = max(max(shape.head_dim, shape.value_dim) for shape in broad)
        return (
            f"the head size is {size}, which takes {least} bytes of shared memory in "
            f"{str(dtype).removeprefix('torch.')}, and this GPU has {shared_memory(device)}"
        )
    return None


def _latent_refusal(shape: LayerShape, dtype: torch.dtype, device: torch.device) -> str | None:
    """Why the kernels cannot serve latents of this shape; None if they can."""
    rotary, latent = shape.head_dim - shape.value_dim, shape.value_dim
    if rotary % 2 or latent > _LARGEST_LATENT:
        return (
            f"its latents have {latent} dims beside {rotary} rotated ones; they know up to {_LARGEST_LATENT} "
            "beside an even number"
        )
    num_heads = shape.num_heads
    if num_heads == _num_parts(num_heads, _LATENT_PART):
        return f"{num_heads} query heads do not fall into equal parts of 2 to {_LATENT_PART}"
    least = least_for_latents(_LATENT_ROWS[-1], _head_bytes(shape, dtype))
    if least > shared_memory(device):
        return (
            f"latents of {latent} dims take {least} bytes of shared memory in "
            f"{str(dtype).removeprefix('torch.')}, and this GPU has {shared_memory(device)}"
        )
    return None


def are_halved(capacity: Capacity, tiling: Tiling) -> bool:
    """Whether partials have 16 bits and a factor (`kernels/merge.py`): half of the bytes that are written and read.

    So where the narrowest tiles are many, alone or beside large ones in one stream, where tiles of one kind are large enough, and
    where these are of latents.
    Measured with ordinary tiles; what is rare has float32, so a start compiles fewer kernels.
    """
    if tiling.latent_rows:
        return True
    if not tiling.halved_rows:
        return False
    are_many = capacity.small > 0 and capacity.occupancy == Occupancy.MANY
    if capacity.small and capacity.large:
        return are_many and is_beside(capacity, tiling)
    if capacity.large:
        return not capacity.is_specialised and capacity.large_rows >= tiling.halved_rows
    are_narrow = 1 < capacity.small_rows == tiling.least_rows
    return (are_many and are_narrow) or capacity.small_rows >= tiling.halved_rows


def is_beside(capacity: Capacity, tiling: Tiling) -> bool:
    """Whether small tiles of such a pass begin beside large ones, see `work.begin_beside`."""
    chosen = capacity.small_rows, capacity.large_rows, capacity.large
    return bool(capacity.small) and begin_beside(*chosen, tiling)


def _num_parts(num_heads: int, most: int) -> int:
    """The parts in which query heads read latents: as few as are equal and have `most` heads at most."""
    part = next(size for size in range(most, 0, -1) if num_heads % size == 0)
    return num_heads // part


def _part_of(tiling: Tiling) -> int:
    """The most query heads that read latents in one program."""
    return tiling.latent_rows or _LATENT_PART


def _heads(shape: LayerShape, most: int = 0) -> tuple[int, int]:
    """Programs side by side for an item, and the query heads of each: key/value heads, or parts that read latents.

    `most`: query heads of a part, at most; 0: as ordinary tiles have.
    """
    if not shape.is_latent:
        return shape.num_kv_heads, shape.group
    parts = _num_parts(shape.num_heads, most or _LATENT_PART)
    return parts, shape.num_heads // parts


def _head_bytes(shape: LayerShape, dtype: torch.dtype) -> int:
    """Bytes of one key and its value, as products take them; latents are both, and count once."""
    head_dim = shape.head_dim - shape.value_dim if shape.is_latent else shape.head_dim
    return dtype.itemsize * sum(map(power_of_two, (head_dim, shape.value_dim)))


def _dims(stored: LayerStore | StoreStack) -> dict[str, int]:
    """The dims of keys that kernels rotate, those of values, and how far apart both lie in memory.

    Of latents the former are k_pe, in front of the values in the same memory.
    """
    whole, value_dim = stored.keys.shape[-1], stored.values.shape[-1]
    is_latent = isinstance(stored, LatentStore | LatentStack)
    return {
        "HEAD_DIM": whole - value_dim if is_latent else whole,
        "VALUE_DIM": value_dim,
        "KEY_STRIDE": whole,
        "VALUE_STRIDE": whole if is_latent else value_dim,
    }


def _scales(stored: LayerStore | StoreStack) -> tuple[Tensor, Tensor]:
    """The scales of keys and of values; where there are none, something in their place that nothing reads."""
    if isinstance(stored, EightBitStore | EightBitStack):
        return stored.key_scales, stored.value_scales
    return stored.keys, stored.values


def _tiling(
    shapes: Collection[LayerShape], dtype: torch.dtype, stored: torch.dtype, device: torch.device
) -> Tiling:
    """One for layers of all these shapes.

    The layers with fewest key heads make fewest programs, so their strips are split for all.
    """
    is_short = dtype.itemsize == 2
    # Loading by tensor maps costs a program next to nothing: two small ones beat a large one then.
    are_large = is_short and all(
        max(shape.head_dim, shape.value_dim) <= 128 and not _can_map(shape, stored, device)
        for shape in shapes
    )
    are_mapped = is_short and all(_can_map(shape, stored, device) for shape in shapes)
    are_specialised = is_short and all(_can_specialise(shape, stored, device) for shape in shapes)
    # Small tiles that multiply integers want the same heads.
    are_integers = are_specialised and stored.itemsize == 1
    # In eight bits they were measured with bfloat16; layers with windows fall back to ordinary tiles of as many rows.
    converts = are_integers and dtype == torch.bfloat16
    are_narrow = are_specialised and any(shape.head_dim == _NARROW_DIM for shape in shapes)
    are_specialised = are_specialised and (converts or stored.itemsize == 2)
    are_latents = all(_can_specialise_latents(shape, stored, device) for shape in shapes)
    heads = [_heads(shape, LATENT_ROWS if are_latents else 0) for shape in shapes]
    cut = Tiling(
        group=max(group for _, group in heads),
        num_kv_heads=min(side_by_side for side_by_side, _ in heads),
        num_processors=_num_processors(device),
        # Eight bits are turned into sixteen between two loads: the more at a time, the less waiting.
        key_tile=128 if is_short and stored.itemsize == 1 else 64 if is_short else 32,
        large_rows=128 if are_large else _LARGE_ROWS,
        specialised_rows=SPECIALISED_ROWS if are_specialised else 0,
        few_rows=FEW_ROWS if are_specialised and not are_narrow else 0,
        # Prompts in eight bits keep their ordinary tiles: specialised ones were not measured for them.
        specialised_work=1 << (40 if converts else 18),
        specialised_reads=1 << (16 if converts else 40 if are_narrow else 18),
        narrow_rows=SPECIALISED_ROWS // 2 if converts else 0,
        between_rows=BETWEEN_ROWS if are_integers else 0,
        long_keys=_LONG if are_mapped else 0,
        can_begin_beside=are_mapped and launch_options(device)["OVERLAP"],
        halved_rows=_HALVED_ROWS if are_mapped else 0,
        least_left=_LEAST_LEFT if stored.itemsize > 1 else 0,
    )
    if are_specialised and all(shape.is_expanded for shape in shapes):
        return of_expanded(cut)
    if not any(shape.is_latent for shape in shapes):
        return cut
    if are_latents:
        return of_latents(cut)
    least = max(_head_bytes(shape, dtype) for shape in shapes if shape.is_latent)
    fitting = (n for n in _LATENT_ROWS if least_for_latents(n, least) <= shared_memory(device))
    rows = next(fitting, _LATENT_ROWS[-1])
    return replace(cut, key_tile=32, large_rows=rows, most_small_rows=rows)


def of_expanded(tiling: Tiling) -> Tiling:
    """One for the expanded form of latents: rows are those of prompts, and specialised tiles the only fast ones."""
    return replace(tiling, few_rows=0, specialised_work=0, specialised_reads=0)


def of_latents(tiling: Tiling) -> Tiling:
    """One whose tiles are all specialised ones of latents: of one size, and a program for each processor takes them in turns."""
    return replace(
        tiling,
        key_tile=_LATENT_KEYS,
        least_split=2 * _LATENT_KEYS,
        latent_rows=LATENT_ROWS,
        large_rows=LATENT_ROWS,
        least_rows=LATENT_ROWS,
        most_small_rows=LATENT_ROWS,
        least_left=0,
        splits_per_processor=1.0,
        keys_to_begin=100,
        keys_to_merge=4,
        keys_to_wait=0,
        share_alone=1.0,
    )


def _launches(
    tiling: Tiling,
    shape: LayerShape,
    dtype: torch.dtype,
    stored: torch.dtype,
    device: torch.device,
) -> Launches:
    head_bytes = _head_bytes(shape, dtype)
    if shape.is_latent:
        is_hopper = device.type != "cuda" or _is_hopper(device)
        return Launches.for_latents(tiling, head_bytes, device, is_hopper=is_hopper)
    found = Launches.fitting(
        tiling,
        head_bytes,
        device,
        is_mapped=_can_map(shape, stored, device),
        is_broad=_is_broad(shape),
    )
    return found.in_eight_bits() if stored.itemsize == 1 and not _is_broad(shape) else found


def _is_broad(shape: LayerShape) -> bool:
    return not shape.is_latent and max(shape.head_dim, shape.value_dim) > BROAD


def _num_processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count


def _is_interpreting() -> bool:
    return bool(getattr(triton.knobs.runtime, "interpret", False))


def _dense_heads(x: Tensor) -> Tensor:
    """X [T, heads, dim] with its last dim in one piece."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _can_map(shape: LayerShape, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether keys and values of such heads can come by tensor maps: as boxes that products take whole."""
    dims = (shape.head_dim, shape.value_dim)
    if _is_broad(shape):  # a box has at most 256 numbers a side
        return False
    if dtype.itemsize != 2 or any(d != max(_LEAST_DIMS, power_of_two(d)) for d in dims):
        return False
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= _TENSOR_MAPS


def _can_specialise(shape: LayerShape, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether there are specialised tiles: for Hopper's matrix units, heads of 128 dims, stored in 16 bits or eight.

    In 16 bits heads may have 64 dims, and keys in the expanded form of latents have the dims that are rotated besides.
    """
    dims = (shape.head_dim, shape.value_dim)
    rotary = SPECIALISED_WIDTH if shape.is_expanded else 0
    is_narrow = rotary == 0 and dims == (_NARROW_DIM, _NARROW_DIM)
    fits = is_narrow or dims == (rotary + _SPECIALISED_DIM, _SPECIALISED_DIM)
    least = 1 if rotary == 0 and not is_narrow else 2
    return fits and least <= dtype.itemsize <= 2 and has_gluon(device)


def serves_expanded(shape: LayerShape, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether prompts of latents are faster with keys and values of all heads, of this shape: where these have kernels."""
    return _can_specialise(replace(shape, is_expanded=True), dtype, device)


def _can_specialise_latents(shape: LayerShape, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether there are specialised tiles for latents of this shape, stored in 16 bits."""
    rotary = shape.head_dim - shape.value_dim
    fits = shape.is_latent and rotary == SPECIALISED_WIDTH and shape.value_dim in _LATENT_DIMS
    return fits and dtype.itemsize == 2 and has_gluon(device)


def _is_hopper(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] == _TENSOR_MAPS[0]


def _tensor_map(x: Tensor, keys: int) -> TensorDescriptor:
    """Paged memory [S, G, dim] as seen by the copy engine, which brings `keys` slots of one head at once."""
    return TensorDescriptor.from_tensor(x.view(len(x), -1), [keys, x.shape[-1]])


def _rotation(rope: Rope | None, head_dim: int) -> dict[str, Any]:
    """How dims pair up. Without positions nothing is rotated, and any pairing is as good."""
    if rope is None:
        return {"ROTARY_DIM": head_dim, "INTERLEAVED": False}
    return {"ROTARY_DIM": rope.rotary_dim, "INTERLEAVED": rope.interleaved}
