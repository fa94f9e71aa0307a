"""`manyhands batch`: a file of requests into a file of answers, resumable at any moment.

The output is the only state: it is read first, and what stands in it is left out (`batch_files.py`).
The first Ctrl-C (or SIGTERM) ends the pass under way; what is finished is written, and the same command goes on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from manyhands.cli.batch_files import Input, Output, read_input
from manyhands.cli.batch_lines import Numbered, failure_line, model_of
from manyhands.cli.batch_options import BatchOptions
from manyhands.cli.command import shared_of
from manyhands.cli.guard import tell
from manyhands.cli.loading import changes_of, load_engine, name_of, sampled
from manyhands.cli.output import Notes, in_bytes, say, say_json
from manyhands.cli.spreading import facts_of, spread
from manyhands.cli.stopping import StopRequest, exit_code_of, number_of, word_for
from manyhands.errors import InvalidRequest, ManyhandsError, counted
from manyhands.evaluation.shared import SHARED_PREFIX
from manyhands.schema.lines import Line
from manyhands.strategies.requests import Defaults, method_of_alias

if TYPE_CHECKING:
    from rich.progress import Progress

    from manyhands.cache.usage import Usage
    from manyhands.cluster.replica import Answers

Found = list[tuple[Numbered, Line]]  # requests that were finished, each with its line of the output


def batch(options: BatchOptions) -> None:
    """Do what the command says; see `manyhands batch --help`."""
    model = name_of(options.model)
    unsaid = shared_of(BatchOptions).settings_for(SHARED_PREFIX, options.chosen, options.listed)
    _check(options)
    defaults = Defaults(model, sampled(unsaid, model, options), changes=changes_of(options))
    given = read_input(options.requests, defaults)
    notes = Notes()
    stop = StopRequest()
    with Output(options.answers, given, retry_failures=options.retry_failures) as output:
        if output.num_torn:
            notes.warn(f"the last line of {str(options.answers)!r} was cut short; it is done again")
        left = [(number, line) for number, line in given.lines if _is_left(line, output)]
        usage: Usage | None = None
        seconds = 0.0
        if not left:
            _put_on_record(given, output)
        else:
            _warn_of_other_models(left, model, notes)
            try:
                usage, seconds = _answer(left, given, output, defaults, options, notes, stop)
            except KeyboardInterrupt as error:  # the model was loading, or it is the second
                raise _stopped(number_of(error), given, output) from error
        _sum_up(given, output, usage, seconds, options)
        if len(output.done) < given.num_requests:
            assert stop.number is not None, "without a request to stop, nothing is left"
            raise _stopped(stop.number, given, output)
    if output.num_failed:
        raise ManyhandsError(
            f"{output.num_failed} of {given.num_requests} requests could not be answered",
            hint=f"the reasons stand in {str(options.answers)!r}, in the field `error`; mend that, and "
            "run the same command with --retry-failures",
        )


def _stopped(number: int, given: Input, output: Output) -> typer.Exit:
    """The end by this signal; what is left is told."""
    num_left = given.num_requests - len(output.done)
    left = counted(num_left, "request")
    tell(f"{word_for(number)} with {left} left; the same command goes on")
    return typer.Exit(exit_code_of(number))


def _check(options: BatchOptions) -> None:
    """A mistake that every request would share is refused before any of them is put on record."""
    if str(options.requests) == "-":
        raise InvalidRequest(
            "the requests are '-'; expected a file",
            hint="give /dev/stdin to read what comes in through a pipe",
        )
    if str(options.answers) == "-":
        raise InvalidRequest(
            "the answers are '-'; expected a file",
            hint="give the name of a file: what it holds is not done again",
        )
    if options.requests.resolve() == options.answers.resolve():
        raise InvalidRequest("requests and answers are the same file", hint="give two names")


def _put_on_record(given: Input, output: Output) -> None:
    """Write down the lines that are no requests, once a model is there or none is needed.

    Their fingerprints hold the model and the options: of those that cannot be loaded they would refuse the command that is mended.
    """
    output.write([line for line in given.faulty if line["error"]["line"] not in output.done])


def _is_left(line: Line, output: Output) -> bool:
    return line["custom_id"] not in output.done


def _warn_of_other_models(left: list[tuple[int, Line]], model: str, notes: Notes) -> None:
    """A batch goes to one model, whatever its requests call theirs: files made for others are common."""
    named = dict.fromkeys(name for _, line in left if (name := model_of(line)) is not None)
    plain = [name for name in named if method_of_alias(name) is None]  # the others are refused
    others = [name for name in plain if name_of(name) != model]
    if others:
        more = f" and {len(others) - 1} more" if others[1:] else ""
        notes.warn(f"requests name the model {others[0]!r}{more}; all are answered by {model!r}")


def _answer(
    left: list[Numbered],
    given: Input,
    output: Output,
    defaults: Defaults,
    options: BatchOptions,
    notes: Notes,
    stop: StopRequest,
) -> tuple[Usage, float]:
    """The usage and the seconds of answering until nothing is left, or the user has had enough.

    Until the model is loaded, and replicas have begun, nothing is under way that could be finished: an interrupt ends that at once.
    """
    with _work(defaults, options, notes) as (lines, usage), stop, progress_bar() as progress:
        _put_on_record(given, output)
        bar = progress.add_task("", total=given.num_requests, completed=len(output.done), rate="")
        start = time.perf_counter()
        with closing(lines(left)) as finished:  # requests under way are cancelled
            for found in finished:
                if found:
                    output.write([line for _, line in found])
                rate = usage().tokens_chosen / (time.perf_counter() - start)
                progress.update(bar, completed=len(output.done), rate=f"{rate:,.0f} tokens/s")
                if stop.asked:
                    break
        return usage(), time.perf_counter() - start


@contextmanager
def _work(
    defaults: Defaults, options: BatchOptions, notes: Notes
) -> Iterator[tuple[Callable[[list[Numbered]], Generator[Found, None, None]], Callable[[], Usage]]]:
    """The way from requests to answers, here or on a cluster, and the usage so far."""
    if options.ray is None:
        from manyhands.cli.batch_run import BatchWork

        engine, text = load_engine(defaults.model, options, notes)
        work = BatchWork(engine, text, defaults, options.isolate, options.concurrency)
        yield work.lines, lambda: engine.usage
        return
    make = partial(batch_answers, options, defaults)
    with spread(options, make, options.concurrency, notes.warn) as replicas:
        replicas.wait()  # loading is no part of the time

        def lines(left: list[Numbered]) -> Generator[Found, None, None]:
            for found in replicas.results(left):
                yield [(one, _line(one, told, defaults)) for one, told in found]

        yield lines, lambda: replicas.usage


def batch_answers(options: BatchOptions, defaults: Defaults) -> Answers[Numbered, Line]:
    """Load the model in a replica, for requests that come from elsewhere."""
    from manyhands.cli.batch_run import BatchWork
    from manyhands.cluster.replica import Answers

    notes = Notes()
    engine, text = load_engine(defaults.model, options, notes)
    work = BatchWork(engine, text, defaults, options.isolate, options.concurrency)
    return Answers(work.answered, facts_of(engine, options), lambda: engine.usage, notes.texts)


def _line(one: Numbered, told: Line | ManyhandsError, defaults: Defaults) -> Line:
    return failure_line(one, told, defaults) if isinstance(told, ManyhandsError) else told


def progress_bar() -> Progress:
    """A bar with the time left and tokens per second, where somebody can see it."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    is_watched = sys.stderr is not None and sys.stderr.isatty()
    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True) if is_watched else Console(file=None, quiet=True),
        disable=not is_watched,
        redirect_stdout=False,
        redirect_stderr=False,
    )


