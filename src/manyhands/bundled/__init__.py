"""The model that comes with the package: small, real, and good at one small thing.

A Qwen3 of 9.8 million parameters that solves lists of one to twelve arithmetic problems, alone or as a team
of up to eight. How it was made is in `recipes/bundled`, what it can do in `docs/bundled_model.md`.
"""

from __future__ import annotations

from pathlib import Path

from manyhands.hub import BUNDLED, place_of


def path() -> Path:
    """The folder of the model, as `transformers` takes it. `Engine.load("bundled")` knows it by its name."""
    return Path(place_of(BUNDLED))
