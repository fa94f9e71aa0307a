"""Adapters: beside frozen weights, on disk as `peft` has them, and added to the weights."""

from __future__ import annotations

import gc
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from manyhands.engine.engine import Engine
from manyhands.engine.local_executor import LocalExecutor
from manyhands.errors import InvalidRequest, ModelNotFound, OutOfMemory, UnsupportedModel
from manyhands.model.adapter import ModelAdapter
from manyhands.model.loading import load_adapter
from manyhands.model.lora import (
    CONFIG,
    WEIGHTS,
    LoraLinear,
    add_lora,
    load_lora,
    lora_layers,
    merge_lora,
    save_lora,
)
from manyhands.model.seeded import seeded
from manyhands.model.settings import ModelSettings
from manyhands.replay.lessons import Recorded
from manyhands.replay.settings import TrainSettings
from manyhands.replay.train import Training
from tests.replay.runs import SETTINGS, network, team_run

RANK, ALPHA = 3, 6.0


def model(width: int = 16, layers: int = 1, *, tied: bool = False) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=30,
        hidden_size=width,
        intermediate_size=24,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=tied,
    )
    with seeded(3):
        return LlamaForCausalLM(config).eval()  # type: ignore[no-any-return]


def adapted() -> LlamaForCausalLM:
    """With an adapter that does something."""
    made = model()
    add_lora(made, RANK, ALPHA)
    generator = torch.Generator().manual_seed(5)
    for layer in lora_layers(made).values():
        layer.lora_B.data.normal_(generator=generator)
    return made


def logits(made: LlamaForCausalLM) -> torch.Tensor:
    with torch.inference_mode():
        return made(input_ids=torch.arange(10)[None]).logits  # type: ignore[no-any-return]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_lora(adapted(), tmp_path, base="a/model", dtype=torch.float32)
    return tmp_path


def test_at_first_nothing_changes_and_the_head_is_left_alone() -> None:
    made = model()
    add_lora(made, RANK, ALPHA)
    assert torch.equal(logits(made), logits(model()))
    assert not isinstance(made.lm_head, LoraLinear)
    trained = {name for name, weight in made.named_parameters() if weight.requires_grad}
    assert {name.rpartition(".")[2] for name in trained} == {"lora_A", "lora_B"}
    assert len(trained) == 2 * 7  # of q, k, v, o, gate, up and down


def test_merged_logits_are_those_beside_the_weights(saved: Path) -> None:
    merged, beside = model(), logits(adapted())
    assert float((logits(merged) - beside).abs().max()) > 0.1  # the control: not merged yet
    merge_lora(merged, saved)
    assert float((logits(merged) - beside).abs().max()) < 1e-5


def test_the_same_adapter_is_added_once(saved: Path) -> None:
    """A network that is built already may be loaded again and again; twice the adapter was another model."""
    merged, once = model(), model()
    merge_lora(once, saved)
    for _ in range(3):
        load_adapter(merged, adapted=saved)
    found, wanted = dict(merged.named_parameters()), dict(once.named_parameters())
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_an_adapter_is_not_added_to_another_one(saved: Path, tmp_path: Path) -> None:
    merged, other = model(), tmp_path / "other"
    merge_lora(merged, saved)
    before = [weight.clone() for weight in merged.parameters()]
    save_lora(adapted(), other, base="a/model", dtype=torch.float32)
    changed(other, lora_alpha=2 * ALPHA)
    with pytest.raises(InvalidRequest, match="is another one"):
        load_adapter(merged, adapted=other)
    assert all(map(torch.equal, merged.parameters(), before))


def test_an_adapter_is_not_added_to_weights_that_may_hold_it(saved: Path) -> None:
    """They were written to since, so whether it is in them cannot be known."""
    merged = model()
    merge_lora(merged, saved)
    merged.load_state_dict(model().state_dict())
    with pytest.raises(InvalidRequest, match="weights were changed since") as caught:
        merge_lora(merged, saved)
    assert "Build the network anew" in caught.value.hint


def test_a_network_is_loaded_with_the_adapter_that_it_holds(saved: Path) -> None:
    """Without it, who asked for no adapter got the answers of one."""
    held = model()
    load_adapter(held, adapted=saved)
    with pytest.raises(InvalidRequest, match="and none is asked for") as caught:
        load_adapter(held)
    assert caught.value.hint == f"Give lora={str(saved)!r}, or build the network anew."
    load_adapter(held, adapted=saved)


