"""Small Triton kernels for what stands between a network's large products.

A decode step reads every weight once and computes next to nothing with it, so each extra launch is
time lost. `norms` joins a residual sum with the norms around it, `gated` an activation with its gate,
`rows` scales activations to float8, `skinny` and `w4a16` multiply few tokens with ordinary weights and
with such of four bits (`w4a16_tiles` cuts these products for a device, and `w4a16_ring` is how weights come to a
program when tokens are fewest, by what `copies` has), `gate_up` up to 128 tokens with both halves of a gated weight, `ring` 33 to 128 with weights that fill
Hopper's processors evenly, `experts` tokens with the weights of the experts that were chosen for them, `experts_many` those of prompts, `mxfp4`
with such of four bits, whose share of a thread `fragments` has in common with `w4a16`, and `drawing` takes tokens from
logits. `delta` takes one token of each row through a layer that keeps a state, `delta_many` many tokens. Each has a twin in plain torch beside the module that calls it,
or in Hugging Face's own code (`delta`, `delta_many`): the twin is what runs on a CPU, where Triton is missing, and in the tests that judge the kernel.

The kernels are imported only where they can run: Triton exists for Linux alone.
"""

from __future__ import annotations

import functools
import importlib.util

import torch
from torch import Tensor

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_OLDEST = (8, 0)  # compute capability: Ampere, the first with bfloat16, and what Triton is made for


def usable(x: Tensor) -> bool:
    """Whether kernels can work on `x`: on a CUDA device that is not too old, in a dtype they know, and without a gradient."""
    return x.is_cuda and x.dtype in _DTYPES and not has_gradient(x) and run_on(x.device)


def has_gradient(x: Tensor) -> bool:
    """Whether a gradient has to find its way back through what is made of `x`: no kernel here gives one."""
    return torch.is_grad_enabled() and x.requires_grad


@functools.cache
def run_on(device: torch.device) -> bool:
    """Whether this device is one that Triton, if it is here, makes kernels for."""
    if device.type != "cuda" or not triton_is_here():
        return False
    return torch.cuda.get_device_capability(device) >= _OLDEST


@functools.cache
def triton_is_here() -> bool:
    """Whether the package is installed."""
    return importlib.util.find_spec("triton") is not None


@functools.cache
def have_warpgroups(device: torch.device) -> bool:
    """Whether four warps multiply as one, from shared memory (Hopper and later); what is no CUDA device counts as such a one."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (9, 0)


@functools.cache
def num_processors(device: torch.device) -> int:
    """Streaming multiprocessors of a CUDA device; an H200's number for everything else."""
    if device.type != "cuda":
        return 132
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
