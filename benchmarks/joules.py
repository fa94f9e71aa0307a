"""Joules of the kernels of passes with many rows, each repeated for seconds: what power goes into.

    python -m benchmarks.joules --minutes 1

Passes with many rows lie at a GPU's limit of power, so what they take is their energy over that limit. Attention of 128 ragged
rows, products of few rows and of 128 beside the same with weights of zeros, whose bits never change, and bytes alone, copied and
only read: milliseconds of a call, clock and watts meanwhile, and joules. Products are those of a few layers, one after the other,
by the library, and on Hopper those of 128 rows by this project's kernels (`model/kernels/ring.py`), each kind apart. Watts are
asked ten times a second (`benchmarks/clocks.py`), behind a time of the same work that is not counted: they follow
late. Where no tool tells them, as on a CPU, there are times alone.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks import op_peers, situations
from benchmarks.clocks import Clocks
from benchmarks.gate import check_against, check_op
from benchmarks.results import Clock, Results, parser
from benchmarks.shapes import SHAPES, TINY
from benchmarks.timing import recorded
from manyhands.attention.attend import Backend
from manyhands.attention.launches import has_gluon
from manyhands.attention.store import LayerShape
from manyhands.attention.torch_backend import TorchBackend
from manyhands.cache.view import View

_TEAMS, _WORKERS, _PROMPT = 32, 4, 2000
_DESKS = (500, 640)  # tokens, about the middle of `evaluation/life.py::RAGGED`
_LAYERS = 12  # their weights are more than a cache holds
_ROWS = (16, 128)
_CALLS = 5  # of a recording
_GATED = "gate and up"
_PRODUCTS = ("qkv", "o", _GATED, "down")  # as `Shape.products` has them
COPIED, READ = "bytes copied", "bytes read"


class Joules:
    """One kind of work after the other, for so many seconds each."""

    def __init__(self, arguments: argparse.Namespace, clock: Clock) -> None:
        self.device, self.clock = torch.device(arguments.device), clock
        self.is_tiny: bool = arguments.tiny
        self.is_gpu = self.device.type == "cuda"
        self.dtype = torch.bfloat16 if self.is_gpu else torch.float32
        self.seconds = 0.02 if self.is_tiny else 2.0
        self.shape = TINY if self.is_tiny else SHAPES["qwen3-8b"]
        self.file = Results("joules", arguments, clock)

    @torch.inference_mode()
    def run(self) -> None:
        """All of them."""
        self.file.put(model=self.shape.title)
        with Clocks(self.device) as self.clocks:
            self._attention()
            self._bytes()
            for rows in (2,) if self.is_tiny else _ROWS:
                self._products(rows, are_zeros=False)
                self._products(rows, are_zeros=True)
            self._each_product(2 if self.is_tiny else max(_ROWS))

    def _attention(self) -> None:
        heads = self.shape.config["num_attention_heads"], self.shape.config["num_key_value_heads"]
        dim = self.shape.head_dim
        layer = situations.lay_out(self._ragged(), heads, dim, self.device, self.dtype)
        work = op_peers.ours(layer, self._backend(LayerShape(*heads, dim, dim)))
        last = layer.plan.num_rows - 1
        verdict = check_op(work(), layer.store, layer.q, layer.plan, layer.call, [0, last])
        if not verdict.is_green:
            self.file.leave_out("attention of ragged rows", "its gate is red")
            return
        self._measure("attention of 128 ragged rows, a layer", layer.num_bytes, work)

    def _ragged(self) -> list[View]:
        rng = random.Random(1)
        views: list[View] = []
        teams, prompt, lengths = (2, 40, (5, 9)) if self.is_tiny else (_TEAMS, _PROMPT, _DESKS)
        for _ in range(teams):
            shared = situations.block_of(prompt)
            desks = [situations.block_of(rng.randint(*lengths)) for _ in range(_WORKERS)]
            views += [View([shared, *(d for d in desks if d is not own), own]) for own in desks]
        return views

    def _backend(self, shape: LayerShape) -> Backend:
        if not self.is_gpu:
            return TorchBackend()
        from manyhands.attention.triton_backend import TritonBackend

        return TritonBackend([shape], self.dtype, self.device)

    def _bytes(self) -> None:
        source = torch.randn(1 << (10 if self.is_tiny else 30), device=self.device).to(self.dtype)
        target = torch.empty_like(source)
        self._measure(COPIED, 2 * source.nbytes, lambda: target.copy_(source))
        pairs = source.view(torch.float32)
        self._measure(READ, source.nbytes, lambda: pairs.amax())

    def _products(self, rows: int, *, are_zeros: bool) -> None:
        products = self.shape.products()[:4] * (1 if self.is_tiny else _LAYERS)
        make = torch.zeros if are_zeros else torch.randn
        weights = [
            (0.02 * make(out, into, device=self.device)).to(self.dtype) for into, out in products
        ]
        inputs: dict[int, Tensor] = {
            into: torch.randn(rows, into, device=self.device).to(self.dtype) for into, _ in products
        }

        def work() -> None:
            for weight in weights:
                torch.nn.functional.linear(inputs[weight.shape[1]], weight)

        kind = "weights of zeros" if are_zeros else "random weights"
        layers = len(products) // 4
        name = f"products of {layers} layers, {rows} rows, {kind}"
        self._measure(name, sum(weight.nbytes for weight in weights), work)

    def _each_product(self, rows: int) -> None:
        """The products of some layers, by the library and by the kernels that passes of so many rows have."""
        layers = 1 if self.is_tiny else _LAYERS
        for kind, (into, out) in zip(_PRODUCTS, self.shape.products(), strict=False):
            weights = [
                (0.02 * torch.randn(out, into, device=self.device)).to(self.dtype)
                for _ in range(layers)
            ]
            x = torch.randn(rows, into, device=self.device).to(self.dtype)
            for way, product in self._ways(kind, weights[0]).items():
                name = f"{kind} of {layers} layers, {rows} rows, {way}"
                if not _is_right(product(x, weights[0]), x, weights[0]):
                    self.file.leave_out(name, "its gate is red")
                    continue
                size = sum(weight.nbytes for weight in weights)
                self._measure(name, size, partial(_all_of, product, x, weights))

    def _ways(self, kind: str, weight: Tensor) -> dict[str, Callable[[Tensor, Tensor], object]]:
        ways: dict[str, Callable[[Tensor, Tensor], object]] = {
            "by the library": torch.nn.functional.linear
        }
        if not has_gluon(self.device):
            return ways
        from manyhands.model.kernels import ring

        is_gated = kind == _GATED
        if groups := ring.groups_for(weight, gated=is_gated):
            ways["by the ring"] = (
                partial(ring.gated_product, bias=None, activation="silu", groups=groups)
                if is_gated
                else partial(ring.product, bias=None)
            )
        elif ring.groups_for(weight, parts=ring.PARTS):
            ways["by the ring, in parts"] = partial(ring.product_in_parts, bias=None)
        return ways

    def _measure(self, name: str, num_bytes: int, work: Callable[[], object]) -> None:
        """Milliseconds and joules of a call of `work`, which moves so many bytes."""
        if not self.clock.allows(2 * self.seconds + 1):
            self.file.leave_out(name, "the time was over")
            return
        repeat = self._repeated(work)
        self._for_seconds(repeat, self.seconds / 2)
        since = self.clocks.now()
        took, calls = self._for_seconds(repeat, self.seconds)
        facts = self.clocks.facts(since)
        line = {"what": name, "bytes": num_bytes, "ms": round(1e3 * took / calls, 4), **facts}
        if facts:
            line["joules"] = round(facts["watts"] * took / calls, 4)
        self.file.add("work", **line)

    def _repeated(self, work: Callable[[], object]) -> tuple[Callable[[], object], int]:
        """Some calls of `work` as one, and how many: on a GPU a recording, since the host would be too slow."""
        work()
        if not self.is_gpu:
            return work, 1
        return recorded([work] * _CALLS).replay, _CALLS

    def _for_seconds(
        self, repeat: tuple[Callable[[], object], int], seconds: float
    ) -> tuple[float, int]:
        """Seconds that passed, and calls made in them."""
        again, calls = repeat
        made, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            for _ in range(10):
                again()
            if self.is_gpu:
                torch.cuda.synchronize()
            made += 10 * calls
        return time.perf_counter() - began, made


def _is_right(out: object, x: Tensor, weight: Tensor) -> bool:
    """Whether this is x times w transposed: whole, in parts that add up, or with its gate."""
    assert isinstance(out, Tensor)
    want = x.double() @ weight.double().T
    if out.dim() > want.dim():
        out = out.sum(0)
    elif out.shape != want.shape:
        gate, up = want.chunk(2, -1)
        want = torch.nn.functional.silu(gate) * up
    return check_against(out.to(x.dtype), want).is_green


def _all_of(product: Callable[[Tensor, Tensor], object], x: Tensor, weights: list[Tensor]) -> None:
    for weight in weights:
        product(x, weight)


def main(words: list[str] | None = None) -> None:
    """Measure."""
    arguments = parser(__doc__, minutes=1.0).parse_args(words)
    Joules(arguments, Clock(arguments.minutes)).run()


if __name__ == "__main__":
    main()