def test_weights_that_were_written_to_since_are_loaded_as_they_are(saved: Path) -> None:
    """They were trained on from the adapter, say; with it they would be refused, so nothing would be left to ask for."""
    held = model()
    load_adapter(held, adapted=saved)
    load_adapter(held, adapted=saved, dtype="bfloat16")
    with pytest.raises(InvalidRequest, match="and none is asked for"):
        load_adapter(held)  # another dtype is no other weights
    with torch.no_grad():
        for weight in held.parameters():
            weight.add_(0.01)
    load_adapter(held)


def test_an_engine_that_nobody_has_any_more_has_no_network() -> None:
    """Engines stand in cycles, which the collector may not have looked at yet."""
    built = model()
    gc.disable()
    try:
        Engine.load(built, memory_tokens=64)
        load_adapter(built, dtype="bfloat16")
    finally:
        gc.enable()


def test_a_load_that_failed_leaves_a_network_in_nobodys_use(saved: Path, tmp_path: Path) -> None:
    """An interactive session holds its last error, and with it all that was made until then."""
    built, other = model(), tmp_path / "other"
    save_lora(adapted(), other, base="a/model", dtype=torch.float32)
    tensors = load_file(other / WEIGHTS)
    save_file({**tensors, "base_model.model.lm_head.bias": torch.zeros(1)}, other / WEIGHTS)
    with pytest.raises(UnsupportedModel) as of_adapter:
        LocalExecutor.load(ModelSettings(built, lora=str(other)))
    with pytest.raises(OutOfMemory) as of_memory:
        LocalExecutor.load(ModelSettings(built, memory_tokens=10**13))
    load_adapter(built, adapted=saved, dtype="bfloat16")
    assert None not in (of_adapter.tb, of_memory.tb), "they are held until here"


@pytest.mark.parametrize(
    "change", [{"adapted": True}, {"dtype": "bfloat16"}, {"quantise": "fp16"}, {"quantise": "int4"}]
)
def test_a_second_engine_changes_no_weights_under_the_first(
    saved: Path, change: dict[str, Any]
) -> None:
    """Its keys would be those of other weights, and with another dtype its next pass ends it."""
    given = {"adapted": saved} if "adapted" in change else change
    name = "lora" if "adapted" in change else next(iter(change))
    shared = model()
    first, _ = load_adapter(shared)
    before = [weight.clone() for weight in shared.parameters()]
    with pytest.raises(InvalidRequest, match=f"another engine has this network, and {name} would"):
        load_adapter(shared, **given)
    assert all(map(torch.equal, shared.parameters(), before))
    load_adapter(shared)
    del first
    if change.get("quantise") == "int4":  # such a small network has no layers for it
        return
    again, _ = load_adapter(shared, **given)
    load_adapter(shared, **given)  # nothing changes by that
    assert again.model is shared


def test_the_files_are_those_of_peft(saved: Path) -> None:
    """Names, shapes and configuration as peft writes them for a causal language model."""
    config = json.loads((saved / CONFIG).read_text())
    assert (config["peft_type"], config["task_type"]) == ("LORA", "CAUSAL_LM")
    assert (config["r"], config["lora_alpha"]) == (RANK, ALPHA)
    assert config["base_model_name_or_path"] == "a/model"
    assert set(config["target_modules"]) == {
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    }
    tensors = load_file(saved / WEIGHTS)
    first = "base_model.model.model.layers.0.self_attn.k_proj"
    assert tensors[f"{first}.lora_A.weight"].shape == (RANK, 16)
    assert tensors[f"{first}.lora_B.weight"].shape == (8, RANK)
    assert len(tensors) == 2 * 7


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft, to transformers
def test_peft_reads_it_and_we_read_what_peft_writes(saved: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    theirs = peft.PeftModel.from_pretrained(model(), saved)
    assert float((logits(theirs) - logits(adapted())).abs().max()) < 1e-5
    theirs.save_pretrained(tmp_path / "theirs", save_embedding_layers=False)
    merged = model()
    merge_lora(merged, tmp_path / "theirs")
    assert float((logits(merged) - logits(adapted())).abs().max()) < 1e-5


def changed(folder: Path, **entries: object) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | entries))


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"peft_type": "IA3"}, "expected plain LoRA"),
        ({"use_dora": True}, "expected plain LoRA"),
        ({"bias": "all"}, "expected plain LoRA"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern"),
        ({"alpha_pattern": {"q_proj": 8}}, "alpha_pattern"),
        ({"fan_in_fan_out": True}, r"fan_in_fan_out = True; expected weights \[out, in\]"),
        # With these `peft` computes something else than base, A and B make together.
        ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa': .* taken out"),
        ({"init_lora_weights": "pissa_niter_4"}, "taken out of the weights"),
        ({"init_lora_weights": "OLoRA"}, "taken out of the weights"),
        ({"init_lora_weights": "loftq"}, "taken out of the weights"),
        ({"alora_invocation_tokens": [5, 6]}, r"= \[5, 6\]; expected .* for all tokens"),
        ({"layer_replication": [[0, 1], [0, 1]]}, "expected the layers of the model as they are"),
        ({"r": RANK + 1}, "rank 3, and its configuration says 4"),
    ],
)
def test_another_kind_is_refused_by_name(
    saved: Path, entries: dict[str, object], says: str
) -> None:
    changed(saved, **entries)
    made = model()
    with pytest.raises(UnsupportedModel, match=says):
        merge_lora(made, saved)
    assert torch.equal(logits(made), logits(model()))


