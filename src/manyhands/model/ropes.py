"""How a borrowed network rotates, read from its own rotary module.

Every token runs through the network at position 0, where Hugging Face's rotation is the identity
times the attention factor of YaRN or longrope. The rotations themselves are ours (attention/rotary),
so we need from the network: the frequencies, how many dims are rotated, in which pairs, and which
layers have no positions at all (NoPE). Some networks have two sets of frequencies, one per layer type.

The frequencies come from a fresh rotary module built from the configuration, not from the buffers of
the loaded one: `model.to(torch.bfloat16)` rounds those to eight bits, and a model that came from the
meta device holds garbage there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.modeling_utils import PreTrainedModel

from manyhands.attention.rotary import Rope
from manyhands.errors import UnsupportedModel
from manyhands.model.families import Family, nope_layers, reach, supported

_EVERY_LAYER = ""  # the name of the only set of frequencies where there is one


def read_ropes(
    model: PreTrainedModel, family: Family, context: int | None
) -> tuple[tuple[Rope | None, ...], tuple[float, ...]]:
    """Per layer: the rotation (None: the layer has no positions) and the correction of its scaling.

    Layers that rotate alike share one `Rope`, so that its tables are made once per forward pass.
    """
    config = model.config
    rotary = rotary_module(model)
    kinds = _layer_kinds(rotary, config)
    _stop_choosing(rotary)
    sets: dict[str, Rope] = {}
    gains: dict[str, float] = {}
    for kind in dict.fromkeys(kinds):
        rope = _rope(rotary, config, family, kind, context, model)
        alike = (other for other in sets.values() if other.same_rotation(rope))
        sets[kind] = next(alike, rope)
        gains[kind] = _gain(model, rotary, kind)
    without = nope_layers(config, family)
    ropes = tuple(None if bare else sets[kind] for kind, bare in zip(kinds, without, strict=True))
    corrections = tuple(
        1.0 if bare else gains[kind] for kind, bare in zip(kinds, without, strict=True)
    )
    return ropes, corrections


def attention_factors(model: PreTrainedModel, family: Family) -> tuple[float, ...]:
    """Per layer the factor (YaRN's, longrope's) that q and k each get besides their rotation.

    It is 1 for networks that have none, and for layers without positions.
    """
    rotary = rotary_module(model)
    kinds = _layer_kinds(rotary, model.config)
    without = nope_layers(model.config, family)
    return tuple(
        1.0 if bare else _factor(rotary, kind) for kind, bare in zip(kinds, without, strict=True)
    )


def rotary_module(model: PreTrainedModel) -> nn.Module:
    """The network's one rotary module."""
    found = [m for m in model.modules() if "RotaryEmbedding" in type(m).__name__]
    if len(found) != 1:
        raise UnsupportedModel(
            f"model type {model.config.model_type!r} has {len(found) or 'no'} rotary position modules, "
            "one is expected: a block is moved inside a view by rotations, the same in every layer",
            hint=f"supported: {supported()}",
        )
    return found[0]


def _stop_choosing(rotary: Any) -> None:
    """Longrope's choice of factors by position is ours now (see `_frequencies`).

    At position 0 it would only cost launches, and in older versions of transformers a wait for the
    device in every forward pass.
    """
    if isinstance(rotary.rope_type, dict):
        rotary.rope_type = {
            kind: "default" if name == "longrope" else name
            for kind, name in rotary.rope_type.items()
        }
    elif rotary.rope_type == "longrope":
        rotary.rope_type = "default"


def _layer_kinds(rotary: nn.Module, config: Any) -> list[str]:
    """For each layer the name of its set of frequencies."""
    if hasattr(rotary, "inv_freq"):
        return [_EVERY_LAYER] * config.num_hidden_layers
    return [str(kind) for kind in config.layer_types]


def _rope(
    rotary: nn.Module,
    config: Any,
    family: Family,
    kind: str,
    context: int | None,
    model: PreTrainedModel,
) -> Rope:
    inv_freq = _frequencies(rotary, config, kind, context)
    dtype = torch.float64 if model.dtype == torch.float64 else torch.float32
    inv_freq = inv_freq.detach().to(device=model.device, dtype=dtype)
    return Rope(inv_freq, 2 * inv_freq.numel(), family.interleaved)


def _frequencies(rotary: nn.Module, config: Any, kind: str, context: int | None) -> Tensor:
    """Radians per position, as float32 (what the checkpoint was trained with), on the CPU."""
    parameters = config.rope_parameters[kind] if kind else config.rope_parameters
    if parameters.get("rope_type") == "longrope":
        # Longrope has two sets of frequencies. Hugging Face chooses by the longest position it sees,
        # anew in every forward pass; keys that are stored once need one choice, made here for good.
        # Its attention factor is the same for both sets.
        length = context or reach(config)
        named = {"layer_type": kind} if kind else {}
        chosen: Tensor
        chosen, _ = ROPE_INIT_FUNCTIONS["longrope"](config, "cpu", seq_len=length, **named)
        return chosen
    with torch.device("cpu"):
        fresh = type(rotary)(config)
    return fresh.get_buffer(f"{kind}_inv_freq" if kind else "inv_freq")


@torch.no_grad()
def _gain(model: PreTrainedModel, rotary: nn.Module, kind: str) -> float:
    """The factor by which the layer's scaling must be multiplied, because of the rounding of the cosine.

    At position 0 the cosine is the attention factor, rounded to the network's dtype: in bfloat16 up
    to 0.4 % off, on q and on k, in the same direction for all dims. We know the exact factor, so the
    scores get it back. It is 1 for networks without YaRN or longrope.
    """
    nothing = torch.zeros(1, 1, 1, dtype=model.dtype, device=model.device)
    # Positions on the axes of pictures: before 5.19 they are not made of a text's own.
    axes = (3,) if hasattr(rotary, "mrope_section") else ()
    origin = torch.zeros(*axes, 1, 1, dtype=torch.long, device=model.device)
    table = rotary(nothing, origin, kind) if kind else rotary(nothing, origin)
    # DeepSeek-V2 has one table of complex numbers.
    cos, sin = (table.real, table.imag) if isinstance(table, Tensor) else table
    applied = cos.flatten()[0]
    if not bool((cos == applied).all()) or not bool((sin == 0).all()):
        raise UnsupportedModel(
            f"model type {model.config.model_type!r} still rotates at position 0",
            hint="its rotary module was changed or holds garbage; load the model again",
        )
    exact = _factor(rotary, kind)
    rounded = cos.dtype.itemsize <= 2  # OLMo, for one, keeps it in float32
    return (exact / float(applied)) ** 2 if rounded else 1.0


def _factor(rotary: nn.Module, kind: str) -> float:
    return float(getattr(rotary, f"{kind}_attention_scaling" if kind else "attention_scaling"))
