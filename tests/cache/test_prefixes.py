"""The prefix tree: what is shared is found, written once, never read too early, and let go in order."""

from __future__ import annotations

import contextlib
import gc
import math
import weakref
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from manyhands.cache import prefix_nodes, prefixes
from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.places import Move
from manyhands.cache.planner import Planner
from manyhands.cache.prefix_nodes import Node, common_length
from manyhands.cache.prefixes import Lease, PrefixTree
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.errors import InvalidRequest
from tests.covers import examples, is_every_case
from tests.strikes import Place, Watch, first_and_last, strike_all

PAGE_SIZE = 2
Prompts = list[tuple[int, ...]]


class Machine:
    """An engine without a network: memory holds, slot by slot, the tokens a view led to there."""

    def __init__(
        self, num_pages: int = 200, max_tokens: int | None = None, num_states: int = 0
    ) -> None:
        self.pool = PagePool(num_pages, PAGE_SIZE, num_states=num_states)
        self.planner = Planner(self.pool)
        self.tree = PrefixTree(self.pool, max_tokens=max_tokens)
        self.memory: dict[int, tuple[int, ...]] = {}  # slot: all tokens up to the one written there
        self.num_fed = 0

    def move(self, moves: Sequence[Move]) -> None:
        for move in reversed(moves):  # all at once, so in any order
            for source, target in zip(move.sources.tolist(), move.targets.tolist(), strict=True):
                self.memory[target] = self.memory[source]

    def run(self, rows: list[Row]) -> None:
        """One pass over these rows."""
        if not rows:
            return
        plan = self.planner.plan(Step(rows))
        if self.pool.states is not None:
            self.pool.states.take(Step(rows), lambda each: (self.pool.before_step(each),))
        self.pool.make_moves(self.move)
        for row in rows:
            row.view.own.tokens.extend(row.feed)
            self.num_fed += len(row.feed)
        self.pool.keep()
        slots = iter(plan.slots.tolist())
        for row in rows:
            whole = tuple(t for block in row.view.blocks for t in block.tokens)
            for length in range(len(whole) - len(row.feed) + 1, len(whole) + 1):
                self.memory[next(slots)] = whole[:length]

    def read(self, lease: Lease, index: int) -> tuple[int, ...]:
        """The tokens of a prompt, checked key by key against what lies in memory."""
        whole: tuple[int, ...] = ()
        for block in lease.path(index):
            place = self.pool.place(block)
            slots = self.pool.slots(place.strip, place.offset, place.offset + block.num_tokens)
            for token, slot in zip(block.tokens, slots.tolist(), strict=True):
                whole += (token,)
                assert self.memory[slot] == whole
        return whole

    def write_behind(self, lease: Lease, index: int, *texts: tuple[int, ...]) -> None:
        """Blocks behind a prompt, one behind another, entered in the tree."""
        blocks: list[Block] = []
        for text in texts:
            blocks.append(Block())
            if text:
                self.run([Row(View((*lease.path(index), *blocks)), text)])
                blocks[-1].freeze()
        lease.enter(index, blocks)

    def prefill(self, prompts: Prompts, tenant: str | None = None) -> Lease:
        """A lease, with everything fed."""
        lease = self.tree.lease(prompts, tenant)
        assert lease is not None
        self.run(lease.rows(range(len(prompts)), 10**6))
        lease.settle()
        return lease


prompts = st.lists(st.lists(st.integers(0, 1), max_size=9).map(tuple), min_size=1, max_size=4)


