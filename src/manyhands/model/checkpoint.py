"""What a checkpoint must consist of, and words for what is wrong with one.

A local folder is looked at before transformers sees it, because its own messages for a missing file
suggest things like a wrong name on the hub. Names on the hub are left to huggingface_hub, which reads
HF_HOME, HF_TOKEN and HF_HUB_OFFLINE itself; its reasons are found in the chain of the error's causes.

The headers of safetensors files say every tensor's name, dtype and shape in a few kilobytes
(`read_headers`). They are looked at before a network of the configured size is built.
"""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from huggingface_hub import is_offline_mode
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from safetensors import SafetensorError, safe_open

from manyhands.errors import ModelNotFound

# What is computed with as it is; everything else is packed, and a quantisation entry must say how.
PLAIN_DTYPES = frozenset({"F64", "F32", "F16", "BF16"})
_LONGEST_NAME = 255  # bytes of one part of a path, on every common file system
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin*")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def is_local(name: str) -> bool:
    """Whether `name` means a folder: it exists, or no name on the hub could look like it."""
    looks_like_path = name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1
    return looks_like_path or _exists(Path(name))


def _exists(path: Path) -> bool:
    """Whether there is such a path. A name that no file system can have is refused."""
    long = max((len(os.fsencode(part)) for part in path.parts), default=0)
    if long > _LONGEST_NAME or "\0" in str(path):
        found = f"{textwrap.shorten(str(path), 60, placeholder=' ...')!r}"[:70]
        raise ModelNotFound(
            f"the model {found} is no folder and no name on the hub: part of it has {long} bytes, "
            f"at most {_LONGEST_NAME} are possible",
            hint="give an existing folder, or a name on the Hugging Face hub like Qwen/Qwen3-0.6B",
        )
    return path.expanduser().exists()


def check_folder(folder: Path, *, with_weights: bool) -> None:
    """Raise `ModelNotFound` if the folder, its configuration or its weights are missing."""
    if not _exists(folder):
        raise ModelNotFound(
            f"no folder {str(folder)!r}",
            hint="give an existing folder, or a name on the Hugging Face hub like Qwen/Qwen3-0.6B",
        )
    if not folder.is_dir():
        raise ModelNotFound(f"{str(folder)!r} is a file", hint="give the folder that contains it")
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
        except (ValueError, KeyError, AttributeError, TypeError) as error:
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
class Header:
    """What a safetensors file says of one tensor."""

    dtype: str  # "BF16", "I8", ...
    shape: tuple[int, ...]


def read_headers(folder: Path) -> dict[str, Header]:
    """Every tensor of a folder's safetensors files by its name; none where there are only others."""
    found: dict[str, Header] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (it is no mapping)
                    part: Any = file.get_slice(name)
                    found[name] = Header(part.get_dtype(), tuple(part.get_shape()))
        except (SafetensorError, OSError) as error:
            raise damaged(
                str(folder), f"unreadable weights ({path.name}: {in_short(error)})"
            ) from error
    return found


def check_dtypes(name: str, headers: dict[str, Header]) -> None:
    """Raise `ModelNotFound` if tensors are packed and nothing says how."""
    packed = {key: each.dtype for key, each in headers.items() if each.dtype not in PLAIN_DTYPES}
    if packed:
        key = min(packed)
        raise damaged(
            name,
            f"{len(packed)} tensors of numbers that are not floating-point ones ({key}: {packed[key]}), "
            f"and its config.json has no quantization_config that says what they mean",
        )


def check_tokenizer(name: str) -> None:
    """Raise `ModelNotFound` if `name` is a folder without a tokenizer."""
    folder = Path(name)
    if folder.is_dir() and not any((folder / file).is_file() for file in _TOKENIZERS):
        raise incomplete(name, f"a tokenizer ({', '.join(_TOKENIZERS)})")


def incomplete(name: str, missing: str, cause: BaseException | None = None) -> ModelNotFound:
    """The error for a checkpoint that lacks something."""
    detail = f": {in_short(cause)}" if cause else ""
    return ModelNotFound(
        f"the model {name!r} lacks {missing}{detail}",
        hint="a model needs config.json, its weights and its tokenizer in one place; "
        "random weights (dummy) need config.json alone",
    )


def damaged(name: str, what: str) -> ModelNotFound:
    """The error for a checkpoint whose weights are there but cannot be right."""
    return ModelNotFound(
        f"the model {name!r} has {what}",
        hint="the files are truncated or belong to another model; download them again",
    )


def not_found(name: str, error: BaseException) -> ModelNotFound:
    """What kept a checkpoint from being found, out of the chain of causes of `error`."""
    chain = list(_causes(error))

    def any_of(*kinds: type[BaseException]) -> bool:
        return any(isinstance(link, kinds) for link in chain)

    if any_of(GatedRepoError):
        problem = f"the model {name!r} is gated: its owner must grant access"
        hint = f"ask for access at https://huggingface.co/{name} and set HF_TOKEN to your token"
    elif any_of(RepositoryNotFoundError, HFValidationError):
        problem = f"there is no model {name!r} on the Hugging Face hub, or it is private"
        hint = "check the name; for a private model set HF_TOKEN; for a folder give its path"
    elif any_of(OfflineModeIsEnabled) or is_offline_mode():
        problem = f"the model {name!r} is not here, and HF_HUB_OFFLINE forbids to fetch it"
        hint = "unset HF_HUB_OFFLINE, or give the path of a folder"
    elif any_of(EntryNotFoundError) and not any_of(LocalEntryNotFoundError):
        return incomplete(name, "a file that it needs", error)
    elif Path(name).is_dir():
        return damaged(name, f"files that cannot be read ({in_short(error)})")
    else:
        problem = f"the model {name!r} could not be fetched from the Hugging Face hub"
        hint = "check the network, or give the path of a folder"
    return ModelNotFound(problem, hint=hint)


def in_short(error: BaseException) -> str:
    """The error's message on one line of bearable length."""
    return textwrap.shorten(str(error) or repr(error), width=200, placeholder=" ...")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
