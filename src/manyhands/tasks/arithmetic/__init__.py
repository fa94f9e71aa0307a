"""The arithmetic of the bundled model: lists of short, independent problems, each with its solution.

problem.py             one problem: its text, the equations that solve it, the answer
bare.py                "84 + 29 - 38"
templates/, words.py   the same in plain English
problem_list.py        several of them as one question
"""
