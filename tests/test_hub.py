"""Names of models: what is a folder, what the hub has of a model, and why it cannot be had."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import is_offline_mode
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    are_progress_bars_disabled,
    filter_repo_objects,
)

from manyhands import hub
from manyhands.errors import InvalidRequest, ModelNotFound, OutputFailed
from manyhands.hub import (
    ADAPTER_FILES,
    check_there,
    file_of,
    incomplete,
    is_gguf,
    is_local,
    not_found,
)
from manyhands.model.checkpoint import (
    check_folder,
    check_lora,
    check_place,
    weights_files,
    weights_folder,
)
from manyhands.model.loading import load_adapter
from manyhands.prompts import Prompts, TeamPrompt, dump_prompt, model_prompts
from tests.hub_cache import keep
from tests.permissions import needs_modes, open_folder, stranger

WORDS = "manyhands.toml"
WHY_UNREACHABLE = hub._why_unreachable  # tests have none of it (tests/conftest.py)
RESPONSE: Any = SimpleNamespace(headers={}, request=None)  # these errors look at it


class Hub:
    """In the place of `hf_hub_download`: it returns a path, or raises."""

    def __init__(self, outcome: Path | Exception) -> None:
        self.outcome = outcome
        self.asked: list[tuple[str, str]] = []

    def __call__(self, model: str, file: str) -> str:
        self.asked.append((model, file))
        assert are_progress_bars_disabled()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return str(self.outcome)


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))


def _answers(monkeypatch: pytest.MonkeyPatch, outcome: Path | Exception) -> Hub:
    hub = Hub(outcome)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hub)
    return hub


def test_files_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = _answers(monkeypatch, AssertionError("asked"))
    assert file_of(str(tmp_path), WORDS) is None
    (tmp_path / WORDS).write_text("")
    assert file_of(str(tmp_path), WORDS) == tmp_path / WORDS
    for name, said in ((tmp_path / "none", "no folder"), (tmp_path / WORDS, "is a file")):
        with pytest.raises(ModelNotFound, match=said):
            file_of(str(name), WORDS)
    assert hub.asked == []


def test_a_model_by_name_brings_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = TeamPrompt(names=("Uwe",))
    (tmp_path / "fetched").write_text(dump_prompt(own))
    hub = _answers(monkeypatch, tmp_path / "fetched")
    had_no_bars = are_progress_bars_disabled()
    assert model_prompts("some/model") == Prompts(team=own)
    assert hub.asked == [("some/model", WORDS)]
    assert are_progress_bars_disabled() == had_no_bars


def test_a_model_without_the_file_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    _answers(monkeypatch, RemoteEntryNotFoundError("no", response=RESPONSE))
    assert file_of("some/model", WORDS) is None
    assert model_prompts("some/model") == Prompts()


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (RepositoryNotFoundError("no", response=RESPONSE), "there is no model 'no/such'"),
        (GatedRepoError("no", response=RESPONSE), "is gated"),
        (OfflineModeIsEnabled("no"), "HF_HUB_OFFLINE forbids"),
        (LocalEntryNotFoundError("no network"), "could not be fetched"),
        (TimeoutError("no network"), "could not be fetched"),
    ],
)
def test_why_a_file_cannot_be_had(
    cause: Exception, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    _answers(monkeypatch, cause)
    with pytest.raises(ModelNotFound, match=said) as caught:
        model_prompts("no/such")
    assert caught.value.hint
    # A model that is kept here has what is kept here.
    folder = keep(tmp_path / "cache", "no/such", {"config.json": "{}"})
    assert file_of("no/such", WORDS) is None
    (folder / WORDS).write_text("")
    assert file_of("no/such", WORDS) == folder / WORDS


@pytest.mark.parametrize(
    "cause",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        RuntimeError("Data processing error: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_no_fault_of_the_network(
    cause: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = not_found("some/model", cause)
    assert isinstance(found, OutputFailed)
    assert "its files cannot be written: No space left on device" in str(found)
    assert found.hint == "make room, or keep them elsewhere: HF_HOME=FOLDER"
    if isinstance(cause, OSError):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        _answers(monkeypatch, cause)
        with pytest.raises(OutputFailed, match="No space left on device"):
            model_prompts("some/model")


def test_a_name_that_the_hub_cannot_have() -> None:
    with pytest.raises(ModelNotFound, match="there is no model 'a b/c'"):
        file_of("a b/c", WORDS)


def test_offline_nothing_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real huggingface_hub, without a network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    def knock(*args: Any, **keys: Any) -> None:
        raise AssertionError("asked")

    monkeypatch.setattr("socket.socket.connect", knock)
    monkeypatch.setattr("socket.getaddrinfo", knock)
    with pytest.raises(ModelNotFound, match="HF_HUB_OFFLINE forbids"):
        file_of("some/model", WORDS)
    folder = keep(tmp_path / "cache", "some/model", {"config.json": "{}"})
    assert file_of("some/model", WORDS) is None
    assert file_of("some/model", "config.json") == folder / "config.json"


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No name has an address; the list of names that were asked for theirs, one for each time."""
    asked: list[str] = []

    def nowhere(host: Any, *more: Any, **named: Any) -> None:
        asked.append(str(host))
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("socket.getaddrinfo", nowhere)
    monkeypatch.setattr(hub, "_reach", hub._Reach())
    monkeypatch.setattr(hub, "_why_unreachable", WHY_UNREACHABLE)
    return asked


