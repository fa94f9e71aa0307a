"""The questions: what a team is asked, and how its answers are graded.

The first rooms here are the small world of the bundled model: lists of short, independent
arithmetic problems, a stand-in for the five GSM8K problems that the Hogwild! paper packs into one
prompt (section 4.1). Independent problems are the plainest work that can be shared: whoever is
free takes the next one that nobody has.

    problem.py         one problem: its text, the equations that solve it, the answer
    bare.py            "84 + 29 - 38"
    templates/, words.py   the same in plain English
    problem_list.py    several of them as one question
    graders.py         how right a boxed list of answers is
    world.py           where the small world ends

Nothing here knows of tensors, and every random choice comes from a `random.Random` handed in.
"""
