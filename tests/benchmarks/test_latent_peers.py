"""FlashMLA and FlashAttention 3 on latents: each way to ask them is the op, by arguments in the order that theirs have.

Neither is here. In their place stand plain attention under the names and schemas of their libraries, with the sizes that
these insist on, and with answers in the form in which they give theirs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton comes for Linux only")

from benchmarks import latent_peers, latents, layer_tables, situations
from benchmarks.gate import check_op
from benchmarks.latent_peers import NAMES, flashmla, in_pieces, ways
from benchmarks.latents import Heads, lay_out
from benchmarks.outside_peers import (
    FA3,
    FLASHMLA,
    Outsiders,
    fa3,
    fa3_dense,
    merging,
    strips,
    whole,
)
from benchmarks.shapes import EXPANDED, LATENT
from manyhands.cache.view import View

CPU = torch.device("cpu")
HEADS = Heads(2, 512, 64, 128, 128)
# As the libraries of vLLM 0.20.2 have them.
FLASHMLA_DECODE = (
    "dense_decode_fwd(Tensor q, Tensor kcache, int head_size_v, Tensor seqlens_k, Tensor block_table, "
    "float softmax_scale, bool is_causal, Tensor? tile_scheduler_metadata, Tensor? num_splits, Tensor? out"
    ") -> (Tensor, Tensor, Tensor?, Tensor?)"
)
FA3_SCHEDULE = (
    "get_scheduler_metadata(int batch_size, int max_seqlen_q, int max_seqlen_k, int num_heads, int num_heads_k, "
    "int headdim, int headdim_v, ScalarType qkv_dtype, Tensor seqused_k, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
    "Tensor? cu_seqlens_k_new, Tensor? seqused_q, Tensor? leftpad_k, int? page_size, int max_seqlen_k_new, "
    "bool is_causal, int window_size_left, int window_size_right, bool has_softcap, int num_splits, bool? pack_gqa, "
    "int sm_margin) -> Tensor"
)
FA3_FORWARD = (
    "fwd(Tensor q, Tensor k, Tensor v, Tensor? k_new, Tensor? v_new, Tensor? q_v, Tensor? out, Tensor? cu_seqlens_q, "
    "Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new, Tensor? seqused_q, Tensor? seqused_k, int? max_seqlen_q, "
    "int? max_seqlen_k, Tensor? page_table, Tensor? kv_batch_idx, Tensor? leftpad_k, Tensor? rotary_cos, "
    "Tensor? rotary_sin, Tensor? seqlens_rotary, Tensor? q_descale, Tensor? k_descale, Tensor? v_descale, "
    "float softmax_scale, bool is_causal, int window_size_left, int window_size_right, float softcap, "
    "bool is_rotary_interleaved, Tensor? scheduler_metadata, int num_splits, bool? pack_gqa, int sm_margin, "
    "Tensor? s_aux, int cp_world_size, int cp_rank, Tensor? cp_tot_seqused_k) -> Tensor[]"
)


def attended(
    q: Tensor, keys: Tensor, values: Tensor, scale: float, *, is_causal: bool
) -> tuple[Tensor, Tensor]:
    """One sequence, q [S, H, D] over keys [N, G, D]: [S, H, Dv], and log-sum-exps [S, H]."""
    each = q.shape[1] // keys.shape[1]
    keys, values = (x.repeat_interleave(each, dim=1) for x in (keys, values))
    scores = torch.einsum("shd,nhd->shn", q, keys) * scale
    if is_causal:
        behind = len(keys) - len(q)
        hidden = torch.ones(len(q), len(keys), dtype=torch.bool).triu(behind + 1)
        scores = scores.masked_fill(hidden[:, None], -torch.inf)
    return torch.einsum("shn,nhd->shd", scores.softmax(-1), values), scores.logsumexp(-1)


def decode(
    q: Tensor,
    cache: Tensor,
    value_dim: int,
    lengths: Tensor,
    table: Tensor,
    scale: float,
    is_causal: bool,
    schedule: Tensor | None,
    splits: Tensor | None,
    out: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """FlashMLA's: q [B, S, H, 576], latents in front; log-sum-exps come as [B, H, S]."""
    assert out is None
    assert (q.shape[3], value_dim) == (576, 512)
    assert cache.shape[1:] == (64, 1, 576), "pages of 64 and one key head"
    assert {lengths.dtype, table.dtype} == {torch.int32}
    assert lengths.shape == (len(q),)
    assert table.shape[0] == len(q)
    assert (schedule is None) == (splits is None)
    told = (schedule, splits)
    if schedule is None:
        told = (lengths.clone(), torch.zeros(len(q) + 1, dtype=torch.int32))
    else:
        assert torch.equal(schedule, lengths), "a schedule is of these lengths"
    found = []
    for each, length, pages in zip(q, lengths, table, strict=True):
        keys = cache[pages].flatten(0, 1)[: int(length)]
        found.append(attended(each, keys, keys[..., :512], scale, is_causal=is_causal))
    outs, lses = zip(*found, strict=True)
    return torch.stack(outs), torch.stack(lses).transpose(1, 2).contiguous(), *told


