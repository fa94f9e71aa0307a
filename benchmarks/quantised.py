"""Quantised weights: what they cost in accuracy, and what a layer's products take.

    python -m benchmarks.quantised              both, under two minutes on one GPU
    python -m benchmarks.quantised --tune       the tiles of the four-bit kernel too, for its rule of thumb

`products`: the linear layers of one layer of a network, one after the other, through so many copies that no
weight is still in a cache when it is needed again; beside each the floor, which is reading its bytes at
the speed of a copy. `accuracy`: the same text through the ordinary and the quantised network, each
token with the ordinary one's past (KL divergence per token, agreement of the likeliest token), and the
bundled model's lists, answered anew. Random networks stand for sizes, not for what training makes robust.
"""

from __future__ import annotations

import argparse
import functools
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.results import Clock, Results, parser
from benchmarks.shapes import SHAPES, TINY, Shape
from benchmarks.timing import milliseconds
from manyhands import Engine, SoloSettings, bundled, model_prompt, sequential
from manyhands.evaluation.bench import copy_bandwidth
from manyhands.model.adapter import ModelAdapter
from manyhands.model.dummy import dummy_model
from manyhands.model.loading import load_adapter
from manyhands.model.quantised.linear import Quantised
from manyhands.model.quantised.quantise import KINDS, quantise_network
from manyhands.model.quantised.w4a16 import Int4Linear
from manyhands.model.self_test import exact_attention
from manyhands.strategies.settings import EndSettings
from manyhands.tasks.arithmetic.problem_list import problem_list
from manyhands.tasks.graders import grade_list

TOKENS = (1, 4, 16, 64)
NAMES = ("qkv", "o", "gate_up", "down")
_CACHE_BYTES = 1 << 30  # seventeen times the second-level cache of an H200
_LAYERS = 4  # of the random networks whose accuracy is looked at


