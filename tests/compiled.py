"""Every kernel compiled for a GPU on a machine that has none.

    echo 90 attention | python -m tests.compiled          compute capability 9.0: Hopper
    echo 90 products every | python -m tests.compiled     all launches, not the cover alone
    echo 90 products anew | python -m tests.compiled      the cover, and nothing is taken from the file
    echo 90 products keys | python -m tests.compiled      the keys of the cover, and nothing is compiled
    python -m tests.compiled write                        the file anew, in some three minutes

The functions that launch kernels are called as ever, with tensors on the CPU; a driver that has no device
stands in for Triton's, and launching is left out. A cover of the launches is compiled: every fact of a launch,
as a constant's value or an argument's type, is in one of the cover. Of those for an older device than Hopper only some are
asked for (`asked_of_older`). One line of JSON per kernel says what its machine code holds; a last one holds the facts that
were asked for. Runs in a process of its own, because Triton decides on import whether it interprets.

What was found in machine code stands in a file (`compiled.json`), by the key under which Triton keeps it: source of a
kernel and of what it calls, facts of a launch, the compiler itself. What has no entry is compiled.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.compiler.compiler import get_cache_invalidating_env_vars, make_backend
from triton.runtime import driver
from triton.runtime.cache import get_cache_key, triton_key
from triton.runtime.jit import JITCallable, JITFunction

from manyhands.attention import fitting, launches, strips
from manyhands.attention.attend import LayerCall, LeftNorms
from manyhands.attention.eight_bits import EightBitStack, EightBitStore
from manyhands.attention.kernels import overlap
from manyhands.attention.latents import LatentStore
from manyhands.attention.rotary import Rope, Rotations
from manyhands.attention.store import LayerShape, LayerStore, Moved, StoreStack
from manyhands.attention.triton_backend import TritonBackend
from manyhands.attention.work import Tiling
from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.planner import Planner
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.model.kernels import (
    delta,
    delta_many,
    drawing,
    experts,
    experts_many,
    gate_up,
    gated,
    late,
    likeliest,
    mxfp4,
    mxfp4_many,
    norms,
    one_shot,
    ring,
    rows,
    skinny,
    w4a16,
    w4a16_tiles,
)
from manyhands.model.kernels.experts import MOST_TOKENS, ExpertGate, ExpertWeights, choose
from manyhands.model.quantised.linear import Float8Linear
from manyhands.model.quantised.w4a16 import Int4Linear
from manyhands.model.routing import ExpertGroups, Scoring
from manyhands.model.waves import Wave
from tests import machine_code
from tests.machine_code import ROWS
from tests.no_device import NoDevice

HOPPER = 90
CAPABILITIES = (HOPPER, 86)
PARTS = ("attention", "products")
FILE = Path(__file__).with_suffix(".json")
# DeltaProducts in Triton's own words: by which matrix unit, and with how much memory, is the device's matter.
DOTS = {
    *("_skinny", "_expert_gated", "_expert_down", "attend_kernel"),
    *("_delta_solve", "_delta_scan"),
    *("forward_kernel", "of_queries_kernel", "of_keys_kernel"),
}
RINGS = "whether there is a ring:"
RUN: Any = JITFunction.run
CPU, DTYPE = torch.device("cpu"), torch.bfloat16
HEADS, KV_HEADS, DIM, PAGE = 8, 2, 64, 64


class Launch(NamedTuple):
    """A kernel with its arguments and options, and the facts by which the compiler tells it from other launches."""

    kernel: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    facts: frozenset[str]


def note_launches(capability: int, part: str) -> dict[str, Launch]:
    """All that this part launches on such a device, each kind of it once; nothing else is done."""
    driver.set_active(NoDevice(capability))
    noted: dict[str, Launch] = {}
    asked: list[str] = []

    def ask(*, compile: dict[str, Any], **others: Any) -> bool:
        asked.append(compile["specialization_data"])
        return True  # Triton does not compile it

    def note(self: Any, *arguments: Any, **options: Any) -> None:
        options["warmup"] = True
        RUN(self, *arguments, **options)
        found = facts_of(self.__name__, asked.pop())
        if self.__name__ in ROWS:
            found |= {f"{RINGS} {self.__name__} {options['STAGES'] > 0}"}
        launch = Launch(self, arguments, options, found)
        noted.setdefault(" ".join(sorted(launch.facts)), launch)

    triton.knobs.runtime.jit_cache_hook = ask
    JITFunction.run = note
    for room in (*(skinny, gate_up, ring, launches, fitting, w4a16, mxfp4, experts, experts_many),):
        room.shared_memory = lambda device: MOST_SHARED[capability]  # type: ignore[attr-defined]
    overlap._can_overlap = lambda device: capability >= HOPPER  # type: ignore[assignment]
    {"attention": attention, "products": products}[part](capability)
    return noted


def facts_of(name: str, specialization: str) -> frozenset[str]:
    """Types, constants, alignments and options, each with the kernel's name."""
    said = json.loads(specialization)
    named = [
        *said["signature"].items(),
        *zip(said["constant_keys"], said["constant_vals"], strict=True),
        *zip(said["attrs_keys"], said["attrs_vals"], strict=True),
        *said["options"].items(),
    ]
    return frozenset(f"{name} {key} {value!r}" for key, value in named)


