"""A stack of experts in mxfp4, as gpt-oss is published: numbers of four bits, and for every 32 inputs one power of two.

The layout is the Open Compute Project's (OCP Microscaling Formats, version 1.0, section 5.3):

    blocks    bytes [E, N, K / 32, 16]: two numbers each, the one of the even input in the lower half
    scales    bytes [E, N, K / 32]: exponents of two, 127 more than they are
    number    a sign, two bits of an exponent and one of a mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives

Gates and values are outputs in turns. Here the same bits are put into the one order that our kernel (`kernels/mxfp4.py`) reads:

    words     int32 [E, N / 64, K / 32, 256]: outputs and inputs as `w4a16.pack` orders them, and in each half of a word, of
              its four numbers, the first's sign in bit 15 and its other three in bits 8 to 6; the second's in 9 and 2 to 0; the
              third's in 3 and, in the other half, 12 to 10; the fourth's in 13 and, the first of three in the other half, 14, 5, 4
    factors   int32 [E, N / 64, K / 32, 16], bytes of four outputs, p and g before each other: scale + 126

On a GPU, in bfloat16, all tokens go through our kernel; elsewhere, and where a gradient has to find its way back, the experts that
are asked for are unpacked one by one.

    T  tokens      E  experts      C  experts of a token      K  inputs      F  width inside an expert      N  outputs
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from manyhands.attention.launches import has_gluon
from manyhands.errors import UnsupportedModel
from manyhands.model import kernels
from manyhands.model.quantised.w4a16 import BLOCK, STEP, pack, unpack

PRODUCTS = ("gate_up_proj", "down_proj")
PARTS = ("blocks", "scales", "bias")  # as published
_HELD = ("words", "factors", "bias")  # as kept here
# Of the four numbers in half a word, where their bits are put: mantissa, exponent (two), sign. Beyond 15: in the other half.
_MOVES = ((6, 7, 8, 15), (0, 1, 2, 9), (26, 27, 28, 3), (4, 5, 30, 13))
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_LARGEST = 128  # of a scale: what its factor can say
_BIAS = 127
NO_NUMBER = 255  # said by a scale
_SPREAD = 2.93  # of numbers whose bits are random
_AGAIN = "download the checkpoint again"
_HINT = f'{_AGAIN}, or unpack it: quantise="none"'


class Mxfp4Stack(nn.Module):
    """The experts of a layer; see the module for how their bits lie. Only biases are parameters."""

    gate_up_proj_words: Tensor
    gate_up_proj_factors: Tensor
    gate_up_proj_bias: nn.Parameter  # [E, 2 F]
    down_proj_words: Tensor
    down_proj_factors: Tensor
    down_proj_bias: nn.Parameter  # [E, N]

    def __init__(
        self, stack: Any, tensors: Mapping[str, Tensor], biases: Mapping[str, Tensor]
    ) -> None:
        """Words and factors of both products; sizes and the gate are those of `stack`, one of the modelling code."""
        super().__init__()
        self.num_experts = int(stack.num_experts)
        self.hidden_size = int(stack.hidden_size)
        self.intermediate_size = int(stack.intermediate_size)
        self.alpha, self.limit = float(stack.alpha), float(stack.limit)
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)
        for name, bias in biases.items():
            self.register_parameter(name, nn.Parameter(bias, requires_grad=False))

    @staticmethod
    def fits(stack: Any) -> bool:
        """Whether such a stack can take the place of this one of the modelling code."""
        sizes = (getattr(stack, name, 0) for name in ("hidden_size", "intermediate_size"))
        has_clamp = all(
            isinstance(getattr(stack, name, None), float) for name in ("alpha", "limit")
        )
        return has_clamp and all(size and size % STEP == 0 for size in sizes)

    @staticmethod
    def weight_of(name: str) -> str:
        """The name of the weight to which a buffer of this name belongs."""
        return name.removesuffix("_words").removesuffix("_factors")

    @classmethod
    def empty(cls, stack: Any, device: torch.device, dtype: torch.dtype) -> Self:
        """A stack of the same shape on this device, with memory and no values."""
        experts, hidden, width = stack.num_experts, stack.hidden_size, stack.intermediate_size
        tensors: dict[str, Tensor] = {}
        biases: dict[str, Tensor] = {}
        for name, outputs, inputs in zip(
            PRODUCTS, (2 * width, hidden), (hidden, width), strict=True
        ):
            size = experts, -(-outputs // BLOCK), inputs // STEP
            words, factors = (
                torch.empty(*size, each, dtype=torch.int32, device=device) for each in (256, 16)
            )
            tensors |= {f"{name}_words": words, f"{name}_factors": factors}
            biases[f"{name}_bias"] = torch.empty(experts, outputs, dtype=dtype, device=device)
        return cls(stack, tensors, biases)

    @classmethod
    def published(cls, stack: Any, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Self:
        """The stack of published tensors `gate_up_proj_blocks` and so on. UnsupportedModel for odd ones."""
        made, biases = {}, {}
        sizes = (
            (stack.hidden_size, 2 * stack.intermediate_size),
            (*(stack.intermediate_size, stack.hidden_size),),
        )
        for name, (inputs, outputs) in zip(PRODUCTS, sizes, strict=True):
            blocks, scales, bias = (tensors[f"{name}_{part}"] for part in PARTS)
            lead = (stack.num_experts, outputs)
            for part, each, size in (
                ("blocks", blocks, (*lead, inputs // STEP, STEP // 2)),
                ("scales", scales, (*lead, inputs // STEP)),
                ("bias", bias, lead),
            ):
                if tuple(each.shape) != size:
                    raise UnsupportedModel(
                        f"experts in mxfp4 have {name}_{part} {list(each.shape)}, expected {list(size)}",
                        hint=_HINT,
                    )
                if part == "bias":
                    is_right = each.is_floating_point() and each.element_size() > 1
                else:
                    is_right = each.dtype == torch.uint8
                if not is_right:
                    kind = "ordinary numbers" if part == "bias" else "bytes"
                    raise UnsupportedModel(
                        f"experts in mxfp4 have {name}_{part} of {each.dtype}, not {kind}",
                        hint=_HINT,
                    )
            made[f"{name}_words"] = torch.stack([words_of(each) for each in blocks])
            made[f"{name}_factors"] = factors_of(scales)
            biases[f"{name}_bias"] = bias.to(dtype).contiguous()  # a rank's part is a view of more
        return cls(stack, made, biases)

    def fill(self, std: float) -> None:
        """Random weights of about this spread, made in place; the biases are left."""
        exponent = round(float(torch.tensor(std / _SPREAD).log2())) + 2 * _BIAS - 1
        for name in PRODUCTS:
            words = getattr(self, f"{name}_words")
            words.view(torch.uint8).random_(0, 256)
            getattr(self, f"{name}_factors").view(torch.uint8).fill_(exponent)

    def dequantised(self, name: str, expert: int, dtype: torch.dtype) -> Tensor:
        """The weight [N, K] of one expert as ordinary numbers."""
        words, factors = (getattr(self, f"{name}_{part}")[expert] for part in ("words", "factors"))
        outputs = getattr(self, f"{name}_bias").shape[1]
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        codes = unpack(_as_numbers(words), outputs).long()
        values = torch.tensor((*_VALUES, *(-value for value in _VALUES)), dtype=wide)
        scales = _scales_of(factors)[:outputs].to(torch.int32) - _BIAS
        grouped = values.to(words.device)[codes].view(outputs, -1, STEP)
        weight: Tensor = torch.ldexp(grouped, scales[..., None]).flatten(1).to(dtype)
        return weight

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """X [T, K], experts [T, C] and shares [T, C] -> what the experts of each token give, weighed and added up [T, N]."""
        if not self.is_for(hidden_states):
            return self.one_by_one(hidden_states, top_k_index, top_k_weights)
        from manyhands.model.kernels.experts import MOST_TOKENS as most

        if self._tiles(hidden_states, top_k_index) is not None:
            from manyhands.model.kernels.mxfp4_many import MOST_LISTED as most
        if len(hidden_states) <= most:
            return self.product(hidden_states, top_k_index, top_k_weights)
        parts = (each.split(most) for each in (hidden_states, top_k_index, top_k_weights))
        return torch.cat([self.product(*part) for part in zip(*parts, strict=True)])

    def is_for(self, x: Tensor) -> bool:
        """Whether our kernel takes such x."""
        return x.dim() == 2 and x.dtype == torch.bfloat16 and kernels.usable(x)

    def product(
        self,
        x: Tensor,
        index: Tensor,
        shares: Tensor,
        *,
        in_parts: bool = False,
        tiles: Any = None,
    ) -> Tensor:
        """The same by our kernels; `in_parts`: what each expert gives, [C, T, N] in float32.

        For as many tokens as these take at once: 1024, or those of `mxfp4_many.py`, where they are wanted for so many, with these
        `tiles` or the fastest ones.
        """
        from manyhands.model.kernels import mxfp4
        from manyhands.model.kernels.experts import ExpertGate

        both, down = (
            mxfp4.PackedWeights(*(getattr(self, f"{name}_{part}") for part in _HELD))
            for name in PRODUCTS
        )
        gate = ExpertGate(clamped=(self.alpha, self.limit))
        tiles = tiles or self._tiles(x, index)
        if tiles is not None:
            from manyhands.model.kernels import mxfp4_many

            return mxfp4_many.experts(x, index, shares, both, down, gate, tiles, in_parts=in_parts)
        return mxfp4.experts(x, index, shares, both, down, gate, in_parts=in_parts)

    def _tiles(self, x: Tensor, index: Tensor) -> Any:
        """The tiles of the kernel for many tokens; None where it is not wanted, or not to be had."""
        if not has_gluon(x.device):
            return None
        from manyhands.model.kernels import mxfp4_many

        # The width of this rank's part.
        widths = x.shape[1], getattr(self, f"{PRODUCTS[1]}_{_HELD[0]}").shape[2] * STEP
        return mxfp4_many.choose_tiles(len(x), index.shape[1], self.num_experts, widths, x.device)

    def load_for_prompts(self, chosen: int, dtype: torch.dtype | None) -> None:
        """Launch the kernels of prompts that are too long for recordings, with so many experts for a token.

        `dtype`: that of their shares; None: that of x.
        """
        from manyhands.model.kernels.experts import MOST_CHOSEN, MOST_TOKENS

        device = getattr(self, f"{PRODUCTS[0]}_{_HELD[0]}").device
        x = torch.zeros(MOST_TOKENS + 1, self.hidden_size, dtype=torch.bfloat16, device=device)
        index = torch.arange(chosen, device=device).repeat(len(x), 1)
        if chosen > MOST_CHOSEN or not self.is_for(x) or self._tiles(x, index) is None:
            return
        from manyhands.model.kernels import mxfp4_many

        shares = torch.zeros(index.shape, dtype=dtype or x.dtype, device=device)
        for tiles in mxfp4_many.PROMPT_TILES:
            self.product(x, index, shares, tiles=tiles)

    def extra_repr(self) -> str:
        """For printing."""
        sizes = self.num_experts, self.hidden_size, self.intermediate_size
        return "num_experts={}, hidden_size={}, intermediate_size={}".format(*sizes)

    def one_by_one(self, x: Tensor, index: Tensor, shares: Tensor) -> Tensor:
        """The same as `forward` in plain torch: each expert that is asked for is unpacked in its turn."""
        out = torch.zeros_like(x)
        for expert in index.unique().tolist():
            token, place = torch.where(index == expert)
            both = self._linear(x[token], PRODUCTS[0], expert)
            gate = both[:, ::2].clamp(max=self.limit)
            up = both[:, 1::2].clamp(-self.limit, self.limit)
            inner = (up + 1) * (gate * torch.sigmoid(gate * self.alpha))
            given = self._linear(inner, PRODUCTS[1], expert) * shares[token, place, None]
            out.index_add_(0, token, given.to(x.dtype))
        return out

    def _linear(self, x: Tensor, name: str, expert: int) -> Tensor:
        bias = getattr(self, f"{name}_bias")[expert].to(x.dtype)
        return functional.linear(x, self.dequantised(name, expert, x.dtype), bias)


def stacks_for_mxfp4(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The stacks of experts of a network that can be ones of ours, by their names."""
    for name, module in model.named_modules():
        own = getattr(module, PRODUCTS[0], None)
        if isinstance(own, nn.Parameter) and own.dim() == 3 and Mxfp4Stack.fits(module):
            yield name, module