def schedule(*given: Any) -> Tensor:
    """FlashAttention 3's, of which the fake remembers what it was made for."""
    batch, most_q, most_k, heads, key_heads, dims, value_dims = given[:7]
    lengths, page, is_causal, splits = given[8], given[14], given[16], given[20]
    assert (len(lengths), int(lengths.max())) == (batch, most_k)
    return torch.tensor(
        [most_q, heads, key_heads, dims, value_dims, page, is_causal, splits], dtype=torch.int32
    )


def forward(*given: Any) -> list[Tensor]:
    """FlashAttention 3's: log-sum-exps come as [H, E]."""
    q, k, v, q_v, ends, lengths, most_q = (given[n] for n in (0, 1, 2, 5, 7, 11, 12))
    assert ends is not None, "this build knows no other form"
    table, scale, is_causal, made, splits = (given[n] for n in (14, 23, 24, 29, 30))
    if table is None:
        assert (given[8].tolist(), ends.tolist()) == ([0, len(k)], [0, len(q)])
        assert all(given[n] is None for n in (3, 4, 6, 9, 10, 11, 15, 29, 33))
        assert (most_q, given[13]) == (len(q), len(k))
        if q_v is not None:
            q, k = torch.cat((q, q_v), -1), torch.cat((k, v), -1)
        out, lse = attended(q, k, v, scale, is_causal=is_causal)
        return [out, lse.T.contiguous()]
    asked = [most_q, q.shape[1], k.shape[2], q.shape[2], v.shape[3], k.shape[1], is_causal, splits]
    assert made.tolist() == [int(each) for each in asked], "a schedule is of this call"
    assert all(given[n] is None for n in (3, 4, 6, 8, 9, 10, 15, 16, 17, 18, 19, 20, 21, 22, 33))
    if q_v is not None:
        assert (q.shape[2], q_v.shape[2], v.shape[3]) == (64, 512, 512)
        q, k = torch.cat((q, q_v), -1), torch.cat((k, v), -1)
    outs, lses = [], []
    for b, pages in enumerate(table):
        own = slice(int(ends[b]), int(ends[b + 1]))
        keys, values = (x[pages].flatten(0, 1)[: int(lengths[b])] for x in (k, v))
        out, lse = attended(q[own], keys, values, scale, is_causal=is_causal)
        outs.append(out)
        lses.append(lse)
    return [torch.cat(outs), torch.cat(lses).T.contiguous()]


@pytest.fixture(scope="module", autouse=True)
def libraries() -> Iterator[None]:
    """The ops of both, for a CPU."""
    made = [torch.library.Library(name, "DEF") for name in ("_flashmla_C", "_vllm_fa3_C")]
    made[0].define(FLASHMLA_DECODE)
    made[0].impl("dense_decode_fwd", decode, "CompositeExplicitAutograd")
    for each, does in ((FA3_SCHEDULE, schedule), (FA3_FORWARD, forward)):
        made[1].define(each)
        made[1].impl(each.partition("(")[0], does, "CompositeExplicitAutograd")
    yield
    for library in made:
        library._destroy()


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Outsiders:
    """Both peers as though they had been loaded, asked for fewer queries at once."""
    monkeypatch.setattr(latent_peers, "_AT_ONCE", (8, 16))
    there = Outsiders(None, CPU, NAMES)
    there.missing = {}
    return there


def a_layer(views: list[View], new: int = 1, form: str = LATENT) -> latents.Layer:
    torch.manual_seed(0)
    return lay_out(views, HEADS.shape(form), HEADS.rotary, (CPU, torch.float32), new)


CASES = {
    "one worker": (situations.team(1, 100, 6), 1),
    "a team": (situations.team(3, 100, 6), 1),
    "a prompt": (situations.prefill(0), 32),
    "a prompt behind a history": (situations.prefill(90), 32),
}
WAYS = {
    "one worker": {"whole", "strips"},
    "a team": {"whole", "strips"},
    "a prompt": {"whole", "whole, 8 at once", "whole, 16 at once"},
    "a prompt behind a history": {"whole", "whole, 8 at once", "whole, 16 at once"},
}


def is_right(layer: situations.Situation, out: Tensor) -> bool:
    every = list(range(layer.plan.num_rows))
    return check_op(out, layer.store, layer.q, layer.plan, layer.call, every).error < 1e-5


@pytest.mark.parametrize("case", CASES)
def test_every_way_is_the_op(case: str, both: Outsiders) -> None:
    layer = a_layer(*CASES[case])
    asked = list(ways(both, layer, LATENT))
    for each in asked:
        assert is_right(layer, each.prepare()()), each
    assert {each.way for each in asked if each.peer == FLASHMLA} == WAYS[case]
    of_fa3 = [each.way for each in asked if each.peer == FA3]
    assert len(of_fa3) == (3 if layer.plan.num_rows < layer.plan.num_tokens else 8)


