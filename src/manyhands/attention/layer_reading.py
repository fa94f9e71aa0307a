"""One layer that reads its store in one pass: which kernel takes a list of tiles, and what it is given.

A pass has a list of large tiles, a list of small ones, or both (`attention/work.py`), and each is one launch. How they were cut says
much of which kernel serves them, and the layer has the last word: a softcap, a window or a rotation of some dims alone has ordinary
kernels. So kernels that only some tiles have are asked first, and `attend_kernel` serves all the rest.

    T  new tokens      E  entries      P  partials      H  query heads      D, Dv  head dims      S  slots      G  key/value heads
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from manyhands.attention.attend import LayerCall
from manyhands.attention.eight_bits import EightBitStore
from manyhands.attention.fitting import DOT, LEAST_DIMS, heads_of_part, num_parts
from manyhands.attention.kernels.attend import attend_kernel
from manyhands.attention.kernels.lone import lone_kernel
from manyhands.attention.kernels.overlap import launch_options
from manyhands.attention.latents import LatentStore
from manyhands.attention.launches import (
    SMALL_KEYS,
    SMALL_ROWS,
    SPECIALISED_BOX,
    SPECIALISED_ROWS,
    SPECIALISED_WIDTH,
    Launch,
    Launches,
)
from manyhands.attention.operands import dims_of, rotation_of, scales_of, scaling_of
from manyhands.attention.prepared import Prepared
from manyhands.attention.store import LayerStore
from manyhands.attention.work import Occupancy, Tiling, power_of_two
from manyhands.native.plain import ITEM_FIELDS

# The kernels that attend differ in these: the function, how it is given keys and values, with tables of rotation where queries
# do not stand yet, and its options.
_Kernel = tuple[Any, tuple[Any, ...], dict[str, Any]]


class KernelBackend(Protocol):
    """The backend whose layers read (`attention/triton_backend.py`), as far as a reading asks for it."""

    tiling: Tiling
    launches: tuple[Launches, ...]  # by the numbers of layers
    is_expanded: bool  # all layers have the expanded form of latents
    interpreted: bool  # by Triton, on a CPU


class LayerReading:
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
        backend: KernelBackend,
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
        """`q` [T, H, D], or [E, H, D] as keys in eight bits stand; `out` [T, H, Dv] in its dtype.

        `partials` [P, H, Dv] in float32 with `lses` [P, H], or in float16 with a factor each beside its log-sum-exp, `lses` [P, H, 2].
        `is_direct`: every token has one partial, which is left in `out`; the other two are `out` then.
        `is_one_stream`: all launches of the layer stand behind each other, so that they may overlap.
        """
        self.backend, self.store, self.q = backend, store, q
        self.prepared, self.call = prepared, call
        self.launches = backend.launches[call.layer]
        self.is_latent = isinstance(store, LatentStore)
        num_heads = q.shape[1]
        tiling = backend.tiling
        self.num_kv_heads = (
            num_parts(num_heads, heads_of_part(tiling)) if self.is_latent else store.num_kv_heads
        )
        self.group = num_heads // self.num_kv_heads
        # Of a chunk, lows are made by the launch in front, and kernels read these before their wait (`kernels/overlap.py`).
        self.overlaps = is_one_stream and call.chunk is None
        self.eight_bits = isinstance(store, EightBitStore)
        self.dims = dims_of(store)
        head_dim = self.dims["HEAD_DIM"]
        self.tables = prepared.tables(store.rope, head_dim // 2)
        rotation = rotation_of(store.rope, head_dim)
        self.interleaved = rotation["INTERLEAVED"]
        self.rotary_dim = rotation["ROTARY_DIM"]
        # Whether pairs that are rotated and put side by side stand in the order of memory, see `kernels/pairs.py`.
        self.is_whole = self.interleaved or self.rotary_dim == head_dim
        fits = prepared.page_size % self.launches.large.keys == 0
        self.is_mapped = self.launches.is_mapped and fits and not self.eight_bits
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
            options["scaling"] = scaling_of(self.call)
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
        return kernel, (*maps, *scales_of(self.store)), options

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
            "scaling": scaling_of(self.call),
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
        given = self.store.keys, self.store.values.view(torch.int32), *scales_of(self.store)
        return small_eight_bits.small_eight_bits_kernel, given, options

    def _lone(self, launch: Launch) -> _Kernel:
        options = {"NUM_HEADS": self.num_kv_heads, **self._options_of(launch)}
        given = (self.store.keys, self.store.values, *scales_of(self.store), *self.tables)
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
            "DOT": tl.float32 if self.backend.interpreted else DOT[self.q.dtype],
            "ROWS": rows,
            "num_stages": launch.num_stages,
        }
        given = (keys, values, *scales_of(self.store), *maps, *self.tables)
        return attend_kernel, given, options | self._options_of(launch)

    def _are_words(self) -> bool:
        """Whether keys and values in eight bits can come two dims at a time, in the order of memory."""
        dims = self.dims["HEAD_DIM"], self.dims["VALUE_DIM"]
        are_powers = all(dim == power_of_two(dim) and dim >= 2 * LEAST_DIMS for dim in dims)
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
            "HALF": max(LEAST_DIMS // 2, power_of_two(head_dim // 2)),
            "VALUE": max(LEAST_DIMS, power_of_two(value_dim)),
            "num_warps": launch.num_warps,
            **launch_options(self.q.device, overlap=self.overlaps),
        }


def _tensor_map(x: Tensor, keys: int) -> TensorDescriptor:
    """Paged memory [S, G, dim] as seen by the copy engine, which brings `keys` slots of one head at once."""
    return TensorDescriptor.from_tensor(x.view(len(x), -1), [keys, x.shape[-1]])
