"""Tokens in, one by one; text out as soon as it is certain. The pieces join to the whole.

Decoding a token alone loses the blank before it (SentencePiece) and breaks characters that are cut
across tokens (byte-level BPE). So the newest tokens are decoded behind the ones settled last, and
what is new in that text is given out. A tail of U+FFFD is a character still incomplete: it waits
for more. The window is a few tokens, so a token costs the same however long the text is. Where decoding joins the
bytes of tokens, those that are whole characters are decoded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from manyhands.text.tokens import Text

_REPLACEMENT: Final = "\ufffd"
_LONG_WAIT: Final = 64  # tokens; a character is at most four, so by then the bytes are broken
_IN_FRONT: Final = 8  # tokens: some have no text, and a character is at most four


def in_front(text: Text, tokens: Sequence[int]) -> tuple[int, ...]:
    """The last of these tokens, to be pushed before those of a text that goes on from them: a blank that begins it is not lost.

    None where no token's text depends on what stands before it, and where they end within a character.
    """
    if text.pieces() is not None:
        return ()
    for size in range(1, min(_IN_FRONT, len(tokens)) + 1):
        decoder, last = StreamDecoder(text), tuple(tokens[-size:])
        if "".join(map(decoder.push, last)) and decoder.is_settled:
            return last
    return ()


class StreamDecoder:
    """One worker's tokens as text. `flush` at the end gives what was still incomplete."""

    def __init__(self, text: Text, *, special: bool = False) -> None:
        self._text = text
        self._special = special
        self._settled: list[int] = []
        self._waiting: list[int] = []
        self._given = 0  # characters of decode(settled + waiting) that were given out
        self._lengths = text.lengths(special=special)
        self._pieces = text.pieces(special=special)

    @property
    def is_settled(self) -> bool:
        """Whether all text of all tokens was given out: none ends within a character."""
        return not self._waiting

    def push(self, token: int) -> str:
        """The text that this token makes certain, often its own, sometimes empty."""
        pieces = self._pieces
        if pieces and not self._waiting and (known := pieces.get(token)):
            self._settled, self._given = [token], len(known)
            return known
        if not self._special and self._text.hides(token):
            return ""
        self._waiting.append(token)
        text = self._decode(self._settled + self._waiting)
        certain = text.rstrip(_REPLACEMENT)
        piece = certain[self._given :]
        self._given = max(self._given, len(certain))
        if piece and certain == text:
            if pieces is not None and len(self._waiting) == 1 and _REPLACEMENT not in text:
                pieces[token] = piece
            self._settle(len(self._waiting))
        elif len(self._waiting) >= _LONG_WAIT:
            piece += self._give_up_waiting(text)
        return piece

    def flush(self) -> str:
        """The text that still waits, incomplete as it may be."""
        piece = self._decode(self._settled + self._waiting)[self._given :]
        self._settle(len(self._waiting))
        return piece

    def _give_up_waiting(self, text: str) -> str:
        """Settle all but the last few tokens, at a place where that does not cut a character."""
        last = len(self._waiting)
        for size in range(last - 1, last - 4, -1):
            head = self._decode(self._settled + self._waiting[:size])
            if head + self._decode(self._waiting[size:]) == text:
                break
        piece = head[self._given :]
        ahead = max(0, self._given - len(head))
        self._settle(size)
        self._given += ahead
        return piece

    def _settle(self, size: int) -> None:
        if size:
            self._settled, self._waiting = self._waiting[:size], self._waiting[size:]
        if len(self._settled) == 1:  # as nearly always: the length of the token alone
            (token,) = self._settled
            if (length := self._lengths.get(token)) is None:
                length = self._lengths[token] = len(self._decode(self._settled))
            self._given = length
        else:
            self._given = len(self._decode(self._settled))

    def _decode(self, tokens: Sequence[int]) -> str:
        return self._text.decode(tokens, special=self._special)
