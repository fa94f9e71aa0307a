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

from manyhands.cache.block import Block
from manyhands.cache.states import EMPTY, RowStates
from manyhands.model import waves
from manyhands.model.adapter import ModelAdapter
from manyhands.model.delta import DeltaLayer
from manyhands.model.kernels import delta, delta_many
from manyhands.model.recurrent import StateCall, States, linear_layers, take_over
from manyhands.model.waves import Wave
from tests.covers import spared
from tests.model.families_zoo import tiny_model
from tests.model.test_delta import DEVICE, GPU, SLOTS, network
from tests.model.test_recurrent import CONFIGS, FLOAT32, Forks

# Of the largest number of an output, and of a state. In float32 both forwards sum in other orders, and theirs has what differences of sums
# lose (`test_chunks_are_tokens_one_by_one`: ours is nearer to float64). In 16 bits a convolution is rounded to the other side now and then, and
# of bfloat16 the norm makes one step of a small head large: the worst of 200 tokens.
OFF = {
    torch.float32: (2e-5, 5e-5),
    torch.float16: (2e-3, 2e-3),
    torch.bfloat16: (4e-2, 2e-2) if GPU else (1e-1, 4e-2),
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
        firsts, counts = zip(*self.rows, strict=True)
        begins, sources, targets = (
            torch.tensor(each, device=DEVICE) for each in (firsts, self.sources, self.targets)
        )
        self.wave = Wave(firsts, counts, begins, sources, targets)
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
        self.x, *others = (each.to(DEVICE, dtype) for each in given)
        gate, a, b, decay, bias, weight = others
        room = torch.full_like(self.x, torch.nan)
        self.made = delta.DeltaProducts(room, gate, a, b, decay, bias, weight, KEY_HEADS, 1e-6)
        self.taps = torch.randn(CHANNELS, TAPS).to(DEVICE, dtype)
        self.inputs = torch.randn(3 + rows, CHANNELS, TAPS - 1).to(DEVICE, dtype)
        self.states = torch.randn(3 + rows, HEADS, DIM_K, DIM_V, device=DEVICE)
        self.inputs[0], self.states[0] = 0, 0
        self.inputs[3:] = self.states[3:] = torch.nan

    def by_kernels(self, made: delta.DeltaProducts | None = None) -> tuple[Tensor, Tensor]:
        """Outputs [T, H Dv], and the states of all slots; inputs are left in their slots."""
        told, states = torch.full_like(self.made.gate, torch.nan).flatten(1), self.states.clone()
        made, wave = made or self.made, self.wave
        slots = wave.sources, wave.targets
        sources, targets = (each[: wave.num_single] for each in slots)
        tokens = wave.single_tokens
        delta.convolve(self.x, self.taps, self.inputs, sources, targets, made.qkv, tokens)
        delta.step(made, states, sources, targets, told, tokens)
        sources, targets = slots
        x, taps, inputs = self.x, self.taps, self.inputs
        delta_many.convolve(x, taps, inputs, sources, targets, wave.chunks, made.qkv)
        for cut in wave.cuts:
            delta_many.rule(made, states, sources, targets, cut.chunks, cut.pieces, told)
        return told, states

    def convolved(self) -> tuple[Tensor, Tensor]:
        """The output of the convolution, in float64, and the last inputs of all slots."""
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
        """Outputs, normed and gated, and the states, of what the kernel's convolution has given."""
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


# Of the largest number: of what a convolution gives, of an output, of a state. Outputs of 16 bits are rounded four times, and each time a step
# may go to the other side. A state is never rounded; what is left there are products in two parts of bfloat16, which the interpreter cuts off.
EXACT = {
    torch.float32: (1e-6, 1e-5, 4e-6),
    torch.float16: (1e-3, 2e-3, 3e-4),
    torch.bfloat16: (2e-2, 4e-2, 2e-4),
}


def off(found: Tensor, right: Tensor) -> float:
    """The worst number, of the largest one."""
    return float((found.double() - right).abs().max() / right.abs().max())


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_are_tokens_one_by_one(kind: str, dtype: torch.dtype) -> None:
    """Rows of 1 to 130 tokens in one launch each, in float64: decays below all numbers, of a hundred thousandth, and keys that are alike."""
    given = Given(kind, dtype)
    convolved, inputs = given.convolved()
    told, states = given.by_kernels()
    assert torch.equal(given.inputs[:3], inputs[:3])
    assert torch.equal(given.inputs, inputs), "inputs are moved, and nothing is computed"
    assert torch.equal(states[:3], given.states[:3]), "what is no target stays"
    exact, left = given.exact()
    limits = EXACT[dtype]
    assert off(given.made.qkv, convolved) < limits[0]
    assert off(told, exact) < limits[1]
    for row, target in enumerate(given.targets):
        assert off(states[target], left[target]) < limits[2], LENGTHS[row]


@pytest.mark.parametrize(
    "mistake", ["decay", "bias", "weight", "a", "b", "gate", "key_heads", "eps", "taps", "inputs"]
)
def test_control_every_number_of_a_layer_shows(mistake: str) -> None:
    given = Given("plain", torch.float32, (1, 70))
    right = given.by_kernels()
    if mistake in ("taps", "inputs"):
        numbers: Tensor = getattr(given, mistake)
        numbers[0] += 0.01
        numbers[1] += 0.01
        wrong = given.by_kernels()
    elif mistake == "key_heads":
        wrong = given.by_kernels(given.made._replace(key_heads=1))
    elif mistake == "eps":
        wrong = given.by_kernels(given.made._replace(eps=1e-3))
    else:
        changed = {mistake: getattr(given.made, mistake) + 0.01}
        wrong = given.by_kernels(given.made._replace(**changed))
    assert off(wrong[0], right[0].double()) > 10 * EXACT[torch.float32][1]


def test_launches_that_are_cut_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """In launches of two chunks each row goes on from its own target: bit for bit."""
    lengths = (1, 70, 2, 130, 300)
    given = Given("plain", torch.float32, lengths)
    assert len(given.wave.cuts) == 1
    whole = given.by_kernels()
    monkeypatch.setattr(waves, "MOST_CHUNKS", 2)
    given = Given("plain", torch.float32, lengths)
    assert len(given.wave.cuts) == 6
    cut = given.by_kernels()
    assert torch.equal(cut[0], whole[0])
    assert torch.equal(cut[1], whole[1])


@pytest.mark.parametrize("column", ["before", "row", "last", "begun"])
def test_control_every_integer_of_a_chunk_shows(
    column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waves, "MOST_CHUNKS", 2)
    given = Given("plain", torch.float32, (70, 130))
    right = given.by_kernels()
    inputs = given.inputs.clone()
    if column == "begun":
        given.wave.cuts[2].pieces[:, 4] = 0
    elif column == "row":
        for cut in given.wave.cuts:
            cut.pieces[:, 3] = 0
    else:
        given.wave.chunks[:, {"before": 2, "last": 4}[column]] = 0
    given.inputs[3:] = torch.nan
    wrong = given.by_kernels()
    if column == "last":
        assert not torch.equal(given.inputs, inputs)
    else:
        assert off(wrong[0], right[0].double()) > 0.01


def test_a_prompt_in_parts_is_the_prompt() -> None:
    """Rows that are fed 70 tokens, and 60 more from the state that these leave, are rows that are fed 130."""
    whole = Given("plain", torch.float32, (130, 130))
    told, states = whole.by_kernels()
    parts = Given("plain", torch.float32, (130, 130))
    found = torch.empty_like(told)
    x, made, first, targets = parts.x, parts.made, parts.wave.sources, parts.wave.targets
    for begin, end in ((0, 70), (70, 71), (71, 130)):
        rows = torch.cat([torch.arange(begin, end), torch.arange(130 + begin, 130 + end)])
        size = end - begin
        begins = torch.tensor([0, size], device=DEVICE)
        sources = first if begin == 0 else targets
        # Slots are not read and written in one pass: the newer ones are copied over.
        parts.inputs, parts.states = (
            torch.cat([each[:5], each[:5]]) for each in (parts.inputs, parts.states)
        )
        parts.wave = Wave((0, size), (size, size), begins, sources, targets + 5)
        parts.x, parts.made = (
            x[rows],
            made._replace(
                qkv=torch.empty_like(x[rows]), gate=made.gate[rows], a=made.a[rows], b=made.b[rows]
            ),
        )
        found[rows], new = parts.by_kernels()
        parts.states = torch.cat([new[:3], new[8:10]])
        parts.inputs = torch.cat([parts.inputs[:3], parts.inputs[8:10]])
    assert off(found, told.double()) < EXACT[torch.float32][1]
    assert off(parts.states[3:], states[3:].double()) < EXACT[torch.float32][2]


def test_rows_in_another_order_than_they_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = RowStates((0, 3, 4, 9), (3, 2, 1), (4, 5, 6), (8, 0, 1, 7, 2, 3, 4, 5, 6))
    theirs, ours = both(network("qwen3_5_text", torch.float32), 0, rows, monkeypatch)
    straight = RowStates((0, 3, 4, 9), (3, 2, 1), (4, 5, 6))
    for mine, right, others in zip(
        ours,
        theirs,
        both(network("qwen3_5_text", torch.float32), 0, straight, monkeypatch)[1],
        strict=True,
    ):
        assert off(mine, right.double()) < OFF[torch.float32][1]
        assert off(others, right.double()) > 0.01


@pytest.mark.skipif(
    GPU,
    reason="the engine's network is on the CPU, and there the kernels run by the interpreter alone",
)
@pytest.mark.parametrize("name", ["qwen3_5_text", *spared("qwen3_next", "qwen3_5_moe_text")])
def test_an_engine_s_rows_are_their_plain_texts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt in parts beside rows that write, and forks of it in the pass that feeds its end, beside Hugging Face's own network."""
    monkeypatch.setattr(DeltaLayer, "serves", lambda *_: True)
    plain, taken = (tiny_model(CONFIGS[name]) for _ in range(2))
    prompt, a, b, fork = ((Block(each),) for each in "pabf")
    passes: list[list[tuple[tuple[Block, ...], int]]] = [
        [(a, 5), (b, 2)],
        [(prompt, 70), (a, 1), (b, 1)],
        [(prompt, 2), (a, 1), (b, 1)],
        [(prompt, 66), (a, 1), (prompt + fork, 3), (b, 1)],
    ]
    with torch.no_grad():
        forks = Forks(ModelAdapter(taken))
        for rows in passes:
            for (view, _), logits in zip(rows, forks.feed(rows), strict=True):
                text = torch.tensor([forks.text(view)])
                right = plain(input_ids=text, use_cache=False).logits[0, -1]
                assert (right - logits).abs().max() < FLOAT32
