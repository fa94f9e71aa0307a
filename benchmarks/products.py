"""Products of a few tokens with the weights of a decode layer: ours beside the library's.

    python -m benchmarks.products               under a minute on one GPU

Every product runs through so many copies of its weight that hardly any of them is still in a cache when it
is needed again: what is loaded to be evicted first leaves the rest of the cache alone, so a few times the
cache are not enough. Which tiles are best is another question (`benchmarks/tiles.py`). Beside each time the limit: the bytes of the weight at the speed of a copy. No time is written
unless the product agrees with float64 up to rounding. `chain` is all products of a layer, one after the
other, eight layers in one graph: there launches and the gaps between them count too. `gated` is the product of gate and
up with its activation, which the library makes in two launches, for more tokens too; the gate there is the library's.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.results import Clock, Results, parser
from benchmarks.shapes import SHAPES, TINY, Shape
from benchmarks.timing import milliseconds
from manyhands.evaluation.bench import copy_bandwidth
from manyhands.model import kernels
from manyhands.model.skinny import SkinnyLinear

TOKENS = (1, 2, 4, 8, 16, 32)
GATED_TOKENS = (16, 32, 48, 64, 96, 128)
NAMES = ("qkv", "o", "gate_up", "down", "head")
_COPIES_BYTES = 3 << 30  # fifty times the second-level cache of an H200
_CHAIN = 8  # layers
Product = Callable[[SkinnyLinear, Tensor], Tensor]
_WAYS: dict[str, Product] = {"library": nn.Linear.forward, "ours": SkinnyLinear.forward}


class Measurement:
    """One run of this benchmark."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.device = torch.device(arguments.device)
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.clock = Clock(arguments.minutes)
        self.results = Results("products", arguments, self.clock)
        self.speed = copy_bandwidth(self.device)
        self.results.put(copy_bytes_per_second=round(self.speed), dtype=str(self.dtype))
        names = ("qwen3-8b", "qwq-32b")
        self.shapes = [TINY] if arguments.tiny else [SHAPES[name] for name in names]

    def compare(self, shape: Shape) -> None:
        """Every product, both ways."""
        for name, layers in self.products(shape):
            for tokens in TOKENS:
                x = torch.randn(tokens, layers[0].in_features, device=self.device, dtype=self.dtype)
                facts = {"model": shape.title, "product": name, "tokens": tokens}
                if (error := deviation(layers[0], x)) > tolerance(self.dtype):
                    self.results.add("red", **facts, error=error)
                    continue
                times = {way: self.time(layers, x, call) for way, call in _WAYS.items()}
                limit = 1e3 * layers[0].weight.nbytes / self.speed
                us = {f"{way}_us": round(1e3 * ms, 2) for way, ms in times.items()}
                self.results.add(
                    "products", **facts, **us, limit_us=round(1e3 * limit, 2), error=error
                )
                self.clock.say(f"{shape.title} {name} {tokens}: {us}, limit {1e3 * limit:.1f}")

    def chain(self, shape: Shape) -> None:
        """All products of some layers in one graph."""
        sizes = shape.products()[:4]
        layers = [
            self.layer(*size) for _ in range(2 if self.arguments.tiny else _CHAIN) for size in sizes
        ]
        limit = 1e6 * sum(layer.weight.nbytes for layer in layers) / self.speed
        for tokens in TOKENS:
            xs = {
                inputs: torch.randn(tokens, inputs, device=self.device, dtype=self.dtype)
                for inputs, _ in sizes
            }
            facts: dict[str, Any] = {"model": shape.title, "tokens": tokens}
            for way, call in _WAYS.items():

                def work(call: Product = call, xs: dict[int, Tensor] = xs) -> None:
                    for layer in layers:
                        call(layer, xs[layer.in_features])

                with torch.inference_mode():
                    ms = milliseconds(work, self.device)
                facts[f"{way}_us"] = round(1e3 * ms * len(sizes) / len(layers), 2)
            facts["limit_us"] = round(limit * len(sizes) / len(layers), 2)
            self.results.add("chain", **facts)
            self.clock.say(f"a layer of {shape.title}: {facts}")

    def gated(self, shape: Shape) -> None:
        """Gate and up of some layers with the activation behind them."""
        gate_up = NAMES.index("gate_up")
        layers = next(layers for name, layers in self.products(shape) if name == NAMES[gate_up])
        for tokens in GATED_TOKENS:
            x = torch.randn(tokens, layers[0].in_features, device=self.device, dtype=self.dtype)
            facts: dict[str, Any] = {"model": shape.title, "tokens": tokens}
            ways: dict[str, Product] = {"library": _apart, "ours": _together}
            with torch.inference_mode():
                library, ours = (way(layers[0], x).double() for way in ways.values())
            error = float((ours - library).abs().max() / library.std())
            if error > 2 * tolerance(self.dtype):  # each is rounded three times
                self.results.add("red", product="gated", **facts, error=error)
                continue
            for way, call in ways.items():
                facts[f"{way}_us"] = round(1e3 * self.time(layers, x, call), 2)
            facts["limit_us"] = round(1e6 * layers[0].weight.nbytes / self.speed, 2)
            self.results.add("gated", **facts, error=error)
            self.clock.say(f"gated, {shape.title}: {facts}")

    def products(self, shape: Shape) -> Iterator[tuple[str, list[SkinnyLinear]]]:
        """Name and copies of every product."""
        sizes = [*shape.products()[:4], shape.products()[-1]]
        for name, size in zip(NAMES, sizes, strict=True):
            layers = [self.layer(*size)]
            small = 1 << 12 if self.arguments.tiny else _COPIES_BYTES
            while len(layers) * layers[0].weight.nbytes < small:
                layers.append(self.layer(*size))
            yield name, layers

    def layer(self, inputs: int, outputs: int) -> SkinnyLinear:
        """A layer with random weights."""
        plain = nn.Linear(inputs, outputs, bias=False, device=self.device, dtype=self.dtype)
        plain.weight.data.normal_(std=inputs**-0.5)
        return SkinnyLinear.of(plain)

    def time(self, layers: list[SkinnyLinear], x: Tensor, call: Product) -> float:
        """Milliseconds of one product."""
        with torch.inference_mode():
            return milliseconds(lambda: [call(layer, x) for layer in layers], self.device) / len(
                layers
            )


