"""On a CPU: a worker's pass and a team's, and a prompt, beside transformers and llama.cpp.

    python -m benchmarks.cpu --model SmolLM2-135M-Instruct.Q4_1.gguf --threads 1,2
    python -m benchmarks.cpu --products --threads 1,2        # the products of such a network alone

Each side is a process of its own with so many threads, and the sides take turns, so that a busy moment of the
machine does not fall on one of them. A pass reads about 1 100 tokens. The floor of a side is the time in which
its threads read the bytes of its weights; how fast they read is measured before each round.

First the gate: greedy tokens and logits of each of our ways against transformers in float32. llama.cpp comes from
the package `xllamacpp`, in a folder that `--llama` names (`pip install --target FOLDER xllamacpp`), and is left out
otherwise. It computes with activations in eight bits, so its tokens may differ.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from torch import Tensor

from benchmarks.results import ROOT, Clock, Results, parser

if TYPE_CHECKING:
    from manyhands.model.settings import Fuse, Quantise

# Ours: how weights are held. The first is torch's own linear layer, as it was before `model/host_linear.py`.


class Way(TypedDict, total=False):
    """Fields of `ModelSettings` in which one way of ours differs from the next."""

    quantise: Quantise
    fuse: Fuse


OURS: dict[str, Way] = {
    "ours, float32, plain layers": {"quantise": "none", "fuse": "off"},
    "ours, float32": {"quantise": "none"},
    "ours": {},
}
PEERS = {"transformers, float32": "float32", "llama.cpp": ""}
TEAMS = (1, 2, 4)
_PASSES, _WARM = 24, 8
_PROMPT, _HISTORY = 2048, 1024  # tokens
_TEXT = (ROOT / "docs" / "house.md").read_text(encoding="utf-8")


def median(seconds: list[float]) -> float:
    """In milliseconds."""
    return round(1e3 * statistics.median(seconds), 2)


def timed(call: Callable[[], object], times: int) -> list[float]:
    """Seconds of each call."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return found


def reading_speed() -> float:
    """Bytes a second that this process's threads read from memory: the best of a few sums over 512 MB."""
    numbers = torch.ones(1 << 27)
    return numbers.nbytes / min(timed(numbers.sum, 6))


# -- sides: each runs in a process of its own, and prints one line ---------------------------------


def ours(model: str, way: str, sizes: argparse.Namespace) -> dict[str, Any]:
    """Passes of teams, and a prompt."""
    from benchmarks.engine_parts import executor_of
    from manyhands import Engine, TeamSettings, hogwild
    from manyhands.model.adapter import weight_bytes
    from manyhands.strategies.settings import EndSettings

    began = time.perf_counter()
    engine = Engine.load(model, device="cpu", memory_tokens=8192, **OURS[way])
    found: dict[str, Any] = {"load_s": round(time.perf_counter() - began, 2)}
    text = engine.text
    found["bytes"] = weight_bytes(executor_of(engine).adapter)
    settings = [
        TeamSettings(workers=team, budget=512, check_every=0, end=EndSettings(reply=False))
        for team in TEAMS
    ]
    for team, one in zip(TEAMS, settings, strict=True):
        problem = text.decode(text.encode(_TEXT)[: sizes.history])
        run = engine.submit(hogwild(problem, text, one))
        timed(engine.step, 1 + sizes.warm)
        found[f"pass_{team}_ms"] = median(timed(engine.step, sizes.passes))
        engine.cancel(run)
    problem = text.decode(text.encode(_TEXT)[-sizes.prompt :])
    before = engine.usage.tokens_fed
    engine.submit(hogwild(problem, text, settings[0]))
    (seconds,) = timed(engine.step, 1)
    tokens = engine.usage.tokens_fed - before
    return {**found, "prompt_tokens": tokens, "prompt_s": round(seconds, 3)}


def _network(model: str, dtype: str) -> tuple[Any, Any]:
    from manyhands.model.loading import find_format

    found = find_format(Path(model))
    assert found.file is not None, "the benchmark reads a GGUF file"
    place, precision = torch.device("cpu"), getattr(torch, dtype)
    network = found.file.network(device=place, dtype=precision, unpacked=True)
    return network, found.tokenizer(required=True)


