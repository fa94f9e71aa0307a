"""The page in a real browser: nothing is lost, nothing is obeyed, and who saw what is right.

One browser and one server serve all tests. Words come from scripted runs (`scripted_runs.py`), in which the oracle
of who saw what is the plain context of each row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from manyhands.replay.retold import empty_account
from manyhands.schema.setting import setting
from manyhands.server.page import document
from manyhands.server.records import Record
from manyhands.server.view import records_of
from manyhands.strategies.methods import METHODS
from manyhands.strategies.requests import methods_told
from manyhands.strategies.settings import Settings
from tests.server.browser import Visit, browser_path, launched
from tests.server.page_server import PageServer
from tests.server.scripted_runs import (
    SIGNS,
    ScriptedRun,
    attempts_run,
    branch_run,
    nested_run,
    organiser_run,
    profiled_run,
    reasoning_run,
    skeleton_run,
    team_run,
)

Opens = Callable[..., Visit]
NUM_WORKERS, NUM_PASSES, STEP = 64, 500, 25


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    browser_path()
    with PageServer() as found:
        yield found


@pytest.fixture(scope="module")
def kept() -> Iterator[list[Visit]]:
    """A visit that behaved, for the next test: a new one takes a second."""
    visits: list[Visit] = []
    yield visits
    for one in visits:
        one.context.close()


@pytest.fixture
def visit(browser: Any, server: PageServer, kept: list[Visit]) -> Iterator[Opens]:
    """Open a page, which must behave to the end of the test."""
    visits: list[Visit] = []
    server.begin_anew()  # a test that failed in its midst has left what it wanted of it

    def opened(address: str, **choices: Any) -> Visit:
        if kept:
            visits.append(kept.pop())
            visits[-1].again(address, **choices)
        else:
            visits.append(Visit(browser, **choices))
        visits[-1].page.goto(address)
        return visits[-1]

    yield opened
    for one in visits:
        one.assert_behaved(server.address, "file://")
    for one in visits[1:]:
        one.context.close()
    kept += visits[:1]


@pytest.fixture(scope="module")
def team() -> ScriptedRun:
    return team_run()


def live(run: ScriptedRun, seconds: float = 0.1) -> list[Record]:
    """A saved run as a server streams it: a run waits for its memory first, and begins with its first pass."""
    begin, before, first, *rest = records_of(run.trace)
    together = {"events": before["events"] + first["events"]}
    records = [begin, before | {"events": []}, first | together, *rest]
    timed = [r | {"time": n * seconds} if "time" in r else r for n, r in enumerate(records)]
    return [timed[0] | {"run": "live", "listens": True}, *timed[1:]]


def crowd() -> list[Record]:
    """Many workers, each of whose words says who wrote it and when."""
    names = [f"Worker {n}" for n in range(NUM_WORKERS)]
    begin = {"kind": "begin", "run": "crowd", "method": "hogwild", "names": names}
    more = {"problem": "Count.", "model": "scripted", "budget": NUM_PASSES, "settings": {}}
    records: list[Record] = [
        begin | more | {"solo": False, "listens": True, "created": 0},
        {"kind": "pass", "pass": 0, "time": 0.0, "events": []},
    ]
    said: dict[int, list[str]] = {w: [] for w in range(NUM_WORKERS)}
    for n in range(1, NUM_PASSES + 1):
        events = []
        for w in range(NUM_WORKERS):
            own = {"forward_pass": n, "worker": w}
            said[w].append(f"w{w}p{n} ")
            events.append({"event": "TokenWritten", **own, "token": 1, "text": said[w][-1]})
            if (n + w) % STEP == 0:
                text = "".join(said[w]).strip()
                number = (n + w) // STEP
                events.append({"event": "StepEnded", **own, "step": number, "text": text})
                events.append({"event": "StepBegun", **own, "step": number + 1, "text": ""})
                said[w] = []
        records.append({"kind": "pass", "pass": n, "time": n / 100, "events": events})
    return [*records, crowd_end()]


def crowd_end() -> Record:
    answer = {"text": "42", "answer": "42", "finish_reason": "budget"}
    return {"kind": "end", "time": 5.0, "answer": answer, "error": None, "usage": {}}


def words_of(page: Any, places: str) -> list[str]:
    found: list[str] = page.evaluate(
        "places => [...document.querySelectorAll(places)].map(e => e.textContent)", places
    )
    return found


def shown_position(page: Any) -> int:
    return int(page.evaluate("document.querySelector('.rail input').value"))


def test_without_a_browser_a_test_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("MANYHANDS_BROWSER", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"):
        browser_path()
    monkeypatch.setenv("MANYHANDS_BROWSER", "required")
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"):
        browser_path()


# -- nothing is lost -------------------------------------------------------------------------------


def test_no_piece_of_64_columns_is_lost(visit: Opens, server: PageServer) -> None:
    """Also when the page is loaded anew in the middle, and when the stream breaks off."""
    records = crowd()
    address = server.add("crowd", records, known=200)
    seen = visit(address, size=(1920, 1080))
    page = seen.page
    seen.until("document.querySelector('.where').textContent.startsWith('pass 198')")
    page.reload()
    seen.until("document.querySelector('.where').textContent.startsWith('pass 198')")
    server.break_after = 300
    server.asked_after.clear()
    for known in range(210, len(records) + 1, 30):
        server.known["crowd"] = known
        page.wait_for_timeout(5)
    server.known["crowd"] = len(records)
    page.wait_for_selector(".ending .answer:has-text('42')")
    assert server.asked_after == [300], "the stream broke off, and was taken up behind record 300"
    written = " ".join(words_of(page, ".step .words, .desk .words"))
    assert sorted(written.split()) == sorted(
        f"w{w}p{n}" for w in range(NUM_WORKERS) for n in range(1, NUM_PASSES + 1)
    )
    for (_, text), number in zip(_steps_of(page), range(50), strict=False):
        passes = [int(n) for n in re.findall(r"p(\d+)", text)]
        assert all(b == a + 1 for a, b in pairwise(passes)), f"step {number} is in order"
    assert len(words_of(page, ".column")) == NUM_WORKERS


def test_what_was_missed_is_told_and_the_rest_is_drawn(visit: Opens, server: PageServer) -> None:
    """A reader that was slower than the log is long: workers it never heard of have words all the same."""
    begin, _, *rest = crowd()[:12]
    missed = {"kind": "missed", "count": 1234}
    end = crowd_end()
    short = [begin | {"names": ["Worker 0", "Worker 1"]}, missed, *rest[3:], end]
    page = visit(server.add("missed", short)).page
    page.wait_for_selector(".ending .answer")
    assert page.inner_text(".link") == "missed: 1\u202f234 records"
    assert words_of(page, ".desk .words")[7].split() == [f"w7p{n}" for n in range(4, 11)]


def _steps_of(page: Any) -> list[tuple[str, str]]:
    names, texts = words_of(page, ".step .head b"), words_of(page, ".step .words")
    return list(zip(names, texts, strict=True))


def test_a_reload_goes_on_where_it_was(visit: Opens, server: PageServer, team: ScriptedRun) -> None:
    seen = visit(server.add("half", live(team), known=12))
    page = seen.page
    seen.until("document.querySelector('.rail input').value === '10'")
    page.locator(".rail input").focus()
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    seen.until("location.hash.includes('at=6')")
    before = words_of(page, ".step .words, .desk .words")
    page.reload()
    page.wait_for_selector(".column")
    seen.until("document.querySelector('.rail input').value === '6'")
    assert words_of(page, ".step .words, .desk .words") == before
    server.known["half"] = len(server.runs["half"])
    seen.until("Number(document.querySelector('.rail input').max) > 20")
    assert shown_position(page) == 6
    page.keyboard.press("l")
    seen.until("document.querySelector('.rail input').value > 20")
    assert "at=" not in page.evaluate(
        "new Promise(r => setTimeout(r, 300)).then(() => location.hash)"
    )


def test_the_slider_shows_every_moment_as_it_was(
    visit: Opens, server: PageServer, team: ScriptedRun
) -> None:
    """Against an account in Python that has taken the events up to that pass and no others."""
    trace = team.trace
    seen = visit(server.add("slider", live(team)))
    page = seen.page
    page.wait_for_selector(".column")
    for moment in (20, 4, 5, 6, 9, 0, 13, 8, 7, 26):
        account = empty_account(trace)
        for after, event in zip(trace.event_passes, trace.events, strict=True):
            if after <= moment:
                account.take(event)
        workers = [hand for hand in account.hands if not hand.is_person]
        page.evaluate(
            """at => { const slider = document.querySelector('.rail input'); slider.value = at;
            slider.dispatchEvent(new Event('input')); return new Promise(requestAnimationFrame) }""",
            moment,
        )
        finished = sorted(
            (step for hand in account.hands for step in hand.steps),
            key=lambda step: (step.last_pass, step.worker),
        )
        shown = sorted(text for _, text in _steps_of(page))
        assert shown == sorted(step.text.strip() for step in finished), f"finished by {moment}"
        desks = [text.strip() for text in words_of(page, ".desk .words")]
        assert desks == [hand.text.strip() for hand in workers], f"on the desks at {moment}"
        tokens = [int(text.split()[0]) for text in words_of(page, ".column .tokens")]
        assert tokens == [hand.num_tokens for hand in workers], f"tokens at {moment}"
        if moment == 4:  # a pass took 0.1 s, and Alice wrote in each
            assert words_of(page, ".column .tokens")[0] == "4 tokens · 10/s"


def test_the_score_has_the_last_pass_although_nothing_comes_behind_it(
    visit: Opens, server: PageServer, team: ScriptedRun
) -> None:
    seen = visit(server.add("waits", live(team), known=3))
    seen.page.wait_for_selector(".score path", state="attached")
    # The page's clock says that the next records come too soon to be drawn, and its timers ring a millisecond early.
    seen.page.evaluate(
        """() => { const ring = setTimeout; let now = 0; performance.now = () => now;
        window.setTimeout = (call, wait) => ring(() => { now += Math.max(1, wait - 1); call() }, 0) }"""
    )
    server.known["waits"] = 8
    seen.until("document.querySelector('.where').textContent.startsWith('pass 6')")
    seen.until("document.querySelector('.score').getAttribute('viewBox').startsWith('0 0 6 ')")


def test_desks_beside_each_other_say_how_much_and_how_fast(
    visit: Opens, server: PageServer, team: ScriptedRun
) -> None:
    page = visit(server.add("facts", live(team), known=8), size=(1240, 800)).page
    page.wait_for_selector(".column .tokens:has-text('/s')")
    page.evaluate("new Promise(requestAnimationFrame)")
    cut = page.evaluate(
        """[...document.querySelectorAll('.column .facts')].map(facts =>
        [...facts.children].filter(e => e.textContent &&
          e.getBoundingClientRect().bottom > facts.getBoundingClientRect().bottom + 1).length)"""
    )
    assert cut == [0] * len(cut)


# -- who saw what ----------------------------------------------------------------------------------

_WALK = """() => {
  const told = () => document.querySelector(".pointed").textContent;
  const text = (name) => [...CSS.highlights.get(name)].map(String).join("");
  const found = {};
  for (const group of document.querySelectorAll(".column .body, .trunk")) {
    for (const other of document.querySelectorAll("[data-pointed]")) delete other.dataset.pointed;
    group.focus();
    for (let before = null; told() !== before; ) {
      before = told();
      group.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft", bubbles: true }));
      const seen = [...CSS.highlights.keys()].filter((name) => name.startsWith("seen-")).map(text).join("");
      found[text("pointed")] = seen;
    }
    document.querySelector(".seen button").click();
  }
  return found;
}"""


@pytest.mark.parametrize(
    "make",
    [
        team_run,
        lambda: team_run("interleaved"),
        lambda: team_run("contiguous"),
        lambda: team_run(moves="reencode"),
        *(lambda join=join: branch_run(join) for join in ("reencode", "stitch", "keep")),
        lambda: skeleton_run(0),
        lambda: skeleton_run(1),
        *(lambda name=name: profiled_run(name) for name in ("npr", "parallel-r1", "threadweaver")),
        *(lambda join=join: nested_run(join) for join in ("keep", "reencode")),
        reasoning_run,
        attempts_run,
    ],
    ids=[
        "combined",
        "interleaved",
        "contiguous",
        "moves-reencode",
        "join-reencode",
        "stitch",
        "keep",
        "points",
        "one-worker",
        "npr",
        "parallel-r1",
        "threadweaver",
        "nested",
        "nested-reencode",
        "reasoning",
        "attempts",
    ],
)
def test_who_saw_what_is_what_the_rows_have_read(
    visit: Opens, tmp_path: Path, make: Callable[[], ScriptedRun]
) -> None:
    run = make()
    path = tmp_path / "page.html"
    both = [records_of(run.trace), live(run)]
    for records in both if make is team_run else both[:1]:
        path.write_text(document(records), encoding="utf-8")
        page = visit(path.as_uri()).page
        page.wait_for_selector(".column, .trunk")
        page.evaluate("new Promise(requestAnimationFrame)")
        assert seen_signs(page) == run.seen()
    expected = run.seen()
    assert len(expected) >= 14
    assert len(set(expected.values())) > len(expected) // 3, "they have not all seen the same"


def seen_signs(page: Any) -> dict[str, str]:
    """For each sign on the page, the signs that are marked when it is pointed at."""
    return {
        sign: "".join(sorted(set(seen) & set(SIGNS)))
        for sign, seen in page.evaluate(_WALK).items()
        if sign in SIGNS[:159]  # the last one is written glued to what is cut off
    }


ALL_IS_SHOWN = "document.querySelector('.live')?.textContent === 'End'"
# Where a sign stands as soon as it stands still: records that come later, and columns that are resized, move it.
STILL_SPOT = """async sign => { for (let before = null; ; ) {
    for (let frame = 0; frame < 3; frame += 1) await new Promise(requestAnimationFrame);
    const words = [...document.querySelectorAll(".step .words")].find(one => one.firstChild?.data.includes(sign));
    const at = words?.firstChild.data.indexOf(sign);
    const range = document.createRange();
    if (words) { range.setStart(words.firstChild, at); range.setEnd(words.firstChild, at + 1) }
    const box = range.getBoundingClientRect();
    const spot = [box.x + box.width * .7, box.y + box.height / 2];
    if (words && before === String(spot)) return spot;
    before = String(spot);
} }"""


def test_the_mouse_finds_the_word_under_it(
    visit: Opens, server: PageServer, team: ScriptedRun
) -> None:
    seen = visit(server.add("mouse", live(team)))
    page = seen.page
    seen.until(ALL_IS_SHOWN)
    sign = SIGNS[63]
    spot = page.evaluate(STILL_SPOT, sign)
    page.mouse.move(*spot)
    seen.until("document.querySelector('main').classList.contains('marking')")
    assert f"Carol wrote “{sign}” in pass 4" in page.inner_text(".pointed")
    assert page.evaluate("[...CSS.highlights.get('pointed')].map(String)") == [sign]
    page.mouse.click(*spot)
    page.mouse.move(5, 300)
    assert page.locator("main.marking").count() == 1, "a click keeps the marks"
    page.keyboard.press("Escape")
    assert page.locator("main.marking").count() == 0


# -- nothing is obeyed -----------------------------------------------------------------------------

HOSTILE = (
    "<img src=x onerror=alert(1)><script>alert(2)</script></script><!--",
    "\u202egnp.exe\u2066 \u200f\x1b[2J\x07 \u2028 \ud800",
    "</script><script>document.title='owned'</script>",
)


# Texts that are wider than their places, which would be cut off or make the page scroll sideways.
TOO_WIDE = """[...document.querySelectorAll('.words, .answer, .fold, .scroller, .body, main, html')]
.filter(e => e.scrollWidth > e.clientWidth).map(e => `${e.className || e.tagName}: ${e.scrollWidth}, not ${e.clientWidth}`)"""


def hostile_records() -> list[Record]:
    names = ["<b>Alice</b>", "\u202eBob " + "x" * 300]
    begin = {"kind": "begin", "run": "bad", "method": "<i>hogwild</i>", "names": names}
    more = {"problem": HOSTILE[0], "model": HOSTILE[2], "budget": 9, "settings": {}, "solo": False}
    events: list[dict[str, Any]] = [
        {"event": "TokenWritten", "forward_pass": 1, "worker": 0, "token": 1, "text": text}
        for text in HOSTILE
    ]
    events.append(
        {"event": "StepEnded", "forward_pass": 1, "worker": 0, "step": 1, "text": "".join(HOSTILE)}
    )
    for worker in (0, 1):
        long = {"event": "TokenWritten", "forward_pass": 1, "worker": worker, "token": 1}
        events.append(long | {"text": "M" * 1_000_000})
    events.append(
        {"event": "StepEnded", "forward_pass": 1, "worker": 1, "step": 1, "text": "M" * 1_000_000}
    )
    events.append({"event": "AnswerFound", "forward_pass": 1, "worker": 0, "answer": HOSTILE[0]})
    return [
        begin | more | {"listens": False, "created": 0},
        {"kind": "pass", "pass": 0, "time": 0.0, "events": []},
        {"kind": "pass", "pass": 1, "time": 0.1, "events": events},
        {"kind": "end", "time": 1.0, "answer": None, "error": {"message": HOSTILE[2]}, "usage": {}},
    ]


def test_hostile_text_is_shown_and_not_obeyed(
    visit: Opens, server: PageServer, tmp_path: Path
) -> None:
    records = hostile_records()
    path = tmp_path / "page.html"
    path.write_text(document(records), encoding="utf-8")
    for address in (server.add("bad", records), path.as_uri()):
        seen = visit(address)
        page = seen.page
        dialogs: list[str] = []
        page.on("dialog", lambda dialog, found=dialogs: found.append(dialog.message))
        page.wait_for_selector(".step .words")
        assert page.locator("img, .words *, b b, i.hogwild").count() == 0
        assert page.locator("script").count() == (2 if address.startswith("file") else 1)
        assert dialogs == []
        assert "owned" not in page.title()
        first, long = words_of(page, ".step .words")
        assert "<script>alert(2)</script>" in first
        assert "\ufffdgnp.exe\ufffd \ufffd\u241b[2J\u2407 \ufffd" in first
        text = page.evaluate("document.body.textContent")
        assert not set("\u202e\u2066\u200f\x1b\x07\u2028") & set(text.partition("[{")[0])
        assert len(long) < 10_000, "a megabyte on one line is shown as far as it is asked for"
        assert "more characters" in page.inner_text(".step .more:visible")
        page.locator(".step .more:visible").click()
        seen.until("document.querySelectorAll('.step .words')[1].textContent.length > 9000")
        assert page.evaluate(TOO_WIDE) == []
        isolated = "[...document.querySelectorAll('.words, .name, .answer')].map(e => getComputedStyle(e).unicodeBidi)"
        assert set(page.evaluate(isolated)) == {"isolate"}


def test_control_a_request_to_anywhere_else_is_forbidden_and_seen(
    browser: Any, server: PageServer, team: ScriptedRun, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    path.write_text(document(records_of(team.trace)), encoding="utf-8")
    for address in (server.add("policy", live(team)), path.as_uri()):
        visit = Visit(browser)
        visit.page.goto(address)
        visit.page.wait_for_selector(".column")
        visit.page.evaluate(
            """() => { fetch("http://127.0.0.1:9/x").catch(() => 0); const s = document.createElement("script");
            s.textContent = "window.ran = true"; document.body.append(s); document.body.setAttribute("onclick", "ran = 1");
            return new Promise(r => setTimeout(r, 50)) }"""
        )
        assert "http://127.0.0.1:9/x" in visit.violations()
        assert "inline" in visit.violations()
        assert visit.page.evaluate("window.ran") is None
        with pytest.raises(AssertionError):
            visit.close(server.address, "file://")


# -- how it looks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(360, 640), (1440, 900), (3840, 2160)])
def test_nothing_is_wider_than_the_screen(
    visit: Opens, server: PageServer, team: ScriptedRun, size: tuple[int, int]
) -> None:
    runs = {"w-team": live(team), "w-branches": live(branch_run()), "w-votes": live(attempts_run())}
    addresses = [server.add(name, records) for name, records in runs.items()]
    addresses.append(server.add("w-crowd", crowd()[:60]))
    seen = visit(server.address, size=size)
    page = seen.page
    for address in (server.address, *addresses):
        page.goto(address)
        page.wait_for_selector(".column" if "#" in address else ".runs a")
        page.evaluate("new Promise(requestAnimationFrame)")
        widths = page.evaluate(
            "['html', 'body', 'main', '#dock', '#top'].map(n => document.querySelector(n)).map(e => [e.scrollWidth, e.clientWidth])"
        )
        assert all(inner <= outer for inner, outer in widths), (address, widths)
        assert page.evaluate(TOO_WIDE) == [], address
        # a part that is cut off has a scrollbar of its own
        hidden = """[...document.querySelectorAll('button, input, select, textarea')].filter(e => e.checkVisibility() && !e.closest('.column')
        && (e.getBoundingClientRect().right > innerWidth + 1 || e.getBoundingClientRect().left < -1)).map(e => e.outerHTML)"""
        assert page.evaluate(hidden) == [], address


_CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const light = (colour) => {
    canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((v) => v / 255).map((v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const behind = (node) => { for (; node; node = node.parentElement) { const colour = getComputedStyle(node).backgroundColor;
    if (colour !== "rgba(0, 0, 0, 0)") return colour; } };
  return [...document.querySelectorAll(".name, .initials, .words, .state, .when, .count, h2, .stat dt, .where, .chip, .fold, .hint, .by")]
    .filter((node) => node.checkVisibility() && node.textContent).map((node) => {
      const [a, b] = [light(getComputedStyle(node).color), light(behind(node))];
      return [node.className || node.tagName, (Math.max(a, b) + .05) / (Math.min(a, b) + .05)];
    });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_dark_and_light_can_be_read(visit: Opens, server: PageServer, scheme: str) -> None:
    """In each, and when the other is chosen by hand: text has a contrast of 4.5 at least (WCAG AA)."""
    records = crowd()[:60]
    seen = visit(server.add("colours", records), color_scheme=scheme)
    page = seen.page
    page.wait_for_selector(".step")
    page.keyboard.press("1")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Escape")
    papers = []
    for _ in range(2):
        contrasts = page.evaluate(_CONTRAST)
        assert len(contrasts) > 100
        assert [pair for pair in contrasts if pair[1] < 4.5] == []
        papers.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        for _ in range(2 if scheme == "light" else 1):  # auto, light, dark
            page.keyboard.press("t")
    assert papers[0] != papers[1]


# -- what a person does ----------------------------------------------------------------------------


def test_a_run_from_start_to_stop_by_keyboard_alone(
    visit: Opens, server: PageServer, team: ScriptedRun
) -> None:
    server.begun = live(team)
    server.posted.clear()
    server.key = "let me in"
    seen = visit(server.address)
    page = seen.page
    page.wait_for_selector("dialog[open] input")
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open] h2:has-text('not taken')")
    page.keyboard.type("let me in")
    page.keyboard.press("Enter")
    seen.until("document.querySelector('#new-problem').value.startsWith('Solve these')")

    def go_to(place: str, key: str = "Tab", most: int = 30) -> None:
        for _ in range(most):
            if page.evaluate("place => document.activeElement.matches(place)", place):
                return
            page.keyboard.press(key)
        raise AssertionError(f"{place} is not reached by {key}")

    go_to("#new-problem")
    page.keyboard.press("Control+A")
    page.keyboard.type("What is 2+3?")
    go_to("input[name=method]")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    go_to("#new-workers")
    page.keyboard.press("ArrowDown")
    go_to("button.primary")
    page.keyboard.press("Enter")
    page.wait_for_selector(".column")
    body = {"problem": "What is 2+3?", "method": "hogwild", "budget": 2048, "workers": 3}
    assert server.posted == [("POST", "runs", body)]
    assert page.evaluate("location.hash") == "#run=new"

    server.known["new"] = 8
    seen.until("document.querySelector('.where').textContent.startsWith('pass 6')")
    server.posted.clear()
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open] kbd")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("Eda")
    page.keyboard.press("Tab")
    page.keyboard.type("#3 is 59.")
    page.keyboard.press("Enter")
    seen.until("document.querySelector('.say textarea').value === ''")
    page.keyboard.press("Escape")
    page.keyboard.press("a")
    page.keyboard.press("2")
    go_to(".actions button")  # behind its desk's text in the order of focus, or before it
    page.keyboard.press("Enter")
    go_to(".add input")
    page.keyboard.type("Finn")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    page.keyboard.press("Shift+S")
    page.wait_for_selector(".danger:has-text('Really')")
    assert not any(method == "DELETE" for method, *_ in server.posted)
    page.keyboard.press("Shift+S")
    page.wait_for_selector(".danger:has-text('Stop')")
    page.evaluate("new Promise(r => setTimeout(r, 100))")
    methods = [(method, id) for method, id, _ in server.posted]
    assert methods == [("POST", "new")] * 4 + [("DELETE", "new")]
    assert [said for _, _, said in server.posted[:4]] == [
        {"item": "Said", "text": "#3 is 59.", "author": "Eda"},
        {"item": "AnswerNow"},
        {"item": "PauseWorker", "worker": 2},
        {"item": "AddWorker", "name": "Finn"},
    ]
    server.known["new"] = len(server.begun)
    page.wait_for_selector(".ending:not([hidden])")
    assert page.locator(".talk").is_hidden(), "nobody listens any more"
    assert "ended" in page.inner_text("#status")
    server.key = None


def test_nothing_is_begun_before_the_model_is_known(visit: Opens, server: PageServer) -> None:
    """A problem offered to others is none of the bundled model's world, and would be refused."""
    server.keeps_models = True
    seen = visit(server.address)
    button = "document.querySelector('button.primary')"
    seen.until(f"{button} !== null")
    problem = "document.querySelector('#new-problem').value"
    assert seen.page.evaluate(f"[{button}.disabled, {problem}]") == [True, ""]
    server.keeps_models = False
    seen.until(f"!{button}.disabled")
    assert seen.page.evaluate(problem).startswith("Solve these")