def _apart(layer: SkinnyLinear, x: Tensor) -> Tensor:
    """The library's product, and the activation behind it."""
    both = nn.Linear.forward(layer, x)
    if not kernels.usable(both):
        gate, up = both.chunk(2, dim=-1)
        return nn.functional.silu(gate) * up
    from manyhands.model.kernels.gated import gated

    return gated(both, "silu")


def _together(layer: SkinnyLinear, x: Tensor) -> Tensor:
    """Ours; where there is none, the other way."""
    out = layer.gated(x, "silu")
    return _apart(layer, x) if out is None else out


@torch.inference_mode()
def deviation(layer: SkinnyLinear, x: Tensor) -> float:
    """The worst output against float64, in units of the outputs' spread."""
    exact = x.double() @ layer.weight[:4096].double().t()
    return float((layer(x)[:, :4096].double() - exact).abs().max() / exact.std())


def tolerance(dtype: torch.dtype) -> float:
    """Outputs are rounded once, and the largest is some five spreads from 0; sums are float32."""
    return 6 * torch.finfo(dtype).eps + 64 * torch.finfo(torch.float32).eps


def main(words: list[str] | None = None) -> None:
    """Measure."""
    options = parser(__doc__, minutes=3.0)
    arguments = options.parse_args(words)
    measurement = Measurement(arguments)
    for shape in measurement.shapes:
        measurement.compare(shape)
        measurement.chain(shape)
        measurement.gated(shape)


if __name__ == "__main__":
    main()
