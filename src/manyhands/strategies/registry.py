"""A Registry: all kinds of one root class by their names, with one encoding.

    EVENTS.to_line(StepEnded(7, 0, 1, "Done."))    {"event": "StepEnded", "forward_pass": 7, ...}
    EVENTS.from_line({"event": "StepEnded", ...})  StepEnded(7, 0, 1, "Done.")

A kind is a frozen dataclass of plain fields. It joins the registry by being defined: its root calls
`add` in `__init_subclass__`. So a strategy that brings an event of its own brings its encoding too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Generic, TypeVar

from manyhands.errors import BrokenTrace, InvalidRequest
from manyhands.schema.plain import from_plain, plain_fields

Kind = TypeVar("Kind")


class Registry(Generic[Kind]):
    """Kinds by name. `tag` is the key that holds the name in a line."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.kinds: dict[str, type[Kind]] = {}
        self._may_be_missing: dict[type[Any], set[str]] = {}  # fields, looked up once

    def add(self, kind: type[Kind]) -> None:
        """Enter a kind. TypeError if another class has its name, or if a field is named as the tag."""
        known = self.kinds.setdefault(kind.__name__, kind)
        if (known.__module__, known.__qualname__) != (kind.__module__, kind.__qualname__):
            raise TypeError(f"there are two classes {kind.__name__}: {known!r} and {kind!r}")
        if self.tag in vars(kind).get("__annotations__", {}):
            raise TypeError(
                f"{kind.__name__} has a field {self.tag!r}, which names the kind itself"
            )
        self.kinds[kind.__name__] = kind  # a module that is loaded anew defines its classes anew

    def to_line(self, value: Kind) -> dict[str, Any]:
        """The object as plain data: its name under the tag, then its fields.

        A field that is None where None is its default is left out. Numbers of other libraries become Python's own. Raises
        InvalidRequest for what would not come back: a value that its field's annotation does not say, nan, an array in the
        place of a number.
        """
        kind: Any = type(value)
        line: dict[str, Any] = {self.tag: kind.__name__}
        try:
            for name, exact, write in plain_fields(kind):
                found = getattr(value, name)
                line[name] = found if type(found) in exact else write(found, name)
        except TypeError as error:
            raise InvalidRequest(
                f"the {self.tag} {kind.__name__} does not fit its class: {error}",
                hint="Fields are numbers, texts, None, and tuples, mappings and dataclasses of these, as they are annotated.",
            ) from error
        if kind not in self._may_be_missing:
            optional = (field.name for field in fields(kind) if field.default is None)
            self._may_be_missing[kind] = line.keys() & set(optional)
        for name in self._may_be_missing[kind]:
            if line[name] is None:
                del line[name]
        return line

    def from_line(self, line: Mapping[str, Any]) -> Kind:
        """`to_line` backwards. Raises BrokenTrace for an unknown name and for fields that do not fit."""
        fields = dict(line)
        name = fields.pop(self.tag, None)
        kind = self.kinds.get(name) if isinstance(name, str) else None
        if kind is None:
            raise BrokenTrace(
                f"the {self.tag} {name!r} is unknown here; known are {', '.join(sorted(self.kinds))}",
                hint="A newer version of manyhands wrote it, or a method whose distribution is not installed here, or a strategy of your own: commands know none of these, and a program that imports it reads the trace by replay.trace.read_trace.",
            )
        try:
            value: Kind = from_plain(kind, fields)
        except (TypeError, ValueError, InvalidRequest) as error:
            raise BrokenTrace(
                f"the {self.tag} {name} does not fit its class: {error}",
                hint="The file is damaged, or another version of manyhands wrote it.",
            ) from error
        return value
