"""Float64 all the way, to compare two formulations instead of two roundings.

Hugging Face's code casts to float32 inside norms, rotations and softmax even when the weights are
float64. Inside this mode every such cast, and every tensor made as float32, is float64 instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class DoublePrecision(TorchFunctionMode):
    """Within it, whoever asks for float32 gets float64."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        func = torch.Tensor.double if func is torch.Tensor.float else func
        # Most calls name no type, and there are half a million: these are passed on as they came.
        for value in args:
            if value is torch.float32:
                args = tuple(map(_wider, args))
                break
        if kwargs:
            return func(*args, **{key: _wider(value) for key, value in kwargs.items()})
        return func(*args)


def _wider(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value