def facts(launches: Iterable[Launch]) -> frozenset[str]:
    """Facts of all of these launches."""
    return frozenset[str]().union(*(launch.facts for launch in launches))


def asked_of_older(launches: Sequence[Launch], of_hopper: Iterable[Launch]) -> frozenset[str]:
    """The facts that Hopper's launches have not, as the device and that nothing overlaps; of kernels of `DOTS` all facts.

    DeltaProducts in assembly are those of Hopper, with a ring and without.
    """
    own = facts(launch for launch in launches if launch.kernel.__name__ in DOTS)
    rings = {fact for fact in facts(launches) if fact.startswith(RINGS)}
    return own | rings | facts(launches) - facts(of_hopper)


def cover(launches: Sequence[Launch], missing: frozenset[str]) -> list[Launch]:
    """Launches that have these facts; each time the one with most that are missing, the first of equals.

    The first ones may be spared in the end, for others have all of it.
    """
    asked = missing
    chosen = []
    while missing:
        best = max(launches, key=lambda launch: len(launch.facts & missing))
        chosen.append(best)
        missing -= best.facts
    for launch in tuple(chosen):
        others = [other for other in chosen if other is not launch]
        if asked <= facts(others):
            chosen = others
    return chosen


class _Met(Exception):
    """Raised in the place of compiling."""


def compile_all(launches: Sequence[Launch], known: Mapping[str, Any]) -> None:
    """Say what is made of each, compiled if it is not known, with the key by which it is known and whether it was."""
    for launch in launches:
        name, key = launch.kernel.__name__, key_of(launch)
        if (found := known.get(key)) is None:
            found = machine_code.looked_at(name, launch.options, compiled(launch))
        about = {"kernel": name, "facts": sorted(launch.facts)}
        about |= {"key": key, "is_known": key in known}
        print(json.dumps(about | found), flush=True)


def compiled(launch: Launch) -> Any:
    """A kernel's code for a launch."""
    triton.knobs.runtime.jit_cache_hook = None
    return RUN(launch.kernel, *launch.arguments, **launch.options)


def key_of(launch: Launch) -> str:
    """By Triton's own: of a kernel and all that it calls, a launch's facts, and the compiler; and of how its code is looked at."""
    key = ""

    def meet(source: Any, target: Any, options: dict[str, Any]) -> Any:
        nonlocal key
        backend = make_backend(target)
        options = backend.parse_options({**options, **source.parse_options()})
        variables = get_cache_invalidating_env_vars()
        key = get_cache_key(source, backend, options, env_vars=variables)
        raise _Met

    compiles, launch.kernel.compile = launch.kernel.compile, meet
    try:
        compiled(launch)
    except _Met:
        pass
    finally:
        launch.kernel.compile = compiles
    return digest(key, Path(machine_code.__file__).read_text(encoding="utf-8"))


def digest(*texts: str) -> str:
    """A short name of these."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


MOST_SHARED = {90: 232448, 86: 101376}  # bytes that one program may have


def zeros(*shape: int) -> torch.Tensor:
    """Contents are nobody's business here."""
    return torch.zeros(*shape, dtype=DTYPE)


def left_norms(size: int) -> LeftNorms:
    """Norms of heads of this size."""
    return LeftNorms((zeros(size), 1e-6), (zeros(size), 1e-6), 0)


