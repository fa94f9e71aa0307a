"""The targets, and how our own number is read from the results.

The targets were set before the kernels were written, from measured limits of one H200 and from what the
papers and other people's engines reach. That of two H100 was set from the bandwidth in their data sheet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import performance


@dataclass(frozen=True)
class Target:
    """A number asked for, and our own: the value, how it is shown, whether it is enough."""

    what: str
    asked: str
    ours: Callable[[], float | None]
    shown: str
    is_met: Callable[[float], bool]

    def row(self) -> list[str]:
        """One line of the table."""
        value = self.ours()
        if value is None:
            return [self.what, self.asked, "not measured yet", ""]
        return [self.what, self.asked, self.shown.format(value), _yes(self.is_met(value))]


def _yes(met: bool) -> str:
    return "yes" if met else "no"


def _decode_ms(name: str, history: int, workers: int) -> float | None:
    found = performance.cell(performance.result(f"decode_{name}"), history=history, workers=workers)
    return found["ms"] if found else None


def _slowdown() -> float | None:
    one, four = (_decode_ms("qwq-32b", 16384, workers) for workers in (1, 4))
    return four / one if one and four else None


def _slowest_at_1k() -> float | None:
    times = [_decode_ms("qwen3-8b", 1024, workers) for workers in (1, 2, 4, 8, 16)]
    return max(ms for ms in times if ms) if all(times) else None


def _attention_us() -> float | None:
    found = performance.cell(performance.result("attention_teams"), name="16384 4")
    return found["us"] if found else None


def _idle_ms() -> float | None:
    """The most, over all networks and histories."""
    lines = [
        line for _, found in performance.results("decode") for line in found.get("breakdown", [])
    ]
    idle = [line["ms_idle"] for line in lines if line["workers"] == 4 and "ms_idle" in line]
    return max(idle) if idle else None


def _over_roofline(name: str) -> Callable[[], float | None]:
    def ours() -> float | None:
        found = performance.cell(performance.result("attention_prefixes"), name=name)
        return found["us"] / found["us_limit"] if found else None

    return ours


def _thousands(prefix: int) -> float | None:
    found = performance.cell(performance.result("prefix_codellama-7b"), batch=1024, prefix=prefix)
    return found["tokens_per_second"] / 1e3 if found else None


def _drop() -> float | None:
    short, long = _thousands(1024), _thousands(16256)
    return 1 - long / short if short and long else None


def _two_gpus(kind: str, key: str) -> float | None:
    """Of QwQ-32B on two H100, 4 workers, 16 k, with sums through peers' memory."""
    found = performance.result("ranks_qwq-32b")
    line = performance.cell(found, kind, history=16384, rows=4, peers=True)
    return line[key] if line else None


def _targets() -> list[Target]:
    def at_most(limit: float) -> Callable[[float], bool]:
        return lambda value: value <= limit

    def at_least(limit: float) -> Callable[[float], bool]:
        return lambda value: value >= limit

    qwq = "QwQ-32B shapes, bfloat16, 4 workers, 16 k"
    completions = "CodeLlama-7b shapes, 1 024 completions of 128 tokens"
    grid = ("1024 2048 128", "2048 4096 128", "4096 8192 256")
    return [
        Target(
            f"{qwq}: ms per pass",
            "≤ 18.0",
            lambda: _decode_ms("qwq-32b", 16384, 4),
            "{:.2f}",
            at_most(18),
        ),
        Target(f"{qwq}: over one worker", "≤ 1.05", _slowdown, "{:.3f}", at_most(1.05)),
        Target(
            "Qwen3-8B shapes, 1 k, 1 to 16 workers: ms per pass, the slowest",
            "≤ 4.9",
            _slowest_at_1k,
            "{:.2f}",
            at_most(4.9),
        ),
        Target(
            "attention of one layer, 4 workers, 16 k: µs, cache flushed",
            "≤ 24",
            _attention_us,
            "{:.1f}",
            at_most(24),
        ),
        Target(
            "idle device per pass, 4 workers: ms, the most",
            "≤ 0.2",
            _idle_ms,
            "{:.3f}",
            at_most(0.2),
        ),
        *(
            Target(
                f"shared-prefix attention, batch, prefix, suffix {name}: over its limit",
                "≤ 1.5",
                _over_roofline(name),
                "{:.2f}",
                at_most(1.5),
            )
            for name in grid
        ),
        Target(
            f"{completions}, prefix 1 k: thousand tokens/s",
            "≥ 28",
            lambda: _thousands(1024),
            "{:.1f}",
            at_least(28),
        ),
        Target(
            f"{completions}, prefix 16 k: thousand tokens/s",
            "≥ 23",
            lambda: _thousands(16256),
            "{:.1f}",
            at_least(23),
        ),
        Target(
            "QwQ-32B shapes over two H100, 4 workers, 16 k: ms per pass",
            "≤ 11.5",
            lambda: _two_gpus("cells", "ms"),
            "{:.2f}",
            at_most(11.5),
        ),
        Target(
            "the same: idle device per pass, ms",
            "≤ 0.2",
            lambda: _two_gpus("breakdowns", "ms_idle"),
            "{:.3f}",
            at_most(0.2),
        ),
        Target(f"{completions}: lost from 1 k to 16 k", "≤ 15 %", _drop, "{:.1%}", at_most(0.15)),
    ]


def targets() -> str:
    """The targets, and our numbers beside them."""
    return performance.table(
        ["what", "target", "ours", "met"], [target.row() for target in _targets()]
    )
