"""From a name to an adapter, and one clear error for each way in which that fails."""

from __future__ import annotations

import json
import math
import shutil
import struct
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub.constants
import pytest
import torch
import transformers as hf
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from safetensors.torch import load_file, save, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn

from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.errors import (
    ContextTooLong,
    InvalidRequest,
    ManyhandsError,
    ModelNotFound,
    OutOfMemory,
    UnsupportedModel,
)
from manyhands.model import devices, host_memory
from manyhands.model.adapter import ModelAdapter
from manyhands.model.configuration import check_sizes
from manyhands.model.devices import resolve_device, resolve_dtype
from manyhands.model.dummy import size_of
from manyhands.model.host_linear import laid_out_bytes
from manyhands.model.loading import _config, _pretrained, load_adapter
from manyhands.model.lora import add_lora, lora_layers, save_lora
from manyhands.model.quiet import quiet
from manyhands.model.self_test import exact_attention
from manyhands.model.settings import ModelSettings
from tests.hub_cache import keep, use_alone
from tests.model.families_zoo import NO_TOKENIZER, some_tokens, tiny_models
from tests.model.test_recurrent import CONFIGS

ZOO = tiny_models()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete tiny checkpoint in bfloat16."""
    folder = tmp_path_factory.mktemp("models") / "whole"
    with quiet():
        ZOO["qwen3"]().to(torch.bfloat16).save_pretrained(folder)  # type: ignore[arg-type]
        words = Tokenizer(models.WordLevel({"one": 0, "two": 1}, unk_token="one"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        hf.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    return folder


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    """The same, to be damaged."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def _edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_folder_loads_silently(checkpoint: Path, capfd: pytest.CaptureFixture[str]) -> None:
    adapter, tokenizer = load_adapter(str(checkpoint))
    assert capfd.readouterr() == ("", "")
    assert adapter.name == str(checkpoint)
    assert tokenizer is not None
    assert tokenizer.encode("two one") == [1, 0]
    if adapter.device.type == "cpu":
        assert adapter.dtype == torch.float32


def test_the_weights_are_the_checkpoints(checkpoint: Path) -> None:
    adapter, _ = load_adapter(checkpoint, device="cpu", dtype="bfloat16")
    saved = load_file(checkpoint / "model.safetensors")
    for name, tensor in saved.items():
        assert torch.equal(adapter.model.get_parameter(name), tensor)


def test_a_built_model_is_taken_over_where_it_is() -> None:
    model = ZOO["llama"]().double()
    tokens = some_tokens(6)
    adapter, tokenizer = load_adapter(model)
    assert adapter.model is model
    assert tokenizer is None
    assert adapter.dtype == torch.float64
    assert adapter.name == "llama"
    adapter, _ = load_adapter(ZOO["llama"](), dtype="bfloat16")
    assert adapter.dtype == torch.bfloat16
    assert adapter.forward(tokens, None, exact_attention(adapter.ropes)).dtype == torch.bfloat16


def test_dummy_weights_need_a_configuration_alone(tmp_path: Path, copy: Path) -> None:
    shutil.copy(copy / "config.json", tmp_path)
    adapter, tokenizer = load_adapter(tmp_path, weights="dummy")
    assert tokenizer is None
    assert adapter.num_layers == 2
    _, tokenizer = load_adapter(copy, weights="dummy")
    assert tokenizer is not None


def test_the_context_decides_what_is_announced() -> None:
    assert load_adapter(ZOO["qwen3"](), context=100)[0].max_positions == 100
    assert load_adapter(ZOO["qwen3"]())[0].max_positions == 512


