"""How a run comes by a lease on its prompts: room first, and nothing stays held by a run that is none."""

from __future__ import annotations

import pytest

from manyhands.cache.pages import PagePool
from manyhands.cache.prefixes import PrefixTree
from manyhands.errors import OutOfMemory
from manyhands.strategies.base import Reserve
from manyhands.strategies.leasing import take_lease

PROMPTS = [(1, 2, 3, 4), (1, 2, 5)]
OWN = Reserve(40, 2)


def test_room_is_asked_for_with_what_nobody_holds_yet_and_then_for_its_own() -> None:
    tree = PrefixTree(PagePool(64))
    first = take_lease(tree, PROMPTS, None, OWN)
    asked = next(first)
    assert (asked.num_tokens, asked.num_shared_tokens) == (OWN.num_tokens + 5, 5)
    assert next(first) == OWN
    with pytest.raises(StopIteration) as end:
        next(first)
    second = next(take_lease(tree, [*PROMPTS, (1, 2, 5, 6)], None, OWN))
    assert (second.num_tokens, second.num_shared_tokens) == (OWN.num_tokens + 1, 1)
    end.value.value.close()
    assert next(take_lease(tree, PROMPTS, None, OWN)).num_shared_tokens == 5


@pytest.mark.parametrize("error", [GeneratorExit(), OutOfMemory("no room"), KeyboardInterrupt()])
@pytest.mark.parametrize("num_asked", [1, 2])
def test_a_run_that_ends_while_it_waits_for_room_holds_nothing(
    num_asked: int, error: BaseException
) -> None:
    pool = PagePool(64)
    tree = PrefixTree(pool)
    before = tree.need(PROMPTS, None), pool.num_free_pages
    leasing = take_lease(tree, PROMPTS, None, OWN)
    for _ in range(num_asked):
        next(leasing)
    with pytest.raises(type(error)):
        leasing.throw(error)
    assert (tree.need(PROMPTS, None), pool.num_free_pages) == before