def test_a_problem_that_is_offered_brings_a_team_that_suits_it(
    visit: Opens, server: PageServer
) -> None:
    """The number of workers stays what the person chose, until another problem is asked for."""
    page = visit(server.address).page
    page.wait_for_selector(".hello :text('bundled')")
    assert page.input_value("#new-workers") == "4"
    page.fill("#new-workers", "3")
    page.click("button:text('Another problem')")
    assert page.input_value("#new-problem").count("\n") == 12
    assert page.input_value("#new-workers") == "8"
    page.click(".method-card:has-text('Alone')")
    page.click(".method-card:has-text('Team')")
    assert page.input_value("#new-workers") == "8"
    is_whole = "(e => e.scrollHeight <= e.clientHeight)(document.querySelector('#new-problem'))"
    assert page.evaluate(is_whole), "all twelve lines are seen"
    page.fill("#new-workers", "9")
    page.keyboard.press("Tab")
    assert page.input_value("#new-workers") == "8", "a larger team is none of its world"


def test_a_model_that_was_trained_to_part_is_run_as_it_was_trained(
    visit: Opens, server: PageServer
) -> None:
    """Its card is there where the model is not the bundled one, with what it may have been trained as."""
    server.begun, server.model = live(profiled_run("npr")), "NPR-4B"
    server.posted.clear()
    page = visit(server.address).page
    page.wait_for_selector(".hello :text('NPR-4B')")
    page.click(".method-card:has-text('As trained')")
    assert not page.is_visible("#new-workers")
    page.select_option("#new-profile", "threadweaver")
    page.click("button.primary")
    page.wait_for_selector(".stage")
    asked = {"method": "profiled", "budget": 2048, "profile": "threadweaver"}
    assert server.posted[0][2] == {"problem": server.posted[0][2]["problem"], **asked}
    server.known["new"] = len(server.begun)
    page.wait_for_selector(".fan.joined:nth-child(4)")
    dimmed = page.evaluate("[...CSS.highlights.get('dimmed')].map(String)")
    assert dimmed == ["<guideline>", "<plan>", "</plan>", "<plan>", "</plan>", "</guideline>"] * 2
    names = words_of(page, ".fan .column .name")
    assert names == ["part 1", "part 2"] * 2, "as they were named, in both forks"
    server.model = "bundled"
    page.goto(server.address)
    page.reload()
    page.wait_for_selector(".hello :text('bundled')")
    of_others = {"profiled", "async_reasoning", "async_think"}  # it was not taught these
    assert page.locator(".method-card:visible").count() == len(METHODS.keys() - of_others)


