"""A tiny model in a folder, and the command line as a function."""

from __future__ import annotations

import gc
import shutil
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from typer.testing import CliRunner, Result

import manyhands
from manyhands.cli import app
from manyhands.model.quiet import quiet
from tests.text.small_tokenizers import byte_level

CONTEXT = 4096
DONE = (0, 9)  # a model of random weights seldom finds an answer
Cli = Callable[..., Result]
# A shell starts jobs in the background with Ctrl-C ignored, and children inherit that.
MANYHANDS = [
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from manyhands.cli import program; program()",
]


def module_of(command: str) -> ModuleType:
    """Where a command of this name is done. The package has the command itself under the name, until the module is imported."""
    return import_module(f"manyhands.cli.{command}")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete checkpoint with random weights."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = byte_level()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
    )
    with quiet():
        Qwen3ForCausalLM(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return Path(shutil.copytree(model, tmp_path / "copy"))


@pytest.fixture
def bundled(model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the tiny model be the one that comes with the package."""
    fake = SimpleNamespace(path=lambda: model)
    monkeypatch.setitem(sys.modules, "manyhands.bundled", fake)
    monkeypatch.setattr(manyhands, "bundled", fake, raising=False)
    return model


def run_cli(*args: object, input: str | bytes | None = None) -> Result:
    """Run `manyhands ARGS`, with `input` coming in through a pipe."""
    with pytest.MonkeyPatch.context() as kept:
        # A process of its own would keep these objects to its end; what tests have imported is kept already.
        kept.setattr(gc, "freeze", lambda: None)
        kept.setattr(gc, "set_threshold", lambda *thresholds: None)
        result = CliRunner().invoke(app, [str(arg) for arg in args], input=input)
    assert result.exception is None or isinstance(result.exception, SystemExit), result
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def cli() -> Cli:
    """Run `manyhands ARGS`, with `input` coming in through a pipe."""
    return run_cli


@pytest.fixture
def solve(cli: Cli, model: Path) -> Cli:
    """Run `manyhands solve` on the tiny model, with small numbers unless others are given."""

    def run(*args: object, input: str | bytes | None = None) -> Result:
        short = ["--budget", 6, "--finisher-tokens", 2, "--reply-tokens", 3]
        return cli("solve", "--model", model, *short, *args, input=input)

    return run
