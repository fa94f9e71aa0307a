"""First tokens of both engines: which requests come, when each time begins and ends, what is left out, and the tables.

In vLLM's place stands `tests/benchmarks/another_engine.py`.
"""

from __future__ import annotations

import gc
import json
import subprocess
import time
import weakref
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import (
    engine_tables,
    performance,
    prefill,
    ranks,
    vllm_process,
    whole_engines,
    whole_prompts,
)
from benchmarks.gate import Checked, plain
from benchmarks.routers import Alike
from benchmarks.start_up import first_tokens
from benchmarks.vllm_process import PLAIN, Asked, Crowd, Watched, come
from benchmarks.whole_engines import OURS
from manyhands.errors import InvalidRequest
from manyhands.model.parallel.finding import PLACES
from tests.engine.small import NUM_IDS, small_engine
from tests.warm import Warm

NAMES = [crowd.name for crowd in whole_prompts.TINY_CROWDS]


def measured(out: Path, *words: str, file: str = "whole_prompts") -> dict[str, Any]:
    common = ["--tiny", "--device", "cpu", "--commit", "abc", "--out", str(out)]
    whole_prompts.main([*common, *words])
    found: dict[str, Any] = json.loads((out / f"{file}.json").read_text())
    return found


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of vLLM are looked for more often."""
    monkeypatch.setattr(whole_engines, "_LOOK", 0.05)


@pytest.mark.usefixtures("soon")
def test_both_engines_are_timed_with_all_networks(
    another: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The command itself once, and then copies.
    kinds = iter([subprocess.Popen])
    monkeypatch.setattr(subprocess, "Popen", lambda *words, **how: next(kinds, Warm)(*words, **how))
    found = measured(tmp_path, "--outsiders", str(another))
    assert "left_out" not in found
    assert "red" not in found
    models = ["tiny", "tiny, with experts", "tiny, with experts in mxfp4"]
    told = [(line["model"], line["engine"], line["name"]) for line in found["prompts"]]
    assert told == [(m, engine, n) for m in models for engine in (PLAIN, OURS) for n in NAMES]
    for line in found["prompts"]:
        assert len(line["all_ms_first"]) == len(line["all_ms_last"]) == 3
        assert line["ms_first"] == line["ms_first_worst"] == line["all_ms_first"][2]
        assert line["ms_first"] <= line["ms_mean"] <= line["ms_last"]
        assert 0 < line["ms_first"] <= line["ms_last"]
    assert [(line["model"], line["name"]) for line in found["gates"]] == [
        (m, n) for m in models for n in NAMES
    ]
    starts = {(line["model"], line["engine"]): line for line in found["starts"]}
    assert starts["tiny", PLAIN]["vllm"] == "another"
    assert starts["tiny", PLAIN]["tokens_of_a_pass"] == 4096
    assert starts["tiny", OURS]["tokens_of_a_pass"] == 8192
    assert starts[models[1], PLAIN]["experts"] == "another's"
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    rows = [line[2:-2].split(" | ") for line in engine_tables.whole_prompts().splitlines()[2:]]
    assert [row[0] for row in rows] == [each for m in models for each in (m, "")]
    assert [row[1] for row in rows] == NAMES * 3
    assert all(row[4].endswith(" ×") for row in rows)
    assert [row[7].endswith(" ×") for row in rows] == [False, True] * 3
    assert len(engine_tables.whole_prompts_starts().splitlines()) == 2 + 6


def test_one_engine_alone_is_timed_into_a_file_of_its_own(tmp_path: Path) -> None:
    words = ("--engines", "manyhands", "--models", "qwen3-8b", "--name", "ours")
    found = measured(tmp_path, *words, file="whole_prompts_ours")
    assert {line["engine"] for line in found["prompts"]} == {OURS}
    assert "left_out" not in found
    found = measured(tmp_path, "--models", "qwen3-8b")
    assert found["left_out"] == [{"what": "vLLM, tiny", "why": "no folder with it (--outsiders)"}]
    for wrong, why in {
        ("--engines", "vllm,sglang"): "no engine sglang; there are vllm, manyhands",
        ("--models", "codellama-7b"): "no prompts for codellama-7b; there are qwen3-8b",
    }.items():
        with pytest.raises(InvalidRequest, match=why):
            measured(tmp_path, *wrong)


@pytest.mark.usefixtures("soon", "warm")
def test_over_ranks_both_engines_are_timed_into_a_file_of_its_own(
    another: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    usual = ranks.writes_the_same

    def writes_the_same(world: Any, arguments: Any, length: int) -> bool:
        lengths.append(length)
        return usual(world, arguments, length)

    monkeypatch.setattr(whole_engines, "writes_the_same", writes_the_same)
    words = ("--ranks", "2", "--outsiders", str(another), "--models", "qwen3-8b")
    found = measured(tmp_path, *words, file="whole_prompts_over_2")
    assert "left_out" not in found
    assert (found["ranks"], found["same_tokens"]) == (2, True)
    (length,) = lengths
    assert length > PLACES  # longer than a sum through peers' memory
    told = [(line["model"], line["engine"], line["name"]) for line in found["prompts"]]
    assert told == [("tiny, over 2 GPUs", engine, n) for engine in (PLAIN, OURS) for n in NAMES]
    theirs, ours = found["starts"]
    assert (theirs["ranks"], theirs["sums"]) == (2, ["its own all-reduce", "NCCL"])
    assert "2 ranks" in ours["about_ranks"]
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    assert engine_tables.whole_prompts().splitlines()[2].startswith("| tiny, over 2 GPUs |")


@pytest.mark.usefixtures("red_ranks")
def test_ranks_that_write_other_tokens_are_not_timed(tmp_path: Path) -> None:
    words = ("--ranks", "2", "--engines", "manyhands", "--models", "qwen3-8b")
    found = measured(tmp_path, *words, file="whole_prompts_over_2")
    assert "prompts" not in found
    why = "the gate is red: the ranks write other tokens"
    assert found["left_out"] == [{"what": f"{OURS}, tiny, over 2 GPUs", "why": why}]
    with pytest.raises(InvalidRequest, match="Give networks without experts: qwen3-8b, qwen3-32b"):
        measured(tmp_path, "--ranks", "2", "--models", "gpt-oss-20b-mxfp4")


@pytest.mark.parametrize("wrong", ["logits", "experts"])
def test_behind_a_red_gate_nothing_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    def check(engine: Any, prompts: list[tuple[int, ...]]) -> Any:
        has_failed = len(prompts) == 3
        error = 1.0 if has_failed and wrong == "logits" else 0.0
        is_far = has_failed and wrong == "experts"
        alike = SimpleNamespace(is_green=not is_far, far=[0.5 * is_far], same=[1.0])
        return Checked(error, 0.1), alike

    monkeypatch.setattr(whole_prompts, "check_prompts", check)
    found = measured(tmp_path, "--engines", "manyhands", "--models", "qwen3-8b")
    assert [line["name"] for line in found["prompts"]] == NAMES[:1]
    assert [line["name"] for line in found["red"]] == NAMES[1:]
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    assert "| whole_prompts | model tiny, name 3 of 40" in performance.left_out()
    assert "a red gate" in performance.left_out()


def test_the_gate_looks_at_every_prompt_that_comes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong number behind the last of them is seen."""
    engine = small_engine()
    prompts = [tuple(range(1, 9)), tuple(range(2, 10)), tuple(range(3, 11))]
    gate, alike = prefill.check_prompts(engine, prompts)
    assert gate.is_green
    assert isinstance(alike, Alike)

    def another(engine: Any) -> Any:
        there = plain(engine)

        def forward(step: Any) -> Any:
            logits = type(there).forward(there, step).clone()
            logits[-1] = logits[-1].flip(0)
            return logits

        return SimpleNamespace(forward=forward)

    monkeypatch.setattr("benchmarks.prefill.plain", another)
    assert not prefill.check_prompts(engine, prompts)[0].is_green


