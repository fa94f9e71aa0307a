"""Prompts that begin alike share blocks: a tree of prefixes, found by comparing tokens.

Hydragen shares what the user declares to be shared (section 3.3) and leaves finding it to future work
(section 5). Here it is found. A PrefixTree holds blocks of tokens; a prompt is a path in it:

    "You are ..." ── the document ─┬─ question 1
                                   ├─ question 2          three prompts, four blocks
                                   └─ question 3

Where a new prompt leaves a block in its middle, the block is divided; one that is in memory already is
divided where it lies (`PagePool.divide`). A run takes a Lease on the paths of its prompts. While it has
it, nothing on them is let go, and it is told what must still be fed, and when a path can be read:

    lease = tree.lease(prompts)       what is there is found, what is not becomes new nodes
    lease.rows(wanted, max_tokens)    rows that write nodes which are not written yet
    lease.settle()                    after the pass: what is complete is frozen
    lease.enter(0, blocks)            what was written behind a prompt, in just its view, is a path too
    lease.close()                     at the end; the blocks are kept for others

Only one lease at a time feeds a node. Others that want it wait for it, and go on themselves where it
stopped should its run be cancelled. So keys are never read before they have been written.

Blocks without a lease are kept within `max_tokens`, and as long as their pages are not needed (`make_room`).
The least recently used leaves go first. Tenants have trees of their own: what one of them has asked
is never found by another.

On a network that keeps states (`cache/states.py`) a state exists only where a feed has ended. Where a node is divided, its head is
fed anew. A node that leases only *pass* may lose its state to a text that needs a slot: none of them ends there, and none is just
feeding it or what stands on it. If a lease then comes to end there, or to feed something behind it, the node is *renewed*: it gets a fresh
block, which that lease feeds first. A run that had read the old one reads on in it; one that had left memory comes back by feeding it
in its own forward (`engine/rebuild.py`).

An interrupt may strike between any two lines. What the tree sums up (who holds a node, how many tokens and pages there are, which
leaves may go) is then made anew by the next change or the next question after pages, from the leases that are open; and a lease
that nothing has closed is closed when it is gone.

With a `shelf` (`cache/sheets.py`) whole paths are saved to disk when they are written, and what memory does not
hold is looked for there: the nodes of what is found are written by a Fetch in the place of a lease.
"""

from __future__ import annotations

import heapq
import weakref
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, takewhile
from typing import TYPE_CHECKING, NamedTuple

from manyhands.cache.block import Block
from manyhands.cache.prefix_nodes import Node, Tokens, common_length, is_current
from manyhands.cache.sheets import Fetch, Shelf, Wanted
from manyhands.cache.step import Row
from manyhands.cache.view import View
from manyhands.errors import InvalidRequest, OutOfMemory
from manyhands.schema.setting import as_found, is_whole

if TYPE_CHECKING:
    from manyhands.cache.pages import PagePool

_LEAST_BLOCKS = 2  # new ones for each prompt, at most: one that is divided, and its own


class Feeder:
    """Which lease writes a node: an object for each of them, since a node does not hold its lease."""


class Need(NamedTuple):
    """How much memory a lease would newly hold, at most."""

    num_tokens: int
    num_blocks: int


