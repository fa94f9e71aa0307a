"""A saved run as records, and `manyhands view`: the same list that a live run makes, in one harmless file."""

from __future__ import annotations

import json
import re
from contextlib import closing
from dataclasses import replace
from importlib import resources
from typing import Any

import pytest

from manyhands.cache.step import Choice
from manyhands.engine.loop import run_passes
from manyhands.errors import BrokenTrace
from manyhands.replay.retold import account_from
from manyhands.replay.trace import Trace, parse_trace, record
from manyhands.server import page
from manyhands.server.page import document
from manyhands.server.records import begin_record, pass_record
from manyhands.server.view import CUT_SHORT, records_of
from manyhands.strategies.events import Event, TokenWritten, WorkerJoined
from manyhands.strategies.methods import METHODS
from manyhands.strategies.profiles import PROFILES
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import TeamSettings
from manyhands.tasks.arithmetic.world import MOST_PROBLEMS, MOST_WORKERS, outside_world
from tests.engine.small import LETTERS, SHORT_END, TEXT, small_engine
from tests.server.scripted_runs import team_run
from tests.strategies.driver import PROMPT


@pytest.fixture(scope="module")
def lines() -> list[dict[str, Any]]:
    """A trace's lines, as they stand in its file."""
    return team_run().lines


@pytest.mark.parametrize("layout", ["combined", "contiguous"])
def test_a_saved_run_has_the_records_of_the_live_one(layout: str) -> None:
    """ViewsChanged, which no trace holds, included; and each event in the record of its pass."""
    letters = Choice(temperature=1.0, allowed=LETTERS)
    settings = TeamSettings(
        workers=3, budget=60, layout=layout, choice=letters, snapshots=(7,), end=SHORT_END
    )
    spec = RunSpec(METHODS["hogwild"], settings, PROMPT, "2+3")
    lines: list[dict[str, Any]] = []
    engine = small_engine()
    run = engine.submit(record(spec.strategy(TEXT), spec.to_plain(), lines.append), lifecycle=True)
    live = [begin_record(spec, run=None, model="", listens=False, created=0)]
    with closing(run_passes(engine, [(None, run)])) as passes:
        for number, _ in enumerate(passes):
            live.append(pass_record(number, 0, run.take_events()))
    told = records_of(parse_trace(json.loads(json.dumps(lines))))
    assert told[-1]["answer"]["finish_reason"] == "budget"
    unsaid = {"Queued", "Admitted", "UsageCounted"}  # of the engine, and of no trace
    for each in live[1:]:
        each["events"] = [event for event in each["events"] if event["event"] not in unsaid]
    # A live run waits for its memory first: what it does then comes with the first pass.
    assert live[1]["events"] == []
    live[1]["events"] = told[1]["events"]
    live[2]["events"] = live[2]["events"][len(told[1]["events"]) :]
    for mine, other in zip(told[1:-1], live[1:], strict=True):
        assert json.loads(json.dumps(mine)) == json.loads(json.dumps(other | {"time": None}))
    same = ("method", "names", "problem", "budget", "settings", "solo")
    assert [told[0][key] for key in same] == [live[0][key] for key in same]
    kinds = [event["event"] for each in told[1:-1] for event in each["events"]]
    assert kinds.count("ViewsChanged") > 3
    assert "StepEnded" in kinds