def _sum_up(
    given: Input, output: Output, usage: Usage | None, seconds: float, options: BatchOptions
) -> None:
    """Say what has been done, this time and altogether."""
    facts: dict[str, Any] = {
        "requests": given.num_requests,
        "answered": len(output.done) - output.num_failed,
        "failed": output.num_failed,
        "seconds": round(seconds, 3),
        "usage": asdict(usage) if usage is not None else None,
    }
    if options.json:
        say_json(facts)
        return
    say("{answered} of {requests} requests answered, {failed} failed".format(**facts))
    if usage is None:
        say(f"all of them before: {options.answers} stays as it was, and no model was asked")
    else:
        rate = usage.tokens_chosen / seconds if seconds else 0.0
        # A prompt and what begins behind it are rows of one pass: alone, that is no sharing.
        is_shared = usage.prefix_tokens_found > 0 or not options.isolate
        saved = f", {in_bytes(usage.kv_bytes_saved)} saved by sharing" if is_shared else ""
        say(
            f"{counted(usage.tokens_chosen, 'token', ',')} written in {seconds:,.1f} s ({counted(rate, 'token', ',.0f')}/s), "
            f"{counted(usage.forward_passes, 'forward pass', ',')}\n"
            f"prompts: {counted(usage.prefix_tokens_fed, 'token', ',')} read, "
            f"{usage.prefix_tokens_found:,} found in memory\n"
            f"keys and values: {in_bytes(usage.kv_bytes_loaded)} loaded{saved}"
        )
