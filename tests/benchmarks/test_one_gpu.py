"""The measurements of one GPU run, tiny, on the CPU; sections are ended in time; tables are made of what is there."""

from __future__ import annotations

import json
import os
import re
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import (
    disk_cache,
    gpu_tables,
    gpu_tests,
    lockstep,
    long_history,
    one_gpu,
    performance,
    prefill,
    start_up,
    two_gpus,
)
from benchmarks.results import ROOT, Clock, Results
from benchmarks.sections import Command, Runner, Section, by_name
from benchmarks.shapes import TINY
from manyhands.evaluation.candidates import Answered, Asked
from manyhands.tasks.task import Sample
from tests.covers import SPARED
from tests.warm import Warm


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the results of the parts."""
    folder = tmp_path_factory.mktemp("results")
    common = ["--tiny", "--device", "cpu", "--out", str(folder), "--commit", "abc"]
    long_history.main(common)
    prefill.main(common)
    lockstep.main([*common, "--models", "qwen3-8b"])
    return folder


def read(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return found


def test_every_cell_has_a_floor_and_a_green_gate(measured: Path) -> None:
    cells = read(measured, "decode_long_qwq-32b")["cells"]
    assert {(c["keys"], c["history"], c["workers"]) for c in cells} == {
        (keys, history, workers)
        for keys in ("auto", "int8")
        for history in (32, 64)
        for workers in (2, 4)
    }
    for line in cells:
        assert 0 < line["floor_ms"] < line["ms"]
        assert (line["apart"] is None) == (line["keys"] == "auto")
        if line["keys"] == "int8":  # rounding is seen, and it is small
            assert 1e-4 < line["apart"] < 0.02
    found = read(measured, "prefill_qwen3-8b")
    assert [line["tokens"] for line in found["passes"]] == [40, 70]
    assert {"red", "left_out"}.isdisjoint(found)


def test_a_history_without_room_is_left_out_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = Namespace(device="cpu", tiny=False, out=tmp_path, commit="abc")
    part = long_history.LongHistory("qwq-32b", words, Clock(1))
    part.device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (141 * 10**9, 150 * 10**9))
    assert not part._fits(), "float32 weights alone take 130 GB"
    assert {line["what"] for line in part.results.content["left_out"]} == {
        f"history {length}" for length in (16384, 65536, 131072)
    }


def test_a_fresh_process_says_what_it_did(tmp_path: Path) -> None:
    out = tmp_path / "told.json"
    place = TINY.write(tmp_path / "model")
    common = ["--tiny", "--device", "cpu", "--began", str(start_up.IMPORTED - 1)]
    start_up.main([*common, "--place", str(place), "--told", str(out)])
    told = json.loads(out.read_text())
    assert told["import_s"] == 1
    assert told["first_prompt"]["eager"] == start_up.WRITTEN
    assert told["gate"]["error"] <= told["gate"]["tolerance"]


def test_tokens_that_differ_behind_a_loaded_prompt_are_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--tiny", "--device", "cpu", "--out", str(tmp_path), "--models", "small"]
    monkeypatch.setattr("sys.argv", ["disk_cache.py", *words])
    monkeypatch.setattr(disk_cache, "LOADS", 2)
    disk_cache.main()
    found = read(tmp_path, "disk_cache_tiny")
    assert "red" not in found
    assert found["lengths"][0]["faster"] > 0
    usual = disk_cache.Reader.read
    said = iter(range(100))

    def other(self: disk_cache.Reader, prompt: tuple[int, ...], **choices: Any) -> Any:
        seconds, text, engine = usual(self, prompt, **choices)
        return seconds, f"{text} {next(said)}", engine

    monkeypatch.setattr(disk_cache.Reader, "read", other)
    disk_cache.main()
    found = read(tmp_path, "disk_cache_tiny")
    assert "lengths" not in found
    each = (
        1 + disk_cache.LOADS + 1 + 2 + 2 * disk_cache.LOADS
    )  # saved, loaded, cold, and in engines that are ready
    assert len(found["red"][0]["differ"]) == 2 * each


def test_a_sheet_that_was_not_loaded_is_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens are the same ones; but they were read, and the time is none of loading."""
    words = ["--tiny", "--device", "cpu", "--out", str(tmp_path), "--models", "small"]
    monkeypatch.setattr("sys.argv", ["disk_cache.py", *words])
    usual = disk_cache.wait_until_written

    def lost(engine: Any) -> float:
        seconds = usual(engine)
        paths = engine.executor._shelf.files._own.glob("*.safetensors")
        next(iter(paths)).unlink()
        return seconds

    monkeypatch.setattr(disk_cache, "wait_until_written", lost)
    disk_cache.main()
    found = read(tmp_path, "disk_cache_tiny")
    assert "lengths" not in found
    assert any(line.endswith("were loaded, 64 were saved") for line in found["red"][0]["differ"])


def test_answers_are_compared_one_by_one() -> None:
    from benchmarks.eight_bits import compared

    class Task:
        def grade(self, sample: Sample, answer: str | None, text: str) -> Namespace:
            return Namespace(value=float(answer == "1"))

    samples: Any = [Namespace(id=name) for name in "abcd"]
    plain = [Answered(Asked(sample), answer="1", text="1") for sample in samples]
    other = [*plain[:3], Answered(Asked(samples[3]), answer="2", text="2")]
    task: Any = Task()
    found = compared(task, samples, plain, other)
    assert found == {"same_answers": 0.75, "same_texts": 0.75, "right": 0.75, "differ": ["d"]}


