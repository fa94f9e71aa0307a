"""All records of an exam as one page and some pictures.

The page stands by itself: style, script and pictures are in it, and it asks no network for anything. It
says what was asked of whom, how good and how dear the answers were, who is better on the same samples,
where a method loses, what failed, what the judges said, how each kind of question went, lists every answer beside the
gold, and shows some runs token by token. Runs that kept their traces get pages of their own beside it.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from manyhands.errors import InvalidRequest, ManyhandsError, OutputFailed, place_or_room
from manyhands.evaluation.groups import Grouping, grouped
from manyhands.evaluation.judge import graded_by_judges, needs_judge, with_judgements
from manyhands.evaluation.listing import (
    VERDICTS,
    Listed,
    Page,
    in_order,
    listed,
    pages_of,
    worst_first,
)
from manyhands.evaluation.losses import (
    Comparison,
    Loss,
    compare,
    compare_everywhere,
    losses,
    resolution,
)
from manyhands.evaluation.pair import check_asked_the_same
from manyhands.evaluation.plots import AXES, DARK, picture, save_png, svg_address
from manyhands.evaluation.reach import SHARE, Reach, reaches
from manyhands.evaluation.record import Key, name_for_files, read_results, result_files
from manyhands.evaluation.results import TABLES, write_results
from manyhands.evaluation.summary import NOT_JUDGED, Summary, baseline_of
from manyhands.evaluation.transcript import Transcript, transcript_of
from manyhands.schema.whole import write_whole
from manyhands.text.clean import printable

TEMPLATE = "report.html.jinja"
# How a report begins, and few other pages do.
_BEGINS = b'''<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"'''
_POLICY = "POLICY"  # where it stands in the template, until the page is known
LISTED_FAILURES = 50  # on the page; the records have all of them


@dataclass(frozen=True)
class Chart:
    """One picture, for light and for dark pages, and in words for those who cannot see it."""

    what: str
    light: str
    dark: str
    alt: str


@dataclass(frozen=True)
class Chapter:
    """One task: every method that was examined on it."""

    task: str
    summaries: Sequence[Summary]
    baseline: Summary
    charts: Sequence[Chart]
    losses: Sequence[Loss]
    against: Sequence[Comparison]  # every other method against the baseline, at every budget
    reaches: Sequence[Reach]  # the cost of nearly the baseline's accuracy
    matrix: Sequence[tuple[Summary, Sequence[Comparison | None]]]  # every one against every one
    rubrics: Sequence[str]
    transcripts: Sequence[tuple[Summary, Sequence[Transcript]]]
    grouping: Grouping | None
    lines: Sequence[Listed]  # every sample
    resolution: float

    @property
    def kinds(self) -> list[str]:
        """How the intervals on the page were computed."""
        return sorted({p.value.kind for s in self.summaries for p in s.curve})

    @property
    def is_uneven(self) -> bool:
        """Whether a method was asked other samples than another."""
        return len({summary.samples for summary in self.summaries}) > 1

    @property
    def is_compared(self) -> bool:
        """Whether there are values beside the baseline's."""
        graded = [summary for summary in self.summaries if not summary.waits_for_judge]
        return self.baseline in graded and len(graded) > 1

    @property
    def needs_judge(self) -> bool:
        """Whether no rule can grade these answers."""
        return any(needs_judge(record) for s in self.summaries for record in s.records)

    @property
    def has_batching(self) -> bool:
        """Whether several samples shared their passes, so that seconds are those of a busy engine."""
        return any(summary.results.header.concurrency > 1 for summary in self.summaries)


def write_report(
    folder: str | Path,
    out: str | Path,
    baseline: str | None = None,
    *,
    show: Callable[[Path], str] | None = None,
    most_pages: int = 0,
) -> list[Path]:
    """Write the page and its pictures; returns what was written.

    `baseline` is the label that the others are compared with, where a task has it. `show` makes a page of a
    trace; `most_pages` runs of each method get one, failures first. InvalidRequest if no
    task has the baseline, records are not in order, or a sample is two questions, OutputFailed if a page cannot be written.
    """
    folder, out = Path(folder), Path(out)
    summaries = [
        Summary.of(graded_by_judges(with_judgements(read_results(path))))
        for path in result_files(folder)
    ]
    tasks: defaultdict[str, list[Summary]] = defaultdict(list)
    for summary in summaries:
        if summary.records:
            tasks[summary.results.header.task].append(summary)
    if not tasks:
        raise InvalidRequest(
            f"the files under {str(folder)!r} have no records yet", hint="run manyhands eval first"
        )
    for found in tasks.values():
        check_asked_the_same(found)
    labels = {summary.label for found in tasks.values() for summary in found}
    if baseline is not None and baseline not in labels:
        raise InvalidRequest(
            f"there is no method {baseline!r} to compare with",
            hint=f"choose one of: {', '.join(sorted(labels))}",
        )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _check_replaceable(out)
        written = [out]
        chapters = []
        for task, found in sorted(tasks.items()):
            pages = pages_of(found, _pages(out, written, show), most_pages if show else 0)
            chapters.append(_chapter(task, found, out, written, baseline, pages))
        write_whole(out, _page(chapters))
        written += write_results(
            out,
            [(c.task, s) for c in chapters for s in c.summaries],
            [(c.task, found) for c in chapters for found in c.against],
            [(c.task, found) for c in chapters for found in c.reaches],
        )
    except OSError as error:
        raise OutputFailed(
            f"{str(error.filename or out)!r} cannot be written: {error.strerror}",
            hint=f"{place_or_room(error)}, or name another with --out",
        ) from error
    return written


