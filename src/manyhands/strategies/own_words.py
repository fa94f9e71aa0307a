"""The words of a method that is given none: those of the model whose tokens it writes."""

from __future__ import annotations

from manyhands.prompts.load import Prompts
from manyhands.text import Text


def own_words(text: Text) -> Prompts:
    """The words that the model of `text` was trained with, or ours where none are known, as of a `Text` made by hand."""
    prompts: Prompts = text.prompts or Prompts()
    return prompts
