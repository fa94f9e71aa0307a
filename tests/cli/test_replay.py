"""`manyhands replay`: reads what solve saved, proves it, goes on with it, and trusts no file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from manyhands.cli import app
from manyhands.cli.options import ReplayOptions
from manyhands.cli.replay import as_recorded
from manyhands.replay.trace import read_trace
from tests.cli.conftest import DONE, Cli

Lines = list[dict[str, Any]]


@pytest.fixture(scope="session")
def saved(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A greedy run of two workers."""
    path = tmp_path_factory.mktemp("traces") / "trace.jsonl"
    options = "--budget 20 --snapshots 9 --finisher-tokens 2 --reply-tokens 3 --quiet"
    args = ["solve", "1 + 2", "--model", str(model), "--transcript", str(path), *options.split()]
    assert CliRunner().invoke(app, args).exit_code in DONE
    return path


@pytest.fixture
def trace(saved: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return Path(shutil.copy(saved, tmp_path / "trace.jsonl"))


@pytest.fixture
def changed(trace: Path) -> Callable[[Callable[[Lines], Any]], Path]:
    """The trace after somebody has changed its lines."""

    def change(edit: Callable[[Lines], Any]) -> Path:
        lines = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
        edited = edit(lines)
        lines = lines if edited is None else edited
        trace.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        return trace

    return change


def cut(lines: Lines) -> Lines:
    """The run was interrupted in its tenth pass."""
    passes = [i for i, line in enumerate(lines) if line["kind"] == "pass"]
    return lines[: passes[9]]


def test_summary_and_transcript(cli: Cli, trace: Path, model: Path) -> None:
    result = cli("replay", trace)
    assert result.exit_code == 0, result.output
    for fact in (f"model       {model}", "method      hogwild", "workers     Alice, Bob"):
        assert fact in result.stdout
    for fact in ("problem     1 + 2", "passes      20, and 7 of", "40 (20 Alice, 20 Bob)"):
        assert fact in result.stdout
    assert "finish      budget" in result.stdout
    assert '"budget": 20' in result.stdout
    assert "Alice [1]: passes 1 to 20\n" in result.stdout
    assert "Alice [1]" not in cli("replay", trace, "--quiet").stdout


def test_json(cli: Cli, trace: Path) -> None:
    found = json.loads(cli("replay", trace, "--json").stdout)
    assert found["complete"] is True
    assert found["finish_reason"] == "budget"
    assert found["forward_passes"] == 20
    assert found["passes"] == found["forward_passes"] + found["extra_passes"]
    assert found["steps"][0]["worker"] == 0
    assert "verified" not in found


@pytest.mark.parametrize(
    "how", ["--layout contiguous", "--layout interleaved", "--reencode", "--method sequential"]
)
def test_verify_agrees(cli: Cli, solve: Cli, trace: Path, how: str) -> None:
    assert solve("1 + 2", "--transcript", trace, "-q", *how.split()).exit_code in DONE
    result = cli("replay", trace, "--verify", "--json")
    verified = json.loads(result.stdout)["verified"]
    assert verified["agreement"] == 1.0
    assert verified["num_tokens"] > 6
    assert "tokens agree (100.00%)" in cli("replay", trace, "--verify", "-q").stdout


def test_verify_finds_a_token_that_was_not_written(cli: Cli, changed: Callable[..., Path]) -> None:
    def forge(lines: Lines) -> None:
        last = [line for line in lines if line["kind"] == "pass"][-1]
        last["rows"][-1][2] = (last["rows"][-1][2] + 1) % 400

    result = cli("replay", changed(forge), "--verify", "-q")
    assert result.exit_code == 1
    assert "largest gap in logits of one that does not" in result.stdout
    assert "this model does not write this run" in result.stderr


def test_verify_of_another_model_and_of_a_sampled_run(
    cli: Cli, solve: Cli, trace: Path, changed: Callable[..., Path]
) -> None:
    assert cli("replay", trace, "--verify", "--model", "/nowhere").exit_code == 3

    def foreign(lines: Lines) -> None:
        next(line for line in lines if line["kind"] == "pass")["rows"][0][1][0] = 10**6

    result = cli("replay", changed(foreign), "--verify")
    assert result.exit_code == 2
    assert "the trace has tokens up to 1000000" in result.stderr
    solve("1 + 2", "--temperature", 1, "--transcript", trace, "-q")
    sampled = cli("replay", trace, "--verify")
    assert sampled.exit_code == 2
    assert "only greedy runs" in sampled.stderr


def test_verify_of_a_run_without_passes(cli: Cli, changed: Callable[..., Path]) -> None:
    result = cli("replay", changed(lambda lines: lines[:1]), "--verify", "--json")
    assert json.loads(result.stdout)["verified"]["num_tokens"] == 0
    told = cli("replay", changed(lambda lines: lines[:1]), "--verify")
    assert told.stdout.endswith("nothing to verify: nobody wrote a token\n")


def test_an_interrupted_run(cli: Cli, changed: Callable[..., Path]) -> None:
    path = changed(cut)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"kind": "pass", "rows": [[0, [1')
    found = json.loads(cli("replay", path, "--json", "--verify").stdout)
    assert found["complete"] is False
    assert found["finish_reason"] == "interrupted"
    assert found["forward_passes"] == 9
    assert found["tokens"] == [9, 9]
    assert found["verified"]["agreement"] == 1.0


def _edit(**changes: Any) -> Callable[[Lines], None]:
    return lambda lines: lines[0].update(changes)


def _spoil(kind: str, **changes: Any) -> Callable[[Lines], None]:
    def edit(lines: Lines) -> None:
        next(line for line in lines if line["kind"] == kind).update(changes)

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        _edit(schema=99),
        _edit(kind="tail"),
        _edit(workers="two"),
        _edit(workers=10**9),
        _edit(prompt=5),
        _edit(prompt={"names": 3}),
        _spoil("block", id=5),
        _spoil("view", blocks=[99]),
        _spoil("pass", rows=[[0]]),
        _spoil("event", event="Explosion"),
        _spoil("event", worker=17),
        _spoil("event", text=None),
        _spoil("event", forward_pass="x"),
        _spoil("end", answer=[]),
        _spoil("end", answer={"text": 5}),
        _spoil("end", answer={"text": "", "steps": [{"worker": 0}]}),
        _spoil("end", answer={"text": "", "tokens": ["many"]}),
        lambda lines: lines[1:],
        lambda lines: [],
    ],
)
def test_broken_traces(
    cli: Cli, changed: Callable[..., Path], edit: Callable[[Lines], Any]
) -> None:
    result = cli("replay", changed(edit))
    assert result.exit_code == 7, result.output
    assert result.stderr.startswith("error: ")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"hello\n", b"[1]\n", b'{"kind": 1}\n'])
