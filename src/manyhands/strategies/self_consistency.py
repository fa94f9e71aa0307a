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

from manyhands.cache.block import Block
from manyhands.cache.view import View
from manyhands.prompts.votes import VotesPrompt
from manyhands.strategies.attempts import Attempts, Verdict, Verdicts
from manyhands.strategies.base import Strategy
from manyhands.strategies.ending import Ending, Scene
from manyhands.strategies.settings import VoteSettings
from manyhands.strategies.voting import majority
from manyhands.text import Text


def self_consistency(
    question: str,
    text: Text,
    settings: VoteSettings | None = None,
    prompt: VotesPrompt | None = None,
    *,
    context: int | None = None,
) -> Strategy:
    """The strategy: independent attempts, then a final row or a vote.

    `context` is the longest view the model bears; the run stops in time to still give its answer.
    """
    settings, prompt = settings or VoteSettings(), prompt or VotesPrompt()
    run = _Final if settings.mode == "final" else _Vote
    return run(question, text, settings, prompt, context).play()


class _Vote(Attempts):
    """The majority of the boxes."""

    def decide(self) -> Verdicts:
        """Ask whoever has no answer, then count."""
        endings = [self._ending(attempt.writer.name) for attempt in self.attempts]
        scenes = [attempt.scene() for attempt in self.attempts]
        yield from self.settle(endings, scenes)
        worker = majority([ending.answer for ending in endings])
        chosen = endings[worker or 0]
        return Verdict(chosen.answer, worker or 0, chosen, scenes[worker or 0])

    def _ending(self, owner: str) -> Ending:
        s = self.settings
        return Ending(self.text, self.words(self.prompt.finisher), s.end, s.choice, s.seed, owner)

    def num_added(self) -> int:
        """A finisher and a reply."""
        return self._ending("").num_tokens


class _Final(Attempts):
    """One row that reads all attempts."""

    def decide(self) -> Verdicts:
        """Show all attempts to the model, and let it fill in the box."""
        ending, scene, (first, *others) = self._ending(), self._scene(), self.attempts
        if first.answer is not None and not others:  # there is nothing to compare
            return Verdict(first.answer, 0, ending, scene)
        if self.settings.end.finisher or all(one.writer.stopped for one in self.attempts):
            yield from self.ask([ending.finish(scene)])
        return Verdict(ending.answer, None, ending, scene)

    def _ending(self) -> Ending:
        s = self.settings
        return Ending(self.text, self.words(self.prompt.final), s.end, s.choice, s.seed)

    def _scene(self) -> Scene:
        """Prompt, then attempt after attempt; what the first one was led in by stands there once."""
        between, words = Block("between"), self.text.encode(self.prompt.between)
        tails = [(View((self.start, between)), words)] if words and self.attempts[1:] else []
        blocks: tuple[Block, ...] = (self.start, self.attempts[0].lead)
        for attempt in self.attempts:
            tail = Block(f"{attempt.writer.name}'s newest")
            tails += attempt.tails(tail)
            blocks += (attempt.own, tail) if len(blocks) == 2 else (between, attempt.own, tail)
        unread = {view.own: tokens for view, tokens in tails}

        def tokens() -> tuple[int, ...]:
            return tuple(t for b in blocks for t in unread.get(b, tuple(b.tokens)))

        return Scene(tuple(tails), lambda *last: View((*blocks, *last)), tokens)

    def num_read(self) -> int:
        """All attempts stand in one view."""
        words = len(self.text.encode(self.prompt.between))
        own = sum(one.own.num_tokens + 2 + words for one in self.attempts)
        return len(self.prompt_tokens) + own

    def num_added(self) -> int:
        """The final row and the reply."""
        return self._ending().num_tokens
