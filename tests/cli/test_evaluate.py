"""`manyhands eval`, `judge` and `report` on a tiny model with random weights, and on a server."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from typer.testing import Result

from manyhands.cli.candidates import _settings, facts_of_task, task_of
from manyhands.cli.exam_options import EvalOptions
from manyhands.evaluation.judge import votes_file
from manyhands.evaluation.record import EXAM_LINES, read_results, result_files
from manyhands.prompts import Prompts
from manyhands.prompts.chain_of_draft import drafted
from manyhands.replay.trace import read_trace
from manyhands.schema.lines import read_lines
from manyhands.strategies.methods import METHODS
from manyhands.tasks.catalogue import make_task
from manyhands.tasks.generated import BUNDLED_SENTENCES
from manyhands.tasks.task import TaskOptions, protocol_of
from tests.cli.conftest import Cli
from tests.evaluation.small import completion, header, record, server, team_record, write
from tests.evaluation.test_reach import curve, made
from tests.programs import isolation

TINY = ("--memory-tokens", 8192, "--device", "cpu", "--set", "end.finisher_tokens=3")


@pytest.fixture
def exam(cli: Cli, model: Path, tmp_path: Path) -> Cli:
    """Run `manyhands eval` on three short lists."""

    def run(*args: object, input: str | bytes | None = None) -> Result:
        task = ("--task", "arithmetic", "--limit", 3, "--count", 2, "--out", tmp_path / "out")
        return cli("eval", "--model", model, *task, *TINY, "--budgets", "3,6", *args)

    return run


def test_an_answer_that_is_asked_for_has_the_tokens_that_its_task_needs() -> None:
    method = METHODS["sequential"]

    def tokens(task: str, *listed: str) -> int:
        options = EvalOptions(task=task, out=Path("out"), chosen={}, listed=listed)
        protocol = protocol_of(make_task(task, TaskOptions(source="fixture")))
        return _settings(options, method, (64,), [], protocol)[0].end.finisher_tokens

    assert (tokens("aime25"), tokens("math500")) == (16, 64)
    assert tokens("aime25", "end.finisher_tokens=5") == 5


def test_traces_of_an_exam_are_kept_with_their_scores(exam: Cli, tmp_path: Path) -> None:
    """Each is the run of its record, and a training takes it; the report looks past them."""
    assert exam("-n", 2, "--traces", "--label", "team").exit_code == 0
    folder = tmp_path / "out" / "arithmetic"
    assert [path.name for path in result_files(tmp_path / "out")] == ["team.jsonl"]
    assert result_files(folder) == [folder / "team.jsonl"]
    results = read_results(folder / "team.jsonl")
    records = results.records
    assert len(list((folder / "traces" / "team").iterdir())) == len(records) == 3
    for each in records:
        trace = read_trace(folder / "traces" / "team" / f"{each.sample}.{each.repeat}.jsonl")
        assert trace.is_complete
        assert trace.score == each.value(6)
        assert len(trace.header["vocabulary"]) == 16
        assert trace.header["fingerprint"] == results.header.fingerprint
        assert set(trace.header["versions"]) == {"manyhands", "torch", "transformers"}
        assert trace.header["problem"] == each.question


def test_an_exam_from_the_first_question_to_the_page(exam: Cli, cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for args in (
        ["--method", "sequential"],
        ["-n", 2, "--transcripts", 2, "--layout", "contiguous"],
    ):
        result = exam(*args)
        assert result.exit_code == 0, result.output
        assert "3 records in" in result.output
    again = exam("--method", "sequential", "--limit", 4)
    assert "\n4 records in" in again.output
    assert "3 were known" in again.output
    found = {path.stem: read_results(path) for path in result_files(out)}
    assert list(found) == [
        "hogwild-2-finisher_tokens=3-layout=contiguous",
        "sequential-finisher_tokens=3",
    ]
    team = found["hogwild-2-finisher_tokens=3-layout=contiguous"]
    assert team.header.budgets == (3, 6)
    assert team.header.settings["layout"] == "contiguous"
    assert team.header.settings["end"]["reply"] is False
    assert team.header.settings["end"]["answer"] == "boxed"
    assert sorted(bool(r.writing) for r in team.records) == [False, True, True]
    assert all(r.forward_passes is not None and r.forward_passes <= 6 for r in team.records)
    assert cli("report", out).exit_code == 0
    assert "Alice" in (out / "report.html").read_text(encoding="utf-8")


def test_programs_of_the_model_are_run_if_that_is_allowed(cli: Cli, tmp_path: Path) -> None:
    isolation()
    args = (
        "eval",
        "--task",
        "livecodebench",
        "--source",
        "fixture",
        "--limit",
        1,
        "--out",
        tmp_path,
    )
    refused = cli(*args)
    assert refused.exit_code != 0
    assert "allow that with --allow-code" in " ".join(refused.output.split())
    more = ("--allow-code", "--method", "sequential", "--budgets", 3, "--finisher-tokens", 2)
    result = cli(*args, *more)
    assert result.exit_code == 0, result.output
    assert "programs of the model are run: " in " ".join(result.output.split())
    (path,) = result_files(tmp_path)
    results = read_results(path)
    assert results.header.settings["end"]["answer"] == "code"
    assert sorted(record.repeat for record in results.records) == list(range(8)), "as in the paper"
    assert results.records[0].scores["3"]["explanation"] == "no program"
    useless = cli("eval", "--task", "arithmetic", "--allow-code", "--out", tmp_path)
    assert "--allow-code is not for --task arithmetic" in " ".join(useless.output.split())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--set", "layuot=combined"], "TeamSettings have no 'layuot'"),
        (["--set", "layout"], "expected name=value"),
        (["--set", "budget=3"], "use --budgets"),
        (["--budgets", "3,x"], "budgets is '3,x'; expected numbers"),
        (["--budgets", "0"], "budgets has 0; expected 1 or more forward passes"),
        (
            ["--method", "sequential", "-n", 3],
            "--workers 3 is not for --method sequential hint: leave it out, or ask for --method hogwild",
        ),
        (
            ["--method", "sequential", "--layout", "combined"],
            "--layout combined is not for --method sequential hint: leave it out, or ask for "
            "--method hogwild",
        ),
        (["--set", "workers=3", "-n", 2], "twice: --set workers=3 and --workers 2"),
        (
            ["--set", "layout=contiguous", "--layout", "interleaved"],
            "layout was given twice: --set layout=contiguous and --layout interleaved",
        ),
        (["--set", "seed=4", "--seed", 0], "seed was given twice: --set seed=4 and --seed 0"),
        (["--set", "choice.top_k=4", "--top-k", 5], "--set choice.top_k=4 and --top-k 5"),
        (["--set", "end.reply=yes", "--no-reply"], "--set end.reply=yes and --no-reply"),
        (["--set", "choice.draw=0.5"], "have no 'choice.draw'"),
        (["--kind", "hard"], "no kind 'hard'"),
        (
            ["--source", "x.jsonl"],
            "--source x.jsonl is not for --task arithmetic hint: leave it out; arithmetic takes "
            "--limit, --task-seed, --count, --kind",
        ),
        (["--endpoint", "http://x/v1"], "cannot take the exam as 'hogwild'"),
        (
            ["--endpoint", "http://x/v1", "--method", "sequential", "--budgets", 3],
            "an endpoint has no use for --set end.finisher_tokens=3, --model",
        ),
        (["--method", "bogwild"], "method is 'bogwild'; expected one of"),
        (["--method", "shared_prefix"], "2 budgets were given for shared_prefix, expected one"),
    ],
)
def test_what_cannot_be_asked_for(exam: Cli, args: list[object], said: str) -> None:
    result = exam(*args)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_what_is_said_of_the_records(exam: Cli) -> None:
    method = ("--method", "sequential")
    assert "\n1 record in" in exam(*method, "--limit", 1).output
    assert "\n3 records in" in exam(*method).output
    assert "\n2 of the 3 records in" in exam(*method, "--limit", 2).output


def test_a_seed_of_either_kind(exam: Cli, tmp_path: Path) -> None:
    for args in (["--seed", 4], ["--set", "seed=4"], []):
        assert exam(*args, "--limit", 1, "--label", f"x{len(args)}{args[-1:]}").exit_code == 0
    found = [read_results(path).header.settings["seed"] for path in result_files(tmp_path / "out")]
    assert sorted(found) == [0, 4, 4]


def test_an_exam_of_a_model_that_samples_by_itself(exam: Cli, copy: Path, tmp_path: Path) -> None:
    said = {"do_sample": True, "temperature": 0.4}
    (copy / "generation_config.json").write_text(json.dumps(said), encoding="utf-8")
    result = exam("--method", "sequential", "--limit", 1, "--model", copy)
    assert "generation_config.json says: temperature 0.4 (--greedy turns it off)" in result.stderr
    (path,) = result_files(tmp_path / "out")
    assert read_results(path).header.settings["choice"]["temperature"] == 0.4


def test_other_settings_do_not_go_into_the_same_file(exam: Cli, tmp_path: Path) -> None:
    assert exam("--label", "x").exit_code == 0
    result = exam("--label", "x", "--seed", 3)
    assert result.exit_code == 2
    assert 'was made with settings {"seed": 0}; this run has {"seed": 3}' in result.output
    assert len(read_results(result_files(tmp_path / "out")[0]).records) == 3


def test_when_everything_fails_the_command_does_too(exam: Cli, tmp_path: Path) -> None:
    result = exam("--memory-tokens", 32)
    assert result.exit_code == 1
    assert "3 failed, and count as 0" in result.output
    assert "every sample failed" in result.output
    assert exam("--memory-tokens", 8192, "--retry-failures").exit_code == 0
    assert not [r for r in read_results(result_files(tmp_path / "out")[0]).records if r.error]


def test_a_full_disk_has_its_exit_code(
    exam: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").write_text("in the way")
    assert exam().exit_code == 8


def test_an_endpoint_takes_the_exam(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    task = ("--task", "arithmetic", "--limit", 2, "--out", tmp_path, "--budgets", 64)
    with server(lambda asked: completion("\\boxed{1,2,3,4,5}")) as (url, seen):
        door = ("--endpoint", url, "--endpoint-model", "m/1")
        result = cli("eval", *task, *door, "--method", "sequential")
        assert result.exit_code == 0, result.output
        result = cli("eval", *task, *door, "--method", "self_consistency", "-n", 3)
        assert result.exit_code == 0, result.output
        assert (
            cli("eval", *task, *door, "--budgets", "3,4", "--method", "sequential").exit_code == 2
        )
        assert cli("eval", *task, *door[:2], "--method", "sequential").exit_code == 2
    assert len(seen) == 2 + 6
    assert {s["key"] for s in seen} == {"Bearer secret"}
    assert "secret" not in "".join(p.read_text() for p in result_files(tmp_path))
    assert [p.stem for p in result_files(tmp_path)] == [
        "m-1-self_consistency-3",
        "m-1-sequential",
    ]
    assert cli("report", tmp_path).exit_code == 0


def test_an_endpoint_is_told_the_rules(cli: Cli, tmp_path: Path) -> None:
    """Words of a file take the place of ours; they are on record, and others are refused."""

    def boxes_if_asked(asked: dict[str, Any]) -> tuple[int, Any]:
        is_asked = "final answer in \\boxed{}" in asked["messages"][0]["content"]
        return completion("\\boxed{1}" if is_asked else "1")

    words = tmp_path / "words.toml"
    words.write_text("[team]\nsolo_rules = 'Be brief. {problem}'\n", encoding="utf-8")
    out = tmp_path / "out"
    task = ("--task", "arithmetic", "--limit", 1, "--out", out, "--budgets", 64)
    with server(boxes_if_asked) as (url, seen):
        door = ("--endpoint", url, "--endpoint-model", "m")
        for method in ("sequential", "self_consistency"):
            for more in ((), ("--draft",), ("--prompts", words, "--label", f"brief {method}")):
                result = cli("eval", *task, *door, "--method", method, "-n", 1, *more)
                assert result.exit_code == 0, result.output
        before = len(seen)
        result = cli(*("eval", *task, *door, "--method", "sequential", "--prompts", words))
    assert len(seen) == before
    assert result.exit_code == 2
    assert "was made with prompts" in result.output
    said = [s["messages"][0]["content"] for s in seen]
    assert said[:3] == said[3:]
    assert said[1] == drafted(Prompts()).team.solo_rules[: -len("{problem}")] + said[2][10:]
    assert said[2].startswith("Be brief. ")
    found = {path.stem: read_results(path) for path in result_files(out)}
    answers = {stem: results.records[0].answer for stem, results in found.items()}
    assert answers == {
        "brief-self_consistency": None,
        "brief-sequential": None,
        "m-self_consistency-1": "1",
        "m-self_consistency-1-draft": "1",
        "m-sequential": "1",
        "m-sequential-draft": "1",
    }
    assert found["brief-sequential"].header.prompts["solo_rules"] == "Be brief. {problem}"
    assert found["brief-self_consistency"].header.prompts["rules"] == "Be brief. {question}"
    assert all(results.header.fingerprint is None for results in found.values())


def test_other_weights_under_the_same_name_are_another_model(
    cli: Cli, copy: Path, tmp_path: Path
) -> None:
    task = ("--task", "arithmetic", "--limit", 1, "--count", 2, "--out", tmp_path / "out")
    exam = ("eval", "--model", copy, *task, *TINY, "--budgets", 3, "--method", "sequential")
    assert cli(*exam).exit_code == 0
    assert cli(*exam, "--fuse", "on", "--limit", 2).exit_code == 0
    (path,) = result_files(tmp_path / "out")
    own = read_results(path).header.fingerprint
    assert own is not None
    weights = load_file(copy / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    result = cli(*exam, "--limit", 3)
    assert result.exit_code == 2
    assert f'was made with fingerprint "{own}"; this run has "' in result.output
    # A file that is older than fingerprints can be read, but nobody knows who wrote it.
    header, *records = path.read_text(encoding="utf-8").splitlines(keepends=True)
    old = {name: value for name, value in json.loads(header).items() if name != "fingerprint"}
    path.write_text(json.dumps(old) + "\n" + "".join(records), encoding="utf-8")
    assert len(read_results(path).records) == 2
    assert cli("report", tmp_path / "out").exit_code == 0
    result = cli(*exam, "--limit", 3)
    assert result.exit_code == 2
    assert 'was made without fingerprint; this run has "' in result.output


def test_whether_a_model_thinks_is_part_of_its_records(
    cli: Cli, model: Path, tmp_path: Path
) -> None:
    task = ("--task", "arithmetic", "--limit", 1, "--count", 2, "--out", tmp_path / "out")
    exam = ("eval", "--model", model, *task, *TINY, "--budgets", 3, "--method", "sequential")
    assert cli(*exam).exit_code == 0
    assert cli(*exam, "--limit", 2, "--thinking", "on").exit_code == 0
    result = cli(*exam, "--limit", 3, "--thinking", "off")
    assert result.exit_code == 2
    assert 'was made with thinking null; this run has "off"' in result.output


def test_other_weights_under_the_same_name_are_another_judge(
    cli: Cli, copy: Path, tmp_path: Path
) -> None:
    path = write(tmp_path, header("team", method="hogwild"), [team_record("d1")])
    judge = ("judge", tmp_path, "--rubric", "quality", "--model", copy, "--tokens", 4)
    assert cli(*judge).exit_code in (0, 1)  # of random weights nobody knows what they say
    before = votes_file(path, "quality").read_bytes()
    result = cli(*judge, "--thinking", "off")
    assert result.exit_code == 2
    assert 'was made with changes []; this run has ["thinking off"]' in result.output
    weights = load_file(copy / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    result = cli(*judge)
    assert result.exit_code == 2
    assert 'was made with fingerprint "' in result.output
    assert votes_file(path, "quality").read_bytes() == before


def test_nobody_at_the_endpoint(cli: Cli, tmp_path: Path) -> None:
    door = ("--endpoint", "http://127.0.0.1:1/v1", "--endpoint-model", "m", "--retries", 0)
    task = ("--task", "arithmetic", "--limit", 2, "--out", tmp_path, "--budgets", 64)
    result = cli("eval", *task, *door, "--method", "sequential")
    assert result.exit_code == 1
    assert "cannot be asked" in result.output
    assert read_results(result_files(tmp_path)[0]).records == ()
    with server(lambda asked: completion("\\boxed{1}")) as (url, _):
        result = cli("eval", *task, "--endpoint", url, *door[2:], "--method", "sequential")
    assert result.exit_code == 0, result.output
    results = read_results(result_files(tmp_path)[0])
    assert len(results.records) == 2
    assert results.header.endpoint == url


def test_a_judge_at_the_wrong_address_binds_nobody(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, header("team"), [team_record("d1")])
    rubric = ("judge", tmp_path, "--rubric", "quality", "--endpoint-model", "m", "--retries", 0)
    result = cli(*rubric, "--endpoint", "http://127.0.0.1:1/v1")
    assert result.exit_code == 1
    with server(lambda asked: completion("\\boxed{2}")) as (url, _):
        result = cli(*rubric, "--endpoint", url)
        assert result.exit_code == 0, result.output
        assert "1 vote, 0 of them" in result.output
    result = cli(*rubric, "--endpoint", "http://127.0.0.1:1/v1")
    assert result.exit_code == 2
    assert "was made with endpoint" in result.output
    assert "--label" not in result.output


def test_records_are_judged_by_a_server_or_a_model(cli: Cli, model: Path, tmp_path: Path) -> None:
    path = write(tmp_path, header("team", method="hogwild"), [team_record("d1"), team_record("d2")])
    with server(lambda asked: completion("\\boxed{2}")) as (url, seen):
        door = ("--endpoint", url, "--endpoint-model", "m")
        result = cli("judge", tmp_path, "--rubric", "collaborativeness", *door)
        assert result.exit_code == 0, result.output
        assert "6 votes, 0 of them could not be read" in result.output
        assert cli("judge", tmp_path, "--rubric", "collaborativeness", *door).exit_code == 0
    assert len(seen) == 6
    result = cli("judge", tmp_path, "--rubric", "quality", "--model", model, "--tokens", 4)
    # Of random weights nobody knows what they say; in this case nothing that could be read.
    assert result.exit_code == (1 if "none of the 2 votes" in result.output else 0), result.output
    assert "2 votes" in result.output
    assert len(read_lines(votes_file(path, "quality"), EXAM_LINES)) == 1 + 2
    assert cli("report", tmp_path).exit_code == 0
    assert "What the judges said" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_votes_that_cannot_be_read_are_named(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, header("team", method="hogwild"), [team_record(f"d{n}") for n in range(1, 9)])

    def first_only(asked: dict[str, Any]) -> tuple[int, Any]:
        is_first = "Twice d1?" in asked["messages"][0]["content"]
        return completion("\\boxed{2}" if is_first else "I like it.")

    with server(first_only) as (url, _):
        door = ("--endpoint", url, "--endpoint-model", "m")
        result = cli("judge", tmp_path, "--rubric", "quality", *door)
    assert result.exit_code == 0, result.output
    assert "8 votes, 7 of them could not be read" in result.output
    assert "could not be read: d2, d3, d4, d5, d6 and 2 more\n" in result.output


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (completion("I like it."), "it names no level in a box"),
        ((400, {"error": {"message": "too long"}}), "too long"),
    ],
)
def test_when_no_vote_can_be_read_the_command_fails(
    cli: Cli, tmp_path: Path, reply: tuple[int, Any], said: str
) -> None:
    for label in ("team", "other"):
        write(tmp_path, header(label, method="hogwild"), [team_record("d1"), team_record("d2")])
    with server(lambda asked: reply) as (url, seen):
        door = ("--endpoint", url, "--endpoint-model", "m")
        for _ in range(2):  # the second time nobody is asked
            result = cli("judge", tmp_path, "--rubric", "collaborativeness", *door)
            assert result.exit_code == 1
            assert result.output.count("could not be read: d1, d2\n") == 2
            (line,) = [one for one in result.stderr.splitlines() if one.startswith("error: ")]
            assert "none of the 12 votes could be read; the first: " in line
            assert said in line
        assert len(seen) == 12
    with server(lambda asked: completion("\\boxed{2}")) as (url, _):
        again = ("--endpoint", url, "--endpoint-model", "m", "--retry-failures")
        result = cli("judge", tmp_path, "--rubric", "quality", *again)
        assert result.exit_code == 0, result.output
        assert "could not be read:" not in result.output


def test_on_a_terminal_there_is_a_bar(exam: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    result = exam("--method", "sequential")
    assert result.exit_code == 0, result.output
    assert "3/3" in result.output
    assert "\N{SYMBOL FOR ESCAPE}" not in result.output


def test_somebody_has_to_judge(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, header("team"), [team_record("d1")])
    result = cli("judge", tmp_path, "--rubric", "quality")
    assert result.exit_code == 2
    assert "nobody was named to judge" in result.output
    door = ("--endpoint", "http://x/v1", "--endpoint-model", "m", "--model", "bundled")
    result = cli("judge", tmp_path, "--rubric", "quality", *door)
    assert result.exit_code == 2
    assert "two judges were named" in result.output
    told = " ".join(cli("judge", "--help").stdout.replace("│", " ").split())
    assert "none; it has to be named, here or by --endpoint" in told
    assert "a small model that comes with" not in told


@pytest.mark.parametrize(
    ("args", "stem"),
    [
        (["--method", "branches"], "branches-finisher_tokens=3"),
        (["--method", "skeleton"], "skeleton-finisher_tokens=3"),
        (["--method", "best_of_n", "-n", 2], "best_of_n-2-finisher_tokens=3"),
    ],
)
def test_every_method_has_its_file(
    exam: Cli, tmp_path: Path, args: list[object], stem: str
) -> None:
    result = exam(*args, "--memory-tokens", 16384)
    assert result.exit_code == 0, result.output
    assert [path.stem for path in result_files(tmp_path / "out")] == [stem]


def test_questions_about_one_document_shared_and_apart(
    cli: Cli, model: Path, tmp_path: Path
) -> None:
    task = ("--task", "needles", "--count", 8, "--sentences", 4, "--out", tmp_path)
    place = ("--model", model, *TINY[:4], "--budgets", 5, "--concurrency", 8)
    for method in ("sequential", "shared_prefix"):
        result = cli("eval", *task, *place, "--method", method, "--set", "end.finisher=false")
        assert result.exit_code == 0, result.output
    shared, apart = (read_results(path) for path in sorted(result_files(tmp_path), reverse=True))
    assert (shared.header.method, apart.header.method) == ("shared_prefix", "sequential")
    by_sample = {record.sample: record for record in apart.records}
    assert len(by_sample) == 8
    assert [r.text for r in shared.records] == [by_sample[r.sample].text for r in shared.records]
    assert [sum(record.tokens) for record in shared.records] == [5] * 8
    held = [max(r.memory["kv_tokens"] for r in found.records) for found in (shared, apart)]
    # prompts are fed one after the other beside rows that write, so the eight do not stand there at once
    assert 2 * held[0] < held[1]
    assert cli("report", tmp_path).exit_code == 0


def test_a_document_that_no_question_fits_behind(cli: Cli, model: Path, tmp_path: Path) -> None:
    task = ("--task", "needles", "--sentences", 900, "--out", tmp_path, "--budgets", 5)
    result = cli("eval", "--model", model, *TINY[:4], *task, "--method", "sequential")
    assert result.exit_code == 5
    assert "fewer --sentences" in " ".join(result.output.split())
    assert not result_files(tmp_path)


@pytest.mark.parametrize(
    ("args", "sentences"),
    [
        ((), BUNDLED_SENTENCES),
        (("--sentences", 9), 9),
        (("--model", "own"), None),
        (("--endpoint", "http://x/v1"), None),
    ],
)
def test_the_bundled_model_reads_shorter_documents(
    args: tuple[object, ...], sentences: int | None
) -> None:
    given = {str(n).lstrip("-"): v for n, v in zip(args[::2], args[1::2], strict=True)}
    options = EvalOptions(task="needles", out=Path("x"), **given)  # type: ignore[arg-type]  # as typer would
    assert facts_of_task(options)["sentences"] == sentences
    task, samples = task_of(options)
    assert task.name == "needles"
    assert len(samples) == 256
    assert len(samples[0].document or "") < 10_000 or sentences is None


def test_chain_of_draft(exam: Cli, tmp_path: Path) -> None:
    assert exam("--method", "sequential", "--draft").exit_code == 0
    (path,) = result_files(tmp_path / "out")
    assert path.stem == "sequential-draft-finisher_tokens=3"
    assert read_results(path).header.prompts["solo_rules"].startswith("Think in drafts")


def test_what_a_judge_must_grade_has_no_value_before(cli: Cli, model: Path, tmp_path: Path) -> None:
    task = ("--task", "planning", "--limit", 1, "--out", tmp_path, "--budgets", 4)
    result = cli("eval", "--model", model, *TINY, *task, "--method", "sequential", "--no-reply")
    assert result.exit_code == 0, result.output
    assert "not judged yet" in result.output
    assert "0.000" not in result.output


def test_the_baseline_can_be_chosen(cli: Cli, tmp_path: Path) -> None:
    for label in ("sequential", "hogwild-3", "hogwild-3 layout=contiguous"):
        write(tmp_path, header(label, method=label.split("-")[0]), [record("d1")])
    assert cli("report", tmp_path, "--baseline", "hogwild-3").exit_code == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Each method minus hogwild-3, sample by sample" in page
    result = cli("report", tmp_path, "--baseline", "hogwild")
    assert result.exit_code == 2
    assert "there is no method 'hogwild' to compare with" in result.output


def test_compare_says_the_difference_and_its_exit_code_says_a_loss(
    cli: Cli, tmp_path: Path
) -> None:
    good, bad = (
        write(tmp_path, header(label), [record(f"d{n}", value) for n in range(9)])
        for label, value in (("sequential", 1.0), ("hogwild-2", 0.0))
    )
    worse = cli("compare", good, bad)
    assert worse.exit_code == 10
    assert "8 passes: -1.000 (95 % -1.000 to -0.455), better 0, same 0, worse 9" in worse.output
    assert cli("compare", bad, good).exit_code == cli("compare", good, good).exit_code == 0
    other = write(tmp_path, header(task="triples"), [record("d1")])
    refused = cli("compare", good, other)
    assert refused.exit_code == 2
    assert "'triples'" in refused.output
    assert cli("compare", good, tmp_path / "none.jsonl").exit_code == 2


def test_compare_says_where_a_value_is_not_reached(cli: Cli, tmp_path: Path) -> None:
    right, wrong = curve((0.0, 0.5, 1.0)), curve((0.0, 0.1, 0.2))
    first, second = made(tmp_path, "sequential", right), made(tmp_path, "hogwild-2", wrong)
    said = cli("compare", first, second).output
    assert "passes until a value of 0.970: B does not reach it" in said
    assert "A over B" not in said
    reached = made(tmp_path, "hogwild-3", curve((0.0, 1.0, 1.0)))
    assert "passes until a value of 0.970, A over B: 1.97" in cli("compare", first, reached).output


def test_a_folder_without_records(cli: Cli, tmp_path: Path) -> None:
    assert cli("report", tmp_path).exit_code == 2
    assert cli("judge", tmp_path, "--rubric", "quality").exit_code == 2


def test_a_broken_record_is_named(cli: Cli, tmp_path: Path) -> None:
    path = write(tmp_path, header(), [team_record("d1")])
    with path.open("a") as file:
        file.write(json.dumps({"kind": "record", "sample": "d2"}) + "\n")
    result = cli("report", tmp_path)
    assert result.exit_code == 2
    assert "line 3" in result.output


def press(*args: Any, **more: Any) -> Any:
    raise KeyboardInterrupt


def test_ctrl_c_says_that_nothing_is_lost(
    exam: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from manyhands.engine.engine import Engine

    step, count = Engine.step, 0

    def interrupted(self: Any) -> bool:
        nonlocal count
        count += 1
        if count > 30:
            raise KeyboardInterrupt
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "step", interrupted)
        result = exam("--method", "sequential", "--concurrency", 1)
    assert result.exit_code == 130
    told = " ".join(result.output.split())
    assert "jsonl has what is graded so far, and the same command goes on" in told
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "load", press)
        result = exam("--method", "sequential", "--concurrency", 1)
    assert result.exit_code == 130
    told = " ".join(result.output.split())
    assert re.search("interrupted; what .*out has stays, and the same command goes on", told)
    assert exam("--method", "sequential", "--concurrency", 1).exit_code == 0
    assert len(read_results(result_files(tmp_path / "out")[0]).records) == 3
