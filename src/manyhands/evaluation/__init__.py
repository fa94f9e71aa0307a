"""The exam: the same questions for every method, at the same budgets, and a page that compares them.

A task brings samples and a grader (`tasks/`), a method brings a strategy (`strategies/methods.py`).
The room between them asks, grades, keeps and compares:

    sitting.py     many strategies on one engine at once; what each of them cost
    endpoint.py    another server in the place of our engine
    grading.py     the grader in a process of its own, so that one that hangs stops nothing else
    record.py      what one sample gave: the Header and the Records of a file
    candidates.py  candidates: a method on our engine, or an endpoint
    shared.py      one method more: ordinary decoding that reads a shared document once
    run.py         the exam itself: ask what is missing, grade, keep
    judge.py       votes of another model: how well a team worked together, how good an answer is
    voices.py      the judges themselves: a server, or a model of our own
    seeds.py       a seed for each question, and for each vote
    statistics.py  intervals, and differences on the same samples
    summary.py     records into curves, costs and comparisons
    losses.py      where a method loses, in sentences
    groups.py      the same exam by subject
    listing.py     every sample, with the answers to it side by side
    reach.py       the cost of nearly the baseline's accuracy, with ratios
    pair.py        two files of records, sample by sample
    results.py     the numbers as JSON, CSV and Markdown
    transcript.py  the worker and the forward pass of each token
    plots.py       the curves as pictures
    report.py      all of it as one page
    inspect_logs.py  all of it as logs of Inspect

    bench.py       how fast a team writes on this machine, and how fast it could be at best
    life.py        the same where steps end, runs come and go and bring prompts

The words of the judges are in `prompts/judging.py`; records are kept in files of `schema/lines.py`.
"""
