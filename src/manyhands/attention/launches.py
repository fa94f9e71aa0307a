"""How the attention kernels are compiled and launched: for every kind of tile what was best on an H200.

Stages are what a program has on its way at the same time. How many there can be is limited by the shared
memory that one program may have, so other devices may get fewer.

All was measured with heads of 128 dims. Those of more, up to 256 (Gemma 3's, Qwen3.5's), have what spills no registers, and was best of a
few with 4 k tokens.

Broad heads, of more than 256 dims (Gemma 4's), are launched by arithmetic and not by measurement: fewer keys an
iteration, until a tile fits, and twice the warps, so that a thread holds as many of a tile's sums as with 256.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from manyhands.attention.work import WALKING_ROWS, Occupancy, Tiling, power_of_two

SPECIALISED_ROWS = 128  # of a tile of kernels/specialised.py
FEW_ROWS = 64 + 16  # of a tile whose second group of warps has no more than sixteen, transposed
SMALL_ROWS = (16, 24, 32)  # of tiles of kernels/small_eight_bits.py
BETWEEN_ROWS = 24  # the one that is no power of two
SMALL_KEYS = 32  # that a warp of such a tile takes at once; pages hold whole ones
SPECIALISED_BOX = 64  # slots that it brings at once; pages and splits hold whole boxes
SPECIALISED_WIDTH = 64  # dims of these: the widest that can be swizzled
LATENT_ROWS = 64  # of a tile of kernels/specialised_latents.py
BROAD = 256  # dims of a head, beyond which it is broad
_FULL = 128  # the same, beyond which a warp has no room for sixteen rows: their sums take as many registers as a thread has
_HOPPER = 9  # compute capability, its first number
_LAST_GLUON = (3, 9)  # release of Triton that kernels in Gluon are known to compile with
_LEAST_KEYS = 16  # of an iteration: products want so many
_RESERVED = 8192  # bytes of shared memory for all else
_BESIDE_LATENTS = 16384  # the same beside latents
_LATENT_STAGES = 2  # one takes more shared memory: loads pass through registers then
_STAGE_OF_MANY = 32768  # bytes of keys and values that a program has on its way at a time, where many share a processor
_TRANSPOSED_ROWS = 64  # of a tile of Hopper's matrix units
_MERGED_DIMS = 128  # of broad heads, that one program merges


@dataclass(frozen=True)
class Launch:
    """How an attention kernel is compiled, see kernels/attend.py."""

    num_warps: int  # of a program
    num_stages: int  # iterations of the inner loop that are on their way at the same time
    keys: int  # of one iteration
    two_walks: bool = False  # first the keys that all rows see: without masks, by tensor maps
    transposed: bool = False  # keys and values on the left of the products


@dataclass(frozen=True)
class Launches:
    """How one shape of layer is launched: one launch for every kind of tile."""

    is_mapped: bool  # tensor maps can bring its keys and values
    large: Launch
    small: Launch
    few: Launch  # tiles of 16 rows, by their occupancy
    many: Launch
    many_doubled: Launch  # tiles of 32 rows, if there are many
    transposed: Launch  # the same, if there are few and tensor maps bring their keys
    wide: Launch  # the widest of the small tiles
    many_wide: Launch  # the same, if there are many
    lone: Launch

    @classmethod
    def fitting(
        cls,
        tiling: Tiling,
        head_bytes: int,
        device: torch.device,
        *,
        is_mapped: bool = False,
        dims: int = _FULL,
    ) -> Launches:
        """For this tiling, if a key and its value take `head_bytes`, and the larger one has so many dims."""
        is_broad = dims > BROAD
        rows = max(tiling.large_rows, power_of_two(tiling.group))  # of a large tile
        room = shared_memory(device) - _RESERVED - rows * head_bytes // 2
        keys = tiling.key_tile
        if is_broad:
            keys = min(32, keys)
            while keys > _LEAST_KEYS and keys * head_bytes > room:
                keys //= 2
        most = max(1, room // (keys * head_bytes))  # stages that fit
        stages, warps = min(3, most), 2 if is_broad else 1
        is_short = keys * head_bytes <= _STAGE_OF_MANY
        found = cls(
            is_mapped=is_mapped,
            large=Launch(4 * warps, stages, keys, two_walks=True),
            small=Launch(4, stages, keys),
            few=Launch(4, min(4, most), keys),
            many=Launch(warps, stages, min(16, keys)),
            many_doubled=Launch(2 * warps, stages, min(32, keys)),
            transposed=Launch(4, stages, keys, two_walks=True, transposed=True),
            wide=Launch(4 * warps, stages, min(32, keys)),
            many_wide=Launch(4 * warps, stages, keys if is_short else min(32, keys)),
            lone=Launch(warps, 1, 8),
        )
        return found.of_full() if _FULL < dims <= BROAD else found

    def of_full(self) -> Launches:
        """For heads of more than 128 dims: twice the warps and half the keys of an iteration, wherever registers were spilled else."""
        keys = min(32, self.small.keys)
        many = Launch(4, 2, keys)
        return replace(
            self,
            large=replace(self.large, num_warps=8),
            few=replace(self.few, keys=keys, num_stages=min(3, 2 * self.few.num_stages)),
            many=many,
            many_doubled=many,
            many_wide=replace(many, num_warps=8),
        )

    @classmethod
    def for_latents(
        cls, tiling: Tiling, latent_bytes: int, device: torch.device, *, is_hopper: bool
    ) -> Launches:
        """For this tiling, if a latent and the rotated key beside it take `latent_bytes`.

        Chosen by what the compiler says, not by time: registers do not spill. 64 sums of 512 dims fit eight
        warps on Hopper if they stand transposed, and elsewhere if they do not.
        """
        rows, keys = tiling.large_rows, tiling.key_tile
        room = shared_memory(device) - _BESIDE_LATENTS - rows * latent_bytes
        while keys > _LEAST_KEYS and _LATENT_STAGES * keys * latent_bytes > room:
            keys //= 2
        stages = _LATENT_STAGES
        two_walks = rows >= _TRANSPOSED_ROWS and not is_hopper
        transposed = rows >= _TRANSPOSED_ROWS and is_hopper
        widest = Launch(8, stages, keys, two_walks=two_walks, transposed=transposed)
        few, small = Launch(4, stages, keys), Launch(8, stages, keys)
        return cls(
            is_mapped=False,
            large=widest,
            small=small,
            few=few,
            many=Launch(4, stages, min(16, keys)),
            many_doubled=small,
            transposed=few,
            wide=widest,
            many_wide=widest,
            lone=few,
        )

    def in_eight_bits(self) -> Launches:
        """For keys and values in eight bits: half the bytes, so more stages fit; masks apart; four warps are faster than eight.

        Where tiles are many, a stage of twice the keys takes the same room. Other programs hide what turning them into 16 bits takes.
        """
        stages = min(3, 2 * self.small.num_stages)  # of half the bytes
        small = replace(self.small, num_stages=stages, two_walks=True)
        doubled, wide = self.many_doubled, replace(small, num_warps=4, keys=min(64, small.keys))
        return replace(
            self,
            large=replace(self.large, keys=min(64, self.large.keys), num_stages=stages),
            small=small,
            few=small,
            many=replace(self.many, keys=min(32, self.small.keys), two_walks=True),
            many_doubled=replace(
                doubled,
                keys=min(64, self.small.keys),
                num_stages=min(2, doubled.num_stages),
                two_walks=True,
            ),
            wide=wide,
            many_wide=replace(wide, num_stages=1),
        )

    def of_large(self, rows: int) -> Launch:
        """For large tiles of so many rows."""
        return replace(self.large, num_warps=8) if rows >= 128 else self.large

    def of_small(self, rows: int, occupancy: int, is_mapped: bool) -> Launch:
        """For small tiles of so many rows; `is_mapped`: tensor maps bring their keys and values."""
        if rows == 1:
            return self.lone
        if occupancy == Occupancy.MANY:
            # They hide each other's waiting: the more at a time, the better. A warp has sixteen rows, and shares what is brought.
            return {16: self.many, 32: self.many_doubled, 64: self.many_wide}.get(rows, self.small)
        if rows == 16 and occupancy == Occupancy.FEW:
            return self.few  # they do not: the more each has on its way, the better
        if rows == WALKING_ROWS and occupancy == Occupancy.FEW and is_mapped:
            return self.transposed  # fewer instructions an iteration, more to begin and to end with
        return self.wide if rows == 64 else self.small


def least_shared_memory(rows: int, head_bytes: int) -> int:
    """Bytes that a program for `rows` of broad heads needs: these, and the keys and values of one iteration."""
    return _RESERVED + rows * head_bytes // 2 + _LEAST_KEYS * head_bytes


def least_for_latents(rows: int, latent_bytes: int) -> int:
    """Bytes of shared memory that a program for `rows` queries of latents needs."""
    return _BESIDE_LATENTS + (rows + _LATENT_STAGES * _LEAST_KEYS) * latent_bytes


class Merge(NamedTuple):
    """How partials are merged, see kernels/merge.py."""

    at_once: int  # partials that a program looks at together
    heads: int  # of a program
    dims: int
    num_warps: int

    @classmethod
    def of(cls, most_partials: int, num_heads: int, value_dim: int) -> Merge:
        """For so many partials of a token, at most, and heads of that size. The dims of broad ones are shared by several programs."""
        at_once = min(64, max(2, power_of_two(most_partials)))
        heads = max(1, min(4, 16 // at_once, power_of_two(num_heads)))
        dims = power_of_two(value_dim)
        dims = _MERGED_DIMS if dims > BROAD else dims
        return cls(at_once, heads, dims, 2 if at_once > 32 else 1)


@functools.cache
def has_gluon(device: torch.device) -> bool:
    """Whether kernels in Gluon for Hopper's matrix units run here. The language is young: names come and go."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != _HOPPER:
        return False
    import triton

    return tuple(map(int, triton.__version__.split(".")[:2])) <= _LAST_GLUON


@functools.cache
def shared_memory(device: torch.device) -> int:
    """Bytes that one program may have; without a GPU, plenty."""
    if device.type != "cuda":
        return 1 << 18
    about = torch.cuda.get_device_properties(device)
    return int(about.shared_memory_per_block_optin)  # type: ignore[attr-defined]  # stubs lack it
