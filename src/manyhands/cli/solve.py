"""`manyhands solve`: one problem, from the command line to the answer.

What can be wrong is looked at in the order of its cost: settings, problem, words and transcript
before a model is loaded.
"""

from __future__ import annotations

import shlex
import signal
import sys
from dataclasses import replace
from pathlib import Path

import typer

from manyhands.cli.advice import too_small_a_team
from manyhands.cli.command import chosen_of, shared_of
from manyhands.cli.guard import EXIT_NO_ANSWER, tell
from manyhands.cli.loading import (
    check_borne,
    load_engine,
    name_of,
    prompts_for,
    sampled,
    strategy_for,
    traced_facts,
)
from manyhands.cli.options import BUNDLED, SolveOptions
from manyhands.cli.outcome import INTERRUPTED, Outcome
from manyhands.cli.output import Notes, TraceFile
from manyhands.cli.running import drive, screen_for
from manyhands.cli.screens import Screen
from manyhands.cli.stopping import exit_code_of, number_of
from manyhands.errors import InvalidRequest, OutputFailed
from manyhands.prompts.chain_of_draft import drafted
from manyhands.replay.trace import header_of, record
from manyhands.schema.conversation import SYSTEM, Message
from manyhands.strategies.account import Account
from manyhands.strategies.methods import METHODS
from manyhands.strategies.prompt_sharing import share_prompt
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import Settings
from manyhands.tasks.arithmetic.problem_list import ask
from manyhands.tasks.arithmetic.world import outside_world
from manyhands.text import MAX_PROBLEM_CHARS, clean_problem


def solve(options: SolveOptions) -> None:
    """Do what the command says; see `manyhands solve --help`."""
    settings, method = settings_of(options), chosen_of(METHODS, options.method)
    problem = clean_problem(read_problem(options))
    model = name_of(options.model)
    talks = not (options.json or options.events or options.quiet)
    settings = sampled(settings, model, options, say=talks)
    prompts = prompts_for(model, options.prompts, options.lora)
    prompts = drafted(prompts) if options.draft else prompts
    system = clean_problem(options.system) if options.system else ""
    earlier = (Message(SYSTEM, system),) if system else ()
    spec = RunSpec(method, settings, getattr(prompts, method.prompt), problem, earlier=earlier)
    notes = Notes()
    account = account_for(spec)
    screen = screen_for(
        account,
        {"model": model, **spec.facts()},
        notes,
        json=options.json,
        events=options.events,
        quiet=options.quiet,
        budget=settings.budget,
        name=options.name,
    )
    with TraceFile(options.transcript, notes) as file:
        asked = (problem, spec.facts()["workers"], method.name)
        if model == BUNDLED and (reason := outside_world(*asked)):
            notes.warn(reason)
        check_borne(model, method, settings)
        try:
            engine, text = load_engine(model, options, notes)
            facts = engine.facts
            if talks and (facts.is_on_gpu or facts.about_ranks or options.backend != "auto"):
                for sentence in engine.about:
                    tell(sentence)
        except KeyboardInterrupt as error:
            outcome = Outcome(account.so_far(INTERRUPTED, 0), signal=number_of(error))
        else:
            reason = too_small_a_team(facts, prompts, asked[1], method.name)
            if model != BUNDLED and reason and not options.quiet:
                notes.warn(reason)
            spec = replace(spec, context=engine.facts.max_positions)
            strategy = strategy_for(engine, text, spec)
            if options.transcript is not None:
                place = {"model": model, **traced_facts(engine, text, options)}
                strategy = record(strategy, header_of(spec, place), file.write)
            if options.cache is not None:
                strategy = share_prompt(strategy, engine.prefixes)
            outcome = drive(engine, strategy, account, screen)
            if talks and engine.executor.about is not None:
                tell(engine.executor.about)
    finish(screen, outcome, file.path)
    if file.failure is not None:
        raise file.failure
    check_answered(outcome, account, spec)


def finish(screen: Screen, outcome: Outcome, trace: Path | None) -> None:
    """Show what came of a run; leave with its exit code if it did not end by itself.

    `trace` is the file from which an interrupted run can go on, if there is one.
    """
    try:
        screen.end(outcome)
    except OutputFailed:
        if not outcome.interrupted:  # as when the terminal has gone
            raise
    if outcome.error is not None:
        raise outcome.error
    if outcome.interrupted:
        if trace is not None and outcome.answer.forward_passes:
            command = shlex.join(["manyhands", "replay", "--continue", str(trace)])
            tell(f"go on with it: {command}", "hint: ", "bold")
        raise typer.Exit(exit_code_of(outcome.signal or signal.SIGINT))


def check_answered(outcome: Outcome, account: Account, spec: RunSpec) -> None:
    """Leave with an exit code of its own if what was wanted of the run is not there.

    That is an answer, and where the problem asks for none, the reply. An answer of question marks alone
    is none; one that is known in part is one.
    """
    end = spec.settings.end
    is_wanted = end.expects(spec.problem) or (end.reply and not account.reply.strip())
    if is_wanted and not outcome.has_answer:
        raise typer.Exit(EXIT_NO_ANSWER)


def account_for(spec: RunSpec) -> Account:
    """An account with the names of the workers who are there from the start."""
    return Account(spec.names, solo=spec.method.solo)


def settings_of(options: SolveOptions) -> Settings:
    """The settings of the method that was asked for, checked by their own rules."""
    settings: Settings = shared_of(SolveOptions).settings_for(
        options.method, options.chosen, options.listed
    )
    return settings


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
    if len(content) > _MOST_BYTES:
        raise InvalidRequest(
            f"{source} has more than {_MOST_BYTES:,} bytes; of a problem at most "
            f"{MAX_PROBLEM_CHARS:,} characters are read",
            hint="shorten the problem",
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{source} is not UTF-8 text (byte {error.start})", hint="save it as UTF-8"
        ) from error