def _stamp(stamps: list[float], *_: object) -> None:
    stamps.append(time.perf_counter())


def transformers_side(model: str, way: str, sizes: argparse.Namespace) -> dict[str, Any]:
    """A row that `generate` decodes, and a prompt."""
    network, tokenizer = _network(model, PEERS[way])
    ids = torch.tensor([tokenizer(_TEXT, add_special_tokens=False)["input_ids"]])
    found: dict[str, Any] = {}
    with torch.inference_mode():
        for rows in TEAMS:
            some = ids[:, : sizes.history].expand(rows, -1)
            stamps: list[float] = []
            hook = network.register_forward_hook(functools.partial(_stamp, stamps))
            network.generate(
                some,
                attention_mask=torch.ones_like(some),
                max_new_tokens=sizes.warm + sizes.passes,
                min_new_tokens=sizes.warm + sizes.passes,
                do_sample=False,
                pad_token_id=0,
            )
            hook.remove()
            gaps = [b - a for a, b in itertools.pairwise(stamps)]
            found[f"pass_{rows}_ms"] = median(gaps[sizes.warm - 1 :])
        prompt = ids[:, -sizes.prompt :]
        (seconds,) = timed(lambda: network(prompt, use_cache=True, logits_to_keep=1), 1)
    size = sum(weight.nbytes for weight in network.parameters())
    return {**found, "bytes": size, "prompt_tokens": prompt.shape[1], "prompt_s": round(seconds, 3)}


