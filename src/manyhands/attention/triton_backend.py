"""The one op in Triton: a few launches per layer, whatever the rows and however deep the sharing.

    append   rotated keys and values of all new tokens to paged memory; queries for keys in eight bits
    move     tokens to other slots, in all layers at once, between passes
    attend   the work list (work.py): every item loads its keys once for all rows that read them;
             large and small tiles are two launches, side by side; which kernel serves them is
             the layer's to say (layer_reading.py)
    merge    the partials of every token, added up in float32; a token with one partial of a large
             tile needs none where a pass is a long prompt: its output is left at once

Works on CUDA devices in bfloat16, float16 and float32, and, slowly, on the CPU under Triton's interpreter
(TRITON_INTERPRET=1), which is how it is tested without a GPU. Kernels in Gluon, those for Hopper alone, have no
interpreter: without a GPU they are compiled, and their machine code is looked at (tests/test_compiled.py). Which layers can be served
at all, and how work is cut for them, stands in `attention/fitting.py`; what kernels are told of a store, in `attention/operands.py`.

    T  new tokens      H  query heads      G  key/value heads      D, Dv  head dims      S  slots      E  entries
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from manyhands.attention.attend import Backend, LayerCall, LeftNorms
from manyhands.attention.compile_count import start_counting
from manyhands.attention.eight_bits import EightBitStack, EightBitStore
from manyhands.attention.fitting import launches_of, tiling_of
from manyhands.attention.kernels.append import append_kernel
from manyhands.attention.kernels.merge import merge_kernel
from manyhands.attention.kernels.move import move_kernel
from manyhands.attention.kernels.overlap import launch_options
from manyhands.attention.kernels.queries import ENTRIES, queries_kernel
from manyhands.attention.latents import LatentStore
from manyhands.attention.launches import Merge
from manyhands.attention.layer_reading import LayerReading
from manyhands.attention.operands import (
    dims_of,
    mixings_of,
    rotation_of,
    scales_of,
    scaling_of,
    with_dense_heads,
)
from manyhands.attention.prepared import Capacity, Prepared, frequencies, pack
from manyhands.attention.rotary import Rope
from manyhands.attention.store import LayerShape, LayerStore, Moved, StoreStack
from manyhands.attention.work import Occupancy, Tiling, begin_beside, cdiv, cut, power_of_two
from manyhands.cache.plan import Plan

_TO_STAND = 512  # programs that make queries stand, unless they would have too many entries each
_URGENT = -1  # priority of a stream
_Items = tuple[Tensor, int, bool]  # a list of items, rows of their tiles, whether these are large


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
        self.tiling = tiling or tiling_of(shapes, dtype, stored, device)
        launches = {
            shape: launches_of(self.tiling, shape, dtype, stored, device) for shape in shapes
        }
        self.launches = tuple(launches[shape] for shape in layers)
        self.is_expanded = all(shape.is_expanded for shape in shapes)
        self._side: torch.cuda.Stream | None = None
        self._known_paired: dict[int, list[_Paired]] = {}

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
        q = with_dense_heads(q)
        standing = _room_to_stand(q, prepared)
        self._write(store, k, v, prepared, q, call.norms, (standing, scaling_of(call)))
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
        k, v = with_dense_heads(k), with_dense_heads(v)
        num_queries = 0 if q is None else q.shape[1]
        q = k if q is None else q
        assert q.stride(-1) == 1, "heads are read, and normed, where they lie"
        standing, scaling = stands or (q, 1.0)
        given = norms or LeftNorms((k, 0.0), (k, 0.0), 0)
        num_tokens, num_heads, _ = k.shape
        num_entries = len(standing) if stands else 0
        dims = dims_of(store)
        head_dim, value_dim = dims["HEAD_DIM"], dims["VALUE_DIM"]
        cos, sin = prepared.tables(store.rope, head_dim // 2)
        heads = min(8, power_of_two(num_heads))
        blocks = cdiv(num_heads, heads) + cdiv(num_queries, heads)
        append_kernel[(max(num_tokens, _programs_to_stand(num_entries)), blocks)](
            k,
            v,
            store.keys,
            store.values,
            *scales_of(store),
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
            **rotation_of(store.rope, head_dim),
            PAGE=prepared.page_size,
            HEADS=heads,
            HALF=power_of_two(head_dim // 2),
            VALUE=power_of_two(value_dim),
            EIGHT_BITS=isinstance(store, EightBitStore),
            MIXINGS=mixings_of(store),
            num_warps=4,
            **launch_options(k.device),
        )

    def move(self, stack: StoreStack, moved: Moved) -> None:
        """See `Backend.move`. One launch for all layers that pair their dims alike."""
        for paired in self._paired(stack):
            self._move(paired, stack, moved)

    def _move(self, layers: _Paired, stack: StoreStack, moved: Moved) -> None:
        _, num_slots, num_heads, _ = stack.keys.shape
        dims = dims_of(stack)
        head_dim, value_dim = dims["HEAD_DIM"], dims["VALUE_DIM"]
        radians = moved.shifts.offsets.float()[:, None, None] * layers.frequencies
        heads = min(8, power_of_two(num_heads))
        grid = (len(moved.sources), len(layers.kind), cdiv(num_heads, heads))
        move_kernel[grid](
            stack.keys[layers.first :],
            stack.values[layers.first :],
            *(scales[layers.first :] for scales in scales_of(stack)),
            moved.sources,
            moved.targets,
            radians.cos(),
            radians.sin(),
            layers.kind,
            len(layers.frequencies),
            num_slots,
            NUM_HEADS=num_heads,
            **dims,
            **rotation_of(layers.rope, head_dim),
            HEADS=heads,
            HALF=power_of_two(head_dim // 2),
            VALUE=power_of_two(value_dim),
            EIGHT_BITS=isinstance(stack, EightBitStack),
            MIXINGS=mixings_of(stack.stores[layers.first]),
            num_warps=2,
            enable_fp_fusion=False,  # as plain PyTorch has it, to the bit
        )

    def _paired(self, stack: StoreStack) -> list[_Paired]:
        """The layers of a stack, neighbours that pair their dims alike together; looked up once."""
        key = stack.keys.data_ptr()
        if key not in self._known_paired:
            self._known_paired[key] = _paired(stack)
        return self._known_paired[key]

    def attend(self, store: LayerStore, q: Tensor, prepared: Prepared, call: LayerCall) -> Tensor:
        """See `Backend.attend`."""
        if call.query_scale is not None:
            q = call.query_scale.apply(q, prepared.position)
        q = with_dense_heads(q)
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
        reading = LayerReading(
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

    def _side_by_side(self, reading: LayerReading, large: _Items, small: _Items) -> None:
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
        *(scaling_of(call), len(standing)),
        NUM_HEADS=num_heads,
        HEAD_DIM=head_dim,
        **rotation_of(store.rope, head_dim),
        HEADS=heads,
        HALF=power_of_two(head_dim // 2),
        MIXINGS=mixings_of(store),
        num_warps=4,
        **launch_options(q.device),
    )
    return standing


@dataclass(frozen=True, eq=False)
class _Paired:
    """Neighbouring layers, from `first` on, that pair their dims alike: as `rope` says, if it is not None.

    `frequencies` [F, D / 2] are their different ones, `kind` [layers] says which is whose.
    """

    first: int
    rope: Rope | None
    frequencies: Tensor
    kind: Tensor


def _paired(stack: StoreStack) -> list[_Paired]:
    head_dim, device = dims_of(stack)["HEAD_DIM"], stack.keys.device
    ropes = [store.rope for store in stack.stores]
    found = []
    pairing = [tuple(rotation_of(rope, head_dim).values()) for rope in ropes]
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
