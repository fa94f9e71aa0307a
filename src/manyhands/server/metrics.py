"""Numbers for operators: `GET /metrics`, in Prometheus' format. Names are vLLM's, behind our prefix.

What the engine knows is asked when the numbers are read (`Service.load`). What belongs to a request is observed
once, at its end, from the times in the run's log, so a stream costs nothing for it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from manyhands.engine.service import Moment, Service
from manyhands.server.runs import Runs, ServedRun
from manyhands.server.usage import prompt_tokens_of
from manyhands.strategies.events import TokenWritten

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SLOW = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0)


class Metrics:
    """Counters of one server, in a registry of their own."""

    def __init__(self, service: Service, runs: Runs) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "manyhands_requests",
            "Requests that were answered, by route and status.",
            ["route", "status"],
            registry=self._registry,
        )
        self.streams = Gauge(
            "manyhands_num_streams", "Streams that are open.", registry=self._registry
        )
        self._first, self._between, self._whole = (
            _Times("time_to_first_token_seconds", "Until the first token was there.", _SLOW),
            _Times("inter_token_latency_seconds", "Between two passes of one run.", _FAST),
            _Times("e2e_request_latency_seconds", "From the request to its end.", _SLOW),
        )
        for times in (self._first, self._between, self._whole):
            self._registry.register(times)
        self._prompt = Counter(
            "manyhands_prompt_tokens", "Tokens of prompts.", registry=self._registry
        )
        self._registry.register(_Engine(service, runs))

    def answered(self, route: str, status: int) -> None:
        """Count a request."""
        self._requests.labels(route, str(status)).inc()

    def ended(self, run: ServedRun, seconds: float) -> None:
        """Observe a run that is done, or that no client waits for any more."""
        self._whole.add([seconds])
        answer = run.outcome()[0] if run.handle.done else None
        self._prompt.inc(prompt_tokens_of(run.asked, answer))
        moments, missed = run.handle.moments(0)
        times = [moment.time for moment in moments if _has_token(moment)]
        if times and not missed:
            self._first.add(times[:1])
        self._between.add([after - before for before, after in itertools.pairwise(times)])

    def page(self) -> bytes:
        """All numbers as text."""
        return generate_latest(self._registry)


def _has_token(moment: Moment) -> bool:
    return any(isinstance(event, TokenWritten) for event in moment.events)


class _Times:
    """A histogram that takes many values at once; prometheus_client's own takes them one by one."""

    def __init__(self, name: str, help: str, bounds: tuple[float, ...]) -> None:
        self._name, self._help, self._bounds = f"manyhands_{name}", help, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, values: list[float]) -> None:
        """Count values, in seconds."""
        for value in values:
            self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += sum(values)

    def collect(self) -> Iterator[Metric]:
        """The histogram as it is."""
        names = [*map(str, self._bounds), "+Inf"]
        sums = itertools.accumulate(self._counts)
        buckets = list(zip(names, sums, strict=True))
        yield HistogramMetricFamily(self._name, self._help, buckets=buckets, sum_value=self._sum)


class _Engine:
    """Metrics of the service, read when they are asked for."""

    def __init__(self, service: Service, runs: Runs) -> None:
        self._service, self._runs = service, runs

    def collect(self) -> Iterator[Metric]:
        load = self._service.load
        workers = sum(len(run.asked.spec.names) for run in self._runs.live if run.asked.spec)
        gauges = {
            "num_requests_running": ("Runs that take part in the passes.", load.num_running),
            "num_requests_waiting": ("Runs that wait for memory or a place.", load.num_waiting),
            "num_requests_preempted": ("Runs that have left memory.", load.num_preempted),
            "num_workers": ("Workers of the runs that are under way.", workers),
            "kv_cache_usage_perc": (
                "Pages in use, 1 is all; prefixes that are kept for later are in use.",
                load.num_pages_in_use / max(1, load.num_pages),
            ),
        }
        for name, (help, value) in gauges.items():
            yield GaugeMetricFamily(f"manyhands_{name}", help, value)
        used = load.usage
        counters = {
            "num_preemptions": ("Runs that left memory for a while.", load.num_preemptions),
            "forward_passes": ("Passes of the engine.", load.num_passes),
            "generation_tokens": ("Tokens that were written.", used.tokens_chosen),
            "tokens_fed": ("Tokens that were fed.", used.tokens_fed),
            "prefix_cache_queries": (
                "Tokens of prompts that were looked up.",
                used.prefix_tokens_found + used.prefix_tokens_fed,
            ),
            "prefix_cache_hits": ("Of them, found in memory.", used.prefix_tokens_found),
            "kv_bytes_loaded": ("Bytes of keys and values that were read.", used.kv_bytes_loaded),
            "kv_bytes_saved": (
                "Bytes that sharing saved: read once, and not for every row.",
                used.kv_bytes_saved,
            ),
        }
        passes = load.passes
        counters |= {
            "passes_launched": ("Passes that were run launch by launch.", passes.eager),
            "passes_replayed": (
                "Passes that were replayed from a recording, with a plan of their own.",
                passes.replayed,
            ),
            "passes_followed": (
                "Passes that were replayed one token behind the pass before.",
                passes.followed,
            ),
            "passes_recorded": ("Recordings of passes that were made.", passes.recorded),
            "passes_dropped": ("Passes that were begun ahead and not asked for.", passes.dropped),
            "rows_in_vain": ("Rows of passes begun ahead that were not asked for.", passes.in_vain),
            "kernels_compiled": (
                "Kernels that were compiled, or loaded from the cache on disk.",
                passes.compiled,
            ),
            "blocks_moved": ("Blocks of tokens that were moved in memory.", passes.moves),
        }
        shelf = load.shelf
        counters |= {
            "disk_cache_hits": (
                "Tokens of prompts whose keys and values were loaded from disk.",
                shelf.tokens_found,
            ),
            "disk_cache_bytes_read": ("Bytes that were read for that.", shelf.bytes_read),
            "disk_cache_bytes_written": ("Bytes of sheets that were saved.", shelf.bytes_written),
            "disk_cache_refused": (
                "Sheets that were torn, damaged or of another kind.",
                shelf.sheets_refused,
            ),
            "disk_cache_dropped": (
                "Sheets that were removed to keep to the size of the folder, or as the disk was full.",
                shelf.sheets_dropped,
            ),
            "disk_cache_skipped": (
                "Sheets that were not saved: the disk was slow, or full, or all that it has was used since.",
                shelf.sheets_skipped,
            ),
        }
        for name, (help, value) in counters.items():
            yield CounterMetricFamily(f"manyhands_{name}", help, max(0, value))
