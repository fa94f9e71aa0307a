"""What a checkpoint must consist of, and words for what is wrong with one.

A local folder is looked at before transformers sees it, because its own messages for a missing file
suggest things like a wrong name on the hub. Names on the hub are left to huggingface_hub, which reads
HF_HOME, HF_TOKEN and HF_HUB_OFFLINE itself; its reasons are found in the chain of the error's causes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import is_offline_mode
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from manyhands.errors import ModelNotFound

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin*")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def is_local(name: str) -> bool:
    """Whether `name` means a folder: it exists, or no name on the hub could look like it."""
    path = Path(name).expanduser()
    looks_like_path = name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1
    return looks_like_path or path.exists()


def check_folder(folder: Path, *, with_weights: bool) -> None:
    """Raise `ModelNotFound` if the folder, its configuration or its weights are missing."""
    if not folder.exists():
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
