"""One rank's part of an ordinary checkpoint, read slice by slice: no rank ever holds the whole model.

A safetensors file is mapped, not loaded, and of each tensor only the rank's own slice is read from it. Most
weights of a network stand in the file under their own name. Two kinds do not:

    stacks of experts        one tensor for each expert and product (`experts.7.up_proj.weight`), which transformers
                             stacks; here each is cut before it joins the stack
    gpt-oss's experts        packed in mxfp4 (`experts.down_proj_blocks`, `_scales`); a slice of the blocks keeps its bits
                             (`quantised/mxfp4.py`), or is unpacked by transformers' own function where the device keeps
                             none or a part begins within a block

Every weight must find its tensor; a checkpoint of pickles (*.bin), which cannot be read in part, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from transformers.modeling_utils import PreTrainedModel

from manyhands.errors import UnsupportedModel
from manyhands.hub import damaged, in_short
from manyhands.model.checkpoint import NOT_READ, PLAIN_DTYPES, weights_files, weights_folder
from manyhands.model.devices import too_small
from manyhands.model.dummy import are_alike, bare_model, mend_buffers, names_of, untie_where
from manyhands.model.parallel.cuts import Cut, Cutting
from manyhands.model.quantised.mxfp4 import PRODUCTS, Mxfp4Stack, stacks_for_mxfp4

_OF_AN_EXPERT = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
# Names in files of these families that are others in the network; transformers renames them when it loads all.
_MIXTRAL = {
    r"\.block_sparse_moe\.": ".mlp.",
    r"\.w1\.weight$": ".gate_proj.weight",
    r"\.w2\.weight$": ".down_proj.weight",
    r"\.w3\.weight$": ".up_proj.weight",
}
_RENAMED: dict[str, dict[str, str]] = {
    "mixtral": _MIXTRAL,
    "minimax_m2": _MIXTRAL,
    "phimoe": {r"\.block_sparse_moe\.gate\.": ".mlp.router.", **_MIXTRAL},
    "granitemoe": {
        r"\.input_linear\.weight$": ".experts.gate_up_proj",
        r"\.output_linear\.weight$": ".experts.down_proj",
        r"\.router\.layer\.": ".router.",
    },
    "hy_v3": {
        r"\.mlp\.router\.gate\.": ".mlp.gate.",
        r"\.mlp\.shared_mlp\.": ".mlp.shared_experts.",
        r"\.mlp\.expert_bias$": ".mlp.e_score_correction_bias",
    },
    "exaone_moe": {r"\.mlp\.e_score_correction_bias$": ".mlp.gate.e_score_correction_bias"},
    "ernie4_5_moe": {r"\.mlp\.moe_statics\.": ".mlp.gate.moe_statics."},
}
_BLOCK = 32  # numbers of mxfp4 that share a scale
_BYTES = frozenset({"U8"})
_COMPUTED = ("inv_freq", "masked_bias")  # in old checkpoints


def read_part(
    name: str,
    cutting: Cutting,
    *,
    device: torch.device,
    dtype: torch.dtype,
    renamed: Mapping[str, str],
    mxfp4: bool = False,
) -> tuple[PreTrainedModel, set[str]]:
    """The part of a folder's or the hub's model, and the names of tensors that it has no place for.

    `renamed`: patterns of names in the files, and what they are in the network. `mxfp4`: experts keep their bits where
    they can. Raises ModelNotFound, UnsupportedModel, OutOfMemory.
    """
    try:
        folder = weights_folder(name)
        if not any(folder.glob("*.safetensors")) and any(folder.glob("*.bin")):
            raise UnsupportedModel(
                f"the weights of {name!r} are pickles (*.bin), which cannot be read in part",
                hint="several ranks need *.safetensors; load it with ranks=1, or convert it",
            )
        with ExitStack() as stack:
            files = [
                stack.enter_context(safe_open(path, framework="pt", device=str(device)))
                for path in weights_files(name, folder)
            ]
            own = _RENAMED.get(cutting.config.model_type, {})
            tensors = _Tensors(name, files, {**renamed, **own})
            model = _filled(tensors, cutting, device, dtype, mxfp4=mxfp4)
    except SafetensorError as error:
        raise damaged(name, f"unreadable weights ({in_short(error)})") from error
    except torch.OutOfMemoryError as error:
        raise too_small(device, name) from error
    return model, {key for key in tensors.left if not key.endswith(_COMPUTED)}


class _Tensors:
    """The tensors of all files by their names in the network, each read once."""

    def __init__(self, name: str, files: Iterable[Any], renamed: Mapping[str, str]) -> None:
        self.name = name
        self._files: dict[str, tuple[Any, str]] = {}
        for file in files:
            for key in file.keys():  # noqa: SIM118 (it is no mapping)
                inside = key
                for pattern, there in renamed.items():
                    inside = re.sub(pattern, there, inside)
                self._files[inside] = file, key
        self.left = set(self._files)

    def __contains__(self, key: str) -> bool:
        return key in self._files

    def take(self, key: str, expected: tuple[int, ...], *, is_packed: bool = False) -> Any:
        """A tensor of the whole network that is read where it is indexed; a slice of a larger one would be one of other weights.

        It has bytes if `is_packed`, and else ordinary numbers: those of other checkpoints mean something else, which their
        scales say.
        """
        if key not in self._files:
            raise damaged(self.name, f"no weights for {key}")
        self.left.discard(key)
        file, own = self._files[key]
        found = file.get_slice(own)
        shape, dtype = tuple(found.get_shape()), found.get_dtype()
        if shape != expected:
            raise damaged(
                self.name,
                f"weights of another shape than its configuration: {key} {shape}, expected {expected}",
            )
        known = _BYTES if is_packed else PLAIN_DTYPES
        if dtype not in known:
            raise UnsupportedModel(
                f"the weights of {self.name!r} are packed in a way that is not read: {key} has numbers of {dtype}, "
                f"expected {' or '.join(sorted(known))}",
                hint=NOT_READ,
            )
        return found

    def differ(self, one: str, other: str) -> bool:
        """Whether there are both of these, with other numbers."""
        return one in self and other in self and not are_alike(self.all_of(one), self.all_of(other))

    def all_of(self, key: str) -> Tensor:
        """A whole tensor, as one without dims is always read."""
        file, own = self._files[key]
        found: Tensor = file.get_tensor(own)
        return found


def _filled(
    tensors: _Tensors, cutting: Cutting, device: torch.device, dtype: torch.dtype, *, mxfp4: bool
) -> Any:
    model: Any = bare_model(cutting.config, dtype)
    untie_where(model, tensors.differ)
    cutting.shorten(model)
    stacks = dict(stacks_for_mxfp4(model)) if mxfp4 else {}
    for name in stacks:
        model.set_submodule(name, nn.Identity())  # no memory for what comes packed
    model.to_empty(device=device)
    model.tie_weights()
    with torch.no_grad():
        mend_buffers(model)
        names = names_of(model)
        for key, parameter in model.named_parameters():
            there = next((name for name in names[key] if name in tensors), key)
            # The embeddings are whole, by whatever name.
            value = _read(tensors, cutting, key, there)
            assert value.shape == parameter.shape, (key, value.shape, parameter.shape)
            parameter.copy_(value)
        kept = model.state_dict(keep_vars=True).keys()
        for key, buffer in model.named_buffers():
            if key in kept:  # a router's, say: every rank has all of it
                whole = tensors.take(key, tuple(buffer.shape))
                buffer.copy_(whole[:] if whole.get_shape() else tensors.all_of(key))
    tensors.left -= {key for key, _ in model.named_parameters(remove_duplicate=False)}
    for name, stack in stacks.items():
        model.set_submodule(name, _packed(tensors, cutting, name, stack, dtype))
    return model.train(False)


def _read(tensors: _Tensors, cutting: Cutting, key: str, there: str) -> Tensor:
    """A rank's slice of a weight, which the checkpoint has `there`."""
    layer, _, own = key.rpartition(".")
    if there not in tensors and f"{key}_blocks" in tensors:
        return _unpacked(tensors, cutting, key)
    if (
        there not in tensors
        and own in _OF_AN_EXPERT
        and f"{layer}.0.{_OF_AN_EXPERT[own][0]}.weight" in tensors
    ):
        return _stacked(tensors, cutting, key)
    whole = tensors.take(there, cutting.whole_shapes[key])
    if not whole.get_shape():  # one number, of which there are no slices
        return tensors.all_of(there)
    return cutting.slice_of(key, whole)


