"""Training by replay: tokens a second, memory, and where a step's time goes.

    python -m benchmarks.training --out training.json                        # a GPU, about a minute
    python -m benchmarks.training --shapes qwen3-8b --dummy --seconds 20     # an adapter of a large network

First the gate: on a small network, loss and gradients by the kernels must be those of plain torch. Then each
network, of real shapes and random weights, learns from simulated lessons of teams. `step` is with batches that are
there already, `run` with those that processes make meanwhile; `waiting` is the share of a run's time in which
no batch was ready.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from benchmarks.results import ROOT, circumstances
from benchmarks.shapes import SHAPES
from manyhands.model.adapter import ModelAdapter
from manyhands.model.lora import add_lora
from manyhands.replay.gradients import learn
from manyhands.replay.lessons import Batch, Batches
from manyhands.replay.train import recompute_layers
from manyhands.school.curriculum import Curriculum
from manyhands.school.recipe import read_recipe
from manyhands.school.simulated import Simulated
from manyhands.text import Text

_BUNDLED = {
    "model_type": "qwen3",
    "vocab_size": 1280,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "tie_word_embeddings": True,
}
_SMOLLM2 = {
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "tie_word_embeddings": True,
}
_TINY = _BUNDLED | {"num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2}
_KNOWN = {"bundled": _BUNDLED, "smollm2": _SMOLLM2}


def lessons() -> Simulated:
    """Lessons of teams, in the words and the vocabulary of the bundled model."""
    folder = ROOT / "recipes" / "bundled"
    text = Text(AutoTokenizer.from_pretrained(folder / "tokenizer"))
    return Simulated(Curriculum(), text, read_recipe(folder / "recipe.toml").prompts)


def network(config: dict[str, Any], device: torch.device, dtype: torch.dtype) -> ModelAdapter:
    """A network of these shapes with random weights."""
    settings = dict(config)
    described = AutoConfig.for_model(settings.pop("model_type"), **settings)
    torch.manual_seed(1)
    with device:
        return ModelAdapter(AutoModelForCausalLM.from_config(described, dtype=dtype))


def kinds(adapter: ModelAdapter) -> dict[str, dict[str, Any]]:
    """The ways to attend that there are here: what `Batch.of` is given."""
    found: dict[str, dict[str, Any]] = {"torch": {}}
    if adapter.device.type == "cuda":
        found["strips"] = {"fused": True}
    return found


def gate(device: torch.device) -> dict[str, float]:
    """The largest difference of a gradient from that of plain torch, over its largest number."""
    adapter = network(_TINY, device, torch.float32)
    source = lessons()
    drawn = [source.draw(f"gate/{n}") for n in range(3)]
    found: dict[str, list[torch.Tensor]] = {}
    worst = {}
    for name, how in kinds(adapter).items():
        learn(adapter, [Batch.of(drawn, 1 << 26, **how)])
        found[name] = [p.grad.clone() for p in adapter.model.parameters() if p.grad is not None]
        worst[name] = max(
            float((x - y).abs().max() / y.abs().max().clamp(min=1e-9))
            for x, y in zip(found[name], found["torch"], strict=True)
        )
        print(f"gate: {name} {worst[name]:.1e}", flush=True)
        if worst[name] > 1e-4:
            raise SystemExit(f"the gradients by {name} are not those of plain torch")
    return worst


def timed(action: Callable[[int], int], seconds: float, device: torch.device) -> dict[str, float]:
    """Tokens a second of `action`, which is given a number and says how many tokens it took."""
    action(0), action(1)  # compiles and allots
    _wait(device)
    began, tokens, number = time.monotonic(), 0, 0
    while number < 2 or time.monotonic() - began < seconds:
        tokens += action(number)
        _wait(device)
        number += 1
    taken = time.monotonic() - began
    return {"tokens_per_second": round(tokens / taken), "seconds_per_step": taken / number}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure(title: str, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """All that is measured of one network."""
    is_known = title in _KNOWN
    config = _KNOWN[title] if is_known else SHAPES[title].config
    is_lora = options.dummy
    adapter = network(config, device, torch.bfloat16 if is_lora else torch.float32)
    if is_lora:
        add_lora(adapter.model, options.rank, 2.0 * options.rank)
        recompute_layers(adapter)
    trained = [weight for weight in adapter.model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=device.type == "cuda")
    products = torch.bfloat16 if device.type == "cuda" else None
    outcome: dict[str, Any] = {"parameters": sum(p.numel() for p in adapter.model.parameters())}

    def step(parts: list[Batch]) -> int:
        learn(adapter, parts, products)
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        return sum(part.num_tokens for part in parts)

    source = lessons()
    best = ""
    for name, how in kinds(adapter).items():
        if name == "torch" and title != "bundled" and device.type == "cuda" and not options.plain:
            continue
        data = Batches(source, 1, options.tokens, **how)
        began = time.monotonic()
        ready = [data[n] for n in range(2)]
        making = (time.monotonic() - began) / 2
        torch.cuda.reset_peak_memory_stats() if device.type == "cuda" else None

        def one(number: int, ready: list[list[Batch]] = ready) -> int:
            return step(ready[number % 2])

        found = timed(one, options.seconds, device)
        found["seconds_to_make_a_batch"] = making
        if device.type == "cuda":
            found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        outcome[name], best = found, name
        print(f"{title} {name}: {json.dumps(found)}", flush=True)
    how = kinds(adapter)[best]
    if device.type == "cuda":
        outcome["top"] = top(lambda: step(ready[0]))
        print("\n".join(outcome["top"]), flush=True)
    outcome["run"] = run(Batches(source, 2, options.tokens, **how), step, options, device)
    print(f"{title} run: {json.dumps(outcome['run'])}", flush=True)
    return outcome


def run(
    data: Batches,
    step: Callable[[list[Batch]], int],
    options: argparse.Namespace,
    device: torch.device,
) -> dict[str, float]:
    """With batches that processes make meanwhile."""
    count = max(1, (os.cpu_count() or 1) - 1)
    loader: DataLoader[list[Batch]] = DataLoader(
        data, batch_size=None, sampler=range(10**6), num_workers=count, prefetch_factor=4
    )
    batches = iter(loader)
    step(next(batches))
    _wait(device)
    began, waited, tokens, steps = time.monotonic(), 0.0, 0, 0
    while time.monotonic() - began < 2 * options.seconds:
        asked = time.monotonic()
        parts = next(batches)
        waited += time.monotonic() - asked
        tokens += step(parts)
        _wait(device)
        steps += 1
    taken = time.monotonic() - began
    del batches
    return {
        "tokens_per_second": round(tokens / taken),
        "waiting": waited / taken,
        "steps": steps,
        "processes": count,
    }


def top(action: Callable[[], int]) -> list[str]:
    """The ten kernels that take the most time of one step."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as made:
        action()
        torch.cuda.synchronize()
    rows = sorted(made.key_averages(), key=lambda row: -row.self_device_time_total)
    total = sum(row.self_device_time_total for row in rows)
    lines = [f"device time of a step: {total / 1e3:.1f} ms"]
    lines += [
        f"  {row.self_device_time_total / 1e3:8.2f} ms {row.count:6d}x {row.key[:90]}"
        for row in rows[:12]
    ]
    return lines


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--shapes", nargs="+", default=["smollm2", "bundled"])
    parser.add_argument("--dummy", action="store_true", help="an adapter beside frozen weights")
    parser.add_argument("--plain", action="store_true", help="plain torch too, on a GPU")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default=None, help="of the code that runs, if git cannot tell")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    options.device = str(device)
    outcome: dict[str, Any] = circumstances(options) | {
        "tokens_per_step": options.tokens,
        "gate": gate(device),
    }
    torch.set_float32_matmul_precision("high")
    for title in options.shapes:
        outcome[title] = measure(title, options, device)
        if options.out:
            options.out.write_text(json.dumps(outcome, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
