"""The plan against a naive re-computation: whose token stands where, for random conversations."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from manyhands.cache import planner as planning
from manyhands.cache import trunks
from manyhands.cache.block import Block
from manyhands.cache.layouts import Cast, combined, interleaved
from manyhands.cache.pages import PagePool
from manyhands.cache.places import NOWHERE, Move, Place
from manyhands.cache.plan import PageTables, Plan, of_rows, over_copied_pages
from manyhands.cache.planner import Planner
from manyhands.cache.routes import Walk
from manyhands.cache.step import Row, Step
from manyhands.cache.trunks import Trunks
from manyhands.cache.view import Item, Lanes, View
from manyhands.errors import ContextTooLong, InvalidRequest, OutOfMemory
from tests.covers import examples

Token = tuple[Block, int]  # with its index there


class Ledger:
    """Plays steps through a planner and remembers, slot by slot, whose token was put there."""

    def __init__(self, pool: PagePool, max_positions: int | None = None) -> None:
        self.planner = Planner(pool, max_positions)
        self.whose: dict[int, Token] = {}
        self.offset: dict[int, int] = {}
        self.met: set[int] = set()  # slots that rows of the plan in hand meet

    def play(self, step: Step) -> Plan:
        plan = self.planner.plan(step)
        self.moves: list[Move] = []
        self.planner.pool.make_moves(self.move)
        fed = [
            (row.view.own, row.view.own.num_tokens + i)
            for row in step.rows
            for i in range(len(row.feed))
        ]
        for slot, offset, token in zip(
            plan.slots.tolist(), plan.offsets.tolist(), fed, strict=True
        ):
            self.whose[slot], self.offset[slot] = token, offset
        for row in step.rows:
            row.view.own.tokens.extend(row.feed)
        self.planner.pool.keep()
        self.check(step, plan)
        return plan

    def move(self, moves: Sequence[Move]) -> None:
        """All at once, so in any order: the last one first."""
        for move in reversed(moves):
            for source, target in zip(move.sources.tolist(), move.targets.tolist(), strict=True):
                if source == NOWHERE:  # nothing that could be read
                    self.whose.pop(target, None)
                    continue
                self.whose[target] = self.whose[source]
                self.offset[target] = self.offset[source] + move.shift
        self.moves.extend(moves)

    def check(self, step: Step, plan: Plan) -> None:
        assert plan.num_rows == len(step.rows)
        assert plan.token_ids.tolist() == [token for row in step.rows for token in row.feed]
        assert plan.num_tokens == len(plan.token_ids)
        tokens = {block: tokens_of(block) for row in step.rows for block in row.view.blocks}
        expected = [naive(row.view, tokens) for row in step.rows]
        met = self.seen(plan)
        for index, row in enumerate(step.rows):
            packed = slice(int(plan.row_indptr[index]), int(plan.row_indptr[index + 1]))
            assert plan.last[index] == packed.stop - 1
            # everybody has been fed by now: a row's own tokens are the last ones of its view
            length = row.view.num_tokens
            assert plan.positions[packed].tolist() == list(range(length - len(row.feed), length))
            found = met.pop(index, [])
            assert len(found) == len(set(found))
            assert set(found) == set(expected[index])
        assert not met, "reads of rows that the step has not"
        assert plan.num_keys_read == sum(map(len, expected))
        keys = {token for row in expected for _, token in row}
        assert plan.num_keys_loaded == len(self.met)
        # A key that is met twice is that of a block with copies in front of others.
        assert {self.whose[slot] for slot in self.met} == keys
        self.met.clear()

    def seen(self, plan: Plan) -> dict[int, list[tuple[int, Token | None]]]:
        """For each row positions in its view, and the tokens that the plan's integers make it meet there."""
        reads, size = plan.reads, plan.page_size
        found: dict[int, list[tuple[int, Token | None]]] = {}
        lists = (each.tolist() for each in (reads.row, reads.base, reads.low, reads.high))
        each_read = list(zip(*lists, strict=True))
        bounds = reads.strip_indptr.tolist()
        for strip, pages in enumerate(reads.pages):
            slots = [
                slot for page in pages.tolist() for slot in range(page * size, page * size + size)
            ]
            tokens, offsets = list(map(self.whose.get, slots)), list(map(self.offset.get, slots))
            for row, base, low, high in each_read[bounds[strip] : bounds[strip + 1]]:
                assert offsets[low:high] == list(range(low, high))
                self.met.update(slots[low:high])
                positions = range(base + low, base + high)
                found.setdefault(row, []).extend(zip(positions, tokens[low:high], strict=True))
        return found


def tokens_of(block: Block) -> list[Token]:
    return [(block, index) for index in range(block.num_tokens)]


def naive(view: View, tokens: Mapping[Block, list[Token]]) -> list[tuple[int, Token]]:
    """Position of every token: lanes begin together, and end with the longest."""
    return [
        each
        for block, start in placed(view.items, lambda block: block.num_tokens)[0]
        for each in zip(range(start, start + block.num_tokens), tokens[block], strict=True)
    ]


def placed(
    items: Sequence[Item], size_of: Callable[[Block], int], start: int = 0
) -> tuple[list[tuple[Block, int]], int]:
    """Every block of a run that begins at `start`, with its own beginning, and where the run ends."""
    found: list[tuple[Block, int]] = []
    for item in items:
        if isinstance(item, Block):
            found.append((item, start))
            start += size_of(item)
            continue
        lanes = [placed(lane, size_of, start) for lane in item.lanes]
        found += [one for lane, _ in lanes for one in lane]
        start = max([start, *(end for _, end in lanes)])
    return found, start


