"""The targets, and how our own number is read from the results.

The first targets were set before the kernels were written, from measured limits of one H200 and from what the
papers and other people's engines reach; the others with the work they were set for. That of two H100 was set
from the bandwidth in their data sheet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks import gpu_tables, performance
from benchmarks.performance import Result
from benchmarks.shapes import SHAPES


@dataclass(frozen=True)
class Target:
    """A number asked for, and our own: the value, how it is shown, whether it is enough; where more is said of it."""

    what: str
    asked: str
    ours: Callable[[], float | None]
    shown: str
    is_met: Callable[[float], bool]
    told: str

    def row(self) -> list[str]:
        """One line of the table."""
        value = self.ours()
        if value is None:
            return [self.what, self.asked, "not measured yet", ""]
        return [self.what, self.asked, self.shown.format(value), _yes(self.is_met(value))]


@dataclass(frozen=True)
class LifeTarget:
    """A number asked for of a situation in life, each time that it was measured: fresh, warm, drawn anew."""

    model: str
    situation: str
    what: str
    asked: str
    ours: Callable[[Result], float]
    shown: str
    is_met: Callable[[float], bool]
    told: str

    def row(self) -> list[str]:
        """One line of the table: met is yes, no, or how many of the times."""
        lived = {(each.model, each.name): each for each in performance.lives()}
        found = lived.get((self.model, self.situation))
        what = f"{self.model}, {self.situation}: {self.what}"
        if found is None:
            return [what, self.asked, "not measured yet", ""]
        values = [self.ours(found.lines[when]) for when in _WHENS if when in found.lines]
        met = sum(map(self.is_met, values))
        part = f"{met} of {len(values)}"
        verdict = part if 0 < met < len(values) else _yes(met > 0)
        return [what, self.asked, ", ".join(map(self.shown.format, values)), verdict]


_WHENS = ("fresh", "warm", "drawn anew")


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


def _long(workers: int, history: int, keys: str) -> Result | None:
    found = performance.result("decode_long_qwq-32b")
    return performance.cell(found, workers=workers, history=history, keys=keys)


def _long_over_floor(history: int) -> Callable[[], float | None]:
    def ours() -> float | None:
        line = _long(16, history, "auto")
        return line["over_floor"] if line else None

    return ours


def _eight_bits_ms() -> float | None:
    line = _long(4, 131072, "int8")
    return line["ms"] if line else None


def _eight_bits_slower() -> float | None:
    """Sixteen workers: the most over histories."""
    pairs = [(_long(16, n, "int8"), _long(16, n, "auto")) for n in (16384, 65536, 131072)]
    shares = [eight["ms"] / whole["ms"] for eight, whole in pairs if eight and whole]
    return max(shares) if shares else None


def _same_answers() -> float | None:
    """The least over all lists that were asked with keys in eight bits."""
    found = (performance.result(file) or {} for file in gpu_tables.ANSWERS)
    shares = [line["same_answers"] for each in found for line in each.get("teams", [])]
    return min(shares) if shares else None


def _start(when: str, key: str) -> Callable[[], float | None]:
    def ours() -> float | None:
        found = gpu_tables.newest_start(when)
        return found[2][key] if found else None

    return ours


def _late() -> float | None:
    """Compiled and recorded after the newest start from an empty folder."""
    found = gpu_tables.newest_start("cold")
    return (
        sum(gpu_tables.late(found[2], key) for key in ("compiled", "recorded")) if found else None
    )


def _prompt_us() -> float | None:
    found = performance.cell(performance.result("attention_prefills"), name="0 2048")
    return found["us"] if found else None


def _loaded() -> float | None:
    lines = (performance.result("disk_cache_qwen3-8b") or {}).get("lengths", [])
    times = [line["faster_ready"] for line in lines if "faster_ready" in line]
    return min(times) if times else None


def _deep_trees() -> float | None:
    """Trees whose attention takes more than three times its limit."""
    cells = (performance.result("attention_trees") or {}).get("cells", [])
    return sum(line["us"] > 3 * line["us_limit"] for line in cells) if cells else None


def _behind_peers() -> float | None:
    """Cells of teams in which FlashAttention 3 is faster."""
    found = performance.result("attention_teams") or {}
    peers = {
        line["name"]: line["us"]
        for line in found.get("peers", [])
        if line["peer"] == "FlashAttention 3"
    }
    shares = [
        line["us"] > peers[line["name"]] for line in found.get("cells", []) if line["name"] in peers
    ]
    return sum(shares) if shares else None


def _four_bits_ms() -> float | None:
    line = performance.cell(performance.result("decode_qwq-32b_int4"), workers=4, history=1024)
    return line["ms"] if line else None


def _four_bits_bandwidth(workers: int) -> float | None:
    """The speed of reading weights of four bits in a pass of so many workers, over a copy's."""
    found = performance.result("decode_qwq-32b_int4") or {}
    line = performance.cell(found, "breakdown", workers=workers, history=1024)
    if line is None or "kernels" not in line:
        return None
    config = SHAPES["qwq-32b"].config
    head = 2 * config["vocab_size"] * config["hidden_size"]  # bytes; it stays in 16 bits
    seconds = (found["weight_bytes"] - head) / found["copy_bytes_per_second"]
    kernels = sum(ms for name, ms in line["kernels"] if "w4a16" in name)
    return 1e3 * seconds / kernels if kernels else None


