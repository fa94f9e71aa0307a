"""Names of models: "bundled", a folder, a GGUF file or a name on the hub; one file of it; why it cannot be had.

Names on the hub are left to huggingface_hub, which reads HF_HOME, HF_TOKEN and HF_HUB_OFFLINE itself; its
reasons are found in the chain of the error's causes. It is imported only where something is fetched, since
it takes a tenth of a second. Without a network it tries each question again for half a minute, and a model is five of
them: whatever asks it stands in `within_reach`.

    file_of("Qwen/Qwen3-8B", "config.json")   # its path in the cache, fetched if need be
"""

from __future__ import annotations

import logging
import os
import stat
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path

from manyhands.errors import (
    InvalidRequest,
    ManyhandsError,
    ModelNotFound,
    OutputFailed,
    no_room_of,
    place_or_room,
)

PROXY_HINT = (
    "for a SOCKS proxy: pip install socksio; for none: unset ALL_PROXY, HTTPS_PROXY and HTTP_PROXY"
)
BUNDLED = "bundled"  # the model that comes with the package; a folder of this name is ./bundled, or a Path
_KNOWN_SECONDS = 60.0  # how long it is believed to be there, or not to be
_TIMES = 3  # its user's patience: to connect, to ask, and to answer
_LONGEST_NAME = 255  # bytes of one part of a path, on every common file system


def place_of(model: str | Path) -> str:
    """Where `model` is to be loaded from: the folder of the bundled one, or else its name as it is.

    Raises InvalidRequest for what is no name, which the hub would be asked for as Python writes it.
    """
    given: object = model
    if not isinstance(given, str | Path):
        raise InvalidRequest(
            f"the model is of type {type(given).__name__}; expected a folder or a name on the Hugging Face hub",
            hint='Give "bundled" or "Qwen/Qwen3-8B", for instance.',
        )
    if model == BUNDLED:
        return str(Path(__file__).parent / "bundled" / "model")
    # The name may be given once more, and then a folder of this name has no Path to tell it.
    return f"./{model}" if str(model) == BUNDLED else str(model)


def is_gguf(name: str) -> bool:
    """Whether `name` means a GGUF file, which is a whole model: by its ending, or by its first bytes."""
    path = Path(name).expanduser()
    if name.lower().endswith(".gguf"):
        return not (exists(path) and path.is_dir())
    if not (exists(path) and path.is_file()):
        return False
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError as error:
        raise unreadable(path, error.strerror) from error


def is_local(name: str) -> bool:
    """Whether `name` is of this machine: it exists, or no name on the hub could look like it."""
    looks_like_path = name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1
    looks_like_path = looks_like_path or name.lower().endswith(".gguf")
    return looks_like_path or exists(Path(name))


def exists(path: Path) -> bool:
    """Whether there is such a path, as far as this user can see. A name that no file system can have is refused."""
    try:
        long = max((len(os.fsencode(part)) for part in path.parts), default=0)
    except UnicodeEncodeError as error:
        raise ModelNotFound(
            f"the model {str(path)!r} is no folder and no name on the hub: {error.reason}",
            hint="give an existing folder, or a name on the Hugging Face hub like Qwen/Qwen3-0.6B",
        ) from error
    if long > _LONGEST_NAME or "\0" in str(path):
        found = f"{textwrap.shorten(str(path), 60, placeholder=' ...')!r}"[:70]
        raise ModelNotFound(
            f"the model {found} is no folder and no name on the hub: part of it has {long} bytes, "
            f"at most {_LONGEST_NAME} are possible",
            hint="give an existing folder, or a name on the Hugging Face hub like Qwen/Qwen3-0.6B",
        )
    try:
        return path.expanduser().exists()
    except PermissionError:  # a folder above it is shut; `check_there` says so
        return False


_WHOLE = (
    "a model needs config.json, its weights and its tokenizer in one place; "
    "random weights (dummy) need config.json alone"
)
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")  # as `peft` names them
# The checkpoint of a training, in its output folder.
CHECKPOINT_FOLDER, CHECKPOINT_FILE = "checkpoint", "checkpoint.pt"
_GGUF = "to run a GGUF file, give the file itself, as it lies on this machine: --model PATH.gguf"


