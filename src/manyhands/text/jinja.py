"""Rendering a chat template by jinja2: the child's side of `text/templates.py`.

The names and filters are those that transformers gives to templates (`utils/chat_template_utils.py`, which
takes a second to import). A test holds the two against each other. This file alone imports jinja2, and it
is imported in the child alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


def rendered(
    source: str, messages: Sequence[Mapping[str, str]], words: Mapping[str, Any]
) -> tuple[str | None, str | None]:
    """The text, or the template's own refusal."""
    try:
        known = {"tools": None, "documents": None, "add_generation_prompt": True, **words}
        return _compiled(source).render(messages=messages, **known), None
    except TemplateError as error:
        return None, str(error)


@lru_cache(maxsize=16)
def _compiled(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment.from_string(source)


class _Generation(Extension):
    """`{% generation %}` marks, for training, what an assistant wrote. It changes no text."""

    tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Dict:
    """`dict(...)` and `dict.fromkeys`, without the other attributes of the type."""

    def __call__(self, *args: Any, **keys: Any) -> dict[Any, Any]:
        return dict(*args, **keys)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """`namespace(...)`, without names that lead to the insides of Python."""

    def __init__(*args: Any, **keys: Any) -> None:  # `self` may be one of the names
        for name in dict(*args[1:], **keys):
            _check(name)
        Namespace.__init__(*args, **keys)

    def __setitem__(self, name: str, value: Any) -> None:
        _check(name)
        super().__setitem__(name, value)


def _check(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace of a chat template cannot have the attribute {name!r}")


def _raise(message: str) -> None:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """Unlike jinja2's own, this leaves `<` and `&` as they are."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