def test_what_there_is_no_time_for_is_left_out_by_name(another: Path, tmp_path: Path) -> None:
    words = ("--models", "qwen3-8b", "--outsiders", str(another), "--minutes", "0")
    assert {line["what"] for line in measured(tmp_path, *words)["left_out"]} == {
        "vLLM, tiny",
        *(f"{OURS}, tiny, {name}" for name in NAMES),
    }


@pytest.mark.usefixtures("soon")
def test_what_a_late_vllm_has_told_stays(
    another: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", Warm)
    package = another / "vllm_engine" / "vllm" / "__init__.py"
    # Its process has a clock of its own, which only steps let go on: no machine is too busy for it.
    clock = "import time; clock = [0.0]; time.perf_counter = lambda: clock[0]; __version__ ="
    late = "time.sleep(600 if len(self.rows) == 3 else 0); clock[0] += 0.05; told = []"
    text = package.read_text().replace("__version__ =", clock)
    package.write_text(text.replace("told = []", late))
    usual = whole_engines.lines_of

    def first_two(*words: Any) -> Any:
        return islice(usual(*words), 2)

    monkeypatch.setattr(whole_engines, "lines_of", first_two)
    found = measured(tmp_path, "--models", "qwen3-8b", "--outsiders", str(another))
    assert found["left_out"] == [{"what": "the rest of vLLM, tiny", "why": "the time was over"}]
    told = [(line["engine"], line["name"]) for line in found["prompts"]]
    assert told == [(PLAIN, NAMES[0]), *((OURS, name) for name in NAMES)]
    # One step of sixteen: the first token is told when it is there.
    assert found["prompts"][0]["all_ms_first"] == [50.0] * 3
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    rows = [line[2:-2].split(" | ") for line in engine_tables.whole_prompts().splitlines()[2:]]
    assert [bool(row[3]) for row in rows] == [True, False]


def test_this_engine_is_let_go_of_before_the_next_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else vLLM would find no room."""
    made: list[Any] = []
    usual = whole_engines.BesideVllm.load

    def load(self: Any, *words: Any) -> Any:
        gc.collect()
        assert not any(engine() for engine in made)
        engine = usual(self, *words)
        made.append(weakref.ref(engine))
        return engine

    monkeypatch.setattr(whole_engines.BesideVllm, "load", load)
    measured(tmp_path, "--engines", "manyhands", "--models", "qwen3-8b,qwen3-30b-a3b")
    assert len(made) == 2


def test_prompts_are_others_in_every_turn() -> None:
    crowd = Crowd("3 of 40", 3, (40, 40), 16, is_shared=False)
    turns = [crowd.prompts(100, turn)[1] for turn in range(8)]
    assert len({tuple(prompt) for prompts in turns for prompt in prompts}) == 24
    assert all(len(prompt) == 40 for prompts in turns for prompt in prompts)
    assert crowd.prompts(100, 5)[1] == turns[5]
    assert crowd.prompts(100) == ([], turns[0])


def test_no_prompt_begins_as_one_before_it() -> None:
    """An engine that has read a prompt once does not read it again: vLLM had one of eight, which had come alone before."""
    block = 16  # tokens that it keeps together
    begins = [
        tuple(prompt[:block])
        for crowd in (*whole_prompts.CROWDS, *whole_prompts.TINY_CROWDS)
        for turn in range(whole_prompts.NOT_COUNTED + whole_prompts.COUNTED)
        for prompt in crowd.prompts(100, turn)[1]
    ]
    assert len(set(begins)) == len(begins) > 7 * 12


@pytest.mark.usefixtures("soon", "warm")
def test_a_prompt_that_vllm_has_in_its_cache_is_red(
    another: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twice = whole_prompts.TINY_CROWDS[1]
    monkeypatch.setattr(whole_prompts, "TINY_CROWDS", (twice, twice))
    words = ("--engines", "vllm", "--outsiders", str(another), "--models", "qwen3-8b")
    found = measured(tmp_path, *words)
    (line,), (red,) = found["prompts"], found["red"]
    assert (line["name"], line["found_in_cache"]) == (red["name"], 0) == (twice.name, 0)
    assert red["found_in_cache"] == 3 * 3 * 39  # turns, rows, tokens of a prompt but for the last


def test_of_older_files_vllm_beside_several_prompts_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the prompts was in its cache, and no file says so."""
    times = {f"ms_{kind}{worst}": 8.0 for kind in ("first", "last") for worst in ("", "_worst")}
    lines = [
        {"model": "Qwen3-8B", "engine": engine, "name": f"{rows} of 1 k", "rows": rows} | times
        for rows in (1, 8)
        for engine in (PLAIN, OURS)
    ]
    found = {"commit": "old", "prompts": lines}
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    (tmp_path / "whole_prompts.json").write_text(json.dumps(found))
    ours, both = "8.0 (8.0)", "8.0 (8.0) | 8.0 (8.0) | 1.00 ×"
    one, eight = engine_tables.whole_prompts().splitlines()[2:]
    assert one == f"| Qwen3-8B | 1 of 1 k | {both} |  |  |  |  |  |  |  | old |"
    assert eight == f"|  | 8 of 1 k | {ours} |  |  |  |  |  | {ours} |  |  |  | old |"
    for line in lines:
        line["found_in_cache"] = 0
    (tmp_path / "whole_prompts.json").write_text(json.dumps(found))
    *_, eight = engine_tables.whole_prompts().splitlines()
    assert eight == f"|  | 8 of 1 k | {both} |  |  |  | {both} |  | old |"


def test_a_crowd_comes_to_an_idle_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    def submit(prompts: list[list[int]], num_tokens: int) -> list[float]:
        told.append((len(prompts), num_tokens))
        return [0.25, 0.5]

    monkeypatch.setattr(time, "sleep", lambda seconds: told.append(seconds))
    line = come(Crowd("2 of 5", 2, (5, 5), 7, is_shared=False), 2, 100, submit)
    assert told == [vllm_process._REST, (2, 7)] * 2
    times = {
        "all_ms_first": [250.0, 250.0],
        "all_ms_last": [500.0, 500.0],
        "all_ms_mean": [375.0, 375.0],
    }
    assert line == {"name": "2 of 5", "rows": 2, "tokens": 5, **times}
    asked = Asked("there", "dummy", 100, whole_prompts.CROWDS, turns=7)
    assert Asked.read(asked.write(tmp_path / "asked.json")) == asked


class Staggered:
    """An engine in another process: the first request that it gets is read alone, the others in its next step."""

    def __init__(self) -> None:
        self.engine_core = SimpleNamespace(get_output=None)
        self.added: list[str] = []
        self.wanted: list[Any] = []
        self.steps = 0

    def add_request(self, name: str, prompt: dict[str, list[int]], wanted: Any) -> None:
        time.sleep(0.01)
        self.added.append(name)
        self.wanted.append(wanted)

    def has_unfinished_requests(self) -> bool:
        return self.steps < 4

    def step(self) -> list[Any]:
        time.sleep(0.02)
        self.steps += 1
        names = {1: [], 2: self.added[:1]}.get(self.steps, self.added)
        empty = [SimpleNamespace(request_id="row 2", outputs=[SimpleNamespace(token_ids=[])])]
        token = [SimpleNamespace(token_ids=[5])]
        return empty + [
            SimpleNamespace(request_id=name, outputs=token, num_cached_tokens=16 * row)
            for row, name in enumerate(names)
        ]


def test_vllm_is_timed_from_the_first_submission_to_tokens_in_the_callers_hands() -> None:
    engine = Staggered()
    watched = Watched(engine, SimpleNamespace, 100)
    seconds = watched.first_tokens([[1], [2], [3]], 16)
    assert len(seconds) == 3
    # All submissions, and two steps.
    assert seconds[0] > 0.03 + 0.04
    assert seconds[1] == seconds[2] > seconds[0] + 0.015
    assert engine.steps == 4
    assert watched.found_in_cache == 16 + 32  # of each request once
    wanted = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 16, "is_streamed": True}
    assert [vars(each) for each in engine.wanted] == [wanted] * 3