def with_lanes(rng: random.Random, blocks: Sequence[Block], depth: int = 0) -> list[Item]:
    """Now and then, some neighbours side by side; among them some that part again."""
    if not blocks or depth > 3 or rng.random() < (0.4 if depth else 0.7):
        return list(blocks)
    start, stop = sorted(rng.choices(range(len(blocks) + 1), k=2))
    cuts = sorted({start, stop, *rng.choices(range(start, stop + 1), k=2)})
    lanes = Lanes(with_lanes(rng, blocks[a:b], depth + 1) for a, b in pairwise(cuts))
    return [*blocks[:start], lanes, *blocks[stop:]]


def random_step(rng: random.Random, blocks: list[Block], views: list[View]) -> Step:
    """Some rows over some blocks; old views are used again while their block may be written."""
    rows: list[Row] = []
    for _ in range(rng.randint(1, 4)):
        owners = {row.view.own for row in rows}
        usable = [view for view in views if not view.own.frozen and view.own not in owners]
        if usable and rng.random() < 0.6:
            view = rng.choice(usable)
        else:
            own = Block(f"block {len(blocks)}")
            blocks.append(own)
            read = [block for block in blocks[:-1] if rng.random() < 0.7]
            if rng.random() < 0.3:
                rng.shuffle(read)
            view = View([*with_lanes(rng, read), own])
            views.append(view)
        feed = [rng.randrange(100) for _ in range(rng.choice([1, 1, 2, 7]))]
        rows.append(Row(view, tuple(feed)))
    return Step(rows)


