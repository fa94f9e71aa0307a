"""A reasoning model's text while it is written: what of it is thinking, what the reply, and what neither.

Most models close their thinking with a token, and what follows is the reply:

    3 + 4 is 7.</think>Seven.

gpt-oss writes several messages, each in a channel (OpenAI's format "harmony"). The text in the channel `final` is the
reply, that in any other is thinking, and what stands between two messages is neither:

    3 + 4 is 7.<|end|><|start|>assistant<|channel|>final<|message|>Seven.<|return|>

So the reply begins there with the mark behind the name of its channel, and whatever begins or ends a message ends it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Protocol

_FINAL: Final = re.compile(r"\s*final(?![^\s<])")  # a mark may follow at once
_BETWEEN: Final = "\n\n"  # told between two messages that are thinking


@dataclass(frozen=True)
class ThinkingMarks:
    """How a family of reasoning models marks its thinking.

    `opens` is added to a prompt whose template leaves the choice to the model, `replies` where it is not to think.
    With `channels`, what closes the thinking does not begin the reply yet; `ends` are those tokens of the family
    that end a turn, whatever its files say.
    """

    mark: str  # its template contains this
    opens: str
    closes: str  # one token in its vocabulary, and the end of a thinking turn
    replies: str = ""
    begins: str = ""  # a message of the model, before its channel
    # Tokens that begin or end a message; behind the last one stands its text.
    channels: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()

    def is_open_in(self, prompt: str) -> bool:
        """Whether a prompt ends within a thinking."""
        return prompt.rfind(self.mark) > prompt.rfind(self.closes)

    @property
    def closing(self) -> str:
        """All that stands between a thinking and the reply."""
        return self.closes + self.begins + self.replies

    def cut_out(self, reply: str) -> str:
        """A reply less the thinking before it, if that is spelled out in these marks."""
        if not self.channels:
            return reply.rpartition(self.closes)[2].lstrip() if self.closes in reply else reply
        _, found, said = reply.rpartition(self.replies)
        if not found:
            return "" if self.opens in reply else reply
        for mark in (*self.channels, *self.ends):
            said = said.partition(mark)[0]
        return said


THINKING: Final = (
    ThinkingMarks("<think>", "<think>\n", "</think>"),
    ThinkingMarks("[THINK]", "[THINK]", "[/THINK]"),
    ThinkingMarks(
        "<|channel|>analysis",
        "<|channel|>analysis<|message|>",
        "<|end|>",
        replies="<|channel|>final<|message|>",
        begins="<|start|>assistant",
        channels=("<|end|>", "<|start|>", "<|channel|>", "<|message|>"),
        ends=("<|return|>", "<|call|>"),
    ),
)


class Vocabulary(Protocol):
    """The protocol of a vocabulary: the part of a `Text` that is asked here."""

    think_end: int | None
    channels: tuple[int, ...]
    eos: frozenset[int]
    reply_end: frozenset[int]

    def decode(self, tokens: list[int], /, *, special: bool) -> str:
        """Their text; `special`: with special tokens."""


class ThinkingWatch:
    """Tells of each token of a text whether it is `thinking` behind it.

    `is_message`: the model answers, as its chat template has it. Any other text is told as it stands.
    """

    def __init__(self, text: Vocabulary, thinking: bool, *, is_message: bool = True) -> None:
        self.thinking = thinking
        self._text = text
        self._is_message = is_message
        self._text_mark = text.channels[-1] if text.channels and is_message else None
        self._name: list[int] | None = None  # the words before the text of a message, so far
        self._has_thought = False  # since the message before began

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end the text, if one of them comes next."""
        is_reply = self._is_message and not self.thinking
        return self._text.reply_end if is_reply else self._text.eos

    def take(self, token: int) -> str | None:
        """Take the next token; the text that stands for it, None if that is its own."""
        if self._text_mark is None:
            if not (self.thinking and token == self._text.think_end):
                return None
            self.thinking = False
            return ""
        if token == self._text_mark:
            return self._begin()
        if token in self._text.channels:
            self._name = []
            return ""
        if self._name is not None:
            self._name.append(token)
            return ""
        self._has_thought = True
        return None

    def _begin(self) -> str:
        """The text of a message begins; what is told before it."""
        if self._name is None:  # within a text it means nothing
            return ""
        name, self._name = self._text.decode(self._name, special=True), None
        self.thinking = _FINAL.match(name) is None
        if not (self.thinking and self._has_thought):
            return ""
        self._has_thought = False
        return _BETWEEN
