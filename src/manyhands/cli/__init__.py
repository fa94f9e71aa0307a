"""The front door: `manyhands solve`, `chat`, `serve`, `replay`, `view`, `train`, `batch`, `eval` and others.

    __init__.py  the commands and their exit codes
    options.py   what can be asked for, as frozen dataclasses; command.py makes commands of them
    solve.py     one problem, from the command line to the answer
    chat.py      several turns; talk.py knows what was said, and the commands in between
    replay.py    a trace, read again
    train.py     a recipe into a model
    batch.py     a file of requests into a file of answers: batch_lines.py understands them,
                 batch_files.py keeps them, batch_run.py has them answered; its options are in batch_options.py
    serve.py     a model over HTTP (the room `server`); serve_ray.py: on a cluster; its options are in serve_options.py
    spreading.py what commands have in common that spread their work over a cluster (the room `cluster`)
    bench.py     how fast this machine is
    evaluate.py  an exam, its judges, its report, two methods compared; its options are in exam_options.py, and
                 candidates.py makes candidates of them
    loading.py   options into an engine: which model, which words; threads.py: how many threads of a CPU
    advice.py    a model that is too small for a team, and was not taught to be one
    running.py   drives a run, and ends it well on Ctrl-C
    stopping.py  the signals that end a command, or halt it for a while
    view.py      a saved run on a page
    verify.py    a trace, proven
    outcome.py   how a run ended
    status.py    how far a run is, in parts of one line
    screens.py   what a user sees: JSON, the reply alone, plain lines, or
    live.py      one column per worker, drawn by columns.py
    keyboard.py  the keys of a person who types meanwhile; talking.py makes items for the run of them
    output.py    everything that is written, and what happens when it cannot be
    guard.py     every error into its exit code; narrow.py: help for a terminal of few columns

What is read from the environment stands in a table of docs/terminal.md. Nothing heavy is imported before a
command needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import os

try:
    import sys
    from functools import partial
    from typing import TYPE_CHECKING, Annotated, NoReturn

    import typer

    from manyhands.cli.command import takes
    from manyhands.cli.guard import GuardedCommand, GuardedGroup
    from manyhands.cli.stopping import (
        exit_code_of,
        leave_at_signals,
        leave_with,
        number_of,
        word_for,
    )
    from manyhands.engine.ranks.other_rank import follow_if_other, let_others_go
    from manyhands.errors import InvalidRequest, OutOfMemory
except KeyboardInterrupt:  # Ctrl-C this early: nothing has begun, so nothing is put away
    os.write(2, b"interrupted\n")
    os._exit(130)

if TYPE_CHECKING:
    from manyhands.cli.batch_options import BatchOptions
    from manyhands.cli.exam_options import CompareOptions, EvalOptions, JudgeOptions, ReportOptions
    from manyhands.cli.options import (
        BenchOptions,
        ChatOptions,
        PromptsOptions,
        ReplayOptions,
        SolveOptions,
        TrainOptions,
        ViewOptions,
    )
    from manyhands.cli.serve_options import ServeOptions

__all__ = ["app", "main"]

EXIT_CODES = """\
Exit codes: 0 done. 1 other errors. 2 an option, argument or prompt that cannot be used. \
3 no such model, or it is incomplete. 4 an architecture that is not supported. \
5 longer than the model's context. 6 not enough memory. 7 a broken trace. \
8 something could not be written (disk full, no permission). \
9 the run is over and has no answer, or question marks alone. \
10 compare: the second is worse. 70 the engine failed while it served. \
129 the terminal went away. 130 interrupted by Ctrl-C. \
141 the reader of the output went away. 143 interrupted by SIGTERM."""

