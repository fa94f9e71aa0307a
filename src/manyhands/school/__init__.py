"""The school: who teaches the bundled model, and what.

A scripted predictor sits where a model would sit, a strategy is driven with it, and the run is a lesson
(`replay/simulate.py`). Learning from a lesson is the business of `replay`, which knows nothing of this
room: another model, in another world, brings lessons of its own.

    scripted.py            what is said by a script, token by token, and how much of it is learned
    arithmetic_team.py     a team that shares out a list of problems, with mischief
    slips.py               work with one mistake, for the team to find
    parts.py, endings.py   the other methods: students, lists in parts, needles; endings of prompts
    curriculum.py          random runs of the team, each from a seed
    curriculum_parts.py    random runs of the other methods
    simulated.py           both as lessons
    recipe.py              one TOML file that says what is trained, on what, and how
"""