@pytest.mark.parametrize("weights", ["auto", "dummy"])
def test_a_network_that_the_process_may_not_hold_is_refused_before_it_is_read(
    checkpoint: Path, weights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container, or under `ulimit -v`, on a machine that has more."""
    adapter, _ = load_adapter(checkpoint, device="cpu", dtype="float32")
    size = size_of(adapter.model) + laid_out_bytes(adapter.model)
    monkeypatch.setattr(host_memory, "most_host_bytes", lambda: size // 2)
    with pytest.raises(OutOfMemory, match="this process may have") as caught:
        load_adapter(checkpoint, device="cpu", dtype="float32", weights=weights)
    assert "ulimit -v" in caught.value.hint
    monkeypatch.setattr(host_memory, "most_host_bytes", lambda: 2 * size)
    load_adapter(checkpoint, device="cpu", dtype="float32", weights=weights)


def test_gpt_oss_weights_are_unpacked(tmp_path: Path, copy: Path) -> None:
    """Published in mxfp4; read without any kernel from the hub."""
    with quiet():
        config = ZOO["gpt_oss"]().config
        config.intermediate_size = 32  # packing goes by blocks of 32 numbers
        hf.GptOssForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path / "oss")  # type: ignore[arg-type]
    folder = tmp_path / "oss"
    packed: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            packed[name] = tensor
            continue
        experts, inner, outer = tensor.shape
        shape = (experts, outer, inner // 32)
        packed[f"{name}_blocks"] = torch.full((*shape, 16), 0x22, dtype=torch.uint8)  # 1.0 each
        packed[f"{name}_scales"] = torch.full(shape, 127 - 4, dtype=torch.uint8)  # times 2^-4
    save_file(packed, folder / "model.safetensors", metadata={"format": "pt"})
    left = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]
    _edit(folder, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": left})
    _add_tokenizer(folder, copy)
    adapter, _ = load_adapter(folder, device="cpu", dtype="bfloat16")
    weights = adapter.model.get_parameter("model.layers.0.mlp.experts.down_proj")
    assert weights.dtype == torch.bfloat16
    assert torch.all(weights == 2.0**-4)


def _add_tokenizer(folder: Path, copy: Path) -> None:
    for file in copy.glob("tokenizer*"):
        shutil.copy(file, folder)


def _distance(adapter: ModelAdapter, whole: Any, num_tokens: int) -> float:
    """The largest between the logits of a language model and those of the network that it was taken out of."""
    tokens = some_tokens(num_tokens)
    with torch.no_grad():
        expected = whole(input_ids=tokens[None]).logits[0]
        logits = adapter.forward(tokens, None, exact_attention(adapter.ropes))
    assert (logits.shape, logits.dtype) == (expected.shape, expected.dtype)
    return float((logits - expected).abs().max())


@pytest.fixture
def composite(tmp_path: Path, copy: Path) -> tuple[Path, hf.Gemma3ForConditionalGeneration]:
    """Gemma 3 with a vision tower, as published from 4B on: saved, and as transformers runs it."""
    torch.manual_seed(3)
    tower = hf.SiglipVisionConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=28,
        patch_size=14,
    )
    text = ZOO["gemma3_text"]().config
    with quiet():
        config = hf.Gemma3Config(  # type: ignore[call-arg]
            text_config=text, vision_config=tower, mm_tokens_per_image=4, eos_token_id=[1, 6]
        )
        model = hf.Gemma3ForConditionalGeneration(config).eval()
        model.save_pretrained(tmp_path / "gemma")
    (tmp_path / "gemma" / "generation_config.json").unlink(missing_ok=True)
    _edit(tmp_path / "gemma", dtype="bfloat16")
    _add_tokenizer(tmp_path / "gemma", copy)
    return tmp_path / "gemma", model


def _rename(folder: Path, old: str, new: str) -> None:
    weights = load_file(folder / "model.safetensors")
    assert any(name.startswith(old) for name in weights)
    moved = {
        new + name.removeprefix(old) if name.startswith(old) else name: weight
        for name, weight in weights.items()
    }
    save_file(moved, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_language_model_is_taken_out_of_a_gemma_3(
    prefix: str,
    composite: tuple[Path, hf.Gemma3ForConditionalGeneration],
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder, whole = composite
    if prefix != "language_model.model.":  # as transformers saves it, and as it is published
        _rename(folder, "language_model.model.", prefix)
    capfd.readouterr()
    adapter, tokenizer = load_adapter(folder, device="cpu", dtype="float32")
    assert capfd.readouterr() == ("", "")
    assert tokenizer is not None
    assert type(adapter.model) is hf.Gemma3ForCausalLM
    assert adapter.name == str(folder)
    assert adapter.config.dtype == torch.float32
    assert adapter.model.generation_config.eos_token_id == [1, 6]
    inside = whole.model.language_model.state_dict()
    taken = adapter.model.model.state_dict()
    assert taken.keys() == inside.keys()
    assert all(torch.equal(taken[name], inside[name]) for name in inside)
    assert _distance(adapter, whole, 24) < 1e-5


def test_a_gemma_3_of_an_output_layer_of_its_own(
    composite: tuple[Path, hf.Gemma3ForConditionalGeneration],
) -> None:
    folder, _ = composite
    weights = load_file(folder / "model.safetensors")
    own = torch.randn_like(weights["language_model.model.embed_tokens.weight"])
    weights["language_model.lm_head.weight"] = own
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _edit(folder, tie_word_embeddings=False)
    adapter, _ = load_adapter(folder, device="cpu", dtype="float32")
    assert torch.equal(adapter.model.get_parameter("lm_head.weight"), own)


def test_the_language_model_is_taken_out_of_a_gemma_4(tmp_path: Path, copy: Path) -> None:
    """With weights that are published for layers that read an earlier one's keys, and that have no use."""
    text = ZOO["gemma4_shared"]()
    text.config.pad_token_id = 0  # it stands for pictures
    with quiet():
        config = hf.Gemma4Config(text_config=text.config, eos_token_id=[1, 6])  # type: ignore[arg-type, call-arg]
        whole = hf.Gemma4ForConditionalGeneration(config).eval()
        whole.model.language_model.load_state_dict(text.base_model.state_dict())
        whole.save_pretrained(tmp_path)
    _add_tokenizer(tmp_path, copy)
    weights = load_file(tmp_path / "model.safetensors")
    inside = "model.language_model.layers"
    weights[f"{inside}.4.self_attn.k_proj.weight"] = torch.ones(64, 64)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    adapter, _ = load_adapter(tmp_path, device="cpu", dtype="float32")
    assert type(adapter.model) is hf.Gemma4ForCausalLM
    assert adapter.model.generation_config.eos_token_id == [1, 6]
    assert _distance(adapter, whole, 24) < 5e-5


def test_the_language_model_is_taken_out_of_a_llama_4(tmp_path: Path, copy: Path) -> None:
    text = ZOO["llama4_text"]()
    text.config.pad_token_id = 0  # it stands for pictures
    small: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    with quiet():
        vision = hf.Llama4VisionConfig(**small, num_hidden_layers=1, vision_output_dim=16)
        config = hf.Llama4Config(text_config=text.config, vision_config=vision)
        whole = hf.Llama4ForConditionalGeneration(config).eval()
        whole.language_model.load_state_dict(text.state_dict())
        whole.save_pretrained(tmp_path)
    _add_tokenizer(tmp_path, copy)
    adapter, _ = load_adapter(tmp_path, device="cpu", dtype="float32")
    assert type(adapter.model) is hf.Llama4ForCausalLM
    # The whole one fails with transformers 5.24 when it has computed all: it asks its language model for pictures.
    assert _distance(adapter, whole.language_model, 30) < 5e-5


def test_the_language_model_is_taken_out_of_a_qwen_3_5(tmp_path: Path, copy: Path) -> None:
    """With axes for pictures, which are one for text, and with layers that guess tokens ahead, which have no use here."""
    text = deepcopy(CONFIGS["qwen3_5_text"])
    text.rope_parameters = {
        **text.rope_parameters,
        "mrope_interleaved": True,
        "mrope_section": [1, 1, 0],
    }
    with quiet():
        config = hf.Qwen3_5Config(
            text_config=text.to_dict(),
            vision_config={"depth": 1, "hidden_size": 16, "num_heads": 2, "out_hidden_size": 32},
        )
        whole = hf.Qwen3_5ForConditionalGeneration(config).eval()
        whole.save_pretrained(tmp_path)
    _add_tokenizer(tmp_path, copy)
    weights = load_file(tmp_path / "model.safetensors")
    weights["mtp.fc.weight"] = torch.ones(8, 8)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    engine = Engine.load(tmp_path, device="cpu", dtype="float32", memory_tokens=64, states=4)
    assert engine.facts.num_states == 4
    tokens = some_tokens(24)
    with torch.no_grad():
        expected = whole(input_ids=tokens[None]).logits[0, -1]
    (logits,) = engine.forward(Step([Row(View([Block()]), tuple(tokens.tolist()))]))
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)


