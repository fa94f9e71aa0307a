"""A writer: one text while it is being written.

A writer has a view, and writes to the last block of it. It knows what its next row feeds, reads its tokens
as text, and notices when a step ends or a box is closed. Its random numbers are its own: they depend on
the seed and the writer's name, and on nothing that others do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from manyhands.cache.block import Block
from manyhands.cache.step import Choice, Row
from manyhands.cache.view import View
from manyhands.text import AnswerWatch, BoxWatch, StepEnd, StreamDecoder, Text, ThinkingWatch


def tokens_behind(text: Text, words: str) -> tuple[int, ...]:
    """The tokens of `words` behind other text: some tokenizers put a blank before a line break."""
    before, whole = text.encode("x"), text.encode("x" + words)
    size = len(before)
    return whole[size:] if whole[:size] == before else text.encode(words)


class Writer:
    """One text while it is written, from its first token to its last.

    `feed` is what its next row feeds to the last block of its `view`: as a rule the token that it has just chosen, at the
    beginning of a step words that a strategy puts there. `unread` is that part of it which the writer has written: no block
    holds it yet, so whatever reads the text now, as an ending does, has to be fed it besides.

    Penalties and a bias weigh on all that it writes, from its first token on, whatever view it stands in.
    Of what it reads, the tokens of `prompt` count for the repetition penalty. One of `ends` ends its text, and is
    not chosen before `choice.min_tokens`; by default, what ends a turn, or what `thinking` says. That watches a text which
    goes on behind its thinking, and leaves out what is neither. `watch` makes what finds answers, in `box`.
    """

    def __init__(
        self,
        text: Text,
        choice: Choice,
        seed: int,
        name: str,
        *,
        prompt: Sequence[int] = (),
        ends: frozenset[int] | None = None,
        thinking: ThinkingWatch | None = None,
        watch: Callable[[], AnswerWatch] = BoxWatch,
    ) -> None:
        self.name = name
        self.vocabulary = text
        self.tally = choice.tally(prompt)
        self.choice = choice if self.tally is None else choice.unweighed()
        self.thinking = thinking
        self._ends = text.turn_end if ends is None else ends
        self._watch = watch
        self.random = random.Random(f"{seed}/{name}")
        self.feed: tuple[int, ...] = ()
        self.unread: tuple[int, ...] = ()  # written, but not fed to anybody yet
        self.num_tokens = 0
        self.stopped = False
        self._next: tuple[AnswerWatch, StepEnd, StreamDecoder] | None = None
        self.begin_step(View((Block(f"{name} 1"),)), ())

    def begin_step(
        self, view: View, feed: tuple[int, ...], forbidden: frozenset[int] = frozenset()
    ) -> None:
        """Go on at the end of `view`, feeding `feed` first. A `forbidden` token may not come first."""
        self.view = view
        self.feed = feed
        self.forbidden = forbidden
        self.step_text = ""
        self.step_tokens: list[int] = []
        self.box, self._step_end, self._decoder = self._next or self._readers()
        self._next = None

    @property
    def ends(self) -> frozenset[int]:
        """The tokens of which one ends its text, if it comes next."""
        return self._ends if self.thinking is None else self.thinking.ends

    def prepare(self) -> None:
        """Make what reads the next step ahead."""
        if self._next is None:
            self._next = self._readers()

    def _readers(self) -> tuple[AnswerWatch, StepEnd, StreamDecoder]:
        return self._watch(), StepEnd(), StreamDecoder(self.vocabulary)

    def follow(self, tokens: Sequence[int]) -> None:
        """These tokens stand right before its text: a blank that begins it is then not lost.

        (Some tokenizers put the blank into the word behind it, and decode a first word without.)
        """
        for token in tokens:
            self._decoder.push(token)

    def row(self) -> Row:
        """The next row; draws this writer's next random number if it samples."""
        choice = self.choice
        if choice.temperature > 0:
            choice = choice.drawn(self.random.random())
        if self.forbidden and not self.step_tokens:
            choice = replace(choice, forbidden=choice.forbidden | self.forbidden)
        if self.num_tokens < choice.min_tokens:
            choice = replace(choice, forbidden=choice.forbidden | self.ends)
        is_sound = self.feed and not self.view.own.frozen
        make = Row.checked if is_sound else Row
        return make(self.view, self.feed, choice, self.name, self.tally)

    def read(self, token: int, turn_end: frozenset[int]) -> str:
        """Take the token that was chosen; return the text that it completes."""
        if token in turn_end:
            self.stopped = True
            self.feed = self.unread = ()
            piece = self._decoder.flush()
        else:
            self.num_tokens += 1
            self.step_tokens.append(token)
            if self.tally is not None:
                self.tally.take(token)
            self.feed = self.unread = (token,)
            told = None if self.thinking is None else self.thinking.take(token)
            piece = self._decoder.push(token) if told is None else self._decoder.flush() + told
        self.step_text += piece
        return piece

    def tokens_of(self, size: int) -> tuple[int, ...]:
        """The tokens of the first `size` characters of the step's text.

        They are those that were written; where a token goes on behind these characters, what it has of
        them is encoded anew.
        """
        decoder, num_chars = StreamDecoder(self.vocabulary), 0
        num_whole = num_tokens = 0  # characters, and the tokens that hold them and nothing else
        for number, token in enumerate(self.step_tokens, 1):
            if num_chars >= size:
                break
            num_chars += len(decoder.push(token))
            if num_chars <= size and decoder.is_settled:
                num_whole, num_tokens = num_chars, number
        words = self.step_text[num_whole:size]
        return (*self.step_tokens[:num_tokens], *tokens_behind(self.vocabulary, words))

    def ends_step(self, piece: str) -> bool:
        """Whether the piece completes the step."""
        return self._step_end.push(piece)