@pytest.fixture
def asks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No question is tried again, behind a pause of the thread that asks it; others may pause."""
    sleep, own = time.sleep, threading.get_ident()

    def pause(seconds: float) -> None:
        if threading.get_ident() == own:
            pytest.fail("a question is tried again")
        sleep(seconds)

    monkeypatch.setattr("time.sleep", pause)


@pytest.mark.usefixtures("asks_once")
def test_without_a_network_the_hub_is_asked_once_and_not_again(
    no_network: list[str], tmp_path: Path
) -> None:
    """The real huggingface_hub, which would try each question six times in 24 seconds."""
    folder = keep(tmp_path / "cache", "some/model", {"config.json": "{}"})
    for _ in range(3):
        assert file_of("some/model", "config.json") == folder / "config.json"
        assert file_of("some/model", WORDS) is None
    with pytest.raises(ModelNotFound, match=r"cannot be reached: .*not known") as caught:
        file_of("no/such", WORDS)
    assert "check the network" in (caught.value.hint or "")
    assert len(no_network) == 2, "the network may have come up"
    file_of("some/model", WORDS)
    assert len(no_network) == 3, "whoever was told so may have mended it"
    assert not is_offline_mode(), "the user's own choice stays"
    hub._reach.asked -= 61
    file_of("some/model", WORDS)
    assert len(no_network) == 4, "after a minute it may be there again"


@pytest.mark.usefixtures("asks_once")
def test_a_model_that_is_kept_is_loaded_whole_without_a_network(
    no_network: list[str], tmp_path: Path
) -> None:
    """Configuration, tokenizer and weights: each is a question of its own."""
    folder = keep(tmp_path / "cache", "some/model", {})
    for file in Path(hub.place_of("bundled")).iterdir():
        (folder / file.name).symlink_to(file)
    adapter, tokenizer = load_adapter("some/model", device="cpu")
    assert tokenizer is not None
    assert adapter.model.config.vocab_size == len(tokenizer)
    assert weights_folder("some/model") == folder
    assert len(no_network) == 1


OTHERS = ["config.json", "original/model.safetensors", "original/a.safetensors.index.json"]
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        (["model.safetensors", "consolidated.safetensors"], ["model.safetensors"]),
        ([*SHARDS, "model.safetensors.index.json", "consolidated.safetensors"], SHARDS),
        (["a.safetensors", "b.safetensors"], ["a.safetensors", "b.safetensors"]),
    ],
)
def test_weights_that_a_repository_has_twice_are_fetched_once(
    files: list[str], wanted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(name: str, **patterns: Any) -> str:
        for file in filter_repo_objects([*files, *OTHERS], **patterns):
            (tmp_path / file).parent.mkdir(exist_ok=True)
            said = {"weight_map": {str(at): shard for at, shard in enumerate(SHARDS)}}
            (tmp_path / file).write_text(json.dumps(said))
        return str(tmp_path)

    monkeypatch.setattr("manyhands.model.checkpoint.snapshot_download", fetch)
    monkeypatch.setattr("manyhands.model.checkpoint.within_reach", lambda name: nullcontext())
    folder = weights_folder("some/model")
    assert sorted(path.name for path in folder.rglob("*.safetensors")) == wanted
    assert weights_files("some/model", folder) == [folder / name for name in wanted]
    assert not (folder / "original").exists()


def test_an_index_of_the_hub_that_points_outside_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "../other.safetensors"}}))
    monkeypatch.setattr(
        "manyhands.model.checkpoint.snapshot_download", lambda *_, **__: str(tmp_path)
    )
    monkeypatch.setattr("manyhands.model.checkpoint.within_reach", lambda name: nullcontext())
    with pytest.raises(ModelNotFound, match="points outside of its folder"):
        weights_folder("some/model")


def test_a_folder_is_no_question_to_the_hub(no_network: list[str], tmp_path: Path) -> None:
    with hub.within_reach(str(tmp_path)), hub.within_reach("./not-there"):
        assert not is_offline_mode()
    assert no_network == []


def test_what_the_hub_answers_is_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal, too, comes over a network that is there."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.utils.get_session", lambda: Answering())
    assert WHY_UNREACHABLE() is None


class Answering:
    """In the place of an HTTP client."""

    seconds = 0.0

    def head(self, address: str, *, timeout: float) -> Any:
        assert address.startswith("https://")
        self.seconds = timeout
        return SimpleNamespace(status_code=503)


def test_a_hub_that_is_far_has_the_time_that_its_user_gives_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Answering()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 45)
    monkeypatch.setattr("huggingface_hub.utils.get_session", lambda: client)
    assert WHY_UNREACHABLE() is None
    assert client.seconds == 45


def test_what_is_kept_here_is_found_beside_a_proxy_that_is_none(tmp_path: Path) -> None:
    """The HTTP library raises a ValueError for it."""
    folder = keep(tmp_path / "hub", "some/model", {"config.json": "{}"})
    told = "from manyhands.hub import file_of; print(file_of('some/model', 'config.json'))"
    mine = {key: text for key, text in os.environ.items() if "PROXY" not in key.upper()}
    mine |= {"HTTPS_PROXY": "ftp://somewhere", "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
    for other in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_OFFLINE"):
        mine.pop(other, None)
    found = subprocess.run(
        [sys.executable, "-c", told], env=mine, capture_output=True, text=True, check=False
    )
    assert found.stdout.strip() == str(folder / "config.json"), found.stderr


@pytest.mark.parametrize("offline", ["0", "1"])
def test_a_proxy_that_needs_another_package_is_said_with_the_mend(
    tmp_path: Path, offline: str
) -> None:
    """The hub's library fails there with an ImportError, also where it may not ask."""
    if find_spec("socksio") is not None:
        pytest.skip("the package is there")
    told = "from manyhands.hub import file_of; file_of('some/model', 'config.json')"
    mine = {key: text for key, text in os.environ.items() if "PROXY" not in key.upper()}
    mine |= {"ALL_PROXY": "socks5://127.0.0.1:1", "HF_HOME": str(tmp_path)}
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            f"from manyhands.errors import ModelNotFound\ntry:\n    {told}\n"
            "except ModelNotFound as error:\n    print(error, '|', error.hint)",
        ],
        env={**mine, "HF_HUB_OFFLINE": offline},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "cannot be asked: Using SOCKS proxy" in found.stdout, found.stderr
    assert "pip install socksio" in found.stdout


