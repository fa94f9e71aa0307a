"""TOML files of a user: prompts, recipes. Every one is read here, so the same mistake gets the same words."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from manyhands.errors import InvalidRequest
from manyhands.schema.bounded import read_small


def read_toml(path: Path, where: str, hint: str = "give the path of a TOML file") -> dict[str, Any]:
    """The tables of the file; `where` names it in errors, `hint` mends a path that cannot be read.

    A byte order mark at its beginning, as editors on Windows write it, is no part of it. Raises InvalidRequest for a file
    that cannot be read, is not UTF-8 or is not TOML.
    """
    try:
        return tomllib.loads(read_small(path).decode("utf-8-sig"))
    except OSError as error:
        raise InvalidRequest(
            f"{where} cannot be read: {error.strerror or error}", hint=hint
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{where} is not UTF-8 (byte {error.start})", hint="save the file as UTF-8"
        ) from error
    except RecursionError as error:
        raise InvalidRequest(
            f"{where} is not valid TOML: tables lie too deep in each other", hint="repair the file"
        ) from error
    except ValueError as error:
        if not isinstance(
            error, tomllib.TOMLDecodeError
        ):  # the only other thing that Python's reader refuses
            raise InvalidRequest(
                f"{where} holds a number of too many digits", hint="repair the file"
            ) from error
        raise InvalidRequest(
            f"{where} is not valid TOML: {error}",
            hint="put texts in quotes; in \"...\" write a backslash twice, in '...' once",
        ) from error
