"""Branches from the command line: options, what is shown of them, and their traces."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from manyhands.cli.columns import picture
from manyhands.cli.live import LiveScreen
from manyhands.cli.options import SolveOptions
from manyhands.cli.outcome import Outcome
from manyhands.cli.output import Notes
from manyhands.cli.running import drive
from manyhands.cli.screens import JsonScreen, PlainScreen, QuietScreen, Screen
from manyhands.cli.solve import account_for, settings_of
from manyhands.prompts.branches import BranchPrompt
from manyhands.replay.trace import read_trace, record
from manyhands.strategies.account import Account
from manyhands.strategies.branches import branches
from manyhands.strategies.settings import BranchSettings, EndSettings
from tests.cli.conftest import DONE, Cli
from tests.cli.scripted import TEXT, scripted
from tests.strategies.specs import spec_of

WORDS = {
    "writer": "Let us see.\n####Anna:Ben:%%%%Both \\boxed{4}",
    "branch 1": "is one####",
    "branch 2": "is three, and that is all",
}
BEN = 12  # tokens of the second branch
SAID = "Let us see.\nAnna: is one\nBen: {}\nBoth \\boxed{{4}}".format(
    TEXT.decode(TEXT.encode(WORDS["branch 2"])[:BEN]).strip()
)
SETTINGS = BranchSettings(branch_tokens=BEN, end=EndSettings(finisher=False))
PROMPT = BranchPrompt("{question}")


def shown(
    screen_of: Any, settings: BranchSettings = SETTINGS, **words: str
) -> tuple[Account, Outcome]:
    """Drive the scripted run; the account, and the outcome as its screen was shown it."""
    account = account_for(spec_of(settings, PROMPT, "who"))
    screen: Screen = screen_of(account)
    engine: Any = scripted({**WORDS, **words})
    outcome = drive(engine, branches("who", TEXT, settings, PROMPT), account, screen)
    screen.end(outcome)
    return account, outcome


def test_every_option_reaches_the_settings(solve: Cli, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    options = (
        "--method branches --join keep --max-blocks 2 --max-branches 3 --branch-tokens 9 "
        "--title-tokens 7 --join-distance --snapshots 2 --seed 4 --temperature 0.5"
    )
    result = solve("who", "--json", "--transcript", trace, *options.split())
    assert result.exit_code in DONE, result.output
    found = json.loads(result.stdout)
    assert (found["method"], found["branches"], found["join_distances"]) == ("branches", [], [])
    assert list(found["snapshots"]) == ["2"]
    settings = read_trace(trace).header["settings"]
    asked = {
        **{"join": "keep", "max_blocks": 2, "max_branches": 3, "branch_tokens": 9},
        **{"title_tokens": 7, "join_distance": True, "snapshots": [2], "seed": 4, "budget": 6},
    }
    assert {name: settings[name] for name in asked} == asked
    assert settings["choice"]["temperature"] == 0.5


def test_defaults_of_the_command_are_those_of_the_settings(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = BranchSettings()
    assert settings_of(SolveOptions(method="branches")) == defaults
    monkeypatch.setenv("COLUMNS", "200")
    told = cli("solve", "--help").stdout
    for name in ("join", "max_blocks", "max_branches", "branch_tokens", "title_tokens"):
        assert f"[default: {getattr(defaults, name)}]" in told


@pytest.mark.parametrize(
    ("method", "option", "mend"),
    [
        ("hogwild", "--join keep", "--method branches"),
        ("sequential", "--max-blocks 3", "--method branches"),
        ("hogwild", "--join-distance", "--method branches"),
        ("branches", "--layout combined", "--method hogwild"),
        ("branches", "--check-every 5", "--method hogwild"),
    ],
)
def test_options_of_another_method(solve: Cli, method: str, option: str, mend: str) -> None:
    result = solve("who", "--method", method, *option.split())
    assert result.exit_code == 2
    assert f"error: {option.split()[0]}" in result.stderr
    assert f"is not for --method {method}" in result.stderr
    assert mend in result.stderr


@pytest.mark.parametrize(
    "option", ["--join glue", "--max-blocks -1", "--branch-tokens 0", "--max-branches x"]
)
def test_options_that_cannot_be(solve: Cli, option: str) -> None:
    assert solve("who", "--method", "branches", *option.split()).exit_code == 2


def test_words_of_its_own(solve: Cli, tmp_path: Path) -> None:
    words, trace = tmp_path / "words.toml", tmp_path / "t.jsonl"
    words.write_text('[branches]\nrules = "{marker} {question}"\n', encoding="utf-8")
    done = solve("who", "--method", "branches", "--prompts", words, "--transcript", trace, "-q")
    assert done.exit_code in DONE, done.output
    assert read_trace(trace).header["prompt"]["rules"] == "{marker} {question}"


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    _, outcome = shown(
        lambda account: JsonScreen(account, spec_of(SETTINGS, PROMPT, "who").facts(), Notes())
    )
    found = json.loads(capsys.readouterr().out)
    assert found["text"] == SAID
    assert (found["answer"], found["finish_reason"]) == ("4", "answer")
    assert [(b["title"], b["finish_reason"]) for b in found["branches"]] == [
        ("Anna", "marker"),
        ("Ben", "budget"),
    ]
    line, anna, ben = found["tokens"]
    assert ben == BEN > anna
    assert found["forward_passes"] == line + 1 + ben  # the critical path, and the line's end
    assert found["forward_passes"] == outcome.answer.forward_passes
    assert "#" not in found["text"]


def test_plain_text_says_everything_once(capsys: pytest.CaptureFixture[str]) -> None:
    shown(lambda account: PlainScreen(account, 100))
    told, _, last = capsys.readouterr().out.strip().rpartition("\n")
    assert told == SAID
    assert last.startswith("Ended: answer · ")


def test_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    _, outcome = shown(lambda _: QuietScreen())
    assert capsys.readouterr().out == outcome.answer.text + "\n"


def test_live(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Branches while they are written; at the end the reply, and nothing of it twice."""
    monkeypatch.setattr("manyhands.cli.live._INTERVAL", 0.0)
    monkeypatch.setattr("manyhands.cli.live._SHARE", 0)
    output = io.StringIO()
    console = Console(file=output, width=90, height=20, force_terminal=True, color_system=None)
    shown(lambda account: LiveScreen(account, console, 100))
    last = output.getvalue()
    for words in ("Writer [2]", "Anna marker", "Ben budget"):
        assert words in last
    assert "####" not in last
    assert capsys.readouterr().out.count("is one") == 1


