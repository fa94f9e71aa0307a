"""Latent attention (MLA), one layer: latents in the absorbed form against keys and values made of them.

    python -m benchmarks.latents --minutes 4
    python -m benchmarks.latents --shapes deepseek-v2-lite,deepseek-v3 --tiles specialised,ordinary
    python -m benchmarks.latents --shapes deepseek-v2-lite,kimi-k2,deepseek-v3 --outsiders FOLDER

Teams over a common text and prompts, at the shapes of published networks. `latent` reads one latent and one rotated
key a token for all heads; `expanded` reads what the layer would cache without the absorbed form, in the same views. The
limit of either is the longer of two times, that of its bytes at the speed of a copy and that of its products at the
speed of a large matrix product. What the absorbed form costs besides, two small products a token, is timed apart.
`--tiles`: those that Hopper has for latents, and those that other GPUs have.
`--outsiders`: FlashMLA and FlashAttention 3 too, as `benchmarks/outsiders.py` unpacks them; how they are asked, and what of it is timed,
says `benchmarks/latent_peers.py`. Their answers pass the same gate as ours, each way for itself.
`--passes`: passes of a whole network of DeepSeek-V2-Lite's shape with random weights, by both tiles, engine after engine.
`--prompts`: the first tokens of its prompts, which attend in the expanded form, and in the absorbed one, in turns.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from benchmarks import latent_peers, op_peers, situations
from benchmarks.breakdown import breakdown
from benchmarks.decode import check_engine_op, free
from benchmarks.gate import check_against, right
from benchmarks.outside_peers import Outsiders
from benchmarks.prefill import check_prompt
from benchmarks.results import Clock, Results, parser
from benchmarks.shapes import EXPANDED, LATENT
from benchmarks.situations import Situation
from benchmarks.start_up import first_token
from benchmarks.timing import matmul_rate, milliseconds
from manyhands.attention.attend import Backend
from manyhands.attention.entries import Entries
from manyhands.attention.latents import LatentStore
from manyhands.attention.rotary import Rope
from manyhands.attention.store import LayerShape, LayerStore
from manyhands.attention.torch_backend import TorchBackend
from manyhands.cache.block import Block
from manyhands.cache.view import View
from manyhands.engine import expanded
from manyhands.engine.engine import Engine
from manyhands.evaluation.bench import copy_bandwidth, fill, seat, time_passes, views_of


@dataclass(frozen=True)
class Heads:
    """The attention of one network: query heads, dims of c and k_pe, unrotated dims of a key, dims of a value."""

    num_heads: int
    latent: int
    rotary: int
    bare: int
    value: int

    def shape(self, form: str) -> LayerShape:
        """The shape of a layer that stores in this form."""
        if form == LATENT:
            return LayerShape(
                self.num_heads, 1, self.rotary + self.latent, self.latent, is_latent=True
            )
        return LayerShape(
            self.num_heads, self.num_heads, self.rotary + self.bare, self.value, is_expanded=True
        )


SHAPES = {
    "tiny": Heads(4, 32, 8, 16, 16),
    "deepseek-v2-lite": Heads(16, 512, 64, 128, 128),
    "glm-4.7-flash": Heads(20, 512, 64, 192, 256),
    "kimi-k2": Heads(64, 512, 64, 128, 128),
    "deepseek-v3": Heads(128, 512, 64, 128, 128),
}
# As published; the context is shorter.
_V2_LITE: dict[str, Any] = {
    "model_type": "deepseek_v2",
    "architectures": ["DeepseekV2ForCausalLM"],
    "dtype": "bfloat16",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "first_k_dense_replace": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "rms_norm_eps": 1e-6,
    "vocab_size": 102400,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}
_V2_TINY = {
    **{"hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16, "vocab_size": 64},
    **{"num_hidden_layers": 2, "n_routed_experts": 4, "num_experts_per_tok": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 24},
    **{"qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 12},
}
FORMS = (LATENT, EXPANDED)
ABSORBED = "absorbed"  # the form of `LATENT`, as engines call it
SPECIALISED, ORDINARY = "specialised", "ordinary"  # tiles


class Layer(Situation):
    """A situation whose keys and values may differ in size, or be one."""

    @cached_property
    def num_bytes(self) -> int:
        """Every token's key and value in use once, the queries, the outputs."""
        store = self.store
        one = store.keys[0].nbytes
        one += 0 if isinstance(store, LatentStore) else store.values[0].nbytes
        tokens, heads, _ = self.q.shape
        out = tokens * heads * store.value_dim * self.q.element_size()
        return self.plan.num_keys_loaded * one + self.q.nbytes + out

    @cached_property
    def num_operations(self) -> int:
        """Two products per (query head, key) pair that is seen."""
        entries = Entries.of(self.plan)
        seen = np.minimum(entries.high, entries.offset + 1) - entries.low
        _, heads, dims = self.q.shape
        return 2 * heads * (dims + self.store.value_dim) * int(seen.clip(min=0).sum())


