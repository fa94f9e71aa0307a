"""Checkpoints in four bits (AWQ, GPTQ, experts in mxfp4) and in eight (FP8) read without the packages that made them.

The network is built on the meta device, and each linear layer for which the checkpoint has packed
numbers becomes a layer of ours on its device, one at a time. A `Layout` says how one layer is packed:
`packing.Packing` and `block_scales.BlockScales` are such. All other tensors are copied as they
are. Every tensor must find its place and every place its tensor: what is missing or left over is an
error with its name. (Transformers would send these checkpoints to packages that need another torch.)
`fill` does so for tensors from anywhere; a GGUF file has its own (`model/gguf`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel

from manyhands.errors import UnsupportedModel, counted
from manyhands.hub import damaged, in_short, incomplete
from manyhands.model.checkpoint import PLAIN_DTYPES, TensorHeader, weights_files, weights_folder
from manyhands.model.devices import too_small
from manyhands.model.dummy import are_alike, bare_model, mend_buffers, names_of, untie_where
from manyhands.model.parallel.cuts import Cutting
from manyhands.model.quantised.linear import Quantised
from manyhands.model.quantised.mxfp4 import (
    NO_NUMBER,
    PARTS,
    PRODUCTS,
    Mxfp4Stack,
    stacks_for_mxfp4,
)
from manyhands.model.quantised.w4a16 import STEP

_NOT_NEEDED = ("rotary_emb.inv_freq", "self_attn.masked_bias")  # buffers of old checkpoints
_MXFP4_PARTS = ("_blocks", "_scales")  # how names of packed experts end
_WHOLE = "model."  # how names begin in a checkpoint with a head
_EXPERTS = "model.layers.0.mlp.experts.gate_up_proj_blocks"
_FIRST_LAYOUT = re.compile(r"block\.\d+\.(attn|mlp)\.")  # block.0.mlp.mlp1_weight.blocks
_PLAIN = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class Layout(Protocol):
    """How a checkpoint keeps the weight of one layer in fewer bits."""

    @property
    def method(self) -> str:
        """As its `quantization_config` names it."""

    @property
    def kind(self) -> str:
        """The layers that keep its bits: "int4" or "fp8"."""

    @property
    def mark(self) -> str:
        """The one of its tensors that every packed layer has, and no other."""

    @property
    def tensors(self) -> frozenset[str]:
        """The names that take the place of `weight`."""

    @property
    def optional(self) -> frozenset[str]:
        """Names among them that a layer may lack."""

    def kind_on(self, device: torch.device) -> str:
        """The layers to be made on this device unless others are asked for: `kind`, or "none"."""

    def to_layer(self, tensors: Mapping[str, Tensor], bias: Tensor | None) -> Quantised | None:
        """A layer that keeps the bits; None where such a layer cannot have the shape."""

    def dequantised(self, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """The weight [N, K] as ordinary numbers."""


def load_packed(
    name: str,
    config: Any,
    layout: Layout,
    *,
    device: torch.device,
    dtype: torch.dtype,
    unpacked: bool = False,
    cutting: Cutting | None = None,
) -> PreTrainedModel:
    """The network of such a checkpoint, a folder or a name on the hub; with `cutting` one rank's part.

    With `unpacked` its layers are ordinary ones of `dtype` that hold the same numbers. A packed layer is read
    as a whole, and cut when it is a layer of ours: never more than one stands in memory. Raises
    ModelNotFound, UnsupportedModel, OutOfMemory.
    """
    with _opened(name, device) as tensors:
        if not any(key.endswith(f".{layout.mark}") for key in tensors):
            raise incomplete(name, f"packed layers ({layout.method}: *.{layout.mark})")
        return fill(
            name,
            tensors,
            config,
            layout,
            device=device,
            dtype=dtype,
            unpacked=unpacked,
            cutting=cutting,
        )


def load_mxfp4(
    name: str, config: Any, *, device: torch.device, dtype: torch.dtype
) -> PreTrainedModel:
    """The network of a checkpoint whose experts are published in mxfp4, a folder or a name on the hub; they keep their bits.

    Raises ModelNotFound, UnsupportedModel, OutOfMemory.
    """
    try:
        with _opened(name, device) as tensors:
            _check_names(name, tensors)
            if not any(key.startswith(_WHOLE) for key in tensors):
                raise UnsupportedModel(
                    f"the weights of {name!r} have names of a network without a head: found {min(tensors, default='none')}, expected "
                    f"names such as {_EXPERTS}",
                    hint='have the experts unpacked (quantise="none"), or use the checkpoint of the whole network',
                )
            model = _with_experts(_Tensors(name, tensors), config, device, dtype)
    except torch.OutOfMemoryError as error:
        raise too_small(device, name) from error
    ready: PreTrainedModel = model.train(False)
    return ready


def check_mxfp4(name: str, headers: Mapping[str, TensorHeader]) -> None:
    """Raise ModelNotFound for experts in mxfp4 that transformers would unpack to other numbers, or name in a report alone.

    It takes any numbers for bytes, a scale that is none, and of weights that are there twice the ordinary ones.
    """
    _check_names(name, headers)
    weights = {key.rpartition("_")[0] for key in headers if key.endswith(_MXFP4_PARTS)}
    for weight in sorted(weights):
        if weight in headers:
            raise damaged(name, f"the weights of {weight} twice, packed and as ordinary numbers")
        for key in (weight + part for part in _MXFP4_PARTS):
            if key not in headers:
                raise damaged(name, f"no weights for {key}")
            if headers[key].dtype != "U8":
                raise damaged(name, f"experts in mxfp4 of {headers[key].dtype}, not U8 ({key})")
        blocks, scales = (headers[weight + part].shape for part in _MXFP4_PARTS)
        if blocks != (*scales, STEP // 2):
            raise damaged(
                name,
                f"experts in mxfp4 whose scales are not those of their blocks: {weight} has blocks {list(blocks)} and "
                f"scales {list(scales)}",
            )
    odd = {key: each.dtype for key, each in headers.items() if each.dtype not in PLAIN_DTYPES}
    for key, dtype in sorted(odd.items()):
        if not key.endswith(_MXFP4_PARTS):
            raise damaged(name, f"numbers that are not floating-point ones ({key}: {dtype})")
    with _opened(name, torch.device("cpu")) as tensors:
        for key in sorted(weight + _MXFP4_PARTS[1] for weight in weights):
            scale = tensors[key].get_tensor(key)
            if scale.numel() and int(scale.max()) == NO_NUMBER:
                raise damaged(name, f"experts in mxfp4 with a scale that is no number ({key})")


def _check_names(name: str, keys: Iterable[str]) -> None:
    """Raise UnsupportedModel for the layout in which gpt-oss was published at first, and which its repositories hold beside the other."""
    first = sorted(key for key in keys if _FIRST_LAYOUT.match(key))
    if first:
        found = next((key for key in first if key.endswith(".blocks")), first[0])
        raise UnsupportedModel(
            f"the weights of {name!r} have the names of gpt-oss's first layout: found {found}, expected names such as {_EXPERTS}",
            hint="give the folder of the repository itself, in which files are called model-00000-of-00002.safetensors and so on, and "
            "not its folder `original`",
        )


@contextmanager
def _opened(name: str, device: torch.device) -> Iterator[dict[str, Source]]:
    """Every tensor of a checkpoint by its name, read onto the device when it is asked for."""
    folder = weights_folder(name)
    try:
        with ExitStack() as stack:
            files = [
                stack.enter_context(safe_open(path, framework="pt", device=str(device)))
                for path in weights_files(name, folder)
            ]
            yield {key: file for file in files for key in file.keys()}  # noqa: SIM118  # not a dict
    except SafetensorError as error:
        raise damaged(name, f"unreadable weights ({in_short(error)})") from error


class Source(Protocol):
    """Where tensors are read from; a file of safetensors is one."""

    def get_tensor(self, name: str) -> Tensor:
        """The tensor of this name, on the device of the network."""


def fill(
    name: str,
    sources: Mapping[str, Source],
    config: Any,
    layout: Layout,
    *,
    device: torch.device,
    dtype: torch.dtype,
    unpacked: bool = False,
    cutting: Cutting | None = None,
) -> PreTrainedModel:
    """The network of this configuration with these tensors; `sources` says where each is to be read.

    With `cutting` it is one rank's part. Raises ModelNotFound, UnsupportedModel, OutOfMemory.
    """
    try:
        model = _load(_Tensors(name, sources), config, layout, device, dtype, unpacked, cutting)
    except torch.OutOfMemoryError as error:
        raise too_small(device, name) from error
    ready: PreTrainedModel = model.train(False)
    return ready


class _Tensors:
    """The checkpoint's tensors by name, each taken once."""

    def __init__(self, name: str, files: Mapping[str, Source]) -> None:
        self.name = name
        self.left = dict(files)

    def take(self, key: str) -> Tensor:
        if key not in self.left:
            first = f"{key.rpartition('.')[0]}.0."  # an expert
            alone = min((each for each in self.left if each.startswith(first)), default=None)
            if alone is not None:
                raise UnsupportedModel(
                    f"the checkpoint {self.name!r} has experts one by one ({alone}), expected one stack beside packed "
                    f"layers ({key})",
                    hint="use a checkpoint that is not quantised",
                )
            raise damaged(self.name, f"no weights for {key}")
        return self.left.pop(key).get_tensor(key)

    def differ(self, one: str, other: str) -> bool:
        """Whether there are both of these, with other numbers."""
        if one not in self.left or other not in self.left:
            return False
        return not are_alike(*(self.left[key].get_tensor(key) for key in (one, other)))

    def drop(self, keys: Iterable[str]) -> None:
        for key in list(keys):
            self.left.pop(key, None)


