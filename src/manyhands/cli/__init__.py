"""The front door: `manyhands solve`, `replay`, `train` and `prompts`.

    __init__.py  the commands and their exit codes
    options.py   what can be asked for, as frozen dataclasses
    solve.py     one problem, from the command line to the answer
    replay.py    a trace, read again
    train.py     a recipe into a model
    loading.py   options into an engine: which model, which words
    running.py   drives a run, and ends it well on Ctrl-C
    retold.py    a trace's events as objects
    verify.py    a trace, proven
    outcome.py   how a run ended
    account.py   what is known of a run at any moment, from its events
    screens.py   what a user sees: JSON, the reply alone, plain lines, or
    live.py      one column per worker, drawn by columns.py
    output.py    everything that is written, and what happens when it cannot be
    guard.py     every error into its exit code

The environment is read here and nowhere else; so far nothing in it is ours (HF_HOME, HF_TOKEN and
HF_HUB_OFFLINE belong to huggingface_hub, NO_COLOR and COLUMNS to rich). Nothing heavy is imported
before a command needs it, so that `--help` answers at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from manyhands.cli.guard import takes
from manyhands.cli.options import ReplayOptions, SolveOptions, TrainOptions

__all__ = ["app", "main"]

EXIT_CODES = """\
Exit codes: 0 done. 1 other errors. 2 an option, argument or prompt that cannot be used. \
3 no such model, or it is incomplete. 4 an architecture that is not supported. \
5 longer than the model's context. 6 not enough memory. 7 a broken trace. \
8 something could not be written (disk full, no permission). \
130 interrupted by Ctrl-C. 141 the reader of the output went away."""

app = typer.Typer(
    name="manyhands",
    help="One language model, many hands: workers that think together in one shared KV cache.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line; what the `manyhands` script calls."""
    app(prog_name="manyhands")


def _print_version(wanted: bool) -> None:
    if wanted:
        from manyhands.cli.output import say, version_of

        say(f"manyhands {version_of('manyhands')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and leave.",
            is_eager=True,
            callback=_print_version,
        ),
    ] = False,
) -> None:
    """What can stand before a command."""


@app.command(epilog=EXIT_CODES)
@takes(SolveOptions)
def solve(options: SolveOptions) -> None:
    """Solve a problem: a team of workers, or one alone, thinks about it and replies.

    The problem is the argument, a file, or what comes in through a pipe.
    """
    from manyhands.cli.solve import solve

    solve(options)


@app.command(epilog=EXIT_CODES)
@takes(ReplayOptions)
def replay(options: ReplayOptions) -> None:
    """Read a saved run: its summary, its text, and on request its proof or its continuation."""
    from manyhands.cli.replay import replay

    replay(options)


@app.command(epilog=EXIT_CODES)
@takes(TrainOptions)
def train(options: TrainOptions) -> None:
    """Train a model on runs, recorded or simulated; one that was interrupted goes on."""
    from manyhands.cli.train import train

    train(options)


@app.command(epilog=EXIT_CODES)
@takes()
def prompts() -> None:
    """Print the words that a team reads, as a TOML file to edit and pass to solve --prompts."""
    from manyhands.cli.output import say
    from manyhands.prompts import TeamPrompt, dump_prompt

    say(dump_prompt(TeamPrompt()), end="")