class Measurement:
    """One run of this benchmark."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.device = torch.device(arguments.device)
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.clock = Clock(arguments.minutes)
        self.speed = copy_bandwidth(self.device)
        names = ("qwq-32b", "qwen3-8b")
        self.shapes = [TINY] if arguments.tiny else [SHAPES[name] for name in names]

    @functools.cached_property
    def times(self) -> Results:
        """The times of products, and the tiles that the search found."""
        return self._file("products")

    @functools.cached_property
    def losses(self) -> Results:
        """The loss by rounding."""
        return self._file("accuracy")

    def _file(self, part: str) -> Results:
        """One for each part, so that one can be measured again without the other."""
        results = Results(f"quantised_{part}", self.arguments, self.clock)
        results.put(
            copy_bytes_per_second=round(self.speed), dtype=str(self.dtype).removeprefix("torch.")
        )
        return results

    # -- time --------------------------------------------------------------------------------------

    def products(self, shape: Shape) -> None:
        """Every product of one layer, in every kind of weights."""
        for name, (inputs, outputs) in zip(NAMES, shape.products()[:4], strict=True):
            for kind in ("ordinary", *KINDS):
                layers = list(self._copies(kind, inputs, outputs))
                if not layers:
                    self.times.leave_out(f"{shape.title} {name} {kind}", "odd number of inputs")
                    continue
                for tokens in TOKENS:
                    self._product(shape, name, kind, layers, tokens)

    def _product(
        self, shape: Shape, name: str, kind: str, layers: list[nn.Linear | Quantised], tokens: int
    ) -> None:
        x = torch.randn(1, tokens, layers[0].in_features, device=self.device, dtype=self.dtype)
        with torch.inference_mode():
            ms = milliseconds(lambda: [layer(x) for layer in layers], self.device) / len(layers)
        size = num_bytes(layers[0])
        floor = 1e3 * size / self.speed
        self.times.add(
            "products",
            model=shape.title,
            product=name,
            weights=kind,
            tokens=tokens,
            bytes=size,
            us=round(1e3 * ms, 2),
            floor_us=round(1e3 * floor, 2),
        )

    def _copies(self, kind: str, inputs: int, outputs: int) -> Iterator[nn.Linear | Quantised]:
        """As many layers as do not fit the cache together; none if the kind cannot hold them."""
        small = 1 << 12 if self.arguments.tiny else _CACHE_BYTES
        total = 0
        while total < small:
            shell = nn.Linear(inputs, outputs, bias=False, device="meta", dtype=self.dtype)
            layer: nn.Linear | Quantised
            if kind == "ordinary":
                layer = plain = shell.to_empty(device=self.device)
                plain.weight.data.normal_(std=0.02)
            elif inputs % 32 or outputs % 16:
                return
            else:
                layer = quantised = KINDS[kind].empty(shell).to_empty(device=self.device)
                quantised.fill(0.02)
            total += num_bytes(layer)
            yield layer

    def tune(self, shape: Shape) -> None:
        """The four-bit kernel with many tiles; the best for each product and number of tokens."""
        from manyhands.model.kernels.w4a16 import product
        from manyhands.model.kernels.w4a16_tiles import Tiles, choose_tiles

        for name, (inputs, outputs) in zip(NAMES, shape.products()[:4], strict=True):
            layers = [
                layer
                for layer in self._copies("int4", inputs, outputs)
                if isinstance(layer, Int4Linear)
            ]
            for tokens in TOKENS:
                x = torch.randn(tokens, inputs, device=self.device, dtype=self.dtype)
                eights = (1,) if tokens <= 8 else (2,) if tokens <= 16 else (2, 4)
                chosen = choose_tiles(tokens, outputs, inputs // 128, self.device)
                grid = [
                    Tiles(pairs, count, rows, beside, ahead, parts, hold, compact=tokens > 16)
                    for pairs, ahead, hold in ((1, 1, True), (1, 2, True), (2, 1, False))
                    for count in eights
                    for rows, beside in ((4, 1), (8, 1), (2, 2), (4, 2))
                    for parts in (1, 2, 4, 6, 8, 10, 13)
                    if beside == 1 or tokens > 16
                ]
                timed = []
                for tiles in dict.fromkeys([chosen, *grid]):

                    def work(
                        x: Tensor = x, tiles: Tiles = tiles, layers: list[Int4Linear] = layers
                    ) -> None:
                        for layer in layers:
                            parts = (layer.packed, layer.scales, layer.zeros, None)
                            product(x, *parts, layer.group, layer.arrived, tiles)

                    timed.append((milliseconds(work, self.device) / len(layers), tiles))
                best = min(timed, key=lambda pair: pair[0])
                self.times.add(
                    "tiles",
                    model=shape.title,
                    product=name,
                    tokens=tokens,
                    us=round(1e3 * best[0], 2),
                    best=str(best[1]),
                    chosen=str(chosen),
                    chosen_us=next(round(1e3 * ms, 2) for ms, t in timed if t == chosen),
                )

    # -- accuracy ----------------------------------------------------------------------------------

    def bundled_model(self, lists: int) -> None:
        """Lists of the bundled model: its logits over its own text, and its answers anew."""
        exact = Lists(load_adapter(bundled.path(), device=self.device, dtype="float32"), lists)
        self.losses.add("accuracy", model="bundled", weights="ordinary", right=exact.right)
        for kind in KINDS:
            network = load_adapter(
                bundled.path(), device=self.device, dtype="float32", quantise=kind
            )
            ours = Lists(network, lists)
            facts = compare(exact.adapter, ours.adapter, exact.texts)
            size = round(weight_bytes(ours.adapter) / weight_bytes(exact.adapter), 3)
            self.losses.add(
                "accuracy", model="bundled", weights=kind, right=ours.right, size=size, **facts
            )

    def random_model(self, shape: Shape) -> None:
        """A few layers of the real shape, random, ordinary and quantised from the same numbers."""
        config = load_config(shape, min(_LAYERS, shape.num_layers))
        tokens = torch.randint(0, config.vocab_size, (128,), device=self.device)
        for kind in KINDS:
            exact, ours = (
                ModelAdapter(dummy_model(config, device=self.device, dtype=self.dtype))
                for _ in range(2)
            )
            quantise_network(ours.model, kind, self.device)
            facts = compare(exact, ours, [tokens])
            self.losses.add(
                "accuracy", model=f"{shape.title}, {_LAYERS} layers", weights=kind, **facts
            )


class Lists:
    """The answers of a network to some lists, greedily, and the texts it wrote."""

    def __init__(self, loaded: tuple[ModelAdapter, Any], count: int) -> None:
        self.adapter, tokenizer = loaded
        engine = Engine(self.adapter, tokenizer, memory_tokens=1 << 15)
        words, text = model_prompt(bundled.path()), engine.text
        settings = SoloSettings(budget=1000, end=EndSettings(reply=False))
        asked = [problem_list(random.Random(f"quantised/{n}"), 5, "bare") for n in range(count)]
        answers = engine.run_all([sequential(one.question, text, settings, words) for one in asked])
        scores = [
            grade_list(answer.answer, one.gold).value
            for one, answer in zip(asked, answers, strict=True)
        ]
        self.right = round(sum(scores) / count, 4)
        self.texts = [
            torch.tensor(
                [*text.chat_prompt(words.solo_message(one.question)), *text.encode(answer.text)],
                device=self.adapter.device,
            )
            for one, answer in zip(asked, answers, strict=True)
        ]


@torch.inference_mode()
def compare(exact: ModelAdapter, ours: ModelAdapter, texts: list[Tensor]) -> dict[str, float]:
    """Logits of two networks over the same tokens."""
    divergences, agreements, errors = [], [], []
    for tokens in texts:
        p, q = (
            adapter.forward(tokens, None, exact_attention(adapter.ropes)).float()
            for adapter in (exact, ours)
        )
        errors.append((q - p).norm(dim=-1) / p.norm(dim=-1))
        agreements.append((p.argmax(-1) == q.argmax(-1)).float())
        p, q = p.log_softmax(-1), q.log_softmax(-1)
        divergences.append((p.exp() * (p - q)).sum(-1))
    return {
        "tokens": sum(len(tokens) for tokens in texts),
        "logit_error": round(float(torch.cat(errors).mean()), 5),
        "kl": round(float(torch.cat(divergences).mean()), 6),
        "agreement": round(float(torch.cat(agreements).mean()), 5),
    }


def load_config(shape: Shape, layers: int) -> Any:
    """The configuration of this shape with fewer layers."""
    from transformers import AutoConfig

    facts = {**shape.config, "num_hidden_layers": layers}
    return AutoConfig.for_model(facts.pop("model_type"), **facts)


def num_bytes(layer: nn.Module) -> int:
    """Bytes that one product reads of its weights."""
    held = [*layer.parameters(), *(b for name, b in layer.named_buffers() if name != "arrived")]
    return sum(tensor.numel() * tensor.element_size() for tensor in held)


def weight_bytes(adapter: ModelAdapter) -> int:
    """Bytes of the decoder layers' linear layers."""
    kinds = (nn.Linear, Quantised)
    layers: Any = adapter.model.base_model.layers
    return sum(num_bytes(module) for module in layers.modules() if isinstance(module, kinds))


def main(words: list[str] | None = None) -> None:
    """Measure."""
    options = parser(__doc__, minutes=3.0)
    options.add_argument("--tune", action="store_true", help="try many tiles of the int4 kernel")
    options.add_argument("--lists", type=int, default=48, help="lists for the bundled model")
    options.add_argument("--parts", default="products,accuracy", help="which, comma-separated")
    arguments = options.parse_args(words)
    measurement = Measurement(arguments)
    if "products" in arguments.parts:
        for shape in measurement.shapes:
            measurement.products(shape)
    if "accuracy" in arguments.parts:
        measurement.bundled_model(arguments.lists)
        for shape in measurement.shapes:
            if measurement.clock.allows(5):
                measurement.random_model(shape)
            else:
                measurement.losses.leave_out(shape.title, "the time was over")
    if arguments.tune:
        for shape in measurement.shapes:
            measurement.tune(shape)


if __name__ == "__main__":
    main()
