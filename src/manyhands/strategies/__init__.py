"""How to think: programs that ask for steps. No tensor is touched here and torch is not imported.

Each strategy is a generator (see `base`). It can be read, tested and simulated with a scripted
predictor in the place of a model.
"""
