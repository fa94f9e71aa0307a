"""One worker, one strand of text: ordinary decoding, the baseline of every comparison.

With the early-stopping finisher (Hogwild! Inference, section 4.1, "Baseline") or without it. The run
goes on until the model ends its turn or the budget is spent; a thinking model closes its thinking by
itself and what follows is the reply. The answer is the content of the last box.
"""

from __future__ import annotations

from manyhands.prompts.hogwild import TeamPrompt
from manyhands.schema.conversation import Conversation, conversation_of
from manyhands.strategies.base import Strategy
from manyhands.strategies.own_words import own_words, spoken
from manyhands.strategies.settings import SoloSettings, or_usual
from manyhands.strategies.strand import StrandRun
from manyhands.text import Text


def sequential(
    problem: str | Conversation,
    text: Text,
    settings: SoloSettings | None = None,
    prompt: TeamPrompt | None = None,
    *,
    context: int | None = None,
) -> Strategy:
    """The strategy: one worker writes until it has ended its turn.

    Without a `prompt` it speaks the words that the model was trained with (`own_words.py`).
    `context` is the longest view the model bears; the run stops in time for its answer.
    """
    settings, prompt = or_usual(settings, SoloSettings), spoken(prompt, own_words(text).team)
    asked = conversation_of(problem)
    rules = prompt.for_one(asked)
    return StrandRun(rules, text, settings, prompt.finisher, context, problem=asked.problem).play()