def _stacked(tensors: _Tensors, cutting: Cutting, key: str) -> Tensor:
    """[E, N, K] of the experts' own tensors; those of gate and up lie side by side along N."""
    layer, _, own = key.rpartition(".")
    names, cut = _OF_AN_EXPERT[own], cutting.cuts[key]
    num_experts, *sizes = cutting.whole_shapes[key]
    length = cutting.whole_shapes[key][cut.dim] // len(names)
    expected = sizes[0] // len(names), *sizes[1:]
    experts = []
    for number in range(num_experts):
        parts = []
        for at, (name, (start, stop)) in enumerate(zip(names, cut.pieces, strict=True)):
            piece = Cut(cut.dim - 1, ((start - at * length, stop - at * length),))
            whole = tensors.take(f"{layer}.{number}.{name}.weight", expected)
            parts.append(piece.of(whole))
        experts.append(torch.cat(parts))
    return torch.stack(experts)


def _unpacked(tensors: _Tensors, cutting: Cutting, key: str) -> Tensor:
    """[E, K, N] of blocks [E, N, K / 32, 16] and scales [E, N, K / 32]."""
    cut = cutting.cuts[key]
    whole: Tensor = convert_moe_packed_tensors(
        *_blocks_of(tensors, cutting, key), dtype=torch.bfloat16
    )
    if cut.dim == 2:
        return whole
    ((start, stop),) = cut.pieces
    first = start // _BLOCK * _BLOCK
    return whole[:, start - first : stop - first]


