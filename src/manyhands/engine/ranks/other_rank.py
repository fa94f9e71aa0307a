"""A process that torchrun has started as another rank than 0 follows rank 0, whatever its command is.

The command line asks for it before it looks at the command: rank 0 alone reads input and writes output. A command that ends
well without a model, as --help does, says so at its end: the others wait for its model.
Nothing heavy is imported before it is known that this process is such a rank, or lets such ranks go.
"""

from __future__ import annotations

import sys

from manyhands.engine.ranks.launched import launched


def follow_if_other() -> None:
    """Under torchrun, follow rank 0 to its end and end the process, unless this is rank 0."""
    found = launched()
    if found is None or found.rank == 0:
        return
    from manyhands.engine.ranks.follower import follow
    from manyhands.engine.ranks.processes import leave
    from manyhands.engine.ranks.world import heard_by_torchrun

    heard = heard_by_torchrun(found)
    if heard is None:
        sys.exit()
    leave(follow, heard)


def let_others_go() -> None:
    """Under torchrun, on rank 0, at the end of its command: ranks that have met no model of it wait for none any more."""
    found = launched()
    if found is None or found.rank != 0:
        return
    from manyhands.engine.ranks.world import say_there_is_no_model

    say_there_is_no_model(found)
