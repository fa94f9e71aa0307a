"""How a run ends: the finisher that asks for the answer now, and the reply to the user.

The finisher (Hogwild! Inference, section 4.1 and app. C) is one row that reads everything written so
far and is made to fill in a box, or to write a program to its closing fence. It works on what is already in memory: nothing is encoded again,
unless asked for. The writers' newest tokens, which no row has fed yet, enter through blocks of
their own, the tails; so a run can be asked for its answer at any time and goes on as if it had not.
What an ending reads is a `Scene` (`strategies/scene.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.prompts.hogwild import TeamPrompt
from manyhands.strategies.base import Work
from manyhands.strategies.events import ReplyWritten
from manyhands.strategies.scene import Scene
from manyhands.strategies.settings import Settings
from manyhands.strategies.writer import Writer
from manyhands.text import Text
from manyhands.text.stops import StopWatch


@dataclass(frozen=True)
class EndWords:
    """The words of an ending: `finisher` asks for the answer in a box, `code_finisher` for a program, `reply` stands before the reply.

    They come checked from a method's own prompt; what that has no words for is as a team's.
    """

    finisher: str = TeamPrompt.finisher
    reply: str = TeamPrompt.reply
    code_finisher: str = TeamPrompt.code_finisher


class Ending:
    """The end of one run. Its passes are charged to no method (`BudgetedRun.apart` counts them).

    `words` may be those of a team, which hold them. The reply begins with `prefill`. `owner` names whose end it is, where there are
    several: each has random numbers of its own.
    """

    def __init__(
        self,
        text: Text,
        words: EndWords | TeamPrompt,
        settings: Settings,
        owner: str = "",
        prefill: str = "",
    ) -> None:
        self.text, self.words, self.settings, self.prefill = text, words, settings, prefill
        self.owner = f"{owner}'s " if owner else ""
        self.answer: str | None = None
        self.reply = ""
        self.is_cut = False  # whether a bound ended the reply
        self._stop = StopWatch(settings.end.stop)
        self._read: tuple[Block, ...] = ()  # blocks that the reply reads besides the scene
        self._last_row: Row | None = None  # feeds the last token of the finisher to the reply
        self._scene_fed = False

    @property
    def num_finisher_tokens(self) -> int:
        """At most so many tokens are added by the finisher."""
        return len(self._finisher_words()) + self.settings.end.finisher_tokens

    @property
    def num_tokens(self) -> int:
        """At most so many tokens are added by one finisher and one reply."""
        reply = len(self._reply_words()) + self.settings.end.reply_tokens
        return self.num_finisher_tokens + reply

    def finish(self, scene: Scene) -> Work[None]:
        """Ask for the answer now; sets `answer`, None if the box was not closed in time."""
        writer, block, feed = self._writer("finisher"), Block("finisher"), self._finisher_words()
        if self.settings.end.reencode:
            writer.begin_step(View((block,)), scene.tokens() + feed)
        else:
            writer.begin_step(scene.view(block), feed)
        watch = self.settings.end.watch()
        watch.push(self._finisher_text)
        self.answer = None
        for _ in range(self.settings.end.finisher_tokens):
            token = yield from self._pass(scene, writer)
            self.answer = watch.push(writer.read(token, self.text.turn_end))
            if writer.stopped or self.answer is not None:
                break
        self._read = () if self.settings.end.reencode else (block,)
        if self._read and writer.feed:  # the closing brace itself: the reply should read it
            self._read = (block, Block("finisher's last"))
            self._last_row = Row(scene.view(*self._read), writer.feed)

    def write_reply(self, scene: Scene, forward_pass: int) -> Work[None]:
        """Close the thinking and write to the user; sets `reply`, reported piece by piece.

        `close_reply` follows, and sets what is left of it.
        """
        writer = self._writer("reply")
        writer.begin_step(scene.view(*self._read, Block("reply")), self._reply_words())
        writer.follow(self.text.encode(self.prefill))
        self.is_cut = True  # it is closed where the total is spent
        for _ in range(self.settings.end.reply_tokens):
            token = yield from self._pass(scene, writer)
            yield from self._say(
                self._stop.push(writer.read(token, self.text.reply_end)), forward_pass
            )
            if writer.stopped or self.stopped_at is not None:
                self.is_cut = False
                break

    def close_reply(self, forward_pass: int) -> Work[None]:
        """The reply is over, also where it was cut short: what might have begun a stop text is said."""
        yield from self._say(self._stop.release(), forward_pass)
        self.reply = self.reply.strip()

    @property
    def stopped_at(self) -> str | None:
        """The stop text that the reply has come to."""
        return self._stop.found

    def _say(self, piece: str, forward_pass: int) -> Work[None]:
        self.reply += piece
        if piece:
            yield ReplyWritten(forward_pass, piece)

    def _writer(self, name: str) -> Writer:
        choice = self.settings.choice
        if choice.min_tokens:  # they are the workers'
            choice = replace(choice, min_tokens=0)
        return Writer(self.text, choice, self.settings.seed, f"{self.owner}{name}")

    @property
    def _finisher_text(self) -> str:
        return self.words.code_finisher if self.settings.end.is_code else self.words.finisher

    def _finisher_words(self) -> tuple[int, ...]:
        return self.text.encode(self._finisher_text) or self._pause()

    def _reply_words(self) -> tuple[int, ...]:
        words = self.text.reply(self.words.reply) + self.text.encode(self.prefill)
        return words or self._pause()

    def _pause(self) -> tuple[int, ...]:
        """The tokens fed where the prompt has no words: a row must feed something."""
        return self.text.encode("\n\n")

    def _pass(self, scene: Scene, writer: Writer) -> Work[int]:
        """One pass of one writer; the first one also feeds what has not been fed yet."""
        rows: list[Row] = []
        if not self._scene_fed:
            rows += scene.rows
            self._scene_fed = True
        if self._last_row is not None:
            rows.append(self._last_row)
            self._last_row = None
        tokens = yield Step((*rows, writer.row()))
        assert isinstance(tokens, tuple), "a step is answered with one token per row"
        return tokens[-1]
