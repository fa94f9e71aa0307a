"""Which layers the Triton kernels serve on a device, and how the work of such layers is cut and launched.

A network asks once, when it is loaded. `refusal` says in words why there is no kernel for a layer: a size of heads, a dtype, too little
shared memory. `tiling_of` makes one `Tiling` for all layers, by which every plan is cut (`attention/work.py`), and `launches_of` for each
shape of layer the `Launches` of its tiles. Both depend on what a device can do:

    tensor maps          from Hopper on, for heads whose dims are powers of two, stored in 16 bits
    specialised tiles    on Hopper, for heads of 128 dims, of 64, and those of expanded latents
    latents              on Hopper tiles of their own; elsewhere ordinary ones, as many rows as shared memory holds

Which kernel reads for a layer in a pass follows from these and from what the layer asks (`attention/layer_reading.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import torch
import triton
import triton.language as tl

from manyhands.attention.kernels.overlap import launch_options
from manyhands.attention.launches import (
    BETWEEN_ROWS,
    BROAD,
    FEW_ROWS,
    LATENT_ROWS,
    SPECIALISED_ROWS,
    SPECIALISED_WIDTH,
    Launches,
    has_gluon,
    least_for_latents,
    least_shared_memory,
    shared_memory,
)
from manyhands.attention.store import LayerShape
from manyhands.attention.work import Tiling, power_of_two

# The dtypes of networks, and in which their products are made.
DOT = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}
LEAST_DIMS = 16  # of a product; heads with fewer are padded
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
_SPECIALISED_DIM = 128  # of heads, that all kernels of specialised warps know
_NARROW_DIM = 64  # of heads, that kernels of keys in 16 bits know besides: for prompts, without a second group of few rows


def refusal(layers: Iterable[LayerShape], dtype: torch.dtype, device: torch.device) -> str | None:
    """Why these kernels cannot serve such layers on this device; None if they can."""
    if device.type != "cuda" and not _is_interpreting():
        return f"they run on a CUDA device, and the model is on {device.type}"
    if dtype not in DOT:
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
    if num_heads == num_parts(num_heads, _LATENT_PART):
        return f"{num_heads} query heads do not fall into equal parts of 2 to {_LATENT_PART}"
    least = least_for_latents(_LATENT_ROWS[-1], _head_bytes(shape, dtype))
    if least > shared_memory(device):
        return (
            f"latents of {latent} dims take {least} bytes of shared memory in "
            f"{str(dtype).removeprefix('torch.')}, and this GPU has {shared_memory(device)}"
        )
    return None


def tiling_of(
    shapes: Collection[LayerShape], dtype: torch.dtype, stored: torch.dtype, device: torch.device
) -> Tiling:
    """One for layers of all these shapes.

    The layers with fewest key heads make fewest programs, so stretches are split for these.
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


def launches_of(
    tiling: Tiling,
    shape: LayerShape,
    dtype: torch.dtype,
    stored: torch.dtype,
    device: torch.device,
) -> Launches:
    """How the tiles of this tiling are launched for layers of this shape, whose keys and values have the dtype `stored`."""
    head_bytes = _head_bytes(shape, dtype)
    if shape.is_latent:
        is_hopper = device.type != "cuda" or _is_hopper(device)
        return Launches.for_latents(tiling, head_bytes, device, is_hopper=is_hopper)
    found = Launches.fitting(
        tiling,
        head_bytes,
        device,
        is_mapped=_can_map(shape, stored, device),
        dims=max(shape.head_dim, shape.value_dim),
    )
    return found.in_eight_bits() if stored.itemsize == 1 and not _is_broad(shape) else found


def serves_expanded(shape: LayerShape, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether prompts of latents are faster with keys and values of all heads, of this shape: where these have kernels."""
    return _can_specialise(replace(shape, is_expanded=True), dtype, device)


def num_parts(num_heads: int, most: int) -> int:
    """The parts in which query heads read latents: as few as are equal and have `most` heads at most."""
    part = next(size for size in range(most, 0, -1) if num_heads % size == 0)
    return num_heads // part


def heads_of_part(tiling: Tiling) -> int:
    """The most query heads that read latents in one program."""
    return tiling.latent_rows or _LATENT_PART


def _heads(shape: LayerShape, most: int = 0) -> tuple[int, int]:
    """Programs side by side for an item, and the query heads of each: key/value heads, or parts that read latents.

    `most`: query heads of a part, at most; 0: as ordinary tiles have.
    """
    if not shape.is_latent:
        return shape.num_kv_heads, shape.group
    parts = num_parts(shape.num_heads, most or _LATENT_PART)
    return parts, shape.num_heads // parts


def _head_bytes(shape: LayerShape, dtype: torch.dtype) -> int:
    """Bytes of one key and its value, as products take them; latents are both, and count once."""
    head_dim = shape.head_dim - shape.value_dim if shape.is_latent else shape.head_dim
    return dtype.itemsize * sum(map(power_of_two, (head_dim, shape.value_dim)))


def _is_broad(shape: LayerShape) -> bool:
    return not shape.is_latent and max(shape.head_dim, shape.value_dim) > BROAD


def _can_map(shape: LayerShape, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether keys and values of such heads can come by tensor maps: as boxes that products take whole."""
    dims = (shape.head_dim, shape.value_dim)
    if _is_broad(shape):  # a box has at most 256 numbers a side
        return False
    if dtype.itemsize != 2 or any(d != max(LEAST_DIMS, power_of_two(d)) for d in dims):
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


def _can_specialise_latents(shape: LayerShape, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether there are specialised tiles for latents of this shape, stored in 16 bits."""
    rotary = shape.head_dim - shape.value_dim
    fits = shape.is_latent and rotary == SPECIALISED_WIDTH and shape.value_dim in _LATENT_DIMS
    return fits and dtype.itemsize == 2 and has_gluon(device)


def _is_hopper(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] == _TENSOR_MAPS[0]


def _num_processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count


def _is_interpreting() -> bool:
    return bool(getattr(triton.knobs.runtime, "interpret", False))
