"""One engine over several ranks: processes that each hold a part of one network (`model/parallel/`).

Rank 0 is the process that asked. It alone plans, admits, preempts, draws and chooses, and tells the others
every pass in integers before it makes its own part. The others repeat: they decide nothing, and their numbers
meet rank 0's in the sums of the layers. So equal integers everywhere are all that has to hold.

    rank 0                                             ranks 1, 2, ...
    Engine, Scheduler, Planner
    RankedExecutor  ── verb and integers, a pipe each ──>  Follower
    LocalExecutor                                      LocalExecutor
    ModelAdapter    <── sums in the layers, a group ──>    ModelAdapter

processes.py   starts the others, sees them end, ends them; torch is not needed for that
channel.py     verbs and integers from rank 0 to all others, and what they report
packing.py     plans, pasts and moves as lists of integers
launched.py    what torchrun says, where it has started the ranks; other_rank.py follows rank 0 there
group.py       the process group: gloo or NCCL
part.py        one rank's part of a model, and what it says of it
world.py       the ranks together: processes, channel, process group, and one model at a time
told.py        passes on rank 0 that tell the others; comparing
executor.py    the executor on rank 0
follower.py    the life of every other rank

If a rank ends, for whatever reason, all end: rank 0 raises `RanksFailed` with what is known, and the others see
that rank 0 or its pipe is gone.
"""