app = typer.Typer(
    name="manyhands",
    cls=GuardedGroup,
    help="One language model, many hands: workers that think together in one shared KV cache.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_command = partial(app.command, cls=GuardedCommand, epilog=EXIT_CODES)


def program() -> NoReturn:
    """The whole of a process, with its beginning and its end: the `manyhands` script."""
    code: object = None
    try:
        try:
            leave_at_signals()
        except KeyboardInterrupt as error:  # before signals are heard
            _leave_interrupted(error)
        main()
    except SystemExit as end:
        code = end.code
    leave_with(code)


def main() -> None:
    """Run the command line. Raises SystemExit at its end.

    Another rank of torchrun's follows rank 0, but in a training: there each process learns its own share.
    """
    try:
        _run_command()
    except InvalidRequest as error:  # of torchrun's settings: no command has begun
        os.write(2, f"error: {error}\n{error.hint}\n".encode())
        sys.exit(error.exit_code)
    except KeyboardInterrupt as error:  # in another rank, or in a program that calls this
        _leave_interrupted(error)
    except MemoryError:  # too little is left to say it as other errors are said
        os.write(2, b"error: the memory does not suffice\n")
        sys.exit(OutOfMemory.exit_code)


def _run_command() -> None:
    """The command, between what comes before it and behind it where torchrun has started several processes."""
    is_training = sys.argv[1:2] == ["train"]
    if not is_training:
        follow_if_other()
    try:
        app(prog_name="manyhands")
    except SystemExit as end:
        if not end.code and not is_training:  # where it is an error torchrun ends them
            let_others_go()
        raise


def _leave_interrupted(error: KeyboardInterrupt) -> NoReturn:
    """Nothing has begun, so nothing is put away."""
    os.write(2, f"{word_for(number_of(error))}\n".encode())
    os._exit(exit_code_of(number_of(error)))


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
    """The options that stand before a command."""


@_command()
@takes("options.SolveOptions")
def solve(options: SolveOptions) -> None:
    """Solve a problem: a team of workers, or one alone, thinks about it and replies.

    The problem is the argument, a file, or what comes in through a pipe.
    """
    from manyhands.cli.solve import solve

    solve(options)


@_command()
@takes("options.ChatOptions")
def chat(options: ChatOptions) -> None:
    """Talk with a team, or one worker, over several turns; what was said stays in the cache.

    Method and workers can be changed on the way; /help lists the commands. Messages may come through a pipe.
    """
    from manyhands.cli.chat import chat

    chat(options)


@_command()
@takes("options.ReplayOptions")
def replay(options: ReplayOptions) -> None:
    """Read a saved run: its summary, its text, and on request its proof or its continuation."""
    from manyhands.cli.replay import replay

    replay(options)


@_command()
@takes("options.ViewOptions")
def view(options: ViewOptions) -> None:
    """Show a saved run on a page: every pass again, and who saw what."""
    from manyhands.cli.view import view

    view(options)


@_command()
@takes("batch_options.BatchOptions")
def batch(options: BatchOptions) -> None:
    """Answer a file of requests (OpenAI's batch format); what they have in common is read once.

    Started again with the same files, it goes on where it was stopped or killed.
    """
    from manyhands.cli.batch import batch

    batch(options)


@_command()
@takes("serve_options.ServeOptions")
def serve(options: ServeOptions) -> None:
    """Serve a model over HTTP, to programs that speak OpenAI's API and to people with a browser.

    Ctrl-C ends it: runs have --drain seconds, a second Ctrl-C does not wait.
    """
    from manyhands.cli.serve import serve

    serve(options)


@_command()
@takes("options.TrainOptions")
def train(options: TrainOptions) -> None:
    """Train a model on runs, recorded or simulated; one that was interrupted goes on."""
    from manyhands.cli.train import train

    train(options)


@_command()
@takes("options.BenchOptions")
def bench(options: BenchOptions) -> None:
    """Time a model on this machine: forward passes of teams over histories, beside what is possible."""
    from manyhands.cli.bench import bench

    bench(options)


@_command("eval")
@takes("exam_options.EvalOptions")
def evaluate(options: EvalOptions) -> None:
    """Take an exam: a task, a method, and the answers at many budgets in one run.

    Every answer is graded and on the disk at once; the same command goes on where it was stopped.
    """
    from manyhands.cli.evaluate import evaluate

    evaluate(options)


@_command()
@takes("exam_options.JudgeOptions")
def judge(options: JudgeOptions) -> None:
    """Have another model judge the records of an exam: teamwork, or the quality of answers."""
    from manyhands.cli.evaluate import judge

    judge(options)


@_command()
@takes("exam_options.ReportOptions")
def report(options: ReportOptions) -> None:
    """Write all records of an exam as one page, with pictures of the curves."""
    from manyhands.cli.evaluate import report

    report(options)


@_command()
@takes("exam_options.CompareOptions")
def compare(options: CompareOptions) -> None:
    """Compare two files of records, sample by sample: B minus A at every budget.

    The exit code is 10 if B is worse at the largest budget that both have, else 0.
    """
    from manyhands.cli.evaluate import compare

    compare(options)


@_command()
@takes("options.PromptsOptions")
def prompts(options: PromptsOptions) -> None:
    """Print the words that a model reads, for every method: a TOML file to edit for solve --prompts."""
    from manyhands.cli.loading import words_of
    from manyhands.cli.output import say

    say(words_of(options.model, options.lora), end="")
