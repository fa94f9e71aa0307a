"""`manyhands chat`: several turns with one worker or a team, method and workers changed on the way.

Each turn is a run with the turns before it as its conversation, shown as `solve` shows a run. What was said
stays in the cache: the next turn feeds what is new (`strategies/prompt_sharing.py` says what is found).

Ctrl-C ends the reply that is being written, and what there is of it is kept. At the prompt it leaves. Lines
that come in through a pipe are a chat as well: one message a line, and the first error ends it.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import typer

from manyhands.cache.step import GREEDY
from manyhands.cli.advice import too_small_a_team
from manyhands.cli.command import chosen_of, shared_of
from manyhands.cli.guard import complain, tell
from manyhands.cli.loading import (
    check_borne,
    get_ready,
    load_engine,
    name_of,
    prompts_for,
    strategy_for,
)
from manyhands.cli.options import ChatOptions
from manyhands.cli.outcome import Outcome
from manyhands.cli.output import Notes
from manyhands.cli.running import drive, screen_for
from manyhands.cli.stopping import exit_code_of
from manyhands.cli.talk import Quit, Talk
from manyhands.errors import ContextTooLong, InvalidRequest, ManyhandsError
from manyhands.hub import BUNDLED
from manyhands.model.generation import own_choice
from manyhands.prompts.chain_of_draft import drafted
from manyhands.schema.choosing import pairs
from manyhands.strategies.account import Account
from manyhands.strategies.methods import METHODS
from manyhands.strategies.prompt_sharing import share_prompt
from manyhands.strategies.run_spec import RunSpec
from manyhands.tasks.arithmetic.bare import parse_bare
from manyhands.tasks.arithmetic.problem_list import ask
from manyhands.tasks.arithmetic.world import outside_world

if TYPE_CHECKING:
    from manyhands.engine.engine import Engine
    from manyhands.text import Text

_QUOTES = '"""'
_EXAMPLE = "84 + 29 - 38; 17 + 60 - 31"
_SHORTER = (
    "/undo takes the last turn back, /reset all of them; a smaller budget needs less room, too."
)


def chat(options: ChatOptions) -> None:
    """Do what the command says; see `manyhands chat --help`."""
    talk = talk_of(options)
    if sys.stdin is None:
        raise InvalidRequest("there is no input to read messages from")
    model, notes = name_of(options.model), Notes()
    check_borne(model, talk.method, talk.settings)
    engine, text = load_engine(model, options, notes)
    get_ready(engine)
    is_typed = sys.stdin.isatty()
    told = f"{model}: {talk.method.name}. /help says what else there is."
    if model == BUNDLED:
        told += f" It solves lists of sums, for example: {_EXAMPLE}"
    if not text.tells_roles:
        told += (
            "\nThis model was made for one problem at a time: no turn knows of those before it, and a system message "
            "is refused."
        )
    tell(told)
    for line in _messages(is_typed):
        try:
            if line.is_command:
                tell(talk.obey(line.text))
            else:
                outcome = _turn(engine, text, talk, line.text, options, notes)
                if is_typed or options.verbose:
                    _tell_found(outcome)
        except Quit:
            return
        except ManyhandsError as error:
            if isinstance(error, ContextTooLong):
                error.hint = _SHORTER
            if not is_typed:
                raise
            complain(error)


def _turn(
    engine: Engine, text: Text, talk: Talk, message: str, options: ChatOptions, notes: Notes
) -> Outcome:
    """Reply to a message, and keep what was said."""
    model = name_of(options.model)
    spec = talk.spec(_as_list(message) if model == BUNDLED else message, engine.facts.max_positions)
    facts = {"model": model, **spec.facts()}
    asked = (spec.problem, spec.facts()["workers"], spec.method.name)
    if model == BUNDLED and (reason := outside_world(*asked)):
        notes.warn(reason)
    too_small = too_small_a_team(engine.facts, talk.prompts, asked[1], asked[2])
    if model != BUNDLED and too_small and too_small not in notes.texts:
        notes.warn(too_small)
    account, budget = Account(spec.names, solo=spec.method.solo), spec.settings.budget
    screen = screen_for(account, facts, notes, json=False, quiet=options.quiet, budget=budget)
    strategy = share_prompt(strategy_for(engine, text, spec), engine.prefixes)
    outcome = drive(engine, strategy, account, screen)
    screen.end(outcome)
    _keep(talk, spec, account, outcome)
    if outcome.error is not None:
        raise outcome.error
    if outcome.signal not in (None, signal.SIGINT):  # Ctrl-C ends the reply, others the chat
        raise typer.Exit(exit_code_of(outcome.signal))
    return outcome


