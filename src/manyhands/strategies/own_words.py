"""The words of a method that is given none: those of the model whose tokens it writes."""

from __future__ import annotations

from typing import TypeVar

from manyhands.errors import InvalidRequest
from manyhands.prompts.load import TABLES, Prompts
from manyhands.text import Text

_Words = TypeVar("_Words")


def own_words(text: Text) -> Prompts:
    """The words that the model of `text` was trained with, or ours where none are known, as of a `Text` made by hand.

    Raises InvalidRequest for what is no `Text`, as when an engine was given in its place.
    """
    found: object = text
    if not isinstance(found, Text):
        raise InvalidRequest(
            f"the text of a method is of type {type(found).__name__}; expected the Text of a model",
            hint="Give engine.text.",
        )
    prompts: Prompts = text.prompts or Prompts()
    return prompts


def spoken(given: _Words | None, own: _Words) -> _Words:
    """The words that a method was given, or the model's own. Raises InvalidRequest for those of another kind of method."""
    if given is None:
        return own
    found: object = given
    # The model's may be more than the table that the method reads.
    kind = next((kind for kind in TABLES.values() if isinstance(own, kind)), type(own))
    if not isinstance(found, kind):
        raise InvalidRequest(
            f"the words of the method are of type {type(found).__name__}; expected {kind.__name__}",
            hint="Give one table of the model's words, as engine.prompts.team, or leave them out.",
        )
    return given
