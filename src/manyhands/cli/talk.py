"""A chat as it stands: what was said, how the next turn is thought about, and the commands that change it.

Nothing is loaded here and nothing is written: `chat.py` does that. A line that begins with a slash is a
command, two slashes begin a message with one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyhands.errors import InvalidRequest, OutputFailed, counted, place_or_room
from manyhands.prompts import Prompts
from manyhands.schema.choosing import choosable, choose, flag_of, pairs
from manyhands.schema.conversation import SYSTEM, Conversation, Message
from manyhands.strategies.methods import METHODS, Method
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import Settings
from manyhands.text import clean_problem
from manyhands.text.clean import cleaned


class Quit(Exception):
    """The user has had enough."""


@dataclass
class Talk:
    """`chosen` are settings by their paths, for whatever methods have them; `turns` end with a reply."""

    method: Method
    chosen: dict[str, Any]
    prompts: Prompts
    system: str = ""
    turns: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.system = cleaned(self.system)

    @property
    def settings(self) -> Settings:
        """Settings of the method, with the choices made among them."""
        settings: Settings = self.method.settings()
        known = choosable(settings)
        return choose(settings, {path: v for path, v in self.chosen.items() if path in known})

    def spec(self, message: str, context: int | None = None) -> RunSpec:
        """The run that replies to a message."""
        words = getattr(self.prompts, self.method.prompt)
        spec = RunSpec(self.method, self.settings, words, "", context)
        return spec.asked(Conversation(clean_problem(message), self.earlier))

    @property
    def earlier(self) -> tuple[Message, ...]:
        """The text that stands before the next message."""
        told = [Message(SYSTEM, self.system)] if self.system else []
        return (*told, *self.turns)

    def replied(self, spec: RunSpec, reply: str) -> None:
        """A turn is complete."""
        said = spec.conversation.replied(reply)
        self.turns = [message for message in said if message.role != SYSTEM]

    def obey(self, line: str) -> str:
        """Follow a command; what the user is told of it.

        Raises InvalidRequest for one that there is not, or that cannot be followed; Quit.
        """
        name, _, argument = line[1:].partition(" ")
        command = _COMMANDS.get(name)
        if command is None:
            raise InvalidRequest(f"there is no command /{name}", hint="/help lists them.")
        return command.follow(self, argument.strip())

    # -- commands --------------------------------------------------------------------------------

    def _help(self, argument: str) -> str:
        width = max(len(command.usage) for command in _COMMANDS.values())
        helps = (c.help.replace("{methods}", ", ".join(METHODS)) for c in _COMMANDS.values())
        lines = [
            f"/{c.usage:{width}}  {said}" for c, said in zip(_COMMANDS.values(), helps, strict=True)
        ]
        return "\n".join([*lines, 'A message of several lines begins with """ and ends with it.'])

    def _method(self, argument: str) -> str:
        if argument:
            if argument not in METHODS:
                raise InvalidRequest(
                    f"there is no method {argument!r}", hint=f"Methods: {', '.join(METHODS)}."
                )
            before, self.method = self.method, METHODS[argument]
            try:
                self.settings  # noqa: B018 (they check themselves)
            except InvalidRequest:
                self.method = before
                raise
        return f"{self.method.name}: {self.method.about}{self._unused()}"

    def _unused(self) -> str:
        """The choices that are not for this method."""
        unused = [path for path in self.chosen if path not in choosable(self.method.settings())]
        return f" (without {', '.join(map(flag_of, unused))})" if unused else ""

    def _workers(self, argument: str) -> str:
        if "workers" not in choosable(self.settings):
            raise InvalidRequest(
                f"the method {self.method.name} has no workers to count", hint="/method hogwild"
            )
        return self._set(f"workers={argument}" if argument else "")

    def _set(self, argument: str) -> str:
        if argument:
            named = pairs([argument])
            choose(self.settings, named)
            self.chosen |= named
        known = choosable(self.settings)
        changed = {path: one.default for path, one in known.items() if path in self.chosen}
        said = (f"{path} = {value}" for path, value in changed.items())
        return ", ".join(said) or f"all as {self.method.name} has it"

    def _system(self, argument: str) -> str:
        if argument:
            self.system = "" if argument == "-" else cleaned(argument)
        return f"system message: {self.system or 'none'}"

    def _reset(self, argument: str) -> str:
        self.turns.clear()
        return "nothing was said yet"

    def _undo(self, argument: str) -> str:
        if not self.turns:
            raise InvalidRequest("there is nothing to take back")
        del self.turns[-2:]
        num_left = len(self.turns) // 2
        return f"{counted(num_left, 'turn')} {'is' if num_left == 1 else 'are'} left"

    def _save(self, argument: str) -> str:
        if not argument:
            raise InvalidRequest("/save needs the name of a file", hint="/save talk.json")
        path = Path(argument).expanduser()
        said = [{"role": each.role, "content": each.text} for each in self.earlier]
        try:
            with path.open("x", encoding="utf-8") as file:
                try:
                    file.write(json.dumps({"messages": said}, ensure_ascii=False, indent=2) + "\n")
                    file.flush()
                    os.fsync(file.fileno())
                except BaseException:
                    # Half of it would be in the way of the next try, which replaces nothing.
                    path.unlink(missing_ok=True)
                    raise
        except FileExistsError as error:
            raise InvalidRequest(f"{argument!r} exists", hint="Give another name.") from error
        except OSError as error:
            raise OutputFailed(
                f"{argument!r} cannot be written: {error.strerror}", hint=place_or_room(error)
            ) from error
        return f"{argument} holds {counted(len(said), 'message')}"

    def _quit(self, argument: str) -> str:
        raise Quit


@dataclass(frozen=True)
class _Command:
    usage: str
    help: str
    follow: Callable[[Talk, str], str]


_COMMANDS = {
    command.usage.split()[0]: command
    for command in (  # {methods}: their names, when /help is asked for
        _Command("method [NAME]", "Another method: {methods}.", Talk._method),
        _Command("workers N", "So many workers.", Talk._workers),
        _Command("set NAME=VALUE", "Any setting, as --set has it.", Talk._set),
        _Command("system [TEXT]", "Another system message; - for none.", Talk._system),
        _Command("undo", "Take the last turn back.", Talk._undo),
        _Command("reset", "Forget all turns.", Talk._reset),
        _Command("save FILE", "Write what was said as messages (JSON).", Talk._save),
        _Command("help", "This.", Talk._help),
        _Command("quit", "Leave; as Ctrl-D does.", Talk._quit),
    )
}
