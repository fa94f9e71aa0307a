"""Skeleton, self-consistency, best-of-n and drafts on the command line: each option reaches its place."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from manyhands.cli.options import SolveOptions
from manyhands.cli.solve import account_for, settings_of
from manyhands.prompts.chain_of_draft import INSTRUCTION
from manyhands.prompts.skeleton import SkeletonPrompt
from manyhands.prompts.votes import VotesPrompt
from manyhands.replay.trace import read_trace
from manyhands.strategies.account import Account
from manyhands.strategies.events import Event
from manyhands.strategies.methods import METHODS
from manyhands.strategies.settings import BestSettings, SkeletonSettings, VoteSettings
from manyhands.strategies.skeleton import skeleton
from tests.cli.conftest import DONE, Cli
from tests.cli.scripted import TEXT, scripted
from tests.strategies.specs import spec_of

NEW = ("skeleton", "self_consistency", "best_of_n")


def as_json(result: Any) -> dict[str, Any]:
    assert result.exit_code in DONE, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_defaults_of_the_command_are_those_of_the_settings() -> None:
    for method, settings in zip(
        NEW, (SkeletonSettings(), VoteSettings(), BestSettings()), strict=True
    ):
        assert settings_of(SolveOptions(method=method)) == settings


def test_help_names_the_defaults_that_the_settings_have(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = cli("solve", "--help").stdout
    settings, votes = SkeletonSettings(), VoteSettings()
    for default in (settings.outline_tokens, settings.max_points, settings.thread_tokens):
        assert f"[default: {default}]" in shown
    assert f"[default: {votes.mode}]" in shown
    plain = " ".join(shown.replace("│", " ").split())
    for told in (
        "skeleton: 0, one for each point",
        f"self_consistency, best_of_n: {votes.workers}",
    ):
        assert re.search(rf"{told}[;)]", plain), told
    for method in NEW:
        assert METHODS[method].about in plain


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        (
            "skeleton",
            "--workers 2 --outline-tokens 5 --max-points 3 --thread-tokens 4",
            {"workers": 2, "outline_tokens": 5, "max_points": 3, "thread_tokens": 4},
        ),
        ("self_consistency", "--workers 3 --mode vote", {"workers": 3, "mode": "vote"}),
        ("self_consistency", "--temperature 0.3", {"workers": 4, "mode": "final"}),
        ("best_of_n", "-n 2 --top-k 9", {"workers": 2}),
        ("async_reasoning", "--probe-every 2", {"probe_every": 2}),
        (
            "async_think",
            "-n 3 --max-forks 5 --worker-tokens 9",
            {"workers": 3, "max_forks": 5, "worker_tokens": 9},
        ),
    ],
)
def test_a_run_its_trace_and_its_replay(
    cli: Cli, solve: Cli, tmp_path: Path, method: str, options: str, expected: dict[str, Any]
) -> None:
    trace = tmp_path / "t.jsonl"
    arguments = ("--json", "--snapshots", "2,4", "--transcript", trace, *options.split())
    found = as_json(solve("1 + 2", "--method", method, *arguments))
    settings = read_trace(trace).header["settings"]
    assert {name: settings[name] for name in expected} == expected
    assert (found["method"], found["forward_passes"], set(found["snapshots"])) == (
        method,
        6,
        {"2", "4"},
    )
    replayed = as_json(cli("replay", trace, "--json"))
    for name in ("answer", "text", "tokens", "method", "snapshots"):
        assert replayed[name] == found[name]


@pytest.mark.parametrize("method", [*NEW, "async_reasoning", "async_think"])
def test_a_run_that_was_cut_off_goes_on(cli: Cli, solve: Cli, tmp_path: Path, method: str) -> None:
    trace, half = tmp_path / "t.jsonl", tmp_path / "half.jsonl"
    found = as_json(solve("1 + 2", "--method", method, "--json", "--transcript", trace))
    lines = trace.read_text(encoding="utf-8").splitlines(keepends=True)
    half.write_text("".join(lines[: len(lines) // 2]), encoding="utf-8")
    resumed = as_json(cli("replay", half, "--continue", "--json"))
    for name in ("answer", "text", "tokens", "forward_passes", "extra_passes"):
        assert resumed[name] == found[name]


def test_workers_at_temperature_0_would_all_write_the_same(solve: Cli) -> None:
    result = solve("1 + 2", "--method", "best_of_n", "--temperature", 0)
    assert result.exit_code == 2
    assert "4 workers at temperature 0" in result.stderr
    assert "0.7" in result.stderr
    alone = ("--method", "self_consistency", "--temperature", 0, "-n", 1)
    assert as_json(solve("1 + 2", "--json", *alone))["tokens"] == [6]


@pytest.mark.parametrize(
    ("method", "option"),
    [
        ("best_of_n", "--mode vote"),
        ("hogwild", "--max-points 3"),
        ("skeleton", "--layout combined"),
    ],
)
def test_an_option_of_another_method(solve: Cli, method: str, option: str) -> None:
    result = solve("1 + 2", "--method", method, *option.split())
    assert result.exit_code == 2
    assert f"error: {option} is not for --method {method}" in result.stderr


def test_a_profile_asks_for_its_method(solve: Cli) -> None:
    found = as_json(solve("1 + 2", "--profile", "multiverse", "--json"))
    assert found["method"] == "profiled"
    result = solve("1 + 2", "--method", "branches", "--profile", "multiverse")
    assert result.exit_code == 2
    assert "error: --profile multiverse is not for --method branches" in result.stderr


@pytest.mark.parametrize("method", list(METHODS))
def test_drafts_with_every_method(solve: Cli, tmp_path: Path, method: str) -> None:
    trace = tmp_path / "t.jsonl"
    as_json(solve("1 + 2", "--json", "--method", method, "--draft", "--transcript", trace))
    prompt = read_trace(trace).header["prompt"]
    rules = [text for name, text in prompt.items() if name.endswith("rules")]
    assert rules
    assert all(text.startswith(INSTRUCTION) for text in rules)


def test_the_account_of_a_skeleton() -> None:
    """The account of a run that is cut short: every worker by name, with its tokens."""
    settings, prompt = SkeletonSettings(workers=2, budget=60), SkeletonPrompt()
    account = account_for(spec_of(settings, prompt, "who"))
    words = {
        "writer": " wind\n2. sun\n3. rain\n\n",
        "point 1": "blows",
        "point 2": "hot",
        "point 3": "wet",
    }
    answer = drive(account, skeleton("who", TEXT, settings, prompt), words)
    assert [hand.name for hand in account.hands] == ["Writer", "Worker 1", "Worker 2"]
    assert tuple(hand.num_tokens for hand in account.hands) == answer.tokens
    assert sorted(step.text for step in account.steps()) == sorted(s.text for s in answer.steps)
    assert account.reply.strip() == answer.text


def drive(account: Account, strategy: Any, words: dict[str, str]) -> Any:
    engine = scripted(words)
    run = engine.submit(strategy)
    while engine.step():
        while run.events:
            event = run.events.popleft()
            assert isinstance(event, Event)
            account.take(event)
    for event in run.events:
        account.take(event)
    return run.result()


def test_the_accounts_of_attempts() -> None:
    for settings in (VoteSettings(workers=3), BestSettings(workers=3)):
        account = account_for(spec_of(settings, VotesPrompt(), "who"))
        assert [hand.name for hand in account.hands] == ["Attempt 1", "Attempt 2", "Attempt 3"]
        method = METHODS[settings.method]
        words = {f"attempt {i}": f"\\boxed{{{i}}}" for i in (1, 2, 3)}
        answer = drive(account, method.make("who", TEXT, settings, VotesPrompt()), words)
        assert tuple(hand.num_tokens for hand in account.hands) == answer.tokens
        assert account.answer == answer.answer
        assert account.reply.strip() == answer.text or not account.reply
