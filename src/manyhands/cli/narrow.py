"""Help for a narrow terminal: every option has a line of its own, and its text stands beneath.

Typer lays a command's options out in columns, and has no setting for another form. Where the terminal has less than `AMPLE`
cells a line, some of these columns are too narrow for what stands in them, and it cuts it: of `--repetition-penalty` is left
`--repetition-pe…`. So there `GuardedCommand` and `GuardedGroup` ask for the help here. It is made of the same parameters, panels
and sentences; nothing is declared for it.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable
from typing import Any

AMPLE = 76  # cells of a line in which typer cuts no word of any command
_BENEATH = "    "


def narrow_width() -> int:
    """The cells of a line, where typer would cut words; else 0."""
    from rich.console import Console
    from typer import rich_utils

    width = Console(width=rich_utils.MAX_WIDTH).width
    return width if width < AMPLE else 0


def narrow_help(command: Any, context: Any, width: int) -> str:
    """The help of typer's `command` in lines of at most `width` cells."""
    pieces = [command.get_usage(context), *_paragraphs(command.help)]
    panels: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
        if record is not None:
            panels.setdefault(parameter.rich_help_panel or usual, []).append(record)
    for name in getattr(command, "list_commands", lambda _: ())(context):
        one = command.get_command(context, name)
        if not one.hidden:
            first, *_ = _paragraphs(one.help)
            panels.setdefault("Commands", []).append((name, first))
    lines = ["\n\n".join(_filled(piece, width) for piece in pieces)]
    for panel, records in panels.items():
        lines += ["", _filled(f"{panel}:", width)]
        for name, text in records:
            lines += [_filled(name, width), *_beneath(text, width)]
    lines += ["", *(_filled(piece, width) for piece in _paragraphs(command.epilog))]
    return "\n".join(lines)


def _paragraphs(text: str | None) -> list[str]:
    return [" ".join(part.split()) for part in inspect.cleandoc(text or "").split("\n\n")]


def _filled(text: str, width: int) -> str:
    """Words in lines; one that is longer than a line goes on in the next."""
    return textwrap.fill(" ".join(text.split()), width, break_on_hyphens=False)


def _beneath(text: str, width: int) -> Iterable[str]:
    filled = _filled(text, max(width - len(_BENEATH), len(_BENEATH)))
    return (_BENEATH + line for line in filled.splitlines())