@dataclass(frozen=True, kw_only=True)
class RoundSettings(Settings):
    """Settings of a method that this package does not have: a field of each kind."""

    workers: int = setting(3, "How many sit there.", at_least=2, at_most=5)
    most_rounds: int = setting(8, "Rounds, at most.", at_least=1, at_most=256)
    patience: float | None = setting(None, "Seconds.", above=0, unset="no bound")
    tone: str = setting("kind", "How they talk.", one_of=("kind", "rough"))
    is_open: bool = setting(False, "Whether others join.")
    motto: str = setting("", "What stands above them.")
    seats: tuple[int, ...] = setting((), "Who sits where.")
    rare: int = setting(1, "For --set alone.", by="set")


def test_an_installed_method_is_offered_with_its_settings(
    visit: Opens, server: PageServer, team: ScriptedRun
) -> None:
    """The form had the methods of this package alone, and all of them, whatever the server has."""
    about = "all speak <b>in turns</b>"
    table = replace(METHODS["hogwild"], name="round_table", about=about, settings=RoundSettings)
    others = {name: METHODS[name] for name in METHODS.rows if name != "branches"}
    usual, server.methods = server.methods, methods_told({**others, "round_table": table})
    server.begun, server.model = live(team), "Qwen3-8B"
    server.posted.clear()
    seen = visit(server.address)
    page = seen.page
    try:
        page.wait_for_selector(".method-card:has-text('Round table')")
        assert about in page.inner_text(".method-card:has-text('Round table')")
        assert not page.is_visible(".method-card:has-text('Branches')")
        assert page.locator(".numbers :text('Most rounds')").count() == 0
        page.click(".method-card:has-text('Round table')")
        assert words_of(page, ".numbers > :not([hidden]) label") == [
            "Workers", "Budget, in passes", "Most rounds", "Patience", "Tone", "Is open", "Motto",
        ]  # fmt: skip
        assert page.get_attribute("#new-setting-most_rounds", "title") == "Rounds, at most."
        assert page.input_value("#new-workers") == "3"
        page.fill("#new-workers", "6")
        is_sound = "document.querySelector('form.new').checkValidity()"
        assert page.evaluate(is_sound) is False, "five sit there at most"
        page.fill("#new-workers", "2")
        page.fill("#new-setting-most_rounds", "257")
        assert page.evaluate(is_sound) is False
        page.fill("#new-setting-most_rounds", "12")
        page.select_option("#new-setting-tone", "rough")
        page.select_option("#new-setting-is_open", "true")
        page.click("button.primary")
        page.wait_for_selector(".column")
        asked = server.posted[0][2]
        assert asked == {
            "problem": asked["problem"], "method": "round_table", "budget": 2048, "workers": 2,
            "most_rounds": 12, "tone": "rough", "is_open": True,
        }  # fmt: skip
        page.goto(server.address)
        page.wait_for_selector(".method-card:has-text('Round table')")
        page.click(".method-card:has-text('Team')")
        assert page.locator(".numbers :text('Most rounds')").count() == 0
        page.click(".method-card:has-text('Round table')")
        page.fill("#new-setting-patience", "0.5")
        server.posted.clear()
        page.click("button.primary")
        page.wait_for_selector(".column")
        assert server.posted[0][2]["patience"] == 0.5
        assert server.posted[0][2]["workers"] == 3
    finally:
        server.methods = usual
    page.goto(server.address)
    page.reload()
    page.wait_for_selector(".hello :text('Qwen3-8B')")
    assert page.locator(".method-card:visible").count() == len(METHODS.rows)