def _load(
    tensors: _Tensors,
    config: Any,
    layout: Layout,
    device: torch.device,
    dtype: torch.dtype,
    unpacked: bool,
    cutting: Cutting | None,
) -> Any:
    whole: Any = bare_model(config, dtype)
    model: Any = whole if cutting is None else bare_model(cutting.config, dtype)
    untie_where(model, tensors.differ)
    if cutting is not None:
        cutting.shorten(model)
    mark = f".{layout.mark}"
    names = [key.removesuffix(mark) for key in tensors.left if key.endswith(mark)]
    linears = {name: _linear(whole, name) for name in names}
    for name in names:
        model.set_submodule(name, nn.Identity())  # no memory for what comes packed
    model.to_empty(device=device)
    model.tie_weights()
    with torch.no_grad():
        mend_buffers(model)
        _copy(tensors, model, cutting)
        for name, linear in linears.items():
            layer = _layer(tensors, name, linear, layout, dtype, unpacked)
            model.set_submodule(
                name, layer if cutting is None else _part(tensors, name, layer, cutting)
            )
    _check_empty(tensors)
    return model


def _with_experts(tensors: _Tensors, config: Any, device: torch.device, dtype: torch.dtype) -> Any:
    model: Any = bare_model(config, dtype)
    untie_where(model, tensors.differ)
    stacks = dict(stacks_for_mxfp4(model))
    for name in stacks:
        model.set_submodule(name, nn.Identity())  # no memory for what comes packed
    model.to_empty(device=device)
    model.tie_weights()
    with torch.no_grad():
        mend_buffers(model)
        _copy(tensors, model, None)
        for name, stack in stacks.items():
            keys = [f"{product}_{part}" for product in PRODUCTS for part in PARTS]
            found = {key: tensors.take(f"{name}.{key}") for key in keys}
            try:
                made = Mxfp4Stack.published(stack, found, dtype)
            except UnsupportedModel as error:
                raise UnsupportedModel(
                    f"{tensors.name!r}, {name}: {error}", hint=error.hint
                ) from error
            model.set_submodule(name, made)
    _check_empty(tensors)
    return model


