"""An interrupt at any line of the accounting: the step happened or it did not, and all goes on as it should.

KeyboardInterrupt is raised at every line inside `cache/` that is run, at several of the times it is
(`tests/strikes.py`). What was interrupted is then asked for again, as an engine does. A memory beside it knows which token lies in
which slot, so keys that are lost, forgotten moves and pages used twice are found.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import CodeType
from typing import Any, NamedTuple

import pytest

from manyhands.cache import fronts, journal, lockstep, pages, planner, routes
from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.places import Strip
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.errors import ManyhandsError
from tests.cache.test_plan import Ledger
from tests.covers import is_every_case
from tests.strikes import Place, Watch, every_time, strike_all, tellings

WATCHED = frozenset(
    module.__file__ for module in (fronts, journal, lockstep, pages, planner, routes)
)


def is_watched(code: CodeType) -> bool:
    return code.co_filename in WATCHED


def watch_at(*places: Place, again: int | None = None) -> Watch:
    return Watch(is_watched, places, again)


class Driver:
    """The work of an engine with a step, over a memory that is a dictionary."""

    def __init__(self) -> None:
        self.pool = PagePool(64, 2)
        self.ledger = Ledger(self.pool)
        self.num_interrupts = 0
        self.watch = watch_at()

    def feed(self, *rows: Row) -> None:
        """Until it has been done, whatever strikes."""
        self.watch.begin_step()
        self._insist_on(Step(rows), [row.view.own.num_tokens + len(row.feed) for row in rows])
        for row in rows:
            place = self.pool.place(row.view.own)
            assert place.strip.num_tokens == place.offset + row.view.own.num_tokens, (
                "promised twice"
            )

    def _insist_on(self, step: Step, fed: list[int]) -> None:
        before = [row.view.own.num_tokens for row in step.rows]
        for _ in range(4):
            try:
                with self.watch.watching():
                    self.pool.take_back()
                    try:
                        self.ledger.play(step)
                    except BaseException:
                        self.pool.take_back()
                        raise
                return
            except KeyboardInterrupt:
                self.num_interrupts += 1
            if self.pool._promises:
                continue
            now = [row.view.own.num_tokens for row in step.rows]
            assert now in (before, fed), "a step happens or it does not"
            if now == fed:
                return
        raise AssertionError("the step could not be done")

    def insist(self, do: Callable[[], Any]) -> Any:
        """The steps that can be asked for again."""
        self.watch.begin_step()
        while True:
            try:
                with self.watch.watching():
                    return do()
            except KeyboardInterrupt:
                self.num_interrupts += 1


def conversation(driver: Driver) -> None:
    """Prefill, plain decoding, finished steps that move, a divided prompt, blocks that leave and return.

    Desks have copies of the marker in front of them: from the beginning, and when they are fresh.
    """
    pool = driver.pool
    prompt, marker, desks = (
        Block("prompt"),
        Block("marker"),
        [Block("a1"), Block("b1"), Block("c1")],
    )
    history: list[Block] = []
    driver.feed(Row(View([prompt]), (1, 2, 3, 4, 5)))
    prompt.freeze()

    def views() -> list[View]:
        return [
            View(
                [
                    *(prompt, *history),
                    *(block for desk in desks if desk is not own for block in (desk, marker)),
                    own,
                ]
            )
            for own in desks
        ]

    driver.feed(Row(View([prompt, marker]), (3,)), *(Row(view, (4,)) for view in views()))
    marker.freeze()

    for turn in range(4):
        rows = views()
        driver.feed(*(Row(view, (6, 7)) for view in rows))
        driver.feed(*(Row(view, (8,)) for view in rows))
        driver.feed(*(Row(view, (9,)) for view in rows))
        history.append(desks[turn % 3].freeze())
        desks[turn % 3] = Block(f"fresh {turn}")
    assert any(pool.place(desk).strip.front for desk in desks)
    away = desks[:2]
    kept = {block: block.num_tokens for block in away}
    for block in away:
        gone: list[Strip] = []
        driver.insist(partial(pool.evict, [block], gone))
        driver.insist(partial(pool.bring_back, gone))
        place = pool.place(block)
        slots = pool.slots(place.strip, place.offset, place.offset + kept[block])
        for index, slot in enumerate(slots.tolist()):  # its keys are written again
            driver.ledger.whose[slot] = (block, index)
            driver.ledger.offset[slot] = place.offset + index
    driver.feed(*(Row(view, (10,)) for view in views()))
    halves = driver.insist(lambda: pool.divide(prompt, 2))
    for index, slot in enumerate(pool.slots(pool.place(prompt).strip, 0, 5).tolist()):
        driver.ledger.whose[slot] = (halves[0], index) if index < 2 else (halves[1], index - 2)
    own = Block("own")
    driver.feed(Row(View([*halves, own]), (11, 12)))


def play(watch: Watch) -> Watch:
    """The conversation, interrupted; in the end no page is lost."""
    driver = Driver()
    driver.watch = watch
    conversation(driver)
    assert driver.num_interrupts == watch.num_strikes
    pool = driver.pool
    pool.take_back()
    del driver
    if pool.num_free_pages < pool.num_pages:
        gc.collect()
    assert pool.num_free_pages == pool.num_pages
    assert sorted(pool._free) == list(range(pool.num_pages))
    assert not pool._places
    return watch


def strikes() -> list[Place]:
    """Every line, the first time it is run and one in the middle."""
    return play(watch_at()).places(lambda times: {1, (times + 1) // 2})


def test_undisturbed_every_part_is_run() -> None:
    lines = {line for _, line in play(watch_at()).lines}
    assert {code.co_filename for code, _ in lines} == WATCHED
    assert len(lines) > 150


def test_an_interrupt_at_any_line(pytestconfig: pytest.Config) -> None:
    def struck(places: Sequence[Place]) -> Watch:
        watch = play(watch_at(*places))
        assert watch.num_strikes == len(watch.struck)
        return watch

    strike_all(strikes(), struck, alone=is_every_case(pytestconfig))


@pytest.mark.parametrize("again", [1, 3, 12])
def test_a_second_interrupt_while_the_first_one_is_handled(
    again: int, pytestconfig: pytest.Config
) -> None:
    def struck(places: Sequence[Place]) -> Watch:
        watch = play(watch_at(*places, again=again))
        assert watch.num_strikes == 2 * len(watch.struck)
        return watch

    strike_all(strikes()[again % 3 :: 3], struck, alone=is_every_case(pytestconfig))


def with_rooms() -> tuple[PagePool, Block, list[Block]]:
    """A finished marker, and two desks behind room for a copy of it."""
    pool, marker, desks = PagePool(64, 16), Block("marker"), [Block("one"), Block("another")]
    pool.reserve([(marker, 3)])
    marker.tokens.extend([1, 2, 3])
    for desk in desks:
        pool.leave_room(desk, marker, 3)
        pool.reserve([(desk, 1)])
        desk.tokens.append(4)
    pool.make_moves(lambda moves: None)
    marker.freeze()
    return pool, marker, desks


def test_rooms_are_filled_at_once_or_not_at_all() -> None:
    """Half of it would read right, and the other copies would never be made."""

    def interrupted(watch: Watch) -> tuple[int, int, tuple[bool, ...]]:
        pool, marker, desks = with_rooms()
        watch.begin_step()
        with suppress(KeyboardInterrupt), watch.watching():
            pool.fill_rooms(marker)
        pool._collect()
        strips = [pool.place(desk).strip for desk in desks]
        filled = tuple(strip.front is not None for strip in strips)
        assert filled == tuple(strip.awaited is None for strip in strips)
        return len(pool._moves), len(pool.place(marker).rooms), filled

    undisturbed = watch_at()
    states = {interrupted(undisturbed)}
    assert states == {(2, 0, (True, True))}
    states |= {interrupted(watch_at(place)) for place in undisturbed.places(every_time)}
    assert states == {(2, 0, (True, True)), (0, 2, (False, False))}


class Full(NamedTuple):
    """A pool with a bit of everything: a marker with a copy that waits, a desk behind another one, blocks that can be joined,
    one that grows and has a page to spare, one that is new.
    """

    pool: PagePool
    marker: Block
    desk: Block
    one: Block
    other: Block
    live: Block
    new: Block

    @classmethod
    def made(cls) -> Full:
        full = cls(PagePool(120, 2), *(Block() for _ in range(6)))
        pool = full.pool
        for block in (full.marker, full.one, full.other, full.live):
            pool.reserve([(block, 3)])
            block.tokens.extend([1] * 3)
        for block in (full.marker, full.one, full.other):
            block.freeze()
        pool.make_front(full.marker)
        pool.give_front(full.desk, full.marker)
        pool.make_front(full.marker)
        pool.add_spares([pool.place(full.live).strip])
        pool._moves.clear()
        return full

    def state(self) -> tuple[Any, ...]:
        """All that a change may change, but `generation`, which may grow in vain."""

        def of(strip: Strip) -> tuple[Any, ...]:
            fronts = [front and front.size for front in (strip.front, strip.awaited)]
            return *strip.pages, "", strip.num_tokens, strip.left, len(strip.places), *fronts

        pool = self.pool
        places = [pool._places.get(weakref.ref(block)) for block in self[1:]]
        lie = [
            place
            and (place.offset, place.size, *map(of, (place.strip, *place.fronts, *place.rooms)))
            for place in places
        ]
        spares, fronts = map(of, pool._spares), [len(place.fronts) for place in pool._fronts]
        counts = len(pool._moves), pool.num_joined, sum(fronts)
        return *lie, tuple(pool._free), *spares, *counts


CHANGES: dict[str, Callable[[Full], object]] = {
    "reserve": lambda full: full.pool.reserve([(full.live, 9)]),
    "join": lambda full: full.pool.join(full.other, full.one),
    "make front": lambda full: full.pool.make_front(full.marker),
    "give front": lambda full: full.pool.give_front(full.new, full.marker),
    "leave room": lambda full: full.pool.leave_room(full.new, full.live, 3),
    "take fronts back": lambda full: full.pool.take_fronts_back(),
    "add spares": lambda full: full.pool.add_spares([full.pool.place(full.desk).strip]),
    "lend": lambda full: full.pool.lend([(full.pool.place(full.live).strip, 9)]),
    "take spares back": lambda full: full.pool.make_room(full.pool.num_free_pages),
    "shorten": lambda full: full.pool.shorten(full.live, 1),
    "evict": lambda full: full.pool.evict([full.one], []),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_is_complete_or_has_not_happened(name: str) -> None:
    def interrupted(watch: Watch) -> tuple[Any, ...]:
        full = Full.made()
        watch.begin_step()
        with suppress(KeyboardInterrupt), watch.watching():
            CHANGES[name](full)
        full.pool._journal.take_back()
        return full.state()

    before, undisturbed = Full.made().state(), watch_at()
    after = interrupted(undisturbed)
    assert after != before
    found = {before, after}
    found |= {interrupted(watch_at(place)) for place in undisturbed.places(every_time)}
    assert found == {before, after}


@pytest.mark.parametrize(
    ("module", "name"),
    [(journal.Journal, "take_back"), (pages.PagePool, "take_back"), (pages.PagePool, "keep")],
)
def test_control_without_one_of_its_parts_it_fails(
    module: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = tellings(strikes()[::3])
    monkeypatch.setattr(module, name, lambda self: None)
    assert any(fails(places) for places in everything)


def fails(places: Sequence[Place]) -> bool:
    try:
        play(watch_at(*places))
    except (AssertionError, LookupError, RuntimeError, ValueError, ManyhandsError):
        return True
    return False


@pytest.mark.parametrize("what", ["tokens", "pages"])
def test_half_a_change_is_taken_back_before_room_is_reserved(what: str) -> None:
    """Its clean-up was struck, too, and the views of the next step are known, so that no place is looked up."""
    ledger = Ledger(pool := PagePool(20, 4))
    view = View([Block("text")])
    ledger.play(Step([Row(view, (1, 2))]))
    strip = pool.place(view.own).strip
    free = pool.num_free_pages
    pool._journal.keep(strip, "num_tokens")
    pool._journal.keep_tail(strip.pages)
    pool._journal.keep_tail(pool._free)
    if what == "tokens":
        strip.num_tokens = 0
    else:
        strip.pages.append(pool._free.pop())
    ledger.play(Step([Row(view, (3, 4))]))
    assert (strip.num_tokens, len(strip.pages), pool.num_free_pages) == (4, 1, free)