@dataclass(frozen=True, kw_only=True)
class OddSettings(Settings):
    """Settings with names that the form or a run has for other things, and defaults that a field does not hold."""

    budget: int = setting(64, "Passes.", at_least=8, at_most=512)
    problem: str = setting("mine", "What troubles it.")
    model: str = setting("of the world", "Which.")
    method: str = setting("by hand", "How.")
    lines: str = setting("one\ntwo\u202e", "Several lines.")
    large: int = setting(2**60 + 1, "More than a page counts to.")
    share: float = setting(0.5, "A part.", above=0, below=1)


def test_what_is_not_chosen_of_an_installed_method_is_left_out(
    visit: Opens, server: PageServer, team: ScriptedRun
) -> None:
    """A setting named `problem` took the place of the problem, and a default of several lines became one."""
    odd = replace(METHODS["sequential"], name="odd", settings=OddSettings)
    usual, server.methods = server.methods, methods_told({**METHODS.rows, "odd": odd})
    server.begun, server.model = live(team), "Qwen3-8B"
    server.posted.clear()
    page = visit(server.address).page
    budget = "#new-budget"
    try:
        page.wait_for_selector(".method-card:has-text('Odd')")
        page.fill("#new-problem", "How many are there?")
        assert page.input_value(budget) == "2048"
        page.click(".method-card:has-text('Odd')")
        assert words_of(page, ".numbers > :not([hidden]) label") == [
            "Workers", "Budget, in passes", "Lines", "Large", "Share",
        ]  # fmt: skip
        assert page.input_value(budget) == "64"
        is_sound = "document.querySelector('form.new').checkValidity()"
        page.fill(budget, "513")
        assert page.evaluate(is_sound) is False
        page.fill(budget, "512")
        assert page.evaluate(is_sound) is True
        page.click("button.primary")
        page.wait_for_selector(".column")
        expected = {"problem": "How many are there?", "method": "odd", "budget": 512}
        assert server.posted[0][2] == expected
        page.goto(server.address)
        page.wait_for_selector(".method-card:has-text('Odd')")
        page.click(".method-card:has-text('Odd')")
        page.click(".method-card:has-text('Alone')")
        assert page.input_value(budget) == "2048"
        page.fill(budget, "4096")
        assert page.evaluate(is_sound) is True
        page.click(".method-card:has-text('Team')")
        assert page.input_value(budget) == "4096", "it is for all of ours"
    finally:
        server.methods = usual
    page.goto(server.address)
    page.reload()
    page.wait_for_selector(".hello :text('Qwen3-8B')")


