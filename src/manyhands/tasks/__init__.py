"""The questions: what is asked, and how answers are graded.

The contract and the tasks:

    task.py            Sample, Task, TaskOptions: what an exam is made of
    catalogue.py       all tasks by name; a new one is a file beside it and a line in it
    gsm8k.py           grade-school problems, one at a time or several as one question
    competition.py     LIMO, AIME 2025, MATH-500
    olympiad.py        OlympiadBench, mathematics and physics
    code.py            LiveCodeBench and APPS, whose answers are programs
    documents.py       2WikiMultihopQA, questions over several passages
    generated.py       the bundled model's lists, student retrieval, needles
    planning.py        several sides of a matter, for a judge; plans.py composes a hundred of them

What they share:

    loading.py         examples of a dataset of the hub, of a file, or of our fixtures/
    graders.py         how right an answer is: lists, numbers, names, words
    numbers.py         numbers as people write them
    formulae.py        formulae by their meaning, by the algebra of algebra.py
    quantities.py      numbers with units, within a tolerance
    programs.py        programs by their tests, in the sandbox

The small world of the bundled model: lists of short, independent arithmetic problems, a stand-in for
the five GSM8K problems that the Hogwild! paper packs into one prompt (section 4.1), students and dogs.
Independent problems are the plainest work that can be shared: a free worker takes the next one that
is not taken.

    arithmetic/        lists of problems, bare or in plain English; where the small world ends: arithmetic/world.py
    retrieval.py       students and their GPAs
    needles.py         a long text, and facts to find in it

Nothing here knows of tensors, and every random choice comes from a `random.Random` handed in.
"""
