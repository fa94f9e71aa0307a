"""Timings of the shared settings run end to end on the bundled model, and each mode does its own work."""

from __future__ import annotations

import pytest

from benchmarks import apps, needles
from benchmarks.prefix import Apart
from manyhands.cache.plan import Plan
from manyhands.cache.step import Step


def test_one_level_of_sharing_and_two(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ("1 + 1 is 2.", ["2 + 3?", "4 + 5?"])
    monkeypatch.setattr(apps, "apps_questions", lambda source, limit: few)
    words = "--device cpu --source fixture --problems 2 --samples 2 --tokens 2 --at-once 1,2"
    one, two, wide = apps.main(words.split())
    assert [(line["levels"], line["problems_at_once"]) for line in (one, two, wide)] == [
        (1, 1),
        (2, 1),
        (2, 2),
    ]
    assert one["tokens"] == two["tokens"] == wide["tokens"] == 8
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_needles_and_the_line_without_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = []

    class Watched(Apart):
        def plan(self, step: Step) -> Plan:
            planned.append(step)
            return super().plan(step)

    monkeypatch.setattr(needles, "Apart", Watched)
    words = "--device cpu --sentences 8 --shots 1 --questions 2 --tokens 2"
    lines = needles.main(words.split())
    assert [line["mode"] for line in lines] == ["shared", "no attention", "apart"]
    assert planned, "rows that read apart were planned apart"
    assert len({line["document_tokens"] for line in lines}) == 1
