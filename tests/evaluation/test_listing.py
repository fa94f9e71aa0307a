"""Every sample listed, groups by subject, and pages of runs: the worst first."""

from __future__ import annotations

import re
from pathlib import Path

from manyhands.errors import BrokenTrace
from manyhands.evaluation.groups import grouped
from manyhands.evaluation.listing import in_order, listed, verdict_of, worst_first
from manyhands.evaluation.record import Record, keep_trace, read_results
from manyhands.evaluation.report import write_report
from manyhands.evaluation.summary import Summary
from manyhands.replay.trace import SCHEMA
from tests.evaluation.small import header, record, team_record, write
from tests.server.browser import Visit, launched


def summary(folder: Path, label: str, records: list[Record], **more: object) -> Summary:
    return Summary.of(read_results(write(folder, header(label, **more), records)))


def of_every_kind() -> list[Record]:
    return [
        record("a", 1.0),
        record("b", 0.4, answer="1,2"),
        record("c", 0.0, answer="7"),
        record("d", 0.0, answer=None),
        record("e", 0.0, error="OutOfMemory: no room"),
    ]


def test_every_record_has_a_verdict_and_the_worst_come_first(tmp_path: Path) -> None:
    found = summary(tmp_path, "sequential", of_every_kind())
    verdicts = [verdict_of(found, each) for each in found.records]
    assert verdicts == ["right", "in part", "wrong", "no answer", "failed"]
    assert [each.sample for each in worst_first(found)] == ["e", "d", "c", "b", "a"]


def test_answers_of_all_methods_to_a_sample_stand_together(tmp_path: Path) -> None:
    first = summary(tmp_path, "sequential", of_every_kind())
    second = summary(tmp_path, "team", [record("c", answer="2" * 500), record("a", 0.0)])
    lines = listed([first, second], {("team", ("a", 0)): "runs/a.html"})
    assert [(line.sample, line.label) for line in lines] == [
        ("a", "sequential"),
        ("a", "team"),
        ("b", "sequential"),
        ("c", "sequential"),
        ("c", "team"),
        ("d", "sequential"),
        ("e", "sequential"),
    ]
    assert [line.page for line in lines[:2]] == [None, "runs/a.html"]
    assert lines[-1].answer == "OutOfMemory: no room"
    assert len(lines[4].answer) == 160
    assert (lines[0].gold, lines[0].answer, lines[0].passes) == ("2", "2", 8)


def test_any_names_have_an_order() -> None:
    names = [
        "hogwild-16",
        "hogwild-4",
        "hogwild",
        "\u00b2",
        "\u0663",
        "7",
        "9" * 5000,
        "7\u00b2",
        "",
    ]
    assert sorted(names, key=in_order) == [
        "", "7", "7\u00b2", "9" * 5000, "hogwild", "hogwild-4", "hogwild-16", "\u00b2", "\u0663"
    ]  # fmt: skip


def test_names_stand_in_the_order_of_their_numbers() -> None:
    names = [f"{before}{'0' * zeros}{number}{behind}" for before in ("", "b") for number in (2, 7, 10, 100)
             for zeros in (0, 2) for behind in ("", "a")]  # fmt: skip

    def by_value(name: str) -> tuple[str, int, str]:
        found = re.fullmatch(r"(\D*)(\d+)(\D*)", name)
        assert found is not None
        return found[1], int(found[2]), found[3]

    assert sorted(names, key=in_order) == sorted(names, key=by_value)


