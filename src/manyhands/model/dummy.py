"""Random weights in a real architecture: benchmarks and tests without a download.

The network is built on the meta device (shapes only), given memory on its real device, and filled
there, so a large model is never held twice. Two things are silently wrong after such a move and are
mended here: buffers that were computed on construction (rotary frequencies, embedding scales) hold
garbage, and an output layer that should share the embedding's memory has its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import PreTrainedModel

from manyhands.errors import UnsupportedModel
from manyhands.hub import in_short
from manyhands.model.configuration import REPAIR
from manyhands.model.families import reject
from manyhands.model.host_memory import check_room
from manyhands.model.quantised.linear import Quantised
from manyhands.model.quantised.mxfp4 import Mxfp4Stack, stacks_for_mxfp4
from manyhands.model.quantised.quantise import make_room
from manyhands.model.quiet import quiet
from manyhands.model.seeded import seeded
from manyhands.model.unlisted import enter

_build: Callable[..., PreTrainedModel] = AutoModelForCausalLM.from_config  # has no types of its own
# Errors in which transformers' classes end where a configuration makes no sense.
UNBUILDABLE: tuple[type[Exception], ...] = (
    *(RuntimeError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError),
    *(ImportError, AssertionError, StrictDataclassError),
)
STD = 0.02  # of random weights: most families start with it; logits stay finite in half precision


def dummy_model(
    config: Any,
    *,
    device: torch.device,
    dtype: torch.dtype,
    seed: int = 0,
    quantise: str = "none",
    mxfp4: bool = False,
    shape: Callable[[Any], None] = lambda model: None,
) -> PreTrainedModel:
    """A model of this configuration with random weights; the same seed gives the same weights.

    With `quantise` ("fp8", "int4") its linear layers are made quantised from the start, with `mxfp4` its stacks of experts.
    `shape` may change the network before it gets memory.
    """
    model: Any = bare_model(config, dtype)
    shape(model)
    if quantise != "none":
        make_room(model, quantise)
    if mxfp4:
        for name, stack in list(stacks_for_mxfp4(model)):
            model.set_submodule(name, Mxfp4Stack.empty(stack, model.device, dtype))
    if device.type == "cpu":
        name = getattr(config, "name_or_path", "") or config.model_type
        check_room(f"the configuration of {name!r}", size_of(model))
    model.to_empty(device=device)
    model.tie_weights()
    with seeded(seed, device), torch.no_grad():
        for module in model.modules():
            _fill(model, module)
    ready: PreTrainedModel = model.train(False)
    return ready


def size_of(model: PreTrainedModel) -> int:
    """Bytes that the tensors of a network take, or will take where it has no memory yet."""
    tensors = {id(each): each for each in (*model.parameters(), *model.buffers())}
    return sum(each.numel() * each.itemsize for each in tensors.values())


def bare_model(config: Any, dtype: torch.dtype) -> PreTrainedModel:
    """The network on the meta device, its linear layers ordinary whatever the configuration says.

    UnsupportedModel if the configuration makes none: transformers' classes end in errors of every kind then.
    """
    reject(config)
    enter(config)
    config = copy.deepcopy(config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # gpt-oss comes in mxfp4; random weights need no packing
    try:
        with quiet(), torch.device("meta"):
            return _build(config, dtype=dtype, trust_remote_code=False)
    except UNBUILDABLE as error:
        name = getattr(config, "name_or_path", "") or config.model_type
        raise UnsupportedModel(
            f"the configuration of {name!r} makes no network: {type(error).__name__}: {in_short(error)}",
            hint=REPAIR,
        ) from error


def names_of(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Every parameter's names, by the first of them: tied weights have several, and a checkpoint has them under any."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {first: (first, *others) for first, *others in names.values()}


def untie_where(model: Any, differ: Callable[[str, str], bool]) -> None:
    """Give the output layer weights of its own where a checkpoint has others for it than for the embeddings it should share.

    So transformers takes such a checkpoint, whatever its configuration says. `model` is on the meta device, `differ` says it of two
    names.
    """
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    if head is None or getattr(head, "weight", None) is not table.weight:
        return
    first, second, *_ = next(
        names for names in names_of(model).values() if model.get_parameter(names[0]) is head.weight
    )
    if differ(first, second):
        head.weight = nn.Parameter(torch.empty_like(head.weight))
        model.config.tie_word_embeddings = False
        for name in (first, second):
            model.all_tied_weights_keys.pop(name, None)


def are_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of a checkpoint have the same numbers."""
    return one.shape == other.shape and torch.equal(one, other.to(one.dtype))


def mend_buffers(model: Any) -> None:
    """Compute anew what modules computed on construction, after a move from the meta device."""
    for module in model.modules():
        if any(True for _ in module.buffers(recurse=False)):
            model._init_weights(module)


def _fill(model: Any, module: nn.Module) -> None:
    """Matrices and expert stacks at random, biases 0, the rest as the family itself would start it.

    Norms are left to the family: most begin with a weight of 1, Gemma with 0 and adds the 1 later.
    """
    own = dict(module.named_parameters(recurse=False))
    vectors = [p for name, p in own.items() if p.dim() < 2 and not name.endswith("bias")]
    if isinstance(module, Quantised | Mxfp4Stack):
        module.fill(STD)
    elif vectors or any(True for _ in module.buffers(recurse=False)):
        model._init_weights(module)
    for name, parameter in own.items():
        if name.endswith("bias"):
            parameter.zero_()
        elif parameter.dim() > 1:
            parameter.normal_(std=STD)