def test_weights_in_float64_stay_so(saved: Path) -> None:
    """An adapter of zeros changes nothing, to the last bit."""
    path = saved / WEIGHTS
    save_file({name: torch.zeros_like(half) for name, half in load_file(path).items()}, path)
    made = model().double()
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(torch.randn_like(weight), alpha=1e-12)
    before = logits(made)
    merge_lora(made, saved)
    assert torch.equal(logits(made), before)


@pytest.mark.parametrize("beginning", [True, False, "gaussian", "eva", "orthogonal", "mica"])
def test_beginnings_that_leave_the_weights_alone_are_plain(saved: Path, beginning: object) -> None:
    changed(saved, init_lora_weights=beginning)
    made = model()
    merge_lora(made, saved)
    assert float((logits(made) - logits(adapted())).abs().max()) < 1e-5


def test_an_output_layer_that_is_the_embeddings_takes_no_adapter(saved: Path) -> None:
    """Added to their weights it would change what tokens are read as, too."""
    path, head = saved / WEIGHTS, "base_model.model.lm_head"
    a, b = torch.randn(RANK, 16), torch.randn(30, RANK)
    more = {f"{head}.lora_A.weight": a, f"{head}.lora_B.weight": b}
    save_file({**load_file(path), **more}, path)
    made = model(tied=True)
    before = logits(made)
    with pytest.raises(
        UnsupportedModel, match=r"for 'lm_head', whose weights are those of the emb"
    ):
        merge_lora(made, saved)
    assert torch.equal(logits(made), before)
    own = model()
    merge_lora(own, saved)
    beside = adapted()
    with torch.no_grad():
        beside.lm_head.weight.add_(b @ a, alpha=ALPHA / RANK)
    assert float((logits(own) - logits(beside)).abs().max()) < 1e-4


@pytest.mark.parametrize("side", ["lora_B.bias", "lora_B.other.weight"])
def test_more_than_a_pair_of_weights_is_refused(saved: Path, side: str) -> None:
    """A bias of peft's `lora_bias` was left out without a word, and of two halves the first."""
    tensors = load_file(saved / WEIGHTS)
    key = next(key for key in tensors if key.endswith("q_proj.lora_B.weight"))
    save_file(tensors | {key.replace("lora_B.weight", side): torch.ones(16)}, saved / WEIGHTS)
    with pytest.raises(UnsupportedModel, match=rf"{side}'; expected pairs") as caught:
        merge_lora(model(), saved)
    assert "without biases" in caught.value.hint


@pytest.mark.parametrize(
    "half", [torch.tensor(1.0), torch.ones(16, RANK).char(), torch.full((16, RANK), math.inf)]
)
def test_halves_that_are_no_matrices_of_numbers_are_refused(
    saved: Path, half: torch.Tensor
) -> None:
    tensors = load_file(saved / WEIGHTS)
    key = next(key for key in tensors if key.endswith("q_proj.lora_B.weight"))
    save_file(tensors | {key: half}, saved / WEIGHTS)
    made = model()
    with pytest.raises(UnsupportedModel, match=r"as lora_B of .*q_proj' numbers of"):
        merge_lora(made, saved)
    assert torch.equal(logits(made), logits(model()))
    fresh = model()
    add_lora(fresh, RANK, ALPHA)
    with pytest.raises(UnsupportedModel, match=r"q_proj'"):
        load_lora(fresh, saved)


