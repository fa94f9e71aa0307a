"""Parts of a network, by ranks that are threads: together they give what the whole gives.

Tolerance: that of the conformance table, for the same reasons; a sum over ranks is one more order of terms.
"""

from __future__ import annotations

import copy
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from manyhands.errors import (
    InvalidRequest,
    ManyhandsError,
    ModelNotFound,
    OutOfMemory,
    UnsupportedModel,
)
from manyhands.model import loading
from manyhands.model.fingerprint import sums_of
from manyhands.model.fusion import fuse_modules
from manyhands.model.layers import join
from manyhands.model.loading import load_adapter
from manyhands.model.parallel.cuts import WHOLE, Cut, Cutting, part_of, read_plan
from manyhands.model.quantised.linear import Float8Linear
from manyhands.model.quantised.mxfp4 import Mxfp4Stack, is_mxfp4
from manyhands.model.quantised.packing import from_layer
from manyhands.model.quantised.w4a16 import Int4Linear
from manyhands.model.quiet import quiet
from manyhands.model.self_test import exact_attention
from tests.model import test_block_scales, test_packed_checkpoint
from tests.model.families_zoo import (
    NO_TOKENIZER,
    repeating_models,
    some_tokens,
    tiny_model,
    tiny_models,
)
from tests.model.parallel.threads import Meeting, ThreadCollectives

ZOO = tiny_models()
REPEATING = repeating_models()
FLOAT32 = 3e-5
_LOADING = threading.Lock()  # transformers is not made for threads


def saved(model: Any, folder: Path) -> Path:
    with quiet():
        model.save_pretrained(folder)
    return folder


def logits_of(adapter: Any) -> Tensor:
    return adapter.forward(some_tokens(20), None, exact_attention(adapter.ropes))  # type: ignore[no-any-return]


def together(folder: Path, size: int, fuse: str = "off", **options: Any) -> Tensor:
    """The logits of all ranks, which must be the same bits."""

    def one(collectives: ThreadCollectives) -> Tensor:
        with _LOADING:
            adapter, _ = load_adapter(
                folder,
                tokenizer=NO_TOKENIZER,
                collectives=collectives,
                device="cpu",
                **options,
            )
            fuse_modules(adapter, fuse)
        return logits_of(adapter)

    first, *others = Meeting(size).run(one)
    assert all(torch.equal(first, other) for other in others)
    return first


def whole(folder: Path, **options: Any) -> Tensor:
    with torch.inference_mode():
        return logits_of(load_adapter(folder, tokenizer=NO_TOKENIZER, device="cpu", **options)[0])


def _change(folder: Path, **tensors: Tensor) -> None:
    """Put these into a checkpoint."""
    file = folder / "model.safetensors"
    save_file({**load_file(file), **tensors}, file, {"format": "pt"})


