"""Whole engines beside each other: what both are asked, how steps are timed, and a gate that sees a wrong network.

vLLM is not here. In its place stands Hugging Face's own code in the form in which vLLM is called, so the gate of a
right engine is green for a reason.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from benchmarks import engine_tables, outsiders, performance, shapes, vllm_process, whole_engines
from benchmarks.fat_binaries import Kernels, kernels_of, pruned
from benchmarks.results import Clock, parser
from benchmarks.vllm_process import CASCADE, PLAIN, Asked, Crowd, Watched
from benchmarks.whole_engines import OURS, TEAM
from manyhands.cache.block import Block
from manyhands.engine.engine import Engine
from manyhands.engine.loop import run_passes
from manyhands.engine.ranks.world import World
from manyhands.errors import InvalidRequest
from manyhands.evaluation.bench import fill
from manyhands.model.dummy import STD
from manyhands.model.quantised.mxfp4 import Mxfp4Stack
from tests.engine.small import NUM_IDS, small_engine
from tests.warm import Warm

SMALL = Crowd("gate", 8, (40, 40), 8)
SMALL_SHAPE = replace(
    whole_engines.GATE_SHAPE,
    config={
        **whole_engines.GATE_SHAPE.config,
        **{"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1024},
    },
)


@pytest.fixture
def small_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate of few rows and a network of a few million numbers."""
    monkeypatch.setattr(whole_engines, "GATE_CROWD", SMALL)
    monkeypatch.setattr(whole_engines, "GATE_SHAPE", SMALL_SHAPE)
    monkeypatch.setattr(whole_engines, "_LOOK", 0.05)


def measured(out: Path, *words: str, network: str = "qwen3-8b") -> dict[str, Any]:
    model = network.removeprefix("over_2_")
    common = ["--tiny", "--device", "cpu", "--commit", "abc", "--models", model]
    whole_engines.main([*common, "--out", str(out), *words])
    found: dict[str, Any] = json.loads((out / f"whole_engines_{network}.json").read_text())
    return found


