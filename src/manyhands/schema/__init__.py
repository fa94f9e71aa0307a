"""The ground floor: what data looks like, whoever makes it and whatever it is about.

    setting.py        a choice of a user, declared once, at the field that holds it; choosing.py reads `name=value` into such
    plain.py          frozen dataclasses as plain data, and back
    lines.py          append-only files of JSON lines; whole.py: files that are there as a whole or not at all
    toml.py           TOML files of a user; bounded.py: small files, read up to a bound
    waits.py          a caller's seconds, as Python's waits take them
    conversation.py   what was said before, what is asked now, how the reply begins
    openai.py         requests and answers of OpenAI's API
    open_registry.py  rows of this package by name, and behind them what installed distributions offer

Nothing here imports torch.
"""
