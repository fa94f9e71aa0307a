"""One method's records as numbers: its curve, its row of the table, what the judges said.

The table has the form of PDOS, Table 1: quality, speed, time and memory. Speed and time of one sample
are means over samples; with several samples in the same passes they are those of a busy engine, and
`throughput` (all tokens over the duration of the exam) says what the engine did.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

from manyhands.evaluation.judge import RUBRICS, needs_judge, own_level
from manyhands.evaluation.record import Record, Results
from manyhands.evaluation.statistics import Interval, interval, mean_level

BASELINE = "sequential"
NOT_JUDGED = "not judged yet"  # in the place of a value that only a judge can give


@dataclass(frozen=True)
class CurvePoint:
    """The value at one budget, and what had been spent by then (means; None: not known)."""

    budget: int
    value: Interval
    passes: float | None
    tokens: float | None
    seconds: float | None


@dataclass(frozen=True)
class Judged:
    """The votes of the judges on one method. `unread` votes named no level, `missing` work has none."""

    rubric: str
    highest: int
    value: Interval | None
    votes: int
    unread: int
    failures: int  # of quality: failed runs, which count as 1 point


@dataclass(frozen=True)
class Summary:
    """One file of records, summed up."""

    results: Results

    @classmethod
    def of(cls, results: Results) -> Summary:
        """Results have at least one record; a file that has none is left out before."""
        return cls(results)

    def on(self, samples: Set[str]) -> Summary:
        """The same method on these samples alone."""
        if samples >= self.samples:
            return self
        kept = tuple(record for record in self.records if record.sample in samples)
        return Summary(replace(self.results, records=kept))

    @property
    def label(self) -> str:
        """The name of this candidate in tables and curves."""
        return self.results.header.label

    @property
    def is_endpoint(self) -> bool:
        """Whether another server answered: then passes are unknown, and budgets are tokens."""
        return self.results.header.endpoint is not None

    @property
    def records(self) -> Sequence[Record]:
        """All records, failures included."""
        return self.results.records

    @property
    def budgets(self) -> Sequence[int]:
        """Where the curve was looked at, rising."""
        return self.results.header.budgets

    @property
    def failures(self) -> list[Record]:
        """The samples that failed; each counts as 0 at every budget."""
        return [record for record in self.records if record.error is not None]

    @property
    def num_older_seeds(self) -> int:
        """Records without a seed of their own beside others that have one: an exam that an older release had begun.

        Failed ones are left out, since a sample that could not be asked has no draws.
        """
        answered = [record for record in self.records if record.error is None]
        without = sum(record.seed is None for record in answered)
        return without if without < len(answered) else 0

    @cached_property
    def waits_for_judge(self) -> bool:
        """Whether only a judge can grade these answers, and none has: their values say nothing yet.

        Votes that cannot be read grade nothing either.
        """
        asked = [record for record in self.records if needs_judge(record)]
        return bool(asked) and all(own_level(record) is None for record in asked)

    @cached_property
    def num_samples(self) -> int:
        """Different samples; with repeats there are more records."""
        return len(self.samples)

    @cached_property
    def samples(self) -> Set[str]:
        """The names of all samples that were asked."""
        return frozenset(record.sample for record in self.records)

    @cached_property
    def curve(self) -> tuple[CurvePoint, ...]:
        """The value over budgets."""
        return tuple(self._point(budget) for budget in self.budgets)

    @property
    def last(self) -> CurvePoint:
        """The point of the largest budget."""
        return self.curve[-1]

    def values(self, budget: int) -> dict[str, float]:
        """Each sample's value at a budget, repeats averaged."""
        found: defaultdict[str, list[float]] = defaultdict(list)
        for record in self.records:
            if record.scores[str(budget)]["value"] is not None:  # its judge could not be understood
                found[record.sample].append(record.value(budget))
        return {sample: sum(values) / len(values) for sample, values in found.items()}

    @cached_property
    def tokens_per_second(self) -> float | None:
        """Of one sample, on average."""
        rates = [sum(r.tokens) / r.seconds for r in self._whole if r.tokens and r.seconds > 0]
        return sum(rates) / len(rates) if rates else None

    @cached_property
    def throughput(self) -> float | None:
        """Tokens of all samples over the duration of the exam."""
        duration = self.duration
        tokens = sum(sum(record.tokens) for record in self.records)
        return tokens / duration if duration > 0 and tokens else None

    @cached_property
    def duration(self) -> float:
        """Seconds of the whole exam, all its starts together."""
        return sum(record.elapsed for record in self.records)

    @cached_property
    def seconds(self) -> float | None:
        """Of one sample that did not fail, on average."""
        return _mean([record.seconds for record in self._whole])

    @cached_property
    def passes(self) -> float | None:
        """Forward passes of one sample, on average."""
        return _mean([r.forward_passes for r in self._whole if r.forward_passes is not None])

    @cached_property
    def tokens(self) -> float | None:
        """Tokens of one sample, of all its workers, on average; None where they are not known."""
        return _mean([sum(record.tokens) for record in self._whole if record.tokens])

    @cached_property
    def extra_passes(self) -> float | None:
        """Passes of finisher, snapshots and reply, which no method is charged for."""
        return None if self.is_endpoint else _mean([r.extra_passes for r in self._whole])

    def memory(self, what: str) -> int | None:
        """The highest peak of `kv_bytes`, `kv_tokens` or `allocated_bytes`; None if not known."""
        return max((r.memory[what] for r in self.records if what in r.memory), default=None)

    @cached_property
    def endings(self) -> list[tuple[str, int]]:
        """How often a run ended in which way, most often first."""
        return Counter(record.finish_reason for record in self.records).most_common()

    @cached_property
    def judged(self) -> Mapping[str, Judged]:
        """By rubric, those that were voted on."""
        found = {name: self._judged(name) for name in RUBRICS}
        return {name: judged for name, judged in found.items() if judged is not None}

    @property
    def _whole(self) -> list[Record]:
        return [record for record in self.records if record.error is None]

    def _point(self, budget: int) -> CurvePoint:
        values = list(self.values(budget).values())
        spent = {
            what: _mean([s for r in self._whole if (s := r.spent(budget, what)) is not None])
            for what in ("passes", "tokens", "seconds")
        }
        repeated = len(values) < len(self.records)
        return CurvePoint(budget, interval(values, repeated=repeated), **spent)

    def _judged(self, rubric: str) -> Judged | None:
        found = [r.judgements[rubric] for r in self.records if rubric in r.judgements]
        if not found:
            return None
        failures = self.failures if rubric == "quality" else []
        levels: defaultdict[str, list[float]] = defaultdict(list)  # of each sample, all repeats
        for record in self.records:
            level = record.judgements.get(rubric, {}).get("value")
            if level is not None:
                levels[record.sample].append(level)
        for record in failures:
            levels[record.sample].append(1.0)
        values = [sum(own) / len(own) for own in levels.values()]
        highest = int(found[0]["highest"])
        return Judged(
            rubric,
            highest=highest,
            value=mean_level(values, highest) if values else None,
            votes=sum(len(j["votes"]) for j in found),
            unread=sum(j["unread"] for j in found),
            failures=len(failures),
        )


def baseline_of(summaries: Sequence[Summary]) -> Summary:
    """The summary with which the others are compared: the sequential method on our engine, else the first.

    Of several that with most samples, then the plainest: whatever was chosen for one is in its label.
    """
    ours = [summary for summary in summaries if is_sequential(summary)]
    return min(ours or summaries[:1], key=lambda s: (-s.num_samples, len(s.label)))


def is_sequential(summary: Summary) -> bool:
    """Whether this is ordinary decoding on our own engine."""
    return summary.results.header.method == BASELINE and not summary.is_endpoint


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
