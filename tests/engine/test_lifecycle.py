"""The course of a run in the engine, as events: waiting, let in, preempted, back, and its views."""

from __future__ import annotations

import json
from typing import Any

from manyhands.cache.step import Choice
from manyhands.engine.run import Run
from manyhands.replay.trace import event_line, parse_trace, record
from manyhands.strategies.base import Reserve
from manyhands.strategies.events import (
    Admitted,
    EngineEvent,
    Event,
    Preempted,
    Queued,
    Resumed,
    ViewsChanged,
)
from manyhands.strategies.prompt_sharing import share_prompt
from tests.engine.small import LETTERS, counting, finish, small_engine, story, team


def lifecycle(run: Run) -> list[str]:
    """The events of a run, without its views."""
    return [
        type(event).__name__
        for event in run.events
        if isinstance(event, EngineEvent) and not isinstance(event, ViewsChanged)
    ]


def own(run: Run) -> list[Event]:
    """The events that the strategy itself reported."""
    return [event for event in run.events if not isinstance(event, EngineEvent)]


def test_a_run_waits_is_let_in_leaves_and_comes_back() -> None:
    alone = story(small_engine(), counting((2,) * 30, 40))
    engine = small_engine(memory_tokens=160)
    first = engine.submit(counting((1,) * 60, 60), lifecycle=True)
    second = engine.submit(counting((2,) * 30, 40), lifecycle=True)
    third = engine.submit(counting((3,), 5, Reserve(100, 1)), lifecycle=True)
    assert [type(event) for event in third.events] == [Queued]
    finish(engine, first, second, third)
    assert lifecycle(first) == ["Admitted"]
    assert lifecycle(second) == ["Admitted", "Preempted", "Resumed"]
    assert lifecycle(third) == ["Queued", "Admitted"]
    assert [*own(second), second.result()] == alone
    written = [type(event) for event in second.events]
    gone = second.events[written.index(Preempted)]
    back = second.events[written.index(Resumed)]
    assert 0 < gone.forward_pass == back.forward_pass < 40


def test_a_run_that_gives_back_a_part_at_once_has_not_waited_again() -> None:
    """A prompt of the prefix tree is reserved, then leased: two reservations, of which the second is smaller."""
    engine = small_engine()
    for tenant in ("anna", "ben"):
        run = engine.submit(share_prompt(team(2), engine.prefixes, tenant), lifecycle=True)
        finish(engine, run)
        assert lifecycle(run) == ["Queued", "Admitted"]


def test_who_is_not_watched_reports_what_it_did_before() -> None:
    engine = small_engine()
    run = engine.submit(team(2))
    finish(engine, run)
    assert own(run) == list(run.events)


def test_views_say_who_read_what_in_every_pass() -> None:
    """Held against the trace of the same run: numbers, names, and the order of all blocks."""
    lines: list[dict[str, Any]] = []
    engine = small_engine()
    busy = team(3, snapshots=(9, 20), choice=Choice(temperature=1.0, allowed=LETTERS), budget=40)
    run = engine.submit(record(busy, {}, lines.append), lifecycle=True)
    finish(engine, run)
    assert run.result().forward_passes == 40
    trace = parse_trace(json.loads(json.dumps(lines)))
    seats: dict[str, tuple[Any, ...]] = {}
    names: dict[int, str] = {}
    events = [event for event in run.events if isinstance(event, ViewsChanged)]
    changes = iter(events)
    upcoming = next(changes, None)
    for number, rows in enumerate(trace.passes, 1):
        if upcoming is not None and upcoming.forward_pass == number:
            assert upcoming.views
            seats |= upcoming.views
            assert not names.keys() & upcoming.blocks.keys()
            names |= upcoming.blocks
            upcoming = next(changes, None)
        for row in rows:
            if row.writer is not None:
                assert seats[row.writer] == trace.views[row.view], number
                assert all(names[block] == trace.blocks[block] for block in seats[row.writer])
    assert upcoming is None
    assert 5 < len(events) < len(trace.passes), "said when it changes, and only then"
    assert {"Alice", "Bob", "Carol", "finisher", "reply"} <= seats.keys()


def test_a_trace_may_hold_them_and_restoring_ignores_them() -> None:
    lines: list[dict[str, Any]] = []
    engine = small_engine()
    run = engine.submit(record(team(2), {}, lines.append), lifecycle=True)
    told = 0
    while not run.done:
        engine.step()
        new = list(run.events)[told:]
        told += len(new)
        lines += [event_line(event) for event in new if isinstance(event, EngineEvent)]
    trace = parse_trace(json.loads(json.dumps(lines)))
    assert trace.engine_events == [e for e in run.events if isinstance(e, EngineEvent)]
    assert trace.events == own(run)
    bare = [
        line
        for line in lines
        if not (line["kind"] == "event" and line["event"] in ("Queued", "Admitted", "ViewsChanged"))
    ]
    assert len(bare) < len(lines)
    for cut in range(1, len(lines), 29):
        continued: list[dict[str, Any]] = []
        trace = parse_trace(json.loads(json.dumps(lines[:cut])))
        assert engine.run(engine.restore(team(2), trace, write=continued.append)) == run.result()
        assert continued == bare[trace.num_lines :]


def test_what_is_watched_writes_the_same() -> None:
    engine = small_engine()
    alone = story(engine, team(3))
    run = engine.submit(team(3), lifecycle=True)
    finish(engine, run)
    assert [*own(run), run.result()] == alone
    assert Admitted in map(type, run.events)


def test_room_that_is_cleared_is_no_block_that_moved() -> None:
    """Desks of a first step begin behind room for a copy of the marker; what is copied there has moved."""
    engine = small_engine()
    engine.submit(team(4))
    engine.step()
    assert engine.pass_counts.moves == 0
    while engine.pass_counts.moves == 0:
        engine.step()
    assert engine.pass_counts.moves >= 3, "a copy for each desk but one, and what is compacted"
