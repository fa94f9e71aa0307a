"""`manyhands eval`, `judge`, `report` and `compare`: an exam from the command line to the page.

What can be wrong is looked at in the order of its cost: choices and samples before a model is loaded,
and everything before the first question is asked.
"""

from __future__ import annotations

import io
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from manyhands.cli.candidates import candidate_of, facts_of_task, task_of, voice_of
from manyhands.cli.command import chosen_of
from manyhands.cli.exam_options import (
    EXAM_METHODS,
    CompareOptions,
    EvalOptions,
    JudgeOptions,
    ReportOptions,
)
from manyhands.cli.guard import going_on, tell
from manyhands.cli.output import say
from manyhands.errors import InvalidRequest, ManyhandsError, counted
from manyhands.evaluation.grading import Grading
from manyhands.evaluation.judge import (
    RUBRICS,
    Judging,
    NothingToJudge,
    VoteMoment,
    needs_judge,
    votes_file,
)
from manyhands.evaluation.judge import judge as cast_votes
from manyhands.evaluation.record import (
    Header,
    Record,
    RecordFile,
    Results,
    file_of,
    read_results,
    result_files,
)
from manyhands.evaluation.run import Exam, Moment, examine
from manyhands.evaluation.summary import NOT_JUDGED, Summary
from manyhands.prompts.judging import JudgingPrompt, load_judging
from manyhands.sandbox import find_isolation
from manyhands.tasks.task import Sample, Task, TaskProtocol, protocol_of

_SECONDS_BETWEEN_LINES = 10.0  # where there is no terminal
_WIDTH = 100  # cells of the table; a terminal that has fewer wraps it
_LISTED = 20  # failures; all of them are on record
EXIT_WORSE = 10  # of `compare`: B is worse than A
_NAMED = 5  # samples without a vote that can be read


def evaluate(options: EvalOptions) -> None:
    """Take an exam; see `manyhands eval --help`."""
    with going_on(f"what {options.out} has stays"):
        _evaluate(options)


def _evaluate(options: EvalOptions) -> None:
    method = chosen_of(EXAM_METHODS, options.method)
    budgets = tuple(sorted(set(options.budgets))) or (method.settings().budget,)
    task, samples = task_of(options)
    protocol = protocol_of(task)
    if options.allow_code:
        tell(f"programs of the model are run: {find_isolation().about}", "note: ", "yellow")
    with candidate_of(options, budgets, samples, protocol) as (candidate, header):
        header = replace(header, task_options=facts_of_task(options), command=_command())
        repeats = options.repeats or protocol.repeats
        exam = Exam(samples, candidate, budgets, repeats, options.retry_failures)
        _examine(options, exam, header, task, protocol)


def _examine(
    options: EvalOptions, exam: Exam, header: Header, task: Task, protocol: TaskProtocol
) -> None:
    """Ask, grade, keep, and say what came of it."""
    samples = exam.samples
    path = file_of(options.out, task.name, header.label)
    with (
        Grading(
            task, options.grader_seconds or protocol.grader_seconds, options.graders
        ) as grading,
        closing(RecordFile(path, replace(header, task=task.name))) as file,
        going_on(f"{path} has what is graded so far"),
    ):
        if file.num_torn:
            tell(
                f"the last line of {str(path)!r} was cut short; it is asked again",
                "note: ",
                "yellow",
            )
        with _reporting(header.label) as report:
            for moment in examine(exam, file, grading):
                report(moment.done, moment.known, moment.total, _described(moment, samples))
        asked = {(sample.id, repeat) for sample in samples for repeat in range(exam.repeats)}
        records = tuple(file.records[key] for key in sorted(asked))
    _say_results(Results(path, header, records), len(file.records))


def judge(options: JudgeOptions) -> None:
    """Have records judged; see `manyhands judge --help`."""
    with going_on(f"the votes that {options.folder} has stay"):
        _judge_all(options)


def _judge_all(options: JudgeOptions) -> None:
    rubric = RUBRICS[options.rubric]
    if options.temperature is not None:
        rubric = replace(rubric, temperature=options.temperature)
    prompt = load_judging(options.prompts) if options.prompts else JudgingPrompt()
    found = [read_results(path) for path in _files(options.folder)]
    with voice_of(options, rubric.temperature) as (voice, facts):
        judging = Judging(rubric, prompt, voice, facts, options.retry_failures)
        _check_votes(_judge(judging, found))


def _judge(judging: Judging, found: Sequence[Results]) -> list[VoteMoment]:
    """Have each file judged; how far each came."""
    ends: list[VoteMoment] = []
    for results in found:
        label = f"{results.header.task}, {results.header.label}"
        try:
            cast = votes_file(results.path, judging.rubric.name)
            kept = f"{cast} has what is judged so far"
            with going_on(kept), _reporting(label) as report:
                last = None
                for last in cast_votes(judging, results):
                    report(last.done, 0, last.total, f"{last.unread} could not be read")
        except NothingToJudge as error:  # the other files may have something
            if len(found) == 1:
                raise
            tell(f"{label}: {error}", "note: ", "yellow")
            continue
        if last is not None:
            votes = counted(last.done, "vote")
            say(f"{label}: {votes}, {last.unread} of them could not be read")
            _say_unread(last.unread_samples)
            ends.append(last)
    return ends


def report(options: ReportOptions) -> None:
    """Write the page; see `manyhands report --help`."""
    from manyhands.evaluation.report import write_report

    def show(trace: Path) -> str:
        from manyhands.replay.trace import read_trace
        from manyhands.server.page import document
        from manyhands.server.view import records_of

        return document(records_of(read_trace(trace)))

    _files(options.folder)
    logs: list[Path] = []
    if options.inspect is not None:
        from manyhands.evaluation.inspect_logs import write_inspect_logs

        logs = write_inspect_logs(options.folder, options.inspect)
    out = options.out or options.folder / "report.html"
    written = write_report(
        options.folder, out, options.baseline, show=show, most_pages=options.runs
    )
    for path in (*written, *logs):
        say(str(path))