class Trees(RuleBasedStateMachine):
    """Runs come, feed in chunks, wait for each other, are cancelled, and end, in any order."""

    num_states = 0

    def __init__(self) -> None:
        super().__init__()
        self.machine = Machine(num_pages=400, num_states=self.num_states)
        self.tree = self.machine.tree
        self.leases: list[tuple[Lease, Prompts]] = []

    @rule(prompts=prompts, tenant=st.sampled_from([None, "a"]))
    def come(self, prompts: Prompts, tenant: str | None) -> None:
        before = self.tree.num_pages_in_use
        need = self.tree.need(prompts, tenant)
        lease = self.tree.lease(prompts, tenant)
        if lease is None:
            assert self.tree.num_pages_in_use == before
            return
        assert self.tree.num_pages_in_use - before <= need.num_tokens // PAGE_SIZE + need.num_blocks
        self.leases.append((lease, prompts))

    @rule(chunks=st.lists(st.integers(0, 7), min_size=1, max_size=6))
    def one_pass(self, chunks: list[int]) -> None:
        """Everybody feeds what it may; what is said to be readable is readable after the pass."""
        rows, ready = [], []
        for (lease, prompts), chunk in zip(self.leases, chunks, strict=False):
            mine = lease.rows(range(len(prompts)), chunk)
            assert sum(len(row.feed) for row in mine) <= chunk
            rows += mine
            ready += [(lease, i, prompts[i]) for i in range(len(prompts)) if lease.is_ready(i)]
        owners = [row.view.own for row in rows]
        assert len(set(owners)) == len(owners), "two runs write to one block"
        self.machine.run(rows)
        for lease, index, prompt in ready:
            assert self.machine.read(lease, index) == prompt
        for lease, _ in self.leases:
            lease.settle()

    @rule(chunks=st.lists(st.integers(1, 7), min_size=1, max_size=6))
    def a_pass_that_fails(self, chunks: list[int]) -> None:
        for (lease, prompts), chunk in zip(self.leases, chunks, strict=False):
            lease.rows(range(len(prompts)), chunk)
            lease.settle()

    @precondition(lambda self: self.leases)
    @rule(number=st.integers(0, 99), texts=st.lists(st.lists(st.integers(0, 1)), max_size=2))
    def write_behind_a_prompt(self, number: int, texts: list[list[int]]) -> None:
        """Text behind a prompt that is written is left to others, who find it as it was written."""
        lease, prompts = self.leases[number % len(self.leases)]
        index = number % len(prompts)
        if all(node.is_written for node in lease._leaves[index].chain()):
            self.machine.write_behind(lease, index, *map(tuple, texts))

    @precondition(lambda self: self.leases)
    @rule(number=st.integers(0, 99))
    def close(self, number: int) -> None:
        lease, _ = self.leases.pop(number % len(self.leases))
        lease.close()

    @rule(num_pages=st.integers(1, 8))
    def somebody_needs_room(self, num_pages: int) -> None:
        num_tokens, num_free = self.tree.num_tokens, self.machine.pool.num_free_pages
        assert not self.machine.pool.make_room(self.machine.pool.num_pages + 1)
        assert self.tree.num_tokens == num_tokens, "in vain, nothing goes"
        could = self.machine.pool.could_have(num_free + num_pages)
        self.tree.make_room(num_pages)
        assert (self.machine.pool.num_free_pages >= num_free + num_pages) is could

    @invariant()
    def somebody_can_always_go_on(self) -> None:
        for lease, _ in self.leases:
            lease.settle()  # forget feeds that no pass was made of
        waiting = [
            (lease, prompts)
            for lease, prompts in self.leases
            if not all(lease.is_ready(i) for i in range(len(prompts)))
        ]
        assert not waiting or any(lease.rows(range(len(prompts)), 1) for lease, prompts in waiting)

    @invariant()
    def the_account_is_exact(self) -> None:
        nodes = [node for root in self.tree._roots.values() for node in below(root)]
        assert self.tree.num_tokens == sum(len(node.tokens) for node in nodes)
        empty = [node for node in nodes if not node.pins and not node.is_written]
        assert self.tree._num_tokens_lost == sum(len(node.tokens) for node in empty)
        assert all(node.children for node in empty), "nothing stands on it, and it stays"
        in_use = [node for node in nodes if node.pins]
        assert self.tree.num_pages_in_use == sum(
            len(node.tokens) // PAGE_SIZE + 1 for node in in_use
        )
        assert bool(in_use) or not self.leases or not any(any(p) for _, p in self.leases)

    @invariant()
    def every_block_stands_below_its_root(self) -> None:
        """A block of which that is not known would be taken for its reader's own, and go with it."""
        for root in self.tree._roots.values():
            blocks = [node.block for node in below(root) if node.block is not None]
            assert {self.tree.root_of(block) for block in blocks} <= {root.block}

    def teardown(self) -> None:
        pool = self.machine.pool
        num_idle, num_free = self.tree.num_pages_idle, pool.num_free_pages
        num_of_idle = pool._num_pages_of(self.tree.idle_blocks())
        assert pool.could_have(num_free + num_of_idle)
        assert not pool.could_have(num_free + num_of_idle + 1)
        self.tree.clear()
        assert pool.num_free_pages - num_free == num_of_idle
        assert num_of_idle >= num_idle, "pages that are as good as free"
        assert pool.num_pages - pool.num_free_pages <= self.tree.num_pages_in_use
        for lease, _ in self.leases:
            lease.close()
        assert self.tree.num_pages_in_use == 0
        self.tree.clear()
        assert self.tree.num_tokens == 0
        assert pool.num_free_pages == pool.num_pages


