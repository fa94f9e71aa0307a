"""`manyhands batch`: every request is answered once, whatever happens in between."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manyhands.cli.batch import progress_bar
from manyhands.cli.batch_files import Output, read_input
from manyhands.cli.batch_lines import error_line
from manyhands.errors import InvalidRequest
from manyhands.strategies.requests import Defaults
from tests.cli.conftest import Cli, module_of
from tests.warm import COMMAND, Warm

DOCUMENT = "A long text that everybody asks about. " * 4
DEFAULTS = Defaults("model")


def chat(name: str, question: str = "Who?", **body: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": DOCUMENT}, {"role": "user", "content": question}]
    body = {"messages": messages, "max_tokens": 6, **body}
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}


def write(path: Path, *lines: object) -> Path:
    path.write_text(
        "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    )
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def said(path: Path) -> dict[str, Any]:
    """The answers by custom_id; each once."""
    lines = read(path)
    names = [line["custom_id"] for line in lines]
    assert len(set(names)) == len(names)
    return {line["custom_id"]: line["response"]["body"]["choices"] for line in lines}


@pytest.fixture
def batch(cli: Cli, model: Path) -> Callable[..., Any]:
    def run(*args: object) -> Any:
        return cli("batch", "--model", model, "--memory-tokens", 4096, *args)

    return run


def test_a_batch(batch: Cli, tmp_path: Path) -> None:
    requests = [chat(f"q{i}", f"Question {i}?", n=1 + i % 2, temperature=0) for i in range(5)]
    plain = {"custom_id": "p", "url": "/v1/completions", "body": {"prompt": ["So", "The"]}}
    given = write(tmp_path / "in", *requests, "\n", plain)
    answers = tmp_path / "out"
    result = batch(given, answers, "--max-tokens", 4)
    assert result.exit_code == 0, result.output
    assert "6 of 6 requests answered, 0 failed" in result.stdout
    assert "saved by sharing" in result.stdout
    assert "before" not in result.stdout
    again = batch(given, answers, "--max-tokens", 4)
    assert "6 of 6 requests answered, 0 failed\nall of them before" in again.stdout
    found = said(answers)
    assert set(found) == {"q0", "q1", "q2", "q3", "q4", "p"}
    assert [len(found[f"q{i}"]) for i in range(5)] == [1, 2, 1, 2, 1]
    assert [choice["index"] for choice in found["p"]] == [0, 1]
    usages = [line["response"]["body"]["usage"] for line in read(answers)]
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    assert cached > 4 * len(DOCUMENT.split()), "the document was read once"
    again = batch(given, answers)
    assert again.exit_code == 2, "with another default for max_tokens these are other requests"
    before = answers.read_bytes()
    again = batch(given, answers, "--max-tokens", 4, "--json")
    assert again.exit_code == 0
    assert json.loads(again.stdout)["answered"] == 6
    assert answers.read_bytes() == before


def test_a_request_that_says_nothing_is_sampled_as_the_model_says(
    batch: Cli, copy: Path, tmp_path: Path
) -> None:
    given = write(tmp_path / "in", chat("a"), chat("b", temperature=0.9))
    own = {"do_sample": True, "temperature": 0.4, "top_k": 9}
    (copy / "generation_config.json").write_text(json.dumps(own))
    by_itself = batch(given, tmp_path / "own", "--model", copy)
    assert "says: temperature 0.4, top_k 9 (--greedy" in by_itself.stderr
    asked = batch(given, tmp_path / "asked", "--temperature", 0.4, "--top-k", 9)
    assert asked.exit_code == 0
    assert said(tmp_path / "own") == said(tmp_path / "asked")
    greedy = batch(given, tmp_path / "greedy", "--model", copy, "--greedy")
    assert "generation_config" not in greedy.stderr
    assert said(tmp_path / "greedy")["a"] != said(tmp_path / "own")["a"]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_in_company_as_alone(batch: Cli, tmp_path: Path, concurrency: int) -> None:
    requests = [chat(f"q{i}", "Say " + "so " * i, n=2) for i in range(5)]
    given, answers = write(tmp_path / "in", *requests), tmp_path / "out"
    assert batch(given, answers, "--concurrency", concurrency).exit_code == 0
    together = said(answers)
    only = write(tmp_path / "only", requests[3])
    alone = batch(only, tmp_path / "alone", "--isolate")
    assert alone.exit_code == 0
    assert "saved" not in alone.stdout, "nothing was shared with another request"
    assert said(tmp_path / "alone")["q3"] == together["q3"]


def test_faulty_lines_do_not_stop_the_others(batch: Cli, tmp_path: Path) -> None:
    faulty = ["{\n", chat("a"), chat("b", stream=True), chat("a"), {"body": {}}, '"\n']
    too_long = chat("c", "word " * 5000)
    never_fits = chat("d", max_tokens=4000, n=64)
    given, answers = write(tmp_path / "in", *faulty, too_long, never_fits), tmp_path / "out"
    for _ in range(2):  # the second time, nothing is done anew
        result = batch(given, answers)
        assert result.exit_code == 1
        assert "7 of 8 requests could not be answered" in result.stderr
        assert f"hint: the reasons stand in '{answers}'" in result.stderr
        assert "1 of 8 requests answered, 7 failed" in result.stdout
    lines = read(answers)
    assert len(lines) == 8
    errors = {line["error"]["line"]: line["error"] for line in lines if line["error"]}
    assert set(errors) == {1, 3, 4, 5, 6, 7, 8}
    assert errors[1]["message"].startswith("line 1 is not JSON")
    assert errors[3]["message"] == "stream is True; this is not supported: an answer comes whole"
    assert errors[4]["message"].startswith("line 4 has the custom_id 'a' of line 2")
    assert errors[5]["message"].startswith("line 5 has no custom_id")
    places = [errors[number]["param"] for number in (1, 3, 4, 5, 7)]
    assert places == [None, "stream", "custom_id", "custom_id", "messages"]
    assert errors[7]["code"] == "context_too_long"
    assert errors[8]["code"] == "out_of_memory"
    answers.write_text("".join(json.dumps(line) + "\n" for line in lines if not line["error"]))
    assert "1 of 8 requests answered, 7 failed" in batch(given, answers).stdout
    assert {line["id"] for line in read(answers)} == {line["id"] for line in lines}, "tried again"


def test_nothing_is_put_on_record_for_a_model_that_cannot_be_loaded(
    batch: Cli, tmp_path: Path
) -> None:
    given, answers = write(tmp_path / "in", "{\n", chat("a")), tmp_path / "out"
    assert batch(given, answers, "--adapter", tmp_path / "none").exit_code == 3
    result = batch(given, answers)  # the command, mended
    assert "1 of 2 requests answered, 1 failed" in result.stdout, result.output
    assert sorted(line["custom_id"] or "" for line in read(answers)) == ["", "a"]


def test_every_field_of_sampling(batch: Cli, tmp_path: Path) -> None:
    """Penalties, a bias, logprobs, an echo, a form, a least length: each does what it says."""
    pytest.importorskip("llguidance")
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [1, 22, 333]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    bad = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "thing"}}}
    greedy = {"temperature": 0, "max_tokens": 8}

    def plain(name: str, **body: Any) -> dict[str, Any]:
        url = "/v1/completions"
        return {"custom_id": name, "url": url, "body": {"prompt": "So the", **greedy, **body}}

    requests = [
        plain("free", min_tokens=8, logprobs=0),
        plain("weighed", min_tokens=8, logprobs=0, frequency_penalty=2, repetition_penalty=2),
        plain("biased", logit_bias={"70": 100}),
        plain("echo", echo=True, logprobs=1, max_tokens=1),
        plain("prompt", echo=True, logprobs=1, max_tokens=0),
        plain("regex", structured_outputs={"regex": "(ab){3}"}),
        chat("form", response_format=form, max_tokens=99, n=2, logprobs=True, top_logprobs=2),
        chat("bad", response_format=bad),
    ]
    answers = tmp_path / "out"
    result = batch(write(tmp_path / "in", *requests), answers)
    assert "7 of 8 requests answered, 1 failed" in result.stdout, result.output
    lines = {line["custom_id"]: line for line in read(answers)}
    error = lines.pop("bad")["error"]
    assert error["param"] == "response_format.json_schema.schema"
    assert "the JSON schema cannot be followed" in error["message"]
    found = {name: line["response"]["body"]["choices"] for name, line in lines.items()}
    free, weighed = (found[name][0]["logprobs"]["tokens"] for name in ("free", "weighed"))
    assert len(free) == 8
    assert free != weighed
    assert len(set(weighed)) == 8 > len(set(free)), "what was written is not written again"
    assert len(set(found["biased"][0]["text"])) == 1
    echo, prompt = (found[name][0] for name in ("echo", "prompt"))
    assert prompt["text"] == "So the"
    assert echo["text"].startswith("So the")
    told = echo["logprobs"]
    assert told["token_logprobs"][0] is None
    assert told["token_logprobs"][:-1] == pytest.approx(prompt["logprobs"]["token_logprobs"])
    assert "".join(told["tokens"][:-1]) == "So the"
    assert all(value < 0 for value in told["token_logprobs"][1:])
    assert (found["regex"][0]["text"], found["regex"][0]["finish_reason"]) == ("ababab", "stop")
    for one in found["form"]:
        content = one["message"]["content"]
        assert json.loads(content)["a"] in (1, 22, 333)
        told = one["logprobs"]["content"]
        assert b"".join(bytes(each["bytes"]) for each in told).decode() == content
        assert all(len(each["top_logprobs"]) == 2 for each in told)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: [chat("a", "Else?"), lines[1]], "the request 'a' has changed since"),
        (lambda lines: lines[1:], "holds an answer to the request 'a', which is not in the input"),
        (lambda lines: [], "holds no request"),
    ],
)
def test_an_input_that_has_changed(
    batch: Cli, tmp_path: Path, change: Callable[..., list[Any]], words: str
) -> None:
    lines = [chat("a"), chat("b")]
    given, answers = write(tmp_path / "in", *lines), tmp_path / "out"
    assert batch(given, answers).exit_code == 0
    before = answers.read_bytes()
    write(given, *change(lines))
    result = batch(given, answers)
    assert result.exit_code == 2
    assert words in result.stderr
    assert answers.read_bytes() == before


def test_new_requests_may_be_added(batch: Cli, tmp_path: Path) -> None:
    given, answers = write(tmp_path / "in", chat("a")), tmp_path / "out"
    assert batch(given, answers).exit_code == 0
    write(given, chat("b"), chat("a"))
    assert batch(given, answers).exit_code == 0
    assert list(said(answers)) == ["a", "b"]


@pytest.mark.parametrize("content", ["my thesis", "my thesis\n", "[1]\n", '{"id": 3}\n', "{}\n{"])
def test_somebody_elses_file_is_left_alone(batch: Cli, tmp_path: Path, content: str) -> None:
    given, answers = write(tmp_path / "in", chat("a")), write(tmp_path / "out", content)
    result = batch(given, answers)
    assert result.exit_code == 2
    assert "nothing is added to it" in result.stderr
    assert answers.read_text() == content


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"custom_id": None}, "it does not say which request it is about"),
        ({"custom_id": 4}, "it does not say which request it is about"),
        ({"custom_id": None, "error": "no"}, "it does not say which request it is about"),
        ({"custom_id": None, "error": {}}, "it does not say which request it is about"),
        ({"custom_id": None, "error": {"line": 1e999}}, "it does not say which request"),
        ({"response": None}, "it has neither a response nor an error"),
    ],
)
def test_answers_that_were_damaged_are_named(
    batch: Cli, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    """A line without a request ended in a traceback; one without its response counted as an answer."""
    given, answers = write(tmp_path / "in", chat("a"), chat("b")), tmp_path / "out"
    assert batch(given, answers).exit_code == 0
    first, second = read(answers)
    write(answers, first, {**second, **change})
    before = answers.read_bytes()
    result = batch(given, answers)
    assert result.exit_code == 2
    assert f"line 2 of {str(answers)!r} is not an answer of a batch: {words}" in result.stderr
    assert answers.read_bytes() == before


def test_files_that_cannot_be_used(batch: Cli, tmp_path: Path) -> None:
    given, pipe = write(tmp_path / "in", chat("a")), tmp_path / "pipe"
    os.mkfifo(pipe)
    for args, code, words in (
        ((tmp_path / "none", tmp_path / "out"), 2, "cannot be read: No such file"),
        ((given, given), 2, "the same file"),
        ((given, tmp_path), 8, "cannot be written: Is a directory"),
        ((given, "/nowhere/out"), 8, "'/nowhere/out' cannot be written: No such file"),
        ((given, pipe), 8, "cannot be written: it is not a regular file"),
        ((given, "/dev/full"), 8, "cannot be written: it is not a regular file"),
        ((given, tmp_path / "out", "--concurrency", 0), 2, "concurrency"),
        (("-", tmp_path / "out"), 2, "the requests are '-'; expected a file"),
        ((given, "-"), 2, "the answers are '-'; expected a file"),
        ((given, tmp_path / "out", "--temperature", -1), 2, "temperature is -1.0; expected 0"),
        ((given, tmp_path / "out", "--temperature", "inf"), 2, "temperature is inf; expected 0"),
        ((given, tmp_path / "out", "--temperature", "nan"), 2, "temperature is nan; expected 0"),
        ((given, tmp_path / "out", "--device", "toaster"), 2, "device 'toaster' is not available"),
    ):
        result = batch(*args)
        assert result.exit_code == code
        assert words in result.stderr
        assert not (tmp_path / "out").exists() or not read(tmp_path / "out")
    assert not Path("-").exists()


def test_what_failed_is_asked_again(batch: Cli, tmp_path: Path) -> None:
    given = write(tmp_path / "in", "{\n", chat("a"), chat("b", n=0), chat("c", top_p=2), chat("d"))
    answers = tmp_path / "out"
    answers.touch(0o640)
    link = tmp_path / "link"
    link.symlink_to(answers)
    assert "with --retry-failures" in batch(given, link).stderr
    good = [line for line in read(answers) if not line["error"]]
    assert [line["custom_id"] for line in good] == ["a", "d"]
    # One is mended, one has got a form, one is as it was.
    write(given, chat("e"), chat("a"), chat("b"), chat("c", top_p=2), chat("d"))
    before = answers.read_bytes()
    refused = batch(given, link)
    assert refused.exit_code == 2
    assert "with --retry-failures, what failed is asked again as it is now" in refused.stderr
    assert answers.read_bytes() == before
    for _ in range(2):
        result = batch(given, link, "--retry-failures")
        assert result.exit_code == 1
        assert "4 of 5 requests answered, 1 failed" in result.stdout
        lines = read(answers)
        assert len(lines) == 5
        assert lines[:2] == good, "what was answered is not done again"
        assert {line["custom_id"] for line in lines if line["error"]} == {"c"}
    assert link.is_symlink()
    assert answers.stat().st_mode & 0o777 == 0o640
    assert not list(tmp_path.glob(".*")), "nothing is left beside it"


def test_an_answer_is_never_asked_again(batch: Cli, tmp_path: Path) -> None:
    given, answers = write(tmp_path / "in", chat("a"), chat("b", n=0)), tmp_path / "out"
    assert batch(given, answers).exit_code == 1
    write(given, chat("a", "Else?"), chat("b"))
    before = answers.read_bytes()
    result = batch(given, answers, "--retry-failures")
    assert result.exit_code == 2
    assert "the request 'a' has changed since" in result.stderr
    assert "--retry-failures" not in result.stderr
    assert answers.read_bytes() == before


def test_when_failures_cannot_be_taken_out_all_stays(
    batch: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, answers = write(tmp_path / "in", chat("a"), chat("b", n=0)), tmp_path / "out"
    assert batch(given, answers).exit_code == 1
    before = answers.read_bytes()

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        result = batch(given, answers, "--retry-failures")
    assert result.exit_code == 8
    assert answers.read_bytes() == before
    assert not list(tmp_path.glob(".*"))


def test_one_that_goes_on_without_failures_has_the_file(tmp_path: Path) -> None:
    given, path = a_written_output(tmp_path)
    source = read_input(given, DEFAULTS)
    with Output(path, source, retry_failures=True) as output:
        assert output.done == set()
        assert path.read_bytes() == b""
        with pytest.raises(InvalidRequest, match="another run is writing to"):
            Output(path, source)
        output.write(source.faulty)
    assert len(read(path)) == 1


def test_requests_for_another_model_are_answered_by_this_one(
    batch: Cli, tmp_path: Path, model: Path
) -> None:
    requests = [chat("a", model="there"), chat("b", model=str(model)), chat("c", model="far")]
    result = batch(write(tmp_path / "in", *requests), tmp_path / "out")
    assert result.exit_code == 0
    assert (
        f"warning: requests name the model 'there' and 1 more; all are answered by '{model}'"
        in (result.stderr)
    )
    assert batch(write(tmp_path / "in", requests[1]), tmp_path / "own").stderr == ""


class Terminal(io.StringIO):
    """Somebody watches."""

    def isatty(self) -> bool:
        return True


def test_who_watches_sees_the_time_left_and_tokens_per_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    with progress_bar() as progress:
        bar = progress.add_task("", total=4, completed=0, rate="")
        for done in range(1, 4):
            time.sleep(0.01)
            progress.update(bar, completed=done, rate=f"{100 * done} tokens/s")
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    last = shown.strip().splitlines()[-1]
    assert re.search(r"3/4 300 tokens/s 0:\d\d:\d\d 0:\d\d:\d\d", last), last


# -- the files -------------------------------------------------------------------------------------


def a_written_output(folder: Path, count: int = 6) -> tuple[Path, Path]:
    given = write(folder / "in", "{\n", *(chat(f"q{i}", "é" * i) for i in range(count)))
    path = folder / "out"
    source = read_input(given, DEFAULTS)
    with Output(path, source) as output:
        output.write(source.faulty)
        for number, line in source.lines:
            mark = source.fingerprints[line["custom_id"]]
            output.write([error_line(InvalidRequest("é"), number, line["custom_id"], mark)])
    return given, path


def test_a_file_cut_anywhere_is_mended(tmp_path: Path) -> None:
    given, path = a_written_output(tmp_path)
    whole, source = path.read_bytes(), read_input(given, DEFAULTS)
    keys = [1, *(f"q{i}" for i in range(6))]
    ends = [end for end, byte in enumerate(whole) if byte == ord("\n")]
    cuts = {end + near for end in ends for near in (-1, 0, 1)} | set(range(0, len(whole), 17))
    for size in sorted(cuts):
        path.write_bytes(whole[:size])
        with Output(path, source) as output:
            done = whole[:size].count(b"\n")
            assert output.done == set(keys[:done])
        assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:done])


def test_one_run_at_a_time_has_the_file(tmp_path: Path) -> None:
    given, path = a_written_output(tmp_path)
    source, before = read_input(given, DEFAULTS), path.read_bytes()
    with Output(path, source), pytest.raises(InvalidRequest, match="another run is writing to"):
        Output(path, source)
    with Output(path, source) as output:
        assert len(output.done) == source.num_requests
    assert path.read_bytes() == before


def test_a_disk_that_fills_in_the_middle(
    batch: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = write(tmp_path / "in", *(chat(f"q{i}") for i in range(4)))
    answers, calls = tmp_path / "out", 0

    def full(number: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        result = batch(given, answers, "--concurrency", 1)
    assert result.exit_code == 8
    assert f"'{answers}' cannot be written: No space left on device" in result.stderr
    kept = said(answers)
    assert 0 < len(kept) < 4
    assert batch(given, answers, "--concurrency", 1).exit_code == 0
    assert kept.items() <= said(answers).items()
    assert len(said(answers)) == 4


# -- killed, and interrupted -----------------------------------------------------------------------


def start(given: Path, answers: Path, model: Path) -> Warm:
    """A process that has answered some requests, and has more to do."""
    options = ["--model", str(model), "--memory-tokens", "4096", "--concurrency", "2"]
    process = Warm(
        [*COMMAND, "batch", str(given), str(answers), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    end = time.monotonic() + 90
    while not answers.exists() or answers.read_bytes().count(b"\n") < 3:
        assert time.monotonic() < end, "the batch does not begin"
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    return process


def test_killed_in_the_middle_and_still_each_once(batch: Cli, tmp_path: Path, model: Path) -> None:
    requests = [chat(f"q{i}", f"Tell me {i}", max_tokens=30, n=2) for i in range(24)]
    given, answers = write(tmp_path / "in", *requests), tmp_path / "out"
    process = start(given, answers, model)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    whole_lines = answers.read_bytes().rpartition(b"\n")[0]
    assert 2 <= whole_lines.count(b"\n") < 23
    answers.write_bytes(whole_lines + b'\n{"id": "batch_req_1234", "cust')  # as a kill may leave it

    assert batch(given, answers, "--concurrency", 7).exit_code == 0
    assert answers.read_bytes().startswith(whole_lines)
    found = said(answers)
    assert set(found) == {f"q{i}" for i in range(24)}
    assert batch(given, tmp_path / "at once").exit_code == 0
    assert said(tmp_path / "at once") == found, "what was interrupted is what it would have been"


def test_ctrl_c_leaves_a_file_to_go_on_with(
    batch: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = write(tmp_path / "in", *(chat(f"q{i}") for i in range(9)))
    answers, right = tmp_path / "out", Output.write
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)

    def write_and_press(output: Output, lines: Any) -> None:
        right(output, lines)
        if lines:
            os.kill(os.getpid(), signal.SIGINT)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(Output, "write", write_and_press)
            result = batch(given, answers, "--concurrency", 2)
    finally:
        signal.signal(signal.SIGINT, usual)
    assert result.exit_code == 130
    num_left = 9 - len(said(answers))
    assert 0 < num_left < 9
    assert f"interrupted with {num_left} requests left; the same command goes on" in result.stderr
    assert f"{9 - num_left} of 9 requests answered" in result.stdout
    assert batch(given, answers).exit_code == 0
    assert len(said(answers)) == 9


def test_ctrl_c_while_the_model_loads_is_heard_at_once(
    batch: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is under way then that could be finished; a replica may take minutes to begin."""
    given, answers = write(tmp_path / "in", chat("a"), {"body": {}}), tmp_path / "out"
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    heard = []

    def loads(*_: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        heard.append("too late")
        raise AssertionError("it goes on")

    try:
        with monkeypatch.context() as patch:
            patch.setattr(module_of("batch"), "load_engine", loads)
            result = batch(given, answers)
    finally:
        signal.signal(signal.SIGINT, usual)
    assert (result.exit_code, heard) == (130, [])
    assert result.stderr == "interrupted with 2 requests left; the same command goes on\n"
    assert not answers.exists(), "nothing is on record for a model that was never loaded"
    assert batch(given, answers).exit_code == 1
    assert len(read(answers)) == 2
