"""From a name to a network that is ready: find it, judge it, load it, take it over.

`find_format` is the one place that says what a name stands for: a folder, a name on the hub or a GGUF file,
with ordinary weights or packed ones (AWQ, GPTQ, FP8, GGUF's own). The order matters. The configuration is a few kilobytes and decides whether the architecture can work
at all, so refusals come before any weights are fetched or read. Transformers reports what is wrong
with a checkpoint in many ways, some of them silent (weights that are missing are made up at random);
here each has one clear error.
"""

from __future__ import annotations

import pickle
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_utils import PreTrainedModel
from transformers.quantizers.auto import AutoHfQuantizer
from transformers.tokenization_utils_base import PreTrainedTokenizerBase
from transformers.utils.quantization_config import Mxfp4Config

from manyhands.errors import (
    ContextTooLong,
    InvalidRequest,
    ModelNotFound,
    UnsupportedModel,
    counted,
)
from manyhands.hub import (
    ADAPTER_FILES,
    damaged,
    in_short,
    incomplete,
    is_gguf,
    is_local,
    not_found,
    place_of,
    within_reach,
)
from manyhands.model.adapter import ModelAdapter, is_in_use
from manyhands.model.checkpoint import (
    TensorHeader,
    check_dtypes,
    check_folder,
    check_lora,
    check_tokenizer,
    fetched_headers,
    read_headers,
    weights_folder,
)
from manyhands.model.configuration import REPAIR, check_sizes, check_written
from manyhands.model.devices import resolve_device, resolve_dtype, too_small
from manyhands.model.dummy import UNBUILDABLE, bare_model, dummy_model, size_of
from manyhands.model.families import (
    Family,
    language_model,
    listed_family,
    may_be_inside,
    reach,
    reject,
    supported,
)
from manyhands.model.fusion import is_fused
from manyhands.model.generation import check_generation
from manyhands.model.gguf.network import GgufFile
from manyhands.model.host_memory import check_room
from manyhands.model.lora import merge_lora, merged_place
from manyhands.model.parallel.collectives import Collectives
from manyhands.model.parallel.cuts import Cutting
from manyhands.model.parallel.reading import read_part
from manyhands.model.quantised.block_scales import read_block_scales
from manyhands.model.quantised.mxfp4 import is_mxfp4, keeps_mxfp4, stacks_for_mxfp4
from manyhands.model.quantised.packed_checkpoint import (
    Layout,
    check_mxfp4,
    load_mxfp4,
    load_packed,
)
from manyhands.model.quantised.packing import read_packing
from manyhands.model.quantised.quantise import (
    KINDS,
    check_quantise,
    make_room,
    quantise_network,
    round_to_fp16,
)
from manyhands.model.quiet import quiet
from manyhands.model.saving import refuse_to_save
from manyhands.model.self_test import self_test
from manyhands.model.settings import Weights
from manyhands.model.unlisted import enter

_BITS = {"int4": "four", "fp8": "eight"}
_ROUNDED_TO = (
    "_rounded_to"  # of a network that was built already: the bits to which it was rounded here
)

# Where transformers looks for an adapter in a model's own folder, if `peft` is installed: nowhere. It would add one that lies there,
# and of a model on the hub take the network that the adapter names; whole networks would differ from their parts, and from machine to
# machine.
_NO_ADAPTER = {"subfolder": "no-adapter-is-looked-for"}

# How composites (`families.language_model`) name the weights of their language model: as published, and as transformers
# holds them. Alone it has these names already, and the patterns find nothing.
_INSIDE = {
    r"^language_model\.model\.": "model.",
    r"^model\.language_model\.": "model.",
    r"^language_model\.lm_head\.": "lm_head.",
}