def _check_replaceable(out: Path) -> None:
    """A page is put in the place of an earlier report alone, and its tables beside that one."""
    if out.exists():
        with out.open("rb") as file:
            taken = [] if file.read(len(_BEGINS)) == _BEGINS else [out]
    else:
        taken = [path for path in map(out.with_suffix, TABLES) if path.exists()]
    if taken:
        raise InvalidRequest(
            f"{str(taken[0])!r} exists and is no report of manyhands, so it is not replaced",
            hint="name another with --out, or remove it first",
        )


def _pages(out: Path, written: list[Path], show: Callable[[Path], str] | None) -> Page:
    """Makes pages of traces, in a folder beside the report; a trace that is broken has none."""
    folder = out.with_name(f"{out.stem}-runs")

    def make(trace: Path) -> str | None:
        assert show is not None, "asked for no page where none can be made"
        try:
            page = show(trace)
        except ManyhandsError:
            return None
        path = folder / trace.parent.parent.parent.name / trace.parent.name / f"{trace.stem}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, page)
        written.append(path)
        return quote(
            os.fsencode(path.relative_to(out.parent).as_posix())
        )  # in every locale its bytes

    return make


def _chapter(
    task: str,
    summaries: Sequence[Summary],
    out: Path,
    written: list[Path],
    wanted: str | None,
    pages: Mapping[tuple[str, Key], str],
) -> Chapter:
    named = [summary for summary in summaries if summary.label == wanted]
    baseline = named[0] if named else baseline_of(summaries)
    others = sorted((s for s in summaries if s is not baseline), key=lambda s: in_order(s.label))
    ordered = [baseline, *others]
    graded = [summary for summary in ordered if not summary.waits_for_judge]
    charts = []
    for what in AXES if graded else ():
        figure = picture(ordered, what)
        path = out.with_name(f"{out.stem}-{name_for_files(task)}-{what}.png")
        save_png(figure, path)
        written.append(path)
        dark = svg_address(picture(ordered, what, DARK, figure))
        charts.append(Chart(what, svg_address(figure), dark, _in_words(graded, what)))
    return Chapter(
        task=task,
        summaries=ordered,
        baseline=baseline,
        charts=charts,
        losses=losses(baseline, ordered),
        against=[
            found
            for other in graded
            if baseline in graded and other is not baseline
            for found in compare_everywhere(other, baseline)
        ],
        reaches=reaches(baseline, ordered),
        matrix=[
            (ours, [None if ours is theirs else compare(ours, theirs) for theirs in graded])
            for ours in graded
        ],
        rubrics=sorted({rubric for summary in ordered for rubric in summary.judged}),
        transcripts=_transcripts(ordered),
        grouping=grouped(ordered),
        lines=listed(ordered, pages),
        resolution=resolution(baseline),
    )


def _transcripts(summaries: Sequence[Summary]) -> list[tuple[Summary, list[Transcript]]]:
    """The runs that kept their writing, the largest team first: it has most to show. Of each the worst first."""
    found = [
        (
            summary,
            [
                transcript_of(record, summary.results.header.names)
                for record in worst_first(summary)
                if record.writing
            ],
        )
        for summary in summaries
    ]
    return sorted(
        ((summary, shown) for summary, shown in found if shown),
        key=lambda pair: -len(pair[1][0].columns),
    )


def _in_words(summaries: Sequence[Summary], what: str) -> str:
    ends = "; ".join(f"{s.label} reaches {s.last.value.mean:.3f}" for s in summaries)
    return f"Mean value against {AXES[what]}. At the largest budget {ends}."


def _page(chapters: Sequence[Chapter]) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # the text of models is never markup
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=_number, signed=_signed, mb=_megabytes, percent=lambda v: f"{100 * v:.0f} %"
    )
    template = environment.get_template(TEMPLATE)
    page = template.render(
        chapters=chapters,
        axes=AXES,
        share=SHARE,
        most_failures=LISTED_FAILURES,
        not_judged=NOT_JUDGED,
        verdicts=VERDICTS,
        title="manyhands exam",
        policy=_POLICY,
    )
    return page.replace(_POLICY, _policy(page), 1)


def _visible(value: object) -> object:
    """Text of a model may neither reorder a line of the page nor hide in it."""
    if not isinstance(value, str):
        return value
    shown = printable(value)
    return Markup(shown) if isinstance(value, Markup) else shown


def _policy(page: str) -> str:
    """The content security policy: this page's own style and script, pictures in it, nothing else."""

    def own(tag: str) -> str:
        inside = page.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        return f"'sha256-{b64encode(sha256(inside.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; img-src data:; style-src {own('style')}; script-src {own('script')}; "
        "base-uri 'none'; form-action 'none'"
    )


def _number(value: float | None, digits: int = 3) -> str:
    """Three figures are enough for a table; what is not known is a dash."""
    if value is None:
        return "–"
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")
    return f"{value:.{digits}g}" if abs(value) < 100 else f"{value:.0f}"


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "\N{MINUS SIGN}")


def _megabytes(value: int | None) -> str:
    return "–" if value is None else f"{value / 1e6:.1f}"