def _targets() -> list[Target]:
    def at_most(limit: float) -> Callable[[float], bool]:
        return lambda value: value <= limit

    def at_least(limit: float) -> Callable[[float], bool]:
        return lambda value: value >= limit

    lockstep, few, halved, peers = (
        "performance_lockstep.md#cards-and-commits",
        "performance_attention.md#few-small-tiles",
        "performance_attention.md#partials-of-16-bits-small-tiles-beside-large-ones",
        "performance_attention.md#flashattention-3-and-flashinfer-cell-by-cell",
    )
    long, mixed, four = (
        "performance_long_histories.md#sixteen-bits-and-eight",
        "performance_long_histories.md#keys-in-eight-bits-mixed",
        "performance_layers.md#four-bits-in-turns",
    )
    starts, two = "performance_prompts.md#starts", "scale.md#measured-on-two-gpus"
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
            lockstep,
        ),
        Target(f"{qwq}: over one worker", "≤ 1.05", _slowdown, "{:.3f}", at_most(1.05), lockstep),
        Target(
            "Qwen3-8B shapes, 1 k, 1 to 16 workers: ms per pass, the slowest",
            "≤ 4.9",
            _slowest_at_1k,
            "{:.2f}",
            at_most(4.9),
            lockstep,
        ),
        Target(
            "attention of one layer, 4 workers, 16 k: µs, cache flushed",
            "≤ 24",
            _attention_us,
            "{:.1f}",
            at_most(24),
            few,
        ),
        Target(
            "idle device per pass, 4 workers: ms, the most",
            "≤ 0.2",
            _idle_ms,
            "{:.3f}",
            at_most(0.2),
            lockstep,
        ),
        *(
            Target(
                f"shared-prefix attention, batch, prefix, suffix {name}: over its limit",
                "≤ 1.5",
                _over_roofline(name),
                "{:.2f}",
                at_most(1.5),
                halved,
            )
            for name in grid
        ),
        Target(
            f"{completions}, prefix 1 k: thousand tokens/s",
            "≥ 28",
            lambda: _thousands(1024),
            "{:.1f}",
            at_least(28),
            lockstep,
        ),
        Target(
            f"{completions}, prefix 16 k: thousand tokens/s",
            "≥ 23",
            lambda: _thousands(16256),
            "{:.1f}",
            at_least(23),
            lockstep,
        ),
        Target(
            "QwQ-32B shapes over two H100, 4 workers, 16 k: ms per pass",
            "≤ 11.5",
            lambda: _two_gpus("cells", "ms"),
            "{:.2f}",
            at_most(11.5),
            two,
        ),
        Target(
            "the same: idle device per pass, ms",
            "≤ 0.2",
            lambda: _two_gpus("breakdowns", "ms_idle"),
            "{:.3f}",
            at_most(0.2),
            two,
        ),
        Target(
            f"{completions}: lost from 1 k to 16 k",
            "≤ 15 %",
            _drop,
            "{:.1%}",
            at_most(0.15),
            "log.md#2026-11-22-transposed-tiles-and-the-last-tables",
        ),
        Target(
            "attention of teams: cells in which FlashAttention 3 is faster",
            "0",
            _behind_peers,
            "{:.0f}",
            at_most(0),
            peers,
        ),
        Target(
            "attention of trees: those over three times their limit",
            "0",
            _deep_trees,
            "{:.0f}",
            at_most(0),
            peers,
        ),
        Target(
            "attention of a prompt of 2 k: µs, cache flushed",
            "≤ 80",
            _prompt_us,
            "{:.1f}",
            at_most(80),
            "performance_attention.md#prompts",
        ),
        *(
            Target(
                f"QwQ-32B shapes, 16 workers, {history // 1024} k, 16 bits: over the floor",
                "≤ 1.08",
                _long_over_floor(history),
                "{:.3f}",
                at_most(1.08),
                long,
            )
            for history in (16384, 65536, 131072)
        ),
        Target(
            "QwQ-32B shapes, 4 workers, 128 k, keys in eight bits: ms per pass",
            "≤ 20.5",
            _eight_bits_ms,
            "{:.2f}",
            at_most(20.5),
            long,
        ),
        Target(
            "QwQ-32B shapes, 16 workers, keys in eight bits: over 16 bits, the most",
            "≤ 1",
            _eight_bits_slower,
            "{:.2f}",
            at_most(1),
            long,
        ),
        Target(
            "lists with the same answers with keys in eight bits, the least",
            "≥ 99 %",
            _same_answers,
            "{:.1%}",
            at_least(0.99),
            mixed,
        ),
        Target(
            "QwQ-32B shapes, four bits, 4 workers, 1 k: ms per pass",
            "≤ 7.0",
            _four_bits_ms,
            "{:.2f}",
            at_most(7),
            four,
        ),
        *(
            Target(
                f"QwQ-32B shapes, four bits, {workers} workers, 1 k: bandwidth of the products, of a copy's",
                "≥ 75 %",
                partial(_four_bits_bandwidth, workers),
                "{:.0%}",
                at_least(0.75),
                four,
            )
            for workers in (4, 16)
        ),
        Target(
            "a start with no compiled kernels: s to get ready",
            "≤ 30",
            _start("cold", "get_ready_s"),
            "{:.1f}",
            at_most(30),
            starts,
        ),
        Target(
            "a start with compiled kernels: s to get ready",
            "≤ 5",
            _start("cached", "get_ready_s"),
            "{:.1f}",
            at_most(5),
            starts,
        ),
        Target(
            "first token of a prompt of 2 k: s",
            "≤ 0.5",
            _start("cold", "first_token_s"),
            "{:.3f}",
            at_most(0.5),
            starts,
        ),
        Target("compiled or recorded after a start", "0", _late, "{:.0f}", at_most(0), starts),
        Target(
            "a saved prompt of 16 k in an engine that serves: loaded so many times as fast as read",
            "≥ 5",
            _loaded,
            "{:.1f}",
            at_least(5),
            "performance_prompts.md#prompts-from-disk",
        ),
    ]


