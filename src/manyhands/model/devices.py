"""Where a network lives and in which precision: "auto" and names, resolved once."""

from __future__ import annotations

import warnings

import torch

from manyhands.errors import InvalidRequest, OutOfMemory
from manyhands.model.settings import DTYPES

_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}


def devices_here() -> list[str]:
    """The devices this machine has, as they can be asked for."""
    return ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]


def resolve_device(device: str | torch.device) -> torch.device:
    """The device meant; "auto" is the first GPU, or the CPU where there is none that can be used.

    A GPU may be there and closed: taken by another process, or too old for this PyTorch. Apple's "mps" is not offered: it has no float64 and nobody has run the tests there.
    """
    here = devices_here()
    name = str(device)
    if name == "auto":
        name = "cuda" if len(here) > 1 else "cpu"
    wanted = "cuda:0" if name == "cuda" else name
    if wanted not in here:
        raise InvalidRequest(
            f"device {name!r} is not available", hint=f"available here: auto, {', '.join(here)}"
        )
    found = torch.device(wanted)
    problem = _problem_of(found)
    if problem is None:
        return found
    if str(device) != "auto":
        raise InvalidRequest(
            f"{found} is there and cannot be used: {problem}",
            hint="see in nvidia-smi who uses it; or ask for another device",
        )
    warnings.warn(f"{found} cannot be used, the CPU is: {problem}", stacklevel=2)
    return torch.device("cpu")


def _problem_of(device: torch.device) -> str | None:
    """Why nothing can be computed on a GPU; None if something can."""
    if device.type != "cuda":
        return None
    try:
        torch.zeros(1, device=device).add_(1).item()
    except RuntimeError as error:  # an AcceleratorError, or OutOfMemoryError
        return str(error).strip().partition("\n")[0]
    return None


def resolve_dtype(
    dtype: str | torch.dtype, device: torch.device, checkpoint: torch.dtype | str | None
) -> torch.dtype:
    """The dtype meant; "auto" is the checkpoint's on a GPU and float32 on the CPU.

    A CPU computes float32 fastest and most exactly. A GPU that cannot compute bfloat16 gets float16
    with a warning: it keeps the size of the weights, but a few families overflow in it.
    """
    name = str(dtype).removeprefix("torch.")
    if name == "auto":
        stored = str(checkpoint or "float32").removeprefix("torch.")
        name = "float32" if device.type == "cpu" or stored not in DTYPES else stored
        if name == "bfloat16" and not torch.cuda.is_bf16_supported(including_emulation=False):
            name = "float16"
            warnings.warn(
                "this GPU cannot compute bfloat16, float16 is used instead; if the text is garbage, "
                "ask for float32",
                stacklevel=2,
            )
    if name not in DTYPES:
        raise InvalidRequest(
            f"dtype {name!r} is not available", hint=f"available: auto, {', '.join(DTYPES)}"
        )
    return _DTYPES[name]


def too_small(device: torch.device, model: str) -> OutOfMemory:
    """The error to raise when the weights of `model` did not fit a GPU."""
    free, total = torch.cuda.mem_get_info(device)
    others = total - free - torch.cuda.memory_reserved(device)
    return OutOfMemory(
        f"the weights of {model!r} do not fit the memory of {device}: it has {total / 2**30:.1f} GiB, "
        f"of which other programs hold {max(0, others) / 2**30:.1f}",
        hint="use a smaller model, fewer bits (quantise), or the CPU, or end the other programs",
    )
