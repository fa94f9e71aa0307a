"""Many tokens of a row through a layer that keeps a state, by kernels: against Hugging Face's own forward of that layer, and in float64.

Without a GPU the kernels run under Triton's interpreter, which cuts bfloat16 off where a GPU rounds, and multiplies in float32 whatever
precision a product asks for.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton exists for Linux alone")

from manyhands.cache.states import EMPTY, RowStates
from manyhands.model import waves
from manyhands.model.delta import DeltaLayer
from manyhands.model.kernels import delta, delta_many
from manyhands.model.recurrent import StateCall, States, linear_layers, take_over
from manyhands.model.waves import Wave
from tests.covers import spared
from tests.model.test_delta import DEVICE, GPU, SLOTS, network

# Of the largest number of an output, and of a state. In float32 a state is the sum of what 130 tokens have changed, and both forwards are
# as far from float64. What is left of float16's is one step where a convolution is rounded to the other side.
OFF = {
    torch.float32: (2e-5, 5e-5),
    torch.float16: (2e-3, 2e-3),
    torch.bfloat16: (2e-2, 2e-2) if GPU else (4e-2, 4e-2),
}
# Two rows fork from one text, one begins, one goes on from what another one leaves here; lengths around taps and chunks.
MIXED = RowStates((0, 1, 131, 133, 196, 197, 200), (3, 3, EMPTY, 2, 5, 4), (4, 5, 6, 7, 8, 1))
TOUCHED = {4, 5, 6, 7, 8, 1}
def both(
    model: Any, layer: int, rows: RowStates, monkeypatch: pytest.MonkeyPatch, size: float = 3.0
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Output, last inputs and states behind a pass of these rows, by Hugging Face's forward and by kernels."""
    states = States(model, SLOTS)
    store = states.stores[layer]
    torch.manual_seed(1)
    before = torch.randn_like(store.inputs), torch.randn_like(store.states)
    tokens = rows.row_indptr[-1]
    hidden = size * torch.randn(1, tokens, model.config.hidden_size).to(store.inputs)
    take_over(model)
    found = []
    for by_kernels in (False, True):
        monkeypatch.setattr(DeltaLayer, "serves", lambda *_, told=by_kernels: told)
        for kept, numbers in zip((store.inputs, store.states), before, strict=True):
            kept.copy_(numbers)
            kept[EMPTY] = 0
        with torch.inference_mode():
            hook = SimpleNamespace(states=StateCall.of(states, rows))
            out = linear_layers(model)[layer](hidden, manyhands_attend=hook)
        found.append((out.float(), store.inputs.clone(), store.states.clone()))
    return found


