"""Low-rank adapters (LoRA, Hu et al. 2021): a few numbers beside frozen weights, trained, shipped and merged.

A layer with weights W [out, in] gets two small ones, A [rank, in] and B [out, rank], and computes
W x + (alpha / rank) B A x. Only A and B are trained. On disk they are what the library `peft` writes and reads, a
folder with adapter_config.json and adapter_model.safetensors; loaded for inference they are added to W, once, so
that a model with an adapter is as fast as without.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from sys import float_info
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from manyhands.errors import InvalidRequest, UnsupportedModel
from manyhands.hub import ADAPTER_FILES
from manyhands.model.checkpoint import check_lora
from manyhands.model.host_memory import check_room
from manyhands.model.seeded import seeded
from manyhands.schema.setting import as_found

CONFIG, WEIGHTS = ADAPTER_FILES
_PREFIX = "base_model.model."
_SIDES = ("lora_A", "lora_B")
_PLAIN_MERGE = "merge it with the library that made it, and load the merged model"
# Entries of an adapter's configuration with which W + (alpha / rank) B A is not what is meant, and what is expected instead.
_CHANGING = {
    **dict.fromkeys(("rank_pattern", "alpha_pattern"), "one rank and one alpha for all layers"),
    "fan_in_fan_out": "weights [out, in]",
    **dict.fromkeys(("layer_replication", "kasa_config"), "the layers of the model as they are"),
    **dict.fromkeys(("use_qalora", "use_bdlora"), "whole A and B"),
    **dict.fromkeys(
        ("alora_invocation_tokens", "arrow_config"), "an adapter that holds for all tokens"
    ),
}
# How beginnings of A and B are called for which `peft` takes what they make out of the weights, so that the sum is as before.
_TAKEN_OUT = ("pissa", "olora", "corda", "loftq", "lora_ga")
_MERGED = "_merged_adapter"  # of a network: the adapter that was added to its weights


class LoraLinear(nn.Module):
    """A frozen linear layer and its adapter. A begins random, B at zero: nothing changes at first."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base
        self.scaling = alpha / rank
        device = base.weight.device
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features, device=device))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank, device=device))
        nn.init.kaiming_uniform_(self.lora_A, a=5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Of x [..., in]: [..., out], in the dtype that the base gives."""
        out: Tensor = self.base(x)
        if not torch.is_autocast_enabled(x.device.type):
            x = x.to(self.lora_A.dtype)
        low = nn.functional.linear(x, self.lora_A) * self.scaling
        return out + nn.functional.linear(low, self.lora_B).to(out.dtype)

    def merged(self) -> Tensor:
        """The weight [out, in] that base and adapter make together; gradients reach A and B."""
        base = self.base.weight
        return base + (self.lora_B @ self.lora_A * self.scaling).to(base.dtype)


def add_lora(model: nn.Module, rank: int, alpha: float, *, seed: int = 0) -> None:
    """Freeze the network and give every linear layer but the last one, which makes logits, an adapter."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    model.requires_grad_(requires_grad=False)
    layers = [each for each in _linears(model) if each[2] is not head]
    device = layers[0][2].weight.device if layers else torch.device("cpu")
    if device.type == "cpu":
        # In float32, each with its gradient and the two averages of the optimizer.
        numbers = sum(rank * sum(layer.weight.shape) for *_, layer in layers)
        check_room(f"rank {rank} of the adapter", 16 * numbers)
    with seeded(seed, device):
        for parent, name, layer in layers:
            setattr(parent, name, LoraLinear(layer, rank, alpha))


def _linears(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    for parent in model.modules():
        for name, layer in parent.named_children():
            if isinstance(layer, nn.Linear):
                yield parent, name, layer


def lora_layers(model: nn.Module) -> dict[str, LoraLinear]:
    """The layers with an adapter, by their names in the network."""
    return {name: part for name, part in model.named_modules() if isinstance(part, LoraLinear)}


def save_lora(model: nn.Module, folder: str | Path, *, base: str, dtype: torch.dtype) -> None:
    """Write the adapters of a network as `peft` does; `base` names the model that they belong to."""
    folder = Path(folder)
    layers = lora_layers(model)
    assert layers, "a network without adapters has none to save"
    rank = len(next(iter(layers.values())).lora_A)
    alpha = next(iter(layers.values())).scaling * rank
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{_PREFIX}{name}.{side}.weight": getattr(layer, side)
        .detach()
        .to("cpu", dtype)
        .contiguous()
        for name, layer in layers.items()
        for side in _SIDES
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({name.rpartition(".")[2] for name in layers}),
        "inference_mode": True,
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    shutil.copymode(
        folder / CONFIG, folder / WEIGHTS
    )  # safetensors lets the owner alone read its files


def load_lora(model: nn.Module, folder: str | Path) -> None:
    """Give the adapters of a network the numbers of one that was saved, to train it further.

    Raises ModelNotFound, UnsupportedModel where it is none, or of other layers or another rank.
    """
    folder = Path(folder)
    config, tensors = _read(folder)
    layers = lora_layers(model)
    wanted = {f"{_PREFIX}{name}.{side}.weight" for name in layers for side in _SIDES}
    if wanted != set(tensors):
        odd = sorted(wanted ^ set(tensors))[0]
        raise UnsupportedModel(
            f"the adapter at {folder} cannot be gone on from: {odd!r} is on one side only",
            hint="give an adapter that was trained for the same model",
        )
    for name, layer in layers.items():
        for side in _SIDES:
            own, found = getattr(layer, side), tensors[f"{_PREFIX}{name}.{side}.weight"]
            if own.shape != found.shape or _scaling(config, folder) != layer.scaling:
                raise UnsupportedModel(
                    f"the adapter at {folder} has {tuple(found.shape)} numbers and counts "
                    f"{_scaling(config, folder)} times in {name!r}; the recipe's has {tuple(own.shape)} "
                    f"and counts {layer.scaling} times",
                    hint="give the recipe the rank and alpha of the adapter",
                )
            _check_half(found, f"{side} of {name!r}", folder)
            with torch.no_grad():
                own.copy_(found)


def merge_lora(model: nn.Module, folder: str | Path) -> None:
    """Add an adapter to the weights of a network, in place and for good; the same one again changes nothing.

    Raises ModelNotFound where the folder has none, UnsupportedModel where it is of another kind, or does not fit, InvalidRequest
    where another adapter is in the weights already, or where these were changed since: a second one would be added to the first.
    """
    folder = Path(folder)
    config, tensors = _read(folder)
    digest = _digest(folder)
    merged: _Merged | None = vars(model).get(_MERGED)
    if merged is not None:
        merged.check(model, digest, folder)
        return
    scaling = _scaling(config, folder)
    layers = {name: part for name, part in model.named_modules() if isinstance(part, nn.Linear)}
    sides: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        name, _, rest = key.removeprefix(_PREFIX).rpartition(".lora_")
        side, _, own = f"lora_{rest}".partition(".")
        if not name or side not in _SIDES or own != "weight":
            raise UnsupportedModel(
                f"the adapter at {folder} has {key!r}; expected pairs of lora_A and lora_B alone, with a weight each",
                hint="save it as LoRA, without biases, trained embeddings or other modules",
            )
        sides.setdefault(name, {})[side] = tensor
    if not sides:
        raise UnsupportedModel(
            f"the adapter at {folder} has no tensors", hint="copy or train it again"
        )
    # All is looked at before the first weight changes.
    _check_shared(model, {name: layers.get(name) for name in sides}, folder)
    pairs = [
        (layers.get(name), _checked(layers.get(name), name, found, config["r"], folder))
        for name, found in sides.items()
    ]
    merged = _Merged(digest, str(folder))
    # Before the first weight changes: an interrupt leaves a network that takes no adapter.
    setattr(model, _MERGED, merged)
    with torch.no_grad():
        for layer, (a, b) in pairs:
            assert layer is not None, "looked at before"
            wide = torch.promote_types(layer.weight.dtype, torch.float32)
            a, b = (side.to(layer.weight.device, wide) for side in (a, b))
            layer.weight.copy_(layer.weight.to(wide) + scaling * (b @ a))
    merged.versions.update(_versions(model, sides))


def merged_place(model: nn.Module) -> str | None:
    """The folder of the adapter that was added to the weights of a network.

    None if none was, or if they were written to since, as by a training: then they are what their owner made of them.
    """
    merged: _Merged | None = vars(model).get(_MERGED)
    if merged is None or (merged.versions and merged.is_written_to(model)):
        return None
    return merged.place


@dataclass(frozen=True)
class _Merged:
    """An adapter that is in the weights of a network, and how often torch had written to each of these by then."""

    digest: str
    place: str
    versions: dict[str, int] = field(default_factory=dict)  # by the names of layers

    def check(self, model: nn.Module, digest: str, folder: Path) -> None:
        """Raise InvalidRequest unless just this adapter is in the weights, and nothing else has happened to them."""
        if self.digest != digest:
            what = f"{folder} is another one"
        elif not self.versions or self.is_written_to(model):
            what = "its weights were changed since"
        else:
            return
        raise InvalidRequest(
            f"the adapter of {self.place} was added to the weights of this network when it was loaded before, and {what}",
            hint="Build the network anew, or give its folder or its name: each load reads the weights then.",
        )

    def is_written_to(self, model: nn.Module) -> bool:
        """Whether anything else has happened to the weights."""
        return self.versions != _versions(model, self.versions)


def _versions(model: nn.Module, names: Iterable[str]) -> dict[str, int]:
    """How often torch has written to the weights of these layers, as it counts it itself."""
    layers = dict(model.named_modules())
    found = {name: getattr(layers.get(name), "weight", None) for name in names}
    return {name: weight._version for name, weight in found.items() if weight is not None}


def _digest(folder: Path) -> str:
    """Hex digits that stand for both files of an adapter."""
    found = hashlib.sha256()
    for name in (CONFIG, WEIGHTS):
        found.update((folder / name).read_bytes())
    return found.hexdigest()


def _checked(
    layer: nn.Linear | None, name: str, found: dict[str, Tensor], rank: int, folder: Path
) -> tuple[Tensor, Tensor]:
    """A and B of one layer, which fit it."""
    if layer is None:
        raise UnsupportedModel(
            f"the adapter at {folder} is for a layer {name!r}, and the model has no such linear layer",
            hint="give the model that the adapter was trained for, with --quantise none if it is packed",
        )
    if set(found) != set(_SIDES):
        raise UnsupportedModel(f"the adapter at {folder} has one half only of {name!r}")
    a, b = (found[side] for side in _SIDES)
    for side, half in found.items():
        _check_half(half, f"{side} of {name!r}", folder)
    if len(a) != rank or b.shape[1] != rank:
        raise UnsupportedModel(
            f"the adapter at {folder} has {name!r} of rank {len(a)}, and its configuration says {rank}",
            hint="copy both files of one adapter",
        )
    if b.shape[0] != layer.out_features or a.shape[1] != layer.in_features:
        raise UnsupportedModel(
            f"the adapter at {folder} changes {name!r} from {a.shape[1]} to {b.shape[0]} numbers; the "
            f"model's layer goes from {layer.in_features} to {layer.out_features}",
            hint="give the model that the adapter was trained for",
        )
    return a, b


def _check_shared(model: Any, layers: dict[str, nn.Linear | None], folder: Path) -> None:
    """Raise UnsupportedModel for a layer that shares its weights with the embeddings: added to them the adapter would change both."""
    table = getattr(model, "get_input_embeddings", lambda: None)()
    for name, layer in layers.items():
        if layer is not None and table is not None and layer.weight is table.weight:
            raise UnsupportedModel(
                f"the adapter at {folder} is for {name!r}, whose weights are those of the embeddings in this model "
                "(tie_word_embeddings); expected layers with weights of their own",
                hint="train it without this layer, or give the model with a copy of the embeddings as its output layer",
            )


def _check_half(half: Tensor, what: str, folder: Path) -> None:
    """Raise UnsupportedModel for what is no matrix of numbers that a weight can be made of."""
    is_matrix = half.dim() == 2 and half.is_floating_point()
    if not is_matrix or not bool(half.float().isfinite().all()):
        raise UnsupportedModel(
            f"the adapter at {folder} has as {what} numbers of {half.dtype} {list(half.shape)}; expected finite "
            "ones with a fraction, in 2 dims",
            hint="copy both files of one adapter again",
        )


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    check_lora(folder)
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        tensors = load_file(folder / WEIGHTS)
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise UnsupportedModel(f"the adapter at {folder} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise UnsupportedModel(f"{folder / CONFIG} holds no table")
    return config, tensors


def _is_positive(number: object) -> bool:
    return isinstance(number, int | float) and 0 < number <= float_info.max


def _scaling(config: dict[str, Any], folder: Path) -> float:
    kind, alpha = config.get("peft_type"), config.get("lora_alpha")
    rank = config.get("r")
    if kind != "LORA" or config.get("use_dora") or config.get("bias", "none") != "none":
        raise UnsupportedModel(
            f"the adapter at {folder} is of the kind {kind!r}, with bias or DoRA; expected plain LoRA",
            hint=_PLAIN_MERGE,
        )
    for name, expected in _CHANGING.items():
        if config.get(name):
            raise UnsupportedModel(
                f"the adapter at {folder} has {name} = {config[name]!r}; expected {expected}",
                hint=_PLAIN_MERGE,
            )
    begun = config.get("init_lora_weights")
    if isinstance(begun, str) and begun.lower().startswith(_TAKEN_OUT):
        raise UnsupportedModel(
            f"the adapter at {folder} has init_lora_weights = {begun!r}: what it began as was taken out of the weights that it is for, "
            "and the model has it still",
            hint="save it with path_initial_model_for_weight_conversion, which makes a plain adapter of it, or "
            + _PLAIN_MERGE,
        )
    if not isinstance(rank, int) or not _is_positive(rank) or not _is_positive(alpha):
        raise InvalidRequest(
            f"{folder / CONFIG} has r = {as_found(rank)} and lora_alpha = {as_found(alpha)}; expected two positive numbers",
            hint="copy both files of the adapter again",
        )
    return float(config["lora_alpha"]) / (rank**0.5 if config.get("use_rslora") else rank)