def check_there(folder: Path) -> None:
    """Raise `ModelNotFound` unless this is a folder whose files this user may read."""
    check_readable(folder)
    if not exists(folder):
        raise ModelNotFound(
            f"no folder {str(folder)!r}",
            hint="give an existing folder, or a name on the Hugging Face hub like Qwen/Qwen3-0.6B",
        )
    if not folder.is_dir():
        raise ModelNotFound(
            f"{str(folder)!r} is a file, and no GGUF file", hint="give the folder that contains it"
        )


def check_readable(place: Path) -> None:
    """Raise `ModelNotFound` where there is a file that this user may not read, or a folder not to be listed or entered.

    Libraries that read models say of such a file that it is not there, or that it is damaged.
    """
    try:
        mode = (
            place.stat().st_mode
        )  # `is_dir` of newer Pythons takes what is shut for what is not there
        if stat.S_ISDIR(mode):
            os.stat(os.path.join(place, "."))
            os.scandir(place).close()
        elif stat.S_ISREG(mode):  # opening another kind may wait for ever
            place.open("rb").close()
    except PermissionError as error:
        raise unreadable(place, error.strerror) from error
    except (OSError, ValueError):  # no place that could be: for others to say
        return


def unreadable(place: Path, reason: str | None) -> ModelNotFound:
    """The error for a file or a folder of a model that is there, and that this user may not read."""
    return ModelNotFound(
        f"{str(place)!r} cannot be read: {reason}",
        hint="check its permissions, and those of the folders above it",
    )


def file_of(model: str | Path, file: str) -> Path | None:
    """One file of a model, "bundled", a folder or a name on the hub; None if the model has no such file.

    A GGUF file is all there is of its model.

    Without the hub, a model that is kept here has the files that are kept here. Raises ModelNotFound.
    """
    model = place_of(model)
    if is_gguf(model):
        return None
    if is_local(model):
        folder = Path(model).expanduser()
        check_there(folder)
        return folder / file if (folder / file).is_file() else None
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HFValidationError,
        LocalEntryNotFoundError,
    )

    with within_reach(model):
        try:
            with silent_hub():
                return Path(hf_hub_download(model, file))
        except HFValidationError as error:
            raise not_found(model, error) from error
        except (OSError, ValueError, EntryNotFoundError) as error:
            is_known = not isinstance(error, LocalEntryNotFoundError)
            if isinstance(error, EntryNotFoundError) and is_known:
                return None
            kept = [try_to_load_from_cache(model, name) for name in (file, "config.json")]
            if isinstance(kept[0], str):
                return Path(kept[0])
            if isinstance(kept[1], str):
                return None
            raise not_found(model, error) from error


class _Reach:
    """The way to the hub, as far as it was tried. `reason`: why it cannot be reached; None: it can, or was not tried."""

    reason: str | None = None
    asked = float("-inf")  # when, by the monotonic clock
    num_inside = 0  # blocks in which huggingface_hub is kept from asking for that reason

    def __init__(self) -> None:
        self._one_thread = threading.Lock()

    def look(self, *, anew: bool = False) -> str | None:
        """The reason, asked for at most once in `_KNOWN_SECONDS`, and without a second try; `anew`: no reason is believed."""
        is_old = time.monotonic() - self.asked > _KNOWN_SECONDS
        if is_old or (anew and self.reason is not None):
            self.reason, self.asked = _why_unreachable(), time.monotonic()
        return self.reason

    def forget(self) -> None:
        """The next question looks again: a user who was told that the hub cannot be reached may have mended it."""
        with self._one_thread:
            self.asked = float("-inf")

    def shut(self, *, anew: bool = False) -> bool:
        """Keep huggingface_hub from asking, if it cannot reach the hub and its user has not forbidden it anyway; whether it is kept.

        See `look` for `anew`.
        """
        from huggingface_hub import constants

        with self._one_thread:
            if not self.num_inside and (constants.HF_HUB_OFFLINE or self.look(anew=anew) is None):
                return False
            constants.HF_HUB_OFFLINE = True
            self.num_inside += 1
            return True

    def open(self) -> None:
        """Let it ask again, where no other block keeps it from that."""
        from huggingface_hub import constants

        with self._one_thread:
            self.num_inside -= 1
            constants.HF_HUB_OFFLINE = self.num_inside > 0


