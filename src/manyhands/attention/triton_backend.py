"""The one op in Triton: a few launches per layer, whatever the rows and however deep the sharing.

    append   rotated keys and values of all new tokens to paged memory
    attend   the work list (work.py): every item loads its keys once for all rows that read them;
             large and small tiles are two launches of one kernel, side by side; on Hopper, the
             largest have a kernel whose warps are specialised
    merge    the partials of every token, in float32

Works on CUDA devices in bfloat16, float16 and float32, and, slowly, on the CPU under Triton's
interpreter (TRITON_INTERPRET=1), which is how it is tested without a GPU.

    T  new tokens      H  query heads      G  key/value heads      D, Dv  head dims      S  slots
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from manyhands.attention.attend import LayerCall
from manyhands.attention.kernels.append import append_kernel
from manyhands.attention.kernels.attend import LOG2E, attend_kernel
from manyhands.attention.kernels.lone import lone_kernel
from manyhands.attention.kernels.merge import merge_kernel
from manyhands.attention.kernels.overlap import launch_options
from manyhands.attention.launches import SPECIALISED_BOX, SPECIALISED_ROWS, Launches, merge_launch
from manyhands.attention.prepared import Capacity, Prepared, pack
from manyhands.attention.rotary import Rope
from manyhands.attention.work import ITEM_FIELDS, Tiling, cut
from manyhands.cache.plan import Plan

_DOT = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}
_TENSOR_MAPS = (9, 0)  # compute capability
_MOST_ROWS = 128  # query heads per key/value head that one tile can hold
_LARGEST_HEAD = 256
_LEAST_DIMS = 16  # of a product; heads with fewer are padded
_LAST_GLUON = (3, 9)  # release of Triton that kernels/specialised.py is known to compile with
_SPECIALISED_DIM = 128  # of heads
_URGENT = -1  # priority of a stream


class TritonBackend:
    """The backend for one shape of layer, on one device.

    How work is cut and launched was measured on an H200.
    """

    name = "triton"

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dims: tuple[int, int],  # D, Dv
        dtype: torch.dtype,
        device: torch.device,
        tiling: Tiling | None = None,
    ) -> None:
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.interpreted = device.type != "cuda"
        processors = 4
        if not self.interpreted:
            processors = torch.cuda.get_device_properties(device).multi_processor_count
        is_short = dtype.itemsize == 2
        self.mapped = is_short and _can_map(head_dims, device)
        # Loading by tensor maps costs a program next to nothing: two small ones beat a large one then.
        is_wide = is_short and max(head_dims) <= 128 and not self.mapped
        self.tiling = tiling or Tiling(
            num_heads // num_kv_heads,
            num_kv_heads,
            processors,
            key_tile=64 if is_short else 32,
            large_rows=128 if is_wide else 64,
            specialised_rows=SPECIALISED_ROWS if _can_specialise(head_dims, dtype, device) else 0,
        )
        head = sum(triton.next_power_of_2(dim) for dim in head_dims)
        self.launches = Launches.fitting(self.tiling, head * dtype.itemsize, device)
        self._side: torch.cuda.Stream | None = None

    def prepare(self, plan: Plan, device: torch.device) -> Prepared:
        """The work list of a plan, cut on the host and sent in one transfer."""
        work = cut(plan, self.tiling)
        capacity = Capacity.of(plan, work)
        buffer = torch.empty(
            capacity.num_integers, dtype=torch.int32, pin_memory=device.type == "cuda"
        )
        pack(plan, work, capacity, buffer.numpy())
        return Prepared(buffer.to(device, non_blocking=True), capacity, plan.page_size)

    def append(
        self,
        k: Tensor,
        v: Tensor,
        keys: Tensor,
        values: Tensor,
        prepared: Prepared,
        rope: Rope | None,
    ) -> None:
        """Store the new tokens' k [T, G, D], not rotated yet, and v [T, G, Dv]."""
        k, v = _dense_heads(k), _dense_heads(v)
        num_tokens, num_heads, head_dim = k.shape
        cos, sin = prepared.tables(rope, head_dim // 2)
        heads = min(8, triton.next_power_of_2(num_heads))
        append_kernel[(num_tokens, triton.cdiv(num_heads, heads))](
            k,
            v,
            keys,
            values,
            cos[prepared.capacity.entries :],
            sin[prepared.capacity.entries :],
            prepared.key_angle,
            prepared.key_page,
            prepared.pages,
            *k.stride()[:2],
            *v.stride()[:2],
            NUM_HEADS=num_heads,
            HEAD_DIM=head_dim,
            VALUE_DIM=v.shape[-1],
            **_rotation(rope, head_dim),
            PAGE=prepared.page_size,
            HEADS=heads,
            HALF=triton.next_power_of_2(head_dim // 2),
            VALUE=triton.next_power_of_2(v.shape[-1]),
            num_warps=2,
            **launch_options(k.device),
        )

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        prepared: Prepared,
        call: LayerCall,
        rope: Rope | None,
    ) -> Tensor:
        """See `Backend.attend`."""
        q = _dense_heads(q)
        capacity = prepared.capacity
        out = q.new_empty(capacity.tokens, self.num_heads, values.shape[-1])
        # With one partial per token there is nothing to merge, unless a sink takes its share.
        is_direct = capacity.most_partials == 1 and call.sinks is None
        if is_direct:
            partials, lses = out, out
        else:
            shape = (capacity.partials, self.num_heads)
            partials = q.new_empty(*shape, values.shape[-1], dtype=torch.float32)
            lses = q.new_empty(shape, dtype=torch.float32)
        is_alone = self._attend_all(
            q, keys, values, prepared, call, rope, partials, lses, is_direct
        )
        if not is_direct:
            at_once, heads, num_warps = merge_launch(capacity.most_partials, self.num_heads)
            merge_kernel[(capacity.tokens, triton.cdiv(self.num_heads, heads))](
                partials,
                lses,
                prepared.partial_indptr,
                out if call.sinks is None else call.sinks,
                out,
                HAS_SINKS=call.sinks is not None,
                NUM_HEADS=self.num_heads,
                VALUE_DIM=values.shape[-1],
                VALUE=triton.next_power_of_2(values.shape[-1]),
                AT_ONCE=at_once,
                HEADS=heads,
                num_warps=num_warps,
                **launch_options(q.device, overlap=is_alone),
            )
        return out

    def _is_specialised(self, rows: int, prepared: Prepared, call: LayerCall) -> bool:
        """Whether large tiles of so many rows are specialised, with this layer's scores."""
        fits = self.tiling.key_tile % SPECIALISED_BOX == prepared.page_size % SPECIALISED_BOX == 0
        return rows == self.tiling.specialised_rows and fits and call.softcap is None

    def _attend_all(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        prepared: Prepared,
        call: LayerCall,
        rope: Rope | None,
        partials: Tensor,
        lses: Tensor,
        is_direct: bool,
    ) -> bool:
        """Both kinds of tiles; where there are both, on two streams at once. Whether one was enough."""
        head_dim, value_dim = q.shape[-1], values.shape[-1]
        cos, sin = prepared.tables(rope, head_dim // 2)
        rotation = _rotation(rope, head_dim)
        # The order in which `kernels/pairs.py` leaves dims is that of memory.
        is_whole = rotation["INTERLEAVED"] or rotation["ROTARY_DIM"] == head_dim
        is_mapped = self.mapped and prepared.page_size % self.launches.large.keys == 0 and is_whole
        lists = [
            (prepared.large, prepared.capacity.large_rows, True),
            (prepared.small, prepared.capacity.small_rows, False),
        ]
        lists = [one for one in lists if len(one[0])]

        def start(items: Tensor, rows: int, is_large: bool) -> None:
            num_items = len(items) // ITEM_FIELDS
            grid = (self.num_kv_heads, num_items)
            launch = self.launches.of_small(rows, prepared.capacity.crowding, is_mapped)
            if is_large:
                launch = self.launches.of_large(rows)
            where = (
                *(cos, sin, prepared.entry_token, prepared.entry_angle, prepared.entry_low),
                *(prepared.entry_high, prepared.entry_partial, items, prepared.pages),
                *(partials, lses, *q.stride()[:2]),
            )
            common = {
                "window": call.window or 0,
                "HEAD_DIM": head_dim,
                "INTERLEAVED": rotation["INTERLEAVED"],
                "PAGE": prepared.page_size,
                "HAS_WINDOW": call.window is not None,
                "DIRECT": is_direct,
            }
            if is_large and is_whole and self._is_specialised(rows, prepared, call):
                from manyhands.attention.kernels import specialised

                specialised.specialised_kernel[grid](
                    *(q, specialised.boxes(keys), specialised.boxes(values), *where),
                    scaling=call.scaling * LOG2E.value,
                    GROUP=self.tiling.group,
                    NUM_KV_HEADS=self.num_kv_heads,
                    num_warps=4,
                    enable_fp_fusion=True,
                    **common,
                )
                return
            options = {
                "scaling": call.scaling,
                "softcap": call.softcap or 1.0,
                **common,
                "VALUE_DIM": value_dim,
                "ROTARY_DIM": rotation["ROTARY_DIM"],
                "HAS_SOFTCAP": call.softcap is not None,
                "KEYS": launch.keys,
                "HALF": max(_LEAST_DIMS // 2, triton.next_power_of_2(head_dim // 2)),
                "VALUE": max(_LEAST_DIMS, triton.next_power_of_2(value_dim)),
                "num_warps": launch.num_warps,
                **launch_options(q.device, overlap=is_alone),
            }
            if rows == 1:
                lone_kernel[grid](
                    *(q, keys, values, *where),
                    NUM_HEADS=self.num_heads,
                    **options,
                )
                return
            maps = [None, None]
            if launch.two_walks and is_mapped:
                maps = [_tensor_map(x, launch.keys) for x in (keys, values)]
            attend_kernel[grid](
                *(q, keys, values, *maps, *where),
                GROUP=self.tiling.group,
                NUM_KV_HEADS=self.num_kv_heads,
                TWO_WALKS=launch.two_walks,
                MAPPED=launch.two_walks and is_mapped,
                TRANSPOSED=launch.transposed,
                DOT=tl.float32 if self.interpreted else _DOT[q.dtype],
                ROWS=rows,
                num_stages=launch.num_stages,
                **options,
            )

        is_alone = len(lists) == 1
        if is_alone or self.interpreted:
            for arguments in lists:
                start(*arguments)
            return is_alone
        # Large tiles first: they take longest, and small ones fill what they leave.
        if self._side is None:
            self._side = torch.cuda.Stream(q.device, priority=_URGENT)
        side = self._side
        side.wait_stream(torch.cuda.current_stream(q.device))
        with torch.cuda.stream(side):
            start(*lists[0])
        start(*lists[1])
        torch.cuda.current_stream(q.device).wait_stream(side)
        if not torch.cuda.is_current_stream_capturing():
            for tensor in (q, cos, sin, prepared.buffer, partials, lses):
                tensor.record_stream(side)
        return is_alone


def refusal(
    num_heads: int,
    num_kv_heads: int,
    head_dims: tuple[int, int],
    dtype: torch.dtype,
    device: torch.device,
) -> str | None:
    """Why these kernels cannot serve such a layer on this device; None if they can."""
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
    if head_dims[0] % 2 or max(head_dims) > _LARGEST_HEAD:
        size = head_dims[0] if head_dims[0] % 2 else max(head_dims)
        return f"the head size is {size}; they know even sizes up to {_LARGEST_HEAD}"
    if num_heads // num_kv_heads > _MOST_ROWS:
        return f"{num_heads // num_kv_heads} query heads share a key head; they know up to {_MOST_ROWS}"
    return None


def _is_interpreting() -> bool:
    return bool(getattr(triton.knobs.runtime, "interpret", False))


def _dense_heads(x: Tensor) -> Tensor:
    """X [T, heads, dim] with its last dim in one piece."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _can_map(head_dims: tuple[int, int], device: torch.device) -> bool:
    """Whether keys and values of such heads can come by tensor maps: as boxes that products take whole."""
    if any(dim != max(_LEAST_DIMS, triton.next_power_of_2(dim)) for dim in head_dims):
        return False
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= _TENSOR_MAPS


def _can_specialise(head_dims: tuple[int, int], dtype: torch.dtype, device: torch.device) -> bool:
    """Whether there are specialised tiles: for Hopper's matrix units, heads of 128 dims, 16 bits."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != _TENSOR_MAPS[0]:
        return False
    if head_dims != (_SPECIALISED_DIM, _SPECIALISED_DIM) or dtype.itemsize != 2:
        return False
    # Its language, Gluon, is young, and names come and go.
    return tuple(map(int, triton.__version__.split(".")[:2])) <= _LAST_GLUON


def _tensor_map(x: Tensor, keys: int) -> TensorDescriptor:
    """Paged memory [S, G, dim] as seen by the copy engine, which brings `keys` slots of one head at once."""
    return TensorDescriptor.from_tensor(x.view(len(x), -1), [keys, x.shape[-1]])


def _rotation(rope: Rope | None, head_dim: int) -> dict[str, Any]:
    """How dims pair up. Without positions nothing turns, and any pairing is as good."""
    if rope is None:
        return {"ROTARY_DIM": head_dim, "INTERLEAVED": False}
    return {"ROTARY_DIM": rope.rotary_dim, "INTERLEAVED": rope.interleaved}
