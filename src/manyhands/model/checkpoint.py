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

from huggingface_hub import snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError
from safetensors import SafetensorError, safe_open

from manyhands.errors import UnsupportedModel, counted
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
NOT_READ = (
    "use a checkpoint that is not quantised, or one in AWQ, GPTQ or FP8 with blocks of 128 x 128"
)
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_INDICES, _ALL = "*.safetensors.index.json", "*.safetensors"
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
    """Raise `ModelNotFound` unless an index names files that are there."""
    index = _index_of(folder)
    if index is None:
        return
    for name in _listed(str(folder), index):
        if not (folder / name).is_file():
            raise incomplete(str(folder), f"the weights {name}, which {index.name} lists")


def _index_of(folder: Path) -> Path | None:
    """The index that says which files have the weights, None where there is none.

    Of several the one that transformers reads is meant: beside it there may be one of the same weights by other names, as Mistral
    publishes them.
    """
    found = sorted(folder.glob("*.safetensors.index.json"))
    return next((each for each in found if each.name == _INDEX), found[0] if found else None)


def _listed(name: str, index: Path) -> list[str]:
    """The names of the files that an index lists, all of its own folder."""
    try:
        listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        files = sorted({str(file) for file in listed})
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise damaged(
            name, f"an index that cannot be read ({index.name}: {in_short(error)})"
        ) from error
    for file in files:
        if PurePath(file).name != file or "\\" in file or file == "..":
            raise damaged(
                name, f"an index that points outside of its folder ({index.name}: {file!r})"
            )
    return files


@dataclass(frozen=True)
class TensorHeader:
    """The entry of a safetensors file for one tensor."""

    dtype: str  # "BF16", "I8", ...
    shape: tuple[int, ...]


def read_headers(folder: Path) -> dict[str, TensorHeader]:
    """Every tensor of a folder's weights in safetensors by its name; none where there are only others."""
    found: dict[str, TensorHeader] = {}
    has_some = any(folder.glob("*.safetensors"))
    for path in weights_files(str(folder), folder) if has_some else ():
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


def fetched_headers(name: str) -> dict[str, TensorHeader]:
    """The same of a model on the hub that has just been loaded, from the files that lie here since; none where there are only others."""
    for file in (_WHOLE, _INDEX):
        place = try_to_load_from_cache(name, file)
        if isinstance(place, str):
            return read_headers(Path(place).parent)
    return {}


def check_dtypes(name: str, headers: dict[str, TensorHeader], method: str | None) -> None:
    """Raise `ModelNotFound` if tensors are packed and nothing says how, `UnsupportedModel` for a `method` that nobody here knows."""
    packed = {key: each.dtype for key, each in headers.items() if each.dtype not in PLAIN_DTYPES}
    if packed:
        key = min(packed)
        if method is not None:
            raise UnsupportedModel(
                f"the weights of {name!r} are packed in a way that is not read (quant_method {method!r}): {key} has numbers of "
                f"{packed[key]}, expected {' or '.join(sorted(PLAIN_DTYPES))}",
                hint=NOT_READ,
            )
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
    """The folder of a model's safetensors files, fetched if need be; raises ModelNotFound.

    Those are fetched that `weights_files` names. A repository may have the same weights once more, in a folder within (gpt-oss) or under
    other names (Mistral).
    """
    if Path(name).is_dir():
        return Path(name)
    with within_reach(name):
        try:
            folder = _fetched(name, [_WHOLE, _INDICES])
            if (folder / _WHOLE).is_file():
                return folder
            index = _index_of(folder)
            return _fetched(name, [_ALL] if index is None else _listed(name, index))
        except (OSError, ValueError, HfHubHTTPError) as error:
            raise not_found(name, error) from error


def _fetched(name: str, patterns: list[str]) -> Path:
    """The folder of a model on the hub, with its files of these names; those of folders within are not wanted."""
    return Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=["*/*"]))


def weights_files(name: str, folder: Path) -> list[Path]:
    """The safetensors files of a model's weights; raises ModelNotFound.

    The choice is that of transformers, or a part of a network would have other weights than the whole: one file of all of them goes
    before an index. Where there is neither, all files are meant.
    """
    if (folder / _WHOLE).is_file():
        return [folder / _WHOLE]
    index = _index_of(folder)
    if index is None:
        found = sorted(folder.glob("*.safetensors"))
        if not found:
            raise incomplete(name, "weights (*.safetensors)")
        return found
    paths = [folder / file for file in _listed(name, index)]
    for path in paths:
        if not path.is_file():
            raise incomplete(name, path.name)
    return paths