def test_a_hub_that_answers_a_byte_at_a_time_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each byte comes within the time that one may take."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 0.2)
    leaves = threading.Event()

    def drip(listener: socket.socket) -> None:
        taken, _ = listener.accept()
        with taken, suppress(OSError):
            taken.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
            while not leaves.wait(0.05):
                taken.sendall(b"a")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        server = threading.Thread(target=drip, args=(listener,))
        server.start()
        begun = time.monotonic()
        why = WHY_UNREACHABLE()
        assert time.monotonic() - begun < 10
        leaves.set()
        server.join(20)
    assert why is not None
    assert "within 0.6 s" in why


def test_whoever_was_told_that_the_hub_is_away_may_try_again(
    no_network: list[str], tmp_path: Path
) -> None:
    keep(tmp_path / "cache", "some/model", {"config.json": "{}"})
    for asked in (1, 2):
        with pytest.raises(ModelNotFound, match="cannot be reached"):
            file_of("no/such", WORDS)
        assert len(no_network) == asked
    for _ in range(3):
        file_of("some/model", WORDS)
    assert len(no_network) == 3, "of what is kept the answer is believed for a minute"


def test_a_network_that_has_come_up_is_found_for_a_model_that_is_not_kept(
    no_network: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(tmp_path / "cache", "some/model", {"config.json": "{}"})
    assert file_of("some/model", WORDS) is None
    assert len(no_network) == 1
    monkeypatch.setattr(hub, "_why_unreachable", lambda: None)
    may_ask: list[bool] = []

    def fetch(model: str, file: str) -> str:
        may_ask.append(not is_offline_mode())
        return str(tmp_path / "fetched")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetch)
    file_of("another/model", WORDS)
    monkeypatch.setattr(hub, "_why_unreachable", lambda: pytest.fail("looked for again"))
    file_of("another/model", WORDS)
    assert may_ask == [True, True]


