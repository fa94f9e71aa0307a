"""Best-of-n: n independent attempts, of which the model itself chooses one.

Every attempt is graded by a row of its own that reads this attempt and nothing else, and then chooses one
token among the digits 0 to 9: the highest grade wins, a tie goes to the earliest worker. An attempt that
has come to no answer is asked for one before it is graded, and if it still has none, it is chosen only
where nobody has any. All grades are given in one pass; it is charged to nobody (`extra_passes`).

The words of the question are `VotesPrompt.grade`. (Best-of-n by the attempts' own probability is not
offered: the passes of a trace, from which a run must be able to come back, hold tokens and no probabilities.)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from manyhands.cache.block import Block
from manyhands.cache.step import Choice
from manyhands.errors import UnsupportedModel
from manyhands.prompts.votes import VotesPrompt
from manyhands.schema.conversation import Conversation, conversation_of
from manyhands.strategies.attempts import Attempts, Verdict
from manyhands.strategies.base import Strategy, Work
from manyhands.strategies.ending import Ending
from manyhands.strategies.own_words import own_words, spoken
from manyhands.strategies.scene import Scene
from manyhands.strategies.settings import BestSettings, or_usual
from manyhands.strategies.writer import Writer
from manyhands.text import Text


def best_of_n(
    question: str | Conversation,
    text: Text,
    settings: BestSettings | None = None,
    prompt: VotesPrompt | None = None,
    *,
    context: int | None = None,
) -> Strategy:
    """The strategy: independent attempts, a grade for each, the best one.

    Without a `prompt` it speaks the words that the model was trained with (`own_words.py`).
    `context` is the longest view the model bears; the run stops in time to still give its answer.
    Raises UnsupportedModel if the model's vocabulary has no token for a digit.
    """
    settings, prompt = or_usual(settings, BestSettings), spoken(prompt, own_words(text).votes)
    asked = conversation_of(question)
    return _Best(asked, text, settings, prompt, prompt.finisher, context).play()


class _Best(Attempts):
    """The attempt with the highest grade."""

    def decide(self) -> Work[Verdict]:
        """Ask every attempt that has no answer, grade all, take the best."""
        endings = [self.ending(w.name) for w in self.writers]
        scenes = [attempt.scene() for attempt in self.attempts]
        yield from self.settle(endings, scenes)
        if len(endings) > 1:
            words, digits = self.prompt.grade, self.digits
            pairs = zip(endings, scenes, strict=True)
            yield from self.ask([ending.rate(scene, words, digits) for ending, scene in pairs])
        worker = max(range(len(endings)), key=lambda i: endings[i].rank)  # the first of equals
        return Verdict(endings[worker].answer, worker, endings[worker], scenes[worker])

    def ending(self, owner: str = "") -> _Graded:
        """An ending that can also be given a grade."""
        return _Graded(self.text, self.words, self.settings, owner, self.reply_prefill)

    @property
    def finisher_passes(self) -> int:
        """The grades take one more."""
        return super().finisher_passes + 1

    @cached_property
    def ending_tokens(self) -> int:
        """A finisher, the grade and a reply."""
        return self.ending().num_tokens + len(self.text.encode(self.prompt.grade)) + 1

    @cached_property
    def digits(self) -> dict[int, int]:
        """The tokens that are a digit, and perhaps a blank before it; with their values."""
        found = {
            token: digit
            for digit in range(10)
            for lead in ("", " ")
            for token in self.text.encode(f"{lead}{digit}")
            if self.text.decode([token]).strip() == str(digit)
        }
        if len(set(found.values())) < 10:
            raise UnsupportedModel(
                "best_of_n asks for grades from 0 to 9, and the model's vocabulary has no token for "
                "each of these digits",
                hint="Use self_consistency, which needs no grades.",
            )
        return found


class _Graded(Ending):
    """The end of one attempt, which is also given a grade."""

    grade = -1

    @property
    def rank(self) -> tuple[bool, int]:
        """The higher the better."""
        return self.answer is not None, self.grade

    def rate(self, scene: Scene, words: str, digits: Mapping[int, int]) -> Work[None]:
        """Let the model read the attempt, and its answer, and choose a digit."""
        choice = Choice(allowed=frozenset(digits))
        writer = Writer(self.text, choice, self.settings.seed, f"{self.owner}grade")
        view = scene.view(*self._read, Block("grade"))
        writer.begin_step(view, self.text.encode(words) or self._pause())
        token = yield from self._pass(scene, writer)
        self.grade = digits.get(token, self.grade)  # a script in the place of a model is free