@pytest.mark.parametrize("rank_too", [False, True])
def test_numbers_of_an_adapter_that_are_too_large_are_refused(saved: Path, rank_too: bool) -> None:
    changed(saved, lora_alpha=10**400, r=10**400 if rank_too else RANK, use_rslora=True)
    with pytest.raises(
        InvalidRequest, match="lora_alpha = a number of more than 308 digits; expected"
    ):
        merge_lora(model(), saved)
    changed(saved, lora_alpha=ALPHA, r=10**400)
    with pytest.raises(InvalidRequest, match="r = a number of more than 308 digits"):
        merge_lora(model(), saved)


@pytest.mark.parametrize("alpha", [math.inf, math.nan, "x", None])
def test_an_alpha_that_is_no_number_is_refused(saved: Path, alpha: object) -> None:
    """An infinite one made weights of nan."""
    changed(saved, lora_alpha=alpha)
    with pytest.raises(
        InvalidRequest, match=f"lora_alpha = {alpha!r}; expected two positive numbers"
    ):
        merge_lora(model(), saved)


def test_a_configuration_that_lies_too_deep_in_itself_is_refused(saved: Path) -> None:
    (saved / CONFIG).write_text('{"a":' * 100_000)
    with pytest.raises(UnsupportedModel, match="cannot be read: maximum recursion"):
        merge_lora(model(), saved)


def test_another_base_is_refused_and_stays_as_it_is(saved: Path) -> None:
    for other, says in (
        (model(width=32), "the model's layer goes from"),
        (torch.nn.ReLU(), "no such"),
    ):
        before = [weight.clone() for weight in other.parameters()]
        with pytest.raises(UnsupportedModel, match=says):
            merge_lora(other, saved)
        assert all(map(torch.equal, before, other.parameters()))


def test_an_adapter_without_tensors_or_files_is_refused(saved: Path, tmp_path: Path) -> None:
    save_file({}, saved / WEIGHTS)
    with pytest.raises(UnsupportedModel, match="has no tensors"):
        merge_lora(model(), saved)
    with pytest.raises(ModelNotFound, match=r"adapter_config\.json is missing"):
        merge_lora(model(), tmp_path / "nowhere")


def test_an_adapter_is_trained_further_from_its_files(saved: Path) -> None:
    fresh = model()
    add_lora(fresh, RANK, ALPHA)
    load_lora(fresh, saved)
    assert torch.equal(logits(fresh), logits(adapted()))
    for rank, alpha, says in ((RANK, 2 * ALPHA, "counts"), (RANK + 1, ALPHA, "rank and alpha")):
        other = model()
        add_lora(other, rank, alpha)
        with pytest.raises(UnsupportedModel) as caught:
            load_lora(other, saved)
        assert says in f"{caught.value} {caught.value.hint}"
        assert torch.equal(logits(other), logits(model()))


def test_a_training_of_an_adapter_goes_on_where_it_was(tmp_path: Path) -> None:
    """Only the adapter is in the checkpoint, and a training with other weights cannot take it."""
    trace, _, _ = team_run(network("qwen3"), SETTINGS)
    settings = TrainSettings(steps=4, tokens_per_step=1, warmup_steps=1, log_every=1)

    def begun(folder: str, rank: int = 2) -> Training:
        adapter = network.__wrapped__("qwen3")
        if rank:
            add_lora(adapter.model, rank, 4.0)
        return Training(adapter, Recorded([trace]), settings, tmp_path / folder)

    whole, broken = begun("whole"), begun("broken")
    whole.run()

    def stop(progress: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken.run(stop)
    held = torch.load(broken.checkpoint, weights_only=True)["model"]
    assert {name.rpartition(".")[2] for name in held if "lora" in name} == {"lora_A", "lora_B"}
    assert sum(value.numel() for value in held.values()) < 0.5 * _size(broken.adapter)
    resumed = begun("broken")
    assert resumed.step == 1
    resumed.run()
    for one, other in zip(_trained(resumed), _trained(whole), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(InvalidRequest, match="of another training"):
        begun("whole", rank=0)
    with pytest.raises(InvalidRequest, match="of another training"):
        begun("whole", rank=3)  # weights of the same names, and of other sizes
    resumed.end()
    assert "optimizer" not in torch.load(resumed.checkpoint, weights_only=True)
    assert begun("broken").has_ended


def _size(adapter: ModelAdapter) -> int:
    return sum(weight.numel() for weight in adapter.model.parameters())


def _trained(training: Training) -> list[torch.Tensor]:
    return [weight for weight in training.adapter.model.parameters() if weight.requires_grad]