def lay_out(
    views: list[View],
    shape: LayerShape,
    rotary: int,
    place: tuple[torch.device, torch.dtype],
    new: int,
) -> Layer:
    """A layer of this shape with random contents, in which every row feeds `new` tokens."""
    device, dtype = place
    plan, num_slots = situations.planned(views, new)

    def random(*sizes: int) -> Tensor:
        return torch.randn(*sizes, device=device).to(dtype)

    keys = random(num_slots, shape.num_kv_heads, shape.head_dim)
    q = random(plan.num_tokens, shape.num_heads, shape.head_dim)
    exponents = torch.arange(0, rotary, 2, device=device, dtype=torch.float32) / rotary
    rope = Rope(1e4**-exponents, rotary)
    if shape.is_latent:
        return Layer(plan, q, LatentStore(keys, keys[..., rotary:], rope))
    values = random(num_slots, shape.num_kv_heads, shape.value_dim)
    return Layer(plan, q, LayerStore(keys, values, rope))


def cases(is_tiny: bool) -> Iterator[tuple[str, list[View], int]]:
    """Name, views, and new tokens of each row."""
    lengths, workers, desk = ((40,), (2,), 6) if is_tiny else ((4096, 16384), (1, 4, 16), 128)
    for length in lengths:
        for count in workers:
            yield f"team {length} {count}", situations.team(count, length, desk), 1
    for history, new in ((0, 40),) if is_tiny else ((0, 4096), (8192, 1024)):
        yield f"prefill {history} {new}", situations.prefill(history), new


class Latents:
    """All cases of some shapes, in one result file."""

    def __init__(self, arguments: argparse.Namespace, clock: Clock) -> None:
        self.arguments, self.clock = arguments, clock
        self.device = torch.device(arguments.device)
        self.is_gpu = self.device.type == "cuda"
        self.dtype = torch.bfloat16 if self.is_gpu else torch.float32
        self.bandwidth = copy_bandwidth(self.device)
        self.rate = matmul_rate(self.device, self.dtype)
        self.outsiders = Outsiders(arguments.outsiders, self.device, latent_peers.NAMES)
        self.file = Results("latents", arguments, clock)
        self.file.put(
            backend="triton" if self._has_kernels else "torch",
            dtype=str(self.dtype).removeprefix("torch."),
            copy_bytes_per_second=round(self.bandwidth),
            operations_per_second=round(self.rate),
        )

    @property
    def _has_kernels(self) -> bool:
        return self.arguments.backend == "triton" or (
            self.arguments.backend == "auto" and self.is_gpu
        )

    def run(self) -> None:
        """Every shape, every case, both forms; peers behind ours, each on the same layer."""
        if not self.arguments.no_peers:
            for name, why in self.outsiders.missing.items():
                self.file.leave_out(name, why)
        is_tiny = self.arguments.tiny
        names = ["tiny"] if is_tiny else self.arguments.shapes.split(",")
        for name in names:
            self._products(name)
            wanted = self.arguments.cases.split(",")
            for case, views, new in cases(is_tiny):
                if case.split()[0] not in wanted:
                    continue
                for form in FORMS:
                    with self.file.surviving(f"{name}, {case}, {form}"):
                        self._measure(name, case, form, views, new)

    @torch.inference_mode()
    def _measure(self, name: str, case: str, form: str, views: list[View], new: int) -> None:
        if not self.clock.allows(5):
            self.file.leave_out(f"{name}, {case}, {form}", "the time was over")
            return
        heads = SHAPES[name]
        shape = heads.shape(form)
        layer = lay_out(views, shape, heads.rotary, (self.device, self.dtype), new)
        last = layer.plan.num_rows - 1
        where, want = right(layer.store, layer.q, layer.plan, layer.call, sorted({0, last}))
        gate_of = partial(_gate, where, want)
        for tiles in self.arguments.tiles.split(",") if form == LATENT else [ORDINARY]:
            with _by(tiles, self._has_kernels):
                work = op_peers.ours(layer, self._backend(shape))
                gate = gate_of(work())
                if gate is None:
                    self.file.add("red", name=name, case=case, form=form, tiles=tiles)
                    continue
                flushed = milliseconds(work, self.device, flushed=True)
            limit = 1e3 * max(layer.num_bytes / self.bandwidth, layer.num_operations / self.rate)
            self.file.add(
                "cells",
                name=name,
                case=case,
                form=form,
                tiles=tiles if form == LATENT else None,
                us=round(1e3 * flushed, 2),
                us_limit=round(1e3 * limit, 2),
                of_limit=round(limit / flushed, 3) if flushed > 0 else None,
                bytes=layer.num_bytes,
                token_bytes=shape.numbers_per_token * self.dtype.itemsize,
                operations=layer.num_operations,
                gate=gate,
            )
        if not self.arguments.no_peers:
            self._peers({"name": name, "case": case, "form": form}, layer, gate_of)

    def _peers(self, cell: dict[str, str], layer: Layer, gate_of: Gate) -> None:
        """Every way to ask a peer: its time, if its answer is right."""
        for peer, way, prepare in latent_peers.ways(self.outsiders, layer, cell["form"]):
            what = f"{peer} ({way}): {', '.join(cell.values())}"
            if not self.clock.allows(2):
                self.file.leave_out(what, "the time was over")
                continue
            with self.file.surviving(what):
                work = prepare()
                gate = gate_of(work())
                if gate is None:
                    self.file.leave_out(what, "its answer is wrong")
                    continue
                us = round(1e3 * milliseconds(work, self.device, flushed=True), 2)
                self.file.add("peers", **cell, peer=peer, way=way, us=us, gate=gate)

    @torch.inference_mode()
    def _products(self, name: str) -> None:
        """The two products of the absorbed form, beside attention, for 1, 4 and 16 tokens."""
        heads = SHAPES[name]
        to_latent = torch.randn(heads.num_heads, heads.bare, heads.latent, device=self.device)
        to_value = torch.randn(heads.num_heads, heads.latent, heads.value, device=self.device)
        matrices = to_latent.to(self.dtype), to_value.to(self.dtype)
        for tokens in (1,) if self.arguments.tiny else (1, 4, 16):
            q = torch.randn(heads.num_heads, tokens, heads.bare, device=self.device).to(self.dtype)

            def work(q: Tensor = q) -> Tensor:
                return torch.bmm(torch.bmm(q, matrices[0]), matrices[1])

            us = 1e3 * milliseconds(work, self.device, flushed=True)
            self.file.add("products", name=name, tokens=tokens, us=round(us, 2))

    def _backend(self, shape: LayerShape) -> Backend:
        if not self._has_kernels:
            return TorchBackend()
        from manyhands.attention.triton_backend import TritonBackend

        return TritonBackend([shape], self.dtype, self.device)


