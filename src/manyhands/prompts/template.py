r"""The common part of all prompts: texts with placeholders, checked when a prompt is made; and where
their rules stand in a conversation.

Placeholders are written `{name}`; other braces, `\boxed{...}` among them, mean themselves. A prompt is
a frozen dataclass of texts (`str`) and lists of texts (`tuple[str, ...]`), which is what a table of TOML gives back; it
says which of its texts may hold which placeholders.

The rules of a method stand in one of two places (`rules_in`, a field of every table):

    user      around the newest message of the user, as all models here were trained; messages before it
              are as they were said, without rules
    system    at the end of the system message, with `NEWEST` in the place of the problem; then a
              conversation grows at its end alone, and each turn finds all of the turn before it in memory
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

from manyhands.errors import InvalidRequest
from manyhands.schema.conversation import Conversation

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# `\boxed{answer}` and `\frac{a}{b}` are formulae, not misspelt placeholders
_MISSPELT = re.compile(r"(?<![\w\\}])\{([a-z_]+)\}")

_TEXTS = (str, "str")  # as annotations of a prompt's fields stand there, evaluated or not
_LISTS = (tuple[str, ...], "tuple[str, ...]")

Placeholders = Mapping[str, frozenset[str]]  # a field -> the names in braces
RULES_IN = ("user", "system")
NEWEST = "(the newest message of the user)"


def filled(template: str, **values: str) -> str:
    """Replace placeholders in one pass, so that a value is never searched for placeholders."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), template)


def put(conversation: Conversation, rules: Callable[[str], str], rules_in: str) -> Conversation:
    """The conversation with the rules where they belong; `rules` fills a problem into them."""
    if rules_in == "system":
        return conversation.instructed(rules(NEWEST))
    return replace(conversation, problem=rules(conversation.problem))


def check_texts(prompt: Any, allowed: Placeholders, required: Placeholders) -> None:
    """Look at every text of a prompt; `InvalidRequest` names the field and what is wrong with it.

    Lists of texts become tuples, as TOML and JSON have none. What else a list must be, its prompt says behind this. Raises
    TypeError for a prompt with a field of another kind: its author's mistake.
    """
    rules_in = getattr(prompt, "rules_in", RULES_IN[0])
    if rules_in not in RULES_IN:
        raise InvalidRequest(
            f"prompt field 'rules_in' is {rules_in!r}, expected {' or '.join(RULES_IN)}"
        )
    for field in fields(prompt):
        value = getattr(prompt, field.name)
        if field.type in _LISTS:
            object.__setattr__(prompt, field.name, _checked_list(field.name, value))
            continue
        if field.type not in _TEXTS:
            raise TypeError(
                f"{type(prompt).__name__}.{field.name} is annotated as {field.type}; the fields of a prompt are str or "
                "tuple[str, ...], which a file of prompts can hold"
            )
        if not isinstance(value, str):
            kind = type(value).__name__
            raise InvalidRequest(f"prompt field '{field.name}' is a {kind}, expected text")
        _check_characters(field.name, value)
        nothing: frozenset[str] = frozenset()
        known, needed = allowed.get(field.name, nothing), required.get(field.name, nothing)
        _check_placeholders(field.name, value, known, needed)


def _checked_list(field: str, value: object) -> tuple[str, ...]:
    """A list of texts as a tuple."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidRequest(
            f"prompt field '{field}' is a {type(value).__name__}, expected a list of texts"
        )
    for text in value:
        if not isinstance(text, str):
            raise InvalidRequest(f"prompt field '{field}' has {text!r}, expected a list of texts")
        _check_characters(field, text)
    return tuple(value)


@lru_cache(512)  # most prompts are those that come along
def _check_characters(field: str, value: str) -> None:
    r"""Refuse control characters: TOML reads the `\b` of `"\boxed"` as a backspace."""
    found = _CONTROL.search(value)
    if found:
        raise InvalidRequest(
            f"prompt field '{field}' contains the control character U+{ord(found[0]):04X}",
            hint='write a backslash twice in "...", for instance "\\\\boxed{"',
        )


@lru_cache(512)
def _check_placeholders(
    field: str, value: str, allowed: frozenset[str], required: frozenset[str]
) -> None:
    listed = ", ".join(f"{{{name}}}" for name in sorted(allowed)) or "none"
    for name in _MISSPELT.findall(value):
        if name not in allowed:
            raise InvalidRequest(
                f"prompt field '{field}' contains the unknown placeholder {{{name}}}",
                hint=f"placeholders of '{field}': {listed}",
            )
    for name in sorted(required):
        if f"{{{name}}}" not in value:
            raise InvalidRequest(
                f"prompt field '{field}' lacks the placeholder {{{name}}}",
                hint=f"placeholders of '{field}': {listed}; put {{{name}}} where it belongs",
            )
