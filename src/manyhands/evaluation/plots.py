"""The curves of all methods on one task, as pictures: PNG files, and SVG for the page.

Three pictures, one for each thing that may be spent: forward passes (what the Hogwild! paper's figures
have below), tokens, seconds. Colour, marker and dash together tell methods apart, so that neither
colour-blind readers nor a black-and-white print are lost; the baseline is always the grey dashed line.
"""

from __future__ import annotations

import base64
import io
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.errors import InvalidRequest
from manyhands.evaluation.summary import CurvePoint, Summary, baseline_of
from manyhands.schema.whole import whole_file
from manyhands.tasks.loading import INSTALL_EXAM
from manyhands.text.clean import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = {
    "passes": "forward passes",
    "tokens": "tokens per problem, all workers",
    "seconds": "seconds per problem",
}
# Paul Tol's bright scheme and two more, for colour-blind eyes. Neighbours differ in all of colour, marker and
# dash; the three cycles have lengths without a common measure, so no two of the first 88 lines look alike.
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#44bb99")
_MARKERS = "Ds^vPX<>*hp"
_DASHES: Sequence[Any] = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 3)))
_WIDE_RANGE = 12  # times; beyond, the axis is logarithmic
_HANDLE_WIDTH, _LETTER_WIDTH = (
    0.65,
    0.085,
)  # inches in the legend: a line's sign, and a letter of its label
_MOST_BANDS = 4  # with more methods, thin bars are easier to read than bands over bands


@dataclass(frozen=True)
class Theme:
    """Ink and paper."""

    ink: str
    grid: str
    quiet: str


LIGHT = Theme(ink="#1d2430", grid="#dfe3ea", quiet="#6b7480")
DARK = Theme(ink="#e6e9ef", grid="#333a47", quiet="#a3adbb")


def picture(
    summaries: Sequence[Summary], what: str, theme: Theme = LIGHT, like: Figure | None = None
) -> Figure:
    """Value over what was spent: `passes`, `tokens` or `seconds`. Methods that lack it are left out.

    `like` is the same picture in another theme, saved already, whose axes tell where these lie: to find that out
    takes as long as to draw.
    """
    matplotlib = _matplotlib()
    shown = [s for s in summaries if _points(s, what)]
    baseline = baseline_of(summaries)
    width = 8.1 if what == "passes" else 5.4  # the first picture has the whole width of the page
    labels = {summary.label: _wrapped(summary.label, width) for summary in shown}
    longest = max((len(line) for label in labels.values() for line in label.split("\n")), default=1)
    columns = max(1, min(len(shown), int(width / (_HANDLE_WIDTH + _LETTER_WIDTH * longest))))
    tallest = max((label.count("\n") + 1 for label in labels.values()), default=1)
    size = (width, 4.2 + 0.2 * tallest * -(-len(shown) // columns))
    layout = "constrained" if like is None else "none"
    figure: Figure = matplotlib.figure.Figure(figsize=size, layout=layout)
    axes = figure.add_subplot()
    if like is not None:
        axes.set_position(like.axes[0].get_position().bounds)
    others = 0
    for summary in shown:
        is_baseline = summary is baseline
        style = _style(others, theme, is_baseline) | {"label": labels[summary.label]}
        _draw(axes, summary, what, style, len(shown) <= _MOST_BANDS)
        others += not is_baseline
    _dress(axes, what, theme, [x for s in shown for x, _ in _points(s, what)])
    if shown:
        legend = figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
        for text in legend.get_texts():
            text.set_color(theme.ink)
    return figure


def _wrapped(label: str, width: float) -> str:
    """The label in lines of which each is narrower than a picture of so many inches."""
    most = int((width - _HANDLE_WIDTH) / _LETTER_WIDTH)
    return "\n".join(textwrap.wrap(printable(label), most)) or label


def save_png(figure: Figure, path: Path) -> None:
    """A picture for slides and papers, on white. All that is saved of it later lies as this does."""
    with _any_script(), whole_file(path) as fresh:
        figure.savefig(fresh, dpi=160, facecolor="white", metadata={"Software": None})
    figure.set_layout_engine("none")


def svg_address(figure: Figure) -> str:
    """The picture as a data address, for a page that has all it needs."""
    matplotlib = _matplotlib()
    buffer = io.BytesIO()
    style = {"svg.fonttype": "none", "svg.hashsalt": "manyhands"}
    with matplotlib.rc_context(style), _any_script():
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


@contextmanager
def _any_script() -> Iterator[None]:
    """A label may be in a script that the font lacks. It is drawn as boxes, without a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)
        yield


def _points(summary: Summary, what: str) -> list[tuple[float, CurvePoint]]:
    """Where the points lie: at the budget itself, or at what had been spent by then.

    A single budget is mostly an upper bound that no run reaches; then it is what was spent of it.
    """
    if summary.waits_for_judge:
        return []
    if what == "passes" and len(summary.curve) > 1:
        return [] if summary.is_endpoint else [(float(p.budget), p) for p in summary.curve]
    return [(x, p) for p in summary.curve if (x := getattr(p, what)) is not None]


def _style(number: int, theme: Theme, is_baseline: bool) -> dict[str, Any]:
    if is_baseline:
        return {"color": theme.quiet, "marker": "o", "linestyle": (0, (4, 2)), "zorder": 4}
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "linestyle": _DASHES[number % len(_DASHES)],
        "linewidth": 1.9,
    }


def _draw(axes: Axes, summary: Summary, what: str, style: dict[str, Any], has_band: bool) -> None:
    points = _points(summary, what)
    xs = [x for x, _ in points]
    means = [p.value.mean for _, p in points]
    lows, highs = [p.value.low for _, p in points], [p.value.high for _, p in points]
    axes.plot(xs, means, markersize=5, **style)
    if has_band and len(xs) > 1:
        axes.fill_between(xs, lows, highs, color=style["color"], alpha=0.13, linewidth=0)
    else:
        below = [max(0.0, m - low) for m, low in zip(means, lows, strict=True)]
        above = [max(0.0, high - m) for m, high in zip(means, highs, strict=True)]
        axes.errorbar(
            xs,
            means,
            yerr=(below, above),
            fmt="none",
            ecolor=style["color"],
            elinewidth=1,
            alpha=0.6,
        )


def _dress(axes: Axes, what: str, theme: Theme, xs: Sequence[float]) -> None:
    """Axes, grid and words."""
    axes.set_ylim(-0.02, 1.02)
    if xs and min(xs) > 0 and max(xs) / min(xs) > _WIDE_RANGE:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    elif xs:
        axes.set_xlim(left=0)
    axes.set_xlabel(AXES[what], color=theme.ink)
    axes.set_ylabel("mean value (95 % interval)", color=theme.ink)
    axes.grid(color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=theme.quiet, length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_facecolor("none")


def _matplotlib() -> Any:
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError as error:
        raise InvalidRequest(
            "the report needs the package matplotlib", hint=INSTALL_EXAM
        ) from error
    return matplotlib
