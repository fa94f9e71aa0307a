"""How a run ends: the finisher that asks for the answer now, and the reply to the user.

The finisher (Hogwild! Inference, section 4.1 and app. C) is one row that reads everything written so
far and is made to fill in a box. It works on what is already in memory: nothing is encoded again,
unless asked for. The writers' newest tokens, which nobody has been fed yet, enter through blocks of
their own, the tails; so a run can be asked for its answer at any time and goes on as if it had not.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import chain

from manyhands.cache.block import Block
from manyhands.cache.step import GREEDY, Choice, Row, Step
from manyhands.cache.view import View
from manyhands.prompts.hogwild import TeamPrompt
from manyhands.strategies.events import Event, ReplyWritten
from manyhands.strategies.settings import EndSettings
from manyhands.strategies.writer import Writer
from manyhands.text import BoxWatch, Text

Steps = Generator[Step | Event, tuple[int, ...] | None, None]


@dataclass(frozen=True, eq=False)
class Scene:
    """Where an ending reads: `tails` with the views they are written in, and the view of all.

    `tails` are (view ending in the tail block, tokens). `view(*last)` reads everything, tails
    included, then the blocks `last`, and writes to the last of them. `tokens` is all of it as one
    ordinary sequence, for re-encoding.
    """

    tails: tuple[tuple[View, tuple[int, ...]], ...]
    view: Callable[..., View]
    tokens: Callable[[], tuple[int, ...]]


class Ending:
    """The end of one run. Counts its passes, which nobody is charged for.

    `owner` names whose end it is, where there are several: each has random numbers of its own.
    """

    def __init__(
        self,
        text: Text,
        prompt: TeamPrompt,
        settings: EndSettings,
        choice: Choice,
        seed: int,
        owner: str = "",
    ) -> None:
        self.text = text
        self.prompt = prompt
        self.settings = settings
        self.choice = choice
        self.seed = seed
        self.owner = f"{owner}'s " if owner else ""
        self.passes = 0
        self.answer: str | None = None
        self.reply = ""
        self._read: tuple[Block, ...] = ()  # what the reply reads besides the scene
        self._tails_fed = False

    @property
    def num_tokens(self) -> int:
        """At most so many tokens are added by one finisher and one reply."""
        inserted = len(self._finisher_words()) + len(self._reply_words())
        return inserted + self.settings.finisher_tokens + self.settings.reply_tokens

    def finish(self, scene: Scene) -> Steps:
        """Ask for the answer now; sets `answer`, None if the box was not closed in time."""
        writer = Writer(self.text, self.choice, self.seed, f"{self.owner}finisher")
        block, feed = Block("finisher"), self._finisher_words()
        if self.settings.reencode:
            view, feed = View((block,)), scene.tokens() + feed
        else:
            view = scene.view(block)
        writer.begin_step(block, feed)
        watch = BoxWatch()
        watch.push(self.prompt.finisher)
        self.answer = None
        for _ in range(self.settings.finisher_tokens):
            token = yield from self._pass(scene, writer, view)
            self.answer = watch.push(writer.read(token, self.text.turn_end))
            if writer.stopped or self.answer is not None:
                break
        self._read = () if self.settings.reencode else (block,)
        if self._read and writer.feed:  # the closing brace itself: the reply should read it
            self._read = (block, Block("finisher's last"))
            self._last_feed = (scene.view(*self._read), writer.feed)

    def write_reply(self, scene: Scene, forward_pass: int) -> Steps:
        """Close the thinking and write to the user; sets `reply`, reported piece by piece."""
        writer = Writer(self.text, self.choice, self.seed, f"{self.owner}reply")
        block = Block("reply")
        view = scene.view(*self._read, block)
        writer.begin_step(block, self._reply_words())
        for _ in range(self.settings.reply_tokens):
            token = yield from self._pass(scene, writer, view)
            piece = writer.read(token, self.text.eos)
            self.reply += piece
            if piece:
                yield ReplyWritten(forward_pass, piece)
            if writer.stopped:
                break
        self.reply = self.reply.strip()

    def _finisher_words(self) -> tuple[int, ...]:
        return self.text.encode(self.prompt.finisher) or self._pause()

    def _reply_words(self) -> tuple[int, ...]:
        return self.text.reply(self.prompt.reply) or self._pause()

    def _pause(self) -> tuple[int, ...]:
        """What is fed where the prompt has no words: a row must feed something."""
        return self.text.encode("\n\n")

    def _pass(
        self, scene: Scene, writer: Writer, view: View
    ) -> Generator[Step | Event, tuple[int, ...] | None, int]:
        """One pass of one writer; the first one also feeds what has not been fed yet."""
        rows: list[Row] = []
        if not self._tails_fed:
            rows += [Row(tail, tokens, GREEDY) for tail, tokens in scene.tails]
            self._tails_fed = True
        if len(self._read) > 1 and not self._read[1].num_tokens:
            rows.append(Row(*self._last_feed))
        tokens = yield Step((*rows, writer.row(view)))
        self.passes += 1
        assert tokens is not None, "a step is answered with one token per row"
        return tokens[-1]


def all_tokens(blocks: Sequence[Block], *more: Sequence[int]) -> tuple[int, ...]:
    """The tokens of some blocks and then some more, in one line."""
    return tuple(chain(*(block.tokens for block in blocks), *more))
