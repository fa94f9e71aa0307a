"""A team's words in a file: TOML, one table `[team]`, every key a field of `TeamPrompt`.

    [team]
    step_prefix = "{name}, thought {step}:"
    names = ["Ada", "Ben"]

What the file leaves out keeps its default; what we do not know is an error, so that a misspelt key
never passes in silence. `dump_prompt` writes a whole prompt in this form, for editing and for the
folder of a model that was trained with words of its own.
"""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from manyhands.errors import InvalidRequest
from manyhands.prompts.hogwild import TeamPrompt

PROMPT_FILE = "manyhands.toml"  # in a model's folder
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}


def load_prompt(path: str | Path) -> TeamPrompt:
    """The prompt in the TOML file `path`. Any mistake in it is an `InvalidRequest`."""
    where = f"prompt file '{path}'"
    document = _document(Path(path), where)
    known = ", ".join(field.name for field in fields(TeamPrompt))
    for key in document:
        if key != "team":
            raise InvalidRequest(
                f"{where} contains '{key}' outside the table [team]",
                hint=f"put everything under [team]; known keys: {known}",
            )
    team = document.get("team")
    if not isinstance(team, dict):
        raise InvalidRequest(
            f"{where} has no table [team]", hint=f"begin with [team]; known keys: {known}"
        )
    unknown = sorted(set(team) - {field.name for field in fields(TeamPrompt)})
    if unknown:
        listed = ", ".join(f"'{key}'" for key in unknown)
        raise InvalidRequest(f"{where} has unknown keys: {listed}", hint=f"known keys: {known}")
    try:
        return TeamPrompt(**team)
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}: {error}", hint=error.hint) from error


def model_prompt(folder: str | Path) -> TeamPrompt:
    """The words that the model in `folder` was trained with, if it brings any; else the defaults."""
    own = Path(folder).expanduser() / PROMPT_FILE
    return load_prompt(own) if own.is_file() else TeamPrompt()


def dump_prompt(prompt: TeamPrompt) -> str:
    """TOML text that `load_prompt` reads back into an equal prompt."""
    lines = ["[team]"]
    for field in fields(prompt):
        value = getattr(prompt, field.name)
        if isinstance(value, tuple):
            lines.append(f"{field.name} = [{', '.join(map(_quoted, value))}]")
        else:
            lines.append(f"{field.name} = {_text(value)}")
    return "\n".join(lines) + "\n"


def _document(path: Path, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise InvalidRequest(
            f"{where} cannot be read: {error.strerror or error}",
            hint="give the path of a TOML file with a table [team]",
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{where} is not UTF-8 (byte {error.start})", hint="save the file as UTF-8"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(
            f"{where} is not valid TOML: {error}",
            hint="put texts in quotes; in \"...\" write a backslash twice, in '...' once",
        ) from error


def _text(value: str) -> str:
    """Long texts over several lines and as they are, ready for editing; short ones quoted."""
    is_long = "\n" in value.strip("\n")
    if is_long and "'''" not in value and not value.endswith("'"):
        return f"'''\n{value}'''"
    return _quoted(value)


def _quoted(value: str) -> str:
    return '"' + "".join(_ESCAPES.get(char, char) for char in value) + '"'
