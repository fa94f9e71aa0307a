"""The gate of the benchmark of experts: stacks that it must find right, and wrong ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.experts import check_experts, stacks_of
from manyhands.model.experts import gate_of
from tests.model.families_zoo import tiny_models

CPU = torch.device("cpu")


class Stack(nn.Module):
    """Three experts whose gate is a SiLU, with biases or without."""

    has_gate, has_post_expert_norm = True, False
    is_transposed, is_concatenated, num_experts = False, True, 3

    def __init__(self, *, has_bias: bool) -> None:
        super().__init__()
        self.act_fn = nn.SiLU()
        self.gate_up_proj = nn.Parameter(torch.randn(3, 16, 4))
        self.down_proj = nn.Parameter(torch.randn(3, 4, 8))
        self.gate_up_proj_bias = nn.Parameter(torch.randn(3, 16)) if has_bias else None
        self.down_proj_bias = nn.Parameter(torch.randn(3, 4)) if has_bias else None

    def _apply_gate(self, both: Tensor) -> Tensor:
        gate, up = both.chunk(2, dim=-1)
        return nn.functional.silu(gate) * up

    def forward(self, x: Tensor, index: Tensor, shares: Tensor) -> Tensor:
        both = torch.einsum("tk,enk->ten", x, self.gate_up_proj)
        both = both if self.gate_up_proj_bias is None else both + self.gate_up_proj_bias
        out = torch.einsum("ten,ekn->tek", self._apply_gate(both), self.down_proj)
        out = out if self.down_proj_bias is None else out + self.down_proj_bias
        chosen = out.gather(1, index[..., None].expand(-1, -1, out.shape[-1]))
        return (shares[..., None] * chosen).sum(1)


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_stack_is_right_with_biases_and_without(has_bias: bool) -> None:
    torch.manual_seed(0)
    stack = Stack(has_bias=has_bias)
    assert gate_of(stack) == ("silu", None)
    with torch.inference_mode():
        assert check_experts(stack, torch.float32, CPU).is_green


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_clamped_stack_is_right_with_biases_and_without(has_bias: bool) -> None:
    torch.manual_seed(0)
    stack: Any = stacks_of(tiny_models()["gpt_oss"]())[0]
    for bias in (stack.gate_up_proj_bias, stack.down_proj_bias):
        bias.data.normal_() if has_bias else bias.data.zero_()
    asked = stack if has_bias else _Unbiased(stack)
    with torch.inference_mode():
        assert check_experts(asked, torch.float32, CPU).is_green


class _Unbiased:
    """A stack that keeps its biases, all zero, to itself."""

    def __init__(self, stack: Any) -> None:
        self.stack = stack

    def __getattr__(self, name: str) -> Any:
        return None if name.endswith("_bias") else getattr(self.stack, name)

    def __call__(self, *given: Tensor) -> Any:
        return self.stack(*given)


def test_a_stack_that_is_wrong_is_red() -> None:
    torch.manual_seed(0)
    stack = Stack(has_bias=True)
    own = stack.forward
    stack.forward = lambda x, index, shares: own(x, index, shares).roll(1, 0)  # type: ignore[method-assign]
    with torch.inference_mode():
        assert not check_experts(stack, torch.float32, CPU).is_green
