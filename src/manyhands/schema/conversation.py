"""A conversation: what was said before, what is asked now, and how the reply begins.

    Conversation.of([
        Message("system", "Be brief."),
        Message("user", "What is 2 + 3?"),
        Message("assistant", "5."),
        Message("user", "And twice that?"),
    ])

It is plain data. A method puts its rules into it (`prompts/template.py::put`), a model's chat template
makes tokens of it (`text/tokens.py::Text.conversation`), a trace keeps it in its header.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from manyhands.errors import InvalidRequest

SYSTEM, USER, ASSISTANT = ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Message:
    """One message: a role (system, user or assistant), and its text."""

    role: str
    text: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise InvalidRequest(
                f"a message has the role {self.role!r}; expected {', '.join(ROLES[:-1])} or {ROLES[-1]}"
            )
        _check_text("the text of a message", self.text)


@dataclass(frozen=True)
class Conversation:
    """`problem` is the newest message of the user, `earlier` stands before it.

    The reply begins with the words of `prefill`, which are not written by the model and are no part of
    what it is said to have written.
    """

    problem: str
    earlier: tuple[Message, ...] = ()
    prefill: str = ""

    def __post_init__(self) -> None:
        _check_text("the problem of a conversation", self.problem)
        _check_text("the prefill of a conversation", self.prefill)
        object.__setattr__(self, "earlier", _messages(self.earlier))

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Conversation:
        """Messages in their order. The last is the user's, or a prefill of the assistant's behind that.

        Raises InvalidRequest for any other order.
        """
        prefill = ""
        said = _messages(messages)
        if said and said[-1].role == ASSISTANT:
            prefill, said = said[-1].text, said[:-1]
        if not said or said[-1].role != USER:
            found = f"a message of the role {said[-1].role}" if said else "no message of the user"
            raise InvalidRequest(
                f"the conversation ends with {found}; expected one of the user"
                + " before that of the assistant" * bool(prefill),
                hint="End with a message of the user, or with the beginning of the reply to one.",
            )
        return cls(said[-1].text, said[:-1], prefill)

    @property
    def messages(self) -> tuple[Message, ...]:
        """All of it but the prefill."""
        return (*self.earlier, Message(USER, self.problem))

    def without_prefill(self) -> Conversation:
        """The same, and the reply begins as it likes."""
        return replace(self, prefill="") if self.prefill else self

    def each(self, change: Callable[[str], str]) -> Conversation:
        """The same with `change` made to every message; the prefill stays."""
        earlier = tuple(Message(one.role, change(one.text)) for one in self.earlier)
        return replace(self, problem=change(self.problem), earlier=earlier)

    def instructed(self, rules: str) -> Conversation:
        """The same with `rules` at the end of the first system message, which is made if there is none."""
        first, rest = self.earlier[:1], self.earlier[1:]
        if first and first[0].role == SYSTEM:
            told = Message(SYSTEM, f"{first[0].text}\n\n{rules}")
        else:
            told, rest = Message(SYSTEM, rules), self.earlier
        return replace(self, earlier=(told, *rest))

    def replied(self, reply: str) -> tuple[Message, ...]:
        """The value of `earlier` in the next turn, once this has been the reply."""
        return (*self.messages, Message(ASSISTANT, self.prefill + reply))


def _check_text(what: str, found: object) -> None:
    if not isinstance(found, str):
        raise InvalidRequest(
            f"{what} is of type {type(found).__name__}; expected a text",
            hint='Give a text, "" for none.',
        )


def _messages(given: object) -> tuple[Message, ...]:
    """The messages of a conversation. Raises InvalidRequest for what is none, as an object of JSON."""
    said = tuple(given) if isinstance(given, Iterable) else (given,)
    wrong = [one for one in said if not isinstance(one, Message)]
    if wrong or not isinstance(given, Iterable):
        raise InvalidRequest(
            f"a {type((wrong or said)[0]).__name__} was given where a list of messages was expected",
            hint='Write [Message("user", "some text"), ...].',
        )
    return said


def conversation_of(problem: str | Conversation) -> Conversation:
    """A problem alone is a conversation, too. Raises InvalidRequest for what is neither."""
    found: object = problem
    if isinstance(found, Conversation):
        return found
    if not isinstance(found, str):
        raise InvalidRequest(
            f"the problem is of type {type(found).__name__}; expected a text, or a Conversation",
            hint="Messages become one by Conversation.of([Message(role, text), ...]).",
        )
    return Conversation(found)
