"""The pieces of the benchmark: situations, gates, the account of kernels, shapes and targets."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig

from benchmarks import gate, life, op_peers, performance, situations, targets
from benchmarks.breakdown import Kernel, account, charged, kind_of
from benchmarks.results import Clock, Results, parser
from benchmarks.shapes import SHAPES, TINY
from benchmarks.situations import TREES, Situation
from benchmarks.timing import linears_ms, matmul_rate, milliseconds
from manyhands.attention import kernels as of_attention
from manyhands.attention.torch_backend import TorchBackend
from manyhands.cache.plan import Plan, of_rows
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.evaluation.life import live
from tests.replay.runs import list_network, list_text

CPU = torch.device("cpu")
# Kernels of attention that a pass launches, by their files: those that move keys or learn run beside passes, tables once in one.
_BESIDE = ("move_kernel", "forward_kernel", "of_queries_kernel", "of_keys_kernel", "tables_kernel")
IN_A_PASS = [
    name
    for file in sorted(Path(of_attention.__path__[0]).glob("*.py"))
    for name in re.findall(r"^def (\w+_kernel)\(", file.read_text(), re.MULTILINE)
    if name not in _BESIDE
]


def laid_out(views: list[View], num_new: int = 1) -> Situation:
    return situations.lay_out(views, (4, 2), 16, CPU, torch.float32, num_new)


def check(situation: Situation, out: torch.Tensor) -> gate.Checked:
    place = (situation.store, situation.q, situation.plan, situation.call)
    rows = list(range(situation.plan.num_rows))
    return gate.check_op(out, *place, rows)


# -- situations ------------------------------------------------------------------------------------


def test_a_tree_has_its_nodes_and_tokens() -> None:
    views = situations.tree("1,2,8_64,16,4")
    assert len(views) == 8
    assert [[b.num_tokens for b in view.blocks] for view in views] == [[64, 16, 3]] * 8
    assert len({view.blocks[0] for view in views}) == 1
    assert [views.index(v) for v in views if v.blocks[1] is views[0].blocks[1]] == [0, 1, 2, 3]
    forest = situations.tree("2,4_8,2")
    assert forest[0].blocks[0] is forest[1].blocks[0]
    assert forest[0].blocks[0] is not forest[2].blocks[0]


def test_ragged_nodes_differ_and_repeat() -> None:
    sizes = [view.blocks[1].num_tokens for view in situations.tree("1,16_8,~40")]
    assert min(sizes) >= 19
    assert max(sizes) <= 60
    assert len(set(sizes)) > 4
    assert sizes == [view.blocks[1].num_tokens for view in situations.tree("1,16_8,~40")]


def test_the_listed_trees_can_be_built() -> None:
    assert len(set(TREES)) == 20
    for shape in TREES:
        counts, sizes = (part.split(",") for part in shape.split("_"))
        assert len(counts) == len(sizes)
        rows = situations.tree(situations.shrunk(shape, 64))
        assert len(rows) == max(1, int(counts[-1]) // 64)


def test_bytes_and_operations_are_counted() -> None:
    situation = laid_out(situations.completions(batch=3, prefix=20, suffix=5))
    assert situation.plan.num_keys_loaded == 20 + 3 * 5
    assert situation.plan.num_keys_read == 3 * 25
    assert situation.num_bytes == 35 * 2 * 2 * 16 * 4 + 2 * 3 * 4 * 16 * 4
    assert situation.num_operations == 4 * 4 * 16 * 75
    behind = laid_out(situations.prefill(history=20), num_new=5)
    assert behind.num_operations == 4 * 4 * 16 * (21 + 22 + 23 + 24 + 25)


# -- gate ------------------------------------------------------------------------------------------


def test_the_gate_is_green_for_what_is_right_and_red_for_what_is_nearly_right() -> None:
    situation = laid_out(situations.team(workers=3, common=37, desk=9))
    assert check(situation, op_peers.ours(situation, TorchBackend())()).is_green
    reads = situation.plan.reads
    wrong: list[Plan] = [
        dataclasses.replace(situation.plan, reads=dataclasses.replace(reads, **change))
        for change in ({"base": reads.base + (reads.row == 2)}, {"high": reads.high - 1})
    ]
    for plan in wrong:
        out = op_peers.ours(dataclasses.replace(situation, plan=plan), TorchBackend())()
        assert not check(situation, out).is_green
    assert not check(situation, torch.full_like(situation.q, float("nan"))).is_green


def test_some_rows_stand_for_all() -> None:
    situation = laid_out(situations.team(workers=4, common=20, desk=5))
    part, tokens = of_rows(situation.plan, [0, 3])
    assert list(tokens) == [0, 3]
    assert part.num_rows == 2
    assert set(part.reads.row) == {0, 1}
    for n, row in ((0, 0), (1, 3)):
        mine = np.sort(part.reads.high[part.reads.row == n])
        assert (mine == np.sort(situation.plan.reads.high[situation.plan.reads.row == row])).all()


# -- peers of the op -------------------------------------------------------------------------------


def test_peers_agree_on_ragged_trees_and_say_what_they_cannot() -> None:
    tree = laid_out(situations.tree("2,4,8_~30,~12,~6"))
    for work in (
        op_peers.sdpa_by_hand(tree),
        op_peers.paged(tree, TorchBackend()),
        op_peers.flex(tree, compiled=False),
    ):
        assert work is not None
        assert check(tree, work()).is_green
    assert op_peers.sdpa_unshared(tree) is None  # rows of different lengths are no dense batch
    team = laid_out(situations.team(workers=3, common=20, desk=5))
    assert op_peers.flex(team, compiled=False) is None  # one block at several positions


@pytest.mark.parametrize("history", [0, 37])
def test_some_tokens_of_a_long_row_stand_for_all(history: int) -> None:
    situation = laid_out(situations.prefill(history), num_new=150)
    _, tokens = of_rows(situation.plan, [0], gate.MOST_TOKENS)
    assert (tokens[0], len(tokens), tokens[-1]) == (0, 64, 149)
    peer = op_peers.sdpa_flash(situation)
    assert peer is not None
    for right in (peer(), op_peers.ours(situation, TorchBackend())()):
        assert check(situation, right).is_green
    reads = dataclasses.replace(situation.plan.reads, high=situation.plan.reads.high - 1)
    plan = dataclasses.replace(situation.plan, reads=reads)
    wrong = op_peers.ours(dataclasses.replace(situation, plan=plan), TorchBackend())()
    assert not check(situation, wrong).is_green


def test_nothing_is_grouped_in_an_unshared_plan() -> None:
    plan = laid_out(situations.team(workers=3, common=20, desk=5)).plan
    apart = op_peers.unshared(plan)
    assert apart.num_keys_loaded == plan.num_keys_read == apart.num_keys_read
    assert list(apart.reads.row) == sorted(plan.reads.row)
    assert apart.own_strip is not None
    for row, strip in enumerate(apart.own_strip):  # each row still writes where it did
        page, within = divmod(int(plan.slots[row]), plan.page_size)
        assert apart.reads.row[strip] == row
        assert apart.reads.pages[strip][plan.offsets[row] // plan.page_size] == page
        assert within == plan.offsets[row] % plan.page_size


# -- time ------------------------------------------------------------------------------------------


def test_stopwatches_run_on_a_cpu() -> None:
    assert milliseconds(lambda: torch.zeros(1000), CPU) > 0
    assert matmul_rate(CPU, torch.float32) > 1e6
    times = linears_ms(TINY.products(), [1, 4], CPU, torch.float32)
    assert set(times) == {1, 4}


def test_kernels_that_overlap_are_counted_once_for_the_device() -> None:
    kernels = [
        Kernel("attend_kernel", 0, 1000),
        Kernel("attend_kernel", 500, 1500),
        Kernel("nvjet_tst_64x8", 2000, 4000),
        Kernel("fused_norm", 2500, 3000),
    ]
    assert [microseconds for _, microseconds in charged(kernels)] == [1000, 500, 2000, 0]
    parts = account(kernels, ms=4.0, passes=1)
    assert parts["ms_idle"] == 0.5
    assert (parts["ms_attention"], parts["ms_linears"], parts["ms_rest"]) == (1.5, 2.0, 0.0)
    assert {kind_of(name) for name in IN_A_PASS} == {"attention"}
    products = ["_skinny", "_ring", "_gate_up", "_w4a16_product"]
    assert {kind_of(name) for name in products} == {"linears"}
    assert kind_of("_meet") == kind_of("ncclDevKernel_AllReduce_Sum_bf16_RING_LL") == "collectives"
    assert kind_of("void cutlass::Kernel2<cutlass_80_wmma>") == "linears"


# -- shapes and targets ----------------------------------------------------------------------------


def test_shapes_come_to_the_known_sizes(tmp_path: Path) -> None:
    millions = {"qwen3-8b": 8191, "qwq-32b": 32764, "codellama-7b": 6738, "codellama-13b": 13016}
    millions |= {"codellama-34b": 33744, "qwen3-30b-a3b": 30532, "gpt-oss-20b": 20915}
    millions |= {"glm-4.5-air-12": 27241, "gpt-oss-120b": 116829, "qwen3-32b": 32762}
    millions |= {"qwen3.5-9b": 8954, "qwen3.5-27b": 26896, "qwen3-next-80b-12": 20385}
    kv = {"qwen3-8b": 147456, "qwq-32b": 262144, "codellama-7b": 524288, "codellama-13b": 819200}
    kv |= {"codellama-34b": 196608, "qwen3-30b-a3b": 98304, "gpt-oss-20b": 49152}
    kv |= {"glm-4.5-air-12": 49152, "gpt-oss-120b": 73728, "qwen3-32b": 262144}
    kv |= {"qwen3.5-9b": 32768, "qwen3.5-27b": 65536, "qwen3-next-80b-12": 6144}
    for packed, shape in SHAPES.items():
        name = packed.removesuffix("-mxfp4")
        table = shape.config["hidden_size"] * shape.config["vocab_size"]
        experts: float = shape.num_stacks * shape.num_experts * shape.expert_bytes(itemsize=1)
        experts *= 32 / 17 if shape.is_mxfp4 else 1
        total = sum(a * b for a, b in shape.products()) + table + experts
        assert round(total / 1e6) == pytest.approx(millions[name], rel=1e-3)
        assert shape.token_bytes(2) == kv[name]
        config = AutoConfig.from_pretrained(shape.write(tmp_path / packed))
        assert config.model_type == shape.config["model_type"]
        assert config.rope_parameters["rope_theta"] == 1e6


def test_a_pass_is_taken_apart_in_the_form_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [Kernel("attend_kernel", 0, 6400), Kernel("gemm", 7000, 17000)]
    line = {"workers": 4, "history": 1024, "ms": 18.0, "ms_plan": 0.05, "ms_prepare": None}
    found = {"breakdown": [{**line, **account(kernels, 18.0, passes=1)}]}
    monkeypatch.setattr(performance, "results", lambda _: iter([("qwq-32b", found)]))
    last = performance.breakdown().splitlines()[-1].strip("| ").split(" | ")
    assert last == [
        *("QwQ-32B", "1024", "4", "100.0", "6.40", "10.00", "0.00", "1.600", "0.050", "18.00"),
    ]
    row = next(x for x in targets.targets().splitlines() if "idle device" in x)
    assert row.endswith("| 1.600 | no |")


def test_targets_are_met_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = {
        "decode_qwq-32b": [
            {"history": 16384, "workers": 1, "ms": 17.0},
            {"history": 16384, "workers": 4, "ms": 18.5},
        ],
        "attention_teams": [{"name": "16384 4", "us": 23.0}],
    }

    def result(name: str) -> performance.Result | None:
        return {"cells": cells[name]} if name in cells else None

    monkeypatch.setattr(performance, "result", result)
    rows = [line.split(" | ") for line in targets.targets().splitlines()[2:]]
    ours = [(row[2], row[3].strip(" |")) for row in rows]
    assert ours[:2] == [("18.50", "no"), ("1.088", "no")]
    assert ours[2] == ("not measured yet", "")
    assert ours[3] == ("23.0", "yes")


# -- results ---------------------------------------------------------------------------------------


def test_what_fails_is_left_out_and_the_rest_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = parser("about", 1.0).parse_args(["--out", str(tmp_path), "--device", "cpu"])
    found = Results("part", arguments, Clock(1.0))
    with found.surviving("one thing"):
        raise torch.OutOfMemoryError("too large\nand more")
    found.add("cells", ms=1.0)  # type: ignore[unreachable]
    written = json.loads((tmp_path / "part.json").read_text())
    assert written["left_out"] == [{"what": "one thing", "why": "OutOfMemoryError: too large"}]
    assert written["cells"] == [{"ms": 1.0}]
    assert "too large" in capsys.readouterr().err
    with pytest.raises(KeyError), found.surviving("a bug"):
        raise KeyError("x")


# -- life ------------------------------------------------------------------------------------------


def test_hogwild_itself_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its steps end, and its second prompt is another one."""
    monkeypatch.setattr(life, "_HISTORY", 100)
    engine = Engine(list_network(), list_text().tokenizer, memory_tokens=16384)
    (whole,) = (each for each in life.SITUATIONS["qwen3-8b"] if each.name.startswith("hogwild, 4"))
    ((count, kind),) = whole.crowd
    short = dataclasses.replace(
        whole,
        crowd=((count, dataclasses.replace(kind, passes=(110, 110))),),
        num_passes=100,
        warm_up=4,
    )
    records = [live(engine, short, seed=1, words=words) for words in (0, 1)]
    fed = [[each.fed for each in record.passes] for record in records]
    for each in fed:
        assert len(each) == 100
        assert 1 < sum(tokens > kind.rows for tokens in each) < 60


def test_teams_that_are_hogwild_come_and_go() -> None:
    """Each behind a prompt of its own."""
    engine = Engine(list_network(), list_text().tokenizer, memory_tokens=16384)
    whole = life.teams_themselves(2)
    ((count, kind),) = whole.crowd
    kind = dataclasses.replace(kind, prompt=(300, 400), passes=(12, 24))
    short = dataclasses.replace(whole, crowd=((count, kind),), num_passes=60, warm_up=4)
    record = live(engine, short, seed=1)
    assert len(record.waits) > 2, "some ended, and others came"
    assert sum(each.has_prompt for each in record.passes) > 2
    assert max(each.written for each in record.passes) == 2 * kind.rows
