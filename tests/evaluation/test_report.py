"""The report: its numbers, where a method loses, and a page that stands by itself."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import re
import warnings
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path

import pytest

from manyhands.errors import InvalidRequest, OutputFailed
from manyhands.evaluation import plots
from manyhands.evaluation.judge import graded_by_judges, votes_file, with_judgements
from manyhands.evaluation.losses import compare, losses
from manyhands.evaluation.record import (
    EXAM_LINES,
    Record,
    RecordFile,
    file_of,
    header_line,
    read_results,
    trace_path,
)
from manyhands.evaluation.report import _pages, write_report
from manyhands.evaluation.summary import Summary, baseline_of
from manyhands.evaluation.transcript import transcript_of
from manyhands.schema.lines import LineFile
from tests.evaluation.small import header, record, team_record, write

BUDGETS = (4, 8)
THEME = ("ink", "grid", "quiet")


def votes_on(path: Path) -> LineFile:
    file = LineFile(votes_file(path, "quality"), EXAM_LINES, make_folder=True)
    file.resume(header_line({"highest": 5}))
    return file


def records(share: float, count: int = 40, tokens: int = 10, **more: object) -> list[Record]:
    """The first `share` of the samples is right, at both budgets."""
    return [
        record(f"d{n}", float(n < share * count), budgets=BUDGETS, tokens=(tokens,), **more)
        for n in range(count)
    ]


def summary(folder: Path, label: str, found: list[Record], **more: object) -> Summary:
    more = {"budgets": BUDGETS, "method": label.split("-")[0], **more}
    return Summary.of(read_results(write(folder, header(label, **more), found)))


class Page(HTMLParser):
    """Every tag is closed in its order, and nothing is fetched from anywhere."""

    VOID = frozenset({"meta", "img", "source", "input", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        for name, value in attrs:
            if name in ("src", "srcset", "href"):
                assert (value or "").startswith(("data:", "#")), value
            if (tag, name) == ("img", "alt"):
                assert value
        assert tag != "link"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_row_of_a_method(tmp_path: Path) -> None:
    failed = record("d9", 0.0, budgets=BUDGETS, error="no", seconds=99.0)
    found = summary(tmp_path, "hogwild-2", [*records(0.5, 4), failed])
    assert [p.value.mean for p in found.curve] == [0.4, 0.4]  # the failure counts
    assert (found.curve[0].passes, found.curve[1].tokens) == (4, 16)
    assert (found.tokens_per_second, found.seconds, found.tokens) == (12.5, 0.8, 10)
    assert (found.duration, found.memory("kv_bytes")) == (5.0, 6400)
    assert found.memory("allocated_bytes") is None
    assert len(found.failures) == 1


def test_records_of_an_older_release_have_no_seeds_and_the_page_says_so(tmp_path: Path) -> None:
    older, newer = records(0.5, 4)[:3], records(0.5, 6, seed=7)[3:]
    for folder, found, said in (
        ("one", [*older, *newer], 3),
        ("two", older, 0),
        ("three", newer, 0),
    ):
        assert summary(tmp_path / folder, "hogwild-2", found).num_older_seeds == said
        out = tmp_path / f"{folder}.html"
        write_report(tmp_path / folder, out)
        text = " ".join(Page(out.read_text(encoding="utf-8")).text.split())
        assert ("3 of the 6 records of hogwild-2 come from an older release" in text) == bool(said)


def test_where_a_method_loses(tmp_path: Path) -> None:
    base = summary(tmp_path, "sequential", records(0.8))
    worse = summary(tmp_path, "worse-2", records(0.2))
    slightly = summary(tmp_path, "slightly-2", records(0.6))
    dear = summary(tmp_path, "dear-2", [_dear(r) for r in records(0.8)])
    better = summary(tmp_path, "better-2", records(1.0))
    everybody = [better, base, worse, slightly, dear]
    assert baseline_of(everybody) is base
    found = {(v.label, v.kind) for v in losses(base, everybody)}
    assert found == {("worse-2", "apart"), ("slightly-2", "paired"), ("dear-2", "cost")}
    (cost,) = [v.sentence for v in losses(base, [dear])]
    assert "3.0 times the tokens" in cost
    compared = compare(worse, base)
    assert compared is not None
    assert compared.budget == 8
    assert (compared.difference.wins, compared.difference.losses) == (0, 24)


def test_seconds_are_compared_where_as_many_were_asked_at_once(tmp_path: Path) -> None:
    base = summary(tmp_path, "sequential", records(0.8))
    tripled = [_slow(r) for r in base.records]
    busy = summary(tmp_path, "sequential-busy", tripled, concurrency=4)
    slow = summary(tmp_path, "hogwild-2", tripled, concurrency=4)
    assert losses(base, [base, slow]) == losses(base, [base, busy, slow]) == []
    slower = [_slow(r) for r in slow.records]
    slowest = summary(tmp_path, "hogwild-3", slower, concurrency=4)
    (found,) = losses(base, [base, busy, slowest])
    assert "3.0 times the seconds of sequential-busy" in found.sentence


def _slow(one: Record) -> Record:
    scores = {b: {**s, "seconds": 3 * s["seconds"]} for b, s in one.scores.items()}
    return record(one.sample, one.value(8), budgets=BUDGETS, scores=scores)


def _dear(one: Record) -> Record:
    scores = {b: {**s, "tokens": 3 * s["tokens"]} for b, s in one.scores.items()}
    return record(one.sample, one.value(8), budgets=BUDGETS, scores=scores)


def test_repeats_are_one_sample(tmp_path: Path) -> None:
    found = [record("a", v, repeat=n, budgets=BUDGETS) for n, v in enumerate((1.0, 0.0))]
    one = summary(tmp_path, "m", [*found, record("b", 1.0, budgets=BUDGETS)])
    assert one.values(8) == {"a": 0.5, "b": 1.0}
    assert one.last.value.mean == 0.75
    assert one.last.value.kind == "bootstrap over samples"


def test_a_transcript_has_a_column_for_each_worker() -> None:
    found = transcript_of(team_record(), ("Alice", "Bob"))
    assert [c.name for c in found.columns] == ["Alice", "Bob"]
    alice = found.columns[0]
    assert [(p.title, p.first_pass, p.last_pass) for p in alice.passages] == [
        ("step 1", 1, 3),
        ("step 2, asked whether it is redundant", 6, 6),
    ]
    assert "".join(text for p in alice.passages for _, text in p.tokens) == "I double it.<b>2</b>"
    assert found.num_passes == 6


def test_the_page_stands_by_itself(tmp_path: Path) -> None:
    write(tmp_path, header("sequential"), [record(f"d{n}") for n in range(5)])
    write(
        tmp_path,
        header("hogwild-2 <b>", method="hogwild", workers=2, concurrency=4),
        [team_record("d1", value=0.0), record("d2", 0.0, error="OutOfMemory: <script>")],
    )
    endpoint = {"endpoint": "http://x/v1", "device": "", "budgets": (64,)}
    write(
        tmp_path,
        header("gpt sequential", **endpoint),
        [record("d1", budgets=(64,), forward_passes=None)],
    )
    written = write_report(tmp_path, tmp_path / "out" / "page.html")
    page = written[0].read_text(encoding="utf-8")
    read = Page(page)
    assert "http://x/v1" in page
    assert "<b>" not in page
    assert "OutOfMemory: <script>" in read.text
    assert "1 of 2 runs failed" in read.text
    assert 'data-p="6" title="forward pass 6">&lt;b&gt;2&lt;/b&gt;</span>' in page
    assert "How many forward passes an endpoint makes cannot be seen" in read.text
    assert "prefers-color-scheme: dark" in page
    pictures = [path for path in written if path.suffix == ".png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    assert len(pictures) == 3
    assert [path.name for path in written[4:]] == ["page.json", "page.csv", "page.md"]


def test_what_a_model_wrote_neither_hides_nor_runs_on_the_page(tmp_path: Path) -> None:
    odd = "safe \u202egpj.exe\u202c \x1b[31mred\u2066 \x00"
    write(
        tmp_path,
        header("sequential", model=odd),
        [record("d1", question=odd, answer=odd, gold=odd, writing=[(0, 1, odd)])],
    )
    page = write_report(tmp_path, tmp_path / "page.html")[0].read_text(encoding="utf-8")
    assert not set("\u202e\u202c\u2066\x1b\x00") & set(page)
    assert "\u241b[31mred" in page
    policy = page.partition('Content-Security-Policy" content="')[2].partition('"')[0]
    assert policy.startswith("default-src 'none'; img-src data:;")
    for tag in ("style", "script"):
        (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"\son\w+=|\sstyle=", page)


@pytest.mark.parametrize("methods", [1, 12])
def test_one_method_or_twelve(tmp_path: Path, methods: int) -> None:
    rng = random.Random(0)
    for n in range(methods):
        found = [record(f"d{i}", float(rng.random() < 0.5), budgets=BUDGETS) for i in range(9)]
        label = f"hogwild-{n}" if n else "sequential"
        write(tmp_path, header(label, budgets=BUDGETS, method=label.split("-")[0]), found)
    page = Page(write_report(tmp_path, tmp_path / "page.html")[0].read_text(encoding="utf-8"))
    assert page.counts["table"] == (5 if methods == 1 else 7)
    if methods == 1:
        assert "nothing to compare sequential with" in page.text


@pytest.mark.parametrize("what", plots.AXES)
def test_long_labels_stay_within_the_picture(tmp_path: Path, what: str) -> None:
    """Labels of ablations name several settings; their signs stand in the legend, and must be read."""
    labels = [f"hogwild-{n} layout=interleaved finisher_tokens=4 {'x' * 30 * n}" for n in range(5)]
    figure = plots.picture([summary(tmp_path, label, records(0.5)) for label in labels], what)
    figure.canvas.draw()
    (legend,) = figure.legends
    assert len(legend.get_texts()) == len(labels)
    box, whole = legend.get_window_extent(), figure.bbox
    assert whole.x0 <= box.x0
    assert box.x1 <= whole.x1
    assert box.y1 < whole.y1 / 2, "the curves have the upper half"
    short = plots.picture([summary(tmp_path, f"m-{n}", records(0.5)) for n in range(5)], what)
    assert short.legends[0]._ncols > figure.legends[0]._ncols == 1  # type: ignore[attr-defined]


def test_light_and_dark_lie_alike(tmp_path: Path) -> None:
    found = [summary(tmp_path, f"m-{n}", records(0.5)) for n in range(3)]
    light = plots.picture(found, "tokens")
    unlaid = light.axes[0].get_position().bounds
    plots.save_png(light, tmp_path / "x.png")
    laid = light.axes[0].get_position().bounds
    assert laid != unlaid
    dark = plots.picture(found, "tokens", plots.DARK, light)
    drawn = [
        base64.b64decode(plots.svg_address(figure).partition(",")[2]).decode()
        for figure in (light, dark)
    ]
    drawn = [
        re.sub(r"\b[mp][0-9a-f]{10}\b", "", svg) for svg in drawn
    ]  # names, made of colours too
    assert light.axes[0].get_position().bounds == dark.axes[0].get_position().bounds == laid
    for of_light, of_dark in ((getattr(plots.LIGHT, n), getattr(plots.DARK, n)) for n in THEME):
        drawn[0] = drawn[0].replace(of_light, of_dark)
    assert drawn[0] == drawn[1]


def test_a_label_in_a_script_that_the_font_lacks(tmp_path: Path) -> None:
    figure = plots.picture([summary(tmp_path, "队伍", records(0.5))], "passes")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plots.save_png(figure, tmp_path / "x.png")
        assert plots.svg_address(figure)
    with pytest.warns(UserWarning, match="another"), plots._any_script():
        warnings.warn("another", stacklevel=1)


def test_a_task_that_only_a_judge_can_grade(tmp_path: Path) -> None:
    facts = {"judge": "quality", "reference": "Plan."}
    found = [record(f"d{n}", 0.0, budgets=BUDGETS, facts=facts) for n in range(3)]
    found.append(record("d3", 0.0, budgets=BUDGETS, facts=facts, error="no room"))
    path = write(tmp_path, header(budgets=BUDGETS), found)
    page = Page(write_report(tmp_path, tmp_path / "page.html")[0].read_text(encoding="utf-8"))
    assert "Not judged yet" in page.text
    with votes_on(path) as file:
        for n, level in enumerate((5, 3, None)):
            vote = {"kind": "vote", "sample": f"d{n}", "repeat": 0, "vote": 0, "value": level}
            file.append(vote)
    one = Summary.of(graded_by_judges(with_judgements(read_results(path))))
    assert one.values(8) == {"d0": 1.0, "d1": 0.5, "d3": 0.0}
    assert one.judged["quality"].unread == 1
    page = Page(write_report(tmp_path, tmp_path / "page.html")[0].read_text(encoding="utf-8"))
    assert "Not judged yet" not in page.text


def test_votes_that_nobody_can_read_grade_nothing(tmp_path: Path) -> None:
    facts = {"judge": "quality", "reference": "Plan."}
    wrong = record("d2", 0.0, budgets=BUDGETS, facts=facts, error="no room")
    for label, level in (("sequential", None), ("hogwild-2", 4)):
        found = [team_record("d1", value=0.0, budgets=BUDGETS, facts=facts), wrong]
        path = write(tmp_path, header(label, budgets=BUDGETS), found)
        with votes_on(path) as file:
            vote = {"kind": "vote", "sample": "d1", "repeat": 0, "vote": 0, "value": level}
            file.append(vote)
    page = Page(write_report(tmp_path, tmp_path / "page.html")[0].read_text(encoding="utf-8"))
    assert "by no vote that can be read:\nsequential." in page.text
    assert "1 of 2 runs failed" in page.text
    assert page.text.count("not judged yet") >= 2


def test_a_single_budget_lies_where_it_was_spent(tmp_path: Path) -> None:
    found = record("d1", budgets=(2048,))
    scores = {"2048": {**found.scores["2048"], "passes": 9}}
    once = [record("d1", budgets=(2048,), scores=scores)]
    (point,) = plots._points(summary(tmp_path, "hogwild-2", once, budgets=(2048,)), "passes")
    assert point[0] == 9
    twice = summary(tmp_path, "hogwild-3", records(0.5))
    assert [x for x, _ in plots._points(twice, "passes")] == [4, 8]


def test_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no records yet"):
        write_report(tmp_path, tmp_path / "page.html")
    write(tmp_path, header(), [])
    with pytest.raises(InvalidRequest, match="no records yet"):
        write_report(tmp_path, tmp_path / "page.html")


def test_a_full_disk_leaves_the_earlier_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that was cut short stood in its place, which a browser shows without a word."""
    write(tmp_path, header(), records(0.5))
    write_report(tmp_path, tmp_path / "report.html")
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir() if each.is_file()}
    write(tmp_path, header("other"), records(0.7))

    def cut_short(path: Path, text: str, **more: object) -> int:
        path.write_bytes(text.encode()[:1000])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", cut_short)
        with pytest.raises(OutputFailed, match=r"report\.html' cannot be written: No space left"):
            write_report(tmp_path, tmp_path / "report.html")
    after = {each.name: each.read_bytes() for each in tmp_path.iterdir() if each.is_file()}
    assert after.keys() == before.keys()
    assert after["report.html"] == before["report.html"]