class PrefixTree:
    """Prefixes of prompts, each in memory once. Made for one engine's `pool`; it is a Keeper of it.

    Without a pool it serves a single lease and keeps nothing behind it.
    """

    def __init__(self, pool: PagePool | None = None, *, max_tokens: int | None = None) -> None:
        if max_tokens is not None and not (is_whole(max_tokens) and max_tokens >= 0):
            raise InvalidRequest(
                f"max_tokens is {as_found(max_tokens)}; expected 0 (keep nothing) or more"
            )
        self.pool = pool
        self.shelf: Shelf | None = None  # where paths are saved, and found again
        self.max_tokens = 0 if pool is None else max_tokens
        self.num_tokens = 0  # in all nodes
        self.num_tokens_found = 0  # of all prompts so far, there already when they came
        self.num_tokens_added = 0  # of all prompts so far, to be fed for them
        self._num_pages_in_use = 0
        # Of all nodes, and of what was divided, the block of the root below which they stand.
        self._root_of: weakref.WeakKeyDictionary[Block, Block] = weakref.WeakKeyDictionary()
        # The node of a block. Others, which a node had before, may be there too.
        self._node_of: weakref.WeakKeyDictionary[Block, weakref.ref[Node]] = (
            weakref.WeakKeyDictionary()
        )
        self._roots: dict[str | None, Node] = {}
        self._most_roots = 64
        self._idle: list[tuple[int, int, Node]] = []  # a heap: when used, a number, an idle leaf
        self._longest_idle = 64
        self._num_tokens_lost = 0  # of all nodes, see `_lost`
        self._clock = count(1)
        # Leases that are not closed. The callback is no Python code: no death of one that nothing has closed goes unnoticed.
        self._leases: dict[weakref.ref[Lease], None] = {}
        self._gone: list[weakref.ref[Lease]] = []
        self._is_changing = False  # found at the beginning of a change: interrupted
        if pool is not None:
            pool.keepers[self] = None

    def need(self, prompts: Sequence[Tokens], tenant: str | None = None) -> Need:
        """The blocks that a lease on these prompts would hold and no other lease holds already.

        For more prompts than memory has room for, whatever they are, no path is looked up: all runs would wait for that.
        """
        self._check_whole()
        if self._are_too_many(len(prompts)):
            return Need(sum(map(len, prompts)), _LEAST_BLOCKS * len(prompts))
        num_tokens = num_blocks = 0
        before: Tokens = ()
        for tokens in sorted(prompts):  # so that what two of them share, two neighbours share
            nodes, _, part, common = self._match(tokens, tenant)
            held = sum(len(node.tokens) for node in nodes if node.pins)
            held += common if part is not None and part.pins else 0
            num_tokens += len(tokens) - max(held, common_length(before, tokens, 0))
            num_blocks += _LEAST_BLOCKS + sum(not node.pins for node in nodes)
            before = tokens
        return Need(num_tokens, num_blocks)

    def check_room(self, num_prompts: int) -> None:
        """Raise OutOfMemory for more prompts than a lease can ever hold at a time."""
        if self.pool is not None and self._are_too_many(num_prompts):
            raise OutOfMemory(
                f"{num_prompts} prompts at once take {_LEAST_BLOCKS * num_prompts} pages and more, and the memory has "
                f"{self.pool.num_pages}",
                hint="Give them in several parts, or give the engine more memory_tokens.",
            )

    def _are_too_many(self, num_prompts: int) -> bool:
        return self.pool is not None and _LEAST_BLOCKS * num_prompts > self.pool.num_pages

    def lease(self, prompts: Sequence[Tokens], tenant: str | None = None) -> Lease | None:
        """The paths of these prompts, or None: one leads into a block that is being written, ask again.

        A block can only be divided when it is complete. Interrupted, there is no lease, and nothing is held for it.
        """
        self._begin()
        for tokens in prompts:
            _, _, part, _ = self._match(tokens, tenant)
            if part is not None and part.feeder is not None:
                self._is_changing = False
                return None
        leaves, found = [], []
        for tokens in prompts:
            leaf, depth = self._insert(tokens, tenant)
            depth -= self._begin_anew(leaf)
            for node in leaf.chain():
                self._pin(node)
            leaves.append(leaf)
            found.append(depth)
            self.num_tokens_found += depth
            self.num_tokens_added += len(tokens) - depth
        fetches = [self._fetch(*each, tenant) for each in zip(leaves, prompts, strict=True)]
        self._keep_within_limit()
        lease = Lease(self, leaves, tuple(found), fetches, tenant)
        self._leases[weakref.ref(lease, self._gone.append)] = None
        self._is_changing = False
        return lease

    @property
    def num_pages_in_use(self) -> int:
        """So many pages at most hold nodes that some lease holds."""
        self._check_whole()
        return self._num_pages_in_use

    @property
    def num_pages_idle(self) -> int:
        """So many pages at least would be free if all went that no lease holds; blocks that were evicted count too."""
        assert self.pool is not None, "only a pool asks for room"
        self._check_whole()
        num_tokens = self.num_tokens - self._num_tokens_lost
        return max(0, num_tokens // self.pool.page_size - self._num_pages_in_use)

    def idle_blocks(self) -> Iterator[Block]:
        """The blocks that no lease holds: each may go, once those behind it have gone."""
        self._check_whole()
        return (node.block for node in self._nodes() if not node.pins and node.block is not None)

    def idle(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Of these blocks those that no lease holds, as `idle_blocks`."""
        self._check_whole()
        nodes = map(self._node, blocks)
        return (node.block for node in nodes if node and not node.pins and node.block is not None)

    def passed(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Of these blocks those that leases only pass (`Node.is_passed`). Blocks with which many others begin come last."""
        self._check_whole()
        passed = [node for node in map(self._node, blocks) if node and node.is_passed]
        passed.sort(key=lambda node: (len(node.children), node.used))
        return (node.block for node in passed if node.block is not None)

    def make_room(self, num_pages: int) -> None:
        """Let the least recently used leaves go until so many pages are free again, or none is left."""
        assert self.pool is not None, "only a pool asks for room"
        enough = self.pool.num_free_pages + num_pages
        while self.pool.num_free_pages < enough and self.let_go():
            pass

    def keeps(self, block: Block) -> bool:
        """Whether it is a block of the tree that is complete, so that any view may read it."""
        return block.frozen and block in self._root_of

    def root_of(self, block: Block) -> Block | None:
        """The root below which a block of the tree stands, one for each tenant; None for another block."""
        return self._root_of.get(block)

    def let_go(self) -> bool:
        """Let the least recently used leaf go; False if there is none."""
        was_changing = self._is_changing
        if not was_changing:  # else this is a part of the change
            self._begin()
        has_gone = False
        while self._idle and not has_gone:
            entry = heapq.heappop(self._idle)
            if has_gone := is_current(*entry):
                self._drop(entry[-1])
        self._is_changing = was_changing
        return has_gone

    def clear(self) -> None:
        """Let everything go that is not in use."""
        self._check_whole()
        while self.let_go():
            pass

    # -- interrupts ------------------------------------------------------------------------------

    def _begin(self) -> None:
        """A change begins. Another one that an interrupt has left half done is put right before."""
        self._check_whole()
        self._is_changing = True

    def _check_whole(self) -> None:
        if self._is_changing or self._gone:
            self._put_right()

    def _put_right(self) -> None:
        """Make anew what nodes and the tree sum up: from the leases that are open, and from what each node says of itself.

        Interrupted, it is made once more.
        """
        self._is_changing = True
        for reference in self._gone:
            self._leases.pop(reference, None)
        self._gone.clear()
        nodes = list(self._nodes())
        for node in nodes:
            node.pins = 0
        open_ones = [lease for reference in self._leases if (lease := reference()) is not None]
        for leaf in (leaf for lease in open_ones for leaf in lease._leaves):
            for node in leaf.chain():
                node.pins += 1
        feeders = {lease._feeder for lease in open_ones}
        for node in nodes:
            if isinstance(node.feeder, Feeder) and node.feeder not in feeders:
                self._abandon(node)
        nodes = list(self._nodes())
        self.num_tokens = sum(len(node.tokens) for node in nodes)
        self._num_tokens_lost = sum(map(_lost, nodes))
        self._num_pages_in_use = sum(self._pages(node) for node in nodes if node.pins)
        self._idle = []
        for node in reversed(nodes):  # children first
            self._leave(node)
        self._is_changing = False

    def _nodes(self) -> Iterator[Node]:
        """All nodes but the roots, each behind its parent."""
        waiting = [child for root in self._roots.values() for child in root.children.values()]
        while waiting:
            yield (node := waiting.pop())
            waiting += node.children.values()

    # -- finding ---------------------------------------------------------------------------------

    def written(self, tokens: Tokens, tenant: str | None) -> list[Block]:
        """The blocks that hold the beginning of these tokens, as far as it is in memory and in whole nodes."""
        nodes, *_ = self._match(tokens, tenant)
        written = takewhile(lambda node: node.is_written, nodes)
        return [node.block for node in written if node.block is not None]

    def _match(
        self, tokens: Tokens, tenant: str | None
    ) -> tuple[list[Node], int, Node | None, int]:
        """The nodes that lead along `tokens`, how far; and a node they enter but do not fill, how far."""
        node = self._root(tenant)
        nodes: list[Node] = []
        depth = 0
        while depth < len(tokens) and (child := node.children.get(tokens[depth])) is not None:
            common = common_length(child.tokens, tokens, depth)
            if common < len(child.tokens):
                return nodes, depth, child, common
            nodes.append(child)
            node, depth = child, depth + common
        return nodes, depth, None, 0

    def _root(self, tenant: str | None) -> Node:
        if tenant not in self._roots:
            if len(self._roots) >= self._most_roots:  # most are empty: their tenants have gone
                self._roots = {name: root for name, root in self._roots.items() if root.children}
                self._most_roots = 64 + 2 * len(self._roots)
            self._roots[tenant] = Node((), Block("root"), None)
        return self._roots[tenant]

    def _insert(self, tokens: Tokens, tenant: str | None) -> tuple[Node, int]:
        """The node at which the prompt ends, and how many of its tokens were there."""
        nodes, depth, part, common = self._match(tokens, tenant)
        node = nodes[-1] if nodes else self._root(tenant)
        lost = 0
        if part is not None:
            was_written = part.is_written
            node, depth = self._divide(part, common), depth + common
            lost = common if was_written and not node.is_written else 0
        if depth < len(tokens):
            rest = tokens[depth:]
            child = Node(rest, block := Block("prefix"), node)
            self._enter_block(block, child, node)
            node.children[rest[0]] = child
            self.num_tokens += len(rest)
            self._num_tokens_lost += len(rest)  # until it is pinned
            node = child
        return node, depth - lost

    def _begin_anew(self, leaf: Node) -> int:
        """Feed what a path to this node goes on from and has lost its state (`StateBook.make_room`); how many tokens these are."""
        states = None if self.pool is None else self.pool.states
        num_lost, is_read = 0, True  # whether a feed begins with the state behind the node
        if states is None:
            return 0
        for node in reversed(leaf.chain()):
            assert node.block is not None, "a node in the tree has a block"
            if is_read and node.is_written and states.slot(node.block) is None:
                num_lost += len(node.tokens)
                self._renew(node)
            is_read = not node.block.num_tokens
        return num_lost

    def _renew(self, node: Node) -> None:
        """Give a node a block that is still to be fed, in the place of one whose state is gone."""
        assert self.pool is not None, "a tree without a pool has no states"
        assert self.pool.states is not None, "only states are lost"
        assert node.block is not None, "a node in the tree has a block"
        fresh = Block("prefix")
        self._enter_block(fresh, node)
        self.pool.states.renewed(node.block, fresh)
        node.block = fresh
        self._num_tokens_lost += _lost(node)

    def _divide(self, node: Node, at: int) -> Node:
        """Put a new node before `node` that takes its first `at` tokens; `node` keeps the rest."""
        assert node.feeder is None, "a block that is being written cannot be divided"
        assert node.block is not None, "a node in the tree has a block"
        if not node.block.num_tokens:
            return self._cut(node, at, Block("prefix"), node.block)
        if self.pool is None:
            raise InvalidRequest(
                "a prefix that is in memory already would have to be divided, and the tree has no pool",
                hint="Make the tree with the engine's: PrefixTree(engine.pool), or engine.prefixes.",
            )
        head, tail = self.pool.divide(node.block, at)
        if self.pool.states is not None:
            head = Block(
                "prefix"
            )  # no feed has ended behind it, so it has no state: it is fed anew
        return self._cut(node, at, head, tail)

    def _grow(self, node: Node, block: Block) -> Node | None:
        """Enter a block that is written, behind a node that is; the node at its end.

        None where it cannot be: a part of it is being written by somebody else, or has lost its keys or its state.
        """
        states = None if self.pool is None else self.pool.states
        if states is not None and states.slot(block) is None:
            return None
        tokens, depth = tuple(block.tokens), 0
        while depth < len(tokens) and (child := node.children.get(tokens[depth])) is not None:
            if not child.is_written:
                return None
            common = common_length(child.tokens, tokens, depth)
            if common < len(child.tokens) and child.feeder is not None:
                return None  # whole since this pass, and not complete before its run is told
            node = child if common == len(child.tokens) else self._divide(child, common)
            depth += common
        if depth < len(tokens):
            assert self.pool is not None, "a tree without a pool keeps nothing"
            own = self.pool.divide(block, depth)[1] if depth else block
            if states is not None:
                states.is_put_behind_equal(own)
            node.children[tokens[depth]] = child = Node(tokens[depth:], own, node)
            child.used = next(self._clock)
            self._enter_block(own, child, node)
            self.num_tokens += len(child.tokens)
            self._offer(child)
            node = child
        return node

    def _cut(self, node: Node, at: int, first: Block, second: Block) -> Node:
        parent = node.parent() if node.parent is not None else None
        assert parent is not None, "a root is never cut"
        head = Node(node.tokens[:at], first, parent)
        self._enter_block(first, head, parent)
        self._enter_block(second, node, parent)
        head.pins, head.used = node.pins, node.used
        rest, above, first_token = node.tokens[at:], weakref.ref(head), head.tokens[0]
        num_lost = _lost(node)
        head.children[rest[0]] = node
        if node.pins:
            self._num_pages_in_use -= self._pages(node)
        # Without a call in between, so an interrupt finds the node cut or whole.
        parent.children[first_token], node.tokens, node.block, node.parent = (
            *(head, rest, second, above),
        )
        if node.pins:
            self._num_pages_in_use += self._pages(head) + self._pages(node)
        self._num_tokens_lost += _lost(head) + _lost(node) - num_lost
        return head

    def _abandon(self, node: Node) -> None:
        """Leave a node half written: what there is becomes a node of its own, the rest is free for any lease."""
        assert node.block is not None, "what is leased is in the tree"
        node.feeder = None
        pool = self.pool
        is_here = pool is None or pool.has_seen(node.block)
        if not is_here or (pool is not None and pool.is_evicted(node.block)):
            # It lies in another engine's memory, or went with its writer: begin anew.
            fresh = Block("prefix")
            self._enter_block(fresh, node)
            if pool is not None and pool.states is not None:
                pool.states.renewed(node.block, fresh)
            node.block = fresh
        if num_fed := node.block.num_tokens:
            rest = Block("prefix")
            if pool is not None and pool.states is not None:
                pool.states.renewed(node.block, rest)
            self._cut(node, num_fed, node.block.freeze(), rest)

    def _enter_block(self, block: Block, node: Node, above: Node | None = None) -> None:
        """The block is to be that of `node`, and stands below the root below which `above` stands, or which it is; None: `node`."""
        above = above or node
        assert above.block is not None, "a node in the tree has a block"
        self._root_of[block] = self._root_of.get(above.block, above.block)
        self._node_of[block] = weakref.ref(node)

    def _node(self, block: Block) -> Node | None:
        """The node whose block this is; None if there is none."""
        reference = self._node_of.get(block)
        node = None if reference is None else reference()
        return node if node is not None and node.block is block else None

    # -- the shelf -------------------------------------------------------------------------------

    def _fetch(self, leaf: Node, tokens: Tokens, tenant: str | None) -> Fetch | None:
        """Begin to fetch the part of a path that no run feeds and the shelf has."""
        path = leaf.chain()
        if self.shelf is None or all(node.is_written or node.feeder for node in path):
            return None
        saved, start = self.shelf.num_saved(tokens, tenant), 0
        wanted: list[Wanted] = []
        for node in path:
            end = start + len(node.tokens)
            if not node.is_written and node.feeder is None:
                wanted += self._within_sheets(node, start, min(end, saved))
            start = end
        if not wanted:
            return None
        fetch = self.shelf.fetch(wanted, tokens, tenant)
        for node, _ in wanted:
            node.feeder = fetch
        return fetch

    def _within_sheets(self, node: Node, start: int, stop: int) -> Iterator[Wanted]:
        """The part of an empty node up to `stop`, cut where sheets end: a node for each."""
        assert self.shelf is not None, "without one nothing is in sheets"
        if start >= stop:
            return
        size, end = self.shelf.sheet_tokens, start + len(node.tokens)
        ends = [*range(start + size - start % size, stop, size), stop]
        for part, begin in self._parts(node, start, [at for at in ends if at < end]):
            if begin < stop:
                yield Wanted(part, begin)

    def _parts(self, node: Node, start: int, cuts: Sequence[int]) -> Iterator[tuple[Node, int]]:
        """Cut an empty node, which begins at `start`, at all of these positions: its parts, and where they begin.

        In halves, then these: from its beginning on, the rest of a long prompt would be copied for each sheet.
        """
        if not cuts:
            yield node, start
            return
        half = len(cuts) // 2
        head = self._divide(node, cuts[half] - start)
        yield from self._parts(head, start, cuts[:half])
        yield from self._parts(node, cuts[half], cuts[half + 1 :])

    def fetched(self, node: Node, block: Block) -> None:
        """A node that was fetched is written: `block` is its own from now on."""
        self._enter_block(block, node)
        node.block = block.freeze()
        node.feeder = None
        self.num_tokens_found += len(node.tokens)
        self.num_tokens_added -= len(node.tokens)

    def _save(self, node: Node, tenant: str | None) -> None:
        """Have the path up to a node saved, if it is whole."""
        path = node.chain()
        if self.shelf is not None and all(each.is_written for each in path):
            self.shelf.keep([each.block for each in path if each.block is not None], tenant)

    # -- keeping ---------------------------------------------------------------------------------

    def _pages(self, node: Node) -> int:
        page_size = self.pool.page_size if self.pool is not None else 1
        return len(node.tokens) // page_size + 1

    def _pin(self, node: Node) -> None:
        self._num_tokens_lost -= _lost(node)
        node.pins += 1
        if node.pins == 1:
            self._num_pages_in_use += self._pages(node)

    def _unpin(self, node: Node) -> None:
        node.pins -= 1
        node.used = next(self._clock)
        if not node.pins:
            self._num_pages_in_use -= self._pages(node)
            self._num_tokens_lost += _lost(node)
            self._leave(node)

    def _leave(self, node: Node) -> None:
        """Note that `node` may go; if nothing was written to it, it goes as soon as nothing stands on it.

        One that has lost its state where it was divided (`_divide`) may be without tokens and have others on it.
        """
        while node.is_idle_leaf and not node.is_written and node.block is not None:
            if (parent := self._take_out(node)) is None:
                return
            node = parent
        self._offer(node)

    def _offer(self, node: Node) -> None:
        """Note that `node` may go, if it is an unused leaf that is written."""
        if node.is_idle_leaf and node.is_written:
            heapq.heappush(self._idle, (node.used, next(self._clock), node))
            if len(self._idle) > self._longest_idle:  # most are out of date: they were used again
                self._idle = [entry for entry in self._idle if is_current(*entry)]
                heapq.heapify(self._idle)
                self._longest_idle = 64 + 2 * len(self._idle)

    def _drop(self, node: Node) -> None:
        if (parent := self._take_out(node)) is not None:
            self._leave(parent)

    def _take_out(self, node: Node) -> Node | None:
        """Take a leaf out of the tree; the node that it stood on, None if that is gone."""
        assert node.parent is not None, "a root is never dropped"
        parent = node.parent()
        # Where a circle holds the tree and a run, both are collected together, and weak references go first.
        if parent is None:
            return None
        assert node.is_idle_leaf, "a node in use is never dropped"
        self._num_tokens_lost -= _lost(node)
        del parent.children[node.tokens[0]]
        node.block = None
        self.num_tokens -= len(node.tokens)
        return parent

    def _keep_within_limit(self) -> None:
        if self.max_tokens is not None:
            while self.num_tokens > self.max_tokens and self.let_go():
                pass


def _lost(node: Node) -> int:
    """The tokens of a node that no lease holds, if they are not in memory: see `PrefixTree._leave`."""
    return 0 if node.pins or node.is_written else len(node.tokens)


class Lease:
    """A run's hold on the paths of its prompts. Close it when nothing of the run reads them any more."""

    def __init__(
        self,
        tree: PrefixTree,
        leaves: list[Node],
        found: tuple[int, ...],
        fetches: Sequence[Fetch | None],
        tenant: str | None,
    ) -> None:
        self._found = found  # for each prompt, how many of its tokens were in memory when it came
        self._fetches = fetches
        self._tenant = tenant
        self._tree = tree
        self._leaves = leaves
        self._feeder = Feeder()
        self._feeding: dict[Node, View] = {}
        self._newly: dict[Node, int] = {}  # tokens given out with the last rows
        self._ready: set[int] = set()

    @property
    def found(self) -> tuple[int, ...]:
        """For each prompt, how many of its tokens were there when it came, on the shelf included."""
        fetched = (0 if fetch is None else fetch.num_tokens for fetch in self._fetches)
        return tuple(map(sum, zip(self._found, fetched, strict=True)))

    def rows(self, wanted: Iterable[int], max_tokens: int) -> list[Row]:
        """The rows to feed in the next pass, `max_tokens` at most, so that these prompts can be read soon.

        A child may be fed in the same pass as its parent: all rows write before any of them reads. Where states are few, one node is fed
        after the other: in one pass each would need a state.
        """
        self._newly = {}
        rows: list[Row] = []
        for index in wanted:
            if max_tokens <= 0:
                break
            self._tree._begin_anew(self._leaves[index])
            for node in self._unwritten(index):
                if node not in self._newly:
                    if node.feeder is not None and node.feeder is not self._feeder:
                        break
                    if rows and not self._has_states(len(rows) + 1):
                        return rows
                    row = self._row(node, max_tokens)
                    rows.append(row)
                    max_tokens -= len(row.feed)
                if not self._will_be_written(node) or max_tokens <= 0:
                    break
        return rows

    def is_ready(self, index: int) -> bool:
        """Whether prompt `index` can be read in the pass that feeds the last rows."""
        if index in self._ready:
            return True
        unwritten = list(self._unwritten(index))
        # Where a block that is divided loses its head (`_divide`), a path that was ready may have to be fed once more.
        if not unwritten and (self._tree.pool is None or self._tree.pool.states is None):
            self._ready.add(index)
        return all(self._will_be_written(node) for node in unwritten)

    def path(self, index: int) -> tuple[Block, ...]:
        """The blocks of a prompt that is ready. Others may divide them later: those read now stay true."""
        blocks = (node.block for node in self._leaves[index].chain())
        return tuple(block for block in blocks if block is not None)

    def settle(self) -> None:
        """After the pass: freeze what is complete. Raises InvalidRequest if another engine than the tree's has made it."""
        if not self._freeze_written():
            raise InvalidRequest(
                "a run shares its prompt through a tree of prefixes that is another engine's",
                hint="Give it the tree of the engine that runs it: engine.prefixes.",
            )

    def _freeze_written(self) -> bool:
        """Freeze what is complete; False if some of it lies in another memory, and none can be read here."""
        self._newly = {}
        pool = self._tree.pool
        written = [node for node in self._feeding if node.is_written]
        if pool is not None and not all(
            pool.has_seen(node.block) for node in written if node.block
        ):
            return False
        for node in written:
            assert node.block is not None, "what is fed is in the tree"
            node.block.freeze()
            if pool is not None:
                pool.grows_no_more(node.block)
            node.feeder = None
            del self._feeding[node]
        for node in written:
            self._tree._save(node, self._tenant)
        return True

    def enter(self, index: int, blocks: Iterable[Block]) -> None:
        """Keep what was written behind prompt `index`, where it was written in that view and no other.

        `blocks` follow each other in it, and are written to no more. Others may find them, each behind those
        before it. What is there already is not kept twice.
        """
        pool, node = self._tree.pool, self._leaves[index]
        if pool is None or not node.is_written:
            return
        self._tree._begin()
        is_whole = True
        for block in blocks:
            if not block.num_tokens:
                continue
            if pool.is_evicted(block) or (grown := self._tree._grow(node, block.freeze())) is None:
                is_whole = False
                break
            pool.grows_no_more(block)
            node = grown
        self._tree._is_changing = False
        if is_whole and node is not self._leaves[index]:
            self._tree._save(node, self._tenant)

    def close(self) -> None:
        """Give the paths back. Their written blocks are kept, as far as the tree may keep them."""
        tree = self._tree
        tree._begin()
        # Interrupted from here on, it is closed all the same.
        tree._leases.pop(weakref.ref(self), None)
        self._freeze_written()
        for node in self._feeding:
            tree._abandon(node)
        self._feeding = {}
        leaves, self._leaves = self._leaves, []
        for leaf in leaves:
            for node in reversed(leaf.chain()):
                tree._unpin(node)
        tree._keep_within_limit()
        tree._is_changing = False

    def _unwritten(self, index: int) -> Iterator[Node]:
        if index not in self._ready:
            yield from (node for node in self._leaves[index].chain() if not node.is_written)

    def _has_states(self, num_rows: int) -> bool:
        """Whether so many rows that feed nodes find states, and one that goes on from the last of them."""
        states = None if self._tree.pool is None else self._tree.pool.states
        return states is None or states.could_have(num_rows + 1)

    def _will_be_written(self, node: Node) -> bool:
        assert node.block is not None, "what is leased is in the tree"
        return node.block.num_tokens + self._newly.get(node, 0) == len(node.tokens)

    def _row(self, node: Node, max_tokens: int) -> Row:
        """A row that feeds the next tokens of a node that no other lease is writing."""
        assert node.block is not None, "what is leased is in the tree"
        if node not in self._feeding:
            node.feeder = self._feeder
            blocks = (each.block for each in node.chain())
            self._feeding[node] = View(block for block in blocks if block is not None)
        start = node.block.num_tokens
        tokens = node.tokens[start : start + max_tokens]
        self._newly[node] = len(tokens)
        return Row(self._feeding[node], tokens)
