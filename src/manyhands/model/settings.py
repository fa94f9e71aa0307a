"""What can be chosen about a model and the engine around it: each choice with its default, once.

    settings = ModelSettings("Qwen/Qwen3-8B", dtype="bfloat16", context=32768)
    engine = Engine.load(settings)          # the same as Engine.load("Qwen/Qwen3-8B", dtype=..., context=...)

Plain data, frozen, without torch. A value is checked where it is used first: a name of a device in
`model/devices.py`, of a backend in `engine/backends.py`, and so on; all of them before weights are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelSettings:
    """Which model, where, and with how much memory.

    Args:
        model: A folder, a name on the Hugging Face hub, or a causal language model already built.
        device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N".
        dtype: "auto" (the checkpoint's on a GPU, float32 on the CPU) or the name of a dtype.
        backend: Which attention: "auto", "triton", "torch" or "reference" (`engine/backends.py`).
        weights: "auto", or "dummy" for random weights in the real architecture.
        quantise: How linear layers keep their weights: "auto", "none", "fp8" or "int4" (`load_adapter`).
        fuse: Whether modules are fused: "auto", "on" or "off" (`model/fusion.py`).
        memory_tokens: Tokens whose keys and values fit in memory; None: as many as there is room for.
        context: The longest view in tokens; None: all the model was made for.
        overcommit: Runs are admitted until their reservations come to so many times the memory; those
            that then do not fit leave for a while and come back (`engine/guests.py`). 1: never.
        max_tokens_per_pass: Tokens fed by one forward pass at most, which bounds its activations.

    """

    model: Any = ""
    device: str = "auto"
    dtype: str = "auto"
    backend: str = "auto"
    weights: str = "auto"
    quantise: str = "auto"
    fuse: str = "auto"
    memory_tokens: int | None = None
    context: int | None = None
    overcommit: float = 1.5
    max_tokens_per_pass: int = 8192
