"""Every part of the benchmark runs, tiny, on the CPU: gates are green, and results say how they came about."""

from __future__ import annotations

import json
import pkgutil
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import benchmarks
from benchmarks import (
    attention,
    crowd_tables,
    crowds,
    decode,
    host,
    latents,
    performance,
    plots,
    prefix,
    products,
    tiles,
)
from benchmarks.results import ROOT
from manyhands.attention.store import LayerStore
from manyhands.attention.torch_backend import TorchBackend
from manyhands.engine.engine import Engine

Result = dict[str, Any]


def read(folder: Path) -> dict[str, Result]:
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the results of all parts."""
    folder = tmp_path_factory.mktemp("results")
    common = ["--tiny", "--device", "cpu", "--out", str(folder), "--commit", "abc"]
    decode.main([*common, "--models", "qwen3-8b"])
    attention.main(common)
    latents.main(common)
    latents.main([*common, "--passes"])
    latents.main([*common, "--prompts"])
    prefix.main([*common, "--models", "codellama-7b"])
    return folder


@pytest.mark.parametrize("name", [each.name for each in pkgutil.iter_modules(benchmarks.__path__)])
def test_each_can_be_imported(name: str) -> None:
    """Also one that needs several GPUs, whose imports nothing else looks at here."""
    import_module(f"benchmarks.{name}")


def test_circumstances_stand_in_every_file(measured: Path) -> None:
    files = read(measured)
    assert set(files) == {
        "decode_qwen3-8b",
        "attention_teams",
        "attention_live",
        "attention_prefixes",
        "attention_trees",
        "attention_prefills",
        "latents",
        "latents_first_tokens",
        "latents_passes",
        "prefix_codellama-7b",
    }
    for found in files.values():
        assert found["commit"] == "abc"
        assert "no GPU" in found["hardware"]
        assert found["versions"]["torch"]
        assert str(measured) not in found["command"]
        assert "red" not in found


def test_decode_has_all_its_cells_with_a_floor_and_a_green_gate(measured: Path) -> None:
    found = read(measured)["decode_qwen3-8b"]
    cells = [(line["history"], line["workers"]) for line in found["cells"]]
    assert cells == [(length, workers) for length in (32, 64) for workers in (1, 2, 4)]
    for line in found["cells"]:
        assert 0 < line["floor_ms"] < line["ms"]
        assert line["tokens_per_second"] > 0
        for gate in line["gate"].values():
            assert gate["error"] <= gate["tolerance"]
    assert all(line["ms_plan"] > 0 and line["ms_prepare"] > 0 for line in found["breakdown"])
    assert {line["peer"] for line in found["peers"]} == {"eager"}
    assert [line["green"] for line in found["against_hf"]] == [True, True]


def test_attention_has_peers_that_give_the_same_answer(measured: Path) -> None:
    files = read(measured)
    peers = {
        family: {line["peer"] for line in files[f"attention_{family}"]["peers"]}
        for family in ("teams", "prefixes", "trees", "prefills")
    }
    by_hand, paged = "SDPA, shared by hand", "paged, nothing shared"
    assert peers["teams"] == {by_hand, paged, "SDPA, nothing shared"}
    assert peers["prefixes"] == {by_hand, paged, "FlexAttention"}
    assert peers["trees"] == {by_hand, paged}
    assert peers["prefills"] == {"SDPA, flash"}  # cuDNN wants a GPU
    for found in files.values():
        assert not [x for x in found.get("left_out", []) if "wrong" in x["why"]]


def test_prefix_knows_its_ceiling_and_what_sharing_saves(measured: Path) -> None:
    found = read(measured)["prefix_codellama-7b"]
    assert [(line["batch"], line["prefix"]) for line in found["cells"]] == [
        (8, 32),
        (8, 64),
        (4, 32),
        (4, 64),
    ]
    assert [line["batch"] for line in found["ceiling"]] == [8, 4]
    assert [line["batch"] for line in found["unshared"]] == [8]


def test_tables_and_pictures_are_made_of_it(
    measured: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(performance, "RESULTS", measured)
    pages = {name: made() for name, made in performance.TABLES.items()}
    names = ("decode_ms", "start_up", "decode_peers", "attention_trees", "prefix", "gates")
    for name in (*names, "attention_live"):
        assert pages[name].startswith("| "), name
        assert len(pages[name].splitlines()) >= 3, name
    assert pages["breakdown"] == performance.NOTHING_YET  # the profiler wants a GPU
    assert pages["speed_sources"].count("commit abc") == 10
    drawn = plots.draw(tmp_path / "plots")
    assert [path.name for path in drawn] == ["decode.svg", "prefix.svg", "needles.svg"]
    first = [path.read_bytes() for path in drawn]
    assert [path.read_bytes() for path in plots.draw(tmp_path / "plots")] == first


def test_the_time_of_the_host_before_and_after(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(host, "commit_of", lambda checkout: "old")
    # Both checkouts are this one, and a process tells of both.
    monkeypatch.setattr(host, "measured_apart", cache(host.measured_apart))
    common = ["--tiny", "--out", str(tmp_path), "--commit"]
    host.main([*common, "new", "--against", str(ROOT)])
    first = read(tmp_path)["host_time"]
    assert (first["before"]["commit"], first["commit"]) == ("old", "new")
    # Measurements in a process of its own have been seen above; here the file is looked at.
    monkeypatch.setattr(host, "measured_apart", lambda *words: first["lines"])
    host.main([*common, "newer"])
    found = read(tmp_path)["host_time"]
    assert (found["before"], found["commit"]) == (first["before"], "newer")
    assert [line["runs"] for line in found["lines"]] == [1, 32]
    assert all(line[f"ms_{name}"] > 0 for line in found["lines"] for name in host.SITUATIONS)
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    shown = performance.host()
    assert shown.count(" → ") == 2 * len(host.SITUATIONS)
    assert "Before: commit old" in shown


def test_passes_of_crowds_that_find_no_recording(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One process tells of both checkouts, which are this one; what a table shows of them."""
    monkeypatch.setattr(crowds, "commit_of", lambda checkout: "old")
    monkeypatch.setattr(crowds, "counted_apart", cache(crowds.counted_apart))
    common = ["--tiny", "--out", str(tmp_path), "--commit", "new", "--against", str(ROOT)]
    crowds.main(common)
    found = read(tmp_path)["crowds"]
    assert found["before"] == {"commit": "old"}
    (line,) = found["crowds"]
    assert line["crowd"] == "drawn, 1"
    assert line["passes"] == 3
    assert all(line[f"{what}_before"] == line[what] for what in ("one_by_one", "recorded"))
    crowd = [kind for _, each in crowds.every(28) for _, kind in each.crowd]
    assert max(kind.rows for kind in crowd) == 32
    lines = [
        {**line, "one_by_one": now, "one_by_one_before": before, "crowd": name}
        for name, before, now in (("drawn, 2", 7, 0), ("drawn, 3", 0, 0), ("sixteens", 0, 0))
    ]
    (tmp_path / "crowds.json").write_text(json.dumps({**found, "crowds": lines}))
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    shown = crowd_tables.crowds()
    assert "7 → 0" in shown
    assert [name in shown for name in ("drawn, 2", "drawn, 3", "sixteens")] == [True, False, True]