class TreesOfTexts(Trees):
    """The same where a text has a state: a block that is divided loses its head, with others that stand on it."""

    num_states = 400


PROMPT = (1, 2, 3, 4, 5)


def leased(machine: Machine, prompts: list[tuple[int, ...]]) -> Lease:
    lease = machine.tree.lease(prompts)
    assert lease is not None
    return lease


def below(node: Node) -> Iterator[Node]:
    for child in node.children.values():
        yield child
        yield from below(child)


TestTrees = Trees.TestCase
TestTreesOfTexts = TreesOfTexts.TestCase
TestTrees.settings = TestTreesOfTexts.settings = settings(
    max_examples=examples(75, of=150), stateful_step_count=25, deadline=None
)


@pytest.fixture
def texts() -> Machine:
    """A machine whose texts have states; the prompt of seven tokens is in its tree."""
    machine = Machine(num_states=50)
    machine.prefill([tuple(range(7))]).close()
    return machine


def test_a_lease_on_a_beginning_that_has_lost_its_state_may_close_unfed(texts: Machine) -> None:
    """Others stand on it, so it stays without tokens, and goes with the last of them."""
    leased(texts, [(0, 1, 2)]).close()
    assert texts.tree.num_pages_idle <= 2, "four tokens are in memory"
    lease = texts.prefill([tuple(range(7))])
    assert texts.read(lease, 0) == tuple(range(7))
    lease.close()
    leased(texts, [(0, 1)]).close()
    texts.tree.clear()
    assert texts.tree.num_tokens == 0
    assert texts.pool.num_free_pages == texts.pool.num_pages


def test_a_text_that_divides_a_block_leaves_a_beginning_that_goes_with_what_stands_on_it(
    texts: Machine,
) -> None:
    lease = leased(texts, [()])
    texts.write_behind(lease, 0, (0, 1, 2, 3, 9))
    lease.close()
    assert texts.tree.num_tokens == 8
    assert texts.tree.num_pages_idle <= 2, "three tokens and one are in memory"
    texts.tree.clear()
    assert texts.tree.num_tokens == 0
    assert texts.pool.num_free_pages == texts.pool.num_pages


def test_what_stands_behind_an_equal_text_is_read_behind_it(texts: Machine) -> None:
    """Two have written the same; of the second's blocks the first is not kept, and the next one is."""
    lease = leased(texts, [()])
    texts.write_behind(lease, 0, tuple(range(7)), (8, 9))
    lease.close()
    whole = (*range(7), 8, 9, 10)
    lease = texts.prefill([whole])
    assert lease.found == (9,)
    assert texts.read(lease, 0) == whole
    lease.close()


def test_a_pass_that_fails_notes_nothing_of_a_beginning_that_it_was_to_feed(texts: Machine) -> None:
    lease = leased(texts, [(0, 1, 2)])
    both = leased(texts, [tuple(range(8))])
    rows = [*lease.rows([0], 9)]
    step = Step([*rows, Row(View((*both.path(0)[:-1], Block())), (7,))])
    states = texts.pool.states
    assert states is not None
    texts.planner.plan(step)
    states.take(step, lambda each: (texts.pool.before_step(each),))
    texts.pool.take_back()  # it has failed
    texts.planner.plan(step)
    states.take(step, lambda each: (texts.pool.before_step(each),))