def of_states(dim: int, heads: int, key_heads: int, dtype: torch.dtype = DTYPE) -> None:
    """Rows of one token and of more through a layer that keeps a state."""
    channels, row = (2 * key_heads + heads) * dim, torch.arange(2)
    wave = Wave((0, 1, 2, 6), (1, 1, 4, 70), torch.tensor([0, 1, 2, 6]), *[row.repeat(2)] * 2)
    tokens = zeros(76, channels).to(dtype)
    taps, inputs = zeros(channels, 4).to(dtype), zeros(3, channels, 3).to(dtype)
    small, of_heads = zeros(76, heads).to(dtype), zeros(heads).to(dtype)
    weights = of_heads, of_heads, zeros(dim).to(dtype)
    gate, states = zeros(76, heads, dim).to(dtype), torch.zeros(3, heads, dim, dim)
    made = delta.DeltaProducts(tokens, gate, small, small, *weights, key_heads, 1e-6)
    out = gate.flatten(1).clone()
    for own in (None, row):
        delta.convolve(tokens, taps, inputs, row, row, tokens.clone(), own)
        delta.step(made, states, row, row, out, own)
    slots = wave.sources, wave.targets
    delta_many.convolve(tokens, taps, inputs, *slots, wave.chunks, tokens.clone())
    for cut in wave.cuts:
        delta_many.rule(made, states, *slots, *cut, out)