Gate = Callable[[Tensor], dict[str, float] | None]


def _gate(where: Tensor, want: Tensor, out: Tensor) -> dict[str, float] | None:
    """How far off an answer is on some tokens; None: too far."""
    verdict = check_against(out[where], want)
    return asdict(verdict) if verdict.is_green else None


class Network:
    """A whole network of DeepSeek-V2-Lite's shape with random weights."""

    memory_tokens: int

    def __init__(self, arguments: argparse.Namespace, clock: Clock, file: str) -> None:
        self.arguments, self.clock = arguments, clock
        self.device = torch.device(arguments.device)
        self.config = _V2_LITE | (_V2_TINY if arguments.tiny else {})
        self.file = Results(file, arguments, clock)

    @contextmanager
    def _written(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(self.config), encoding="utf-8")
            yield Path(folder)

    def _engine(self, folder: Path) -> Engine:
        engine = Engine.load(
            folder,
            device=self.arguments.device,
            dtype="bfloat16" if self.device.type == "cuda" else "float32",
            weights="dummy",
            memory_tokens=self.memory_tokens,
        )
        engine.get_ready()
        return engine


class FirstTokens(Network):
    """Milliseconds until the first token of a prompt, in both forms of latent attention, in turns in one engine."""

    def __init__(self, arguments: argparse.Namespace, clock: Clock) -> None:
        super().__init__(arguments, clock, "latents_first_tokens")
        self.lengths = [300] if arguments.tiny else [2048, 8192, 16384]
        self.memory_tokens = 2 * max(self.lengths) + 1024

    def run(self) -> None:
        """Every length."""
        with self._written() as folder:
            engine = self._engine(folder)
        numbers = random.Random(1)
        for length in self.lengths:
            with self.file.surviving(f"{length} tokens"):
                self._measure(engine, length, numbers)

    def _measure(self, engine: Engine, length: int, numbers: random.Random) -> None:
        def prompt(tokens: int) -> tuple[int, ...]:
            return tuple(numbers.randrange(2, engine.facts.vocab_size) for _ in range(tokens))

        gate, alike = check_prompt(engine, prompt(min(length, 1024)))
        if not (gate.is_green and alike.is_green):
            self.file.add("red", tokens=length, gate=asdict(gate))
            return
        seconds: dict[str, list[float]] = {EXPANDED: [], ABSORBED: []}
        for turn in range(2 if self.arguments.tiny else 6):
            for form, found in seconds.items():
                if not self.clock.allows(2):
                    self.file.leave_out(f"{length} tokens, turn {turn}", "the time was over")
                    continue
                with _in_form(form):
                    found.append(first_token(engine, prompt(length)))
        for form, found in seconds.items():
            counted = found[1:]  # the first may load kernels
            self.file.add(
                "cells",
                tokens=length,
                form=form,
                ms=round(1e3 * statistics.median(counted), 3),
                all_ms=[round(1e3 * each, 3) for each in counted],
                gate=asdict(gate),
            )