def test_a_forest_at_any_depth_is_written_once() -> None:
    machine = Machine()
    shots, one, two = (1, 2, 3, 4, 5), (6, 7, 8), (6, 9)
    prompts = [(*shots, *one, 1), (*shots, *one, 2), (*shots, *two), (*shots, *one, 1), (8, 8), ()]
    lease = machine.prefill(prompts)
    assert machine.num_fed == 5 + 1 + 2 + 1 + 1 + 1 + 2
    assert [machine.read(lease, i) for i in range(6)] == prompts
    assert lease.found == (0, 8, 6, 9, 0, 0)
    assert [len(lease.path(i)) for i in range(6)] == [3, 3, 2, 3, 1, 0]
    assert (machine.tree.num_tokens_found, machine.tree.num_tokens_added) == (23, 13)


def test_the_next_call_finds_what_the_last_one_wrote() -> None:
    machine = Machine()
    machine.prefill([(1, 2, 3, 4)]).close()
    lease = machine.prefill([(1, 2, 3, 4), (1, 2, 9)])
    assert machine.num_fed == 4 + 1
    assert lease.found == (4, 2)
    assert machine.read(lease, 1) == (1, 2, 9)


def test_what_was_written_behind_a_prompt_is_found_by_the_next_turn() -> None:
    machine = Machine()
    lease = machine.prefill([(1, 2, 3)])
    machine.write_behind(lease, 0, (4, 5, 6), (7, 8))
    lease.close()
    fed = machine.num_fed
    turn = machine.prefill([(1, 2, 3, 4, 5, 6, 7, 9)])
    assert turn.found == (7,)
    assert machine.num_fed == fed + 1
    assert machine.read(turn, 0) == (1, 2, 3, 4, 5, 6, 7, 9)
    assert leased(machine, [(1, 2, 3, 4, 5, 6, 7, 8)]).found == (8,)


def test_what_is_kept_holds_no_pages_that_were_given_ahead() -> None:
    """However many prompts and replies are kept: pages are given ahead to what is written, and it is kept with them."""
    machine = Machine()
    pool, tree = machine.pool, machine.tree
    for number in range(20):
        lease = tree.lease([(number, *PROMPT)])
        assert lease is not None
        while rows := lease.rows([0], 100):
            machine.run(rows)
            pool.lend([(pool.place(row.view.own).strip, 2 * PAGE_SIZE) for row in rows])
            lease.settle()
        own = Block()
        machine.run([Row(View([*lease.path(0), own]), (7, number))])
        pool.lend([(pool.place(own).strip, 2 * PAGE_SIZE)])
        lease.enter(0, [own])
        lease.close()
        del own
    assert not pool._spares
    for place in pool._places.values():
        assert pool.num_slots_left(place.strip) < PAGE_SIZE


def test_what_is_there_already_is_not_kept_twice() -> None:
    """Samples of one prompt begin alike: the tree parts where they do, and each keeps its own end."""
    machine = Machine()
    lease = machine.prefill([(1, 2)])
    for text in ((3, 4, 5), (3, 4, 6, 7), (3, 4), (3, 4, 5)):
        machine.write_behind(lease, 0, text)
    assert machine.tree.num_tokens == 2 + 2 + 1 + 2
    for text in ((3, 4, 5), (3, 4, 6, 7)):
        again = machine.prefill([(1, 2, *text)])
        assert again.found == (2 + len(text),)
        assert machine.read(again, 0) == (1, 2, *text)


def test_what_was_written_is_let_go_as_any_other_prefix() -> None:
    machine = Machine(num_pages=8)
    lease = machine.prefill([(1, 2)], "anna")
    machine.write_behind(lease, 0, (3, 4, 5, 6, 7))
    other = machine.prefill([(1, 2, 3)], "ben")
    assert other.found == (0,), "of one tenant alone"
    lease.close()
    machine.tree.make_room(1)
    assert machine.prefill([(1, 2, 3)], "anna").found == (2,), "the end goes before the beginning"


def test_nothing_is_entered_where_others_are_writing() -> None:
    machine = Machine()
    first = machine.prefill([(1, 2)])
    second = machine.tree.lease([(1, 2, 3, 4)])
    assert second is not None
    machine.run(second.rows([0], 1))
    machine.write_behind(first, 0, (3, 5))
    machine.run(second.rows([0], 9))
    second.settle()
    assert machine.read(second, 0) == (1, 2, 3, 4)
    assert machine.tree.num_tokens == 4