def test_a_gemma_3_with_dummy_weights(
    composite: tuple[Path, hf.Gemma3ForConditionalGeneration], tmp_path: Path
) -> None:
    shutil.copy(composite[0] / "config.json", tmp_path)
    adapter, _ = load_adapter(tmp_path, weights="dummy", device="cpu")
    assert type(adapter.model) is hf.Gemma3ForCausalLM
    assert adapter.model.generation_config.eos_token_id == [1, 6]


def test_a_gemma_3_without_a_weight_of_its_language_model(
    composite: tuple[Path, hf.Gemma3ForConditionalGeneration],
) -> None:
    _rename(composite[0], "language_model.model.norm.", "language_model.model.lost.")
    with pytest.raises(ModelNotFound, match=r"no weights for model.norm.weight"):
        load_adapter(composite[0], device="cpu")


def test_other_composites_are_refused_with_a_hint(
    composite: tuple[Path, hf.Gemma3ForConditionalGeneration], tmp_path: Path
) -> None:
    packed = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
    _edit(composite[0], quantization_config=packed)
    with pytest.raises(UnsupportedModel, match=r"save its language model .* alone"):
        load_adapter(composite[0], device="cpu")
    hf.LlavaConfig().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=r"save its language model .* alone"):
        load_adapter(tmp_path, weights="dummy", device="cpu")