def load_adapter(
    model: str | Path | PreTrainedModel,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    weights: str = "auto",
    quantise: str = "auto",
    context: int | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    downloads: bool = False,
    collectives: Collectives | None = None,
    adapted: Path | None = None,
) -> tuple[ModelAdapter, PreTrainedTokenizerBase | None]:
    """A network ready to attend through our hook, and its tokenizer.

    Args:
        model: A folder, a name on the Hugging Face hub, "bundled", a GGUF file, or a causal language model already
            built (which is taken over, see `ModelAdapter`, and stays where and as it is under "auto"). Engines that are
            given one object share its weights, so what would change them for an engine that is there is refused.
        device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N".
        dtype: "auto" (the checkpoint's on a GPU, float32 on the CPU) or the name of a dtype.
        weights: "auto", or "dummy" for random weights in the real architecture; then a config.json
            is enough, and the tokenizer is None where there is none.
        quantise: How linear layers keep their weights: "auto" (as the checkpoint does: AWQ and GPTQ
            in four bits, FP8 in eight where the device multiplies them, GGUF's Q4_0 and Q4_1 in four
            on a GPU and all of them rounded to "fp16" on a CPU, others ordinary; gpt-oss's experts in mxfp4 on a GPU, in bfloat16), "none"
            (ordinary ones, whatever the checkpoint does), "fp8" or "int4" (the checkpoint's own bits
            if it has so many, or rounded to nearest from an ordinary one), "fp16" (rounded to float16, on a CPU,
            where products are made in float32).
        context: The longest view that will be asked for; default: all the model was made for.
            Longrope models choose their frequencies by it, once.
        tokenizer: Used instead of the one found with the model.
        downloads: Show progress bars for files that are fetched from the hub.
        collectives: What joins this process to the other ranks of one network; then its part is loaded
            (`model/parallel/`), and every rank must load the same.
        adapted: A folder with a LoRA adapter that is added to the weights (`model/lora.py`), of a network that is built
            already in place: it holds the adapter from then on, and is loaded with the same one or not at all.

    Raises:
        ModelNotFound, UnsupportedModel, ContextTooLong: See `errors.py`.
        InvalidRequest: For choices that cannot be, or cannot be together; for a network that is built already also where
            device, dtype, bits or an adapter would change it under another engine, or where it holds an adapter that was
            not asked for.

    """
    if weights not in get_args(Weights):
        raise InvalidRequest(f"weights {weights!r} are unknown", hint='choose "auto" or "dummy"')
    check_quantise(quantise)
    wanted = quantise
    if adapted is not None and (collectives is not None or quantise in ("fp8", "int4")):
        raise InvalidRequest(
            "an adapter was asked for together with several ranks or weights in fewer bits",
            hint="merge it first: manyhands train writes whole models, too, and peft has merge_and_unload",
        )
    if adapted is not None:
        check_lora(adapted)  # before the model is read
        quantise = "none"
    if isinstance(model, PreTrainedModel):
        if collectives is not None:
            raise InvalidRequest(
                "a network that is built already cannot be cut over several ranks",
                hint="give its folder or its name: each rank reads its own part",
            )
        return _adopt(model, device, dtype, context, quantise, adapted), tokenizer
    place = resolve_device(device)
    with quiet(downloads=downloads):
        found = find_format(model, with_weights=weights == "auto")
        family = judge(found.config, context)
    precision = resolve_dtype(dtype, place, getattr(found.config, "dtype", None))
    with quiet(downloads=downloads):
        if tokenizer is None:
            tokenizer = found.tokenizer(required=weights == "auto")
        notes: list[str] = []
        cutting = None if collectives is None else Cutting(found.config, collectives)
        network = _network(found, weights, quantise, place, precision, notes, cutting)
        if cutting is not None:
            cutting.join(network)
        if adapted is not None:
            merge_lora(network, adapted)
            if _is_halved(found, wanted, place, precision):
                round_to_fp16(network)
        adapter = ModelAdapter(network, name=str(model), context=context, family=family)
        refuse_to_save(network)
    if adapted is None and (Path(found.name) / ADAPTER_FILES[0]).is_file():
        notes.append(
            f"the folder {found.name!r} holds an adapter beside its weights, which is not added to them; give the folder as the "
            "adapter too, to have it"
        )
    for note in notes:
        warnings.warn(note, stacklevel=2)
    return adapter, tokenizer


@dataclass(frozen=True)
class Found:
    """The model that a name stands for, as known before any weights are read."""

    name: str
    config: Any
    layout: Layout | None  # how its linear layers are packed; None: they are ordinary numbers
    file: GgufFile | None = None

    @property
    def format(self) -> str:
        """Of its weights: "awq", "gptq", "fp8", "gguf", or "plain"."""
        if self.file is not None:
            return "gguf"
        return "plain" if self.layout is None else self.layout.method

    def tokenizer(self, *, required: bool) -> PreTrainedTokenizerBase | None:
        """The tokenizer that comes with the model; None where it has none and needs none."""
        if self.file is not None:
            return self.file.tokenizer()
        with within_reach(self.name):
            return read_tokenizer(self.name, required=required)