def test_a_block_that_is_read_can_be_divided() -> None:
    """A reader of the whole block reads on; both halves lie where it lies, no key has moved."""
    machine = Machine()
    first = machine.prefill([tuple(range(7))])
    (whole,) = first.path(0)
    used = machine.pool.num_pages - machine.pool.num_free_pages
    second = machine.prefill([(0, 1, 2)])
    assert machine.pool.num_pages - machine.pool.num_free_pages == used
    (head,) = second.path(0)
    assert machine.pool.place(head).strip is machine.pool.place(whole).strip
    assert [block.num_tokens for block in first.path(0)] == [3, 4]
    first.close()
    del whole
    machine.tree.clear()
    assert machine.read(second, 0) == (0, 1, 2)
    assert machine.pool.num_pages - machine.pool.num_free_pages == 2


def test_a_block_that_is_being_written_is_waited_for() -> None:
    machine = Machine()
    first = machine.tree.lease([(1, 2, 3, 4, 5, 6)])
    same = machine.tree.lease([(1, 2, 3, 4, 5, 6)])
    assert first is not None
    assert same is not None
    machine.run(first.rows([0], 2))
    first.settle()
    assert machine.tree.lease([(1, 2, 3, 9)]) is None, "its middle cannot be found yet"
    assert same.rows([0], 9) == []
    assert not same.is_ready(0)
    machine.run(first.rows([0], 9))
    first.settle()
    assert same.is_ready(0)
    assert machine.tree.lease([(1, 2, 3, 9)]) is not None


def test_another_one_goes_on_where_a_cancelled_run_stopped() -> None:
    machine = Machine()
    first, second = (machine.tree.lease([(1, 2, 3, 4, 5, 6)]) for _ in range(2))
    assert first is not None
    assert second is not None
    machine.run(first.rows([0], 2))
    first.close()
    machine.run(second.rows([0], 9))
    second.settle()
    assert machine.num_fed == 6
    assert machine.read(second, 0) == (1, 2, 3, 4, 5, 6)


def test_what_was_promised_and_never_written_is_forgotten() -> None:
    machine = Machine()
    lease = machine.tree.lease([(1, 2, 3, 4)])
    assert lease is not None
    machine.run(lease.rows([0], 3))
    lease.close()
    assert machine.tree.num_tokens == 3
    again = machine.prefill([(1, 2, 3, 4)])
    assert again.found == (3,)


def test_the_least_recently_used_leaf_goes_first_and_none_in_use() -> None:
    machine = Machine(max_tokens=8)
    for tokens in ((1, 1, 1), (2, 2, 2), (1, 1, 1)):
        machine.prefill([tokens]).close()
    held = machine.prefill([(3, 3, 3)])  # nine tokens: (2, 2, 2) goes
    assert machine.prefill([(1, 1, 1)]).found == (3,)
    assert machine.tree.need([(2, 2, 2)]).num_tokens == 3
    assert leased(machine, [(2, 2, 2)]).found == (0,)
    assert machine.read(held, 0) == (3, 3, 3)


def test_leaves_go_before_what_they_stand_on() -> None:
    machine = Machine(max_tokens=6)
    machine.prefill([(1, 1, 1, 2), (1, 1, 1, 3)]).close()
    machine.prefill([(4, 4)]).close()  # seven tokens
    assert leased(machine, [(1, 1, 1, 3)]).found == (4,)
    assert leased(machine, [(1, 1, 1, 2)]).found == (3,)


def test_a_step_that_needs_the_pages_gets_them() -> None:
    machine = Machine(num_pages=4)
    machine.prefill([(1, 1, 1, 1)]).close()
    held = machine.prefill([(2, 2)])
    new = machine.prefill([(3, 3, 3)])
    assert machine.read(new, 0) == (3, 3, 3)
    assert machine.read(held, 0) == (2, 2)
    assert leased(machine, [(1, 1, 1, 1)]).found == (0,)


def test_tenants_never_meet() -> None:
    machine = Machine()
    machine.prefill([(1, 2, 3)], "anna").close()
    assert machine.prefill([(1, 2, 3)], "ben").found == (0,)
    assert machine.prefill([(1, 2, 3)]).found == (0,)
    assert machine.prefill([(1, 2, 3)], "anna").found == (3,)
    assert machine.num_fed == 9


