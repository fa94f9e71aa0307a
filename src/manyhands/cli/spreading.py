"""The common part of commands that spread their work over a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from manyhands.cli.loading import place_facts
from manyhands.cluster.settings import ClusterSettings
from manyhands.model.settings import ModelSettings

if TYPE_CHECKING:
    from manyhands.cluster.replica import Answers
    from manyhands.cluster.spreading import Spread
    from manyhands.engine.engine import Engine

Row = TypeVar("Row")
Told = TypeVar("Told")


@contextmanager
def spread(
    settings: ClusterSettings,
    make: Callable[[], Answers[Row, Told]],
    concurrency: int,
    note: Callable[[str], None],
) -> Iterator[Spread[Row, Told]]:
    """Replicas on the cluster that was asked for; they end with the block."""
    from manyhands.cluster.joining import joined, share_of
    from manyhands.cluster.spreading import Spread

    with (
        joined(settings, note) as ray,
        Spread(ray, share_of(ray, settings), make, concurrency=concurrency, note=note) as replicas,
    ):
        yield replicas


def facts_of(engine: Engine, settings: ModelSettings) -> dict[str, Any]:
    """The facts that are equal on all machines, so that the same answers come."""
    place = place_facts(engine, settings)
    names = ("dtype", "quantise", "kv_cache_dtype", "backend", "versions")
    facts = {name: place[name] for name in names}
    return {**facts, "weights": engine.executor.fingerprint()}