def test_groups_are_of_the_first_fact_that_differs(tmp_path: Path) -> None:
    physics, maths = {"subject": "Physics", "type": "OE"}, {"subject": "Maths", "type": "OE"}
    records = [
        record("a", 1.0, facts=physics),
        record("b", 0.0, facts=physics),
        record("c", 1.0, facts=maths),
        record("d", 1.0),
    ]
    first = summary(tmp_path, "sequential", records)
    second = summary(tmp_path, "team", [record("a", 1.0, facts=physics)])
    found = grouped([first, second])
    assert found is not None
    assert found.fact == "subject"
    assert [(group.name, group.num_samples) for group in found.groups] == [
        ("Maths", 1),
        ("Physics", 2),
    ]
    means = [[value and value.mean for value in group.values] for group in found.groups]
    assert means == [[1.0, None], [0.5, 1.0]]
    same = summary(tmp_path, "same", [record("a", facts=maths), record("b", facts=maths)])
    assert grouped([same]) is None


def test_pages_are_made_of_the_worst_runs_and_linked(tmp_path: Path) -> None:
    exam = tmp_path / "exam"
    records = [record(f"q/{n}", float(n > 2), facts={"level": str(n % 2)}) for n in range(6)]
    path = write(exam, header("team <i>"), records)
    for each in records[:5]:
        keep_trace(path, each.key, [{"kind": "header"}], 1.0)
    shown: list[str] = []

    def show(trace: Path) -> str:
        shown.append(trace.name)
        if len(shown) == 2:
            raise BrokenTrace("cut")
        return f"<p>{trace.name}</p>"

    out = tmp_path / "page.html"
    written = write_report(exam, out, show=show, most_pages=4)
    assert len(shown) == 4
    assert {name[:4] for name in shown[:3]} == {"q%2F"}, "the wrong ones are shown first"
    page = out.read_text(encoding="utf-8")
    links = re.findall(r'<a href="(page-runs/[^"]+)">(q/\d)</a>', page)
    assert len(links) == 3, "a trace that is broken has no page"
    pages = [each for each in written if each.parent.parent.parent.name == "page-runs"]
    assert len(pages) == 3
    for address, sample in links:
        assert "<" not in address
        assert sample[-1] in address
    assert "<h3>By level</h3>" in page
    assert 'data-verdict="wrong"' in page
    assert "page-runs" not in write_report(exam, out)[0].read_text(encoding="utf-8")


def test_the_list_is_sifted_in_a_browser(tmp_path: Path) -> None:
    write(tmp_path, header("sequential"), [record("a"), record("b", 0.0), record("c", 0.0)])
    write(tmp_path, header("team"), [team_record("a", value=0.0), record("b")])
    (file, *_) = write_report(tmp_path, tmp_path / "page.html")
    with launched() as browser:
        visit = Visit(browser, size=(360, 700))
        visit.page.goto(file.as_uri())
        visit.page.locator(".samples summary").click()
        rows = visit.page.locator(".samples tbody tr:visible")
        assert rows.count() == 5
        for verdict, count in (("right", 2), ("wrong", 3)):
            visit.page.locator(".samples select").nth(1).select_option(verdict)
            assert rows.count() == count
        visit.page.locator(".samples select").nth(0).select_option("team")
        assert rows.count() == 1
        visit.page.locator(".samples input").fill("nothing like it")
        assert rows.count() == 0
        assert visit.page.locator(".samples output").inner_text() == "0 of 5"
        wide = visit.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 360, "the list scrolls in its own frame"
        visit.close("file://")


def test_a_run_that_was_asked_again_is_not_shown_by_its_earlier_trace(tmp_path: Path) -> None:
    """`--traces` may be left out the second time, and the earlier traces lie where they lay."""
    path = write(
        tmp_path / "exam", header("team"), [record("a", text="Two."), record("b", text="4")]
    )
    head = {"schema": SCHEMA, "kind": "header", "model": "tiny"}
    for name, text in (("a", "It is 2."), ("b", "4")):
        keep_trace(path, (name, 0), [head, {"kind": "end", "answer": {"text": text}}], 1.0)
    shown: list[str] = []

    def show(trace: Path) -> str:
        shown.append(trace.name)
        return "<p>run</p>"

    write_report(tmp_path / "exam", tmp_path / "page.html", show=show, most_pages=4)
    assert shown == ["b.0.jsonl"]