def products(capability: int) -> None:
    """The kernels between attention and attention; float8 only where it is multiplied."""
    for is_early in (False, True):
        norm = (zeros(256), 1e-6)
        norms.join(zeros(2, 256), zeros(2, 256), norm, norm, 0, is_early=is_early)
    addresses, places = torch.zeros(2, dtype=torch.int64), torch.zeros(4, dtype=torch.int32)
    meeting = one_shot.Meeting(1, addresses, places, places[:1], 256)
    for each in (meeting, meeting._replace(flags=addresses)):
        norm = zeros(256), 1e-6
        one_shot.meet(each, zeros(2, 256), zeros(2, 256), norm, norm, 0)
    norms.norm_heads(zeros(2, 2, 64), zeros(2, 1, 64), left_norms(64))
    gated.gated(zeros(2, 512), "silu")
    likeliest.likeliest(zeros(2, 256))
    late.fill(torch.zeros(4, dtype=torch.int32), torch.zeros(3, dtype=torch.int64)[1:])
    drawing.draw(zeros(2, 256), torch.zeros(len(drawing.PARAMETERS), 2, dtype=torch.float64))
    of_states(128, 32, 16)
    of_states(128, 48, 16)
    of_states(128, 32, 16, torch.float16)
    if capability >= 90:
        rows.quantise_rows(zeros(2, 256), torch.float8_e4m3fn)
        gate_up.gated_product(zeros(128, 256), zeros(256, 256), None, "silu")
        for tokens in (64, 128):
            for groups in (1, 2, 3):
                x, weight = zeros(tokens, 256), zeros(384, 256)
                ring.gated_product(x, weight, zeros(384), "silu", groups)
            ring.product(zeros(tokens, 256), zeros(256, 256), zeros(256))
            parts = ring.product_in_parts(zeros(tokens, 256), zeros(256, 256), zeros(256))
        norms.join(zeros(128, 256), parts, None, (zeros(256), 1e-6), 0)
    arrived = torch.zeros(8, dtype=torch.int32)
    skinny.product(zeros(2, 256), zeros(192, 256), zeros(192), arrived)
    skinny.product(
        zeros(2, 256), zeros(192, 256), None, arrived, "silu", skinny.Tiles(64, 64, parts=2)
    )
    if capability >= 90:
        float8 = Float8Linear.from_weight(zeros(192, 256), zeros(192))
        values = zeros(2, 256).to(torch.float8_e4m3fn), torch.ones(2)
        skinny.product(
            values[0], float8.weight, float8.bias, arrived, scales=(float8.scales, values[1])
        )
    layer = Int4Linear.from_weight(torch.randn(128, 256), None)
    packed = (layer.packed, layer.scales, layer.zeros, None, layer.group, layer.arrived)
    w4a16.product(zeros(2, 256), *packed, w4a16_tiles.Tiles(parts=2))
    ringed = w4a16_tiles.Tiles(row_warps=2, stages=4, parts=2)
    w4a16.product(zeros(2, 256), *packed, ringed)
    scales, offsets = (each.repeat_interleave(layer.group // 32, 0) for each in packed[1:3])
    fine = (layer.packed, scales, offsets, None, 32, layer.arrived)
    w4a16.product(zeros(2, 256), *fine, replace(ringed, stages=3))
    shared = w4a16_tiles.Tiles(stages=4, programs=2)
    w4a16.product(zeros(2, 256), *packed, shared, activation="silu")
    w4a16.product(zeros(16, 256), *packed, w4a16_tiles.Tiles(eights=2, stages=3, parts=2))
    w4a16.product(zeros(64, 256), *packed)
    for tokens in (2, 16, 64):
        w4a16.product(zeros(tokens, 256), *packed, w4a16_tiles.Tiles(parts=2), activation="silu")
    w4a16.dequantise(*packed[:3], layer.group, DTYPE)
    packed_experts = [
        mxfp4.PackedWeights(
            torch.zeros(4, outputs // 64, inputs // 32, 256, dtype=torch.int32),
            torch.zeros(4, outputs // 64, inputs // 32, 16, dtype=torch.int32),
            zeros(4, outputs),
        )
        for outputs, inputs in ((256, 256), (256, 128))
    ]
    corrections = torch.zeros(160)
    of_experts = (None, ExpertGroups(8, 3, 1), ExpertGroups(8, 4, 2))
    for among in of_experts:
        for correction in (None, corrections, corrections.bfloat16()):
            scoring = Scoring(correction is not None, among, added=1e-20, scale=2.5)
            choose(torch.zeros(3, 160), 8, scoring=scoring, correction=correction)
    choose(zeros(3, 4), 1, even=False)
    room = torch.zeros(2, 192)  # in float32, of inputs of 16 bits
    skinny.product(zeros(2, 256), zeros(192, 256), None, arrived, out=room)
    gate = ExpertGate(clamped=(1.702, 7.0))
    for tokens, eights in ((1, 1), (4, 1), (16, 2), (40, 2), (40, 4)):
        index = torch.zeros(tokens, 2, dtype=torch.int64)
        x, shares = zeros(tokens, 256), zeros(tokens, 2)
        mxfp4.experts(x, index, shares, packed_experts[0], packed_experts[1], gate, eights=eights)
    index = torch.zeros(40, 2, dtype=torch.int64)
    for wide in mxfp4_many.TILES if capability >= 90 else ():
        x, shares = zeros(40, 256), zeros(40, 2)
        mxfp4_many.experts(x, index, shares, packed_experts[0], packed_experts[1], gate, wide)
    index = torch.zeros(MOST_TOKENS + 1, 2, dtype=torch.int64)
    x, shares = zeros(len(index), 256), zeros(len(index), 2)
    for wide in mxfp4_many.PROMPT_TILES if capability >= 90 else ():
        mxfp4_many.experts(x, index, shares, packed_experts[0], packed_experts[1], gate, wide)
    plain = ExpertWeights(zeros(4, 256, 128)), ExpertWeights(zeros(4, 128, 128))
    turned = ExpertWeights(zeros(4, 128, 256), zeros(4, 256)), plain[1]._replace(bias=zeros(4, 128))
    # Looked up, and listed.
    for tokens, pair, own_gate in ((2, plain, ExpertGate()), (40, turned, gate)):
        index = torch.zeros(tokens, 2, dtype=torch.int64)
        x, shares = zeros(tokens, 128), zeros(tokens, 2)
        experts.experts(x, index, shares, *pair, own_gate)
        for tiles in experts_many.TILES if capability >= HOPPER else ():
            experts_many.experts(x, index, shares, *pair, own_gate, tiles)
    # No tensor maps: rows of a second weight do not begin at multiples of 16 bytes.
    apart = ExpertWeights(zeros(4, 264, 128)), ExpertWeights(zeros(4, 128, 132))
    if capability >= HOPPER:
        experts_many.experts(x, index, shares, *apart, ExpertGate(), experts_many.TILES[0])
    index = torch.zeros(MOST_TOKENS + 1, 2, dtype=torch.int64)
    experts.list_pairs(index, 4)
    for shares in (torch.zeros(3, 8), zeros(3, 8)):
        experts.distinct(torch.zeros(3, 8, dtype=torch.int64), shares, 160)


def attention(capability: int) -> None:
    """A prompt long enough for large tiles, then a team of two; and two that share no head and no key."""
    is_mapped = capability >= 90
    one_layer(HEADS, KV_HEADS, is_mapped, team(), large_rows=64 if is_mapped else 128)
    one_layer(HEADS, KV_HEADS, False, team(), eight_bits=True, large_rows=128)
    if is_mapped:
        # One processor wants no splits: outputs are left beside sinks, or all but the last.
        for dim, processors, is_alone, has_sinks in (
            (128, 132, True, False),
            (64, 132, True, False),
            (64, 1, True, True),
            (64, 1, False, True),
            (128, 1, False, False),
        ):
            block = Block()
            prompt = [Row(View([block]), (1,) * 300), Row(View([block, Block()]), (1,))]
            one_layer(
                HEADS,
                KV_HEADS,
                is_mapped,
                (Step(prompt[:1] if is_alone else prompt),),
                dim=dim,
                processors=processors,
                has_sinks=has_sinks,
                large_rows=64,
                specialised_rows=128,
                specialised_work=0,
                most_small_rows=1,
                least_left=256,
            )
        for eight_bits in (False, True):  # twenty tokens make 80 rows
            one_layer(
                HEADS,
                KV_HEADS,
                is_mapped and not eight_bits,
                few_rows(),
                dim=128,
                eight_bits=eight_bits,
                least_split=128,  # several partials each
                large_rows=64,
                specialised_rows=128,
                few_rows=80,
                plain_reads=0,
            )
        block = Block()
        long_and_short = [Step([Row(View([block]), (1,) * size)]) for size in (300, 16)]
        one_layer(
            HEADS,
            KV_HEADS,
            False,
            tuple(long_and_short),
            dim=128,
            eight_bits=True,
            least_split=128,  # several partials each
            most_small_rows=16,
            specialised_rows=128,
            specialised_work=0,
            narrow_rows=64,
        )
        for workers in (2, 5, 8):  # eight rows, twenty and thirty-two
            one_layer(
                HEADS,
                KV_HEADS,
                False,
                team(workers),
                dim=128,
                eight_bits=True,
                most_small_rows=64,
                between_rows=24,
                short_stretch=0,
            )
        wide = team(17)  # a history for large tiles, desks for small ones
        one_layer(
            HEADS,
            KV_HEADS,
            is_mapped,
            wide,
            dim=128,
            processors=2,
            large_rows=64,
            can_begin_beside=True,
            many_beside=0,
            halved_rows=32,
        )
        broad = Step([Row(View([Block()]), (1,) * 300)])
        one_layer(HEADS, 1, False, (broad,), dim=512, large_rows=64)
    one_layer(KV_HEADS, KV_HEADS, is_mapped, (lone(),), many=0)
    latents(team()[:1] if is_mapped else (lone(),))
    if is_mapped:  # a prompt that leaves outputs, and two rows that leave partials
        latents(team(), fitting.of_latents(Tiling(16, 1, 132)))
        expanded()
    moves()
    replayed(lone())


def moves() -> None:
    """Keys that move to other slots, in two layers."""
    keys, values = zeros(2, 2 * PAGE, KV_HEADS, DIM), zeros(2, 2 * PAGE, KV_HEADS, DIM)
    ropes = [Rope(torch.ones(DIM // 2), DIM, False)] * 2
    shape = LayerShape(HEADS, KV_HEADS, DIM, DIM)
    slots = torch.arange(3, dtype=torch.int32)
    moved = Moved(slots, slots + PAGE, Rotations(slots))
    for stack in (
        StoreStack.of(keys, values, ropes),
        EightBitStack.of(keys.to(torch.int8), values.to(torch.int8), ropes),
    ):
        is_eight = isinstance(stack, EightBitStack)
        TritonBackend([shape] * 2, DTYPE, CPU, eight_bits=is_eight).move(stack, moved)


def replayed(step: Step) -> None:
    """Attention with gradients."""
    plan = Planner(PagePool(512, 1)).plan(step)
    rope = Rope(torch.ones(DIM // 2), DIM, False)
    q = zeros(plan.num_tokens, HEADS, DIM).requires_grad_()
    store = LayerStore(zeros(512, KV_HEADS, DIM), zeros(512, KV_HEADS, DIM), rope)
    call = LayerCall(layer=0, scaling=0.1)
    strips.attend(store, q, strips.Strips.of(plan), call).sum().backward()


def lone() -> Step:
    """Two that share no key."""
    return Step([Row(View([Block()]), (1,)) for _ in range(2)])


def team(workers: int = 2) -> tuple[Step, ...]:
    """A prompt long enough for large tiles, and workers that read it."""
    history, desks = Block("history"), [Block(f"{worker}") for worker in range(workers)]
    return (
        Step([Row(View([history]), (1,) * 300)]),
        Step([Row(View([history, desk]), (1,)) for desk in desks]),
    )


def few_rows() -> tuple[Step, ...]:
    """A history, and twenty tokens behind it."""
    history = Block("history")
    return (
        Step([Row(View([history]), (1,) * 300)]),
        Step([Row(View([history, Block("few")]), (1,) * 20)]),
    )


def one_layer(
    heads: int,
    kv_heads: int,
    is_mapped: bool,
    steps: tuple[Step, ...],
    dim: int = DIM,
    eight_bits: bool = False,
    processors: int = 132,
    has_sinks: bool = False,
    **tiling: Any,
) -> None:
    """All that attention launches for these steps."""
    shape = LayerShape(heads, kv_heads, dim, dim)
    cut = Tiling(shape.group, kv_heads, processors, **tiling)
    backend = TritonBackend([shape], DTYPE, CPU, cut, eight_bits=eight_bits)
    backend.launches = tuple(replace(each, is_mapped=is_mapped) for each in backend.launches)
    keys, values = zeros(64 * PAGE, kv_heads, dim), zeros(64 * PAGE, kv_heads, dim)
    rope = Rope(torch.ones(dim // 2), dim, False)
    store = LayerStore(keys, values, rope)
    if eight_bits:
        scales = torch.ones(keys.shape[:2]), torch.ones(keys.shape[:2])
        store = EightBitStore(keys.to(torch.int8), values.to(torch.int8), rope, *scales)
    launched(backend, shape, store, steps, zeros(heads) if has_sinks else None)


def latents(steps: tuple[Step, ...], tiling: Tiling | None = None) -> None:
    """DeepSeek-V2-Lite's, under this tiling, or the one that they have on a device without specialised tiles."""
    shape = LayerShape(16, 1, 576, 512, is_latent=True)
    backend = TritonBackend([shape], DTYPE, CPU, tiling)
    keys = zeros(64 * PAGE, 1, shape.head_dim)
    store = LatentStore(keys, keys[..., -shape.value_dim :], Rope(torch.ones(32), 64, True))
    launched(backend, shape, store, steps)


def expanded() -> None:
    """A prompt of latents in the expanded form, one behind a history, and both at once: outputs, partials, and either."""
    shape = LayerShape(4, 4, 192, 128, is_expanded=True)
    planner, block = Planner(PagePool(64, PAGE)), Block("history")
    behind, other = View([block, Block("prompt")]), Block()
    steps = (
        ((View([block]), 300),),
        ((behind, 300),),
        ((View([other]), 300), (View([other, Block()]), 100)),
    )
    for fed, interleaved, processors in zip(steps, (True, False, True), (2, 132, 1), strict=True):
        tiling = Tiling(1, 4, processors, large_rows=64, specialised_rows=128, least_left=256)
        backend = TritonBackend([shape], DTYPE, CPU, fitting.of_expanded(tiling))
        rope = Rope(torch.ones(32), 64, interleaved)
        store = LayerStore(zeros(64 * PAGE, 4, 192), zeros(64 * PAGE, 4, 128), rope)
        backend.interpreted = True
        step = Step([Row(view, (1,) * count) for view, count in fed])
        prepared = backend.prepare(planner.plan(step), CPU)
        for row in step.rows:
            row.view.own.tokens.extend(row.feed)
        backend.interpreted = False
        q = zeros(sum(count for _, count in fed), shape.num_heads, shape.head_dim)
        backend.attend(store, q, prepared, LayerCall(layer=0, scaling=0.1))


def launched(
    backend: TritonBackend,
    shape: LayerShape,
    store: LayerStore,
    steps: tuple[Step, ...],
    sinks: torch.Tensor | None = None,
) -> None:
    """All that attention launches for these steps."""
    planner = Planner(PagePool(64, PAGE))
    call = LayerCall(layer=0, scaling=0.1, sinks=sinks)
    for step in steps:
        prepared = backend.prepare(planner.plan(step), CPU)
        for row in step.rows:
            row.view.own.tokens.extend(row.feed)
        backend.interpreted = False
        count = sum(len(row.feed) for row in step.rows)
        k, v = (zeros(count, *held.shape[1:]) for held in (store.keys, store.values))
        q = zeros(count, shape.num_heads, shape.head_dim)
        backend.append(store, k, v, prepared)
        if not shape.is_latent:
            backend.append(store, k, v, prepared, (q, left_norms(shape.head_dim)))
        backend.attend(store, q, prepared, call)
        if isinstance(store, EightBitStore):
            for norms in (None, left_norms(shape.head_dim)):
                backend.run_layer(store, q, k, v, prepared, replace(call, norms=norms))


def hurry() -> None:
    """Memory is not given back to the system, and no garbage looked for."""
    top_pad, trim, mapped = -2, -1, -3  # as `mallopt` has them
    for option, size in ((top_pad, 128 << 20), (trim, 1 << 30), (mapped, 1 << 30)):
        ctypes.CDLL(None).mallopt(option, size)
    gc.disable()


def launches_of(wanted: int, part: str) -> tuple[list[Launch], frozenset[str]]:
    """A part of the launches on such a device, and the facts of them that are asked for."""
    launched_there = [*note_launches(wanted, part).values()]
    if wanted >= HOPPER:
        return launched_there, facts(launched_there)
    asked = asked_of_older(launched_there, note_launches(HOPPER, part).values())
    driver.set_active(NoDevice(wanted))
    return launched_there, asked


def answer(wanted: int, part: str, *choices: str) -> None:
    """Say what is made of a part of the launches on such a device, and what was asked for."""
    launched_there, asked = launches_of(wanted, part)
    if choices == ("keys",):
        for launch in cover(launched_there, asked):
            print(json.dumps(key_of(launch)))
        print(json.dumps(digest(triton_key())), flush=True)
    elif choices == ("every",):
        compile_all(launched_there, {})
        print(json.dumps(sorted(facts(launched_there))), flush=True)
    else:
        compile_all(cover(launched_there, asked), {} if choices == ("anew",) else known())
        print(json.dumps(sorted(asked)), flush=True)


def known() -> dict[str, Any]:
    """Entries of the file, but for one of twelve: these are compiled each time."""
    found = json.loads(FILE.read_text(encoding="utf-8"))["found"]
    return {key: kernel for key, kernel in found.items() if int(key, 16) % 12}


def write() -> None:
    """The file anew, of all covers."""
    found = {}
    for capability in CAPABILITIES:
        for part in PARTS:
            words = [sys.executable, "-W", "ignore", "-m", "tests.compiled"]
            asked = f"{capability} {part} anew\n"
            said = subprocess.run(words, input=asked, capture_output=True, text=True, check=True)
            for line in said.stdout.splitlines()[:-2]:
                kernel = json.loads(line)
                found[kernel["key"]] = {
                    name: value
                    for name, value in kernel.items()
                    if name not in ("key", "is_known", "facts", "kernel")
                }
    lines = ",\n".join(f'"{key}": {json.dumps(found[key])}' for key in sorted(found))
    text = f'{{"compiler": "{digest(triton_key())}", "found": {{\n{lines}\n}}}}\n'
    FILE.write_text(text, encoding="utf-8")


def main() -> None:
    """Answer each line by a copy of this process, or write the file."""
    if sys.argv[1:] == ["write"]:
        return write()
    hurry()
    # Where in its file a kernel begins is part of Triton's key, and no matter of its code.
    JITCallable.starting_line_number = property(lambda kernel: 0, lambda kernel, line: None)
    for line in sys.stdin:
        capability, *words = line.split()
        if copied := os.fork():
            print(f"ended {os.waitpid(copied, 0)[1]}", flush=True)
        else:
            answer(int(capability), *words)
            os._exit(0)  # taking all of the compiler down takes its time


if __name__ == "__main__":
    main()