def compare(options: CompareOptions) -> None:
    """Say how much better B is than A; see `manyhands compare --help`."""
    from manyhands.evaluation.pair import pair_of

    found = pair_of(options.first, options.second)
    say(f"{found.second.label} minus {found.first.label}, {found.first.results.header.task}")
    for one in found.comparisons:
        where, paired = one.difference.interval, one.difference
        at = "each at its own end" if one.budget is None else f"{counted(one.budget, 'pass')}"
        say(
            f"{at}: {where.mean:+.3f} (95 % {where.low:+.3f} to {where.high:+.3f}), better {paired.wins}, "
            f"same {paired.ties}, worse {paired.losses}, sign test {paired.chance:.3g}"
        )
    for cost in found.costs:
        aim = f"{cost.what} until a value of {cost.target:.3f}"
        if cost.ratio is not None and cost.cost is None:
            say(f"{aim}: B does not reach it")
        elif cost.ratio is not None:
            say(f"{aim}, A over B: {cost.ratio:.2f} (95 % {cost.low:.2f} to {cost.high:.2f})")
    if any(found.alone):
        only = f"in A alone: {counted(found.alone[0], 'sample')}, in B alone: {found.alone[1]}"
        tell(f"{only}; they are left out")
    if found.is_worse:
        raise typer.Exit(EXIT_WORSE)


def _files(folder: Path) -> list[Path]:
    files = result_files(folder)
    if not files:
        raise InvalidRequest(
            f"there are no records under {str(folder)!r}",
            hint="give the folder that was --out of manyhands eval",
        )
    return files


def _command() -> str:
    return shlex.join(["manyhands", *sys.argv[1:]])


# -- what a user sees ------------------------------------------------------------------------------


@contextmanager
def _reporting(label: str) -> Iterator[Callable[[int, int, int, str], None]]:
    """A progress bar with the time left on a terminal, a line now and then elsewhere; on stderr."""
    console = Console(stderr=True, markup=False)
    if not console.is_terminal:
        last = 0.0

        def line(done: int, known: int, total: int, described: str) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last > _SECONDS_BETWEEN_LINES or done == total:
                last = now
                tell(f"{label}: {done} of {total} ({known} were known), {described}")

        yield line
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as bar:
        row = bar.add_task(label, total=1, note="", visible=False)

        def show(done: int, known: int, total: int, described: str) -> None:
            bar.update(row, completed=done, total=total, note=described, visible=True)

        yield show


def _described(moment: Moment, samples: Sequence[Sample]) -> str:
    failed = f", {moment.num_failures} failed" if moment.num_failures else ""
    if any(needs_judge(sample) for sample in samples):
        return f"{NOT_JUDGED}{failed}"
    return f"mean value {moment.accuracy:.3f}{failed}"


def _say_results(results: Results, num_kept: int) -> None:
    """The curve, and all that failed. The file may have `num_kept` records, more than were asked for."""
    summary = Summary.of(results)
    table = Table(
        title=f"{results.header.task}, {results.header.label}",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    for column in ("budget", "value", "95 %", "passes", "tokens", "seconds"):
        table.add_column(column, justify="right")
    for point in summary.curve:
        spent = (point.passes, point.tokens, point.seconds)
        value = (f"{point.value.mean:.3f}", f"{point.value.low:.3f}–{point.value.high:.3f}")
        table.add_row(
            str(point.budget),
            *((NOT_JUDGED, "–") if summary.waits_for_judge else value),
            *("–" if found is None else f"{found:.4g}" for found in spent),
        )
    drawn = io.StringIO()  # plain, so that nothing in it has to be made visible
    Console(file=drawn, color_system=None, force_terminal=False, width=_WIDTH).print(table)
    say(drawn.getvalue())
    _say_failures([record for record in results.records if record.error is not None])
    asked = "" if len(results.records) == num_kept else f"{len(results.records)} of the "
    say(f"{asked}{counted(num_kept, 'record')} in {results.path}")
    if all(record.error is not None for record in results.records):
        first = results.records[0].error
        raise ManyhandsError(
            f"every sample failed; the first with: {first}",
            hint="mend that, and run the same command with --retry-failures",
        )


def _say_failures(failed: Sequence[Record]) -> None:
    if not failed:
        return
    say(f"{len(failed)} failed, and {'counts' if len(failed) == 1 else 'count'} as 0:")
    for record in failed[:_LISTED]:
        say(f"  {record.sample} (repeat {record.repeat}): {record.error}")
    if len(failed) > _LISTED:
        say(f"  … and {len(failed) - _LISTED} more, all on record")


def _say_unread(samples: Sequence[str]) -> None:
    if samples:
        more = f" and {len(samples) - _NAMED} more" if len(samples) > _NAMED else ""
        say(f"  could not be read: {', '.join(samples[:_NAMED])}{more}")


def _check_votes(ends: Sequence[VoteMoment]) -> None:
    """Raises ManyhandsError if votes were cast and not one of them can be read."""
    unreadable = [vote for end in ends for vote in end.unreadable]
    if unreadable and len(unreadable) == sum(end.done for end in ends):
        first = unreadable[0]["error"] or "it names no level in a box"
        raise ManyhandsError(
            f"none of the {counted(len(unreadable), 'vote')} could be read; the first: {first}",
            hint="mend that, and run the same command with --retry-failures",
        )
