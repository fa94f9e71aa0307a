"""How a product of four-bit weights (`w4a16.py`) is cut for a device: integers alone, decided on the host.

A program has some outputs and some tokens, a warp a share of these. All programs of a launch are to be at work at once,
and as many as registers or shared memory allow: so inputs are cut into parts where tiles of outputs are few, and
shared evenly among programs with a ring where two parts have no room.

    span    inputs of which a warp has the weights on their way at a time
    part    neighbouring spans; the last program to arrive adds up all parts
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from manyhands.attention.launches import shared_memory
from manyhands.attention.work import cdiv
from manyhands.model import kernels
from manyhands.model.kernels import copies
from manyhands.model.kernels import w4a16_ring as ring


@dataclass(frozen=True)
class Tiles:
    """How the work is cut: what a warp has, warps of a program, parts, and what registers are spent on."""

    pairs: int = 1  # of 16 outputs: 1 or 2
    eights: int = 1  # of tokens
    row_warps: int = 4
    token_warps: int = 1
    ahead: int = 2  # spans of weights on their way without a ring: 1 or 2
    parts: int = 1
    hold: bool = True  # see `_hold`
    compact: bool = False  # one set of sums, whose unit changes from group to group
    stages: int = 0  # of a ring in shared memory, see `w4a16_ring`; 0: none
    programs: int = 0  # with equal shares of the spans of all tiles; 0: each tile has its parts

    @property
    def outputs(self) -> int:
        """Outputs of a program."""
        return 32 * self.pairs * self.row_warps

    @property
    def tokens(self) -> int:
        """Tokens of a program."""
        return 8 * self.eights * self.token_warps


_MOST_PARTS, _LEAST_SPANS, _LONG_PART = 32, 3, 20
# With a ring; the last one is what Triton and the hardware take beside it.
_LEAST_STAGES, _LEAST_RINGED, _BESIDE_RING = 3, 5, 3 << 10
# As tuned on an H100, product after product of whole layers (rings and long parts on an H200); beside
# each how many programs of it registers of a processor, or its shared memory, allow at once.
_RING = Tiles(row_warps=2, stages=4), 8
_RING_WIDE = Tiles(stages=4), 3
_RING_SIXTEEN = Tiles(eights=2, stages=3), 4
_EIGHT = Tiles(), 4
_SIXTEEN = Tiles(eights=2), 3
_SIXTEEN_WIDE = Tiles(eights=2, ahead=1), 4
_SIXTEEN_LONG = Tiles(eights=2, row_warps=2, ahead=1), 8
_THIRTY_TWO = Tiles(eights=2, token_warps=2, compact=True), 2
_THIRTY_TWO_MEDIUM = Tiles(eights=4, compact=True), 3
_THIRTY_TWO_WIDE = Tiles(pairs=2, eights=4, ahead=1, hold=False, compact=True), 2
_MORE = replace(_THIRTY_TWO_WIDE[0], row_warps=2, token_warps=2), 2


def choose_tiles(
    tokens: int,
    outputs: int,
    spans: int,
    device: torch.device,
    span: int = 128,
    group: int = 128,
) -> Tiles:
    """Tiles of which as many are at work at once as registers allow, and not one more."""
    processors = kernels.num_processors(device)

    def room(kind: tuple[Tiles, int]) -> tuple[int, int]:
        """Programs at once, and how many the outputs and tokens make."""
        tiles, at_once = kind
        rows = cdiv(outputs, tiles.outputs)
        return at_once * processors, rows * cdiv(tokens, tiles.tokens)

    def filled(kind: tuple[Tiles, int]) -> float:
        """How much of the room whole parts take; more than 1: not all are at work at once."""
        most, count = room(kind)
        return max(1, most // count) * count / most

    def ringed(kind: tuple[Tiles, int]) -> int:
        """Stages that its programs have room for."""
        tiles, at_once = kind
        stage = ring.stage_bytes(span, group, tiles.eights, tiles.row_warps)
        room = min(copies.MOST_KIB << 10, shared_memory(device) // at_once - _BESIDE_RING)
        return min(tiles.stages, room // stage)

    few, wide = (_RING, _RING_WIDE) if tokens <= 8 else (_RING_SIXTEEN, _RING_SIXTEEN)
    is_ringed = tokens <= 16 and ringed(few) >= _LEAST_STAGES
    if is_ringed:
        kind = few
    elif tokens <= 8:
        kind = _EIGHT
    elif tokens <= 16:
        most, count = room(_SIXTEEN)
        kind = _SIXTEEN_LONG if spans * count >= _LONG_PART * most else _SIXTEEN
        kind = kind if filled(_SIXTEEN) <= 1 else _SIXTEEN_WIDE
    elif tokens <= 32:
        is_wide = cdiv(outputs, _THIRTY_TWO_WIDE[0].outputs) >= processors
        kind = _THIRTY_TWO if filled(_THIRTY_TWO) >= 0.8 else _THIRTY_TWO_MEDIUM
        kind = _THIRTY_TWO_WIDE if is_wide else kind
    else:
        kind = _MORE
    most, count = room(kind)
    if tokens > 32 and filled(kind) < 0.7:
        most *= 2  # two rounds, nearly full
    if is_ringed and 2 * count > most:  # no room for two parts: shares instead
        return replace(wide[0], stages=ringed(wide), programs=wide[1] * processors)
    parts = max(1, min(most // count, _MOST_PARTS))
    longest = max(_LEAST_RINGED if is_ringed else _LEAST_SPANS, cdiv(spans, parts))
    stages = ringed(few) if is_ringed else 0
    return replace(kind[0], parts=cdiv(spans, longest), stages=stages)