def _packed(
    tensors: _Tensors, cutting: Cutting, name: str, stack: Any, dtype: torch.dtype
) -> Mxfp4Stack:
    """The part of a stack, with the bits that it has; blocks of its inputs are whole ones."""
    found: dict[str, Tensor] = {}
    for product in PRODUCTS:
        key, bias = f"{name}.{product}", f"{name}.{product}_bias"
        blocks, scales = _blocks_of(tensors, cutting, key)
        found |= {f"{product}_blocks": blocks, f"{product}_scales": scales}
        whole = tensors.take(bias, cutting.whole_shapes[bias])
        found[f"{product}_bias"] = cutting.slice_of(bias, whole)
    try:
        return Mxfp4Stack.published(stack, found, dtype)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{tensors.name!r}, {name}: {error}", hint=error.hint) from error


def _blocks_of(tensors: _Tensors, cutting: Cutting, key: str) -> tuple[Tensor, Tensor]:
    """The blocks that cover a part of a weight [E, K, N], and their scales."""
    cut, (experts, inputs, outputs) = cutting.cuts[key], cutting.whole_shapes[key]
    ((start, stop),) = cut.pieces
    rows, groups = slice(start, stop), slice(None)
    if cut.dim != 2:
        rows, groups = slice(None), slice(start // _BLOCK, -(-stop // _BLOCK))
    whole = experts, outputs, inputs // _BLOCK
    blocks, scales = (
        tensors.take(f"{key}_{kind}", shape, is_packed=True)[:, rows, groups]
        for kind, shape in (("blocks", (*whole, _BLOCK // 2)), ("scales", whole))
    )
    return blocks, scales
