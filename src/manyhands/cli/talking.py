"""A person's lines while a team thinks, as items for the run (`strategies/listening.py`).

Look at 2 cos x = 1.       said to all, under the person's name
/pause Bob                 a command; COMMANDS has them all
//, that was a slash       a line that begins with a slash
"""

from __future__ import annotations

import getpass
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from manyhands.errors import Busy, InvalidRequest
from manyhands.strategies.account import Account
from manyhands.strategies.listening import (
    AddWorker,
    AnswerNow,
    DismissWorker,
    Item,
    PauseWorker,
    ResumeWorker,
    Said,
)

GUEST = "Guest"


@dataclass(frozen=True)
class Command:
    """A line that begins with a slash: what it is called with, and the item that it makes.

    A `worker` is named, and `make` is given its number; without one `make` is given the words as they are.
    """

    make: Callable[..., Item]
    takes: str = ""
    worker: bool = False


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "pause": Command(PauseWorker, "NAME", worker=True),
        "resume": Command(ResumeWorker, "NAME", worker=True),
        "dismiss": Command(DismissWorker, "NAME", worker=True),
        "add": Command(AddWorker, "NAME"),
        "answer": Command(AnswerNow),
    }
)
HELP = (
    "Enter says a line to all. "
    + " · ".join(f"/{name} {command.takes}".strip() for name, command in COMMANDS.items())
    + " · /help"
)
HINT = "Enter sends · /help"


class TypedLines:
    """A person and a run. `note` is the last word on what was typed: an error, or what helps."""

    def __init__(
        self, account: Account, say: Callable[[Item], None], name: str | None = None
    ) -> None:
        self.account, self._say = account, say
        self.name = name or own_name([hand.name for hand in account.hands])
        self.note = HINT

    def take(self, line: str) -> None:
        """Do what a line says."""
        self.note = HINT
        if not line.strip():
            return
        try:
            item = self.item_of(line)
            if item is None:
                self.note = HELP
            else:
                self._say(item)
        except (Busy, InvalidRequest) as error:
            self.note = f"{error} {error.hint}".strip()

    def item_of(self, line: str) -> Item | None:
        """The item that a line says to the run; None if it asks for help. InvalidRequest if it cannot be said."""
        if not line.startswith("/") or line.startswith("//"):
            return Said(line.removeprefix("/"), self.name)
        word, _, rest = line[1:].strip().partition(" ")
        rest = rest.strip()
        if word == "help":
            return None
        command = COMMANDS.get(word)
        if command is None:
            known = ", ".join(f"/{name}" for name in (*COMMANDS, "help"))
            raise InvalidRequest(f"there is no command /{word}; expected one of {known}.")
        if bool(rest) != bool(command.takes):
            raise InvalidRequest(f"expected: /{word} {command.takes}".strip())
        if not command.takes:
            return command.make()
        return command.make(self._number_of(rest) if command.worker else rest)

    def _number_of(self, name: str) -> int:
        workers = {
            hand.name.casefold(): number
            for number, hand in enumerate(self.account.hands)
            if not hand.is_person
        }
        if name.casefold() not in workers:
            known = ", ".join(hand.name for hand in self.account.hands if not hand.is_person)
            raise InvalidRequest(f"there is no worker {name!r}; expected one of {known}.")
        return workers[name.casefold()]


def own_name(taken: list[str]) -> str:
    """The name of the user, as a teammate would be called; Guest where that is a worker's or none."""
    try:
        name = getpass.getuser().strip()
    except (OSError, KeyError, ImportError):  # a user without a name
        name = ""
    name = name[:1].upper() + name[1:]
    return name if name.isprintable() and name and name not in taken else GUEST