def test_a_gemma_3_saved_after_loading_loads_again(
    composite: tuple[Path, hf.Gemma3ForConditionalGeneration], tmp_path: Path
) -> None:
    network = _pretrained(str(composite[0]), _config(str(composite[0])), torch.float32, [])
    network.save_pretrained(tmp_path / "alone")
    names = load_file(tmp_path / "alone" / "model.safetensors")
    assert all(name.startswith("model.") and "language" not in name for name in names)


def _truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _lose_a_shard(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    weights = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index = {"metadata": {}, "weight_map": weights}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _empty_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")


def _drop_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()


def _misspell_the_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    said = json.loads(path.read_text())
    said["version"] = 5
    path.write_text(json.dumps(said))


BROKEN: dict[str, tuple[Callable[[Path], Any], type[ManyhandsError], str]] = {
    "no folder": (shutil.rmtree, ModelNotFound, "no folder"),
    "no config": (lambda f: (f / "config.json").unlink(), ModelNotFound, "config.json"),
    "no weights": (
        lambda f: (f / "model.safetensors").unlink(),
        ModelNotFound,
        r"lacks weights \(\*.safetensors\)",
    ),
    "no tokenizer": (_drop_tokenizer, ModelNotFound, "lacks a tokenizer"),
    "broken tokenizer": (
        lambda f: (f / "tokenizer.json").write_text("{"),
        ModelNotFound,
        "tokenizer that can be read",
    ),
    "a tokenizer of another kind": (
        lambda f: (f / "tokenizer.json").write_text("5"),
        ModelNotFound,
        "tokenizer that can be read",
    ),
    "a tokenizer with one wrong value": (
        _misspell_the_tokenizer,  # the library in Rust raises a bare Exception
        ModelNotFound,
        "tokenizer that can be read: .*expected a string",
    ),
    "settings of a tokenizer that are a list": (
        lambda f: (f / "tokenizer_config.json").write_text("[]"),
        ModelNotFound,
        "tokenizer that can be read",
    ),
    "deep settings of a tokenizer": (
        lambda f: (f / "tokenizer_config.json").write_text('{"a":' * 100_000),
        ModelNotFound,
        "tokenizer that can be read",
    ),
    "choices that are a list": (
        lambda f: (f / "generation_config.json").write_text("[]"),
        ModelNotFound,
        "generation_config.json that cannot be used",
    ),
    "choices of another kind": (
        lambda f: (f / "generation_config.json").write_text('{"watermarking_config": 5}'),
        ModelNotFound,
        "generation_config.json that cannot be used",
    ),
    "broken config": (
        lambda f: (f / "config.json").write_text("{"),
        ModelNotFound,
        "cannot be read",
    ),
    "truncated": (_truncate, ModelNotFound, "unreadable weights"),
    "no bytes": (
        lambda f: (f / "model.safetensors").write_bytes(b""),
        ModelNotFound,
        "unreadable weights",
    ),
    "no tensors": (_empty_header, ModelNotFound, "no weights for"),
    "lost shard": (_lose_a_shard, ModelNotFound, "00002-of-00002"),
    "more layers": (
        lambda f: _edit(f, num_hidden_layers=3, layer_types=None),
        ModelNotFound,
        r"no weights for model.layers.2.* and 8 more",
    ),
    "other shape": (
        lambda f: _edit(f, intermediate_size=32),
        ModelNotFound,
        "another shape .*mlp.down_proj",
    ),
    "unknown type": (lambda f: _edit(f, model_type="quux"), UnsupportedModel, "quux"),
    "nonsense": (lambda f: _edit(f, hidden_size="wide"), UnsupportedModel, "hidden_size"),
    "a million layers": (
        lambda f: _edit(f, num_hidden_layers=10**6, layer_types=None),
        UnsupportedModel,
        "num_hidden_layers is 1000000; expected at most 4,096",
    ),
    "an infinite base": (
        lambda f: _edit(f, rope_parameters={"rope_type": "default", "rope_theta": math.inf}),
        UnsupportedModel,
        "rope_theta is inf; expected a positive number",
    ),
    "a factor that is no number": (
        lambda f: _edit(
            f,
            rope_parameters={
                **{"rope_type": "yarn", "rope_theta": 1e4, "factor": math.nan},
                "original_max_position_embeddings": 32,
            },
        ),
        UnsupportedModel,
        "factor is nan; expected a positive number",
    ),
    "a list of types": (
        lambda f: _edit(f, model_type=["qwen3"]),
        UnsupportedModel,
        r"model_type is \['qwen3'\]; expected the name",
    ),
    "no table": (
        lambda f: (f / "config.json").write_text("5"),
        UnsupportedModel,
        "it is a int; expected a table",
    ),
    "a deep config": (
        lambda f: (f / "config.json").write_text('{"a":' * 100_000),
        UnsupportedModel,
        "recursion",
    ),
    "own code": (
        lambda f: _edit(f, model_type="quux", auto_map={"AutoConfig": "theirs.Config"}),
        UnsupportedModel,
        "custom code",
    ),
    "refused": (
        lambda f: _edit(
            f, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
        ),
        UnsupportedModel,
        "dynamic NTK",
    ),
    "failed examination": (
        lambda f: _edit(f, model_type="nanochat"),
        UnsupportedModel,
        "examination",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_checkpoint_has_one_clear_error(
    case: str, copy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    break_it, kind, words = BROKEN[case]
    break_it(copy)
    capfd.readouterr()
    with pytest.raises(kind, match=words) as caught:
        load_adapter(str(copy), device="cpu")
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("break_it", "hint"),
    [
        (lambda f: _edit(f, tie_word_embeddings="x"), "repair it"),
        (lambda f: _edit(f, model_type="quux"), "supported: Llama"),
    ],
)
def test_what_to_do_follows_from_what_is_wrong(
    break_it: Callable[[Path], Any], hint: str, copy: Path
) -> None:
    break_it(copy)
    with pytest.raises(UnsupportedModel) as caught:
        load_adapter(str(copy), device="cpu")
    assert hint in caught.value.hint


def test_a_broken_folder_does_not_blame_the_network(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    (copy / "config.json").write_text("{")
    with pytest.raises(ModelNotFound, match="files that cannot be read"):
        load_adapter(str(copy), device="cpu")


def test_refusals_come_before_the_weights(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes(b"not weights at all")
    _edit(copy, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
    with pytest.raises(UnsupportedModel):
        load_adapter(copy)


def _hub_error(cause: Exception) -> Callable[..., Any]:
    def raising(*_: Any, **__: Any) -> Any:
        raise OSError("what transformers says around it") from cause

    return raising


_ANSWER: Any = SimpleNamespace(headers={}, request=None)  # these errors look at it


@pytest.mark.parametrize(
    ("cause", "words", "hint"),
    [
        (GatedRepoError("no", response=_ANSWER), "gated", "HF_TOKEN"),
        (RepositoryNotFoundError("no", response=_ANSWER), "no model 'a/b'", "check the name"),
        (OfflineModeIsEnabled("no"), "HF_HUB_OFFLINE", "unset"),
        (LocalEntryNotFoundError("no"), "could not be fetched", "network"),
    ],
)
def test_why_a_name_on_the_hub_cannot_be_had(
    cause: Exception, words: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hf.AutoConfig, "from_pretrained", _hub_error(cause))
    monkeypatch.setattr("manyhands.model.configuration.file_of", lambda *_: None)  # no network
    with pytest.raises(ModelNotFound, match=words) as caught:
        load_adapter("a/b")
    assert hint in caught.value.hint


def test_offline_is_respected_without_a_knock_at_the_network(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFound, match="HF_HUB_OFFLINE forbids"):
        load_adapter("nobody/has-this-model")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "name", ["./missing", "/missing", "~/missing", "a/b/c", r"c:\missing", "file.json"]
)
def test_what_looks_like_a_path_is_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.json").write_text("{}")
    with pytest.raises(ModelNotFound, match=r"no folder|is a file"):
        load_adapter(name)


@pytest.mark.parametrize(
    ("options", "kind", "words", "hint"),
    [
        ({"device": "tpu"}, InvalidRequest, "'tpu'", "cpu"),
        ({"device": "cuda:99"}, InvalidRequest, "'cuda:99'", "cpu"),
        ({"device": "mps"}, InvalidRequest, "'mps'", "cpu"),
        ({"dtype": "int8"}, InvalidRequest, "'int8'", "bfloat16"),
        ({"weights": "random"}, InvalidRequest, "'random'", "dummy"),
        ({"context": 0}, InvalidRequest, "context is 0", "at least 1"),
        ({"context": 513}, ContextTooLong, "513 .* 512", "less"),
    ],
)
def test_options_that_cannot_be_used(
    options: dict[str, Any], kind: type[ManyhandsError], words: str, hint: str, checkpoint: Path
) -> None:
    with pytest.raises(kind, match=words) as caught:
        load_adapter(checkpoint, **options)
    assert hint in caught.value.hint


def test_a_gpu_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = "CUDA error: all CUDA-capable devices are busy or unavailable"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(devices, "_problem_of", lambda device: busy)
    with pytest.warns(UserWarning, match="cuda:0 cannot be used, the CPU is: .* busy"):
        assert resolve_device("auto") == torch.device("cpu")
    with pytest.raises(InvalidRequest, match=r"there and cannot be used: .* busy"):
        resolve_device("cuda")


def test_a_gpu_is_tried_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*shape: int, device: torch.device) -> torch.Tensor:
        raise RuntimeError(f"{device} is closed\nCompile with TORCH_USE_CUDA_DSA")

    monkeypatch.setattr(torch, "zeros", closed)
    assert devices._problem_of(torch.device("cuda:0")) == "cuda:0 is closed"
    assert devices._problem_of(torch.device("cpu")) is None


def test_weights_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 30, 80 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 9 << 30)
    said = str(devices.too_small(torch.device("cuda"), "large"))
    assert "it has 80.0 GiB, of which other programs hold 70.0" in said


def test_auto_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_problem_of", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert resolve_device("auto") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("auto") == resolve_device("cuda") == torch.device("cuda:0")
    assert resolve_device(torch.device("cuda:1")) == torch.device("cuda:1")
    cpu, gpu = torch.device("cpu"), torch.device("cuda:0")
    assert resolve_dtype("auto", cpu, torch.bfloat16) == torch.float32
    assert resolve_dtype("auto", gpu, None) == torch.float32
    assert resolve_dtype(torch.float64, cpu, None) == torch.float64
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    assert resolve_dtype("auto", gpu, "bfloat16") == torch.bfloat16
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    with pytest.warns(UserWarning, match="float16 is used instead"):
        assert resolve_dtype("auto", gpu, torch.bfloat16) == torch.float16


# -- configurations and files that nobody could load -------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads is 0; expected 1 to"),
        ({"head_dim": 0}, "head_dim is 0; expected 1 to"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"vocab_size": 1 << 40}, "vocab_size is 1099511627776; expected 1 to"),
        (
            {"hidden_size": 1_000_000, "intermediate_size": 4_000_000},
            "GiB, and this process may have",
        ),
        ({"dtype": "evil"}, "dtype is 'evil'; expected the name of a dtype"),
        ({"torch_dtype": 7}, "torch_dtype is 7; expected"),
        ({"quantization_config": 5}, "quantization_config is 5; expected a table"),
        ({"quantization_config": []}, r"quantization_config is \[\]; expected a table"),
    ],
)
def test_a_configuration_that_makes_no_network_is_named(
    copy: Path, changes: dict[str, Any], said: str
) -> None:
    _edit(copy, **changes)
    with pytest.raises(ManyhandsError, match=said) as caught:
        load_adapter(copy, device="cpu")
    assert str(copy) in str(caught.value)


