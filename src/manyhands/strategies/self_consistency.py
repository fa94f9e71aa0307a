"""Self-consistency: n independent attempts, and one answer from all of them.

    final   one row reads every attempt, one behind another, and fills in the box (how Hogwild!
            Inference, section 4.1, compares against it; "outperforms voting in our setup and works
            even for 2 workers")
    vote    the plain majority of the boxes (Wang et al., 2022); an attempt that has come to no answer
            is asked for one, all of them in the same passes; a tie goes to the earliest worker

The attempts' own blocks are read, nothing is encoded again. Snapshots ask the same question in passing.
Neither the final row nor the finishers are charged: `extra_passes`.

Without a finisher (`EndSettings.finisher`), an attempt without a box has no vote, and the final row is
written only if every worker has ended its turn in time.
"""

from __future__ import annotations

from manyhands.prompts.votes import VotesPrompt
from manyhands.schema.conversation import Conversation, conversation_of
from manyhands.strategies.attempts import Attempts, Verdict
from manyhands.strategies.base import Strategy, Work
from manyhands.strategies.own_words import own_words, spoken
from manyhands.strategies.settings import VoteSettings, or_usual
from manyhands.strategies.voting import MODES, majority
from manyhands.text import Text


def self_consistency(
    question: str | Conversation,
    text: Text,
    settings: VoteSettings | None = None,
    prompt: VotesPrompt | None = None,
    *,
    context: int | None = None,
) -> Strategy:
    """The strategy: independent attempts, then a final row or a vote.

    Without a `prompt` it speaks the words that the model was trained with (`own_words.py`).
    `context` is the longest view the model bears; the run stops in time to still give its answer.
    """
    settings, prompt = or_usual(settings, VoteSettings), spoken(prompt, own_words(text).votes)
    asked = conversation_of(question)
    if MODES[settings.mode].reads_all:
        return _Final(asked, text, settings, prompt, prompt.final, context).play()
    return _Vote(asked, text, settings, prompt, prompt.finisher, context).play()


class _Vote(Attempts):
    """The majority of the boxes."""

    def decide(self) -> Work[Verdict]:
        """Ask every attempt that has no answer, then count."""
        endings = [self.ending(w.name) for w in self.writers]
        scenes = [attempt.scene() for attempt in self.attempts]
        yield from self.settle(endings, scenes)
        worker = majority([ending.answer for ending in endings]) or 0
        return Verdict(endings[worker].answer, worker, endings[worker], scenes[worker])


class _Final(Attempts):
    """One row that reads all attempts."""

    def decide(self) -> Work[Verdict]:
        """Show all attempts to the model, and let it fill in the box."""
        ending, scene, (first, *others) = self.ending(), self.scene(), self.attempts
        if first.answer is not None and not others:  # there is nothing to compare
            return Verdict(first.answer, 0, ending, scene)
        if self.asks or all(writer.stopped for writer in self.writers):
            yield from self.ask([ending.finish(scene)])
        return Verdict(ending.answer, None, ending, scene)

    def num_read(self) -> int:
        """All attempts stand in one view."""
        words = len(self.text.encode(self.prompt.between))
        own = sum(one.own.num_tokens + 2 + words for one in self.attempts)
        return len(self.prompt_tokens) + own
