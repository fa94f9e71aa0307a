"""A Block: a run of tokens with its own ruler.

Keys of a block are kept as though its first token stood at position 0 (Hogwild! Inference, app. B,
"Cache blocks"). Where a block stands in a row's context is not a property of the block: it follows
from the View that reads it. That is why a finished paragraph moves into the history by a change of views alone.

Blocks are written to by rows and grow; views, rows, steps and plans, which hold them, never change. Two blocks are never equal, even
with the same tokens: a block is an identity, and when the last view that holds it is gone, so are its
keys and values.
"""

from __future__ import annotations

from typing import NoReturn, final

from manyhands.errors import InvalidRequest, counted


@final
class Block:
    """A growing run of tokens. Readers see all of it; one row at a time writes to it.

    It is filled by rows, in one engine. Tokens that were put here by hand or by another engine have no keys in
    this one, which refuses to read them (InvalidRequest). Those at its end may be taken away by hand while no pass is made; one
    that is exchanged keeps the key of the token before it, which is not noticed.
    """

    __slots__ = ("__weakref__", "frozen", "name", "tokens")

    def __init_subclass__(cls) -> None:
        refuse_subclass(cls, "Block")

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.tokens: list[int] = []
        self.frozen = False

    def __setattr__(self, name: str, value: object) -> None:
        """Set a field. Raises InvalidRequest for tokens to which no row could write, a name that is no text, and where a frozen block is to thaw."""
        if name == "tokens" and type(value) is not list:
            raise InvalidRequest(
                f"the tokens of a block were set to a {type(value).__name__}; expected a list",
                hint="Write block.tokens[size:] = [], to take tokens away from its end.",
            )
        if name == "name" and not isinstance(value, str):
            raise InvalidRequest(
                f"the name of a block is of type {type(value).__name__}; expected a text",
                hint='Write Block("notes"), for instance.',
            )
        if name == "frozen" and not value and getattr(self, name, False):
            raise InvalidRequest(
                f"{self!r} was to be written to again; what was frozen stays so, for memory may have moved it",
                hint="Let the row's view end with a fresh Block.",
            )
        object.__setattr__(self, name, value)

    @property
    def num_tokens(self) -> int:
        """How many tokens the block holds; its next token gets this index."""
        return len(self.tokens)

    def freeze(self) -> Block:
        """Declare the block finished. Memory may then store it together with its neighbours."""
        self.frozen = True
        return self

    def check_writable(self) -> None:
        """Raise if a row may not write to this block."""
        if self.frozen:
            raise InvalidRequest(
                f"{self!r} is frozen, and a row was asked to write to it",
                hint="Let the row's view end with a fresh Block.",
            )

    def __repr__(self) -> str:
        state = "frozen, " if self.frozen else ""
        return f"Block({self.name!r}, {state}{counted(self.num_tokens, 'token')})"


def refuse_subclass(kind: type, base: str) -> NoReturn:
    """Raise InvalidRequest for a class that would be a kind of Block, View, Lanes or Beginning.

    What a row reads is told by their exact types and lengths, for all rows of a pass at once: a kind with another length would
    give wrong positions, and end everybody's pass.
    """
    raise InvalidRequest(
        f"{kind.__name__} would be a kind of {base}; expected no class that goes on from {base}",
        hint=f"Hold a {base} in an object of your own.",
    )