@settings(max_examples=examples(400, of=1000), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    page_size=st.sampled_from([1, 2, 3, 16]),
    joins_ahead=st.booleans(),
)
def test_random_conversations(seed: int, page_size: int, joins_ahead: bool) -> None:
    """`joins_ahead`: compaction waits for a plan that is made ahead, or for the next one where there is none."""
    rng = random.Random(seed)
    ledger = Ledger(PagePool(4000 // page_size, page_size))
    ledger.planner.joins_ahead = joins_ahead
    blocks: list[Block] = []
    views: list[View] = []
    for _ in range(rng.randint(2, 15)):
        step = random_step(rng, blocks, views)
        if joins_ahead and rng.random() < 0.5:
            ledger.planner.plan_ahead(step, {})
        ledger.play(step)
        for block in blocks:
            if rng.random() < 0.3:
                block.freeze()
        if len(blocks) > 3 and rng.random() < 0.3:  # somebody leaves, and its blocks with it
            gone = blocks.pop(rng.randrange(len(blocks)))
            views[:] = [view for view in views if gone not in view.blocks]


def test_behind_lanes_that_grow_a_plan_is_not_linear() -> None:
    """Today one lane is the longest, and after some passes another one."""
    ledger = Ledger(PagePool(100, 2))
    trunk, short, long, own = (Block(name) for name in ("trunk", "short", "long", "own"))
    lane = View([trunk, short])
    behind = View([trunk, Lanes([[short], [long]]), own])
    ledger.play(Step([Row(View([trunk]), (1, 2)), Row(View([trunk, long]), (3, 4, 5))]))
    for _ in range(6):
        plan = ledger.play(Step([Row(lane, (6,)), Row(behind, (7,))]))
        assert plan.growth is None
    short.freeze()
    for _ in range(6):
        assert ledger.play(Step([Row(behind, (8,))])).growth is not None


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_little_memory(seed: int) -> None:
    """Passes that do not fit change nothing, and what is freed serves the passes after them."""
    rng = random.Random(seed)
    pool = PagePool(24, 2)
    ledger = Ledger(pool)
    blocks: list[Block] = []
    views: list[View] = []
    for _ in range(25):
        step = random_step(rng, blocks, views)
        lengths = [block.num_tokens for block in blocks]
        try:
            ledger.play(step)
        except OutOfMemory:
            assert [block.num_tokens for block in blocks] == lengths
            views.clear()
            blocks[:] = blocks[len(blocks) // 2 :]
        else:
            rng.choice(blocks).freeze()
    del step
    views.clear()
    blocks.clear()
    ledger.whose.clear()
    assert pool.num_free_pages == pool.num_pages


def test_a_growing_history_is_read_in_one_piece() -> None:
    """The team's way of working: desks freeze and join the history, whose reads stay few."""
    ledger = Ledger(PagePool(200, 4))
    prompt = Block("prompt")
    history: list[Block] = []
    desks = [Block("a 1"), Block("b 1")]
    ledger.play(Step([Row(View([prompt]), tuple(range(9)))]))
    prompt.freeze()
    for step in range(8):
        views = [View([prompt, *history, desks[1 - i], desks[i]]) for i in range(2)]
        for _ in range(3):
            plan = ledger.play(Step([Row(view, (1,)) for view in views]))
        assert len(plan.reads.row) == 6  # for each row: history, other desk, own desk
        shared = prompt.num_tokens + sum(block.num_tokens for block in history)
        desks_in_use = sum(desk.num_tokens for desk in desks)
        assert plan.num_keys_read == 2 * (shared + desks_in_use)
        assert plan.num_keys_loaded == shared + desks_in_use
        worker = step % 2
        history.append(desks[worker].freeze())
        desks[worker] = Block(f"{'ab'[worker]} {step + 2}")


@pytest.mark.parametrize("is_planned_ahead", [True, False])
def test_compaction_waits_for_a_plan_that_has_the_time(is_planned_ahead: bool) -> None:
    """For one that is made ahead, and no longer than until the next one; all reads are true meanwhile."""
    ledger = Ledger(PagePool(200, 4))
    pool, planner = ledger.planner.pool, ledger.planner
    planner.joins_ahead = True
    prompt, finished, desk = Block("prompt"), Block("finished"), Block("desk")
    ledger.play(Step([Row(View([prompt]), (1,) * 9), Row(View([prompt, finished]), (2,) * 3)]))
    prompt.freeze()
    finished.freeze()
    view = View([prompt, finished, desk])
    assert len(ledger.play(Step([Row(view, (3, 3))])).reads.row) == 3
    assert (pool.num_joined, ledger.moves) == (0, [])
    if is_planned_ahead:
        ahead = planner.plan_ahead(Step([Row(view, (4,))]), {})
        assert ahead is not None
        assert len(ahead.reads.row) == 2
        assert pool.num_joined == 1
    assert len(ledger.play(Step([Row(view, (4,))])).reads.row) == 2
    assert (pool.num_joined, len(ledger.moves)) == (1, 1)
    other = View([prompt, finished, Block("other")])
    assert len(ledger.play(Step([Row(other, (5,))])).reads.row) == 2, "its trunk is known"
    assert pool.num_joined == 1


@pytest.mark.parametrize("joins_ahead", [True, False])
def test_a_desk_that_was_filled_elsewhere_is_not_read(joins_ahead: bool) -> None:
    """Neither by rows that are laid out one by one, nor by rows that are alike."""
    ledger = Ledger(PagePool(200, 4))
    ledger.planner.joins_ahead = joins_ahead
    prompt, *desks = (Block(name) for name in ("prompt", "a", "b"))
    ledger.play(Step([Row(View([prompt]), (1,) * 9)]))
    prompt.freeze()
    desks[1].tokens.extend([2] * 3)
    views = [View([prompt, *desks[::-1]]), View([prompt, *desks])]
    with pytest.raises(InvalidRequest, match="'b' holds 3 tokens, and this engine was fed 0"):
        ledger.planner.plan(Step([Row(view, (3, 3)) for view in views]))
    assert [desk.num_tokens for desk in desks] == [0, 3]


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("count", [1, 3])
def test_tokens_added_by_hand_to_a_block_that_is_read_are_noticed(size: int, count: int) -> None:
    """Though its view is known, and plans follow one another: there are no keys of them."""
    ledger = Ledger(PagePool(100, 4))
    prompt, own = Block("prompt"), Block("own")
    view = View([prompt, own])
    ledger.play(Step([Row(View([prompt]), (1, 2, 3)), Row(view, (4,))]))
    for _ in range(count):
        ledger.play(Step([Row(view, (5,) * size)]))
    prompt.tokens.append(6)
    step = Step([Row(view, (7,) * size)])
    for plan in (ledger.planner.plan, lambda step: ledger.planner.plan_ahead(step, {})):
        with pytest.raises(
            InvalidRequest, match="'prompt' holds 4 tokens, and this engine was fed 3"
        ):
            plan(step)
    assert own.num_tokens == 1 + count * size
    del prompt.tokens[3:]
    ledger.play(step)


@settings(max_examples=examples(120, of=300), deadline=None)
@given(seed=st.integers(0, 2**32), joins_ahead=st.booleans())
@example(seed=164, joins_ahead=True)
def test_random_teams(seed: int, joins_ahead: bool) -> None:
    """Views that differ in the places of some desks are made from each other; blocks may stand twice, and beside each other.

    In the example one row has a finished block where another one has a block that grows.
    """
    rng = random.Random(seed)
    ledger = Ledger(PagePool(4000, 4))
    ledger.planner.joins_ahead = joins_ahead
    prompt, header, marker, nothing = (Block(name) for name in ("prompt", "header", "marker", ""))
    for block, size in ((prompt, 9), (header, 3), (marker, 2)):
        ledger.play(Step([Row(View([block]), (1,) * size)]))
        block.freeze()
    nothing.freeze()
    history: list[Block] = []
    finished = [nothing]  # read at any place, or at none
    desks = [Block(f"desk {index}") for index in range(rng.randint(3, 6))]
    for _ in range(rng.randint(3, 7)):
        views = []
        count = rng.randint(1, 3)
        for own in desks:
            others = rng.choices([*(d for d in desks if d is not own), *finished[-2:]], k=count)
            items: list[Item] = [block for other in others for block in (other, marker)]
            if rng.random() < 0.1:
                items = [Lanes([[other] for other in dict.fromkeys(others)])]
            views.append(View([prompt, *history, *items, header, own]))
        rng.shuffle(views)
        for _ in range(rng.randint(1, 4)):
            step = Step([Row(view, (1,) * rng.choice([1, 1, 1, 3])) for view in views])
            if joins_ahead and rng.random() < 0.5:
                ledger.planner.plan_ahead(step, {})
            ledger.play(step)
        for index, desk in enumerate(desks):
            if rng.random() < 0.3:
                (history if rng.random() < 0.6 else finished).append(desk.freeze())
                desks[index] = Block()


class BothWays(Planner):
    """Lays views that are alike out as one matrix, and reader by reader too, and compares."""

    num_alike = num_refused = 0

    def _laid_alike(self, step: Step, growth: Mapping[Block, int]) -> Any:
        had = self._has_waiting
        if (laid := super()._laid_alike(step, growth)) is None:
            self.num_refused += 1
            return None
        self.num_alike += 1
        was_waiting, self._has_waiting = self._has_waiting, had
        number, joined = self._number, self.pool.num_joined
        known, self._trunks = self._trunks, Trunks()  # as it knows them from plans before
        self._trunks._known = known._known.copy()
        self._number += 1  # as it is when reads are made
        readers = self._prepare_all(step)
        views = [row.view for row in step.rows]
        self._read_all(list(zip(readers, views, strict=True)), growth)
        other = self._laid(readers)
        self._number, self._trunks = number, known
        for view in views:
            view.notes.clear()
        assert self.pool.num_joined == joined, "nothing is moved while the device waits"
        assert self._has_waiting == was_waiting
        assert laid.table.tolist() == other.table.tolist()
        assert not laid.ages.any()
        assert not other.ages.any()
        assert laid.num_reads.tolist() == other.num_reads.tolist()
        assert laid.growth.tolist() == other.growth.tolist()
        assert all(laid.strips[name] is other.strips[name] for name in laid.table[:, 0].tolist())
        return laid


@settings(max_examples=examples(120, of=300), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_teams_whose_steps_end_are_laid_out_as_one(seed: int) -> None:
    """Random teams, workers who come, leave and pause; markers with copies and without, headers that grow and do not."""
    rng = random.Random(seed)
    ledger = Ledger(PagePool(rng.choice([60, 4000]), rng.choice([1, 4, 16])))
    planner = ledger.planner = BothWays(ledger.planner.pool, rng.choice([None, 600]))
    planner.joins_ahead = True
    prompt, others, own, marker = (Block(name) for name in ("prompt", "others", "own", "marker"))
    desks = [Block() for _ in range(rng.randint(2, 6))]
    history: list[Block] = []
    layout = rng.choice([combined, combined, interleaved])
    opening = [Row(View([prompt]), (1,) * 9)]
    opening += [
        Row(View([prompt, block]), (1,) * rng.randint(1, 5)) for block in (others, own, marker)
    ]
    feeds = [rng.randint(1, 9) for _ in desks]
    ends = True
    try:
        for _ in range(rng.randint(5, 25)):
            if ends:
                cast = Cast(prompt, others, own, marker, tuple(desks), tuple(history))
                views = [layout(cast, worker) for worker in range(len(desks))]
            present = [w for w in range(len(desks)) if feeds[w] > 1 or rng.random() < 0.95]
            rows = [Row(views[w], (1,) * feeds[w]) for w in present]
            if not (rows := [*opening, *rows]):
                continue
            step = Step(rows)
            if not ends and rng.random() < 0.5:
                planner.plan_ahead(step, {})
            ledger.play(step)
            for block in (prompt, own, marker) if opening else ():
                block.freeze()
            if rng.random() < 0.1:
                others.freeze()
            opening, feeds = [], [1] * len(desks)
            if rng.random() < 0.7:  # the pass behind is expected to be the same once more
                planner.plan_ahead(Step(Row(views[w], (1,)) for w in present or [0]), {})
                ledger.planner.pool.make_moves(ledger.move)
            ended = [w for w in range(len(desks)) if rng.random() < 0.15]
            for worker in ended:
                history.append(desks[worker].freeze())
                desks[worker] = Block()
                feeds[worker] = rng.choice([1, 3, 5])
            if ends := bool(ended) or rng.random() < 0.03:
                desks += [Block() for _ in range(rng.random() < 0.1)]
                feeds += [2] * (len(desks) - len(feeds))
    except (OutOfMemory, ContextTooLong):
        return


def test_most_teams_are_laid_out_as_one() -> None:
    """And a team with a row of another kind beside it is not."""
    pool = PagePool(400, 4)
    ledger = Ledger(pool)
    planner = ledger.planner = BothWays(pool)
    planner.joins_ahead = True
    cast = Cast(Block(), Block(), Block(), Block(), desks=tuple(Block() for _ in range(5)))
    blocks = (cast.prompt, cast.others_header, cast.own_header, cast.marker)
    ledger.play(Step(Row(View([block]), (1,) * 5) for block in blocks))
    for block in blocks:
        block.freeze()
    for worker in (0, 3, 4, 1):
        views = [combined(cast, index) for index in range(5)]
        ledger.play(Step(Row(view, (2, 2, 2)) for view in views))
        assert planner.plan_ahead(Step(Row(view, (2,)) for view in views), {}) is not None
        pool.make_moves(ledger.move)
        finished = cast.desks[worker].freeze()
        desks = (*cast.desks[:worker], Block(), *cast.desks[worker + 1 :])
        cast = replace(cast, desks=desks, history=(*cast.history, finished))
    assert planner.num_alike == 3, "all but the first: until then no beginning of theirs is known"
    assert pool.num_joined >= 3, "finished desks were moved by the plans behind"
    before = planner.num_refused
    rows = [Row(combined(cast, index), (2, 2, 2)) for index in range(5)]
    ledger.play(Step([*rows, Row(View([Block()]), (2,))]))
    assert planner.num_refused == before + 1


@pytest.mark.parametrize("has_header", [False, True])
def test_finished_blocks_that_only_seem_to_lie_in_one_piece_are_read_apart(
    has_header: bool,
) -> None:
    """One ends on its strip where the next begins on another; and one behind another, with a header between them."""
    pool = PagePool(400, 4)
    ledger = Ledger(pool)
    planner = ledger.planner = BothWays(pool)
    prompt, first, alike, behind, header, *desks = (Block() for _ in range(7))
    for block, size in ((prompt, 9), (first, 5), (alike, 5), (behind, 3), (header, 2)):
        ledger.play(Step([Row(View([block]), (1,) * size)]))
        if block is not header:
            block.freeze()
    for line in ([first, behind], [prompt]):
        ledger.play(Step([Row(View([*line, Block()]), (2,))]))
    assert pool.place(behind).strip is pool.place(first).strip
    planner.joins_ahead = True
    between = [first, header, behind] if has_header else [alike, behind]
    views = [View([prompt, *between, *order]) for order in (desks, desks[::-1])]
    ledger.play(Step(Row(view, (3, 3)) for view in views))
    assert planner.num_alike == 1


def test_views_that_are_taken_up_again_behind_rows_laid_out_as_one() -> None:
    """Reads of their rows are made anew: the desks have grown meanwhile, over other views."""
    pool = PagePool(400, 4)
    ledger = Ledger(pool)
    planner = ledger.planner = BothWays(pool)
    planner.joins_ahead = True
    prompt, one, two = (Block() for _ in range(3))
    ledger.play(Step([Row(View([prompt]), (1,) * 9)]))
    prompt.freeze()
    before, behind = ([View([prompt, one, two]), View([prompt, two, one])] for _ in range(2))
    ledger.play(Step(Row(view, (2,)) for view in before))
    ledger.play(Step([Row(View([Block()]), (3,))]))
    ledger.play(Step(Row(view, (4, 4)) for view in behind))
    assert planner.num_alike == 1
    ledger.play(Step(Row(view, (5,)) for view in before))


def test_what_lies_right_behind_the_trunk_is_read_with_it() -> None:
    """The own header was moved to the end of the history, which new views go on from."""
    pool = PagePool(400, 4)
    ledger = Ledger(pool)
    planner = ledger.planner = BothWays(pool)
    planner.joins_ahead = True
    cast = Cast(Block(), Block(), Block(), Block(), desks=(Block(), Block()))
    ledger.play(Step(Row(View([block]), (1,) * 5) for block in (cast.prompt, cast.own_header)))
    cast.prompt.freeze()
    cast.own_header.freeze()
    for _ in range(3):
        views = [interleaved(cast, index) for index in range(2)]
        plan = ledger.play(Step(Row(view, (2, 2)) for view in views))
        assert planner.plan_ahead(Step(Row(view, (2,)) for view in views), {}) is not None
        pool.make_moves(ledger.move)
        cast = replace(cast, desks=(Block(), Block()), last=cast.past)
    assert planner.num_alike == 2
    assert num_reads(plan) == [2, 2], "prompt and header are one piece"


@pytest.mark.parametrize("count", [1, 2, 3])
def test_finished_blocks_behind_a_trunk_are_all_read_with_it(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lie in one piece with it, and the longer trunk has given way to those of other views under the same prompt."""
    monkeypatch.setattr("manyhands.cache.trunks._MOST", 1)
    pool = PagePool(400, 4)
    ledger = Ledger(pool)
    planner = ledger.planner = BothWays(pool)
    prompt, other, *line = finished = [Block() for _ in range(2 + count)]
    ledger.play(Step(Row(View([block]), (1,) * 5) for block in finished))
    for block in finished:
        block.freeze()
    for behind in (line, [other, *line[:1]]):
        ledger.play(Step([Row(View([prompt, *behind, Block()]), (2,))]))
    desks = [Block(), Block()]
    planner.joins_ahead = True
    views = [View([prompt, *line, *order]) for order in (desks, desks[::-1])]
    plan = ledger.play(Step(Row(view, (2, 2)) for view in views))
    assert planner.num_alike == 1
    assert num_reads(plan) == [3, 3], "all that is finished is one piece"


def test_control_a_matrix_that_forgets_copies_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Desks would be read without their markers' copies: the plan is another one."""
    monkeypatch.setattr(planning, "copied_by", lambda piece, numbers: (-1, 0))
    with pytest.raises(AssertionError):
        test_most_teams_are_laid_out_as_one()


def test_views_that_differ_in_places_of_a_block_that_stands_twice() -> None:
    """Neither place is that of the other view."""
    ledger = Ledger(PagePool(400, 4))
    first, second, third = (Block(name) for name in "abc")
    for block, size in ((first, 2), (second, 3), (third, 4)):
        ledger.play(Step([Row(View([block]), (1,) * size)]))
    views = View([third, second, second, first]), View([first, first, second, third])
    ledger.play(Step([Row(view, (1,)) for view in views]))


def test_of_the_views_of_a_team_one_is_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others follow from it: each has its own desk last, and in its place there the one before."""
    ledger = Ledger(PagePool(400, 4))
    walked: list[View] = []
    step_by_step = Walk._step_by_step
    monkeypatch.setattr(
        Walk, "_step_by_step", lambda walk, view: walked.append(view) or step_by_step(walk, view)
    )
    prompt, others, own, marker = (Block(name) for name in ("prompt", "others", "own", "marker"))
    for block in (prompt, others, own, marker):
        ledger.play(Step([Row(View([block]), (1,) * 5)]))
        block.freeze()
    desks = tuple(Block(f"desk {index}") for index in range(6))
    cast = Cast(prompt, others, own, marker, desks)
    for history in ((), (desks[2],)):
        views = [combined(replace(cast, history=history), worker) for worker in range(6)]
        ledger.play(Step([Row(view, (2,)) for view in views]))  # the first may move blocks
        walked.clear()
        views = [combined(replace(cast, history=history), worker) for worker in range(6)]
        ledger.play(Step([Row(view, (2,)) for view in views]))
        assert walked == views[:1]
        desks[2].freeze()
        cast = replace(cast, desks=(*desks[:2], Block(), *desks[3:]))
    # A control: where all are frozen, they are walked.
    for desk in desks:
        desk.freeze()
    walked.clear()
    views = [View([prompt, *desks[:at], *desks[at + 1 :], Block()]) for at in range(3)]
    ledger.play(Step([Row(view, (2,)) for view in views]))
    assert {*views} <= {*walked}


def test_a_step_that_ends_costs_no_walk_over_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """All views of a team are new then; of what they begin with, only what is new is looked up."""
    pool = PagePool(400, 4)
    ledger = Ledger(pool)
    prompt, marker = Block("prompt"), Block("marker")
    ledger.play(Step([Row(View([prompt]), (1, 2)), Row(View([prompt, marker]), (3,))]))
    prompt.freeze()
    marker.freeze()
    history: list[Block] = []
    looked_up = [0]
    place = pool.place

    def counted(block: Block) -> Place:
        looked_up[0] += 1
        return place(block)

    monkeypatch.setattr(pool, "place", counted)
    costs = []
    for _ in range(30):
        desks = [Block(f"desk {n}") for n in range(6)]
        views = [
            View([prompt, *history, marker, *(d for d in desks if d is not own), own])
            for own in desks
        ]
        ledger.play(Step([Row(view, (4, 5)) for view in views]))
        looked_up[0] = 0
        ledger.play(Step([Row(view, (6,)) for view in views]))
        costs.append(looked_up[0])
        history += [desk.freeze() for desk in desks]
        again = [View([prompt, *history, marker, Block("next")]) for _ in desks]
        looked_up[0] = 0
        ledger.planner.plan(Step([Row(view, (7,)) for view in again]))
        ledger.planner.pool.take_back()
        costs.append(looked_up[0])
    assert costs[-1] <= costs[5] + 6, "it grows with the history"


def test_control_without_trunks_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trunks, "add", lambda trunks, trunk: None)
    with pytest.raises(AssertionError, match="grows with the history"):
        test_a_step_that_ends_costs_no_walk_over_the_history(monkeypatch)


def test_integers_of_two_workers_by_hand() -> None:
    ledger = Ledger(PagePool(8, 2))
    prompt, alice, bob = Block("prompt"), Block("alice"), Block("bob")
    plan = ledger.play(
        Step(
            [
                Row(View([prompt]), (5, 6, 7)),
                Row(View([prompt, bob, alice]), (8,)),
                Row(View([prompt, alice, bob]), (9, 10)),
            ]
        )
    )
    assert plan.row_indptr.tolist() == [0, 3, 4, 6]
    assert plan.positions.tolist() == [0, 1, 2, 5, 4, 5]
    assert plan.offsets.tolist() == [0, 1, 2, 0, 0, 1]
    assert plan.slots.tolist() == [0, 1, 2, 4, 6, 7]
    assert [pages.tolist() for pages in plan.reads.pages] == [[0, 1], [3], [2]]
    assert plan.reads.strip_indptr.tolist() == [0, 3, 5, 7]
    assert plan.reads.row.tolist() == [0, 1, 2, 1, 2, 1, 2]
    assert plan.reads.base.tolist() == [0, 0, 0, 3, 4, 5, 3]
    assert plan.reads.low.tolist() == [0] * 7
    assert plan.reads.high.tolist() == [3, 3, 3, 2, 2, 1, 1]
    assert plan.num_keys_read == 3 + 6 + 6
    assert plan.num_keys_loaded == 3 + 1 + 2
    assert ledger.moves == []


@pytest.mark.parametrize("sizes", [(), (2,), (2, 0, 3), (0, 0)])
def test_page_tables_stand_one_behind_another(sizes: tuple[int, ...]) -> None:
    apart = [np.arange(size) + 10 * strip for strip, size in enumerate(sizes)]
    tables = PageTables.of(apart)
    assert len(tables) == len(sizes)
    wanted = [table.tolist() for table in apart]
    assert [table.tolist() for table in tables] == wanted
    assert [tables[strip].tolist() for strip in range(len(tables))] == wanted
    assert tables.joined.tolist() == [*chain.from_iterable(wanted)]
    assert tables.indptr.tolist() == [0, *accumulate(sizes)]
    assert tables.joined.dtype == tables.indptr.dtype == np.int64


def test_context_limit_is_told_before_anything_changes() -> None:
    pool = PagePool(16, 2)
    ledger = Ledger(pool, max_positions=6)
    prompt, one, other = Block("prompt"), Block("one"), Block("other")
    ledger.play(Step([Row(View([prompt]), (1, 2, 3, 4))]))
    free = pool.num_free_pages
    ledger.play(Step([Row(View([prompt, one]), (5, 6))]))  # exactly six
    used = pool.num_free_pages
    assert used == free - 1
    with pytest.raises(ContextTooLong) as caught:
        ledger.planner.plan(Step([Row(View([other]), (1,)), Row(View([prompt, one]), (7,))]))
    assert str(caught.value) == (
        "the view of the block 'one' would be 7 tokens long; the model reaches 6"
    )
    assert caught.value.hint == "Use a shorter problem, a smaller budget, or fewer workers."
    assert pool.num_free_pages == used
    assert (one.num_tokens, other.num_tokens) == (2, 0)
    ledger.play(Step([Row(View([other]), (1,))]))


def test_a_reader_beyond_the_limit_stops_the_step_of_a_shorter_one() -> None:
    """Tokens fed to others count: all rows see each other in the very pass."""
    ledger = Ledger(PagePool(16, 2), max_positions=4)
    one, other = Block("one"), Block("other")
    with pytest.raises(ContextTooLong, match="view of the block 'other' would be 5 "):
        ledger.planner.plan(Step([Row(View([one]), (1, 2, 3)), Row(View([one, other]), (4, 5))]))


def test_moves_of_a_refused_pass_come_with_the_next_one() -> None:
    pool = PagePool(6, 2)
    ledger = Ledger(pool)
    first, second, own = Block("first"), Block("second"), Block("own")
    ledger.play(Step([Row(View([first]), (1, 2, 3)), Row(View([second]), (4, 5))]))
    first.freeze(), second.freeze()
    view = View([first, second, own])
    with pytest.raises(OutOfMemory):
        ledger.planner.plan(Step([Row(view, tuple(range(9)))]))
    plan = ledger.play(Step([Row(view, (6,))]))
    assert [move.shift for move in ledger.moves] == [3]
    assert len(plan.reads.row) == 2


def test_plans_are_64_bit_integers() -> None:
    plan = Planner(PagePool(4)).plan(Step([Row(View([Block()]), (1, 2))]))
    arrays = [plan.token_ids, plan.row_indptr, plan.positions, plan.offsets, plan.slots]
    arrays += [plan.reads.row, plan.reads.base, plan.reads.low, plan.reads.high]
    arrays += [plan.reads.strip_indptr, *plan.reads.pages, plan.last]
    assert {array.dtype for array in arrays} == {np.dtype(np.int64)}


def test_the_same_blocks_behind_other_beginnings_are_looked_up_for_each() -> None:
    """Two runs in one step, whose workers share two desks; their prompts lie elsewhere."""
    ledger = Ledger(PagePool(64, 4))
    prompts, desks = [Block("one"), Block("other")], [Block("a"), Block("b")]
    for block in (*prompts, *desks):
        ledger.play(Step([Row(View([block]), (1, 2, 3, 4, 5))]))
    for prompt in prompts:
        prompt.freeze()
    first, second = desks
    views = [View([prompts[0], second, first]), View([prompts[1], first, second])]
    plan = ledger.play(Step([Row(view, (7,)) for view in views]))
    assert len(plan.reads.pages) == 4


def a_team(workers: int) -> Cast:
    """A cast with texts of its own for each part; nothing of it is fed."""
    names = ("prompt", "others' header", "own header", "marker")
    prompt, others, own, marker = (Block(name) for name in names)
    return Cast(prompt, others, own, marker, tuple(Block(f"desk {w}") for w in range(workers)))


def begun(ledger: Ledger, cast: Cast) -> list[View]:
    """A team after the first pass of its workers: prompt, headers and marker were fed before, and are finished."""
    texts = ((cast.prompt, 9), (cast.others_header, 3), (cast.own_header, 3), (cast.marker, 2))
    ledger.play(Step([Row(View([block]), (1,) * size) for block, size in texts]))
    for block in (cast.prompt, cast.own_header, cast.marker):
        block.freeze()
    views = seated(cast)
    ledger.play(Step([Row(view, (2, 2)) for view in views]))
    return views


def seated(cast: Cast) -> list[View]:
    """New views of all workers."""
    return [combined(cast, worker) for worker in range(len(cast.desks))]


def a_long_run(*, goes_on: bool) -> list[Plan]:
    """Plans of a team whose steps end, now and then two at once; `goes_on`: each past goes on from the one before."""
    ledger = Ledger(PagePool(800, 4))
    ledger.planner.joins_ahead = True
    cast, rng, plans = a_team(4), random.Random(2), list[Plan]()
    views = begun(ledger, cast)
    for _ in range(40):
        ended = rng.sample(range(4), rng.choice((0, 1, 1, 2)))
        feeds = [(5, 6, 7) if worker in ended else (8,) for worker in range(4)]
        if ended:
            history = (*cast.history, *(cast.desks[worker].freeze() for worker in ended))
            desks = [Block() if w in ended else desk for w, desk in enumerate(cast.desks)]
            last = cast.past if goes_on else None
            cast = replace(cast, history=history, desks=tuple(desks), last=last)
            views = [combined(cast, worker) for worker in range(4)]
        rows = [Row(view, feed) for view, feed in zip(views, feeds, strict=True)]
        plans.append(ledger.play(Step(rows)))
    return plans


def test_a_past_that_goes_on_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are those of views that share no beginning, and no block of a known history is looked at."""
    compared = list[int]()
    num_shared = trunks._num_shared

    def counted(blocks: Sequence[Any], others: Sequence[Any]) -> int:
        compared.append(min(len(blocks), len(others)))
        return num_shared(blocks, others)

    monkeypatch.setattr(trunks, "_num_shared", counted)
    whole = a_long_run(goes_on=False)
    assert max(compared) > 30, "the control: it grows with the history"
    compared.clear()
    assert [as_lists(plan) for plan in a_long_run(goes_on=True)] == [as_lists(p) for p in whole]
    assert max(compared, default=0) <= 2


def as_lists(plan: Plan) -> list[Any]:
    """The integers of a plan."""
    reads = plan.reads
    arrays = (plan.token_ids, plan.positions, plan.slots, reads.row, reads.base, reads.high)
    return [*(array.tolist() for array in arrays), [pages.tolist() for pages in reads.pages]]


def num_reads(plan: Plan) -> list[int]:
    """How many pieces each row reads."""
    counts: list[int] = np.bincount(plan.reads.row).tolist()
    return counts


# -- some rows, and a copy of what they read -------------------------------------------------------


def random_plans(seed: int, page_size: int) -> Iterator[tuple[random.Random, Plan]]:
    rng = random.Random(seed)
    ledger = Ledger(PagePool(4000 // page_size, page_size))
    blocks: list[Block] = []
    views: list[View] = []
    for _ in range(rng.randint(2, 8)):
        yield rng, ledger.play(random_step(rng, blocks, views))
        for block in blocks:
            if rng.random() < 0.3:
                block.freeze()


def slots_met(plan: Plan, row: int) -> list[tuple[int, int]]:
    """Of a row the keys that its reads name: where each stands in the view, and its slot."""
    reads, size = plan.reads, plan.page_size
    found: list[tuple[int, int]] = []
    for strip, (begin, end) in enumerate(pairwise(reads.strip_indptr.tolist())):
        for read in range(begin, end):
            if reads.row[read] == row:
                keys = np.arange(reads.low[read], reads.high[read])
                slots = reads.pages[strip][keys // size] * size + keys % size
                found += zip((reads.base[read] + keys).tolist(), slots.tolist(), strict=True)
    return sorted(found)


@settings(max_examples=examples(60, of=300), deadline=None)
@given(seed=st.integers(0, 2**32), page_size=st.sampled_from([1, 3, 16]))
def test_some_rows_alone_read_and_write_what_they_did(seed: int, page_size: int) -> None:
    for rng, plan in random_plans(seed, page_size):
        rows = rng.sample(range(plan.num_rows), rng.randint(1, plan.num_rows))
        part, tokens = of_rows(plan, rows)
        spans = [np.arange(plan.row_indptr[row], plan.row_indptr[row + 1]) for row in rows]
        assert tokens.tolist() == np.concatenate(spans).tolist()
        assert np.diff(part.row_indptr).tolist() == [len(span) for span in spans]
        for name in ("token_ids", "positions", "offsets", "slots"):
            assert (getattr(part, name) == getattr(plan, name)[tokens]).all()
        for index, row in enumerate(rows):
            assert slots_met(part, index) == slots_met(plan, row)
        assert (np.diff(part.reads.strip_indptr) > 0).all(), "no strip is left that nothing reads"
        assert part.own_strip is not None
        for row, strip in enumerate(part.own_strip.tolist()):
            mine = slice(*part.row_indptr[row : row + 2])
            pages = part.reads.pages[strip][part.offsets[mine] // page_size]
            assert (pages * page_size + part.offsets[mine] % page_size == part.slots[mine]).all()
        assert (part.lockstep, part.growth) == (None, None)
        assert {array.dtype for array in (tokens, part.row_indptr, part.reads.row)} == {
            np.dtype(np.int64)
        }


def test_guesses_go_with_their_rows() -> None:
    ledger = Ledger(PagePool(40, 4))
    step = Step(Row(View([Block()]), tuple(range(n))) for n in (3, 1, 5))
    plan = replace(ledger.play(step), num_drafted=np.array([2, 0, 3]))
    part, tokens = of_rows(plan, [2, 0])
    assert tokens[part.heads].tolist() == [5, 0, *range(6, 9), 1, 2]
    few, _ = of_rows(plan, [2, 0], most=2)
    assert few.heads.tolist() == [1, 3]


@settings(max_examples=examples(60, of=300), deadline=None)
@given(seed=st.integers(0, 2**32), page_size=st.sampled_from([1, 3, 16]))
def test_a_copy_of_what_is_read(seed: int, page_size: int) -> None:
    """Each page once, and no page outside of what a strip's rows read."""
    for _, plan in random_plans(seed, page_size):
        copy, pages = over_copied_pages(plan)
        assert len(set(pages.tolist())) == len(pages)
        for row in range(plan.num_rows):
            theirs = slots_met(copy, row)
            back = [(at, pages[s // page_size] * page_size + s % page_size) for at, s in theirs]
            assert sorted(back) == slots_met(plan, row)
        most = 0
        for strip, (begin, end) in enumerate(pairwise(plan.reads.strip_indptr.tolist())):
            low, high = plan.reads.low[begin:end].min(), plan.reads.high[begin:end].max()
            most += -(-high // page_size) - low // page_size
            # Keys that a backend loads between two reads lie in the copy where they lie in the memory.
            between = np.arange(low // page_size, -(-high // page_size))
            assert (
                pages[copy.reads.pages[strip][between]] == plan.reads.pages[strip][between]
            ).all()
        assert len(pages) <= most


def test_pages_that_follow_each_other_do_so_in_the_copy() -> None:
    ledger = Ledger(PagePool(40, 4))
    history, own = Block(), Block()
    ledger.play(Step([Row(View([Block()]), (1,)), Row(View([history]), tuple(range(17)))]))
    plan = ledger.play(Step([Row(View([history, own]), tuple(range(6)))]))
    copy, pages = over_copied_pages(plan)
    assert sorted(pages.tolist()) == sorted({s // 4 for _, s in slots_met(plan, 0)})
    assert copy.reads.pages[0][:5].tolist() == [0, 1, 2, 3, 4]
