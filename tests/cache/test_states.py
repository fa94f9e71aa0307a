"""Which slot holds the state of which text: integers alone, with passes that succeed, fail and are struck."""

from __future__ import annotations

import pytest

from manyhands.cache.block import Block
from manyhands.cache.journal import Journal
from manyhands.cache.states import EMPTY, RowStates, StateBook
from manyhands.cache.step import Row, Step
from manyhands.cache.view import Lanes, View
from manyhands.errors import InvalidRequest, OutOfMemory


def feed(book: StateBook, *rows: tuple[View, int], fails: bool = False) -> RowStates:
    """A pass that feeds so many tokens to each view, and what it was told."""
    step = Step([Row(view, (1,) * size) for view, size in rows])
    taken = book.take(step, lambda block: (block.num_tokens,))
    for row in step.rows if not fails else ():
        row.view.own.tokens.extend(row.feed)
    return taken


def test_a_fork_reads_the_state_behind_the_prompt_and_leaves_it() -> None:
    book, prompt, a, b = StateBook(8), Block(), Block(), Block()
    first = feed(book, (View([prompt]), 4))
    forks = View([prompt, a]), View([prompt, b])
    both = feed(book, (forks[0], 2), (forks[1], 1))
    assert first.sources == (EMPTY,)
    assert both.sources == first.targets * 2
    assert len({*first.targets, *both.targets}) == 3
    assert feed(book, (forks[0], 1), (forks[1], 1)).sources == both.targets
    assert book.slot(prompt) == first.targets[0]


def test_forks_of_the_pass_that_feeds_the_prompt_come_in_a_second_wave() -> None:
    book, prompt, a, b = StateBook(8), Block(), Block(), Block()
    taken = feed(book, (View([prompt, a]), 2), (View([prompt]), 4), (View([prompt, b]), 2))
    assert taken.sources == (taken.targets[1], EMPTY, taken.targets[1])
    assert taken.waves() == [{4: [1]}, {2: [0, 2]}]


def test_a_pass_that_fails_has_taken_nothing() -> None:
    book, text = StateBook(2), View([Block()])
    feed(book, (text, 3))
    for _ in range(5):
        failed = feed(book, (text, 2), fails=True)
    again = feed(book, (text, 1))
    assert again.sources == failed.sources
    assert book.slot(text.own) == again.targets[0]
    feed(book, (text, 1))
    assert book.num_free == 0, "one state, and the one before it until the next pass"


def test_the_state_before_a_step_stays_while_its_parts_are_fed() -> None:
    book, text = StateBook(8), View([Block()])
    feed(book, (text, 3))
    before = book.slot(text.own)
    for _ in range(4):  # parts of one step
        book.take(Step([Row(text, (1, 1))]), lambda block: (3,))
        text.own.tokens.extend((1, 1))
    assert book.num_free == 8 - 3
    del text.own.tokens[3:]  # the step is taken back
    assert book.slot(text.own) == before


def test_a_slot_that_was_to_follow_and_has_another_text_by_now_is_no_target() -> None:
    """A run that comes back takes it between two passes of the same rows."""
    book, own, other = StateBook(6), Block(), Block()
    view = View([own])
    before = [feed(book, (view, 1)) for _ in range(2)][-1]
    (slot,) = before.following
    other.tokens.extend((1, 2))
    book.hold(other, slot)
    now = feed(book, (view, 1))
    assert now.sources == before.targets
    assert slot not in {*now.targets, *now.following}
    assert not now.goes_on(before)
    assert book.slot(other) == slot


def test_slots_that_were_to_follow_are_forgotten_with_the_next_pass() -> None:
    book, blocks = StateBook(12), [Block() for _ in range(3)]
    feed(book, *((View([block]), 1) for block in blocks))
    assert len(book._meant) == 3
    feed(book, (View(blocks[:1]), 1))
    assert len(book._meant) == 1


def test_which_pass_goes_on_as_was_meant() -> None:
    before = RowStates((0, 1, 2), (1, 2), (3, 4), following=(5, 6))
    assert RowStates((0, 1, 2), (3, 4), (5, 6)).goes_on(before)
    assert not RowStates((0, 1, 2), (3, 4), (5, 7)).goes_on(before), "into another slot"
    assert not RowStates((0, 1, 2), (1, 4), (5, 6)).goes_on(before), "from another text"
    assert not RowStates((0, 1), (3,), (5,)).goes_on(before), "a row has ended"


