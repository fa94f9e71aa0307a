"""How many kernels one decode layer launches, before and after the fused modules, attention aside.

    python -m benchmarks.launches               half a minute on one GPU

Two networks of the same shape that differ by two layers are profiled for one pass of four tokens; the
difference, halved, is a layer. Attention is left out: its stand-in launches nothing. Beside the counts
the time of a layer, from CUDA graphs of the two networks.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.quantised import load_config
from benchmarks.results import Clock, Results, parser
from benchmarks.shapes import SHAPES, Shape
from benchmarks.timing import milliseconds
from manyhands.attention.attend import LayerCall
from manyhands.model.adapter import ModelAdapter
from manyhands.model.dummy import dummy_model
from manyhands.model.fusion import fuse_modules

TOKENS = 4
_SHORT, _LONG = 2, 4  # layers


def no_attention(q: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> Tensor:
    """Something of the right shape, without a launch."""
    return torch.empty(*q.shape[:2], v.shape[2], dtype=q.dtype, device=q.device)


@torch.inference_mode()
def count_launches(adapter: ModelAdapter) -> int:
    """Kernels of one pass on a CUDA device, copies within the device among them."""
    tokens = torch.ones(TOKENS, dtype=torch.long, device=adapter.device)
    for _ in range(3):
        adapter.forward(tokens, None, no_attention)
    torch.cuda.synchronize()
    with profile(
        activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU], acc_events=True
    ) as found:
        adapter.forward(tokens, None, no_attention)
        torch.cuda.synchronize()
    return sum(1 for event in found.events() if event.device_type == DeviceType.CUDA)


def measure(shape: Shape, fused: bool, device: torch.device) -> dict[str, float]:
    """Launches and microseconds of one layer."""
    counts, times = [], []
    for layers in (_SHORT, _LONG):
        model = dummy_model(load_config(shape, layers), device=device, dtype=torch.bfloat16)
        adapter = ModelAdapter(model)
        if fused:
            fuse_modules(adapter, "on")
        counts.append(count_launches(adapter))
        tokens = torch.ones(TOKENS, dtype=torch.long, device=device)

        def work(adapter: ModelAdapter = adapter, tokens: Tensor = tokens) -> None:
            with torch.inference_mode():
                adapter.forward(tokens, None, no_attention)

        times.append(milliseconds(work, device))
    per_layer = _LONG - _SHORT
    return {
        "launches": (counts[1] - counts[0]) / per_layer,
        "us": round(1e3 * (times[1] - times[0]) / per_layer, 1),
    }


def main(words: list[str] | None = None) -> None:
    """Measure."""
    arguments: argparse.Namespace = parser(__doc__, minutes=1.0).parse_args(words)
    results = Results("launches", arguments, Clock(arguments.minutes))
    device = torch.device(arguments.device)
    if device.type != "cuda":
        results.leave_out("launches", "there are none without a GPU")
        return
    for name in ("qwen3-8b", "qwq-32b", "codellama-7b"):
        for fused in (False, True):
            facts = measure(SHAPES[name], fused, device)
            results.add("layers", model=SHAPES[name].title, fused=fused, **facts)


if __name__ == "__main__":
    main()