def llama_side(model: str, threads: int, sizes: argparse.Namespace) -> dict[str, Any]:
    """A row that llama.cpp decodes, and a prompt, by its own clock, which does not tell passes of several rows."""
    library: Any = importlib.import_module("xllamacpp")
    given = library.CommonParams()
    given.model.path, given.n_ctx, given.n_parallel = model, 4096, 1
    given.cpuparams.n_threads = given.cpuparams_batch.n_threads = threads
    server = library.Server(given)
    asked = {"temperature": 0.0, "ignore_eos": True, "cache_prompt": False}
    words = _TEXT.split(" ")  # read in llama.cpp's own tokens; it says how many they were
    prompt = {**asked, "prompt": " ".join(words[-sizes.prompt // 2 :]), "n_predict": 1}
    said = server.handle_completions(prompt)["timings"]
    row = {**asked, "prompt": " ".join(words[: sizes.history // 2]), "n_predict": sizes.passes}
    decoded = server.handle_completions(row)["timings"]
    return {
        "bytes": Path(model).stat().st_size,
        "pass_1_ms": round(decoded["predicted_per_token_ms"], 2),
        "history_tokens": decoded["prompt_n"],
        "prompt_tokens": said["prompt_n"],
        "prompt_s": round(said["prompt_ms"] / 1e3, 3),
    }


# -- the gate, and the products alone --------------------------------------------------------------


def gate(model: str, sizes: argparse.Namespace) -> list[dict[str, Any]]:
    """Each of our ways against transformers in float32: logits of a text, and the likeliest tokens."""
    from manyhands.engine.local_executor import load_network
    from manyhands.model.self_test import exact_attention
    from manyhands.model.settings import ModelSettings

    network, tokenizer = _network(model, "float32")
    ids = torch.tensor(tokenizer(_TEXT, add_special_tokens=False)["input_ids"][: sizes.history])
    lines = []
    with torch.inference_mode():
        expected = network(ids[None]).logits[0]
        for way, given in OURS.items():
            adapter = load_network(ModelSettings(model=model, device="cpu", **given)).adapter
            logits = adapter.forward(ids, None, exact_attention(adapter.ropes))
            same = (logits.argmax(-1) == expected.argmax(-1)).float().mean()
            deviation = float((logits - expected).abs().max())
            lines.append({"way": way, "worst_logit": deviation, "same_tokens": float(same)})
    return lines


def products(threads: int) -> list[dict[str, Any]]:
    """The products of ten of SmolLM2-135M's layers, of so many tokens, by torch and as they are laid out."""
    from manyhands.model.host_linear import HostLinear, Layout

    shapes = [(960, 576), (576, 576), (3072, 576), (576, 1536)] * 10
    lines = []
    with torch.inference_mode():
        plain = [torch.nn.Linear(width, height, bias=False) for height, width in shapes]
        layouts: tuple[Layout, ...] = ("halves", "blocks")
        sides: dict[str, Sequence[torch.nn.Linear | HostLinear]] = {"plain": plain}
        sides |= {layout: [HostLinear(layer, layout) for layer in plain] for layout in layouts}
        for tokens in (1, 2, 4, 8, 16, 64, 512):
            inputs = {width: torch.randn(tokens, width) for width in (576, 1536)}
            line: dict[str, Any] = {"threads": threads, "tokens": tokens}
            for name, layers in sides.items():

                def all_of_them(
                    layers: Sequence[torch.nn.Linear | HostLinear] = layers,
                    inputs: dict[int, Tensor] = inputs,
                ) -> None:
                    for layer in layers:
                        layer(inputs[layer.in_features])

                all_of_them()
                line[f"{name}_ms"] = median(timed(all_of_them, 7))
            lines.append(line)
    return lines


def _in_a_process(arguments: argparse.Namespace, side: str, threads: int) -> Any:
    command = [sys.executable, "-m", "benchmarks.cpu", "--side", side, "--threads", str(threads)]
    command += ["--model", str(arguments.model)] + ["--tiny"] * arguments.tiny
    path = [arguments.llama, os.environ.get("PYTHONPATH")]
    done = subprocess.run(
        command,
        env={
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "PYTHONPATH": os.pathsep.join(str(part) for part in path if part),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(
            done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        )
    return json.loads(done.stdout.strip().rpartition("\n")[2])


def _sizes(arguments: argparse.Namespace) -> argparse.Namespace:
    small = argparse.Namespace(history=32, prompt=64, passes=2, warm=1)
    large = argparse.Namespace(history=_HISTORY, prompt=_PROMPT, passes=_PASSES, warm=_WARM)
    return small if arguments.tiny else large


def _side(arguments: argparse.Namespace) -> Any:
    """One side, in this process."""
    model, sizes, threads = str(arguments.model), _sizes(arguments), int(arguments.threads)
    torch.set_num_threads(threads)
    if arguments.side == "reading":
        return reading_speed()
    if arguments.side == "gate":
        return gate(model, sizes)
    if arguments.side == "products":
        return products(threads)
    if arguments.side in OURS:
        return ours(model, arguments.side, sizes)
    if arguments.side == "llama.cpp":
        return llama_side(model, threads, sizes)
    return transformers_side(model, arguments.side, sizes)


def main() -> None:
    """All sides in turns, or one of them."""
    options = parser(__doc__, 20)
    options.add_argument("--model", type=Path, help="a GGUF file")
    options.add_argument("--threads", default="1,2")
    options.add_argument("--turns", type=int, default=3)
    options.add_argument("--llama", help="a folder with the package xllamacpp")
    options.add_argument("--products", action="store_true", help="the products alone")
    options.add_argument("--side", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.side:
        print(json.dumps(_side(arguments)))
        return
    clock = Clock(arguments.minutes)
    results = Results("cpu_products" if arguments.products else "cpu", arguments, clock)
    threads = [int(word) for word in str(arguments.threads).split(",")]
    if arguments.products:
        for number in threads:
            for line in _in_a_process(arguments, "products", number):
                results.add("products", **line)
        return
    for line in _in_a_process(arguments, "gate", max(threads)):
        results.add("gate", **line)
    peers = [] if arguments.no_peers else list(PEERS)
    for turn in range(arguments.turns):
        for number in threads:
            speed = _in_a_process(arguments, "reading", number)
            for side in (*OURS, *peers):
                if not clock.allows(30):
                    results.leave_out(f"{side}, turn {turn}", "no time was left")
                    continue
                load = round(os.getloadavg()[0], 2)
                with results.surviving(side):
                    line = _in_a_process(arguments, side, number)
                    floor = round(1e3 * line["bytes"] / speed, 2)
                    results.add(
                        "sides",
                        side=side,
                        threads=number,
                        turn=turn,
                        load=load,
                        floor_ms=floor,
                        **line,
                    )


if __name__ == "__main__":
    main()