def test_tenants_that_left_nothing_are_forgotten() -> None:
    machine = Machine()
    held = machine.prefill([(1, 2)], "anna")
    for number in range(500):
        machine.prefill([(number,)], f"guest {number}").close()
        machine.tree.clear()
    assert len(machine.tree._roots) <= 70
    assert machine.read(held, 0) == (1, 2)
    assert machine.prefill([(1, 2)], "anna").found == (2,)


def test_a_tree_without_a_pool_serves_one_call() -> None:
    tree = PrefixTree()
    first = tree.lease([(1, 2, 3), (1, 2, 4)])
    assert first is not None
    for row in first.rows([0, 1], 9):
        row.view.own.tokens.extend(row.feed)
    first.settle()
    with pytest.raises(InvalidRequest, match="the tree has no pool"):
        tree.lease([(1, 9)])
    first.close()
    assert tree.num_tokens == 0


def test_the_list_of_idle_leaves_does_not_grow_with_use() -> None:
    machine = Machine()
    for _ in range(500):
        machine.prefill([(1, 2), (3, 4)]).close()
    assert len(machine.tree._idle) <= 70


@pytest.mark.parametrize("wrong", [-1, math.nan, 2.5, True])
def test_wrong_limits(wrong: bool | float) -> None:
    with pytest.raises(InvalidRequest, match=f"max_tokens is {wrong}; expected 0"):
        PrefixTree(PagePool(1), max_tokens=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 17, 64])
def test_common_beginnings(size: int) -> None:
    known = tuple(range(size))
    for at in range(size + 1):
        other = (9, *known[:at], -1, *known[at + 1 :])
        assert common_length(known, other, 1) == at
    assert common_length(known, (9, *known), 1) == size


def test_prompts_beyond_all_memory_are_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """800 000 of one token took two seconds of one pass, in which all runs waited, to be told that they never fit."""
    pool = PagePool(64)
    tree = PrefixTree(pool)
    assert tree.need([(1, 2)] * 32).num_blocks == 64
    monkeypatch.setattr(tree, "_match", lambda *given: pytest.fail("a path was looked up"))
    assert tree.need([(1, 2)] * 33) == (66, 66)


def test_a_path_of_short_blocks_takes_a_page_for_each() -> None:
    machine, prompt = Machine(), tuple(range(8))
    for size in range(1, 9):
        machine.prefill([prompt[:size]]).close()
    need = machine.tree.need([prompt])
    lease = machine.tree.lease([prompt])
    assert lease is not None
    assert machine.tree.num_pages_in_use == 8
    assert need.num_tokens == 8, "no lease holds any of them"
    assert need.num_tokens // PAGE_SIZE + need.num_blocks >= 8


# -- interrupts --------------------------------------------------------------------------------------

FILES = {str(module.__file__) for module in (prefixes, prefix_nodes)}
LONG = tuple(range(20))
COMING: list[Prompts] = [
    [LONG],
    [LONG[:7], (*LONG[:9], 50)],
    [(*LONG[:4], 60, 61), LONG],
    [(70, 71), (*LONG[:7], 80)],
]
HELD = (*LONG[:12], 90, 91)


def one_run(machine: Machine, wanted: Prompts) -> None:
    """A run from its lease to its end. Interrupted, it says farewell once, as a strategy does."""
    lease = machine.tree.lease(wanted)
    if lease is None:
        return
    try:
        for _ in range(2):  # of what is long, a part is left half written by runs that are over
            machine.run(lease.rows(range(len(wanted)), 3))
            lease.settle()
        if lease.is_ready(0):
            machine.write_behind(lease, 0, (1, 2, 3), (4, 5))
    finally:
        lease.close()


