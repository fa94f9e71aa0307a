"""The engine packs the rows of strategies into passes, runs these, chooses tokens and answers: the roof that joins the wings.

    engine.py        the engine as everything above talks to it; one_thread.py and one_process.py: the only thread and process inside
    service.py       an engine in a thread of its own, for callers in any thread
    loop.py          the one loop that drives runs
    scheduler.py     the rows of all live runs as one pass; filling.py: which of them, and how much of a prompt
    run.py           one run and its state; inbox.py: words said to it
    preemption.py    runs that leave memory for a while; past.py: what such a run was fed; rebuild.py: its keys, made again
    restore.py       a run that goes on from its trace
    lookahead.py     the next pass of several runs, begun while this one is made
    speculation.py   guesses at what rows will write, checked by one pass
    shelving.py      prompts on disk: which sheet goes to which slots
    executor.py      network and memory behind verbs of integers: the contract
    local_executor.py    the same in this process; backends.py: which attention serves a model
    passes.py        a plan in, logits out, launch by launch; expanded.py: long prompts of latents
    graphs.py        the same by recordings, and the next pass begun ahead; matching.py: which recording serves a plan
    recordings.py    those that are there, and how another one is made; capacities.py: what each has room for
    graph.py         one recording, and how it is fed; recorder.py: the device as it needs it
    heads.py         how much of a recording is begun for a guess
    sampling.py      logits to tokens; weighing.py: penalties and biases before that
    garbage.py       Python's garbage, collected while the device works
    pass_counts.py   how passes were made, counted
    seating.py       the blocks that each worker reads, for a page
    ranks/           processes that share one network

Integers are all there is above `executor.py`, but for the logits that a caller asks for.
"""