def test_slots_come_back_with_their_blocks() -> None:
    book, prompt, own = StateBook(3), Block(), Block()
    feed(book, (View([prompt]), 2))
    feed(book, (View([prompt, own]), 2))
    assert book.num_free == 1
    del own
    assert book.num_free == 2


def test_many_slots_are_made_free_without_counting_all_that_is_kept_behind_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No more is let go than is needed; and nothing is asked for once nothing goes."""
    kept: list[Block] = []
    book = StateBook(40, lambda: bool(kept) and kept.pop() is not None)
    for slot in range(1, 41):
        kept.append(filled := Block())
        filled.tokens.append(slot)
        book.hold(filled, slot)
    del filled
    counts: list[int] = []
    count = StateBook._used
    monkeypatch.setattr(StateBook, "_used", lambda each: counts.append(1) or count(each))
    assert book.make_room(30)
    assert (len(kept), book.num_free) == (10, 30)
    assert len(counts) <= 3
    assert not book.make_room(41)
    assert not kept


def test_nothing_is_let_go_for_slots_that_cannot_be_had() -> None:
    kept, live = [Block() for _ in range(4)], [Block() for _ in range(4)]
    book = StateBook(10, lambda: bool(kept) and kept.pop() is not None, lambda _: kept)
    for slot, filled in enumerate([*kept, *live], 1):
        filled.tokens.append(slot)
        book.hold(filled, slot)
    del filled
    assert not book.make_room(7)
    assert len(kept) == 4
    assert book.make_room(5)
    assert len(kept) == 1


def test_too_few_slots_are_said_and_kept_blocks_go_first() -> None:
    kept = [Block(), Block()]
    book = StateBook(3, lambda: bool(kept) and kept.pop() is not None)
    feed(book, (View([kept[0]]), 1), (View([kept[1]]), 1))
    texts = [(View([Block()]), 1) for _ in range(3)]
    feed(book, *texts)
    assert not kept
    with pytest.raises(OutOfMemory, match="this needs 1 more state, and 0 of 3"):
        feed(book, (View([Block()]), 1))


@pytest.mark.parametrize("lanes", [False, True])
def test_a_block_behind_another_text_is_refused(lanes: bool) -> None:
    book, prompt, a, b, join = StateBook(8), Block("p"), Block("a"), Block("b"), Block()
    feed(book, (View([prompt]), 2))
    feed(book, (View([prompt, a]), 1), (View([prompt, b]), 1))
    with pytest.raises(InvalidRequest, match=r"'[ab]' is read behind another text"):
        feed(book, (View([prompt, Lanes([[a], [b]]), join] if lanes else [prompt, a, b, join]), 1))
    feed(book, (View([prompt, a, join]), 1))


def test_a_text_before_a_block_that_grows_is_refused() -> None:
    book, prompt, own = StateBook(8), Block(), Block()
    views = View([prompt]), View([prompt, own])
    feed(book, (views[0], 2), (views[1], 1))
    with pytest.raises(InvalidRequest, match="behind another text"):
        feed(book, (views[0], 1), (views[1], 1))


def test_a_tail_has_the_state_of_the_whole_and_a_shorter_block_has_none() -> None:
    book, prompt, tail = StateBook(8), Block(), Block()
    feed(book, (View([prompt]), 5))
    tail.tokens.extend((1, 1))
    book.divided(prompt, tail)
    head = Block()
    feed(book, (View([head]), 3))
    forked = feed(book, (View([head, tail, Block()]), 1))
    assert forked.sources == (book.slot(prompt),)
    del prompt.tokens[4:]
    with pytest.raises(InvalidRequest, match="state behind token 4"):
        feed(book, (View([prompt]), 1))


def test_a_tail_is_read_behind_a_text_as_long_as_the_one_before_it() -> None:
    """Of what stands before a tail only the length is known at first."""
    book, prompt, tail = StateBook(8), Block(), Block("tail")
    feed(book, (View([prompt]), 5))
    tail.tokens.extend((1, 1))
    book.divided(prompt, tail)
    heads = Block(), Block()
    feed(book, (View([heads[0]]), 2), (View([heads[1]]), 3))
    with pytest.raises(InvalidRequest, match="'tail' is read behind another text"):
        feed(book, (View([heads[0], tail, Block()]), 1))
    feed(book, (View([heads[1], tail, Block()]), 1))


def test_the_state_of_a_length_that_no_block_has_is_forgotten() -> None:
    book, own = StateBook(8), Block()
    feed(book, (View([own]), 5))
    del own.tokens[4:]
    feed(book, (other := View([Block()]), 1))
    assert book.num_free == 8 - 1
    assert book.slot(other.own) is not None


@pytest.mark.parametrize(
    ("indptr", "sources", "targets", "said"),
    [
        ((0, 1, 2), (0,), (1, 2), "2 rows have 1 sources and 2 targets"),
        ((0, 1, 2), (0, 0), (1,), "2 rows have 2 sources and 1 targets"),
        ((0, 1, 1), (0, 0), (1, 2), "a row is fed nothing"),
        ((0, 1, 2), (0, 0), (1, 1), "two rows leave their state in one slot"),
        ((0, 1, 2), (0, 0), (1, EMPTY), r"slots \[0\] are read in this pass"),
        ((0, 1, 2), (0, 2), (1, 2), r"slots \[2\] are read in this pass"),
        ((0, 1, 2, 3), (2, 3, 1), (1, 2, 3), r"slots \[1, 2, 3\] are read in this pass"),
    ],
)
def test_rows_whose_states_cannot_be_made(
    indptr: tuple[int, ...], sources: tuple[int, ...], targets: tuple[int, ...], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        RowStates(indptr, sources, targets)


def struck(book: StateBook, block: Block, journal: Journal) -> None:
    with journal:
        book.evict([block], journal)
        raise KeyboardInterrupt


def test_what_is_evicted_frees_its_slot_and_can_be_held_again() -> None:
    book, text, journal = StateBook(4), View([Block()]), Journal()
    feed(book, (text, 3))
    before = book.slot(text.own)
    with pytest.raises(KeyboardInterrupt):
        struck(book, text.own, journal)
    assert book.slot(text.own) == before, "struck, it has not happened"
    with journal:
        book.evict([text.own], journal)
    assert book.num_free == 4
    (slot,) = book.free_slots(1)
    book.hold(text.own, slot)
    assert feed(book, (text, 1)).sources == (slot,)


def test_what_stands_before_a_renewed_block_is_noted_once_it_is_known() -> None:
    """It was fed in the pass that fed the block, too."""
    book, prompt, old, fresh = StateBook(8), Block(), Block(), Block()
    feed(book, (View([prompt]), 2))
    feed(book, (View([prompt, old]), 2))
    book.renewed(old, fresh)
    again = Block()
    views = View([again]), View([again, fresh])
    feed(book, (views[0], 2), (views[1], 1))
    feed(book, (views[1], 1))
    feed(book, (views[1], 1))
    with pytest.raises(InvalidRequest, match="behind another text"):
        feed(book, (View([prompt, fresh]), 1))


def test_an_empty_block_may_stand_elsewhere_and_is_known_by_its_name() -> None:
    book, prompt, other, own = StateBook(8), Block(), Block(), Block()
    feed(book, (View([prompt]), 2), (View([other]), 3))
    feed(book, (View([prompt, own]), 1))
    own.tokens.clear()
    feed(book, (View([other, own]), 1))
    feed(book, (View([other, own]), 1))


def test_texts_that_are_kept_without_a_state_are_not_looked_at() -> None:
    book = StateBook(4)
    kept = [Block() for _ in range(50)]
    for block in kept:
        block.tokens.append(1)
        book.hold(block.freeze(), 1)
        book.evict([block], Journal())
    feed(book, (view := View([Block()]), 1))
    assert len(book._current) == 1
    assert len(book._texts) == 51
    del kept, block
    feed(book, (view, 1))
    assert len(book._texts) == 1, "they are gone"