@contextmanager
def _in_form(form: str) -> Iterator[None]:
    """Prompts attend in this form."""
    least = 1 << 60 if form == ABSORBED else expanded.LEAST
    with mock.patch.object(expanded, "LEAST", least):
        yield


class Passes(Network):
    """Milliseconds of a pass, by the tiles that its latents have."""

    def __init__(self, arguments: argparse.Namespace, clock: Clock) -> None:
        super().__init__(arguments, clock, "latents_passes")
        is_tiny = arguments.tiny
        self.lengths = [40] if is_tiny else [1024, 16384]
        self.workers = [1, 2] if is_tiny else [1, 4, 16]
        self.num_passes, self.desk = (2, 6) if is_tiny else (32, 128)
        desks = 2 * max(self.workers) * (self.desk + 256)
        self.memory_tokens = max(self.lengths) + desks + 1024

    def run(self) -> None:
        """All of them with one kind of tiles, then with the other."""
        with self._written() as folder:
            for tiles in self.arguments.tiles.split(","):
                with _by(tiles, self.device.type == "cuda"), self.file.surviving(tiles):
                    self._by_one(folder, tiles)
                free(self.device)

    def _by_one(self, folder: Path, tiles: str) -> None:
        engine = self._engine(folder)
        for length in self.lengths:
            history = fill(engine, Block("history"), length, seed=0).freeze()
            for count in self.workers:
                if not self.clock.allows(3):
                    self.file.leave_out(f"{tiles}, {length}, {count}", "the time was over")
                    continue
                views = views_of(seat(engine, history, count, self.desk))
                verdict = check_engine_op(engine, views, sorted({0, count - 1}))
                if not verdict.is_green:
                    self.file.add("red", tiles=tiles, history=length, workers=count)
                    continue
                seconds = time_passes(engine, views, passes=self.num_passes)
                ms = 1e3 * statistics.median(seconds)
                self.file.add(
                    "cells",
                    tiles=tiles,
                    history=length,
                    workers=count,
                    ms=round(ms, 4),
                    ms_mean=round(1e3 * statistics.fmean(seconds), 4),
                    gate=asdict(verdict),
                    parts=breakdown(engine, views, ms, passes=8),
                )


@contextmanager
def _by(tiles: str, has_kernels: bool) -> Iterator[None]:
    """Backends that are made meanwhile have these tiles for latents, if they have kernels."""
    if tiles != ORDINARY or not has_kernels:
        yield
        return
    from manyhands.attention import fitting

    with mock.patch.object(fitting, "_can_specialise_latents", return_value=False):
        yield


def main(words: list[str] | None = None) -> None:
    """Measure."""
    options = parser(__doc__, minutes=4.0)
    options.add_argument("--shapes", default="deepseek-v2-lite", help=", ".join(SHAPES))
    options.add_argument("--tiles", default=SPECIALISED, help=f"{SPECIALISED}, {ORDINARY}")
    options.add_argument(
        "--outsiders",
        type=Path,
        help="folder with FlashMLA and FlashAttention 3, as benchmarks/outsiders.py unpacks it",
    )
    options.add_argument("--cases", default="team,prefill", help="team, prefill")
    instead = options.add_mutually_exclusive_group()
    instead.add_argument("--passes", action="store_true", help="passes of a whole network instead")
    instead.add_argument(
        "--prompts", action="store_true", help="first tokens of a whole network instead"
    )
    arguments = options.parse_args(words)
    kind = Passes if arguments.passes else FirstTokens if arguments.prompts else Latents
    kind(arguments, Clock(arguments.minutes)).run()


if __name__ == "__main__":
    main()
