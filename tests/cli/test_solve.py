"""`manyhands solve`: every option does what it says, and the output has its form."""

from __future__ import annotations

import gc
import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from manyhands import bundled
from manyhands.cli import app
from manyhands.cli.options import SolveOptions
from manyhands.cli.outcome import Outcome
from manyhands.cli.running import drive
from manyhands.cli.solve import EXAMPLE, settings_of
from manyhands.model.sheet_files import SheetFiles
from manyhands.prompts import Prompts, TeamPrompt, dump_prompt, load_prompts, model_prompts
from manyhands.replay.trace import read_trace
from manyhands.strategies.settings import SoloSettings, TeamSettings
from manyhands.tasks.arithmetic.problem_list import ask
from manyhands.tasks.arithmetic.world import outside_world
from manyhands.text import printable
from tests.cli.conftest import CONTEXT, DONE, Cli, module_of
from tests.hub_cache import keep


def as_json(result: Any) -> dict[str, Any]:
    assert result.exit_code in DONE, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_defaults_of_the_command_are_those_of_the_settings() -> None:
    assert settings_of(SolveOptions()) == TeamSettings()
    assert settings_of(SolveOptions(method="sequential")) == SoloSettings()


def test_help_names_the_defaults_that_the_settings_have(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = cli("solve", "--help").stdout
    team = TeamSettings()
    for default in (team.layout, team.check_every, team.headers):
        assert f"[default: {default}]" in shown
    assert f"[default: ({team.workers}; " in shown


def test_every_option_reaches_the_settings(cli: Cli, solve: Cli, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    options = (
        "--workers 3 --layout interleaved --check-every 5 --headers alone --budget 7 --seed 4 "
        "--temperature 0.9 --top-k 30 --top-p 0.8 --min-p 0.01 --snapshots 2,4 --no-finisher "
        "--finisher-tokens 3 --reencode --no-reply --reply-tokens 9 --answer auto --total 90 --device cpu --dtype float64 "
        "--backend reference --memory-tokens 8000 --context 1900"
    )
    found = as_json(solve("1 + 2", "--json", "--transcript", trace, *options.split()))
    header = read_trace(trace).header
    settings = header["settings"]
    choice, end = settings.pop("choice"), settings.pop("end")
    assert settings == {
        "workers": 3,
        "most_workers": None,
        "layout": "interleaved",
        "budget": 7,
        "check_every": 5,
        "headers": "alone",
        "moves": "rotate",
        "seed": 4,
        "snapshots": [2, 4],
        "away": [],
        "insertions": {},
    }
    assert (choice["temperature"], choice["top_k"]) == (0.9, 30)
    assert (choice["top_p"], choice["min_p"]) == (0.8, 0.01)
    assert end == {
        "finisher": False,
        "finisher_tokens": 3,
        "reencode": True,
        "reply": False,
        "stop": [],
        "reply_tokens": 9,
        "answer": "auto",
        "total": 90,
    }
    assert (header["device"], header["dtype"], header["backend"]) == ("cpu", "float64", "reference")
    assert (header["context"], header["weights"], header["problem"]) == (1900, "auto", "1 + 2")
    assert found["workers"] == 3
    assert found["seed"] == 4
    assert found["layout"] == "interleaved"


def test_json_is_one_object_with_these_fields(solve: Cli, model: Path) -> None:
    result = solve("1 + 2", "--json", "--snapshots", "3")
    found = as_json(result)
    assert list(found) == [
        *("answer", "text", "finish_reason", "forward_passes", "extra_passes", "tokens"),
        *("seconds", "model", "method", "workers", "layout", "seed", "budget", "names", "steps"),
        *("snapshots", "warnings"),
    ]
    assert found["finish_reason"] == "budget"
    assert found["forward_passes"] == 6
    assert found["extra_passes"] == 2 + 2 + 3
    assert found["tokens"] == [6, 6]
    assert found["seconds"] > 0
    assert (found["model"], found["method"]) == (str(model), "hogwild")
    assert (found["workers"], found["layout"], found["seed"]) == (2, "combined", 0)
    assert found["snapshots"] == {"3": None}
    assert found["warnings"] == []
    assert found["names"] == ["Alice", "Bob"]
    assert {(step["worker"], step["first_pass"], step["last_pass"]) for step in found["steps"]} == {
        (0, 1, 6),
        (1, 1, 6),
    }
    assert isinstance(found["text"], str)
    assert result.stderr == ""


def test_one_worker_alone(solve: Cli) -> None:
    found = as_json(solve("1 + 2", "--json", "--method", "sequential", "--workers", 1))
    assert (found["method"], found["workers"], found["layout"]) == ("sequential", 1, None)
    assert found["tokens"] == [6]


@pytest.mark.parametrize(
    "option", ["--layout combined", "--workers 2", "--headers alone", "--check-every 0"]
)
def test_one_worker_alone_has_no_team(solve: Cli, option: str) -> None:
    result = solve("1 + 2", "--method", "sequential", *option.split())
    assert result.exit_code == 2
    assert f"error: {option} is not for --method sequential" in result.stderr
    assert "--method hogwild" in result.stderr


def test_the_same_seed_writes_the_same(solve: Cli) -> None:
    first, again, other = (
        as_json(solve("1 + 2", "--json", "--temperature", 1, "--seed", seed, "--no-reply"))["text"]
        for seed in (1, 1, 2)
    )
    assert first == again != other


@pytest.fixture
def sampling(copy: Path) -> Path:
    """A model that wants its tokens sampled."""
    said = {"do_sample": True, "temperature": 0.6, "top_p": 0.95}
    (copy / "generation_config.json").write_text(json.dumps(said), encoding="utf-8")
    return copy


@pytest.mark.parametrize(
    ("options", "told", "choice"),
    [
        ("", "temperature 0.6, top_p 0.95", (0.6, 0.95)),
        ("--top-p 0.5", "temperature 0.6", (0.6, 0.5)),
        ("--set choice.top_p=0.5 --temperature 0", None, (0.0, 0.5)),
        ("--temperature 0", None, (0.0, 0.95)),
        ("--greedy", None, (0.0, 1.0)),
        ("--method best_of_n --workers 2", "temperature 0.6, top_p 0.95", (0.6, 0.95)),
    ],
)
def test_a_models_own_sampling_is_the_default(
    solve: Cli, sampling: Path, tmp_path: Path, options: str, told: str | None, choice: Any
) -> None:
    trace = tmp_path / "t.jsonl"
    short = ("--budget", 1, "--no-finisher", "--no-reply", "--transcript", trace)
    result = solve("1 + 2", "--model", sampling, *short, *options.split())
    assert result.exit_code in DONE, result.output
    found = read_trace(trace).header["settings"]["choice"]
    assert (found["temperature"], found["top_p"]) == choice
    said = "sampling as the model's own generation_config.json says: "
    assert (said in result.stderr) == (told is not None)
    assert told is None or f"{said}{told} (--greedy turns it off)\n" in result.stderr


def test_greedy_keeps_the_rules_of_a_method(solve: Cli, sampling: Path) -> None:
    """Several attempts need a temperature, and a temperature is not greedy."""
    attempts = solve("1 + 2", "--model", sampling, "--greedy", "--method", "best_of_n")
    assert attempts.exit_code == 2
    assert "4 workers at temperature 0" in attempts.stderr
    both = solve("1 + 2", "--model", sampling, "--greedy", "--temperature", 0.5)
    assert both.exit_code == 2
    assert "--greedy and a temperature were asked for together" in both.stderr


def test_random_weights_need_no_file_of_them(solve: Cli, copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    assert solve("1 + 2", "--model", copy, "--load", "dummy", "--quiet").exit_code in DONE


def test_problem_from_a_file_and_from_a_pipe(solve: Cli, tmp_path: Path) -> None:
    file = tmp_path / "problem.txt"
    file.write_text("1 + 2\n", encoding="utf-8")
    given = [
        solve("1 + 2", "--json"),
        solve("--file", file, "--json"),
        solve("-", "--json", input="1 + 2\n"),
        solve("--file", "-", "--json", input="1 + 2\n"),
        solve("--json", input=b"\xef\xbb\xbf1 + 2\r\n"),
    ]
    assert len({as_json(result)["text"] for result in given}) == 1


def test_quiet_prints_the_reply_alone(solve: Cli) -> None:
    sampled = ("1 + 2", "--temperature", 1, "--seed", 3)
    reply = as_json(solve(*sampled, "--json"))["text"]
    result = solve(*sampled, "--quiet")
    assert result.stdout == printable(reply) + "\n"
    assert result.stderr == ""


def test_plain_text_when_not_a_terminal(solve: Cli) -> None:
    result = solve("1 + 2", "--temperature", 1, "--seed", 3)
    assert result.stdout.startswith("Alice [1]: ")
    assert "\n\nBob [1]: " in result.stdout
    assert "\x1b" not in result.output


def test_no_answer_is_said_beside_the_output(solve: Cli) -> None:
    result = solve("1 + 2", "--no-reply", "--no-finisher")
    assert result.exit_code == 9
    assert "no answer was found: the budget of forward passes is spent" in result.stderr


def test_prompts_can_be_printed_edited_and_used(
    cli: Cli, solve: Cli, model: Path, tmp_path: Path
) -> None:
    words = tmp_path / "words.toml"
    words.write_text(cli("prompts", "--model", model).stdout, encoding="utf-8")
    assert load_prompts(words) == Prompts()
    for wrong, code in (("./none", 3), ("", 2)):
        assert cli("prompts", "--model", wrong).exit_code == code
    told = cli("prompts").stdout
    assert told.startswith("# The words of bundled.")
    words.write_text(told, encoding="utf-8")
    assert load_prompts(words) == model_prompts(bundled.path()) != Prompts()
    words.write_text('[team]\nnames = ["Ada", "Ben"]\n', encoding="utf-8")
    shown = solve("1 + 2", "--prompts", words, "--temperature", 1, "--seed", 3).stdout
    assert shown.startswith(("Ada [1]: ", "Ben [1]: "))


def test_prompts_of_a_model_on_the_hub(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache without a network: one model brings words, one none, a third is not here."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    own = TeamPrompt(names=("Uwe",))
    keep(tmp_path, "some/trained", {"config.json": "{}", "manyhands.toml": dump_prompt(own)})
    keep(tmp_path, "some/plain", {"config.json": "{}"})
    trained = cli("prompts", "--model", "some/trained").stdout
    assert trained.startswith("# The words of some/trained.")
    assert 'names = ["Uwe"]' in trained
    plain = cli("prompts", "--model", "some/plain").stdout
    assert plain.startswith("# some/plain brings no words: ours.")
    missing = cli("prompts", "--model", "no/such-model")
    assert missing.exit_code == 3
    assert "the model 'no/such-model' is not here" in missing.stderr
    assert missing.stdout == ""


def test_a_model_brings_its_own_words(solve: Cli, copy: Path, tmp_path: Path) -> None:
    (copy / "manyhands.toml").write_text(dump_prompt(TeamPrompt(names=("Uwe",))), encoding="utf-8")
    own = solve("1 + 2", "--model", copy, "--temperature", 1, "--seed", 3).stdout
    assert own.startswith("Uwe [1]: ")
    words = tmp_path / "words.toml"
    words.write_text('[team]\nnames = ["Ada", "Ben"]\n', encoding="utf-8")
    given = solve("1 + 2", "--model", copy, "--prompts", words, "--temperature", 1, "--seed", 3)
    assert given.stdout.startswith(("Ada [1]: ", "Ben [1]: "))


def test_a_file_of_words_leaves_the_models_others_as_they_are(
    solve: Cli, copy: Path, tmp_path: Path
) -> None:
    own = TeamPrompt(names=("Uwe",), solo_rules="Alone: {problem}")
    (copy / "manyhands.toml").write_text(dump_prompt(own), encoding="utf-8")
    words, trace = tmp_path / "words.toml", tmp_path / "t.jsonl"
    words.write_text('[team]\nnames = ["Ada"]\n', encoding="utf-8")
    solve("1 + 2", "--model", copy, "--prompts", words, "--budget", 2, "--transcript", trace)
    prompt = read_trace(trace).header["prompt"]
    assert (prompt["names"], prompt["solo_rules"]) == (["Ada"], "Alone: {problem}")


def test_a_system_message(solve: Cli, copy: Path, tmp_path: Path) -> None:
    template = "{% for m in messages %}<|user|>{{ m.role }}: {{ m.content }}\n{% endfor %}"
    (copy / "chat_template.jinja").write_text(template, encoding="utf-8")
    trace = tmp_path / "t.jsonl"
    told = ("--model", copy, "--budget", 2, "--system", "Be brief.", "--transcript", trace)
    solve("1 + 2", *told)
    assert read_trace(trace).header["earlier"] == [{"role": "system", "text": "Be brief."}]


def test_snapshots_are_shown(solve: Cli) -> None:
    result = solve("1 + 2", "--snapshots", "2,4", "--budget", 6)
    told = [line for line in result.stdout.splitlines() if line.startswith("Answer after ")]
    assert [line.split()[2] for line in told] == ["2", "4"]


def test_what_was_imported_and_loaded_is_kept_from_the_collector(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a full collection in the midst of a run would walk over all of it."""
    gc.unfreeze()
    is_left_out: list[bool] = []

    def watched(engine: Any, *words: Any) -> Outcome:
        model = engine.executor.adapter.model
        is_left_out.append(all(each is not model for each in gc.get_objects()))
        return drive(engine, *words)

    monkeypatch.setattr(module_of("solve"), "drive", watched)
    words = ["solve", "1 + 2", "--model", str(model), "--budget", "2", "--no-reply", "-q"]
    assert CliRunner().invoke(app, words).exit_code in DONE
    assert gc.get_freeze_count() > 100_000
    assert is_left_out == [True]
    gc.unfreeze()


def test_what_is_suggested_without_a_problem_can_be_solved() -> None:
    assert outside_world(EXAMPLE, 2) is None


@pytest.mark.usefixtures("bundled")
def test_the_bundled_model_is_the_default_and_warns_outside_its_world(cli: Cli) -> None:
    short = ("--budget", 2, "--no-finisher", "--reply-tokens", 1, "--json")
    inside = cli("solve", ask(["12 + 30 - 4", "8 + 9 + 1"]), *short)
    assert as_json(inside)["warnings"] == []
    assert as_json(inside)["model"] == "bundled"
    outside = cli("solve", "Prove the Riemann hypothesis.", *short)
    (warning,) = as_json(outside)["warnings"]
    assert "not a numbered list" in warning
    assert outside.stderr == f"warning: {warning}\n"


def test_other_models_have_no_such_world(solve: Cli) -> None:
    assert solve("Prove the Riemann hypothesis.", "--quiet").stderr == ""


def test_fewer_bits_on_a_cpu_cost_time_and_it_is_said(solve: Cli) -> None:
    """They are unpacked for every product; the run was slower than without, and nothing said why."""
    told = solve("1 + 2", "--quantise", "int4", "--device", "cpu")
    assert "unpacked for every product: that takes less memory and more time" in told.stderr, (
        told.output
    )
    assert "unpacked" not in solve("1 + 2", "--device", "cpu").stderr


def test_a_transcript_is_a_whole_trace(solve: Cli, tmp_path: Path, model: Path) -> None:
    path = tmp_path / "t.jsonl"
    found = as_json(solve(" 1 + 2\x00 ", "--json", "--transcript", path))
    trace = read_trace(path)
    assert trace.is_complete
    assert trace.answer is not None
    assert trace.answer["text"] == found["text"]
    assert len(trace.passes) == found["forward_passes"] + found["extra_passes"]
    header = trace.header
    assert (header["model"], header["method"], header["workers"]) == (str(model), "hogwild", 2)
    assert header["problem"] == "1 + 2"
    assert header["context"] == CONTEXT
    assert set(header["versions"]) == {"manyhands", "torch", "transformers"}
    assert len(header["fingerprint"]) == 32
    assert header["prompt"]["names"] == list(TeamPrompt().names)


def test_version(cli: Cli) -> None:
    assert cli("--version").stdout.startswith("manyhands ")


def test_help_tells_the_exit_codes(cli: Cli) -> None:
    for command in ((), ("solve",), ("replay",), ("prompts",)):
        shown = " ".join(cli(*command, "--help").stdout.split())
        assert "130 interrupted by Ctrl-C" in shown


def test_a_prompt_is_loaded_from_the_cache(
    solve: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, ask_again = tmp_path / "keys", ("1 + 2", "--json", "--cache", tmp_path / "keys")
    first = as_json(solve(*ask_again))
    sheets = list(folder.glob("*/*.safetensors"))
    for _ in range(3000):  # written by a thread
        if sheets and not list(folder.glob("*/.*")):
            break
        time.sleep(0.02)
        sheets = list(folder.glob("*/*.safetensors"))
    read: list[str] = []
    real = SheetFiles._read
    monkeypatch.setattr(
        SheetFiles, "_read", lambda files, name: read.append(name) or real(files, name)
    )
    second = as_json(solve(*ask_again))
    assert read
    assert {path.stem for path in sheets} >= set(read)
    differ = {key for key in first if first[key] != second[key]}
    assert differ <= {"seconds", "found", "usage"}, differ


def test_a_cache_that_cannot_be(solve: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for options, code, told in (
        (("--cache-size", 5), 2, "there is no cache"),
        (("--cache", " "), 2, "cache is empty"),
        (("--cache", tmp_path / "file"), 8, "cannot be written to"),
    ):
        result = solve("1 + 2", *options)
        assert (result.exit_code, told in result.output) == (code, True), result.output
