r"""What all prompts have in common: texts with placeholders, checked when a prompt is made.

Placeholders are written `{name}`; other braces, `\boxed{...}` among them, mean themselves. A prompt is
a frozen dataclass whose texts are plain strings; it says which of them may hold which placeholders.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from manyhands.errors import InvalidRequest

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# `\boxed{answer}` and `\frac{a}{b}` are formulae, not misspelt placeholders
_MISSPELT = re.compile(r"(?<![\w\\}])\{([a-z_]+)\}")

Placeholders = Mapping[str, frozenset[str]]  # a field -> the names in braces


def filled(template: str, **values: str) -> str:
    """Replace placeholders in one pass, so that a value is never searched for placeholders."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), template)


def check_texts(prompt: Any, allowed: Placeholders, required: Placeholders) -> None:
    """Look at every text of a prompt; `InvalidRequest` names the field and what is wrong with it.

    A field that is not annotated as a text is left to its owner.
    """
    for field in fields(prompt):
        if field.type not in (str, "str"):
            continue
        value = getattr(prompt, field.name)
        if not isinstance(value, str):
            kind = type(value).__name__
            raise InvalidRequest(f"prompt field '{field.name}' is a {kind}, expected text")
        _check_characters(field.name, value)
        nothing: frozenset[str] = frozenset()
        known, needed = allowed.get(field.name, nothing), required.get(field.name, nothing)
        _check_placeholders(field.name, value, known, needed)


def _check_characters(field: str, value: str) -> None:
    r"""Refuse control characters: TOML reads the `\b` of `"\boxed"` as a backspace."""
    found = _CONTROL.search(value)
    if found:
        raise InvalidRequest(
            f"prompt field '{field}' contains the control character U+{ord(found[0]):04X}",
            hint='write a backslash twice in "...", for instance "\\\\boxed{"',
        )


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