def test_methods_by_prompt_are_offered_and_drawn_as_what_they_are(
    visit: Opens, server: PageServer
) -> None:
    """Desks for a thinker and a writer, columns for the workers of an organiser; not for the bundled model."""
    server.model = "Qwen3-8B"
    drawn = {}
    for title, run in (("Think and write", reasoning_run()), ("Organiser", organiser_run())):
        server.begun, server.posted[:] = live(run), []
        page = visit(server.address).page
        page.wait_for_selector(".hello :text('Qwen3-8B')")
        page.click(f".method-card:has-text('{title}')")
        assert not page.is_visible("#new-profile")
        page.click("button.primary")
        page.wait_for_selector(".stage")
        server.known["new"] = len(server.begun)
        asked = server.posted[0][2]
        drawn[asked["method"]] = asked.get("workers")
        if title == "Organiser":
            page.wait_for_selector(".fan .name:text('worker 2')")
            assert words_of(page, ".fan .column .name") == ["worker 1", "worker 2"]
        else:
            page.wait_for_selector(".column:nth-child(2)")
            assert sorted(words_of(page, ".column .name")) == ["Thinker", "Writer"]
            assert page.inner_text("#history").casefold() == "finished steps"
    assert drawn == {"async_reasoning": None, "async_think": 2}