def test_this_engine_is_timed_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = small_engine(max_tokens_per_pass=24)
    usual = engine.submit

    def slow(strategy: Any) -> Any:
        time.sleep(0.02)
        return usual(strategy)

    monkeypatch.setattr(engine, "submit", slow)
    prompts = [tuple((7 * row + at) % NUM_IDS for at in range(20)) for row in range(2)]
    # One of them fills a pass.
    seconds = first_tokens(engine, prompts)
    assert len(seconds) == 2
    assert 0.04 < seconds[0] < seconds[1]


def test_of_several_files_the_newest_lines_are_shown_and_the_others_on_another_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def line(model: str, engine: str, ms: float, rows: int = 1) -> dict[str, Any]:
        name = f"{rows} of 2 k"
        times = {"ms_first": ms, "ms_first_worst": 1.5 * ms, "ms_last": 2 * ms}
        return {"model": model, "engine": engine, "name": name, "rows": rows} | {
            **times,
            "ms_last_worst": 3 * ms,
        }

    one, two = "Qwen3-8B", "Qwen3-8B, over 2 GPUs"
    gates = [{"model": one, "name": "1 of 2 k", "gate": {"error": 0.0489, "tolerance": 0.12}}]
    lines = {
        "whole_prompts": ("first", [line(one, PLAIN, 60.0), line(one, OURS, 40.0)]),
        "whole_prompts_at_once": ("second", [line(two, OURS, 20.0)]),
        "whole_prompts_experts": ("third", [line(one, PLAIN, 50.0), line(one, OURS, 20.0)]),
        # Not in the list of files yet, so the newest.
        "whole_prompts_ours": ("fourth", [line(one, OURS, 30.0), line(one, OURS, 50.0, rows=8)]),
    }
    for name, (commit, told) in lines.items():
        found = {"commit": commit, "prompts": told, "gates": gates if commit == "first" else []}
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    assert engine_tables.whole_prompts().splitlines()[2:] == [
        "| Qwen3-8B | 1 of 2 k | 30.0 (45.0) |  |  |  |  |  |  |  |  |  | fourth |",
        "|  | 1 of 2 k | 20.0 (30.0) | 50.0 (75.0) | 2.50 × |  |  |  |  |  |  |  | third |",
        "|  | 8 of 2 k | 50.0 (75.0) |  |  |  |  |  | 100.0 (150.0) |  |  |  | fourth |",
        "| Qwen3-8B, over 2 GPUs | 1 of 2 k | 20.0 (30.0) |  |  |  |  |  |  |  |  |  | second |",
    ]
    assert engine_tables.whole_prompts_older().splitlines()[2:] == [
        "| Qwen3-8B | 1 of 2 k | 40.0 (60.0) | 60.0 (90.0) | 1.50 × |  |  |  |  |  |  | 0.049 (0.12) | first |"
    ]
    assert engine_tables.whole_prompts_starts() == performance.NOTHING_YET


def test_all_files_of_first_tokens_are_put_in_order() -> None:
    assert {name for name, _ in performance.files("whole_prompts")} == set(engine_tables.PROMPTS)