def is_mxfp4(config: Any) -> bool:
    """Whether a configuration says that experts come in mxfp4."""
    packing = getattr(config, "quantization_config", None) or {}
    method = packing.get("quant_method") if isinstance(packing, dict) else packing.quant_method
    return str(getattr(method, "value", method)) == "mxfp4"


def keeps_mxfp4(config: Any, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether such experts keep their bits here: where our kernel is, in bfloat16, if it takes so many experts of a token."""
    if not (is_mxfp4(config) and dtype == torch.bfloat16 and kernels.run_on(device)):
        return False
    from manyhands.model.kernels.experts import MOST_CHOSEN

    return int(getattr(config, "num_experts_per_tok", 0)) <= MOST_CHOSEN


def words_of(blocks: Tensor) -> Tensor:
    """The words int32 [N / 64, K / 32, 256] of one expert's blocks [N, K / 32, 16]."""
    numbers = torch.stack((blocks & 0xF, blocks >> 4), dim=-1).flatten(1)
    words = pack(numbers)
    out = torch.zeros_like(words)
    for place, moves in enumerate(_MOVES):
        number = words >> 4 * place
        for bit, to in enumerate(moves):
            out |= _turned(number >> bit & 0x00010001, to)
    return out


def _as_numbers(words: Tensor) -> Tensor:
    """As `pack` made them."""
    out = torch.zeros_like(words)
    for place, moves in enumerate(_MOVES):
        for bit, at in enumerate(moves):
            out |= (_turned(words, 32 - at) & 0x00010001) << 4 * place + bit
    return out


def _turned(words: Tensor, by: int) -> Tensor:
    """Bits of words of 32 moved to the left, the first ones to their end."""
    by %= 32
    return words << by | words >> 32 - by & (1 << by) - 1 if by else words


def factors_of(scales: Tensor) -> Tensor:
    """The factors int32 [E, N / 64, K / 32, 16] of scales [E, N, K / 32]. UnsupportedModel for a scale that is too large."""
    largest = int(scales.max())
    if largest == NO_NUMBER:
        raise UnsupportedModel("experts in mxfp4 have a scale that is no number", hint=_AGAIN)
    if largest > _LARGEST:
        raise UnsupportedModel(
            f"experts in mxfp4 have a scale of 2 ** {largest - _BIAS}, and at most 2 ** {_LARGEST - _BIAS} can be kept",
            hint='unpack them: quantise="none"',
        )
    experts, outputs, steps = scales.shape
    whole = functional.pad(scales, (0, 0, 0, -outputs % BLOCK), value=0)
    named = (whole + (_BIAS - 1)).view(experts, -1, 8, 2, 4, steps)  # block, g p (r h), step
    ordered = named.permute(0, 1, 5, 3, 2, 4).contiguous()
    return ordered.view(torch.int32).flatten(3)


def _scales_of(factors: Tensor) -> Tensor:
    """The scales [N, K / 32] of one expert's factors, of whole blocks."""
    blocks, steps, _ = factors.shape
    named = factors.contiguous().view(torch.uint8).view(blocks, steps, 2, 8, 4)
    ordered = named.permute(0, 3, 2, 4, 1).reshape(blocks * BLOCK, steps)
    return ordered - (_BIAS - 1)
