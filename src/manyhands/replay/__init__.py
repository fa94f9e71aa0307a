"""Learning from runs: traces, their attention rebuilt in one parallel forward, and training on it.

    trace.py       everything that a run did, one JSON object a line; retold.py: the events and the answer in it
    merged.py      all passes of a run as one plan; text_rows.py: its states, where a network keeps some
    forward.py     the logits of all passes from one forward
    joins.py       how far a join of branches is from the exact one
    simulate.py    runs of a strategy that a script drives in the place of a model
    lessons.py     what is learned from: traces, scripted runs, ordinary text, in batches
    gradients.py   the gradient of one step, in pieces
    train.py       a training; settings.py: its choices

A trace holds integers and words and no keys: all attention of a run is made of these integers again.
"""
