"""`manyhands solve`: one problem, from the command line to the answer.

What can be wrong is looked at in the order of its cost: settings, problem, words and transcript
before a model is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import typer

from manyhands.cli.guard import EXIT_INTERRUPTED, tell
from manyhands.cli.loading import load_engine, name_of, place_facts, prompts_for, strategy_for
from manyhands.cli.options import BUNDLED, SolveOptions
from manyhands.cli.outcome import INTERRUPTED, Outcome
from manyhands.cli.output import Notes, TraceFile
from manyhands.cli.running import drive, screen_for
from manyhands.cli.screens import Screen
from manyhands.errors import InvalidRequest
from manyhands.prompts.chain_of_draft import drafted
from manyhands.replay.trace import record
from manyhands.strategies.account import Account
from manyhands.strategies.described import describe_run, layout_of, workers_of
from manyhands.strategies.methods import METHODS, Method, Settings, method_of
from manyhands.strategies.settings import EndSettings
from manyhands.tasks.arithmetic.problem_list import ask
from manyhands.tasks.world import outside_world
from manyhands.text import MAX_PROBLEM_CHARS, clean_problem


def solve(options: SolveOptions) -> None:
    """Do what the command says; see `manyhands solve --help`."""
    settings = settings_of(options)
    problem = clean_problem(read_problem(options))
    model = name_of(options.model)
    prompts = prompts_for(model, options.prompts)
    prompts = drafted(prompts) if options.draft else prompts
    prompt = getattr(prompts, method_of(settings).prompt)
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
        asked = (problem, workers_of(settings), options.method)
        if model == BUNDLED and (reason := outside_world(*asked)):
            notes.warn(reason)
        try:
            engine, text = load_engine(model, options, notes)
            talks = not (options.json or options.quiet)
            if talks and (engine.facts.is_on_gpu or options.backend != "auto"):
                for sentence in engine.about:
                    tell(sentence)
        except KeyboardInterrupt:
            outcome = Outcome(account.so_far(INTERRUPTED, 0))
        else:
            run = describe_run(problem, settings, prompt, context=engine.facts.max_positions)
            header = {"model": model, **place_facts(engine, options), **run}
            strategy = strategy_for(engine, text, header)
            if options.transcript is not None:
                strategy = record(strategy, header, file.write)
            outcome = drive(engine, strategy, account, screen)
            if talks and engine.executor.about is not None:
                tell(engine.executor.about)
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


def account_for(settings: Settings, prompt: Any) -> Account:
    """An account with the names of the workers who are there from the start."""
    method = method_of(settings)
    return Account(method.names(settings, prompt), solo=method.solo)


def facts_of(model: str, settings: Settings) -> dict[str, Any]:
    """What the JSON object says about how the run was made."""
    return {
        "model": model,
        "method": method_of(settings).name,
        "workers": workers_of(settings),
        "layout": layout_of(settings),
        "seed": settings.seed,
    }


def settings_of(options: SolveOptions) -> Settings:
    """The settings of the method that was asked for, checked by their own rules."""
    method = METHODS[options.method]
    own: Settings = method.settings()
    names = ("temperature", "top_k", "top_p", "min_p")
    end = EndSettings(
        options.finisher,
        options.finisher_tokens,
        options.reencode,
        options.reply,
        options.reply_tokens,
    )
    settings: Settings = method.settings(
        budget=options.budget,
        choice=replace(own.choice, **_given(options, names)),
        seed=options.seed,
        snapshots=_snapshots(options.snapshots),
        end=end,
        **_of_method(options, method),
    )
    return settings


def _of_method(options: SolveOptions, method: Method) -> dict[str, Any]:
    """The options that not every method has. One of another method's is a mistake."""
    owners = _owners()
    given = _given(options, owners)
    for name, value in given.items():
        if name not in _fields(method.settings) and (name, value) != ("workers", 1):
            others = " or ".join(f"--method {other}" for other in owners[name])
            raise InvalidRequest(
                f"--{name.replace('_', '-')} {value} is not for --method {method.name}",
                hint=f"leave it out, or ask for {others}",
            )
    return {name: value for name, value in given.items() if name in _fields(method.settings)}


def _owners() -> dict[str, list[str]]:
    """The options that belong to some methods only, with the names of these."""
    asked = [option for option in _fields(SolveOptions) if option not in _EVERYBODYS]
    owners = {
        option: [m.name for m in METHODS.values() if option in _fields(m.settings)]
        for option in asked
    }
    return {option: names for option, names in owners.items() if names}


_EVERYBODYS = ("budget", "choice", "seed", "snapshots", "end")


def _fields(kind: type[Any]) -> list[str]:
    return [field.name for field in fields(kind)]


def _given(options: SolveOptions, names: Iterable[str]) -> dict[str, Any]:
    """Those of these options that were given."""
    found = {name: getattr(options, name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


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
        raise InvalidRequest("no problem was given", hint=f"try: manyhands solve '{EXAMPLE}'")
    return _text(sys.stdin.buffer.read(_MOST_BYTES + 1), "what came in through the pipe")


EXAMPLE = ask(["84 + 29 - 38", "17 + 60 - 31"])  # which the bundled model can solve
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