def test_a_question_that_the_model_was_not_made_for_is_marked(
    visit: Opens, server: PageServer, team: ScriptedRun
) -> None:
    begin, *rest = live(team)
    said = "This is not a numbered list of problems; <b>…</b>"
    page = visit(server.add("outside", [begin | {"warning": said}, *rest])).page
    page.wait_for_selector(".column")
    assert words_of(page, ".problem .warning") == [said]
    page.goto(server.add("inside", [begin | {"warning": None}, *rest]))
    page.wait_for_selector(".column")
    assert words_of(page, ".problem .warning") == []


def test_a_server_that_refuses_is_quoted(visit: Opens, server: PageServer) -> None:
    seen = visit(f"{server.address}#run=gone")
    page = seen.page
    page.wait_for_selector(".wait:has-text('no such run')")


# -- the file that is mailed -----------------------------------------------------------------------


def test_methods_are_drawn_as_what_they_are(
    visit: Opens, server: PageServer, team: ScriptedRun
) -> None:
    seen = visit(server.add("drawn", live(branch_run())))
    page = seen.page
    page.wait_for_selector(".fan.joined")
    order = page.evaluate("[...document.querySelector('.flow').children].map(e => e.classList[0])")
    assert order == ["trunk", "fan", "trunk"], "a trunk parts, and joins"
    assert page.locator(".fork:not(.joins) path").count() == 2
    page.goto(server.add("votes", live(attempts_run())))
    page.wait_for_selector(".tally .votes")
    assert words_of(page, ".tally li") == ["7"]
    assert page.locator(".tally i").count() == 2
    assert words_of(page, ".boxed") == ["7", "7"]
    assert "by a vote" in page.inner_text(".by")
    page.goto(server.add("team", live(team)))
    page.wait_for_selector(".history .step.person")
    assert len(words_of(page, ".column")) == 4, "three from the start, and one who came"
