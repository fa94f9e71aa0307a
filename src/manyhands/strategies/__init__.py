"""Strategies: how to think, as generators that ask for steps.

    base.py             the contract of a strategy; events.py: what it tells; listening.py: what is said to it
    methods.py          every strategy that has a name; settings.py: the choices of all
    run_spec.py         a run before it begins; own_words.py: the words of a model that brings its own
    requests.py         OpenAI's requests as runs, and completions as its answers

    hogwild.py          workers who read each other while they write
    sequential.py       one worker, one strand
    branches.py         titles first, then all parts at once; branch_joins.py: how parts become one text
    skeleton.py         an outline, its points at once, a conclusion
    profiled.py         a model that was trained to part; profiles.py: which ones; fork_marks.py: where it wants to
    async_reasoning.py  a thinker, and a writer who begins the reply meanwhile
    async_think.py      an organiser that forks and joins workers
    attempts.py         independent attempts: self_consistency.py takes all, by votes of voting.py or by one row; best_of_n.py one
    shared_prefix.py    many completions of many prompts; echo.py: prompts whose own logprobs are wanted

    counted.py          a run that counts its passes; budgeted.py: with a budget, snapshots and an ending
    writer.py           one text while it is written; strand.py: one that may part
    parting.py          the loop of strands beside each other; nested_parts.py: parts that part again
    scene.py            the blocks at one moment; ending.py: the finisher and the reply, which read them
    prompt_sharing.py   a run whose prompt is found in memory; leasing.py: how it waits for it
    account.py          all that is known of a run, from its events
    registry.py         kinds of events and of items by name, with one encoding

No tensor is touched here and torch is not imported: a strategy can be read, tested and simulated with a scripted
predictor in the place of a model.
"""
