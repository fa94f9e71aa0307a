"""Messages and conversations hold texts, and nothing that a prompt could not be made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from manyhands.errors import InvalidRequest
from manyhands.schema.conversation import Conversation, Message

SAID = Message("user", "Hello.")


@pytest.mark.parametrize("wrong", [None, 5, b"x", ["x"]])
def test_a_text_is_a_text(wrong: Any) -> None:
    """None was asked as if it had been the word."""
    makers: tuple[Callable[[], object], ...] = (
        lambda: Message("user", wrong),
        lambda: Conversation(wrong),
        lambda: Conversation("x", prefill=wrong),
    )
    for make in makers:
        with pytest.raises(
            InvalidRequest, match=f"is of type {type(wrong).__name__}; expected a text"
        ):
            make()


@pytest.mark.parametrize(
    "wrong", [None, 5, SAID, "ab", [None], [SAID, {"role": "user", "content": "x"}]]
)
def test_messages_are_messages(wrong: Any) -> None:
    makers: tuple[Callable[[], object], ...] = (
        lambda: Conversation.of(wrong),
        lambda: Conversation("x", wrong),
    )
    for make in makers:
        with pytest.raises(InvalidRequest, match="where a list of messages was expected"):
            make()


def test_messages_may_be_listed_in_any_way() -> None:
    assert Conversation.of(iter([SAID])) == Conversation("Hello.")  # type: ignore[arg-type]
    earlier: Any = [SAID]
    held = Conversation("x", earlier)
    assert held == Conversation("x", (SAID,))
    assert hash(held) == hash(Conversation("x", (SAID,)))