def interrupted_runs(*places: Place) -> Watch:
    """Runs that come and go beside one that stays: what the tree sums up is true at the end, and nothing is held."""
    machine = Machine()
    held = machine.prefill([HELD])
    watch = Watch(lambda code: code.co_filename in FILES, places)
    for wanted in COMING:
        watch.begin_step()
        with contextlib.suppress(KeyboardInterrupt), watch.watching():
            one_run(machine, wanted)
        machine.pool.take_back()
    tree = machine.tree
    gc.collect()
    for wanted in COMING:
        again = tree.lease(wanted)
        assert again is not None, "nothing feeds any more"
        machine.run(again.rows(range(len(wanted)), 10**6))
        again.settle()
        assert [machine.read(again, index) for index in range(len(wanted))] == wanted
        again.close()
    assert machine.read(held, 0) == HELD
    nodes = held._leaves[0].chain()
    assert all(node.pins == 1 for node in nodes)
    assert tree.num_pages_in_use == sum(len(node.tokens) // PAGE_SIZE + 1 for node in nodes)
    tree.clear()
    assert tree.num_tokens == len(HELD)
    held.close()
    tree.clear()
    assert (tree.num_tokens, tree.num_pages_in_use) == (0, 0)
    del held, again, nodes
    gc.collect()
    assert machine.pool.num_free_pages == machine.pool.num_pages
    return watch


def test_an_interrupt_at_any_line_of_the_tree_leaves_nothing_held(
    pytestconfig: pytest.Config,
) -> None:
    watch = interrupted_runs()
    assert watch.names >= {"lease", "_cut", "_insert", "_grow", "_abandon", "close", "_take_out"}
    strike_all(
        watch.places(first_and_last),
        lambda places: interrupted_runs(*places),
        alone=is_every_case(pytestconfig),
    )


def interrupted_close(*places: Place) -> Watch:
    """A lease of several paths is closed beside one that stays: what pages are in use is true at once, with nothing between."""
    machine = Machine()
    held = machine.prefill([HELD])
    machine.prefill([LONG]).close()
    going = machine.tree.lease([LONG, (*HELD, 3, 4, 5), (7, 8, 9)])
    assert going is not None
    tree = machine.tree
    watch = Watch(lambda code: code.co_filename in FILES, places)
    watch.begin_step()
    with contextlib.suppress(KeyboardInterrupt), watch.watching():
        going.close()
    is_open = weakref.ref(going) in tree._leases
    in_use, idle = tree.num_pages_in_use, tree.num_pages_idle
    nodes = {id(node): node for leaf in held._leaves for node in leaf.chain()}
    if is_open:
        nodes |= {id(node): node for leaf in going._leaves for node in leaf.chain()}
    assert in_use == sum(len(node.tokens) // PAGE_SIZE + 1 for node in nodes.values())
    tree._put_right()
    assert (tree.num_pages_in_use, tree.num_pages_idle) == (in_use, idle)
    return watch


def test_pages_are_told_as_they_are_behind_an_interrupted_close() -> None:
    watch = interrupted_close()
    assert watch.names >= {"close", "_unpin", "_leave"}
    strike_all(watch.places(first_and_last), lambda places: interrupted_close(*places), alone=True)


def test_a_lease_that_nothing_has_closed_is_closed_when_it_is_gone() -> None:
    machine = Machine()
    machine.prefill([LONG])
    gc.collect()
    assert machine.tree.need([LONG]).num_tokens == len(LONG)
    assert machine.tree.num_pages_in_use == 0
    machine.tree.clear()
    assert machine.pool.num_free_pages == machine.pool.num_pages


@pytest.fixture
def passed() -> tuple[Machine, Lease]:
    """A lease on four tokens behind three, which another one had fed; the state behind these has gone."""
    machine = Machine(num_states=6)
    machine.prefill([(0, 1, 2)]).close()
    lease = machine.prefill([tuple(range(7))])
    states = machine.pool.states
    assert states is not None
    assert states.could_have(5)
    assert not states.could_have(6), "that behind all of them is some run's"
    assert states.make_room(5)
    assert [states.slot(block) is None for block in lease.path(0)] == [True, False]
    return machine, lease


def test_a_state_that_has_gone_comes_back_where_a_prompt_ends_there(
    passed: tuple[Machine, Lease],
) -> None:
    machine, lease = passed
    fed = machine.num_fed
    ends_there = machine.prefill([(0, 1, 2)])
    assert (ends_there.found, machine.num_fed) == ((0,), fed + 3)
    assert machine.read(ends_there, 0) == (0, 1, 2)
    longer = machine.prefill([(*range(7), 9)])
    assert longer.found == (7,)
    assert machine.read(longer, 0) == (*range(7), 9), "behind the new block and the old one"
    for each in (lease, ends_there, longer):
        each.close()
    machine.tree.clear()
    assert machine.tree.num_tokens == machine.tree._num_tokens_lost == 0


def test_a_beginning_that_is_to_come_back_may_be_cut(passed: tuple[Machine, Lease]) -> None:
    """It is fed in part, and given up; a shorter prompt ends in the rest. The nodes that stand on it are read all the same."""
    machine, _ = passed
    given_up = leased(machine, [(0, 1, 2)])
    machine.run(given_up.rows([0], 1))
    given_up.close()
    machine.prefill([(0, 1)]).close()
    whole = machine.prefill([(*range(7), 9)])
    assert machine.read(whole, 0) == (*range(7), 9)


def test_a_beginning_that_is_to_come_back_may_be_divided(passed: tuple[Machine, Lease]) -> None:
    """Before any of it is fed. None held it: what is counted of it is right again once it is fed."""
    machine, lease = passed
    lease.close()
    whole = leased(machine, [(0, 1, 2)])
    part = leased(machine, [(0, 1)])
    longer = machine.prefill([(*range(7), 9)])
    assert machine.read(longer, 0) == (*range(7), 9)
    assert machine.tree._num_tokens_lost == 0
    assert machine.read(whole, 0) == (0, 1, 2)
    assert machine.read(part, 0) == (0, 1)


def test_what_is_fed_keeps_the_state_that_it_goes_on_from(passed: tuple[Machine, Lease]) -> None:
    """And its own. Behind a state that has gone since a lease was taken, that is fed once more first."""
    machine, _ = passed
    states = machine.pool.states
    assert states is not None
    prompts: list[tuple[int, ...]] = [(0, 1, 2, 8, 9, 10), (0, 1, 2, 8, 9, 11)]
    lease = leased(machine, prompts)
    other = machine.prefill([(0, 1, 2)])
    other.close()
    assert states.make_room(5), "nothing is being fed"
    rows = lease.rows([0], 4)
    assert [row.feed for row in rows] == [(0, 1, 2), (8,)]
    machine.run(rows)
    lease.settle()
    assert not states.could_have(4)
    rows = lease.rows([0], 1)
    assert [row.feed for row in rows] == [(9,)]
    machine.run(rows)
    lease.settle()
    assert states.num_free == 2
    assert states.could_have(5), "none goes on from there yet"
    assert not states.could_have(6)
    for index in (0, 1):
        machine.run(lease.rows([index], 4))
        lease.settle()
        assert machine.read(lease, index) == prompts[index]


def test_the_state_with_which_most_prompts_begin_goes_last() -> None:
    machine = Machine(num_states=20)
    states = machine.pool.states
    assert states is not None
    for beginning in ((0, 1, 2), (5, 6)):
        machine.prefill([beginning]).close()
    lease = machine.prefill([(0, 1, 2, 3), (0, 1, 2, 4), (5, 6, 7)])
    assert states.make_room(states.num_free + 1)
    held = [states.slot(lease.path(index)[0]) is not None for index in range(3)]
    assert held == [True, True, False]


def test_nodes_are_fed_one_after_the_other_where_states_are_few() -> None:
    for num_states, most in ((40, 3), (3, 2), (2, 1)):
        machine = Machine(num_states=num_states)
        lease = leased(machine, [(1, 2, 3, 4, 5), (1, 2, 3), (1,)])
        assert len(lease.rows([0], 9)) == most, num_states


@pytest.mark.parametrize("num_states", [0, 40])
def test_a_completion_that_leaves_what_is_just_fed_in_its_middle_is_not_kept(
    num_states: int,
) -> None:
    """All tokens of that are in memory, and its run has not been told yet."""
    machine = Machine(num_states=num_states)
    lease, other = leased(machine, [()]), leased(machine, [(1, 2, 3)])
    machine.run(other.rows([0], 9))
    machine.write_behind(lease, 0, (1, 2, 5))
    assert machine.tree.num_tokens == 3
    other.settle()
    assert machine.read(other, 0) == (1, 2, 3)