def _check_empty(tensors: _Tensors) -> None:
    tensors.drop(key for key in list(tensors.left) if key.endswith(_NOT_NEEDED))
    if tensors.left:
        some = ", ".join(sorted(tensors.left)[:3])
        raise damaged(
            tensors.name, f"{counted(len(tensors.left), 'weight')} without a place: {some}"
        )


def _linear(model: nn.Module, name: str) -> nn.Linear:
    try:
        found = model.get_submodule(name)
    except AttributeError:
        found = None
    if type(found) is nn.Linear:
        return found
    raise UnsupportedModel(
        f"the checkpoint packs {name!r}, which is not a linear layer of this architecture (the "
        "weights of experts are one stack here)",
        hint="use a checkpoint that is not quantised",
    )


def _part(tensors: _Tensors, name: str, layer: nn.Module, cutting: Cutting) -> nn.Module:
    try:
        part: nn.Module = cutting.layer_of(name, layer)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{tensors.name!r}, {name}: {error}", hint=error.hint) from error
    return part


def _copy(tensors: _Tensors, model: nn.Module, cutting: Cutting | None) -> None:
    """Everything that is not packed; tied weights are one tensor, and may be stored once or twice."""
    names = names_of(model)
    for key, parameter in model.named_parameters():
        value = tensors.take(next((name for name in names[key] if name in tensors.left), key))
        whole = tuple(parameter.shape) if cutting is None else cutting.whole_shapes[key]
        _check_plain(tensors, key, value, whole)
        parameter.copy_(value if cutting is None else cutting.slice_of(key, value))
    kept = model.state_dict(keep_vars=True).keys()
    for key, buffer in model.named_buffers():
        if key in kept:  # a layer's scale, a router's bias
            value = tensors.take(key)
            _check_plain(tensors, key, value, tuple(buffer.shape))
            buffer.copy_(value)
    tensors.drop(key for key, _ in model.named_parameters(remove_duplicate=False))


