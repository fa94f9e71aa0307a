"""The pictures in docs/, drawn from the results: small SVG files, the same every time.

python -m benchmarks.plots
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

from benchmarks.performance import PLOTS, cell, result, results
from benchmarks.shapes import SHAPES
from benchmarks.tables import needle_pairs


def draw(folder: Path = PLOTS) -> list[Path]:
    """Draw what has been measured."""
    mpl.use("Agg")
    with mpl.rc_context(
        {
            "svg.hashsalt": "manyhands",  # names of elements come from it, not from chance
            "svg.fonttype": "none",
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "legend.frameon": False,
        }
    ):
        return [
            path
            for path in (_decode(folder), _prefix(folder), _fleet(folder), _needles(folder))
            if path is not None
        ]


def _decode(folder: Path) -> Path | None:
    """Milliseconds per pass over the history, one panel a network, one line a team."""
    from matplotlib import pyplot

    measured = [(name, found) for name, found in results("decode") if found.get("cells")]
    if not measured:
        return None
    figure, axes = pyplot.subplots(
        1, len(measured), figsize=(3.2 * len(measured), 3.0), squeeze=False
    )
    for axis, (name, found) in zip(axes[0], measured, strict=True):
        for workers in sorted({line["workers"] for line in found["cells"]}):
            lines = [line for line in found["cells"] if line["workers"] == workers]
            histories = [line["history"] for line in lines]
            axis.plot(histories, [line["ms"] for line in lines], marker="o", ms=3, label=workers)
        floors = [line for line in found["cells"] if line["workers"] == 1]
        axis.plot(
            [line["history"] for line in floors],
            [line["floor_ms"] for line in floors],
            color="0.5",
            linestyle="--",
            label="floor of 1",
        )
        axis.set(title=SHAPES[name].title, xlabel="history, tokens", xscale="log", ylim=(0, None))
    axes[0][0].set_ylabel("ms per forward pass")
    axes[0][-1].legend(title="workers", fontsize=7)
    return _save(figure, folder / "decode.svg")


def _prefix(folder: Path) -> Path | None:
    """Thousand tokens per second over the prefix, one panel a network, ceilings dashed."""
    from matplotlib import pyplot

    measured = [(name, found) for name, found in results("prefix") if found.get("cells")]
    if not measured:
        return None
    figure, axes = pyplot.subplots(
        1, len(measured), figsize=(3.6 * len(measured), 3.0), squeeze=False
    )
    for axis, (name, found) in zip(axes[0], measured, strict=True):
        for batch in sorted({line["batch"] for line in found["cells"]}, reverse=True):
            lines = [line for line in found["cells"] if line["batch"] == batch]
            rates = [line["tokens_per_second"] / 1e3 for line in lines]
            drawn = axis.plot(
                [line["prefix"] for line in lines], rates, marker="o", ms=3, label=batch
            )
            ceiling = cell(found, "ceiling", batch=batch)
            if ceiling is not None:
                height = ceiling["tokens_per_second"] / 1e3
                axis.axhline(height, color=drawn[0].get_color(), linestyle="--", lw=0.8)
        axis.set(title=SHAPES[name].title, xlabel="prefix, tokens", xscale="log", ylim=(0, None))
        axis.legend(title="batch", fontsize=7)
    axes[0][0].set_ylabel("thousand tokens per second")
    return _save(figure, folder / "prefix.svg")


def _fleet(folder: Path) -> Path | None:
    """Time to the first token over load, one panel a team; with affinity, and without dashed."""
    from matplotlib import pyplot

    lines = (result("fleet") or {}).get("fleet", [])
    if not lines:
        return None
    teams = sorted({line["workers"] for line in lines})
    figure, axes = pyplot.subplots(1, len(teams), figsize=(3.6 * len(teams), 3.0), squeeze=False)
    for axis, workers in zip(axes[0], teams, strict=True):
        for color, replicas in enumerate((4, 16)):
            for affinity, style in ((True, "-"), (False, "--")):
                wanted = (workers, replicas, affinity)
                own = [e for e in lines if (e["workers"], e["replicas"], e["affinity"]) == wanted]
                axis.plot(
                    [line["turns_per_replica_second"] for line in own],
                    [line["first_s_p50"] for line in own],
                    style,
                    color=f"C{color}",
                    marker="o",
                    ms=3,
                    label=f"{replicas}{'' if affinity else ', least busy'}",
                )
        axis.set(title=f"teams of {workers}", xlabel="turns a second of each replica", yscale="log")
    axes[0][0].set_ylabel("median time to the first token, s")
    axes[0][-1].legend(title="replicas", fontsize=7)
    return _save(figure, folder / "fleet.svg")


def _needles(folder: Path) -> Path | None:
    """Memory over the number of questions about one document, shared and not."""
    from matplotlib import pyplot

    found = {
        kind: [pair[at] for pair in needle_pairs()]
        for at, kind in enumerate(("shared", "unshared"))
    }
    if not found["shared"]:
        return None
    figure, axis = pyplot.subplots(figsize=(3.6, 2.8))
    for kind, sat in found.items():
        questions = [line["num_records"] for line in sat]
        memory = [(line["kv_bytes"] or 0) / 1e6 for line in sat]
        axis.plot(questions, memory, marker="o", ms=3, label=kind)
    axis.set(title="KV cache, MB", xlabel="questions at once", xscale="log", yscale="log")
    axis.legend()
    return _save(figure, folder / "bundled" / "needles.svg")


def _save(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path


if __name__ == "__main__":
    for drawn_path in draw():
        print(drawn_path)