def _configure(folder: Path, **settings: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


class CountedPeers:
    """Peers by the threads' own sums; each way of asking is counted."""

    def __init__(self, collectives: ThreadCollectives, spoil: float = 0.0) -> None:
        self.collectives = collectives
        self.spoil = spoil
        self.sums = self.joins = 0

    def can_sum(self, x: Tensor) -> bool:
        return x.numel() > 0

    def sum(self, x: Tensor) -> Tensor:
        self.sums += 1
        return self.collectives.sum(x) + self.spoil

    def join(self, residual: Tensor, x: Tensor, post: Any, pre: Any) -> tuple[Tensor, Tensor]:
        self.joins += 1
        return join(residual, self.collectives.sum(x) + self.spoil, post, pre)


# Joined and single sums of a layer; a stack of experts ends in a sum of its own.
@pytest.mark.parametrize(
    ("name", "fuse", "joins", "sums"),
    [
        ("qwen3", "on", 2, 0),
        ("gemma2", "on", 2, 0),
        ("qwen3_moe", "on", 1, 1),
        ("qwen3", "off", 0, 2),
    ],
)
def test_sums_are_made_with_what_stands_behind_them(
    name: str, fuse: str, joins: int, sums: int, tmp_path: Path
) -> None:
    folder = saved(ZOO[name](), tmp_path)

    def made(spoil: float) -> tuple[Tensor, tuple[int, int]]:
        def one(collectives: ThreadCollectives) -> tuple[Tensor, tuple[int, int]]:
            peers = CountedPeers(collectives, spoil)
            with _LOADING:
                adapter, _ = load_adapter(
                    folder,
                    tokenizer=NO_TOKENIZER,
                    collectives=collectives,
                    device="cpu",
                )
                fuse_modules(adapter, fuse)
            collectives.peers = peers
            logits = logits_of(adapter)
            layers = adapter.num_layers
            return logits, (peers.joins // layers, peers.sums // layers)

        return Meeting(2).run(one)[0]

    logits, counts = made(0.0)
    expected = whole(folder)
    assert float((logits - expected).abs().max()) < FLOAT32
    assert counts == (joins, sums)
    assert float((made(0.1)[0] - expected).abs().max()) > 10 * FLOAT32, "no sum is made otherwise"


# One of each way in which weights are named and cut; two parts are made of all families.
CUTS = ["qwen2", "phi3", "gemma2", "glm4", "olmo2", "gpt_oss", "qwen3_moe", "llama4_text"]


@pytest.mark.parametrize("name", CUTS)
def test_four_parts(name: str, tmp_path: Path) -> None:
    """Four ranks and two key/value heads: each head lies on two ranks."""
    saved(ZOO[name](), tmp_path)
    assert float((together(tmp_path, 4) - whole(tmp_path)).abs().max()) < FLOAT32


@pytest.mark.parametrize("name", [*REPEATING, *sorted(ZOO)])
def test_two_parts_or_a_refusal(name: str, tmp_path: Path) -> None:
    """No family of the table is cut wrongly: its parts make the same logits, or it is refused."""
    network = (REPEATING | ZOO)[name]()
    saved(network, tmp_path)
    if network.config.model_type in WHOLE:
        with pytest.raises(UnsupportedModel, match="cannot be cut over several ranks"):
            together(tmp_path, 2)
        return
    assert float((together(tmp_path, 2) - whole(tmp_path)).abs().max()) < FLOAT32


@pytest.mark.parametrize("name", ["qwen3", "phi3", "gemma3_text"])
def test_fused_parts(name: str, tmp_path: Path) -> None:
    saved(ZOO[name](), tmp_path)
    assert float((together(tmp_path, 2, fuse="on") - whole(tmp_path)).abs().max()) < FLOAT32


@pytest.mark.parametrize(("kv_heads", "tied"), [(1, False), (4, True)])
def test_one_head_for_all_ranks_and_tied_embeddings(
    kv_heads: int, tied: bool, tmp_path: Path
) -> None:
    config = copy.deepcopy(ZOO["qwen2"].args[0])
    config.num_key_value_heads, config.tie_word_embeddings = kv_heads, tied
    saved(tiny_model(config), tmp_path)
    assert float((together(tmp_path, 4) - whole(tmp_path)).abs().max()) < FLOAT32


def test_tied_weights_by_either_name(tmp_path: Path) -> None:
    folder = saved(ZOO["gemma2"](), tmp_path)
    expected = whole(folder)
    test_packed_checkpoint.rename_table(folder)
    assert torch.equal(whole(folder), expected)
    assert float((together(folder, 2) - expected).abs().max()) < FLOAT32


def test_an_output_layer_of_its_own_beside_a_configuration_that_ties_it(tmp_path: Path) -> None:
    """Parts had the embeddings in its place, where the whole has what the checkpoint says."""
    folder = saved(ZOO["qwen3"](), tmp_path)
    expected = whole(folder)
    _configure(folder, tie_word_embeddings=True)
    assert torch.equal(whole(folder), expected)
    assert float((together(folder, 2) - expected).abs().max()) < FLOAT32


@pytest.mark.parametrize(("family", "layer"), [("llama", ".v_proj"), ("llama4_text", ".experts.")])
def test_control_a_part_of_the_wrong_place(
    family: str, layer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads of another rank; gates of a stack without the values that belong to them."""
    right = Cutting._pieces

    def wrong(self: Cutting, name: str, verb: str, length: int) -> Any:
        pieces = right(self, name, verb, length)
        return pieces if layer not in name else ((0, sum(stop - start for start, stop in pieces)),)

    monkeypatch.setattr(Cutting, "_pieces", wrong)
    saved(ZOO[family](), tmp_path)
    assert float((together(tmp_path, 2) - whole(tmp_path)).abs().max()) > 0.1


# -- weights of fewer bits ---------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["awq", "gptq_v2"])
def test_four_bits_are_cut_between_groups(layout: str, tmp_path: Path) -> None:
    test_packed_checkpoint._write(tmp_path, "llama", layout)
    ours, expected = together(tmp_path, 2), whole(tmp_path)
    assert float((ours - expected).abs().max()) < FLOAT32


def test_biases_that_only_the_checkpoint_has_are_cut_like_their_weights(tmp_path: Path) -> None:
    """The configuration says nothing of them: each rank added the one behind a sum, and had the whole one of another."""
    test_packed_checkpoint._write(tmp_path, "llama", "awq")
    own = {f"model.layers.0.self_attn.{each}_proj.bias": torch.randn(64) for each in "qo"}
    _change(tmp_path, **own)
    ours, expected = together(tmp_path, 2), whole(tmp_path)
    assert float((ours - expected).abs().max()) < FLOAT32

    def sums(collectives: ThreadCollectives) -> dict[int, Tensor]:
        with _LOADING:
            options: dict[str, Any] = {"tokenizer": NO_TOKENIZER, "device": "cpu"}
            return sums_of(load_adapter(tmp_path, collectives=collectives, **options)[0].model)

    one, two = Meeting(2).run(sums)
    _change(tmp_path, **{next(iter(own)): torch.cat((own[next(iter(own))][:32], torch.zeros(32)))})
    other = Meeting(2).run(sums)
    assert torch.equal(one[0], other[0][0])
    assert not torch.equal(two[0], other[1][0]), "the second half is the other rank's"


def test_an_output_layer_of_four_bits(tmp_path: Path) -> None:
    """It has no weight that could be the table of embeddings."""
    test_packed_checkpoint._write(tmp_path, "llama", "awq")
    table = "model.embed_tokens.weight"
    tensors = load_file(tmp_path / "model.safetensors")
    head = Int4Linear.from_weight(tensors.pop("lm_head.weight")[:96], None)
    packed = from_layer(head, test_packed_checkpoint.AWQ)
    tensors |= {f"lm_head.{part}": each.contiguous() for part, each in packed.items()}
    tensors[table] = tensors[table][:96].contiguous()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    _configure(tmp_path, vocab_size=96)
    assert float((together(tmp_path, 2) - whole(tmp_path)).abs().max()) < FLOAT32


@pytest.mark.parametrize("quantise", ["auto", "fp8"])
def test_eight_bits(quantise: str, tmp_path: Path) -> None:
    """Kept in eight bits, each rank rounds its own part of an activation, so logits differ a little."""
    test_block_scales._write(tmp_path)
    ours, expected = (each(tmp_path, quantise=quantise) for each in (_three, whole))
    limit = FLOAT32 if quantise == "auto" else 0.2
    assert float((ours - expected).abs().max()) < limit * float(expected.std())


def _three(folder: Path, **options: Any) -> Tensor:
    return together(folder, 3, **options)


def test_layers_of_few_bits_in_parts() -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(48, 256), torch.randn(48)
    for kind in (Int4Linear, Float8Linear):
        layer = kind.from_weight(weight, bias)
        numbers = layer.dequantised(torch.float64)
        rows = layer.part(0, ((16, 32), (40, 48)), bias[:24])
        assert torch.equal(
            rows.dequantised(torch.float64), numbers[[*range(16, 32), *range(40, 48)]]
        )
        columns = layer.part(1, ((64, 128),), None)
        assert torch.equal(columns.dequantised(torch.float64), numbers[:, 64:128])
        assert columns.bias is None
        assert (columns.in_features, columns.out_features) == (64, 48)
    layer = Int4Linear.from_weight(weight, None)
    with pytest.raises(UnsupportedModel, match="do not fall between its groups of 128"):
        layer.part(1, ((0, 48),), None)
    layer.order = torch.randperm(256).int()
    with pytest.raises(UnsupportedModel, match="act-order"):
        layer.part(1, ((0, 128),), None)


def test_experts_in_mxfp4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of blocks, unpacked, is the part of what the whole is, also where whole ones would keep their bits."""
    config = copy.deepcopy(ZOO["gpt_oss"].args[0])
    config.intermediate_size, config.num_hidden_layers = 96, 1
    config.layer_types = config.layer_types[:1]
    saved(tiny_model(config), tmp_path)
    file = tmp_path / "model.safetensors"
    plain = load_file(file)
    packed = dict(plain)
    generator = torch.Generator().manual_seed(0)
    for name, rows, columns in (("gate_up_proj", 192, 64), ("down_proj", 64, 96)):
        key = f"model.layers.0.mlp.experts.{name}"
        size = (4, rows, columns // 32)
        blocks = torch.randint(256, (*size, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(120, 125, size, generator=generator, dtype=torch.uint8)
        plain[key] = convert_moe_packed_tensors(blocks, scales).float().contiguous()
        del packed[key]
        packed |= {f"{key}_blocks": blocks, f"{key}_scales": scales}
    save_file(plain, file, {"format": "pt"})
    expected = whole(tmp_path)
    save_file(packed, file, {"format": "pt"})
    written = json.loads((tmp_path / "config.json").read_text())
    written["quantization_config"] = {"quant_method": "mxfp4"}
    (tmp_path / "config.json").write_text(json.dumps(written))
    monkeypatch.setattr(loading, "keeps_mxfp4", lambda config, device, dtype: is_mxfp4(config))
    assert (
        float((together(tmp_path, 2) - expected).abs().max()) < FLOAT32
    )  # 48 is no multiple of 32


@pytest.mark.parametrize("fuse", ["off", "on"])
def test_experts_keep_their_bits_in_parts(
    fuse: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where parts begin between blocks; together they give what the whole gives, and count as the whole."""
    monkeypatch.setattr(loading, "keeps_mxfp4", lambda config, device, dtype: is_mxfp4(config))
    config = copy.deepcopy(ZOO["gpt_oss"].args[0])
    config.intermediate_size, config.num_hidden_layers = 64, 1
    config.layer_types = config.layer_types[:1]
    config.quantization_config = {"quant_method": "mxfp4"}
    saved(tiny_model(config), tmp_path)
    file = tmp_path / "model.safetensors"
    packed = load_file(file)
    generator = torch.Generator().manual_seed(0)
    for name, rows, columns in (("gate_up_proj", 128, 64), ("down_proj", 64, 64)):
        key, size = f"model.layers.0.mlp.experts.{name}", (4, rows, columns // 32)
        del packed[key]
        packed[f"{key}_blocks"] = torch.randint(256, (*size, 16), generator=generator).byte()
        packed[f"{key}_scales"] = torch.randint(120, 125, size, generator=generator).byte()
        packed[f"{key}_bias"] = torch.randn(4, rows, generator=generator)
    save_file(packed, file, {"format": "pt"})
    expected = whole(tmp_path, quantise="none")
    assert float((together(tmp_path, 2, fuse) - expected).abs().max()) < FLOAT32

    def sums(collectives: ThreadCollectives) -> dict[int, Tensor]:
        with _LOADING:
            adapter, _ = load_adapter(
                tmp_path,
                tokenizer=NO_TOKENIZER,
                collectives=collectives,
                device="cpu",
            )
        kinds = [type(module) for module in adapter.model.modules()]
        assert kinds.count(Mxfp4Stack) == 1
        return sums_of(adapter.model)

    one, two = Meeting(2).run(sums)
    alone = sums_of(load_adapter(tmp_path, tokenizer=NO_TOKENIZER, device="cpu")[0].model)
    if fuse == "off":
        _configure(tmp_path, intermediate_size=32)  # the blocks of a part are there, and of others
        with pytest.raises(ModelNotFound, match=r"gate_up_proj_blocks \(4, 128, 2, 16\), expected"):
            together(tmp_path, 2)
    assert {layer: (one[layer] + two[layer]).tolist() for layer in alone} == {
        layer: each.tolist() for layer, each in alone.items()
    }


# -- what cannot be cut, or is damaged -----------------------------------------------------------------


@pytest.mark.parametrize("others", ["a file", "shards", "by other names"])
def test_parts_have_the_weights_of_the_whole_and_no_others(others: str, tmp_path: Path) -> None:
    """Of several files the same are read: what lies beside them may be older, or the same by other names."""
    saved(ZOO["llama"](), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    doubled = {key: 2 * each for key, each in tensors.items()}
    name = "z.safetensors" if others == "a file" else "model-00001-of-00001.safetensors"
    if others == "by other names":
        (tmp_path / "model.safetensors").rename(tmp_path / name)
        _index(tmp_path / "model.safetensors.index.json", name, tensors)
        native = {f"native.{key}": each for key, each in doubled.items()}
        save_file(native, tmp_path / "consolidated.safetensors", {"format": "pt"})
        _index(tmp_path / "consolidated.safetensors.index.json", "consolidated.safetensors", native)
    else:
        save_file(doubled, tmp_path / name, {"format": "pt"})
    if others == "shards":
        _index(tmp_path / "model.safetensors.index.json", name, doubled)
    assert float((together(tmp_path, 2) - whole(tmp_path)).abs().max()) < FLOAT32


def _index(place: Path, file: str, tensors: dict[str, Tensor]) -> None:
    place.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(tensors, file)}))


UP = "model.layers.1.mlp.up_proj.weight"
CORRECTION = "model.layers.1.mlp.gate.e_score_correction_bias"


class Alone:
    name, rank, size = "none", 0, 3


def test_ranks_that_cannot_share_alike() -> None:
    with pytest.raises(InvalidRequest, match="3 ranks cannot share 4 query heads alike") as error:
        part_of(ZOO["llama"].args[0], 3)
    assert error.value.hint == "with this model, ranks is one of 1, 2, 4"
    config = copy.deepcopy(ZOO["llama"].args[0])
    config.intermediate_size = 50
    with pytest.raises(InvalidRequest, match="4 ranks cannot share 50 intermediate size alike"):
        part_of(config, 4)


def test_a_network_without_a_plan() -> None:
    for config in (
        hf.GPTJConfig(),
        hf.HeliumConfig(),
    ):  # not in the table; a layer as wide as the residual stream
        with pytest.raises(UnsupportedModel, match="cannot be cut over several ranks"):
            read_plan(config)
    config = copy.deepcopy(ZOO["llama"].args[0])
    config.base_model_tp_plan = {"layers.*.self_attn.q_proj": "sideways"}
    with pytest.raises(UnsupportedModel, match="its plan has sideways"):
        read_plan(config)
    config.base_model_tp_plan = {"layers.*.self_attn.q_proj": "colwise"}
    collectives: Any = ThreadCollectives(0, Meeting(2))
    with pytest.raises(
        UnsupportedModel, match=r"no plan says how layers.0.self_attn.k_proj.weight"
    ):
        Cutting(config, collectives)


def test_a_damaged_checkpoint_is_seen_by_its_part(tmp_path: Path) -> None:
    saved(ZOO["llama"](), tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    key = "model.layers.1.mlp.up_proj.weight"
    save_file({**tensors, key: tensors[key][:-1].contiguous()}, file, {"format": "pt"})
    with pytest.raises(ModelNotFound, match=r"of another shape .*up_proj.weight \(47, 64\)"):
        together(tmp_path, 2)
    del tensors[key]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(ModelNotFound, match=f"no weights for {key}"):
        together(tmp_path, 2)


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        # A slice of a larger tensor has the shape of a part.
        (
            "qwen3_moe",
            {"moe_intermediate_size": 12},
            r"0.gate_proj.weight \(24, 64\), expected \(12",
        ),
        ("awq", {"lm_head.weight": torch.ones(194, 64)}, r"\(194, 64\), expected \(97, 64\)"),
        # Torch repeats one number.
        ("deepseek_v3", {CORRECTION: torch.ones(1)}, r"bias \(1,\), expected \(4,\)"),
        # Whole numbers and those of eight bits mean nothing without their scales.
        ("llama", {UP: torch.ones(48, 64).char()}, "has numbers of I8, expected BF16 or F16 or"),
        ("llama", {UP: torch.ones(48, 64).to(torch.float8_e4m3fn)}, "has numbers of F8_E4M3"),
    ],
    ids=["experts", "rows", "a buffer", "integers", "eight bits"],
)
def test_parts_of_what_the_whole_would_be_refused_for(
    name: str, changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    if name == "awq":
        test_packed_checkpoint._write(tmp_path, "llama", name)
    else:
        saved(ZOO[name](), tmp_path)
    if name == "llama":
        changes = {**changes, "quantization_config": {"quant_method": "compressed-tensors"}}
    is_tensor = {key: isinstance(change, Tensor) for key, change in changes.items()}
    _change(tmp_path, **{key: change for key, change in changes.items() if is_tensor[key]})
    _configure(tmp_path, **{key: change for key, change in changes.items() if not is_tensor[key]})
    with pytest.raises(ManyhandsError, match=named) as error:
        together(tmp_path, 2)
    assert error.value.hint


@pytest.mark.parametrize("name", ["llama", "awq"])
def test_a_part_larger_than_all_memory_is_not_begun(name: str, tmp_path: Path) -> None:
    """Its tensors have another shape, which would be seen when there is no memory left."""
    if name == "awq":
        test_packed_checkpoint._write(tmp_path, "llama", name)
    else:
        saved(ZOO[name](), tmp_path)
    _configure(tmp_path, intermediate_size=1 << 30)
    with pytest.raises(OutOfMemory, match="this process may have"):
        together(tmp_path, 2)


def test_pickles_cannot_be_read_in_part(tmp_path: Path) -> None:
    saved(ZOO["llama"](), tmp_path)
    file = tmp_path / "model.safetensors"
    torch.save(load_file(file), tmp_path / "pytorch_model.bin")
    file.unlink()
    with pytest.raises(UnsupportedModel, match="pickles"):
        together(tmp_path, 2)


def test_a_cut_takes_its_pieces_side_by_side() -> None:
    x = torch.arange(12).view(2, 6)
    assert Cut(1, ((0, 2), (3, 4))).of(x).tolist() == [[0, 1, 3], [6, 7, 9]]
    assert not Cut(0, ((0, 2),), is_zero=True).of(x).any()
    assert Cut(1, ((0, 2), (3, 4))).length == 3