def test_prompts_in_the_expanded_form_too(both: Outsiders) -> None:
    layer = a_layer(*CASES["a prompt behind a history"], EXPANDED)
    asked = list(ways(both, layer, EXPANDED))
    assert {each.peer for each in asked} == {FA3}
    assert all(is_right(layer, each.prepare()()) for each in asked)
    assert not list(ways(both, a_layer(*CASES["a team"], EXPANDED), EXPANDED))


@pytest.mark.parametrize("history", [0, 64, 90])
def test_keys_and_values_apart_have_the_same_code(history: int) -> None:
    """As `benchmarks/attention.py` asks for them, with two key heads."""
    views = situations.prefill(history)
    prompt = situations.lay_out(views, (4, 2), 16, CPU, torch.float32, num_new=32)
    for way in (fa3(whole(prompt), 0), fa3_dense(whole(prompt))):
        assert is_right(prompt, way.call()[0])
    team = situations.lay_out(situations.team(3, 100, 6), (4, 2), 16, CPU, torch.float32)
    asked = strips(team)
    assert asked is not None
    assert asked.token is not None
    assert is_right(team, merging(fa3(asked, 1), asked, asked.token, 3)())


def test_a_team_reads_its_history_once_by_strips_and_from_the_same_pages_as_a_whole() -> None:
    layer = a_layer(*CASES["a team"])
    apart, alone = strips(layer), whole(layer)
    assert apart is not None
    assert sorted(map(int, apart.lengths)) == [6, 6, 6, 100]
    assert apart.keys.data_ptr() == layer.store.keys.data_ptr()
    assert alone.lengths.tolist() == [118, 118, 118]
    assert [int(pages[0]) for pages in alone.pages] == [0, 0, 0], "one page is full"
    assert len({int(page) for pages in alone.pages for page in pages[1:]}) == 3


def test_keys_in_the_order_of_our_stores_are_not_what_flashmla_wants(
    both: Outsiders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr(latent_peers, "_latent_first", lambda x, rotary: x)
    layer = a_layer(*CASES["a team"])
    asked = [each for each in ways(both, layer, LATENT) if each.peer == FLASHMLA]
    assert not any(is_right(layer, each.prepare()()) for each in asked)


def test_flashmla_is_not_asked_for_sequences_of_unequal_queries() -> None:
    asked = strips(a_layer(*CASES["a team"]))
    assert asked is not None
    object.__setattr__(asked, "indptr", np.array([0, 1, 6, 9, 12]))
    with pytest.raises(RuntimeError, match="equally many queries"):
        flashmla(asked)


def test_pieces_end_where_their_last_query_stands() -> None:
    asked = in_pieces(whole(a_layer(*CASES["a prompt behind a history"])), 16)
    assert asked.indptr.tolist() == [0, 16, 32]
    assert asked.lengths.tolist() == [106, 122]


def test_peers_stand_beside_ours_in_one_file(
    tmp_path: Path, both: Outsiders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiny shape is none of FlashMLA's: it is left out by name, and the benchmark goes on."""
    monkeypatch.setattr(latents, "Outsiders", lambda *given: both)
    monkeypatch.setitem(latents.SHAPES, "tiny", Heads(2, 512, 64, 16, 16))
    latents.main(["--tiny", "--device", "cpu", "--out", str(tmp_path), "--commit", "abc"])
    found = json.loads((tmp_path / "latents.json").read_text())
    assert "red" not in found
    assert "left_out" not in found
    told = {(line["case"], line["form"], line["peer"]) for line in found["peers"]}
    assert told == {
        ("team 40 2", LATENT, FLASHMLA),
        ("team 40 2", LATENT, FA3),
        ("prefill 0 40", LATENT, FLASHMLA),
        ("prefill 0 40", LATENT, FA3),
        ("prefill 0 40", EXPANDED, FA3),
    }
    assert all(line["gate"]["error"] <= line["gate"]["tolerance"] for line in found["peers"])
    monkeypatch.setattr(layer_tables, "result", lambda name: found)
    rows = layer_tables.latents_peers().splitlines()[2:]
    assert len(rows) == 2


def test_a_wrong_answer_has_no_time(
    tmp_path: Path, both: Outsiders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latents, "Outsiders", lambda *given: both)
    monkeypatch.setattr(latent_peers, "_latent_first", lambda x, rotary: x)
    monkeypatch.setitem(latents.SHAPES, "tiny", Heads(2, 512, 64, 16, 16))
    latents.main(["--tiny", "--device", "cpu", "--out", str(tmp_path), "--commit", "abc"])
    found = json.loads((tmp_path / "latents.json").read_text())
    assert {line["peer"] for line in found["peers"]} == {FA3}
    whys = {line["what"].split(" (")[0]: line["why"] for line in found["left_out"]}
    assert whys == {FLASHMLA: "its answer is wrong"}
