"""The driver's loop without Ray: what it makes of replicas that cannot begin while others answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from manyhands.cache.usage import Usage
from manyhands.cluster.joining import Share
from manyhands.cluster.replica import News
from manyhands.cluster.spreading import _FAILED_STARTS, ReplicaLost, Spread
from manyhands.errors import InvalidRequest
from manyhands.evaluation.record import Header
from tests.cluster.made import squares


class Method:
    """A verb of an actor."""

    def __init__(self, ray: FakeRay, name: int, verb: str) -> None:
        self.ray, self.name, self.verb = ray, name, verb

    def remote(self, *arguments: object) -> object:
        reference = object()
        self.ray.asked.append((reference, self.name, self.verb, arguments))
        return reference


class FakeRay:
    """As much of Ray as is used. Only the replicas in `sound` begin; each answers a row at a time. `facts` of replicas by their numbers."""

    def __init__(self, sound: set[int], facts: Mapping[int, dict[str, Any]] | None = None) -> None:
        self.sound, self.num_actors, self.facts = sound, 0, facts or {}
        self.asked: list[tuple[object, int, str, tuple[object, ...]]] = []
        self.rows: dict[int, list[tuple[int, tuple[int, str]]]] = {}
        self.told: dict[int, object] = {}

    def remote(self, kind: object) -> FakeRay:
        self.new = self.num_actors
        return self

    def options(self, **_: object) -> FakeRay:
        ray = self

        class Kind:
            @staticmethod
            def remote() -> object:
                ray.num_actors += 1
                name = ray.num_actors
                verbs = ("begin", "take", "news")
                return type("Handle", (), {verb: Method(ray, name, verb) for verb in verbs})()

        return Kind()  # type: ignore[return-value]

    def wait(self, references: list[object], **_: object) -> tuple[list[object], list[object]]:
        """The oldest question that can be answered now; a replica that cannot begin says so first."""
        live = [each for each in self.asked if each[0] in references]
        live.sort(key=lambda each: (each[2] != "take", each[2] != "begin"))
        for each in live:
            name, verb, arguments = each[1:]
            if verb == "take":
                self.rows.setdefault(name, []).extend(arguments[0])  # type: ignore[arg-type]
                told: object = None
            elif verb == "begin":
                begun = (self.facts.get(name, {}), list[str]())
                told = begun if name in self.sound else RuntimeError("the machine is gone")
            elif self.rows.get(name):
                number, row = self.rows[name].pop(0)
                told = News([(number, row[0] ** 2)], Usage())
            else:
                continue
            self.asked.remove(each)
            self.told[id(each[0])] = told
            return [each[0]], []
        return [], []

    def get(self, reference: object) -> object:
        told = self.told.pop(id(reference))
        if isinstance(told, Exception):
            raise told
        return told

    def kill(self, handle: object) -> None:
        """It ends."""


def test_work_goes_on_while_one_replica_answers() -> None:
    ray = FakeRay(sound={1})
    rows = [(n, "") for n in range(9)]
    with Spread(ray, Share(2, 1.0, 0.0), squares, concurrency=2) as spread:
        found: dict[int, Any] = {}
        for some in spread.results(rows):
            found |= {row[0]: told for row, told in some}
            if ray.num_actors > 4 * _FAILED_STARTS:
                ray.sound.add(ray.num_actors + 1)  # a machine that stays
    assert found == {n: n * n for n in range(9)}
    assert ray.num_actors > _FAILED_STARTS


def test_none_that_can_begin_ends_it() -> None:
    with (
        Spread(FakeRay(set()), Share(2, 1.0, 0.0), squares, concurrency=2) as spread,
        pytest.raises(ReplicaLost, match="the machine is gone"),
    ):
        list(spread.answered([(1, "")]))


def header(versions: dict[str, str], model: str = "bundled") -> Header:
    return Header("t", "debate", "t", 2, (), {}, {}, (), model, versions=versions)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"dtype": "float16", "header": header({"a": "1"})}, "dtype float16, another one float32"),
        ({"header": header({"a": "1"})}, "dtype None, another one float32"),
        ({"dtype": "float32", "header": header({"a": "2"})}, "header.versions.a 2, another one 1"),
        (
            {"dtype": "float32", "header": header({})},
            "header.versions.a None, another one 1",
        ),
        (
            {"dtype": "float32", "header": header({"a": "1", "b": "3"})},
            "header.versions.b 3, another one None",
        ),
        (
            {"dtype": "float32", "header": header({"a": "1"}, "mine")},
            "header.model mine, another one bundled",
        ),
    ],
)
def test_machines_that_differ_are_told_in_what(other: dict[str, Any], told: str) -> None:
    """Whole headers were told, of which one word differed."""
    first = {"dtype": "float32", "header": header({"a": "1"})}
    ray = FakeRay({1, 2}, {1: first, 2: other})
    with (
        Spread(ray, Share(2, 1.0, 0.0), squares, concurrency=2) as spread,
        pytest.raises(InvalidRequest) as raised,
    ):
        list(spread.answered((n, "") for n in range(40)))
    assert str(raised.value) == f"a machine of the cluster has {told}"


def test_machines_that_are_equal_answer() -> None:
    facts = {n: {"header": header({"a": "1"})} for n in (1, 2)}
    with Spread(FakeRay({1, 2}, facts), Share(2, 1.0, 0.0), squares, concurrency=2) as spread:
        found = dict(spread.answered((n, "") for n in range(40)))
    assert found == {(n, ""): n * n for n in range(40)}