@pytest.mark.parametrize("dtype", OFF, ids=str)
@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5_text", *spared("qwen3_5_moe_text")])
def test_a_pass_is_hugging_face_s(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network(name, dtype)
    for layer in linear_layers(model):
        theirs, ours = both(model, layer, MIXED, monkeypatch)
        # Of float32 a product of all rows has other sums than one of some.
        off = 1e-6 if dtype == torch.float32 else 0
        assert (ours[1] - theirs[1]).abs().max() <= off * theirs[1].abs().max()
        # A text that begins tells next to nothing in its first tokens, and the norm makes one step of bfloat16 large.
        at = [each for each in range(200) if each not in (131, 132) or dtype != torch.bfloat16]
        outs = ours[0][:, at], theirs[0][:, at]
        for (mine, right), off in zip((outs, (ours[2], theirs[2])), OFF[dtype], strict=True):
            assert (mine - right).abs().max() < off * right.abs().max()
        read = sorted({*range(SLOTS + 2)} - TOUCHED)
        assert torch.equal(ours[2][read], theirs[2][read]), "what is no target stays"
        assert torch.equal(ours[1][read], theirs[1][read])


HEADS, KEY_HEADS, DIM_K, DIM_V, TAPS = 4, 2, 12, 20, 4
CHANNELS = 2 * KEY_HEADS * DIM_K + HEADS * DIM_V
LENGTHS = (1, 2, 3, 4, 63, 64, 65, 130)
# How fast a state is forgotten, and how alike keys are.
KINDS = ("plain", "all at once", "nothing", "alike")


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers of float32 as a kernel rounds them."""
    if dtype == torch.bfloat16 and not GPU:
        return (x.view(torch.int32) & -65536).view(torch.float32)
    return x.to(dtype)


class Given:
    """Numbers for kernels of one layer, and what float64 makes of them, token by token."""

    def __init__(self, kind: str, dtype: torch.dtype, lengths: tuple[int, ...] = LENGTHS) -> None:
        torch.manual_seed(5)
        tokens, rows = sum(lengths), len(lengths)
        indptr = [sum(lengths[:row]) for row in range(rows + 1)]
        counts, order = zip(*sorted((count, row) for row, count in enumerate(lengths)), strict=True)
        self.rows = [(indptr[row], count) for count, row in zip(counts, order, strict=True)]
        # All go on from the same two texts, or from none.
        self.sources, self.targets = [(row % 3) for row in range(rows)], list(range(3, 3 + rows))
        self.wave = Wave(
            *zip(*self.rows, strict=True),
            *(
                torch.tensor(each, device=DEVICE)
                for each in ([first for first, _ in self.rows], self.sources, self.targets)
            ),
        )
        drawn = [torch.randn(tokens, CHANNELS), torch.randn(tokens, HEADS, DIM_V)]
        a, b = torch.randn(tokens, HEADS), torch.randn(tokens, HEADS)
        decay, bias = -2 * torch.rand(HEADS), torch.randn(HEADS)
        if kind == "all at once":  # most numbers below float32's least one, some in between
            a[::3] += 200
            a[7::11] += 5000
        elif kind == "nothing":
            a -= 16
        elif kind == "alike":
            drawn[0][:, : 2 * KEY_HEADS * DIM_K] = torch.randn(2 * KEY_HEADS * DIM_K)
            a, b = a - 16, b + 6
        given = (*drawn, a, b, decay, bias, torch.randn(DIM_V))
        on_device = [each.to(DEVICE, dtype) for each in given]
        self.x = on_device[0]
        self.made = delta.Products(
            torch.full_like(self.x, torch.nan), *on_device[1:], key_heads=KEY_HEADS, eps=1e-6
        )
        self.taps = torch.randn(CHANNELS, TAPS).to(DEVICE, dtype)
        self.inputs = torch.randn(3 + rows, CHANNELS, TAPS - 1).to(DEVICE, dtype)
        self.states = torch.randn(3 + rows, HEADS, DIM_K, DIM_V, device=DEVICE)
        self.inputs[0], self.states[0] = 0, 0
        self.inputs[3:] = self.states[3:] = torch.nan

    def by_kernels(self, made: delta.Products | None = None) -> tuple[Tensor, Tensor]:
        """Outputs [T, H Dv], and the states of all slots; inputs are left in their slots."""
        told, states = torch.full_like(self.made.gate, torch.nan).flatten(1), self.states.clone()
        made, wave = made or self.made, self.wave
        slots = [wave.sources, wave.targets]
        own = [each[: wave.num_single] for each in slots]
        delta.convolve(self.x, self.taps, self.inputs, *own, made.qkv, wave.single_tokens)
        delta.step(made, states, *own, told, wave.single_tokens)
        delta_many.convolve(self.x, self.taps, self.inputs, *slots, wave.chunks, made.qkv)
        for cut in wave.cuts:
            delta_many.rule(made, states, *slots, *cut, told)
        return told, states

    def convolved(self) -> tuple[Tensor, Tensor]:
        """What the convolution gives, in float64, and the last inputs of all slots."""
        out, inputs = torch.empty_like(self.x, dtype=torch.float64), self.inputs.clone()
        for (first, count), source, target in zip(
            self.rows, self.sources, self.targets, strict=True
        ):
            told = torch.cat([self.inputs[source], self.x[first : first + count].T], 1)
            windows = told.double().unfold(1, TAPS, 1)
            total = (windows * self.taps.double()[:, None]).sum(-1).T
            out[first : first + count] = total * total.sigmoid()
            inputs[target] = told[:, -(TAPS - 1) :]
        return out, inputs

    def exact(self) -> tuple[Tensor, Tensor]:
        """What is told, normed and gated, and the states, of what the kernel's convolution has given."""
        made, dtype = self.made, self.x.dtype
        sizes = [KEY_HEADS * DIM_K, KEY_HEADS * DIM_K, HEADS * DIM_V]
        q, k, v = made.qkv.double().split(sizes, 1)
        q, k = (each.reshape(-1, KEY_HEADS, DIM_K) for each in (q, k))
        q, k = (each / (each.square().sum(-1, keepdim=True) + 1e-6).sqrt() for each in (q, k))
        group = HEADS // KEY_HEADS
        q, k = (each.repeat_interleave(group, 1) for each in (q * DIM_K**-0.5, k))
        v = v.reshape(-1, HEADS, DIM_V)
        into = (made.a.float() + made.bias.float()).double()
        g = -made.decay.double().exp() * torch.logaddexp(into, torch.zeros_like(into))
        beta = rounded(made.b.float().sigmoid(), dtype).double()
        states = self.states.double()
        out = torch.empty(len(q), HEADS, DIM_V, dtype=torch.float64, device=DEVICE)
        for (first, count), source, target in zip(
            self.rows, self.sources, self.targets, strict=True
        ):
            state = states[source]
            for token in range(first, first + count):
                state = state * g[token].exp()[:, None, None]
                known = (state * k[token][..., None]).sum(1)
                new = (v[token] - known) * beta[token][:, None]
                state = state + k[token][..., None] * new[:, None]
                out[token] = (state * q[token][..., None]).sum(1)
            states[target] = state
        out = out.to(dtype).double()
        out = out / (out.square().mean(-1, keepdim=True) + made.eps).sqrt()
        out = (out.to(dtype).double() * made.weight.double()).to(dtype).double()
        gate = made.gate.double()
        return (out * gate * gate.sigmoid()).flatten(1), states


# Of the largest number. An output of 16 bits is rounded four times, and a norm makes small ones large; a state never.
EXACT = {torch.float32: (3e-5, 4e-6), torch.float16: (4e-3, 4e-6), torch.bfloat16: (4e-2, 6e-5)}


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_are_tokens_one_by_one(kind: str, dtype: torch.dtype) -> None:
    given = Given(kind, dtype)
    convolved, inputs = given.convolved()
    told, states = given.by_kernels()
    print(kind, dtype, ((given.made.qkv.double() - convolved).abs().max() / convolved.abs().max()).item())
    assert torch.equal(given.inputs, inputs), "inputs are moved, and nothing is computed"
    exact, left = given.exact()
    print(((told.double() - exact).abs().max() / exact.abs().max()).item(), ((states - left)[1:].nan_to_num().abs().max() / left.nan_to_num().abs().max()).item())
    print(((states - left)[3:].abs().amax((1, 2,3)) / left[3:].abs().amax((1,2,3))))