@pytest.mark.parametrize(
    "name", ["m" * 300, "/" + "m" * 300, "org/" + "m" * 300, "a\0b", "é" * 200]
)
def test_a_name_that_no_folder_can_have(name: str) -> None:
    with pytest.raises(ModelNotFound, match=r"at most 255|there is no model"):
        load_adapter(name)


@pytest.mark.parametrize(
    "target", ["../elsewhere.safetensors", "/etc/passwd", "..", "a/b.safetensors"]
)
def test_an_index_stays_in_its_folder(copy: Path, target: str) -> None:
    (copy / "model.safetensors").rename(copy.parent / "elsewhere.safetensors")
    index = {"metadata": {}, "weight_map": {"lm_head.weight": target}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelNotFound, match="an index that points outside of its folder"):
        load_adapter(copy)


@pytest.mark.parametrize("index", ["[]", "{", "{}", '{"weight_map": 3}', '{"a":' * 100_000])
def test_an_index_that_is_none(copy: Path, index: str) -> None:
    (copy / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelNotFound, match="an index that cannot be read"):
        load_adapter(copy)


def test_an_index_whose_files_are_not_there(copy: Path) -> None:
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "model-2-of-2.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelNotFound, match=r"lacks the weights model-2-of-2\.safetensors"):
        load_adapter(copy)