def _check_plain(tensors: _Tensors, key: str, value: Tensor, expected: tuple[int, ...]) -> None:
    """Raise ModelNotFound unless a tensor has ordinary numbers in this shape: torch would repeat one that is smaller."""
    if value.dtype not in _PLAIN:
        raise damaged(tensors.name, f"packed weights without scales ({key}: {value.dtype})")
    if tuple(value.shape) != expected:
        raise damaged(
            tensors.name,
            f"weights of another shape than its configuration: {key} {tuple(value.shape)}, expected {expected}",
        )


def _layer(
    tensors: _Tensors,
    name: str,
    linear: Any,
    layout: Layout,
    dtype: torch.dtype,
    unpacked: bool,
) -> nn.Module:
    found = {
        key: tensors.take(f"{name}.{key}")
        for key in sorted(layout.tensors)
        if key not in layout.optional or f"{name}.{key}" in tensors.left
    }
    bias = tensors.take(f"{name}.bias") if f"{name}.bias" in tensors.left else None
    if linear.bias is None and bias is not None and not bool(bias.any()):
        bias = None  # some writers give every layer one, of zeros
    if linear.bias is not None and bias is None:
        raise damaged(tensors.name, f"no weights for {name}.bias")
    if bias is not None:
        _check_plain(tensors, f"{name}.bias", bias, (linear.out_features,))
        bias = bias.to(dtype)
    try:
        layer: Any = None if unpacked else layout.to_layer(found, bias)
        if layer is None:
            layer = _ordinary(layout.dequantised(found, dtype), bias)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{tensors.name!r}, {name}: {error}", hint=error.hint) from error
    if (layer.out_features, layer.in_features) != (linear.out_features, linear.in_features):
        raise damaged(
            tensors.name,
            f"weights of another shape than its configuration: {name} "
            f"({layer.out_features}, {layer.in_features}), "
            f"expected ({linear.out_features}, {linear.in_features})",
        )
    made: nn.Module = layer
    return made


def _ordinary(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    made = nn.Linear(1, 1, bias=False, device="meta")
    made.out_features, made.in_features = weight.shape
    made.weight = nn.Parameter(weight)
    made.register_parameter("bias", None if bias is None else nn.Parameter(bias))
    return made