def test_files_that_are_no_trace(cli: Cli, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    assert cli("replay", path).exit_code == 7


def test_missing_trace(cli: Cli, tmp_path: Path) -> None:
    assert cli("replay", tmp_path / "none").exit_code == 2
    assert cli("replay", tmp_path).exit_code == 2
    assert cli("replay").exit_code == 2


def test_nothing_in_a_trace_reaches_the_terminal(cli: Cli, changed: Callable[..., Path]) -> None:
    def poison(lines: Lines) -> None:
        bad = "\x1b[2J[red]"
        lines[0] |= {"model": bad, "problem": bad, "layout": bad, "versions": {bad: bad}}
        lines[-1]["answer"] |= {"text": bad, "finish_reason": bad, "answer": bad}
        lines[-1]["answer"]["steps"][0]["text"] = bad

    path = changed(poison)
    for more in ((), ("--json",)):
        result = cli("replay", path, *more)
        assert result.exit_code == 0, result.output
        assert "\x1b" not in result.output
        assert "[red]" in result.output


def test_verify_needs_to_know_the_settings(cli: Cli, changed: Callable[..., Path]) -> None:
    path = changed(_edit(settings=None))
    assert cli("replay", path).exit_code == 0
    assert cli("replay", path, "--verify").exit_code == 7


def test_the_run_of_a_method_of_ones_own_is_verified(
    cli: Cli, changed: Callable[..., Path]
) -> None:
    """Its header makes no spec; the integers and the choice of tokens suffice. Its workers have the names it gave them."""
    names = ["Left", "Right"]
    path = changed(_edit(method="magic", names=names, workers=1, prompt={"mine": 3}))
    found = cli("replay", path, "--verify")
    assert found.exit_code == 0, found.output
    assert "workers     Left, Right" in found.stdout
    assert "verified: " in found.stdout

    def spoil(lines: Lines) -> None:
        chosen = [row for line in lines if line["kind"] == "pass" for row in line["rows"] if row[3]]
        for row in chosen:
            row[2] = 5

    assert cli("replay", changed(spoil), "--verify").exit_code == 1
    for settings, said in (
        ({}, "does not say how tokens were chosen"),
        ({"choice": 5}, "cannot be read"),
        ({"choice": {"temperature": -1}}, "cannot be read"),
    ):
        found = cli("replay", changed(_edit(settings=settings)), "--verify")
        assert found.exit_code == 7
        assert said in found.stderr
    sampled = changed(_edit(settings={"choice": {"temperature": 0.5}}))
    assert "sampled at temperature 0.5" in cli("replay", sampled, "--verify").stderr


def test_a_file_of_an_exam_is_no_trace(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "hogwild.jsonl"
    path.write_text('{"schema": 1, "kind": "header"}\n{"kind": "record"}\n', encoding="utf-8")
    for command in ("replay", "view"):
        found = cli(command, path)
        assert found.exit_code == 7
        assert "its kind is 'record', which no line of a trace has" in found.stderr
        assert "those of an exam lie in the folder `traces`" in found.stderr


def test_verify_of_a_trace_that_names_no_model(
    cli: Cli, changed: Callable[..., Path], model: Path
) -> None:
    path = changed(_edit(model=None))
    result = cli("replay", path, "--verify")
    assert result.exit_code == 2
    assert "--model FOLDER" in result.stderr
    assert cli("replay", path, "--verify", "--model", model).exit_code == 0


def test_continue(cli: Cli, trace: Path, changed: Callable[..., Path]) -> None:
    """A run that was cut short ends as it would have ended by itself."""
    whole = json.loads(cli("replay", trace, "--json").stdout)
    interrupted = changed(cut)
    found = json.loads(cli("replay", interrupted, "--continue", "--json").stdout)
    for fact in ("answer", "text", "finish_reason", "forward_passes", "tokens", "workers"):
        assert found[fact] == (len(whole["tokens"]) if fact == "workers" else whole[fact])
    shown = cli("replay", interrupted, "--continue").stdout
    assert shown.startswith("Alice [1]:")


def test_continue_can_save_the_longer_trace(
    cli: Cli, trace: Path, tmp_path: Path, changed: Callable[..., Path]
) -> None:
    """Line for line the trace of a run that was never cut; the old one stays as it is."""
    whole, longer = trace.read_bytes(), tmp_path / "longer.jsonl"
    interrupted = changed(cut)
    with interrupted.open("ab") as file:
        file.write(b'{"kind": "pa')
    before = interrupted.read_bytes()
    result = cli("replay", interrupted, "--continue", "--quiet", "--transcript", longer)
    assert result.exit_code in DONE, result.output
    assert interrupted.read_bytes() == before
    assert longer.read_bytes() == whole
    for path, more, words in (
        (interrupted, ("--continue",), "--transcript names the trace itself"),
        (tmp_path / "new.jsonl", (), "--transcript was given without --continue"),
    ):
        refused = cli("replay", interrupted, "--transcript", path, *more)
        assert refused.exit_code == 2
        assert words in refused.stderr
    assert interrupted.read_bytes() == before
    assert not (tmp_path / "new.jsonl").exists()


@pytest.mark.parametrize(
    ("how", "budget"), [("--quantise int4 --fuse on", 60), ("--context 320", 200)]
)
def test_a_run_comes_back_with_the_weights_and_the_context_it_had(
    cli: Cli, solve: Cli, tmp_path: Path, how: str, budget: int
) -> None:
    path = tmp_path / "made.jsonl"
    options = [*how.split(), "--budget", budget, "--method", "sequential", "--transcript", path]
    made = solve("1 + 2", *options, "-q")
    assert made.exit_code in DONE
    assert ("on a CPU weights in int4 are unpacked" in made.stderr) == ("int4" in how)
    whole = path.read_text(encoding="utf-8")
    read = cli("replay", path, "--verify", "--json")
    assert json.loads(read.stdout)["verified"]["agreement"] == 1.0
    lines = [json.loads(line) for line in whole.splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in cut(lines)), encoding="utf-8")
    longer = tmp_path / "longer.jsonl"
    went_on = cli("replay", path, "--continue", "-q", "--transcript", longer)
    assert went_on.exit_code in DONE
    assert longer.read_text(encoding="utf-8") == whole
    assert "fingerprint" not in read.stderr + went_on.stderr


def test_other_weights_than_those_of_the_run_are_told(
    cli: Cli, changed: Callable[..., Path]
) -> None:
    """The checkpoint was replaced under its name. In another dtype its weights have another fingerprint anyway."""

    def interrupted(lines: Lines, **header: Any) -> Lines:
        _edit(**header)(lines)
        return cut(lines)

    warning = "the weights are not those of the run: their fingerprint is"
    read = cli("replay", changed(_edit(fingerprint="5" * 32)), "--verify", "--json")
    assert read.exit_code == 0  # these weights write the same here
    assert warning in read.stderr
    assert "5" * 32 in read.stderr
    other_dtype = {"fingerprint": "5" * 32, "dtype": "bfloat16"}
    assert warning not in cli("replay", changed(_edit(**other_dtype)), "--verify").stderr
    path = changed(lambda lines: interrupted(lines, dtype="float32"))
    assert warning in cli("replay", path, "--continue", "-q").stderr


def test_what_the_command_leaves_open_is_as_recorded(changed: Callable[..., Path]) -> None:
    path = changed(
        _edit(weights="dummy", quantise="int4", kv_cache_dtype="int8", fuse="on", context=300)
    )
    trace = read_trace(path)
    found = as_recorded(ReplayOptions(trace=path), trace)
    assert (found.weights, found.quantise, found.kv_cache_dtype, found.fuse, found.context) == (
        "dummy",
        "int4",
        "int8",
        "on",
        300,
    )
    said = ReplayOptions(
        trace=path,
        weights="dummy",
        quantise="none",
        kv_cache_dtype="int8",
        fuse="off",
        context=200,
    )
    assert as_recorded(said, trace) == said


@pytest.mark.parametrize(
    "damage", [{"context": "long"}, {"quantise": 4}, {"kv_cache_dtype": 8}, {"fuse": True}]
)
def test_weights_that_a_header_does_not_name_in_words(
    cli: Cli, changed: Callable[..., Path], damage: dict[str, Any]
) -> None:
    path = changed(_edit(**damage))
    assert cli("replay", path).exit_code == 0
    result = cli("replay", path, "--verify")
    assert result.exit_code == 7
    (name,) = damage
    assert f"the trace's header has {name}" in result.stderr


def test_continue_needs_an_interrupted_run(cli: Cli, trace: Path) -> None:
    ended = cli("replay", trace, "--continue")
    assert ended.exit_code == 2
    assert "has ended by itself" in ended.stderr
    assert cli("replay", trace, "--continue", "--verify").exit_code == 2


def test_a_run_with_penalties_comes_back_but_cannot_be_verified(
    cli: Cli, model: Path, tmp_path: Path
) -> None:
    """Its tokens follow from more than the logits."""
    path = tmp_path / "trace.jsonl"
    options = (
        "--budget 6 --frequency-penalty 1.5 --min-tokens 3 --finisher-tokens 1 --reply-tokens 1"
    )
    listed = ("--set", "choice.logprobs=1", "--set", "choice.logit_bias=70:5,71:-5")
    arguments = ("--model", model, "--transcript", path, *options.split(), *listed)
    result = cli("solve", "1 + 2", *arguments)
    assert result.exit_code in DONE, result.output
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    written = [line for line in lines if line.get("event") == "TokenWritten"]
    assert len(written) == 12
    assert all(len(line["logprobs"]["top"]) == 1 for line in written)
    rows = [row for line in lines if line["kind"] == "pass" for row in line["rows"] if row[3]]
    assert [len(row) for row in rows[:6]] == [5] * 6, "in three passes, no turn may end"
    assert [len(row) for row in rows[6:12]] == [4] * 6
    assert cli("replay", path).exit_code == 0
    refused = cli("replay", path, "--verify")
    assert refused.exit_code == 2
    assert "the run was written with penalties or a bias" in refused.stderr


def test_a_device_without_an_end_is_no_trace(cli: Cli) -> None:
    result = cli("replay", "/dev/zero")
    assert result.exit_code == 7
    assert "line 1 of '/dev/zero' is longer than any line may be" in result.stderr
