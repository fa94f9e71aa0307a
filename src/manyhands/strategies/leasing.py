"""How a run comes by a lease on its prompts: it asks for room, and waits for what others are writing.

    lease = yield from take_lease(tree, prompts, tenant, own)

Room is asked for in two parts: what nobody holds yet of the paths that are wanted, and `own`, what the run
will hold besides. Others come and go while it waits, so the first part is looked up anew each time.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from manyhands.cache.prefix_nodes import Tokens
from manyhands.cache.prefixes import Lease, PrefixTree
from manyhands.strategies.base import Reserve


def take_lease(
    tree: PrefixTree, prompts: Sequence[Tokens], tenant: str | None, own: Reserve
) -> Generator[Reserve, None, Lease]:
    """The lease, once there is room, and once nobody is writing a block that has to be divided for it.

    From there on the tree answers for what is on the paths, and `own` alone stays reserved.
    """
    needs = _Needs(tree, prompts, tenant, own)
    yield needs.now()
    while (lease := tree.lease(prompts, tenant)) is None:
        yield needs.now()
    try:
        if tree.pool is not None:
            yield own
    except BaseException:
        lease.close()
        raise
    return lease


@dataclass(frozen=True)
class _Needs:
    """The tokens that a run holds itself, and those of its paths that no run holds yet."""

    tree: PrefixTree
    prompts: Sequence[Tokens]
    tenant: str | None
    own: Reserve

    def now(self) -> Reserve:
        """As it is now."""
        shared, num_blocks = self.tree.need(self.prompts, self.tenant)
        num_tokens, num_blocks = shared + self.own.num_tokens, num_blocks + self.own.num_blocks
        return Reserve(num_tokens, num_blocks, self.now, shared)
