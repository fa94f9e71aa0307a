"""Advice before a run: a model that is too small to work as a team, and was not taught to.

Models follow the words for teams without having been trained on them only from some size on. On LIMO, Qwen3-1.7B was
distracted from its task by the others, 4B less so, 8B and larger gained (Hogwild! Inference, section 4.2 and
appendix E.4). A small model can be taught: SmolLM2-135M was (docs/smollm2.md), and brings words of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.prompts.hogwild import TeamPrompt
from manyhands.prompts.load import Prompts

if TYPE_CHECKING:
    from manyhands.engine.executor import ModelFacts

SMALLEST_TEAM = 4_000_000_000  # weights
SMALLEST_MODEL = (
    10_000_000  # smaller ones were made for one purpose, as the bundled one was, and need no advice
)
_TEAMS = ("hogwild",)  # methods whose workers must follow each other


def too_small_a_team(facts: ModelFacts, prompts: Prompts, workers: int, method: str) -> str | None:
    """Why this model, with these words, will hardly work as a team; None if nothing is known against it."""
    was_taught = prompts.team != TeamPrompt()
    if method not in _TEAMS or workers < 2 or was_taught or facts.about_ranks:
        return None
    if not SMALLEST_MODEL <= facts.num_weights < SMALLEST_TEAM:
        return None
    millions = round(facts.num_weights / 1e6)
    return (
        f"the model has {millions:,} million weights; of models below {SMALLEST_TEAM / 1e9:.0f} billion none is known that works "
        "as a team without having been taught to. Try --method self_consistency, one worker, or an --adapter "
        "(docs/smollm2.md says how one is trained)"
    )
