"""The cost of an accuracy, two files compared, and results for other programs: numbers that are known."""

from __future__ import annotations

import csv
import json
from itertools import pairwise
from pathlib import Path

import pytest

from manyhands.errors import InvalidRequest
from manyhands.evaluation import plots
from manyhands.evaluation.losses import compare_everywhere
from manyhands.evaluation.pair import pair_of
from manyhands.evaluation.reach import reaches
from manyhands.evaluation.record import Record, read_results
from manyhands.evaluation.report import write_report
from manyhands.evaluation.statistics import difference
from manyhands.evaluation.summary import Summary
from tests.evaluation.small import header, record, write

LOOKS = (100, 200, 400)


def curve(shares: tuple[float, ...], count: int = 100, dear: float = 1.0) -> list[Record]:
    """At each look the first `shares` of the samples are right; a look costs `dear` times its budget in tokens."""
    found = []
    for n in range(count):
        scores = {
            str(b): {
                "value": float(n < share * count),
                "passes": b,
                "tokens": dear * b,
                "seconds": 0.1 * b,
            }
            for b, share in zip(LOOKS, shares, strict=True)
        }
        found.append(record(f"d{n:03}", scores=scores))
    return found


def made(folder: Path, label: str, records: list[Record], **more: object) -> Path:
    given = {"budgets": LOOKS, "method": label.split("-")[0], **more}
    return write(folder, header(label, **given), records)


def summary(path: Path) -> Summary:
    return Summary.of(read_results(path))


def test_the_cost_of_an_accuracy_is_read_from_the_line_between_two_looks(tmp_path: Path) -> None:
    base = summary(made(tmp_path, "sequential", curve((0.0, 0.5, 1.0))))
    twice = summary(made(tmp_path, "hogwild-2", curve((0.0, 1.0, 1.0), dear=4.0)))
    rows = {(r.label, r.what): r for r in reaches(base, [base, twice])}
    assert len(rows) == 6
    assert rows["sequential", "passes"].target == pytest.approx(0.97)
    assert rows["sequential", "passes"].cost == pytest.approx(
        388
    )  # 0.47 of 0.5 between 200 and 400
    assert rows["sequential", "passes"].ratio is None
    passes, tokens = rows["hogwild-2", "passes"], rows["hogwild-2", "tokens"]
    assert passes.cost == pytest.approx(197)
    assert passes.ratio == pytest.approx(388 / 197)
    assert tokens.ratio == pytest.approx(388 / (4 * 197))  # a loss is said as well
    assert passes.ratio is not None
    assert passes.low is not None
    assert passes.high is not None
    assert 1.9 < passes.low <= passes.ratio <= passes.high < 2.05
    assert tokens.high is not None
    assert tokens.high < 1


def test_what_is_never_reached_and_what_is_known_from_the_first_look(tmp_path: Path) -> None:
    base = summary(made(tmp_path, "sequential", curve((0.0, 0.5, 1.0))))
    never = summary(made(tmp_path, "never-2", curve((0.0, 0.1, 0.2)), concurrency=4))
    soon = summary(made(tmp_path, "soon-2", curve((1.0, 1.0, 1.0))))
    rows = {(r.label, r.what): r for r in reaches(base, [never, soon])}
    assert rows["never-2", "passes"].cost is None
    assert (rows["never-2", "passes"].ratio, rows["never-2", "passes"].high) == (0, 0)
    assert rows["never-2", "seconds"].ratio is None  # other numbers at once
    assert rows["soon-2", "passes"].is_bound
    assert not rows["sequential", "passes"].is_bound
    assert all(r.ratio is None for r in reaches(soon, [base]))  # its own cost is only a bound
    wrong = summary(made(tmp_path, "wrong-2", curve((0.0, 0.0, 0.0))))
    assert reaches(wrong, [base]) == []


def test_few_samples_that_agree_are_not_sure_of_a_ratio(tmp_path: Path) -> None:
    looks = [0.0, 0.5, 1.0], [0.0, 1.0, 1.0]
    names = "sequential", "hogwild-2"
    base, twice = (
        summary(made(tmp_path, name, [_alike(f"d{n}", values) for n in range(3)]))
        for name, values in zip(names, looks, strict=True)
    )
    found = {(r.label, r.what): r for r in reaches(base, [twice])}
    passes = found[names[1], "passes"]
    assert passes.ratio == pytest.approx(388 / 197)
    assert passes.low is not None
    assert passes.high is not None
    assert passes.low < 1 < 2 < passes.high


def _alike(name: str, values: list[float]) -> Record:
    scores = {
        str(b): {"value": value, "passes": b, "tokens": b, "seconds": 0.1 * b}
        for b, value in zip(LOOKS, values, strict=True)
    }
    return record(name, scores=scores)


def test_a_gain_and_a_loss_are_both_said_at_their_budgets(tmp_path: Path) -> None:
    base = summary(made(tmp_path, "sequential", curve((0.2, 0.5, 0.9))))
    mixed = summary(made(tmp_path, "hogwild-2", curve((0.6, 0.5, 0.5))))
    found = compare_everywhere(mixed, base)
    assert [c.budget for c in found] == list(LOOKS)
    assert [c.difference.is_gain for c in found] == [True, False, False]
    assert [c.difference.is_loss for c in found] == [False, False, True]


