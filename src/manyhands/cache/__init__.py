"""Which row sees which keys: blocks, views, steps and the plan of a forward pass, in integers only.

    block.py         a run of tokens; view.py: the order in which a row reads blocks
    layouts.py       the views of a team, in the three layouts of Hogwild! Inference
    step.py          the rows that a strategy asks for together; tally.py: what a row's writer has written, for penalties
    logprobs.py      how likely tokens were, told to rows that ask
    places.py        where a block lies, and moves from one place to another
    pages.py         the pages and what lies on them; journal.py: changes of that which are complete or have not happened
    plan.py          one pass in integers; planner.py makes it of a step; fronts.py: desks behind copies of their marker
    routes.py        where the keys of a view lie, piece by piece; trunks.py: the beginnings of views, walked once
    lockstep.py      the next plan, where each row goes on by one token
    chunks.py        long feeds in several passes
    prefixes.py      prompts that begin alike, as a tree of blocks; prefix_nodes.py: its nodes
    sheets.py        prompts outside of memory
    states.py        which slot holds the state of which text
    lookup.py        what followed the same tokens before
    usage.py         passes, tokens and bytes, counted

No tensor is made here and torch is not imported: this room can be tested, read and simulated without a model.
"""
