"""Float64 all the way, to compare two formulations instead of two roundings.

Hugging Face's code casts to float32 inside norms, rotations and softmax even when the weights are
float64. Inside this mode every such cast, and every tensor made as float32, is float64 instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class DoublePrecision(TorchFunctionMode):
    """Within it, whoever asks for float32 gets float64."""

    is_left = False

    @classmethod
    @contextmanager
    def left(cls) -> Iterator[None]:
        """Meanwhile float32 is float32 again."""
        cls.is_left = True
        try:
            yield
        finally:
            cls.is_left = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if self.is_left:
            return func(*args, **(kwargs or {}))
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