def test_a_pickle_that_could_run_a_program_is_refused_without_advice_to_run_it(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    torch.save({"evil": Path("x")}, copy / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match="are a pickle") as caught:
        load_adapter(copy)
    assert "weights_only" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.bool])
def test_packed_tensors_that_nothing_explains_are_no_weights(
    copy: Path, dtype: torch.dtype
) -> None:
    path = copy / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name].to(dtype)
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ModelNotFound, match=rf"1 tensor of numbers .*{name}: "):
        load_adapter(copy)


@pytest.mark.parametrize("method", [[], {}])
def test_a_method_that_is_no_name_is_named(copy: Path, method: object) -> None:
    _edit(copy, quantization_config={"quant_method": method})
    with pytest.raises(ManyhandsError) as caught:
        load_adapter(copy)
    assert caught.value.hint


@pytest.mark.parametrize("method", ["modelopt", 5])
def test_weights_packed_by_a_method_that_nobody_knows_are_named(copy: Path, method: object) -> None:
    """Transformers passes over the method, and takes eight bits without their scales for ordinary numbers."""
    _edit(copy, quantization_config={"quant_method": method, "quant_algo": "FP8"})
    load_adapter(copy)
    path, name = copy / "model.safetensors", "model.layers.0.mlp.up_proj.weight"
    tensors = load_file(path)
    tensors |= {name: tensors[name].to(torch.float8_e4m3fn), f"{name}_scale": torch.ones(())}
    save_file(tensors, path, metadata={"format": "pt"})
    words = rf"quant_method '{method}'\): {name} has numbers of F8_E4M3"
    with pytest.raises(UnsupportedModel, match=words) as caught:
        load_adapter(copy)
    assert "not quantised" in caught.value.hint