def test_a_trace_that_was_cut_off_says_so(lines: list[dict[str, Any]]) -> None:
    whole, cut = records_of(parse_trace(lines)), records_of(parse_trace(lines[: len(lines) // 2]))
    assert whole[-1]["error"] is None
    assert cut[-1]["error"] == CUT_SHORT
    assert cut[1 : len(cut) - 2] == whole[1 : len(cut) - 2]
    assert "time" in whole[1], "a trace knows no times, and says so"
    assert {record["time"] for record in whole[1:]} == {None}


def test_a_trace_of_a_strategy_of_ones_own_is_shown_too() -> None:
    run = team_run().trace
    foreign = records_of(replace_header(run, {"model": "mine", "workers": 3}))
    assert foreign[0]["names"] == ["Alice", "Bob", "Carol"]
    assert (foreign[0]["method"], foreign[0]["budget"]) == (None, None)
    named = records_of(replace_header(run, {"method": "mine", "workers": 1, "names": list("ABC")}))
    assert named[0]["names"] == ["A", "B", "C"]
    with pytest.raises(BrokenTrace, match=r"its names are 'ABC'; expected a list of texts"):
        records_of(replace_header(run, {"names": "ABC"}))
    with pytest.raises(BrokenTrace, match="counts 'many' workers"):
        records_of(replace_header(run, {"workers": "many"}))


def test_workers_of_a_strategy_of_ones_own_are_counted_where_nothing_names_them() -> None:
    told: list[Event] = [TokenWritten(1, worker, 5, "x") for worker in (0, 1, 2)]
    trace = replace(team_run().trace, events=told, event_passes=[1, 1, 1], header={"workers": 1})
    assert len(account_from(trace).hands) == 3
    came = [TokenWritten(1, 0, 5, "x"), WorkerJoined(1, 2, "Late"), TokenWritten(2, 2, 5, "x")]
    trace = replace(trace, events=came, header={})
    assert [hand.name for hand in account_from(trace).hands] == ["Alice", "Bob", "Late"]
    with pytest.raises(BrokenTrace, match="it tells of a worker 999999"):
        account_from(replace(trace, events=[TokenWritten(1, 999999, 5, "x")]))


def replace_header(trace: Trace, header: dict[str, Any]) -> Trace:
    return replace(trace, header={"kind": "header", "schema": 1, **header})


# -- the file --------------------------------------------------------------------------------------


def test_all_files_of_the_page_are_in_the_package() -> None:
    found = {file.name for file in resources.files(page).iterdir() if file.is_file()}
    assert found == {*page.FILES, "__init__.py"}
    for name in page.FILES:
        assert page.read(name).endswith("\n"), name


def test_the_page_asks_nothing_of_others() -> None:
    """No address, no inline script or style, and no way from text to markup in any file."""
    for name in page.FILES:
        text = page.read(name)
        addresses = set(re.findall(r"(?:https?:)?//[\w.]+\.\w+[^\s\"')]*", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}, name
        forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|\bstyle=|@import|url\("
        assert not re.findall(forbidden, text), name


def test_one_file_holds_the_page_and_the_run(lines: list[dict[str, Any]]) -> None:
    hostile = "</script><script>alert(1)</script><!-- \u2028 \ud800 &amp;"
    records = records_of(parse_trace(lines))
    made = document([records[0] | {"problem": hostile}, *records[1:]])
    (data,) = re.findall(r'<script type="application/json" id="records">(.*?)</script>', made)
    assert json.loads(data)[0]["problem"] == hostile
    assert "alert(1)</script>" not in made
    assert made.count("<script") == 2
    assert not re.findall(r'\b(?:src|href)="(?!data:|#)[^"]*"', made.partition("<script")[0])
    made.encode("ascii", "xmlcharrefreplace")


def test_no_two_modules_have_a_name_in_common() -> None:
    """They stand in one script, where the second would be an error."""
    declared: dict[str, str] = {}
    for name in page.FILES:
        if name.endswith(".js"):
            found = re.findall(
                r"^(?:export )?(?:async )?(?:function\*?|const|let|class) (\w+)",
                page.read(name),
                re.M,
            )
            assert found or name == "main.js"
            for one in found:
                assert one not in declared, f"{one} is in {name} and in {declared.get(one)}"
                declared[one] = name


def test_the_form_offers_what_there_is() -> None:
    """Every method, by its name; and to the bundled model, problems of its own world."""
    text = page.read("start.js")
    methods = text.partition("const METHODS")[2].partition("\n];")[0]
    assert set(re.findall(r'name: "(\w+)"', methods)) == set(METHODS)
    profiles = text.partition("const PROFILES")[2].partition("\n];")[0]
    assert re.findall(r'\["([\w-]+)"', profiles) == list(PROFILES)
    for name in re.findall(r'name: "(\w+)"[^\n]*workers: \[', methods):
        assert hasattr(METHODS[name].settings(), "workers")
    bundled = text.partition("const BUNDLED_PROBLEMS")[2].partition("\n];")[0]
    (introduction,) = re.findall(r'const LIST = ("[^\n]*");', text)
    problems = re.findall(r'workers: (\d+), problem: LIST \+ ("[^\n]*") }', bundled)
    assert len(problems) == bundled.count("LIST") >= 3
    sizes = set()
    for workers, problem in problems:
        lines = json.loads(problem)
        assert outside_world(json.loads(introduction) + lines, workers=int(workers)) is None
        sizes.add((int(workers), lines.count("\n") + 1))
    assert max(sizes) == (MOST_WORKERS, MOST_PROBLEMS), "the largest team at the longest list"
    (most,) = re.findall(r"const MOST_BUNDLED = (\d+);", text)
    assert int(most) == MOST_WORKERS
