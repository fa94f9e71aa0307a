"""An adapter belongs to the model: a run, its trace, its proof, answers of a batch and words know of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from manyhands.cli.loading import changes_of
from manyhands.errors import ModelNotFound
from manyhands.model.lora import add_lora, lora_layers, save_lora
from manyhands.model.quiet import quiet
from manyhands.model.settings import ModelSettings
from manyhands.prompts import PROMPT_FILE
from tests.cli.conftest import DONE, Cli, module_of
from tests.cli.test_batch import chat, said, write
from tests.cli.test_replay import cut


@pytest.fixture(scope="module")
def adapter(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that changes what the tiny model writes, with words of its own beside it."""
    folder = tmp_path_factory.mktemp("adapters") / "mine"
    with quiet():
        network = AutoModelForCausalLM.from_pretrained(model)
    add_lora(network, 2, 4.0, seed=1)
    for layer in lora_layers(network).values():
        layer.lora_B.data.normal_(generator=torch.Generator().manual_seed(2))
    save_lora(network, folder, base="tiny", dtype=torch.float32)
    (folder / PROMPT_FILE).write_text("[team]\nfinisher = 'In short: \\boxed{'\n", encoding="utf-8")
    return folder


def test_a_run_comes_back_with_its_adapter(
    cli: Cli, solve: Cli, tmp_path: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trace names the adapter by its full path; without it, and with another one, it is another model."""
    monkeypatch.chdir(adapter.parent)
    path, longer = tmp_path / "made.jsonl", tmp_path / "longer.jsonl"
    made = solve("1 + 2", "--adapter", "mine", "--budget", 20, "--transcript", path, "-q")
    assert made.exit_code in DONE
    monkeypatch.chdir(tmp_path)
    assert f"adapter     {adapter}" in cli("replay", path, "--quiet").stdout
    verified = json.loads(cli("replay", path, "--verify", "--json").stdout)
    assert (verified["lora"], verified["verified"]["agreement"]) == (str(adapter), 1.0)
    whole = path.read_text(encoding="utf-8")
    lines = [json.loads(line) for line in whole.splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in cut(lines)), encoding="utf-8")
    assert cli("replay", path, "--continue", "-q", "--transcript", longer).exit_code in DONE
    assert longer.read_text(encoding="utf-8") == whole

    lines[0]["lora"] = None
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    bare = cli("replay", path, "--verify", "-q")
    assert (bare.exit_code, "--adapter" in bare.stderr) == (1, True)
    there = shutil.copytree(adapter, tmp_path / "there")
    assert cli("replay", path, "--verify", "-q", "--adapter", there).exit_code == 0


def test_answers_of_a_batch_are_those_of_its_adapter(
    cli: Cli, tmp_path: Path, model: Path, adapter: Path
) -> None:
    given, answers = write(tmp_path / "in", chat("a", temperature=0)), tmp_path / "out"
    batch = ("batch", "--model", model, "--memory-tokens", 4096, given, answers)
    assert cli(*batch).exit_code == 0
    plain = said(answers)
    refused = cli(*batch, "--adapter", adapter)
    assert (refused.exit_code, said(answers)) == (2, plain)
    assert "the request 'a' has changed since" in refused.stderr
    answers.unlink()
    for _ in range(2):
        assert cli(*batch, "--adapter", adapter).exit_code == 0
        assert said(answers) != plain


def test_choices_that_make_another_model() -> None:
    assert changes_of(ModelSettings(model="m", device="cpu", memory_tokens=5, speculate=2)) == ()
    assert changes_of(ModelSettings(lora="/a", quantise="fp16", kv_cache_dtype="int8")) == (
        "lora /a",
        "quantise fp16",
        "kv_cache_dtype int8",
    )


def test_words_beside_an_adapter_are_printed(cli: Cli, model: Path, adapter: Path) -> None:
    found = cli("prompts", "--model", model, "--adapter", adapter).stdout
    assert found.startswith(f"# The words of the adapter {adapter}.")
    assert "In short" in found
    assert "In short" not in cli("prompts", "--model", model).stdout


@pytest.mark.parametrize("wrong", ["/nowhere", "", "x" * 300])
@pytest.mark.parametrize("command", [("prompts",), ("solve", "1 + 2")])
def test_an_adapter_that_is_not_there_is_missed_before_a_model_is_loaded(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], wrong: str
) -> None:
    monkeypatch.setattr(module_of("solve"), "load_engine", None)
    result = cli(*command, "--adapter", wrong)
    assert result.exit_code == ModelNotFound.exit_code, result.output
    assert "there is no adapter at" in result.stderr