def test_tables_are_made_of_what_is_there(
    measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    assert {make() for make in gpu_tables.TABLES.values()} == {performance.NOTHING_YET}
    monkeypatch.setattr(performance, "RESULTS", measured)
    assert len(gpu_tables.long_history().splitlines()) == 2 + 8
    assert len(gpu_tables.prefill_passes().splitlines()) == 2 + 2
    old = read(measured, "lockstep_qwen3-8b")
    (measured / "decode_qwen3-8b.json").write_text(json.dumps({**old, "commit": "then"}))
    lines = gpu_tables.lockstep_again().splitlines()
    assert len(lines) == 2 + 6
    assert "then" in lines[2]
    assert lines[2].endswith("| +0.0% over the floor |")


def test_tables_of_processes_and_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"compiled": 2, "recorded": 1, "eager": 3}
    seconds = {f"{name}_s": 1.5 for name in ("import", "load", "get_ready", "start")}
    start = {**seconds, "first_token_s": 0.4, "second_token_s": 0.3, "when": "cold"}
    start |= {"first_prompt": counts, "second_prompt": counts, "crowds": [counts]}
    line = {"name": "copied", "dtype": "bfloat16", "without": {}, "guessed": {}}
    for kind, rate in (("without", 100.0), ("guessed", 250.0)):
        line[kind] = {"passes": 6, "tokens_per_second": rate}
    files = {"tests/a.py": {"passed": 4}}
    ran = {"tool": "memcheck", "files": files, "errors_of_the_tool": 0}
    older, newer = (
        {"date": date, "commit": name, **ran} for date, name in (("1", "a"), ("2", "b"))
    )
    for name, content in (
        ("start_up_qwen3-8b", {"commit": "abc", "starts": [start]}),
        ("speculation_gpu", {"lines": [line]}),
        ("gpu_memcheck", older),
        ("gpu_memcheck_of_another_day", newer),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    assert gpu_tables.fresh_process().endswith("| 0.400 | 0.300 | 6 | 3 | 9 | abc |")
    assert gpu_tables.first_token() == gpu_tables.fresh_process()
    assert gpu_tables.guesses_in_time().endswith("| 100 → 250 | 2.50 |")
    *_, first, last = gpu_tables.gpu_tests().splitlines()
    assert first == "| `gpu_memcheck_of_another_day` | b | tests/a.py | 4 | 0 | 0 | 0 |"
    assert last == "| `gpu_memcheck` | a | tests/a.py | 4 | 0 | 0 | 0 |"


def test_tests_that_are_counted_end_when_their_time_is_over(tmp_path: Path) -> None:
    """One at least is made: a tool of compute-sanitizer says what it has found only at an end."""
    (tmp_path / "test_three.py").write_text(
        "def test_a(): pass\ndef test_b(): pass\ndef test_c(): pass\n"
    )
    for minutes, done in (("0", 1), ("5", 3)):
        words = (
            "--device",
            "cpu",
            "--processes",
            "0",
            "--minutes",
            minutes,
            "--out",
            str(tmp_path),
        )
        command = [sys.executable, "-m", "benchmarks.gpu_tests", *words, str(tmp_path)]
        Warm(command, cwd=ROOT, env=os.environ).wait()
        found = json.loads((tmp_path / "gpu_tests.json").read_text())
        assert (found["done"], found["collected"]) == (done, 3)


def test_sections_are_ended_in_time_and_the_next_one_runs(tmp_path: Path) -> None:
    slow = "import time; print('begun', flush=True); time.sleep(60)"
    sections = by_name(
        Section("slow", 2, (Command(("-c", slow)),)),
        Section("quick", 9, (Command(("-c", "print('{device}')"), dry=("{minutes}",)),)),
    )
    words = Namespace(
        out=tmp_path, work=None, seconds=60, sections="slow,quick", cache=None, dry=True, commit=""
    )
    Runner(words, sections).run()
    log = (tmp_path / "results" / "log.txt").read_text()
    assert "== slow: out of time" in log
    assert " cpu\n" in log
    assert "== quick: 0" in log
    assert (tmp_path / "results.tgz").exists()


@pytest.mark.parametrize("program", [one_gpu, two_gpus])
def test_programs_list_their_sections(program: Any, capsys: pytest.CaptureFixture[str]) -> None:
    program.main(["--list"])
    assert len(capsys.readouterr().out.splitlines()) == len(program.SECTIONS)
    with pytest.raises(SystemExit, match="there are no sections nowhere"):
        program.main(["--sections", "nowhere"])


def test_results_of_a_part_are_in_its_own_file(tmp_path: Path) -> None:
    words = Namespace(device="cpu", tiny=True, out=tmp_path, commit="abc", tokens=128)
    assert isinstance(lockstep.FewTeams("qwq-32b", words, Clock(1)).results, Results)
    assert (
        lockstep.FewTeams("qwq-32b", words, Clock(1)).results.path.name == "lockstep_qwq-32b.json"
    )


def test_the_sanitised_tests_are_there(request: pytest.FixtureRequest) -> None:
    """Of those files that are collected beside this one; CI collects all, and a GPU runs cases that are spared elsewhere."""
    items = [*request.session.items, *request.config.stash[SPARED]]
    found = {item.nodeid for item in items}
    files = {name.split("::")[0] for name in found}
    missing = [
        name for name in one_gpu._SANITISED if name.split("::")[0] in files and name not in found
    ]
    assert not missing


def test_contributors_are_told_the_files_that_gpu_tests_runs() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (told,) = re.findall(r"^\.venv/bin/pytest -p no:benchmark -n \d+ (.+)$", page, re.MULTILINE)
    assert sorted(told.split()) == sorted(gpu_tests.FILES)
    assert all((ROOT / file).is_file() for file in gpu_tests.FILES)
