"""The files of which a checkpoint must consist: a folder, or a GGUF file.

A local folder is looked at before transformers sees it, because its own messages for a missing file
suggest things like a wrong name on the hub.

The headers of safetensors files say every tensor's name, dtype and shape in a few kilobytes
(`read_headers`). They are looked at before a network of the configured size is built.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from safetensors import SafetensorError, safe_open

from manyhands.errors import counted
from manyhands.hub import (
    ADAPTER_FILES,
    check_readable,
    check_there,
    damaged,
    in_short,
    incomplete,
    is_gguf,
    no_adapter,
    not_found,
    within_reach,
)
from manyhands.model.gguf.header import read_header

# Dtypes that are computed with as they are; everything else is packed, and a quantisation entry must say how.
PLAIN_DTYPES = frozenset({"F64", "F32", "F16", "BF16"})
_FILES = ("*.safetensors", "*.safetensors.index.json")
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin*")
_READ = (
    "*.json",
    "*.jinja",
    "*.model",
    *_WEIGHTS,
)  # by libraries, which do not say what they may not
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def check_place(place: str, *, with_weights: bool) -> None:
    """Raise what is wrong with a folder or a GGUF file on this machine, as far as its facts say."""
    if is_gguf(place):
        read_header(Path(place))
    else:
        check_folder(Path(place).expanduser(), with_weights=with_weights)


def check_lora(folder: Path) -> None:
    """Raise `ModelNotFound` where the folder holds no LoRA adapter."""
    for name in ADAPTER_FILES:
        try:
            is_there = (folder / name).is_file()
        except (OSError, ValueError):  # a name that no file can have
            is_there = False
        check_readable(folder / name)
        if not is_there:
            raise no_adapter(folder, name)


def check_folder(folder: Path, *, with_weights: bool) -> None:
    """Raise `ModelNotFound` if the folder, its configuration or its weights are missing, or cannot be read."""
    check_there(folder)
    for path in sorted(path for pattern in _READ for path in folder.glob(pattern)):
        check_readable(path)
    if not (folder / "config.json").is_file():
        raise incomplete(str(folder), "a config.json")
    if with_weights and not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
        raise incomplete(str(folder), "weights (*.safetensors)")
    if with_weights:
        _check_index(folder)


def _check_index(folder: Path) -> None:
    """Raise `ModelNotFound` unless an index names files of its own folder, which are there."""
    for index in folder.glob("*.safetensors.index.json"):
        try:
            listed = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
            raise damaged(str(folder), f"an index that cannot be read ({index.name})") from error
        for name in sorted(map(str, listed)):
            if PurePath(name).name != name or "\\" in name or name == "..":
                raise damaged(
                    str(folder),
                    f"an index that points outside of its folder ({index.name}: {name!r})",
                )
            if not (folder / name).is_file():
                raise incomplete(str(folder), f"the weights {name}, which {index.name} lists")


@dataclass(frozen=True)
class TensorHeader:
    """The entry of a safetensors file for one tensor."""

    dtype: str  # "BF16", "I8", ...
    shape: tuple[int, ...]


def read_headers(folder: Path) -> dict[str, TensorHeader]:
    """Every tensor of a folder's safetensors files by its name; none where there are only others."""
    found: dict[str, TensorHeader] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (it is no mapping)
                    part: Any = file.get_slice(name)
                    found[name] = TensorHeader(part.get_dtype(), tuple(part.get_shape()))
        except (SafetensorError, OSError) as error:
            raise damaged(
                str(folder), f"unreadable weights ({path.name}: {in_short(error)})"
            ) from error
    return found


def check_dtypes(name: str, headers: dict[str, TensorHeader]) -> None:
    """Raise `ModelNotFound` if tensors are packed and nothing says how."""
    packed = {key: each.dtype for key, each in headers.items() if each.dtype not in PLAIN_DTYPES}
    if packed:
        key = min(packed)
        raise damaged(
            name,
            f"{counted(len(packed), 'tensor')} of numbers that are not floating-point ones ({key}: {packed[key]}), "
            f"and its config.json has no quantization_config that says what they mean",
        )


def check_tokenizer(name: str) -> None:
    """Raise `ModelNotFound` if `name` is a folder without a tokenizer."""
    folder = Path(name)
    if folder.is_dir() and not any((folder / file).is_file() for file in _TOKENIZERS):
        raise incomplete(name, f"a tokenizer ({', '.join(_TOKENIZERS)})")


def weights_folder(name: str) -> Path:
    """The folder of a model's safetensors files, fetched if need be; raises ModelNotFound."""
    if Path(name).is_dir():
        return Path(name)
    with within_reach(name):
        try:
            return Path(snapshot_download(name, allow_patterns=list(_FILES)))
        except (OSError, ValueError, HfHubHTTPError) as error:
            raise not_found(name, error) from error


def weights_files(name: str, folder: Path) -> list[Path]:
    """The safetensors files of a model's weights; raises ModelNotFound."""
    indices = sorted(folder.glob("*.safetensors.index.json"))
    if not indices:
        found = sorted(folder.glob("*.safetensors"))
        if not found:
            raise incomplete(name, "weights (*.safetensors)")
        return found
    try:
        listed = json.loads(indices[0].read_text(encoding="utf-8"))["weight_map"].values()
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise damaged(name, f"an index that cannot be read ({in_short(error)})") from error
    paths = [folder / file for file in sorted(set(listed))]
    for path in paths:
        if not path.is_file():
            raise incomplete(name, path.name)
    return paths