def test_the_sign_test_as_in_the_books() -> None:
    ours = {str(n): float(n < 8) for n in range(10)}
    found = difference(ours, {name: 1 - value for name, value in ours.items()})
    assert found is not None
    assert found.chance == pytest.approx(0.109375)  # 2 of 10
    same = difference(ours, ours)
    assert same is not None
    assert same.chance == 1


def test_two_files_are_compared_or_refused_by_name(tmp_path: Path) -> None:
    first = made(tmp_path, "sequential", curve((0.0, 0.5, 1.0)))
    second = made(tmp_path, "hogwild-2", curve((0.0, 0.5, 0.5), count=50))
    found = pair_of(first, second)
    assert found.alone == (50, 0)
    assert found.is_worse
    back = pair_of(second, first)
    assert back.alone == (0, 50)
    assert not back.is_worse
    for number, (last, is_worse) in enumerate(((0.4, True), (0.9, False))):
        mixed = made(tmp_path / f"last {number}", "hogwild-2", curve((0.6, 0.5, last)))
        base = made(tmp_path / f"base {number}", "sequential", curve((0.2, 0.7, 0.8)))
        assert pair_of(base, mixed).is_worse == is_worse, "the largest budget decides"
    other = made(tmp_path, "sequential", curve((0.0, 0.5, 1.0)), task="triples")
    with pytest.raises(InvalidRequest, match=r"'doubles'.*'triples'"):
        pair_of(first, other)
    changed = made(
        tmp_path / "x", "sequential", [record("d000", budgets=LOOKS, question="Thrice?")]
    )
    with pytest.raises(InvalidRequest, match="'d000' has one question"):
        pair_of(first, changed)
    golden = made(tmp_path / "g", "sequential", [record("d000", budgets=LOOKS, gold=-1)])
    with pytest.raises(InvalidRequest, match="'d000' has one gold answer"):
        pair_of(first, golden)
    strange = made(tmp_path / "y", "sequential", [record("z", budgets=LOOKS)])
    with pytest.raises(InvalidRequest, match="no sample in common"):
        pair_of(first, strange)


def test_a_report_compares_no_two_questions_by_one_name(tmp_path: Path) -> None:
    """As `compare` does: two sources, or two seeds of a task, may lie in one folder."""
    made(tmp_path, "sequential", curve((0.0, 0.5, 1.0)))
    made(tmp_path, "hogwild-2", [record("d000", budgets=LOOKS, question="Thrice?")])
    with pytest.raises(InvalidRequest, match=r"'d000' has one question in .* and another in"):
        write_report(tmp_path, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_results_for_other_programs_agree_with_each_other(tmp_path: Path) -> None:
    made(tmp_path, "sequential", curve((0.0, 0.5, 1.0)))
    made(tmp_path, "=hogwild|2", curve((0.0, 1.0, 1.0)))
    write_report(tmp_path, tmp_path / "page.html")
    whole = json.loads((tmp_path / "page.json").read_text())
    with (tmp_path / "page.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(whole["points"]) == len(rows) == 6
    assert [float(r["value"]) for r in rows] == [p["value"] for p in whole["points"]]
    assert {r["method"] for r in rows} == {"sequential", "'=hogwild|2"}
    paired = [r["difference"] for r in rows if r["difference"]]
    assert (
        [float(d) for d in paired] == [d["difference"] for d in whole["differences"]] == [0, 0.5, 0]
    )
    text = (tmp_path / "page.md").read_text()
    assert "=hogwild\\|2" in text
    tables = [part.strip().splitlines() for part in text.split("## ")[1:]]
    assert [(table[0], len(table) - 4) for table in tables] == [
        ("Points", 6),
        ("Differences", 3),
        ("Costs", 6),
    ]
    assert len(whole["costs"]) == 6


def test_a_method_that_shares_no_budget_has_its_difference_in_the_table(tmp_path: Path) -> None:
    """Each is compared at its own end, as a server is, whose budget counts tokens."""
    made(tmp_path, "sequential", curve((0.0, 0.5, 1.0)))
    url = "http://127.0.0.1:1/v1"
    half = [record(f"d{n:03}", float(n < 50), budgets=(64,)) for n in range(100)]
    made(tmp_path, "server", half, budgets=(64,), endpoint=url)
    write_report(tmp_path, tmp_path / "page.html")
    with (tmp_path / "page.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    (row,) = (row for row in rows if row["method"] == "server")
    assert (float(row["difference"]), row["losses"]) == (-0.5, "50")


def test_ten_lines_can_be_told_apart_without_colour() -> None:
    styles = [plots._style(n, plots.LIGHT, False) for n in range(10)]
    styles.append(plots._style(0, plots.LIGHT, True))
    assert len({(s["marker"], str(s["linestyle"])) for s in styles}) == 11
    assert len({(s["color"], s["marker"]) for s in styles}) == 11
    for one, next_one in pairwise(styles):
        assert all(one[what] != next_one[what] for what in ("color", "marker", "linestyle"))
