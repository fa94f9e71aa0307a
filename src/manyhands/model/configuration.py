"""Entries of a config.json, judged before a library builds something of them.

A configuration is somebody else's file. A library that reads a wrong entry speaks of its own insides, or does what the
entry says: a list of a billion layers. So entries are looked at twice, as they are written and as they were understood,
and each that no network can have is named, with what is expected in its place.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any

import torch

from manyhands.errors import ModelNotFound, UnsupportedModel
from manyhands.hub import file_of
from manyhands.model.families import values_of

_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
)
_LARGEST = 1 << 31
# Of these each is a module of its own, laid out in about a millisecond: the deepest published networks have hundreds.
_COUNTS = (
    "num_hidden_layers",
    "num_layers",
    "n_layer",
    "n_layers",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
)
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_CHOSEN = ("num_experts_per_tok", "top_k_experts")  # experts of a token
_WINDOWS = {"sliding_window": "sliding_attention", "attention_chunk_size": "chunked_attention"}
_MOST_MODULES = 4096
_POSITIVE = (
    *("rope_theta", "factor", "original_max_position_embeddings", "floor_scale"),
    *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "swiglu_limit"),
)
# Entries that networks read though the class of their configuration does not list them.
_READ_BY_NETWORKS = ("head_dim", "sliding_window", "partial_rotary_factor")
REPAIR = "download config.json again, or repair it"


def check_sizes(subject: str, config: Any) -> None:
    """Raise UnsupportedModel where a number of the configuration can be none of a network. `subject` names it in errors."""
    sizes = [(field, size) for field in _SIZES for size in values_of(config, field)]
    for field, size in sizes:
        is_number = isinstance(size, int) and not isinstance(size, bool)
        if size is not None and not (is_number and 1 <= size <= _LARGEST):
            raise UnsupportedModel(
                f"{subject} cannot be used: {field} is {size!r}; expected 1 to {_LARGEST:,}",
                hint=REPAIR,
            )
    counts = [size for field in _EXPERTS for size in values_of(config, field)]
    experts = [size for size in counts if isinstance(size, int) and size > 0]
    for field in _CHOSEN:
        for size in values_of(config, field):
            if experts and isinstance(size, int) and not 1 <= size <= min(experts):
                raise UnsupportedModel(
                    f"{subject} cannot be used: {field} is {size!r}; expected 1 to {min(experts)}, as many as a "
                    "layer has",
                    hint=REPAIR,
                )
    _check_heads(subject, config)
    _check_windows(subject, config)
    entry = getattr(config, "quantization_config", None)
    if entry is not None and not (isinstance(entry, dict) or hasattr(entry, "to_dict")):
        raise UnsupportedModel(
            f"{subject} cannot be used: quantization_config is {entry!r}; expected a table",
            hint=REPAIR,
        )


def _check_heads(subject: str, config: Any) -> None:
    """Raise UnsupportedModel where heads of keys serve different numbers of heads of queries.

    Weights of such a network have shapes of their own, so none are missing; attention ends in an error of torch's.
    """
    if getattr(config, "kv_lora_rank", None):  # latents are read by all heads
        return
    queries, keys = (values_of(config, f"num_{of}_heads") for of in ("attention", "key_value"))
    for index in range(max(len(queries), len(keys))):
        heads, shared = (each[index % len(each)] for each in (queries, keys))
        if isinstance(heads, int) and isinstance(shared, int) and heads % shared:
            raise UnsupportedModel(
                f"{subject} cannot be used: num_attention_heads is {heads}, and num_key_value_heads {shared}; expected a "
                "multiple of it",
                hint=REPAIR,
            )


def _check_windows(subject: str, config: Any) -> None:
    """Raise UnsupportedModel where layers attend in windows of no tokens, or of an unknown number."""
    kinds = getattr(config, "layer_types", None)
    for field, kind in _WINDOWS.items():
        if not hasattr(type(config), field):  # an entry that the architecture does not read
            continue
        for size in values_of(config, field):
            is_meant = kinds is None or kind in kinds
            if is_meant and isinstance(size, int) and size < 1:
                expected = "1 or more tokens"
            elif size is None and kinds is not None and kind in kinds:
                expected = (
                    f"a number of tokens, since {kinds.count(kind)} of layer_types are {kind}"
                )
            else:
                continue
            raise UnsupportedModel(
                f"{subject} cannot be used: {field} is {size!r}; expected {expected}",
                hint=REPAIR,
            )


def check_written(name: str) -> dict[str, Any]:
    """Raise UnsupportedModel where config.json has entries of a kind that none can have; returns what it says.

    The library that reads it next would speak of its own insides, or lay out a billion layers. Empty where
    there is no such table: what reads it next says so.
    """
    try:
        path = file_of(name, "config.json")
        if path is None:
            return {}
        written = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, ModelNotFound):
        return {}
    if not isinstance(written, dict):
        raise UnsupportedModel(
            f"the configuration of {name!r} cannot be used: it is a {type(written).__name__}; expected a table",
            hint=REPAIR,
        )
    check_entries(f"the configuration of {name!r}", written)
    return written


def check_entries(subject: str, written: dict[str, Any]) -> None:
    """Raise UnsupportedModel where a configuration as it is written has entries of a kind that none can have."""
    for field, value, expected in _odd_entries(written):
        raise UnsupportedModel(
            f"{subject} cannot be used: {field} is {value!r}; expected {expected}", hint=REPAIR
        )


def check_read(subject: str, config: Any, names: Iterable[str]) -> None:
    """Raise UnsupportedModel for an entry that the architecture does not read; it lies on the configuration as it was given."""
    known = vars(type(config)())
    for name in names:
        if name in vars(config) and name not in known and name not in _READ_BY_NETWORKS:
            near = get_close_matches(name, [each for each in known if each[0] != "_"], n=1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise UnsupportedModel(
                f"{subject} has {name!r}, which networks of type {config.model_type!r} do not read{meant}",
                hint="leave it out, or write its name as the configuration class of its model_type has it",
            )


def _odd_entries(written: dict[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Entries that no network can have: name, value, what is expected instead."""
    for field in ("dtype", "torch_dtype"):
        dtype = written.get(field)
        known = isinstance(dtype, str) and getattr(torch, dtype.removeprefix("torch."), None)
        if dtype is not None and not isinstance(known, torch.dtype):
            yield field, dtype, "the name of a dtype such as bfloat16 or float32"
    kind = written.get("model_type")
    if kind is not None and not isinstance(kind, str):
        yield "model_type", kind, "the name of an architecture"
    packing = written.get("quantization_config")
    if packing is not None and not isinstance(packing, dict):
        yield "quantization_config", packing, "a table"
    for field, value in _entries(written):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if field in _COUNTS and is_number and not value <= _MOST_MODULES:
            yield field, value, f"at most {_MOST_MODULES:,}"
        if field in _POSITIVE and is_number and not 0 < value < math.inf:
            yield field, value, "a positive number"


def _entries(table: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every name and value of a table and of the tables in it."""
    for field, value in table.items():
        if isinstance(value, dict):
            yield from _entries(value)
        else:
            yield field, value
