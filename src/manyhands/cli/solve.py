"""`manyhands solve`: one problem, from the command line to the answer.

What can be wrong is looked at in the order of its cost: settings, problem, words and transcript
before a model is loaded.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from manyhands.cache.step import Choice
from manyhands.cli.account import LONE_WORKER, Account
from manyhands.cli.guard import EXIT_INTERRUPTED, tell
from manyhands.cli.loading import load_engine, name_of, place_facts, prompt_for
from manyhands.cli.options import BUNDLED, SolveOptions
from manyhands.cli.outcome import INTERRUPTED, Outcome
from manyhands.cli.output import Notes, TraceFile
from manyhands.cli.running import drive, screen_for
from manyhands.cli.screens import Screen
from manyhands.errors import InvalidRequest
from manyhands.prompts import TeamPrompt
from manyhands.replay.trace import record
from manyhands.strategies.described import (
    Settings,
    describe_run,
    layout_of,
    method_of,
    strategy_from,
    workers_of,
)
from manyhands.strategies.settings import EndSettings, SoloSettings, TeamSettings
from manyhands.tasks.world import outside_world
from manyhands.text import MAX_PROBLEM_CHARS, clean_problem


def solve(options: SolveOptions) -> None:
    """Do what the command says; see `manyhands solve --help`."""
    settings = settings_of(options)
    problem = clean_problem(read_problem(options))
    model = name_of(options.model)
    prompt = prompt_for(model, options.prompts)
    notes = Notes()
    account = account_for(settings, prompt)
    screen = screen_for(
        account,
        facts_of(model, settings),
        notes,
        json=options.json,
        quiet=options.quiet,
        budget=settings.budget,
    )
    with TraceFile(options.transcript, notes) as file:
        if model == BUNDLED and (reason := outside_world(problem, workers_of(settings))):
            notes.warn(reason)
        try:
            engine, text = load_engine(model, options, notes)
        except KeyboardInterrupt:
            outcome = Outcome(account.so_far(INTERRUPTED, 0))
        else:
            run = describe_run(problem, settings, prompt, context=engine.adapter.max_positions)
            header = {"model": model, **place_facts(engine, options), **run}
            strategy = strategy_from(header, text, engine.adapter.max_positions)
            if options.transcript is not None:
                strategy = record(strategy, header, file.write)
            outcome = drive(engine, strategy, account, screen)
    finish(screen, outcome)
    if file.failure is not None:
        raise file.failure


def finish(screen: Screen, outcome: Outcome) -> None:
    """Show what came of a run; leave with its exit code if it did not end by itself."""
    screen.end(outcome)
    if outcome.error is not None:
        raise outcome.error
    if outcome.interrupted:
        tell(f"interrupted after {outcome.answer.forward_passes} forward passes")
        raise typer.Exit(EXIT_INTERRUPTED)


def account_for(settings: Settings, prompt: TeamPrompt) -> Account:
    """An account with the names of the workers."""
    if isinstance(settings, TeamSettings):
        return Account(prompt.team(settings.workers))
    return Account((LONE_WORKER,), solo=True)


def facts_of(model: str, settings: Settings) -> dict[str, Any]:
    """What the JSON object says about how the run was made."""
    return {
        "model": model,
        "method": method_of(settings),
        "workers": workers_of(settings),
        "layout": layout_of(settings),
        "seed": settings.seed,
    }


def settings_of(options: SolveOptions) -> Settings:
    """The settings of the method that was asked for, checked by their own rules."""
    choice = Choice(options.temperature, options.top_k, options.top_p, options.min_p)
    end = EndSettings(
        options.finisher,
        options.finisher_tokens,
        options.reencode,
        options.reply,
        options.reply_tokens,
    )
    shared: dict[str, Any] = {
        "budget": options.budget,
        "choice": choice,
        "seed": options.seed,
        "snapshots": _snapshots(options.snapshots),
        "end": end,
    }
    names = ("workers", "layout", "check_every", "headers")
    team = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if options.method == "hogwild":
        return TeamSettings(**shared, **team)
    for name, value in team.items():
        if (name, value) != ("workers", 1):
            raise InvalidRequest(
                f"--{name.replace('_', '-')} {value} is for a team, and --method is sequential",
                hint="leave it out, or ask for --method hogwild",
            )
    return SoloSettings(**shared)


def _snapshots(listed: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in listed.split(",") if listed.strip())
    except ValueError as error:
        raise InvalidRequest(
            f"--snapshots is {listed!r}; expected numbers with commas between them",
            hint="for example: --snapshots 100,200",
        ) from error


def read_problem(options: SolveOptions) -> str:
    """The problem as it was given: the argument, a file or a pipe, and only one of them."""
    argument, file = options.problem, options.file
    if file is not None and argument is not None:
        raise InvalidRequest(
            "the problem is given twice, as an argument and as a file", hint="leave one of them out"
        )
    if file is not None and str(file) != "-":
        return _read_file(file)
    if argument is not None and argument != "-":
        return argument
    asked = argument == "-" or file is not None
    if sys.stdin is None or (not asked and sys.stdin.isatty()):
        raise InvalidRequest(
            "no problem was given", hint='try: manyhands solve "What is 12 + 30 - 4?"'
        )
    return _text(sys.stdin.buffer.read(_MOST_BYTES + 1), "what came in through the pipe")


_MOST_BYTES = 4 * MAX_PROBLEM_CHARS  # UTF-8 takes at most four for a character


def _read_file(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return _text(opened.read(_MOST_BYTES + 1), f"the file {str(file)!r}")
    except OSError as error:
        raise InvalidRequest(
            f"the file {str(file)!r} cannot be read: {error.strerror}",
            hint="give the path of a text file",
        ) from error


def _text(content: bytes, source: str) -> str:
    if len(content) > _MOST_BYTES:  # cut somewhere, and too long in any case
        return content.decode("utf-8", "replace")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{source} is not UTF-8 text (byte {error.start})", hint="save it as UTF-8"
        ) from error