@pytest.mark.parametrize("name", ["page.html", "page.md", "page.csv", "page.json"])
def test_what_is_no_report_is_not_replaced(name: str, tmp_path: Path) -> None:
    write(tmp_path, header(), [record()])
    (tmp_path / name).write_text("Dear diary")
    with pytest.raises(InvalidRequest, match="is no report of manyhands, so it is not replaced"):
        write_report(tmp_path, tmp_path / "page.html")
    assert (tmp_path / name).read_text() == "Dear diary"


def test_a_report_is_replaced_by_the_next_one(tmp_path: Path) -> None:
    write(tmp_path, header(), [record()])
    first, second = (write_report(tmp_path, tmp_path / "page.html") for _ in range(2))
    assert first == second


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    write(tmp_path, header(), [record()])
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputFailed, match="cannot be written"):
        write_report(tmp_path, tmp_path / "file" / "page.html")


def test_a_judges_interval_takes_repeats_of_a_sample_as_one(tmp_path: Path) -> None:
    """Four repeats of three samples are three things that were seen, and not twelve."""
    levels = {"a": 1, "b": 3, "c": 5}
    once = summary(tmp_path, "once", _judged(levels, 1)).judged["quality"]
    often = summary(tmp_path, "often", _judged(levels, 4)).judged["quality"]
    assert (once.votes, often.votes) == (3, 12)
    assert once.value is not None
    assert once.value == often.value
    # A sample of which fewer repeats could be read counts as much as the others.
    uneven = summary(tmp_path, "uneven", [*_judged(levels, 1), *_judged({"a": 1}, 4)[1:]])
    found = uneven.judged["quality"].value
    assert found is not None
    assert found.mean == 3