def talk_of(options: ChatOptions) -> Talk:
    """A chat before its first turn; all that can be wrong with its options is."""
    shared_of(ChatOptions).settings_for(options.method, options.chosen, options.listed)
    method = chosen_of(METHODS, options.method)
    prompts = prompts_for(name_of(options.model), options.prompts, options.lora)
    prompts = drafted(prompts) if options.draft else prompts
    own = None if options.greedy else own_choice(name_of(options.model))
    given = {f"choice.{name}": value for name, value in vars(own or GREEDY).items()}
    usual = {f"choice.{name}": value for name, value in vars(GREEDY).items()}
    chosen = {path: value for path, value in given.items() if value != usual[path]}
    chosen |= {**options.chosen, **pairs(options.listed)}
    return Talk(method, chosen, prompts, options.system or "")


class _Said(NamedTuple):
    """A message or a command of the user."""

    text: str
    is_command: bool = False


def _messages(is_typed: bool) -> Iterator[_Said]:
    """The messages and commands of the user, one by one; blank ones say nothing. A message in quotes is no command."""
    lines = _typed() if is_typed else _piped()
    for line in lines:
        message = line.strip()
        if message.startswith(_QUOTES):
            message = message.removeprefix(_QUOTES)
            while not message.rstrip().endswith(_QUOTES):
                more = next(lines, None)
                if more is None:
                    raise InvalidRequest(
                        f"the input ends within a message that began with {_QUOTES}"
                    )
                message += f"\n{more}"
            message = message.rstrip().removesuffix(_QUOTES).strip()
            if message:
                yield _Said(message)
        elif message.startswith("/") and not message.startswith("//"):
            yield _Said(message, is_command=True)
        elif message:
            yield _Said(message.removeprefix("/"))


def _typed() -> Iterator[str]:
    """Lines with a prompt; those before can be called back where there is readline."""
    with suppress(ImportError):
        import readline  # noqa: F401 (`input` uses it)
    while True:
        try:
            yield input("> ")
        except EOFError:
            tell("")
            return


def _piped() -> Iterator[str]:
    """Lines of UTF-8, whatever the locale says; each is there as soon as it has come."""
    number = 0
    try:
        for line in sys.stdin.buffer:
            number += 1
            yield line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"line {number} of what came in through the pipe is not UTF-8 text (byte {error.start})",
            hint="save it as UTF-8",
        ) from error


def _as_list(message: str) -> str:
    """Sums with semicolons between them, as the list that the bundled model reads."""
    sums = [part.strip() for part in message.split(";") if part.strip()]
    return ask(sums) if sums and all(map(parse_bare, sums)) else message


def _keep(talk: Talk, spec: RunSpec, account: Account, outcome: Outcome) -> None:
    """Keep the turn, if there was a reply; that of a run without one is its answer."""
    reply = account.reply.strip() or outcome.answer.answer or ""
    if reply:
        talk.replied(spec, reply)
    else:
        tell("no reply was written, so this turn is left out of what comes next")
    if outcome.answer.finish_reason == "context":
        tell(f"the model's context is full: {_SHORTER}")


def _tell_found(outcome: Outcome) -> None:
    prompt, found = sum(outcome.answer.prompt_tokens), sum(outcome.answer.found)
    if prompt:
        tell("", f"({found} of {prompt} prompt tokens were in the cache)", "dim")
