"""The two layouts in which four-bit checkpoints are published, and the way to ours and back.

Both keep eight numbers in an int32, scales in float16, and their matrices with inputs as rows:

    AWQ    qweight [K, N / 8]   qzeros [G, N / 8]   scales [G, N]
           the eight are outputs, in the order 0 2 4 6 1 3 5 7
    GPTQ   qweight [K / 8, N]   qzeros [G, N / 8]   scales [G, N]   g_idx [K]
           the eight are inputs (of zeros: outputs), in order; zeros are stored less 1, unless the
           format is gptq_v2; g_idx is the group of each input, in any order after "act-order",
           and may be left out where inputs come in the order of their groups

G counts groups of inputs. Sources: the packing code of AutoAWQ ("gemm") and of AutoGPTQ, GPTQModel. The latter takes the 1
from all eight zeros by one subtraction of words (`convert_gptq_v2_to_v1_format_module`): a zero of 0, which asymmetric groups
have, borrows from its neighbour. So words are added to before they are unpacked, as its reader does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from manyhands.errors import UnsupportedModel, counted
from manyhands.model.quantised.w4a16 import GROUPS, Int4Linear, group_for, pack, without_nothing

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_IN_ORDER = tuple(range(8))
_ONES = 0x11111111  # 1 in each of the eight
_HINT = "use a 4-bit AWQ (gemm) or GPTQ checkpoint, or one that is not quantised"
_DAMAGED = "the checkpoint is damaged; download it again"
# Entries of a layer's own that its tensors tell, or that no reader needs.
_TOLD_BY_TENSORS = frozenset(
    {
        "group_size",
        "desc_act",
        "act_group_aware",
        "static_groups",
        "sym",
        "mse",
        "damp_percent",
        "damp_auto_increment",
    }
)
_SCALES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class Packing:
    """The four-bit layers as a checkpoint's `quantization_config` describes them."""

    method: Literal["awq", "gptq"]
    zeros_less_one: bool = False
    # Whether the configuration says that inputs come in the order of their groups.
    is_in_order: bool = False
    kind: ClassVar[str] = "int4"
    mark: ClassVar[str] = "qweight"

    @property
    def tensors(self) -> frozenset[str]:
        """The names that take the place of `weight`."""
        names = {"qweight", "qzeros", "scales"}
        return frozenset(names | {"g_idx"} if self.method == "gptq" else names)

    @property
    def optional(self) -> frozenset[str]:
        """Names among them that a layer may lack."""
        return frozenset({"g_idx"} if self.is_in_order else ())

    def kind_on(self, device: torch.device) -> str:
        """Four bits everywhere."""
        return self.kind

    def to_layer(self, tensors: Mapping[str, Tensor], bias: Tensor | None) -> Int4Linear:
        """Our layer with the same numbers; raises `UnsupportedModel` for odd shapes."""
        _check(tensors)
        qweight, scales = tensors["qweight"], tensors["scales"]
        groups, outputs = scales.shape
        order = None
        if self.method == "awq":
            q = _unpack(qweight, _AWQ_ORDER).t()
            zeros = _unpack(tensors["qzeros"], _AWQ_ORDER)
        else:
            q = _unpack(qweight.t().contiguous(), _IN_ORDER)
            words = tensors["qzeros"]
            zeros = _unpack(words + _ONES if self.zeros_less_one else words, _IN_ORDER)
            # Old writers put zeros there.
            if "g_idx" in tensors and not (self.is_in_order and not tensors["g_idx"].any()):
                order = _order(tensors["g_idx"], q.shape[1], groups)
            q = q if order is None else q[:, order.long()]
        inputs = q.shape[1]
        if q.shape[0] != outputs or zeros.shape != scales.shape or inputs % groups:
            raise UnsupportedModel(
                f"a packed layer has {tuple(q.shape)} weights, {tuple(zeros.shape)} zeros and "
                f"{tuple(scales.shape)} scales, which do not belong together",
                hint=_HINT,
            )
        q = without_nothing(q, scales, zeros)
        repeat = _repeat(inputs, inputs // groups)
        scales, zeros = (x.repeat_interleave(repeat, dim=0) for x in (scales, zeros))
        return Int4Linear(pack(q), scales, zeros.to(torch.uint8), bias, order)

    def dequantised(self, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """The weight [N, K] as ordinary numbers."""
        return self.to_layer(tensors, None).dequantised(dtype)


def read_packing(quantization: Mapping[str, Any]) -> Packing | None:
    """The packing, None for other methods; `UnsupportedModel` for what these two can but we cannot."""
    method = str(quantization.get("quant_method", "")).lower()
    if method not in ("awq", "gptq"):
        return None
    bits = quantization.get("bits", quantization.get("w_bit"))
    if bits != 4:
        raise UnsupportedModel(
            f"its {method.upper()} weights have {bits!r} bits, not 4", hint=_HINT
        )
    _check_dynamic(quantization)
    if method == "awq":
        version = _said(quantization, "version", "format") or "gemm"
        if version != "gemm":
            raise UnsupportedModel(f"its AWQ layout is {version!r}, not gemm", hint=_HINT)
        return Packing("awq")
    layout = _said(quantization, "checkpoint_format", "format") or "gptq"
    if layout not in ("gptq", "gptq_v2"):
        raise UnsupportedModel(f"its GPTQ layout is {layout!r}, not gptq", hint=_HINT)
    return Packing(
        "gptq",
        zeros_less_one=layout == "gptq",
        is_in_order=quantization.get("desc_act") is False,
    )


def _check_dynamic(quantization: Mapping[str, Any]) -> None:
    """Raise UnsupportedModel if some layers are packed in another way than the others (GPTQModel's `dynamic`).

    Its keys are patterns of layers' names: those behind "-:" are not packed, which their tensors say again; others have entries of
    their own. Groups may have any size, and inputs any order, for each layer's tensors tell them.
    """
    dynamic = quantization.get("dynamic") or {}
    if not isinstance(dynamic, Mapping):
        raise UnsupportedModel(
            f"its quantization_config has dynamic {dynamic!r}, expected patterns with entries",
            hint=_HINT,
        )
    for pattern, own in dynamic.items():
        if str(pattern).startswith("-:") or not own:
            continue
        changed = own if isinstance(own, Mapping) else {"": own}
        for name, value in changed.items():
            if name not in _TOLD_BY_TENSORS and value != quantization.get(name):
                entry = f"{name} {value!r}" if name else repr(value)
                raise UnsupportedModel(
                    f"its layers {str(pattern).removeprefix('+:')!r} are packed in another way than the others: {entry} in dynamic, "
                    f"and {quantization.get(name)!r} in its quantization_config",
                    hint=_HINT,
                )


def _said(quantization: Mapping[str, Any], *names: str) -> str | None:
    """An entry that writers of different years call by different names; UnsupportedModel where two of them disagree."""
    found = {name: str(quantization[name]).lower() for name in names if quantization.get(name)}
    if len({*found.values()}) > 1:
        both = " and ".join(f"{name} {value!r}" for name, value in found.items())
        raise UnsupportedModel(f"its quantization_config has {both}", hint=_HINT)
    return next(iter(found.values()), None)


def from_layer(layer: Int4Linear, packing: Packing) -> dict[str, Tensor]:
    """A layer of ours as a published one: the way back, for tests and for writers of checkpoints."""
    from manyhands.model.quantised.w4a16 import unpack

    q, zeros = unpack(layer.packed, layer.out_features).int(), layer.zeros.int()
    if packing.method == "awq":
        weight = _pack(q.t(), _AWQ_ORDER)
        return {"qweight": weight, "qzeros": _pack(zeros, _AWQ_ORDER), "scales": layer.scales}
    g_idx = torch.arange(layer.in_features, dtype=torch.int32) // layer.group
    if layer.order is not None:
        back = layer.order.long().argsort()
        q, g_idx = q[:, back], g_idx[back]
    words = _pack(zeros, _IN_ORDER)
    return {
        "qweight": _pack(q, _IN_ORDER).t().contiguous(),
        "qzeros": words - _ONES if packing.zeros_less_one else words,
        "scales": layer.scales,
        "g_idx": g_idx,
    }


def _check(tensors: Mapping[str, Tensor]) -> None:
    """Raise UnsupportedModel for other dtypes or dims than writers give these tensors: the bits of others mean something else."""
    words = ((torch.int32,), 2)
    indices = ((torch.int32, torch.int64), 1)
    expected = {"qweight": words, "qzeros": words, "scales": (_SCALES, 2), "g_idx": indices}
    for name, tensor in tensors.items():
        dtypes, dims = expected[name]
        if tensor.dtype not in dtypes or tensor.dim() != dims or not tensor.numel():
            known = " or ".join(str(dtype) for dtype in dtypes)
            raise UnsupportedModel(
                f"a packed layer has {name} of {tensor.dtype} {list(tensor.shape)}, expected {known} in "
                f"{counted(dims, 'dim')} above 0",
                hint=_DAMAGED,
            )
    if not bool(tensors["scales"].isfinite().all()):
        raise UnsupportedModel("a packed layer has scales that are not finite", hint=_DAMAGED)


def _order(g_idx: Tensor, inputs: int, groups: int) -> Tensor | None:
    """The inputs sorted by their groups; None if they are."""
    if len(g_idx) != inputs or int(g_idx.min()) < 0 or int(g_idx.max()) >= groups:
        raise UnsupportedModel(
            f"a packed layer has the groups {int(g_idx.min())} to {int(g_idx.max())} of {len(g_idx)} inputs (g_idx), "
            f"expected 0 to {groups - 1} of {inputs}",
            hint=_DAMAGED,
        )
    counts = torch.bincount(g_idx.long(), minlength=groups)
    if bool((counts != counts[0]).any()):
        raise UnsupportedModel("its groups of inputs differ in size", hint=_HINT)
    if bool((g_idx[1:] >= g_idx[:-1]).all()):
        return None
    return torch.argsort(g_idx, stable=True).to(torch.int32)


def _repeat(inputs: int, group: int) -> int:
    """How many of our groups one of theirs becomes."""
    ours = group if group in GROUPS else group_for(group)
    if ours is None:
        raise UnsupportedModel(
            f"groups of {group} of {inputs} inputs share a scale; they must be multiples of "
            f"{GROUPS[-1]}",
            hint=_HINT,
        )
    return group // ours


def _unpack(words: Tensor, order: tuple[int, ...]) -> Tensor:
    """int32 [R, C / 8] -> whole numbers [R, C]; nibble i of a word is its number `order[i]`."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=words.device)
    numbers = (words[..., None] >> shifts) & 0xF
    back = torch.tensor(order, device=words.device).argsort()
    return numbers[..., back].flatten(1).to(torch.uint8)


def _pack(numbers: Tensor, order: tuple[int, ...]) -> Tensor:
    """Whole numbers [R, C] -> int32 [R, C / 8]."""
    eights = numbers.to(torch.int64).reshape(numbers.shape[0], -1, 8)[..., list(order)]
    shifts = torch.arange(0, 32, 4)
    words = (eights << shifts).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