def test_the_account_of_a_run() -> None:
    account, outcome = shown(lambda _: QuietScreen())
    answer = outcome.answer
    assert [hand.name for hand in account.hands] == ["Writer", "Anna", "Ben"]
    assert tuple(hand.num_tokens for hand in account.hands) == answer.tokens
    assert account.reply.strip() == answer.text
    assert account.so_far("interrupted", 0).text == answer.text
    told = [(s.worker, s.text, s.first_pass, s.last_pass) for s in account.steps()]
    assert (
        told == [(s.worker, s.text, s.first_pass, s.last_pass) for s in answer.steps if s.text][:3]
    )


def test_those_of_earlier_blocks_make_room(capsys: pytest.CaptureFixture[str]) -> None:
    writer = "####Anna:Ben:%%%%So.\n####Carol:%%%%Done."
    account, _ = shown(lambda _: QuietScreen(), writer=writer, **{"branch 3": "me####"})  # type: ignore[arg-type]
    titles = "".join(line.plain for line in picture(account, (), 80, 20))
    assert "Carol" in titles
    assert "Anna" not in titles
    assert [hand.name for hand in account.hands] == ["Writer", "Anna", "Ben", "Carol"]
    assert capsys.readouterr().out.count("####") == 0


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """The scripted run, as a file."""
    path = tmp_path / "run.jsonl"
    lines: list[dict[str, Any]] = []
    spec = spec_of(SETTINGS, PROMPT, "who")
    header = {"model": "tiny", **spec.to_plain()}
    strategy = record(branches("who", TEXT, SETTINGS, PROMPT), header, lines.append)
    account = account_for(spec)
    engine: Any = scripted(WORDS)
    drive(engine, strategy, account, QuietScreen())
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_a_trace_told_again(cli: Cli, trace: Path) -> None:
    told = cli("replay", trace).stdout
    assert "branches    1 Anna: marker, " in told
    assert f"2 Ben: budget, {BEN} tokens" in told
    assert "workers     Writer, Anna, Ben" in told
    assert "\nAnna: passes " in told
    found = json.loads(cli("replay", trace, "--json").stdout)
    assert [branch["title"] for branch in found["branches"]] == ["Anna", "Ben"]


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("WorkerJoined", {"worker": 5}),
        ("WorkerJoined", {"name": 3}),
        ("WorkerStopped", {"reason": None}),
    ],
)
def test_a_damaged_trace(cli: Cli, trace: Path, kind: str, change: dict[str, Any]) -> None:
    lines = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
    next(line for line in lines if line.get("event") == kind).update(change)
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert cli("replay", trace).exit_code == 7


def test_verify_and_continue(cli: Cli, solve: Cli, tmp_path: Path) -> None:
    """A run of a real network, whose text has no blocks; those are in tests/engine/test_restore.py."""
    path = tmp_path / "t.jsonl"
    whole = solve("who", "--method", "branches", "--transcript", path, "--json").stdout
    verified = json.loads(cli("replay", path, "--verify", "--json").stdout)
    assert verified["verified"]["agreement"] == 1
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    passes = [at for at, line in enumerate(lines) if '"kind": "pass"' in line]
    path.write_text("".join(lines[: passes[3] + 1]), encoding="utf-8")
    found = json.loads(cli("replay", path, "--continue", "--json").stdout)
    for fact in ("text", "tokens", "forward_passes", "branches", "finish_reason"):
        assert found[fact] == json.loads(whole)[fact]