class Hasty(TorchBackend):
    """A backend with a mistake: everything a little too sharp."""

    name = "hasty"

    def attend(self, store: LayerStore, q: Tensor, *rest: Any) -> Tensor:
        return super().attend(store, 1.3 * q, *rest)


def test_control_no_number_on_a_red_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = decode.Decode._engine

    def spoiled(self: decode.Decode, place: Path) -> Engine:
        engine = make(self, place)
        executor: Any = engine.executor
        executor.backend = executor.passes.backend = Hasty()
        return engine

    monkeypatch.setattr(decode.Decode, "_engine", spoiled)
    words = ["--tiny", "--device", "cpu", "--out", str(tmp_path), "--models", "qwen3-8b"]
    decode.main([*words, "--no-peers"])
    found = read(tmp_path)["decode_qwen3-8b"]
    assert "cells" not in found
    assert len(found["red"]) == 6
    for line in found["red"]:
        for gate in line["gate"].values():
            assert gate["error"] > gate["tolerance"]
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    assert performance.left_out().count("a red gate") == 6
    assert performance.decode_ms() == performance.NOTHING_YET


def test_what_there_is_no_time_for_is_said(tmp_path: Path) -> None:
    words = ["--tiny", "--device", "cpu", "--out", str(tmp_path), "--minutes", "0"]
    attention.main([*words, "--only", "teams"])
    found = read(tmp_path)["attention_teams"]
    assert "cells" not in found
    assert [line["why"] for line in found["left_out"]] == ["the time was over"] * 4


def test_products_and_their_tiles(tmp_path: Path) -> None:
    """Both run anywhere; without a GPU all tiles are as good as each other."""
    common = ["--tiny", "--device", "cpu", "--out", str(tmp_path), "--commit", "abc"]
    products.main(common)
    tiles.main([*common, "--models", "qwen3-8b"])
    found = read(tmp_path)
    assert {line["product"] for line in found["products"]["products"]} == set(products.NAMES)
    assert [line["product"] for line in found["tiles_qwen3-8b"]["tiles"]] == list(products.NAMES)
    assert not any("red" in result or "left_out" in result for result in found.values())
