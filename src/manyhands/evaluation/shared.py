"""`shared_prefix` as a method of the exam: one worker alone, and what prompts begin alike is read once.

Its questions are those of the sequential method, word by word. There each of them reads the document
before it for itself; here the document is found in the engine's prefix tree. So the two, side by side,
say what sharing saves in time and memory (Hydragen, section 4.3), and that it changes no answer.

The strategy is imported when one is made: `manyhands eval --help` names this method, and stays light.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from manyhands.errors import InvalidRequest
from manyhands.prompts.hogwild import TeamPrompt
from manyhands.schema.conversation import Conversation, conversation_of
from manyhands.strategies.base import Strategy
from manyhands.strategies.methods import Method
from manyhands.strategies.settings import SoloSettings
from manyhands.text import Text, answer_in

if TYPE_CHECKING:
    from manyhands.cache.prefixes import PrefixTree

SHARED_PREFIX = "shared_prefix"
ABOUT = "one worker alone; what prompts have in common is read once"


def shared_method(tree: PrefixTree | None = None) -> Method:
    """The method, with the tree in which the prompts of all samples meet."""

    def make(
        asked: str | Conversation,
        text: Text,
        settings: SoloSettings,
        prompt: TeamPrompt,
        *,
        context: int | None = None,
    ) -> Strategy:
        from manyhands.strategies.settings import SharedSettings
        from manyhands.strategies.shared_prefix import shared_prefix

        shared = SharedSettings(
            max_tokens=settings.budget, choice=settings.choice, seed=settings.seed
        )
        message = prompt.solo_message(conversation_of(asked).problem)
        found = shared_prefix([message], text, shared, tree=tree, context=context)
        return _answered(found, settings.end.answer)

    return Method(
        SHARED_PREFIX, ABOUT, SoloSettings, "team", make, solo=True, forks=lambda settings: True
    )


def check_budgets(budgets: Sequence[int]) -> None:
    """Raises InvalidRequest where answers are also wanted in passing: this strategy gives none."""
    if len(budgets) != 1:
        raise InvalidRequest(
            f"{len(budgets)} budgets were given for {SHARED_PREFIX}, expected one",
            hint="leave the smaller ones out",
        )


def _answered(strategy: Strategy, kind: str) -> Strategy:
    """The same, and its answer is the last box or program; blanks around a text are dropped."""
    found = yield from strategy
    return replace(found, answer=answer_in(found.text, kind), text=found.text.strip())