def find_format(model: str | Path, *, with_weights: bool = True) -> Found:
    """The one choice of a format. Raises ModelNotFound, UnsupportedModel, each with what was found."""
    name = place_of(model)
    if is_gguf(name):
        file = GgufFile.open(Path(name))
        check_sizes(f"the configuration of {name!r}", file.config)
        return Found(name, file.config, file.layout, file)
    if isinstance(model, Path) or is_local(name):
        check_folder(Path(name).expanduser(), with_weights=with_weights)
        name = str(Path(name).expanduser())
    with within_reach(name):
        config = _config(name)
        check_sizes(f"the configuration of {name!r}", config)
        return Found(name, config, _layout(name, config))


def judge(config: Any, context: int | None = None) -> Family:
    """Whether this configuration can work here, and how it rotates; raises if it cannot."""
    reject(config)
    family = listed_family(config) or self_test(config)
    if context is not None and context < 1:
        raise InvalidRequest(f"context is {context} tokens", hint="ask for at least 1")
    if context is not None and context > reach(config):
        raise ContextTooLong(
            f"context is {context} tokens, and the model was made for {reach(config)}",
            hint="ask for less, or leave it out to have all",
        )
    return family


def _is_halved(found: Found, quantise: str, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether numbers are rounded to float16. InvalidRequest where that was asked for and cannot be."""
    if quantise == "fp16":
        check_fp16(device, dtype)
        return True
    was_rounded = found.file is not None and found.file.is_rounded  # each, to eight bits or fewer
    return quantise == "auto" and was_rounded and device.type == "cpu" and dtype == torch.float32


def _network(
    found: Found,
    weights: str,
    quantise: str,
    device: torch.device,
    dtype: torch.dtype,
    notes: list[str],
    cutting: Cutting | None,
) -> PreTrainedModel:
    name, config, layout = found.name, found.config, found.layout
    kind = quantise
    if quantise == "auto":
        kind = "none" if layout is None else layout.kind_on(device)
    if _is_halved(found, quantise, device, dtype):
        plain = _network(found, weights, "none", device, dtype, notes, cutting)
        round_to_fp16(plain)
        return plain
    keeps_experts = quantise != "none" and keeps_mxfp4(config, device, dtype)
    if weights == "dummy":
        if cutting is None:
            return dummy_model(
                config, device=device, dtype=dtype, quantise=kind, mxfp4=keeps_experts
            )
        # The same numbers on every rank: what all hold is alike, and what is cut may be anything.
        return dummy_model(
            cutting.config,
            device=device,
            dtype=dtype,
            quantise=kind,
            mxfp4=keeps_experts,
            shape=cutting.shorten,
        )
    if layout is not None and kind not in ("none", layout.kind):
        raise InvalidRequest(
            f"the weights of {name!r} have {_BITS[layout.kind]} bits already ({layout.method.upper()})",
            hint='leave quantise out, or say "none" to have them unpacked',
        )
    own = config if cutting is None else cutting.config
    if layout is not None and device.type == "cpu":
        _check_room(name, own, dtype, kind)
    if found.file is not None:
        if cutting is not None:
            raise UnsupportedModel(
                f"the weights of {name!r} are a GGUF file, which is not cut over several ranks",
                hint="load it with ranks=1, or take the model's folder of *.safetensors",
            )
        if layout is None:
            _check_room(name, config, dtype)
        place = torch.device("cpu") if layout is None else device
        network = found.file.network(device=place, dtype=dtype, unpacked=kind == "none")
        return network if layout is not None else _place(network, device, kind)
    if layout is not None:
        return load_packed(
            name,
            config,
            layout,
            device=device,
            dtype=dtype,
            unpacked=kind == "none",
            cutting=cutting,
        )
    if keeps_experts and cutting is None:
        return _place(load_mxfp4(name, config, device=device, dtype=dtype), device, kind)
    if cutting is not None:
        if is_mxfp4(config) and (headers := read_headers(weights_folder(name))):
            check_mxfp4(name, headers)
        if device.type == "cpu":
            _check_room(name, own, dtype)
        renamed = _INSIDE if may_be_inside(config) else {}
        part, unknown = read_part(
            name, cutting, device=device, dtype=dtype, renamed=renamed, mxfp4=keeps_experts
        )
        if not renamed:
            notes += _without_a_place(name, unknown)
        return _place(part, device, kind)
    with within_reach(name):
        whole = _pretrained(name, config, dtype, notes)
    return _place(whole, device, kind)


def check_fp16(device: torch.device, dtype: torch.dtype) -> None:
    """Raise InvalidRequest unless weights in float16 can be multiplied in float32 here."""
    if device.type != "cpu" or dtype != torch.float32:
        raise InvalidRequest(
            f"weights in fp16 were asked for, on {device} with dtype {str(dtype).removeprefix('torch.')}; they are "
            "for a CPU and float32",
            hint="on a GPU say dtype float16 instead; on a CPU leave dtype out",
        )


def _layout(name: str, config: Any) -> Layout | None:
    """How the checkpoint packs its layers, if it does so in a way of ours."""
    quantization = getattr(config, "quantization_config", None)
    if quantization is None:
        return None
    if not isinstance(quantization, dict):
        quantization = quantization.to_dict()
    try:
        return read_packing(quantization) or read_block_scales(quantization)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{name!r} cannot be read: {error}", hint=error.hint) from error


def _adopt(
    model: PreTrainedModel,
    device: str | torch.device,
    dtype: str | torch.dtype,
    context: int | None,
    quantise: str,
    adapted: Path | None,
) -> ModelAdapter:
    if is_fused(model):
        raise InvalidRequest(
            "parts of this network were replaced for inference, it already belongs to an engine",
            hint="load the model anew, or give the adapter that has it",
        )
    place = model.device if device == "auto" else resolve_device(device)
    precision = model.dtype if dtype == "auto" else resolve_dtype(dtype, place, model.dtype)
    held = merged_place(model)
    if held is not None and adapted is None:
        raise InvalidRequest(
            f"the adapter of {held} was added to the weights of this network when it was loaded before, and none is asked for",
            hint=f"Give lora={held!r}, or build the network anew.",
        )
    is_rounded = vars(model).get(_ROUNDED_TO) == quantise
    changes = {
        "device": place != model.device,
        "dtype": precision != model.dtype,
        "quantise": quantise in (*KINDS, "fp16") and not is_rounded,
        "lora": adapted is not None and held is None,
    }
    change = next((name for name, is_one in changes.items() if is_one), None)
    if change is not None and is_in_use(model):
        raise InvalidRequest(
            f"another engine has this network, and {change} would change its weights for that one, too",
            hint="Build the network anew, or give its folder or its name: each load reads the weights then.",
        )
    with quiet():
        family = judge(model.config, context)
        if place != model.device or precision != model.dtype:
            nn.Module.to(model, device=place, dtype=precision)
        if quantise in KINDS:
            quantise_network(model, quantise, place)
        elif quantise == "fp16":
            check_fp16(place, precision)
            round_to_fp16(model)
            setattr(model, _ROUNDED_TO, quantise)
        if adapted is not None:
            merge_lora(model, adapted)
        refuse_to_save(model)
        return ModelAdapter(model, context=context, family=family)


def _config(name: str) -> Any:
    written = check_written(name)
    try:
        return language_model(AutoConfig.from_pretrained(name, trust_remote_code=False))
    except OSError as error:
        raise not_found(name, error) from error
    except UNBUILDABLE as error:
        kind = written.get("model_type")
        is_known = isinstance(kind, str) and kind in CONFIG_MAPPING
        types = f"supported: {supported()}; code that comes with a checkpoint is never run"
        raise UnsupportedModel(
            f"the configuration of {name!r} cannot be used: {in_short(error)}",
            hint=REPAIR if is_known else types,
        ) from error


def read_tokenizer(name: str, *, required: bool) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a folder or a model on the hub; None where it cannot be had. ModelNotFound if it is `required`."""
    read: Any = AutoTokenizer.from_pretrained
    try:
        check_tokenizer(name)
        found: PreTrainedTokenizerBase = read(name, trust_remote_code=False)
        return found
    except ModelNotFound:
        if required:
            raise
    except (
        Exception
    ) as error:  # the library in Rust raises just that, whatever is wrong in the file
        if required and isinstance(error, OSError) and not Path(name).is_dir():
            raise not_found(name, error) from error
        if required:
            raise incomplete(name, "a tokenizer that can be read", error) from error
    return None


def _pretrained(name: str, config: Any, dtype: torch.dtype, notes: list[str]) -> PreTrainedModel:
    # gpt-oss is published in mxfp4, which needs kernels from the hub; unpacked it needs nothing.
    special: dict[str, Any] = {}
    if is_mxfp4(config):
        special = {"quantization_config": Mxfp4Config(dequantize=True)}
    elif may_be_inside(config):
        special = {"config": config, "key_mapping": _INSIDE}
    enter(config)
    read: Any = AutoModelForCausalLM.from_pretrained
    is_here = Path(name).is_dir()
    if is_here:
        _check_headers(name, config, read_headers(Path(name)))
    _check_room(name, config, dtype)
    try:
        model, report = read(
            name,
            dtype=dtype,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # to name them below; nothing is ignored
            adapter_kwargs=_NO_ADAPTER,
            **special,
        )
    except SafetensorError as error:
        raise damaged(name, f"unreadable weights ({in_short(error)})") from error
    except ImportError as error:
        raise UnsupportedModel(
            f"loading {name!r} needs a package that is not installed: {in_short(error)}",
            hint="install it, or use a checkpoint that is not quantised",
        ) from error
    except OSError as error:
        raise not_found(name, error) from error
    except pickle.UnpicklingError as error:  # its own words recommend to run what is in there
        raise UnsupportedModel(
            f"the weights of {name!r} are a pickle (*.bin) with more in it than tensors",
            hint="a pickle can run any program, so it is not read; ask for *.safetensors",
        ) from error
    except UNBUILDABLE as error:
        check_generation(name)
        raise damaged(name, f"weights that cannot be used ({in_short(error)})") from error
    if not is_here:
        _check_headers(name, config, fetched_headers(name))
    # Transformers would go on with random numbers in the place of these.
    if report["missing_keys"]:
        raise damaged(name, f"no weights for {_some(report['missing_keys'])}")
    if report["mismatched_keys"]:
        names = {key for key, *_ in report["mismatched_keys"]}
        raise damaged(name, f"weights of another shape than its configuration: {_some(names)}")
    if "key_mapping" not in special:  # of a composite, only the language model is wanted
        notes += _without_a_place(name, report["unexpected_keys"])
    if is_mxfp4(config):
        for _, stack in stacks_for_mxfp4(model):
            stack.to(dtype)  # older versions leave what they unpacked in bfloat16
    if special:
        vars(model).pop("_weight_conversions", None)  # or saving would turn the names back
    loaded: PreTrainedModel = model
    return loaded


def _check_headers(name: str, config: Any, headers: dict[str, TensorHeader]) -> None:
    """Raise ModelNotFound, UnsupportedModel for packed numbers that transformers would take for ordinary ones.

    It passes over a method that it does not know, such as ModelOpt's. Without safetensors nothing is known.
    """
    quantization = getattr(config, "quantization_config", None)
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    is_known = method is None or (isinstance(method, str) and _reads(quantization))
    if headers and is_mxfp4(config):
        check_mxfp4(name, headers)
    elif headers and quantization is None:
        check_dtypes(name, headers, None)
    elif headers and not is_known:
        check_dtypes(name, headers, str(method))


def _reads(quantization: Any) -> bool:
    """Whether transformers knows this entry's method."""
    with quiet():
        return bool(AutoHfQuantizer.supports_quant_method(quantization))


def _without_a_place(name: str, unknown: Any) -> list[str]:
    if not unknown:
        return []
    return [
        f"the checkpoint of {name!r} has {counted(len(unknown), 'tensor')} that its network has no place for, and "
        f"they are left out: {_some(unknown)}"
    ]


def _check_room(name: str, config: Any, dtype: torch.dtype, kept: str = "none") -> None:
    """Raise OutOfMemory if the network of this configuration is larger than the memory that this process may have.

    The network is laid out without memory: a wrong size in a configuration would otherwise be found
    when the machine has none left. `kept`: the bits that the checkpoint's linear layers keep.
    """
    laid_out = bare_model(config, dtype)
    if kept != "none":
        with suppress(InvalidRequest):  # where no layer has a shape that keeps them
            make_room(laid_out, kept)
    check_room(f"the configuration of {name!r}", size_of(laid_out))


def _place(model: PreTrainedModel, device: torch.device, kind: str) -> PreTrainedModel:
    try:
        if kind in KINDS:
            quantise_network(model, kind, device)
        return nn.Module.to(model, device)
    except torch.OutOfMemoryError as error:
        raise too_small(device, str(model.config.name_or_path)) from error


def _some(names: Any) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return ", ".join(listed[:3]) + more