@pytest.mark.usefixtures("small_gate")
def test_both_engines_are_timed_behind_a_green_gate(
    another: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = iter([subprocess.Popen])  # the command itself once, and then a copy
    monkeypatch.setattr(subprocess, "Popen", lambda *words, **how: next(kinds, Warm)(*words, **how))
    monkeypatch.setattr(
        whole_engines,
        "TINY_CROWDS",
        (Crowd("8 behind 32", 8, (32, 32), 80), *whole_engines.TINY_CROWDS),
    )
    monkeypatch.setattr(whole_engines, "PROFILED", ("8 behind 32",))
    found = measured(tmp_path, "--outsiders", str(another))
    assert [(line["engine"], line["tokens"]) for line in found["gate"]] == [
        (PLAIN, 64),
        (CASCADE, 64),
    ]
    for line in found["gate"]:
        assert (line["same"], line["worst"]) == (64, 0.0)
        assert line["mean"] < 1e-3
    assert [line["steps_in_cascade"] > 0 for line in found["gate"]] == [False, True]
    engines = {
        name: {line["engine"] for line in found["cells"] if line["name"] == name}
        for name in ("8 behind 32", "4 behind 32", "3 lone, 5 to 20")
    }
    assert engines["8 behind 32"] == {OURS, TEAM, PLAIN, CASCADE}
    assert engines["4 behind 32"] == {OURS, TEAM, PLAIN}  # vLLM does not cascade so few rows
    assert engines["3 lone, 5 to 20"] == {OURS, PLAIN}
    assert {line["engine"] for line in found["breakdown"]} == {OURS, PLAIN, CASCADE}
    theirs = [line for line in found["breakdown"] if line["engine"] != OURS]
    assert all(line["steps"] > 2 and line["kernels"] for line in theirs)
    assert found["vllm_start"]["vllm"] == "another"
    order = [list(found).index(name) for name in ("vllm_start", "gate_start", "backend")]
    assert order == sorted(
        order
    )  # the longest part first, and nothing of this engine before the gate
    assert "left_out" not in found
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    rows = [line[2:-2].split(" | ") for line in engine_tables.whole_engines().splitlines()]
    assert [row[1] for row in rows[2:]] == ["8 behind 32", "4 behind 32", "3 lone, 5 to 20"]
    assert all(row[-2].endswith(" ×") for row in rows[2:])
    parts = engine_tables.whole_engines_parts().splitlines()
    assert [row.split(" | ")[2] for row in parts[2:]] == [
        PLAIN,
        CASCADE,
    ]  # of ours the profiler wants a GPU
    assert engine_tables.whole_engines_gate().count("64 of 64") == 2


@pytest.mark.parametrize(
    ("network", "kernels", "tuned", "chosen"),
    [
        ("qwen3-30b-a3b", "another's", "E=8,N=24.json", 2),
        ("gpt-oss-20b-mxfp4", "another's, mxfp4", None, 4),
    ],
)
@pytest.mark.usefixtures("small_gate", "warm")
def test_experts_are_counted_in_both_engines(
    another: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    network: str,
    kernels: str,
    tuned: str | None,
    chosen: int,
) -> None:
    monkeypatch.setattr(whole_engines, "TINY_CROWDS", (Crowd("4 behind 32", 4, (32, 32), 24),))
    found = measured(tmp_path, "--outsiders", str(another), network=network)
    assert {line["same"] for line in found["gate"]} == {64}
    start = found["vllm_start"]
    assert (start["experts"], start["experts_tuned"]) == (kernels, tuned)
    read = {line["engine"]: line["experts_read"] for line in found["experts"]}
    assert set(read) == {OURS, TEAM, PLAIN}
    # So many of eight for each of four rows, and random weights are alike in both.
    assert all(chosen <= each <= 8 for each in read.values())
    assert read[OURS] > chosen
    assert read[PLAIN] > chosen
    assert {line["engine"] for line in found["cells"]} == {OURS, TEAM, PLAIN}
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    row = engine_tables.whole_engines_experts().splitlines()[2][2:-2].split(" | ")
    assert row[1:3] == ["4 behind 32", "8"]
    assert row[3:6] == [f"{read[name]:.1f}" for name in (OURS, TEAM, PLAIN)]


@pytest.mark.parametrize(
    ("wrong", "network"),
    [
        ("prompt", "qwen3-8b"),
        ("experts", "qwen3-30b-a3b"),
        ("experts", "gpt-oss-20b-mxfp4"),
    ],
)
@pytest.mark.usefixtures("small_gate", "warm")
def test_beside_a_wrong_network_this_engine_is_not_timed(
    another: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str, network: str
) -> None:
    monkeypatch.setenv("WRONG", wrong)
    found = measured(tmp_path, "--outsiders", str(another), network=network)
    assert all(line["mean"] > whole_engines.MEAN_TOLERANCE for line in found["gate"])
    assert {line["engine"] for line in found["cells"]} == {PLAIN}
    assert found["left_out"] == [{"what": OURS, "why": "the gate is red"}]


def test_what_vllm_tells_is_taken_at_once_and_stays_when_it_is_late(tmp_path: Path) -> None:
    told = tmp_path / "told.jsonl"
    told.write_text('{"first": 1}\n{"half')
    asleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    process = subprocess.Popen(asleep, start_new_session=True)
    try:
        lines = whole_engines.lines_of(process, told, 1.0)
        assert next(lines) == {"first": 1}
        assert process.poll() is None
        with told.open("a") as more:
            more.write('": 2}\n{"never ended')
        assert list(lines) == [{"half": 2}]
        assert process.poll() is None
    finally:
        whole_engines.end_all(process)
    with told.open("a") as more:
        more.write('": 3}\n')
    assert len(list(whole_engines.lines_of(process, told, 600.0))) == 3


def test_experts_in_mxfp4_are_written_as_they_are_published(tmp_path: Path) -> None:
    """Their weights, unpacked by transformers, have the spread of all others."""
    folder = whole_engines.save_small(tmp_path, shapes.TINY_MXFP4)
    assert json.loads((folder / "config.json").read_text())["quantization_config"]
    tensors = load_file(folder / "model.safetensors")
    place = "model.layers.1.mlp.experts."
    sizes = {
        name.removeprefix(place): list(tensor.shape)
        for name, tensor in tensors.items()
        if name.startswith(place)
    }
    assert sizes == {
        "gate_up_proj_blocks": [8, 64, 2, 16],
        "gate_up_proj_scales": [8, 64, 2],
        "gate_up_proj_bias": [8, 64],
        "down_proj_blocks": [8, 64, 1, 16],
        "down_proj_scales": [8, 64, 1],
        "down_proj_bias": [8, 64],
    }
    both = [tensors[f"{place}gate_up_proj_{part}"] for part in ("blocks", "scales")]
    weight = convert_moe_packed_tensors(*both, dtype=torch.float32)
    assert 0.5 * STD < float(weight.std()) < 2 * STD
    assert len(both[1].unique()) == 3


def test_without_vllm_this_engine_alone_is_timed(tmp_path: Path) -> None:
    found = measured(tmp_path)
    assert found["left_out"] == [{"what": "vLLM", "why": "no folder with it (--outsiders)"}]
    assert {line["engine"] for line in found["cells"]} == {OURS, TEAM}
    assert all(line["tokens_per_second"] > 0 for line in found["cells"])


def test_both_engines_get_the_same_prompts(tmp_path: Path) -> None:
    shared, tails = SMALL.prompts(100)
    assert (len(shared), {len(tail) for tail in tails}) == (40, {1})
    alone = Crowd("alone", 5, (3, 9), 4, is_shared=False)
    none, prompts = alone.prompts(100)
    assert not none
    assert all(3 <= len(prompt) <= 9 and min(prompt) >= 2 for prompt in prompts)
    assert alone.prompts(100) == ([], prompts)
    asked = Asked("there", "dummy", 100, (SMALL, alone))
    assert Asked.read(asked.write(tmp_path / "asked.json")) == asked


def test_only_steps_of_all_rows_count_and_not_those_behind_a_turn() -> None:
    """Counts of rows as they come out of an engine: requests begin, all go on, one has ended."""
    counts = iter([1, 2, 2, 2, 2, 2, 1])
    left: list[int] = []
    core = SimpleNamespace(get_output=lambda: SimpleNamespace(outputs=[0] * next(counts)))
    engine = SimpleNamespace(engine_core=core)

    def step() -> None:
        core.get_output()
        left.append(1)

    engine.step = step
    engine.has_unfinished_requests = lambda: len(left) < 7
    watched = Watched(engine, SimpleNamespace, 100)
    assert len(watched.stretch(2, 100, 60.0)) == 2
    assert [count for _, count in watched.marks] == [1, 2, 2, 2, 2, 2, 1]


def lone(engine: Engine) -> list[float]:
    crowd = Crowd("2 lone", 2, (3, 5), 8, is_shared=False)
    return whole_engines.decode(engine, crowd, NUM_IDS)


def a_team(engine: Engine) -> list[float]:
    history = fill(engine, Block("history"), 5, seed=0).freeze()
    return whole_engines.decode_team(engine, history, Crowd("2 behind 5", 2, (5, 5), 24))


@pytest.mark.parametrize("decode", [lone, a_team])
def test_what_lies_between_two_steps_of_this_engine_is_timed(
    decode: Callable[[Engine], list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As between two of vLLM's: on the caller's clock, from tokens to tokens."""
    usual = run_passes

    def slow(*words: Any) -> Any:
        for each in usual(*words):
            time.sleep(0.02)
            yield each

    monkeypatch.setattr(whole_engines, "run_passes", slow)
    seconds = decode(small_engine())
    assert len(seconds) > 2
    assert min(seconds) > 0.02


def test_rows_alone_write_at_the_same_time_where_prompts_are_long() -> None:
    """Parts of prompts beside rows that write are short: without waiting the first rows end before the last one begins."""
    crowd = Crowd("4 lone, 60", 4, (60, 60), 20, is_shared=False)
    engine = small_engine(prompt_tokens=8, prompt_tokens_alone=8)
    seconds = whole_engines.decode(engine, crowd, NUM_IDS)
    assert len(seconds) == crowd.tokens // 2, "half of so few steps do not count"
    unread = set(range(4))
    runs = [(row, whole_engines.lone(range(60), 20, unread, row)) for row in range(4)]
    with pytest.raises(RuntimeError, match="no step in which all 5 rows wrote"):
        vllm_process.account(whole_engines.time_steps(engine, runs, rows=5), rows=5)


def test_crowds_that_do_not_fit_are_halved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = ["--out", str(tmp_path), "--device", "cpu"]
    arguments = parser("about", 1.0).parse_args(options)
    arguments.outsiders, arguments.crowds, arguments.ranks = None, "", 1
    whole = whole_engines.WholeEngines("codellama-7b", arguments, Clock(1.0))
    whole.device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (80 << 30, 80 << 30))
    whole.halve()
    rows = {crowd.name: crowd.rows for crowd in whole.crowds}
    assert rows == {"256 behind 2 k": 256, "512 behind 2 k": 512, "256 behind 16 k": 256}
    whole = whole_engines.WholeEngines("qwen3-30b-a3b", arguments, Clock(1.0))
    whole.device = torch.device("cuda")
    whole.halve()  # 61 GB are weights, most of them experts'
    assert {crowd.name: crowd.rows for crowd in whole.crowds}["64 lone, 100 to 1 000"] == 64
    arguments.ranks = 2  # each has half of the heads
    whole = whole_engines.WholeEngines("codellama-7b", arguments, Clock(1.0))
    whole.device = torch.device("cuda")
    whole.halve()
    rows = {crowd.name: crowd.rows for crowd in whole.crowds}
    assert {rows[name] for name in rows if name.startswith("1024")} == {1024}


OVER_TWO = ("--ranks", "2")


@pytest.mark.usefixtures("small_gate", "warm")
def test_over_ranks_both_engines_are_timed_behind_two_gates(
    another: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_engines, "TINY_CROWDS", (Crowd("8 behind 32", 8, (32, 32), 80),))
    monkeypatch.setattr(whole_engines, "PROFILED", ("8 behind 32",))
    found = measured(tmp_path, *OVER_TWO, "--outsiders", str(another), network="over_2_qwen3-8b")
    assert (found["model"], found["ranks"]) == ("tiny, over 2 GPUs", 2)
    assert found["same_tokens"]
    assert [(line["engine"], line["same"]) for line in found["gate"]] == [
        (PLAIN, 64),
        (CASCADE, 64),
    ]
    assert all(line["mean"] < 1e-3 for line in found["gate"])
    assert "2 ranks" in found["about_ranks"]
    for start in (found["vllm_start"], found["gate_start"]):
        assert (start["ranks"], start["sums"]) == (2, ["its own all-reduce", "NCCL"])
    assert {line["engine"] for line in found["cells"]} == {OURS, TEAM, PLAIN, CASCADE}
    assert "left_out" not in found
    assert [path.name for path in tmp_path.glob("*.json")] == ["whole_engines_over_2_qwen3-8b.json"]
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    row = engine_tables.whole_engines().splitlines()[2][2:-2].split(" | ")
    assert row[:2] == ["tiny, over 2 GPUs", "8 behind 32"]
    assert row[-2].endswith(" ×")


@pytest.mark.usefixtures("small_gate", "warm", "red_ranks")
def test_ranks_that_write_other_tokens_are_not_timed(another: Path, tmp_path: Path) -> None:
    """Nor does vLLM start once more for a gate that was not wanted, and the file says so."""
    words = (*OVER_TWO, "--ungated", "--outsiders", str(another))
    found = measured(tmp_path, *words, network="over_2_qwen3-8b")
    assert not found["same_tokens"]
    assert {line["engine"] for line in found["cells"]} == {PLAIN}
    assert "gate_start" not in found
    assert found["left_out"] == [
        {"what": "the gate of both engines", "why": "it was not wanted (--ungated)"},
        {
            "what": f"{OURS}, tiny, over 2 GPUs",
            "why": "the gate is red: the ranks write other tokens",
        },
    ]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            "--ranks 2 --models qwen3-8b,qwen3-30b-a3b",
            "qwen3-30b-a3b: random weights.*Give networks without experts: qwen3-8b",
        ),
        ("--ranks 0", "--ranks is 0"),
        ("--ranks 2 --device cuda", "2 ranks need 2 GPUs, and 1 are here"),
        ("--ungated", "--ungated on one GPU"),
    ],
)
def test_what_ranks_cannot_have_is_refused_before_anything_starts(
    words: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InvalidRequest, match=why):
        whole_engines.main(
            ["--tiny", "--device", "cpu", "--out", str(tmp_path), "--commit", "abc", *words.split()]
        )
    assert not list(tmp_path.iterdir())


def test_the_environment_of_ranks_is_not_that_of_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL is told how this engine records, and no other engine may be told so."""
    words = ["--out", str(tmp_path), "--device", "cpu", "--tiny"]
    arguments = parser("about", 1.0).parse_args(words)
    arguments.outsiders, arguments.crowds, arguments.ranks = None, "", 2
    whole = whole_engines.WholeEngines("qwen3-8b", arguments, Clock(1.0))
    name, ended = "NCCL_GRAPH_MIXING_SUPPORT", []
    monkeypatch.delenv(name, raising=False)

    def start(*_: Any) -> Any:
        os.environ[name] = "0"
        return SimpleNamespace(end=lambda: ended.append(1))

    monkeypatch.setattr(World, "start", start)
    with whole.over_ranks():
        assert os.environ[name] == "0"
    assert ended == [1]
    assert name not in os.environ
    assert whole.world is None


def test_of_vllms_kernels_its_sums_are_told_apart(tmp_path: Path) -> None:
    arguments = parser("about", 1.0).parse_args(["--out", str(tmp_path), "--device", "cpu"])
    arguments.crowds, arguments.ranks = "", 2
    whole = whole_engines.WholeEngines("qwen3-8b", arguments, Clock(1.0))
    kernels = [
        ["void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>", 0.5],
        ["ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 0.25],
        ["nvjet_tst_64x8", 2.0],
        ["reshape_and_cache_flash_kernel", 0.125],
    ]
    whole._told({"profiled": PLAIN, "name": "16 behind 1 k", "steps": 12, "kernels": kernels})
    (line,) = whole.results.content["breakdown"]
    told = [line[f"ms_{kind}"] for kind in ("collectives", "linears", "attention", "rest")]
    assert told == [0.75, 2.0, 0.125, 0.0]


def test_crowds_are_chosen_by_parts_of_their_names(tmp_path: Path) -> None:
    found = measured(tmp_path, "--crowds", "lone")
    assert [line["name"] for line in found["cells"]] == ["3 lone, 5 to 20"]
    crowds = whole_engines.CROWDS["gpt-oss-20b-mxfp4"]
    for words, names in {
        "": [crowd.name for crowd in crowds],
        "lone": ["128 lone, 100 to 1 000"],
        "lone,16 behind": ["16 behind 1 k", "16 behind 16 k", "128 lone, 100 to 1 000"],
    }.items():
        assert [crowd.name for crowd in whole_engines.chosen(crowds, words)] == names
    with pytest.raises(InvalidRequest, match=r"a name with 'alone' in it.*128 lone"):
        whole_engines.chosen(crowds, "alone")


def test_workers_begin_with_tokens_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all would choose the same experts."""
    usual, begun = whole_engines.writing, []

    def noted(views: Any, feeds: Any, num_tokens: int) -> Any:
        begun.extend(feeds)
        return usual(views, feeds, num_tokens)

    monkeypatch.setattr(whole_engines, "writing", noted)
    a_team(small_engine())
    assert begun == [(0,), (1,)]


def test_weights_are_filled_as_this_engine_fills_them() -> None:
    network = torch.nn.ModuleDict(
        {
            "embed_tokens": torch.nn.Embedding(64, 64),
            "norm": torch.nn.LayerNorm(64),
            "layer": torch.nn.Linear(64, 64),
        }
    )
    runner = SimpleNamespace(get_model=lambda: network)
    vllm_process.fill(SimpleNamespace(model_runner=runner, rank=0), 0.02, 1.0)
    found = {name: (float(w.mean()), float(w.std())) for name, w in network.state_dict().items()}
    assert found["embed_tokens.weight"][1] == pytest.approx(1.0, rel=0.1)
    assert found["layer.weight"][1] == pytest.approx(0.02, rel=0.1)
    first = float(network.state_dict()["layer.weight"][0, 0])
    assert found["norm.weight"] == (1.0, 0.0)
    assert found["layer.bias"] == found["norm.bias"] == (0.0, 0.0)
    vllm_process.fill(SimpleNamespace(model_runner=runner, rank=1), 0.02, 1.0)
    # As each rank of this engine has its own.
    assert float(network.state_dict()["layer.weight"][0, 0]) != first


def test_experts_in_mxfp4_are_filled_with_bits_of_the_same_spread() -> None:
    """Where the kernels read them; what vLLM keeps of the checkpoint's bytes is left."""

    def store(*size: int) -> SimpleNamespace:
        return SimpleNamespace(storage=SimpleNamespace(data=torch.zeros(size, dtype=torch.uint8)))

    network: Any = torch.nn.Module()
    network.w13_weight, network.w2_weight = store(2, 32, 64, 16), store(2, 32, 64, 16)
    scales = {name: store(2, 32, 64) for name in ("w13", "w2")}
    network.quant_method = SimpleNamespace(
        **{
            f"{name}_precision_config": SimpleNamespace(weight_scale=each)
            for name, each in scales.items()
        }
    )
    kept = torch.nn.Parameter(torch.full((4,), 7, dtype=torch.uint8), requires_grad=False)
    network.register_parameter("w13_weight_scale", kept)
    runner = SimpleNamespace(get_model=lambda: network)
    vllm_process.fill(SimpleNamespace(model_runner=runner, rank=0), STD, 1.0)
    assert kept.tolist() == [7] * 4
    for name in ("w13", "w2"):
        bits = getattr(network, f"{name}_weight").storage.data
        of_it = scales[name].storage.data
        weight = convert_moe_packed_tensors(bits, of_it, dtype=torch.float32)
        assert float(weight.std()) == pytest.approx(STD, rel=0.25)
        assert float(weight.mean()) == pytest.approx(0.0, abs=0.1 * STD)
    ours = Mxfp4Stack.empty(
        SimpleNamespace(num_experts=2, hidden_size=64, intermediate_size=32, alpha=1.7, limit=7.0),
        torch.device("cpu"),
        torch.bfloat16,
    )
    ours.fill(STD)
    own = ours.dequantised("gate_up_proj", 0, torch.float32)
    assert float(own.std()) == pytest.approx(float(weight.std()), rel=0.1)


def test_an_h100_is_lent_what_vllm_has_for_an_h200_alone(tmp_path: Path) -> None:
    theirs, lent = tmp_path / "theirs", tmp_path / "lent"
    theirs.mkdir()
    for name in ("E=8,N=1,device_name=NVIDIA_H200", "E=8,N=2,device_name=NVIDIA_H200"):
        (theirs / f"{name}.json").write_text("{}")
    (theirs / "E=8,N=2,device_name=NVIDIA_H100_80GB_HBM3.json").write_text("{}")
    (theirs / "E=8,N=1,device_name=NVIDIA_H200,dtype=fp8_w8a8.json").write_text("{}")
    assert whole_engines.lend_tuned(theirs, lent, "NVIDIA H200") == []
    (name,) = whole_engines.lend_tuned(theirs, lent, "NVIDIA H100 80GB HBM3")
    assert name == "E=8,N=1,device_name=NVIDIA_H100_80GB_HBM3.json"
    assert [file.name for file in lent.iterdir()] == [name]


# -- what travels ----------------------------------------------------------------------------------


def a_library(*kernels: tuple[int, int, bytes]) -> bytes:
    """Words, and a fat binary of these (kind, architecture, code) behind them."""
    entries = b"".join(
        struct.pack("<HHIQ12xI32x", kind, 0x101, 64, len(code), arch) + code
        for kind, arch, code in kernels
    )
    return b"words" + struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries + b"more"


def test_kernels_of_other_gpus_become_zeros() -> None:
    library = a_library((2, 80, b"old" * 8), (1, 90, b"ptx" * 8), (2, 90, b"new" * 8))
    both = library + library
    assert [(k.kind, k.arch, k.code) for k in kernels_of(both)][2] == (2, 90, b"new" * 8)
    assert len(list(kernels_of(both))) == 6
    left = pruned(both, outsiders.is_called)
    assert len(left) == len(both)
    assert [k.code.strip(b"\0") for k in kernels_of(left)] == [b"", b"", b"new" * 8] * 2
    assert left.count(b"words") == left.count(b"more") == 2


@pytest.mark.parametrize(
    ("name", "is_called"),
    [
        (b"_INTERNAL_34_flash_fwd_hdim128_bf16_paged_sm90_cu_e9", True),
        (b"_INTERNAL_34_flash_fwd_hdim128_fp16_paged_sm90_cu_e9", False),
        (b"_INTERNAL_34_flash_fwd_hdim64_bf16_paged_sm90_cu_e9", True),
        (b"_INTERNAL_34_flash_fwd_hdim64_256_bf16_sm90_cu_e9", False),
        (b"_INTERNAL_34_flash_prepare_scheduler_cu_26", True),
        (b"EEEEEELi96ENS_10bfloat16_tEfNS_4arch4Sm90", False),
        (b"EEEEEELi128ENS_6half_tEfNS_4arch4Sm90", False),
        (b"EEEEEELi128ENS_10bfloat16_tEfNS_4arch4Sm90", True),
    ],
)
def test_of_flash_attention_the_measured_shapes_are_kept(name: bytes, is_called: bool) -> None:
    assert outsiders.is_called(Kernels(2, 90, 0, name)) is is_called


def test_names_of_packages_that_are_not_there_are_empty_classes(tmp_path: Path) -> None:
    place = Path(vllm_process.__file__).with_name("stand_ins.py").read_text()
    (tmp_path / "sitecustomize.py").write_text(f"{place}\nstand_in(('notthere', 'json'))\n")
    program = (
        "from notthere.deep.down import Thing as a; from notthere.deep.down import Thing as b; import json;"
        "assert a is b and a.__name__ == 'Thing'; json.dumps(1); import notthere; print(hasattr(notthere, '__all__'))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    told = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert told.stdout == "False\n"