_reach = _Reach()


def _why_unreachable() -> str | None:
    """Why the hub does not answer, in a few words; None if it does, whatever it says.

    Its HTTP library bounds each piece of an answer and not the whole, so an answer may come a byte at a time for ever.
    """
    from huggingface_hub import constants

    said: list[str | None] = []
    seconds = constants.HF_HUB_ETAG_TIMEOUT
    one = threading.Thread(target=lambda: said.append(_why_unanswered(seconds)), daemon=True)
    one.start()
    one.join(_TIMES * seconds)
    return said[0] if said else f"no answer was whole within {_TIMES * seconds:g} s"


def _why_unanswered(seconds: float) -> str | None:
    """The same, where connecting, asking and each piece of the answer may take so long."""
    from huggingface_hub import constants

    errors, http = import_module("huggingface_hub.errors"), import_module("huggingface_hub.utils")
    try:
        http.get_session().head(constants.ENDPOINT, timeout=seconds)
    # The first is its HTTP library's; the last one is of a proxy or an address that is none.
    except (errors.HTTPError, OSError, ValueError) as error:
        return in_short(error)
    return None


def _check_client() -> None:
    """Raise ModelNotFound where huggingface_hub can make no client, which it needs even where it may not ask."""
    try:
        import_module("huggingface_hub.utils").get_session()
    except ImportError as error:
        raise ModelNotFound(
            f"the Hugging Face hub cannot be asked: {in_short(error)}", hint=PROXY_HINT
        ) from error
    except ValueError:  # a proxy that is none; what is kept here is found beside it
        return


