"""The page in Firefox: nothing is lost, who saw what is right, nothing is wider than the screen.

What is asked here depends on the browser: highlights, the word under the mouse, streams that are read piece by piece, layout.
The rest is asked in Chromium (`test_page.py`), whose oracles and runs are used here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from manyhands.server.page import document
from manyhands.server.view import records_of
from tests.server.firefox import Firefox, Tab, firefox_path, launched
from tests.server.page_server import PageServer
from tests.server.scripted_runs import SIGNS, ScriptedRun, branch_run, profiled_run, team_run
from tests.server.test_page import (
    ALL_IS_SHOWN,
    STILL_SPOT,
    TOO_WIDE,
    crowd,
    hostile_records,
    live,
    seen_signs,
    words_of,
)

Opens = Callable[..., Tab]
TAB, ENTER, ESCAPE = "\ue004", "\ue007", "\ue00c"


@pytest.fixture(scope="module")
def firefox() -> Iterator[Firefox]:
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    firefox_path()
    with PageServer() as found:
        yield found


@pytest.fixture
def visit(firefox: Firefox, server: PageServer) -> Iterator[Opens]:
    """Open a page, which must behave to the end of the test."""
    tabs: list[Tab] = []

    def opened(address: str, size: tuple[int, int] = (1440, 900)) -> Tab:
        tabs.append(Tab(firefox, size))
        tabs[-1].goto(address)
        return tabs[-1]

    yield opened
    for tab in tabs:
        tab.close(server.address, "file://")


def test_without_firefox_a_test_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("MANYHANDS_BROWSER", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install firefox-esr"):
        firefox_path()
    monkeypatch.setenv("MANYHANDS_BROWSER", "required")
    with pytest.raises(pytest.fail.Exception, match="apt-get install firefox-esr"):
        firefox_path()


def test_no_piece_is_lost_also_behind_a_reload(visit: Opens, server: PageServer) -> None:
    records = crowd()[:160]
    page = visit(server.add("crowd", records, known=80), (1920, 1080))
    page.until("document.querySelector('.where')?.textContent.startsWith('pass 78')")
    page.reload()
    server.known["crowd"] = len(records)
    page.until("document.querySelector('.where')?.textContent.startsWith('pass 158')")
    page.evaluate("new Promise(requestAnimationFrame)")
    told = [""] * 64
    for record in records[2:]:
        for event in record["events"]:
            if event["event"] == "TokenWritten":
                told[event["worker"]] += event["text"]
            elif event["event"] == "StepEnded":
                told[event["worker"]] = ""
    assert [text.strip() for text in words_of(page, ".desk .words")] == [
        text.strip() for text in told
    ]


@pytest.mark.parametrize(
    "make",
    [team_run, lambda: branch_run("keep"), lambda: profiled_run("npr")],
    ids=["team", "branches", "profiled"],
)
def test_who_saw_what(visit: Opens, tmp_path: Path, make: Callable[[], ScriptedRun]) -> None:
    run, path = make(), tmp_path / "page.html"
    path.write_text(document(records_of(run.trace)), encoding="utf-8")
    page = visit(path.as_uri())
    page.wait_for_selector(".column, .trunk")
    page.evaluate("new Promise(requestAnimationFrame)")
    assert seen_signs(page) == run.seen()


def test_the_mouse_finds_the_word_under_it(visit: Opens, server: PageServer) -> None:
    page = visit(server.add("mouse", live(team_run())))
    page.until(ALL_IS_SHOWN)
    sign = SIGNS[63]
    x, y = page.evaluate(STILL_SPOT, sign)
    page.point(
        x, y - 1
    )  # a hand's mouse moves more than once, and a tab that is not painted yet misses the first
    page.point(x, y)
    page.until("document.querySelector('main').classList.contains('marking')")
    assert page.evaluate("[...CSS.highlights.get('pointed')].map(String)") == [sign]


@pytest.mark.parametrize("size", [(360, 740), (1440, 900)], ids=str)
def test_nothing_is_wider_than_the_screen(
    visit: Opens, server: PageServer, size: tuple[int, int]
) -> None:
    page = visit(server.address, size)
    runs = {"team": live(team_run()), "parts": live(profiled_run("npr")), "bad": hostile_records()}
    addresses = [server.add(name, records) for name, records in runs.items()]
    for address in (server.address, *addresses):
        page.goto(address)
        page.reload()
        page.wait_for_selector(".stage" if "#" in address else ".methods")
        page.evaluate("new Promise(requestAnimationFrame)")
        widths = page.evaluate(
            "['html', 'body', 'main', '#dock', '#top'].map(n => document.querySelector(n)).map(e => [e.scrollWidth, e.clientWidth])"
        )
        assert all(inner <= outer for inner, outer in widths), (address, widths)
        if "bad" not in address:
            assert page.evaluate(TOO_WIDE) == [], address
    assert (
        page.evaluate(
            "document.querySelectorAll('main script, main img, main i[class=\"\"]').length"
        )
        == 0
    )


def test_a_run_is_begun_and_spoken_to_by_keyboard(visit: Opens, server: PageServer) -> None:
    server.begun = live(team_run())
    server.posted.clear()
    page = visit(server.address)
    page.until("document.querySelector('#new-problem')?.value.startsWith('Solve these')")
    page.evaluate("document.querySelector('button.primary').focus()")
    page.press(ENTER)
    page.wait_for_selector(".column")
    server.known["new"] = 8
    page.until("document.querySelector('.where').textContent.startsWith('pass 6')")
    page.press("/")
    page.press(f"Eda{TAB}#3 is 59.{ENTER}")
    page.until("document.querySelector('.say textarea').value === ''")
    page.press(f"{ESCAPE}SS")
    page.until("document.querySelector('.danger').textContent === 'Stop'")
    page.evaluate("new Promise(r => setTimeout(r, 100))")
    assert [(method, said) for method, _, said in server.posted[1:]] == [
        ("POST", {"item": "Said", "text": "#3 is 59.", "author": "Eda"}),
        ("DELETE", None),
    ]
