"""An exam as logs of Inspect: `inspect view --log-dir FOLDER` shows every question, answer and score.

    FOLDER/<task>/<label>.eval        one log for each file of records

Inspect's own library writes them, the extra `inspect`; nothing else of the project imports it. Of a log

    a sample    is a record: question and gold, the reply as the model's output, repeats as epochs
    a scorer    is a budget: "budget 64" has the value at 64 passes (of an endpoint, tokens), the answer that was read
                and why it was graded so. Its metrics are those of the report: the mean and its interval
    an event    is a finished step: the worker's name, its passes, its text

Values that wait for a judge are left out. All else that a record holds stands in the metadata.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.errors import InvalidRequest, OutputFailed, install_hint, place_or_room
from manyhands.evaluation.judge import graded_by_judges, name_of, with_judgements
from manyhands.evaluation.record import Header, Record, read_results, result_files
from manyhands.evaluation.summary import Summary
from manyhands.schema.plain import to_plain
from manyhands.schema.whole import whole_file

if TYPE_CHECKING:  # it is a large package, and asked for by few
    from inspect_ai.event import InfoEvent
    from inspect_ai.log import EvalLog, EvalResults, EvalSample
    from inspect_ai.scorer import Score

INSTALL_INSPECT = install_hint("inspect")
# Of a record, the fields that a sample of Inspect has a place for.
_PLACED = ("sample", "repeat", "question", "gold", "text", "scores", "steps", "writing", "error")
_STOPS = {"budget": "max_tokens", "context": "model_length"}


def write_inspect_logs(folder: str | Path, out: str | Path) -> list[Path]:
    """Write a log for each file of an exam under `folder`, over one of the same name; returns their paths.

    Raises InvalidRequest where the library is not installed or records are not in order, OutputFailed where a
    log cannot be written.
    """
    try:
        from inspect_ai.log import write_eval_log
    except ImportError as error:
        raise InvalidRequest(
            f"logs of Inspect need the package {error.name}, which is not installed",
            hint=INSTALL_INSPECT,
        ) from error
    written, out = [], Path(out)
    for records in result_files(folder):
        summary = Summary.of(graded_by_judges(with_judgements(read_results(records))))
        if not summary.records:
            continue
        path = out / records.parent.name / f"{records.stem}.eval"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as fresh:
                write_eval_log(_log(summary), str(fresh), format="eval")
        except OSError as error:
            raise OutputFailed(
                f"{str(error.filename or path)!r} cannot be written: {error.strerror}",
                hint=f"{place_or_room(error)}, or name another folder with --inspect",
            ) from error
        written.append(path)
    if not written:
        raise InvalidRequest(
            f"the files under {str(folder)!r} have no records yet", hint="run manyhands eval first"
        )
    return written


def _log(summary: Summary) -> EvalLog:
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSpec, EvalStats

    results = summary.results
    header, began = results.header, _moment(results.header, results.path)
    created = began.isoformat()
    known = {"task": header.task, "label": header.label, "created": created}
    mark = sha256(repr(sorted(known.items())).encode()).hexdigest()[
        :22
    ]  # of ids, as long as theirs
    samples = sorted({record.sample for record in summary.records})
    spec = EvalSpec(
        eval_id=mark,
        run_id=mark,
        task_id=mark,
        created=created,
        task=header.task,
        task_args={
            name: value
            for name, value in to_plain(header.task_options).items()
            if value is not None
        },
        solver=header.label,
        solver_args=to_plain(header.settings),
        dataset=EvalDataset(name=header.task, samples=len(samples), sample_ids=samples),
        model=header.model,
        model_base_url=header.endpoint,
        config=EvalConfig(epochs=1 + max(record.repeat for record in summary.records)),
        packages=dict(header.versions),
        metadata=to_plain(header),
    )
    return EvalLog(
        status="success",
        eval=spec,
        results=_results(summary),
        stats=EvalStats(
            started_at=created,
            completed_at=_behind(began, summary.duration, results.path).isoformat(),
        ),
        samples=[_sample(record, summary) for record in summary.records],
    )


def _moment(header: Header, path: Path) -> datetime:
    """When the exam began, in UTC; where no header says it, when its file was last written."""
    try:
        written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        began = datetime.fromisoformat(header.date) if header.date else written
        return began.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"the header of {str(path)!r} has the date {reprlib.repr(header.date)}; expected one as "
            "2026-11-23T17:00:00+0100",
            hint="Take the field out: the log has the date of the file then.",
        ) from error


def _behind(began: datetime, seconds: float, path: Path) -> datetime:
    """When the exam ended."""
    try:
        return began + timedelta(seconds=seconds)
    except OverflowError as error:
        raise InvalidRequest(
            f"the records of {str(path)!r} took {seconds:g} s in all, and no date lies so far ahead",
            hint="Look at `elapsed` in its lines: a record took so long since the one before.",
        ) from error


def _results(summary: Summary) -> EvalResults:
    """Every budget as a scorer, with the mean and the interval of the report."""
    from inspect_ai.log import EvalMetric, EvalResults, EvalScore

    scores = [
        EvalScore(
            name=_scorer(point.budget),
            scorer=_scorer(point.budget),
            scored_samples=point.value.count,
            metrics={
                name: EvalMetric(name=name, value=value)
                for name, value in (
                    ("mean", point.value.mean),
                    ("low", point.value.low),
                    ("high", point.value.high),
                )
            },
            metadata={"passes": point.passes, "tokens": point.tokens, "seconds": point.seconds},
        )
        for point in (() if summary.waits_for_judge else summary.curve)
    ]
    whole = len(summary.records) - len(summary.failures)
    return EvalResults(total_samples=len(summary.records), completed_samples=whole, scores=scores)


def _scorer(budget: int) -> str:
    return f"budget {budget}"


def _sample(record: Record, summary: Summary) -> EvalSample:
    from inspect_ai.log import EvalError, EvalSample
    from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, ModelOutput, ModelUsage

    header, error = summary.results.header, record.error
    metadata = {
        name: value for name, value in record.line().items() if name not in ("kind", *_PLACED)
    }
    usage = ModelUsage(output_tokens=sum(record.tokens), total_tokens=sum(record.tokens))
    stop = _STOPS.get(record.finish_reason, "stop")
    output = ModelOutput.from_content(header.model, record.text, stop_reason=stop)
    output.usage = usage
    return EvalSample(
        id=record.sample,
        epoch=record.repeat + 1,
        input=record.question,
        target=_target(record.gold),
        messages=[
            ChatMessageUser(content=record.question),
            ChatMessageAssistant(content=record.text, model=header.model),
        ],
        output=output,
        scores={} if summary.waits_for_judge else dict(_scores(record, summary.budgets)),
        metadata=metadata,
        events=list(_events(record, header)),
        model_usage={header.model: usage},
        total_time=record.seconds,
        error=error and EvalError(message=error, traceback=error, traceback_ansi=error),
    )


def _target(gold: Any) -> str | list[str]:
    if isinstance(gold, list | tuple):
        return [str(one) for one in gold]
    return "" if gold is None else str(gold)


def _scores(record: Record, budgets: Sequence[int]) -> Iterator[tuple[str, Score]]:
    from inspect_ai.scorer import Score

    for budget in budgets:
        score = record.scores[str(budget)]
        if score["value"] is None:  # its judge could not be understood
            continue
        read = score.get("extracted")
        yield (
            _scorer(budget),
            Score(
                value=float(score["value"]),
                answer=None if read is None else str(read),
                explanation=score.get("explanation") or None,
                metadata={
                    what: record.spent(budget, what) for what in ("passes", "tokens", "seconds")
                },
            ),
        )


def _events(record: Record, header: Header) -> Iterator[InfoEvent]:
    """The finished steps, in the order in which they ended."""
    from inspect_ai.event import InfoEvent

    for step in sorted(record.steps, key=lambda step: (step["last_pass"], step["worker"])):
        name = name_of(step["worker"], record, header.names)
        passes = f"passes {step['first_pass']} to {step['last_pass']}"
        asked = ", asked whether it is redundant" if step.get("checked") else ""
        yield InfoEvent(source=f"{name}, step {step['step']}, {passes}{asked}", data=step["text"])
