"""Peers from outside: what they are asked is the op's work, and what must travel to them comes out as it went in.

Neither peer is here. In their place stands plain attention per sequence, in the form in which both give theirs.
"""

from __future__ import annotations

import math
import subprocess
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton comes for Linux only")

from benchmarks import outsiders, situations
from benchmarks.fat_binaries import Kernels
from benchmarks.gate import check_op
from benchmarks.outside_peers import (
    FA3,
    FLASHINFER,
    FLASHMLA,
    Outsiders,
    Sequences,
    Way,
    fastest,
    merging,
    plain,
    strips,
    unturned,
)
from benchmarks.situations import Situation

CPU = torch.device("cpu")


def a_situation(rows: int = 3) -> Situation:
    views = situations.team(rows, 96, 5)
    return situations.lay_out(views, (4, 2), 16, CPU, torch.float32)


def by_sequence(asked: Sequences) -> tuple[Tensor, Tensor]:
    """Attention of every sequence: [E, H, D], and log-sum-exps [E, H]."""
    num_heads, num_kv_heads = asked.heads
    out, lses = torch.empty_like(asked.q), torch.empty(len(asked.q), num_heads)
    for b, pages in enumerate(asked.pages):
        own = slice(int(asked.indptr[b]), int(asked.indptr[b + 1]))
        there = torch.as_tensor(np.asarray(pages))
        keys, values = (
            x[there].flatten(0, 1)[: int(asked.lengths[b])] for x in (asked.keys, asked.values)
        )
        q = asked.q[own].unflatten(1, (num_kv_heads, num_heads // num_kv_heads))
        scores = torch.einsum("tgrd,ngd->tgrn", q, keys) / math.sqrt(q.shape[3])
        out[own] = torch.einsum("tgrn,ngd->tgrd", scores.softmax(-1), values).flatten(1, 2)
        lses[own] = scores.logsumexp(-1).flatten(1, 2)
    return out, lses


@pytest.mark.parametrize("rows", [1, 3])
def test_strips_merged_are_the_op(rows: int) -> None:
    """The control: log-sum-exps that are taken for those of another base."""
    situation = a_situation(rows)
    asked = strips(situation)
    assert asked is not None
    token = asked.token
    assert token is not None
    assert len(asked.pages) == rows + 1, "the common block, and each desk"

    def error(to_log_2: float) -> float:
        way = Way(partial(by_sequence, asked), to_log_2)
        out = merging(way, asked, token, len(situation.q))()
        every = list(range(situation.plan.num_rows))
        parts = situation.store, situation.q, situation.plan, situation.call
        return check_op(out, *parts, every).error

    assert error(1 / math.log(2)) < 1e-5
    assert error(1.0) > 1e-2


def test_one_sequence_of_all_rows() -> None:
    views = situations.team(2, 128, 64)
    asked = unturned(situations.lay_out(views, (4, 2), 16, CPU, torch.float32))
    assert asked is not None, "all strips end with a page"
    assert torch.allclose(plain(asked).float(), by_sequence(asked)[0], atol=1e-5)
    assert unturned(a_situation()) is None, "a desk ends within a page"


def test_a_peer_that_is_not_there_is_left_out_with_the_reason(tmp_path: Path) -> None:
    assert Outsiders(None, CPU).missing == dict.fromkeys(
        (FA3, FLASHINFER), "no folder with it (--outsiders)"
    )
    assert set(Outsiders(tmp_path, CPU).missing) == {FA3, FLASHINFER}
    assert set(Outsiders(tmp_path, CPU, [FLASHMLA]).missing) == {FLASHMLA}
    assert not Outsiders(tmp_path, CPU).peers(a_situation(), "teams")


def test_libraries_are_taken_out_of_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(command: list[str], *, check: bool) -> None:
        wheels = Path(command[command.index("-d") + 1])
        assert outsiders.VLLM in command
        with zipfile.ZipFile(wheels / "vllm-0-none-any.whl", "w") as wheel:
            wheel.writestr("vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so", "attention")
            wheel.writestr("vllm/_flashmla_C.abi3.so", "latents")
            wheel.writestr("vllm/_C.abi3.so", "not called")

    monkeypatch.setattr(subprocess, "run", download)
    outsiders.main(["fetch", str(tmp_path)])
    found = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {outsiders.FA3_LIBRARY, outsiders.FLASHMLA_LIBRARY}
    assert (tmp_path / outsiders.FLASHMLA_LIBRARY).read_text() == "latents"


@pytest.mark.parametrize(
    ("name", "is_asked"),
    [
        (b"_INTERNAL_34_flash_fwd_hdim128_bf16_paged_sm90_cu_e9", True),
        (b"_INTERNAL_34_flash_fwd_hdim128_bf16_paged_softcap_sm90_cu_e9", False),
        (b"_INTERNAL_34_flash_fwd_hdim128_fp16_paged_sm90_cu_e9", False),
        (b"_INTERNAL_34_flash_fwd_hdim192_128_bf16_sm90_cu_e9", True),
        (b"_INTERNAL_34_flash_fwd_hdim192_bf16_split_sm90_cu_e9", False),
        (b"_INTERNAL_34_flash_fwd_hdim64_512_bf16_split_sm90_cu_e9", True),
        (b"_INTERNAL_34_flash_fwd_hdim64_256_bf16_sm90_cu_e9", False),
        (b"_INTERNAL_34_flash_prepare_scheduler_cu_26", True),
    ],
)
def test_kernels_that_the_op_may_ask_for_are_kept(name: bytes, is_asked: bool) -> None:
    assert outsiders.is_asked(Kernels(2, 90, 0, name)) is is_asked
    assert not outsiders.is_asked(Kernels(2, 100, 0, name))
    assert not outsiders.is_asked(Kernels(1, 90, 0, name))


def test_archives_hold_what_was_packed(tmp_path: Path) -> None:
    source, archives, there = (tmp_path / name for name in ("source", "archives", "there"))
    libraries = outsiders.FA3_LIBRARY, outsiders.FLASHMLA_LIBRARY
    package = source / outsiders.FLASHINFER_PACKAGES / "flashinfer"
    (package / "__pycache__").mkdir(parents=True)
    for library in libraries:
        (source / library).parent.mkdir(parents=True)
        (source / library).write_bytes(b"\0" * 4096 + library.name.encode())
    (package / "__init__.py").write_text("HERE = True\n")
    (package / "__pycache__" / "old.pyc").write_bytes(b"old")
    outsiders.main(["pack", str(source), str(archives)])
    outsiders.main(["unpack", str(archives), str(there)])
    found = {str(path.relative_to(there)) for path in there.rglob("*") if path.is_file()}
    assert found == {
        *map(str, libraries),
        str(outsiders.FLASHINFER_PACKAGES / "flashinfer" / "__init__.py"),
    }
    for library in libraries:
        assert (there / library).read_bytes() == (source / library).read_bytes()
    with pytest.raises(SystemExit, match="has no archive"):
        outsiders.main(["unpack", str(tmp_path / "none"), str(there)])


def test_a_way_that_does_not_run_is_told() -> None:
    """Swallowed, a peer would be slower than it is, and nothing would say so."""

    def refused() -> tuple[Tensor, Tensor]:
        raise RuntimeError("this build only supports varlen")

    asked = strips(a_situation())
    assert asked is not None
    runs = Way(partial(by_sequence, asked))
    with pytest.warns(UserWarning, match="only supports varlen"):
        assert fastest([lambda: Way(refused), lambda: runs], CPU) is runs
    with pytest.warns(UserWarning, match="varlen"), pytest.raises(RuntimeError, match="no way"):
        fastest([lambda: Way(refused)], CPU)