def _judged(levels: dict[str, int], repeats: int) -> list[Record]:
    return [
        record(
            sample,
            repeat=repeat,
            budgets=BUDGETS,
            judgements={"quality": {"value": level, "votes": [level], "unread": 0, "highest": 5}},
        )
        for sample, level in levels.items()
        for repeat in range(repeats)
    ]


def test_what_only_one_of_two_was_asked_is_no_loss(tmp_path: Path) -> None:
    """Fifty hard and dear samples more, which the baseline was never asked, say nothing of how the two compare."""
    easy = records(1.0, count=10)
    hard = [_dear(record(f"hard-{n}", 0.0, budgets=BUDGETS, tokens=(90,))) for n in range(50)]
    base = summary(tmp_path, "sequential", easy)
    more = summary(tmp_path, "hogwild-2", [*easy, *hard])
    assert losses(base, [base, more]) == []
    assert losses(base, [base, summary(tmp_path, "hogwild-3", hard)]) == []
    worse = summary(tmp_path, "hogwild-4", [*records(0.0, count=10), *hard])
    (found, _) = losses(base, [base, worse])
    assert "has 0.000" in found.sentence


def test_the_page_says_that_methods_were_asked_other_samples(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    summary(tmp_path, "sequential", records(1.0, count=10))
    summary(tmp_path, "hogwild-2", records(1.0, count=10))
    told = "Not all methods were asked the same samples"
    write_report(tmp_path, out)
    assert told not in out.read_text(encoding="utf-8")
    summary(tmp_path, "hogwild-3", records(1.0, count=12))
    write_report(tmp_path, out)
    text = " ".join(Page(out.read_text(encoding="utf-8")).text.split())
    assert f"{told} : sequential 10, hogwild-2 10, hogwild-3 12." in text.replace(
        "samples:", "samples :"
    )


def test_the_address_of_a_page_is_its_bytes_in_every_locale(tmp_path: Path) -> None:
    """Where the system's encoding is ASCII, other bytes of a name are half letters of Python's."""
    path = tmp_path / "doubles" / f"h{os.fsdecode(bytes([0xF6]))}g.jsonl"
    trace = trace_path(path, ("d1", 0))
    address = _pages(tmp_path / "report.html", [], lambda trace: "a page")(trace)
    assert address == "report-runs/doubles/h%F6g/d1.0.html"


@pytest.mark.parametrize("task", ["maths/hard", "..", "squares of x"])
def test_a_task_of_ones_own_may_have_any_name(tmp_path: Path, task: str) -> None:
    given = header("sequential", budgets=BUDGETS, task=task)
    with closing(RecordFile(file_of(tmp_path / "in", task, "sequential"), given)) as file:
        file.append(record("d1", budgets=BUDGETS))
    out = tmp_path / "page" / "report.html"
    written = write_report(tmp_path / "in", out)
    assert {path.parent for path in written} == {out.parent}
    assert sum(path.suffix == ".png" for path in written) == len(plots.AXES)


def test_a_label_of_other_bytes_than_utf8(tmp_path: Path) -> None:
    """Python has them as halves of letters, with which no file of text can be written."""
    label = os.fsdecode(b"caf\xe9")
    given = header(label, budgets=BUDGETS)
    with closing(RecordFile(file_of(tmp_path, "doubles", label), given)) as file:
        file.append(record("d1", budgets=BUDGETS))
    write_report(tmp_path, tmp_path / "report.html")
    told = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert {point["method"] for point in told["points"]} == {label}
    assert "caf\\udce9" in (tmp_path / "report.csv").read_text(encoding="utf-8")