def test_packed_tensors_of_a_model_on_the_hub_are_no_weights_either(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers reads them as ordinary ones, without a word."""
    cache = tmp_path / "cache"
    use_alone(cache, monkeypatch)
    folder = keep(cache, "some/model", {})
    shutil.copytree(copy, folder, dirs_exist_ok=True)
    assert load_adapter("some/model", device="cpu")[0].model is not None
    path, name = folder / "model.safetensors", "model.layers.0.mlp.up_proj.weight"
    tensors = load_file(path)
    save_file({**tensors, name: tensors[name].char()}, path, metadata={"format": "pt"})
    with pytest.raises(ModelNotFound, match=rf"1 tensor of numbers .*{name}: I8"):
        load_adapter("some/model", device="cpu")


def test_an_adapter_beside_the_weights_is_not_added_by_itself(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers adds it where `peft` is installed, and nowhere else; a part of a network never had it."""
    expected = load_adapter(copy, device="cpu")[0].model.state_dict()
    for module in ("models.auto.auto_factory", "integrations.peft"):
        monkeypatch.setattr(f"transformers.{module}.is_peft_available", lambda: True)
    model = hf.AutoModelForCausalLM.from_pretrained(copy)
    add_lora(model, 2, 4.0)
    for layer in lora_layers(model).values():
        nn.init.ones_(layer.lora_B)
    save_lora(model, copy, base="some/other", dtype=torch.float32)
    with pytest.warns(UserWarning, match="holds an adapter beside its weights, which is not added"):
        own = load_adapter(copy, device="cpu")[0].model.state_dict()
    assert own.keys() == expected.keys()
    assert all(torch.equal(own[name], expected[name]) for name in expected)
    added = load_adapter(copy, device="cpu", adapted=copy)[0].model.state_dict()
    name = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(added[name], expected[name])


def test_tensors_without_a_place_are_said(copy: Path) -> None:
    path = copy / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.0.adapter.weight"] = torch.ones(2, 2)
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.warns(UserWarning, match="has 1 tensor that its network has no place for.*adapter"):
        load_adapter(copy)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("gemma4_text", "enable_moe_block", True),  # TypeError in transformers
        ("gemma4_text", "hidden_activation", "x"),  # KeyError
        ("gemma4_text", "rope_parameters", {}),
        ("gemma4_text", "hidden_size_per_layer_input", -1),  # RuntimeError
        ("gemma4_shared", "num_kv_shared_layers", -1),  # IndexError
        ("gemma4_shared", "num_kv_shared_layers", 99),  # ValueError
        ("deepseek_v2", "kv_lora_rank", -1),
        ("deepseek_v2", "num_attention_heads", 0),  # ZeroDivisionError
        ("deepseek_v3", "head_dim", True),  # True is 1 for Python
        ("qwen3_moe", "pad_token_id", 1 << 40),  # AssertionError in torch
    ],
)
@pytest.mark.parametrize("weights", ["dummy", "auto"])
def test_a_configuration_that_makes_no_network(
    tmp_path: Path, name: str, field: str, value: object, weights: str
) -> None:
    config = json.loads(tiny_models()[name]().config.to_json_string(use_diff=False))
    (tmp_path / "config.json").write_text(json.dumps({**config, field: value}))
    (tmp_path / "model.safetensors").write_bytes(save({"any": torch.zeros(1)}))
    with pytest.raises(UnsupportedModel, match=r"makes no network|cannot be used") as refused:
        load_adapter(tmp_path, device="cpu", weights=weights, tokenizer=NO_TOKENIZER)
    assert str(tmp_path) in str(refused.value)
    assert refused.value.hint