def test_threads_keep_the_hub_shut_for_each_other(no_network: list[str]) -> None:
    """One that leaves first does not have the other ask; nor does it leave anything behind."""
    inside, may_go = threading.Event(), threading.Event()

    def first() -> None:
        with hub.within_reach("some/model"):
            inside.set()
            may_go.wait(20)

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(20)
    with hub.within_reach("another/model"), hub.within_reach("another/model"):
        may_go.set()
        thread.join(20)
        assert is_offline_mode()
        error = hub.not_found("another/model", OSError("not here"))
    assert "cannot be reached" in str(error)
    assert not is_offline_mode()
    assert len(no_network) == 1


def test_a_gguf_file_is_a_model_by_itself(tmp_path: Path) -> None:
    file, other = tmp_path / "model.Q4_K_M.gguf", tmp_path / "blob"
    for path in (file, other):
        path.write_bytes(b"GGUF")
        assert is_gguf(str(path))
        assert file_of(str(path), WORDS) is None
    other.write_bytes(b"PK")
    assert not is_gguf(str(other))
    with pytest.raises(ModelNotFound, match="is a file, and no GGUF file"):
        check_there(other)
    assert is_gguf("not/there.gguf")
    assert is_local("there.gguf")
    assert not is_gguf("someone/Model-GGUF")
    folder = incomplete(str(tmp_path), "a config.json")
    named = incomplete("someone/Model-GGUF", "a file that it needs")
    for error in (folder, named):
        assert error.hint.startswith("to run a GGUF file, give the file itself")
    assert "GGUF" not in incomplete("someone/Model", "a config.json").hint


@pytest.mark.parametrize("part", ["x" * 255, "é" * 127, "a/" * 300 + "b"])
def test_a_name_may_be_as_long_as_file_systems_take_it(part: str) -> None:
    assert not is_local(f"someone/{part}") or part.count("/") > 1
    assert not hub.exists(Path(part))


@pytest.mark.parametrize("part", ["x" * 256, "é" * 128, "a\0b", "a/" + "x" * 5000])
def test_a_name_that_no_file_can_have_is_said_in_short(part: str) -> None:
    for look in (is_local, is_gguf, lambda name: check_there(Path(name))):
        with pytest.raises(ModelNotFound, match=r"is no folder and no name on the hub: ") as found:
            look(part)
        assert len(str(found.value)) < 250


