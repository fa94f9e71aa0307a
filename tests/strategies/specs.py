"""A spec for settings at hand: the method is the one that has such settings."""

from __future__ import annotations

from typing import Any

from manyhands.strategies.methods import METHODS, Method
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import Settings


def method_of(settings: Settings) -> Method:
    """The method that these settings are for."""
    (method,) = (one for one in METHODS.values() if one.settings is type(settings))
    return method


def spec_of(settings: Settings, prompt: Any, problem: str, context: int | None = None) -> RunSpec:
    """The spec of a run with these settings."""
    return RunSpec(method_of(settings), settings, prompt, problem, context)