@pytest.mark.parametrize("wrong", [None, 5, b"bundled", [], object()])
def test_what_is_no_model_is_refused(wrong: Any) -> None:
    """It was looked for on the hub, under the name that Python writes for it."""
    with pytest.raises(InvalidRequest, match=f"the model is of type {type(wrong).__name__}"):
        load_adapter(wrong)


@pytest.mark.parametrize("name", ["lora", "cache"])
def test_folders_of_settings(name: str, tmp_path: Path) -> None:
    for wrong in (5, b"x"):
        with pytest.raises(InvalidRequest, match=f"{name} is of type {type(wrong).__name__}"):
            ModelSettings(**{name: wrong})  # type: ignore[arg-type]
    folder: dict[str, Any] = {name: tmp_path}
    assert getattr(ModelSettings(**folder), name) == str(tmp_path)


@pytest.mark.parametrize("name", ["gpt_oss", "qwen3_moe", "deepseek_v3", "llama4_text"])
@pytest.mark.parametrize("odd", [-1, 0, 1000])
def test_a_token_goes_through_experts_that_there_are(name: str, odd: int) -> None:
    """Otherwise a pass ended in an error of torch's, or a block gave nothing."""
    config: Any = deepcopy(ZOO[name]().config)
    check_sizes("it", config)
    config.num_experts_per_tok = odd
    with pytest.raises(
        UnsupportedModel, match=f"num_experts_per_tok is {odd}; expected 1 to [0-9]+,"
    ):
        check_sizes("it", config)


def test_heads_of_keys_serve_as_many_heads_of_queries_each() -> None:
    """Random weights have any shape, so attention ended in an error of torch's."""
    for make in ZOO.values():
        check_sizes("it", make.args[0])  # control: no family is refused
    config: Any = deepcopy(ZOO["qwen3"]().config)
    config.num_attention_heads, config.num_key_value_heads = 3, 2
    with pytest.raises(
        UnsupportedModel, match="num_attention_heads is 3, and num_key_value_heads 2"
    ):
        check_sizes("it", config)