def test_what_is_no_name_at_all() -> None:
    for given in (None, 3, b"bundled", ["bundled"]):
        with pytest.raises(InvalidRequest, match=f"of type {type(given).__name__}; expected a fol"):
            hub.place_of(given)  # type: ignore[arg-type]
    assert hub.place_of("a/b") == hub.place_of(Path("a/b")) == "a/b"


def test_a_folder_with_the_name_of_the_bundled_model_is_not_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is looked up by several functions, one behind the other."""
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "bundled" / "config.json"
    config.parent.mkdir()
    config.write_text("{}")
    for given in ("./bundled", Path("bundled"), Path("./bundled"), tmp_path / "bundled"):
        place = hub.place_of(given)
        assert hub.place_of(place) == place
        for name in (given, place):
            found = file_of(name, "config.json")
            assert found is not None
            assert found.resolve() == config
            assert file_of(name, WORDS) is None
    own = file_of("bundled", "config.json")
    assert own is not None
    assert own.parent == Path(hub.place_of(hub.place_of("bundled")))


def test_a_hint_says_what_a_folder_is_instead(tmp_path: Path) -> None:
    """Of a folder that is no model, and of one that is no adapter."""
    hints = {
        "": ("a model needs config.json", "give a folder as `manyhands train`"),
        "config.json": ("a model needs config.json", "it is a whole model: give it by --model"),
        "adapter_config.json": ("it is a LoRA adapter", "give a folder as `manyhands train`"),
        "checkpoint/checkpoint.pt": ("its training has not ended", "its training has not ended"),
        "a.gguf": ("to run a GGUF file", "give a folder as `manyhands train`"),
    }
    for number, (file, (no_model, no_adapter)) in enumerate(hints.items()):
        folder = tmp_path / str(number)
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        if file:
            (folder / file).touch()
        assert incomplete(str(folder), "its weights").hint.startswith(no_model)
        assert hub.no_adapter(folder, "x").hint.startswith(no_adapter)
    assert "there is no adapter at" in str(hub.no_adapter(Path("x" * 5000), "adapter_config.json"))


def test_a_name_that_is_no_text_of_unicode() -> None:
    with pytest.raises(ModelNotFound, match="surrogates not allowed"):
        is_local("a\ud800b")


@needs_modes
def test_what_this_user_may_not_read_is_not_said_to_be_missing_or_damaged() -> None:
    with open_folder() as folder:
        model, lora = folder / "model", folder / "lora"
        shutil.copytree(hub.place_of("bundled"), model)
        lora.mkdir(0o755)
        (folder / "a.gguf").write_bytes(b"GGUF" * 10)
        (folder / "blob").write_bytes(b"GGUF" * 10)
        for name in ADAPTER_FILES:
            (lora / name).write_bytes(b"{}")
        looks: list[tuple[Path, Callable[[], object]]] = [
            *(
                (path, lambda: check_folder(model, with_weights=True))
                for path in model.iterdir()
                if path.suffix != ".toml"
            ),
            (model, lambda: file_of(model, WORDS)),
            *((path, lambda: check_lora(lora)) for path in lora.iterdir()),
            (lora, lambda: check_lora(lora)),
            (folder / "a.gguf", lambda: check_place(str(folder / "a.gguf"), with_weights=True)),
            (folder / "blob", lambda: is_gguf(str(folder / "blob"))),
        ]
        for path, _ in looks:
            path.chmod(0o755)
        for path, look in looks:
            path.chmod(0)
            with stranger(), pytest.raises(ModelNotFound, match="Permission denied") as caught:
                look()
            assert "check its permissions" in caught.value.hint
            path.chmod(0o755)
        with stranger():
            check_folder(model, with_weights=True)


@needs_modes
def test_beside_a_folder_that_may_not_be_entered_a_name_is_one_of_the_hub(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open_folder() as folder:
        monkeypatch.chdir(folder)
        folder.chmod(0)
        with stranger():
            found = is_local("some/model"), is_local("./model"), is_gguf("bundled")
        monkeypatch.undo()
    assert found == (False, True, False)