def _life_targets() -> list[LifeTarget]:
    def wanted(
        situation: str, what: str, least: float | None = None, most: float | None = None
    ) -> LifeTarget:
        """Of Qwen3-8B, or, behind 16 k, of QwQ-32B."""
        ours, shown = _OF_LIFE[what]
        account = "the-host-itself" if what == _WORST else "life-in-turns"
        asked = f"≥ {least:g}" if most is None else f"≤ {most:g}"
        return LifeTarget(
            "QwQ-32B" if "16 k" in situation else "Qwen3-8B",
            situation,
            what,
            asked,
            ours,
            shown,
            lambda value: (least is None or value >= least) and (most is None or value <= most),
            f"performance_life.md#{'ragged-rows' if 'ragged' in situation else account}",
        )

    mix, crowd = "10 teams, 3 x 32 samples, 32 lone", "32 teams of 4, come and go"
    lone_teams = [
        ("one team of 4, 1 k, steps of 40", 4.7),
        ("one team of 16, 1 k, steps of 40", 5.4),
        ("one team of 4, 16 k, steps of 40", 17.8),
    ]
    itself = [f"hogwild, {workers} workers, 1 k, steps of 40" for workers in (4, 16)]
    return [
        *(wanted(name, _MEAN, most=limit) for name, limit in lone_teams),
        *(wanted(name, _WORST, most=1.3) for name in (*(n for n, _ in lone_teams), *itself)),
        wanted("32 teams of 4, ragged", _MEAN, most=9.5),
        wanted(mix, _RATE, least=8),
        wanted(mix, _GAP, most=40),
        wanted(crowd, _RATE, least=11),
        wanted(crowd, _NARROW, most=10),
        wanted(crowd, _NARROW_99, most=20),
        wanted(crowd, _GAP, most=40),
    ]


_MEAN, _WORST = "ms per pass", "worst pass over the median"
_RATE, _GAP = "thousand tokens/s", "ms between a row's tokens, 99th percentile"
_NARROW = "ms of a pass without a prompt, median"
_NARROW_99 = "ms of a pass without a prompt, 99th percentile"
_OF_LIFE: dict[str, tuple[Callable[[Result], float], str]] = {
    _MEAN: (lambda line: line["mean_ms"], "{:.2f}"),
    _WORST: (lambda line: line["worst_ms"] / line["p50_ms"], "{:.3f}"),
    _RATE: (lambda line: line["tokens_per_second"] / 1e3, "{:.2f}"),
    _GAP: (lambda line: line["gap_p99_ms"], "{:.1f}"),
    _NARROW: (lambda line: line["narrow_p50_ms"], "{:.1f}"),
    _NARROW_99: (lambda line: line["narrow_p99_ms"], "{:.1f}"),
}


def targets() -> str:
    """The targets, and our numbers beside them."""
    return performance.table(_HEAD, [target.row() for target in _targets()])


_HEAD = ["what", "target", "ours", "met"]


def life_targets() -> str:
    """The targets of life, and our numbers: the first time in a process, the second, and with other draws."""
    head = ["what", "target", "fresh, warm, drawn anew", "met"]
    return performance.table(head, [target.row() for target in _life_targets()])


def missed() -> str:
    """The targets that are not met every time, and where more is said of each."""
    rows = []
    every: list[Target | LifeTarget] = [*_life_targets(), *_targets()]
    for target in every:
        what, asked, ours, met = target.row()
        if met not in ("yes", ""):
            rows.append([what, asked, ours, f"[account]({target.told})"])
    return performance.table(["what", "target", "ours", "more"], rows) if rows else "None."


TABLES: dict[str, Callable[[], str]] = {
    made.__name__: made for made in (targets, life_targets, missed)
}