def _is_kept(model: str) -> bool:
    """Whether the configuration of a model on the hub is kept here, or there can be no such model."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(model, "config.json"), str)
    except HFValidationError:
        return True


@contextmanager
def within_reach(model: str) -> Iterator[None]:
    """Inside, a hub that cannot be reached is asked nothing about `model`: what is kept here is found at once.

    Without this, a model that is kept on a machine without a network takes two minutes to be found. A folder or a file is
    no question to the hub. What is kept is found whether the network has come up meanwhile or not; for a model that is not, the way is
    looked at anew. Raises ModelNotFound where nothing can be asked for a proxy's sake, not even of what is kept.
    """
    if is_local(model):
        yield
        return
    _check_client()
    if not _reach.shut(anew=not _is_kept(model)):
        yield
        return
    try:
        yield
    finally:
        _reach.open()


class ProcessWide:
    """A change of the whole process, for as long as any thread is in a block that asks for it.

    The first one in makes it, and the last one out takes it back. If each thread put back what it had found, one that leaves
    behind another that came later would put back the change itself, for good.
    """

    def __init__(self, change: Callable[[], AbstractContextManager[object]]) -> None:
        self._change = change
        self._one_thread = threading.Lock()
        self._num_inside = 0
        self._made: AbstractContextManager[object] = nullcontext()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """The block of one thread; it may have others inside."""
        is_inside = 0
        try:
            with self._one_thread:
                if not self._num_inside:
                    made = self._change()
                    made.__enter__()
                    self._made = made
                # Without a call in between, so an interrupt finds both or neither.
                is_inside = self._num_inside = self._num_inside + 1
            yield
        finally:
            if is_inside:
                with self._one_thread:
                    self._num_inside -= 1
                    if not self._num_inside:
                        made, self._made = self._made, nullcontext()
                        made.__exit__(None, None, None)


@contextmanager
def _without_words() -> Iterator[None]:
    from huggingface_hub.utils import logging as hub_logging
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    verbosity, had_bars = hub_logging.get_verbosity(), not are_progress_bars_disabled()
    hub_logging.set_verbosity(logging.CRITICAL)
    disable_progress_bars()
    try:
        yield
    finally:
        hub_logging.set_verbosity(verbosity)
        if had_bars:
            enable_progress_bars()
        else:
            disable_progress_bars()


@contextmanager
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# No log lines and no progress bars of huggingface_hub inside; everything as it was, afterwards.
silent_hub = ProcessWide(_without_words)
# No warnings of Python inside.
no_warnings = ProcessWide(_without_warnings)


def incomplete(name: str, missing: str, cause: BaseException | None = None) -> ModelNotFound:
    """The error for a checkpoint that lacks something."""
    detail = f": {in_short(cause)}" if cause else ""
    has_gguf = name.lower().endswith("gguf") or any(Path(name).glob("*.gguf"))
    hint = _WHOLE
    if has_gguf:
        hint = _GGUF
    elif (Path(name) / ADAPTER_FILES[0]).is_file():
        hint = "it is a LoRA adapter: give it by --adapter, and the model that it was trained beside by --model"
    elif _is_trained_on(Path(name)):
        hint = _TRAINED_ON
    return ModelNotFound(f"the model {name!r} lacks {missing}{detail}", hint=hint)


def no_adapter(folder: Path, missing: str) -> ModelNotFound:
    """The error for a folder that holds no LoRA adapter."""
    hint = "give a folder as `manyhands train` with [lora], or `peft`, writes it"
    with suppress(OSError, ValueError):  # a name that no file can have
        if _is_trained_on(folder):
            hint = _TRAINED_ON
        if (folder / "config.json").is_file():
            hint = "it is a whole model: give it by --model"
    return ModelNotFound(
        f"there is no adapter at {str(folder)[:200]!r}: {missing} is missing", hint=hint
    )


_TRAINED_ON = "its training has not ended: the same `manyhands train` command goes on, and makes it at its end"


def _is_trained_on(folder: Path) -> bool:
    """Whether `manyhands train` has left a checkpoint in its output folder."""
    return (folder / CHECKPOINT_FOLDER / CHECKPOINT_FILE).is_file()


def damaged(name: str, what: str) -> ModelNotFound:
    """The error for a checkpoint whose weights are there but cannot be right."""
    return ModelNotFound(
        f"the model {name!r} has {what}",
        hint="the files are truncated or belong to another model; download them again",
    )


def not_found(name: str, error: BaseException) -> ManyhandsError:
    """The reason why a checkpoint was not found, out of the chain of causes of `error`."""
    from huggingface_hub import is_offline_mode
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    chain = list(_causes(error))

    def any_of(*kinds: type[BaseException]) -> bool:
        return any(isinstance(link, kinds) for link in chain)

    full = next((found for link in chain if (found := no_room_of(link)) is not None), None)
    if full is not None:  # as far as the network is concerned, all is well
        return OutputFailed(
            f"the model {name!r} could not be fetched from the Hugging Face hub: its files cannot be written: "
            f"{full.strerror or full}",
            hint=f"{place_or_room(full)}, or keep them elsewhere: HF_HOME=FOLDER",
        )
    if any_of(GatedRepoError):
        problem = f"the model {name!r} is gated: its owner must grant access"
        hint = f"ask for access at https://huggingface.co/{name} and set HF_TOKEN to your token"
    elif any_of(RepositoryNotFoundError, HFValidationError):
        problem = f"there is no model {name!r} on the Hugging Face hub, or it is private"
        hint = "check the name; for a private model set HF_TOKEN; for a folder give its path"
    elif Path(name).is_dir():
        return damaged(name, f"files that cannot be read ({in_short(error)})")
    elif _reach.num_inside:
        problem = f"the model {name!r} could not be fetched from the Hugging Face hub, which cannot be reached: {_reach.reason}"
        hint = "check the network, or give the path of a folder"
        _reach.forget()
    elif any_of(OfflineModeIsEnabled) or is_offline_mode():
        problem = f"the model {name!r} is not here, and HF_HUB_OFFLINE forbids to fetch it"
        hint = "unset HF_HUB_OFFLINE, or give the path of a folder"
    elif any_of(EntryNotFoundError) and not any_of(LocalEntryNotFoundError):
        return incomplete(name, "a file that it needs", error)
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
