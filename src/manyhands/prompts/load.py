r"""All words of a model in one file: TOML, one table for each kind of prompt.

    [team]                                      hogwild and sequential: `TeamPrompt`
    step_prefix = "{name}, thought {step}:"
    names = ["Ada", "Ben"]

    [branches]                                  branches: `BranchPrompt`
    finisher = "So the answer is \\boxed{"

What the file leaves out keeps its default, or stays as the model brings it; what we do not know is an
error, so that a misspelt key never passes in silence. `dump_prompts` writes everything in this form, for
editing and for the folder of a model that was trained with words of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from manyhands.errors import InvalidRequest
from manyhands.hub import file_of
from manyhands.prompts.async_reasoning import AsyncReasoningPrompt
from manyhands.prompts.async_think import AsyncThinkPrompt
from manyhands.prompts.branches import BranchPrompt
from manyhands.prompts.hogwild import TeamPrompt
from manyhands.prompts.profiled import ProfilePrompt
from manyhands.prompts.skeleton import SkeletonPrompt
from manyhands.prompts.votes import VotesPrompt
from manyhands.schema.bounded import path_of
from manyhands.schema.toml import read_toml

PROMPT_FILE = "manyhands.toml"  # beside a model's weights
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}


@dataclass(frozen=True)
class Prompts:
    """The words of every method. Each field is a table of the file, under the same name."""

    team: TeamPrompt = field(default_factory=TeamPrompt)
    branches: BranchPrompt = field(default_factory=BranchPrompt)
    skeleton: SkeletonPrompt = field(default_factory=SkeletonPrompt)
    profiled: ProfilePrompt = field(default_factory=ProfilePrompt)
    async_reasoning: AsyncReasoningPrompt = field(default_factory=AsyncReasoningPrompt)
    async_think: AsyncThinkPrompt = field(default_factory=AsyncThinkPrompt)
    votes: VotesPrompt = field(default_factory=VotesPrompt)


# Which kind of prompt stands in which table.
TABLES: dict[str, type[Any]] = {
    table.name: type(getattr(Prompts(), table.name)) for table in fields(Prompts)
}


def load_prompts(path: str | Path, own: Prompts | None = None) -> Prompts:
    """The prompts in the TOML file `path`. Any mistake in it is an `InvalidRequest`.

    What the file leaves out is as in `own`, the words that a model brings (`model_prompts`), or else
    the default.
    """
    where, file = f"prompt file '{path}'", path_of(path, "a file of prompts")
    document = read_toml(file, where, "give the path of a TOML file (manyhands prompts prints one)")
    listed = ", ".join(f"[{name}]" for name in TABLES)
    for key, value in document.items():
        if key not in TABLES:
            found = f"the unknown table [{key}]" if isinstance(value, dict) else f"'{key}'"
            raise InvalidRequest(
                f"{where} contains {found} outside the tables it may have",
                hint=f"put everything under one of {listed}",
            )
    if not document:
        raise InvalidRequest(f"{where} has no table", hint=f"begin with one of {listed}")
    own = own or Prompts()
    follows = own.votes.rules == _of_attempts(own.team)
    given = {name: _table(getattr(own, name), document[name], where, name) for name in document}
    prompts = replace(own, **given)
    if "rules" in document.get("votes", {}) or not follows:
        return prompts
    return replace(prompts, votes=replace(prompts.votes, rules=_of_attempts(prompts.team)))


def _of_attempts(team: TeamPrompt) -> str:
    """An attempt is asked for as one worker alone is, if nothing else is said."""
    return team.solo_rules.replace("{problem}", "{question}")


def load_prompt(path: str | Path) -> TeamPrompt:
    """The table [team] of the file `path`."""
    return load_prompts(path).team


def model_prompts(model: str | Path, adapter: str | Path | None = None) -> Prompts:
    """The words that the LoRA `adapter` or else `model` was trained with; the defaults where neither brings any.

    "bundled", a folder, or a name on the hub, of which this one file is fetched. ModelNotFound if there is no such
    model or it cannot be reached. A loaded engine has them as `engine.prompts`.
    """
    own = file_of(adapter if adapter is not None and brings_words(adapter) else model, PROMPT_FILE)
    return load_prompts(own) if own is not None else Prompts()


def brings_words(adapter: str | Path | None) -> bool:
    """Whether words lie in the folder of a LoRA adapter."""
    if adapter is None:
        return False
    return path_of(adapter, "an adapter").expanduser().joinpath(PROMPT_FILE).is_file()


def model_prompt(model: str | Path) -> TeamPrompt:
    """The words for a team, or one worker alone, that `model` was trained with."""
    return model_prompts(model).team


def dump_prompts(prompts: Prompts) -> str:
    """TOML text that `load_prompts` reads back into equal prompts."""
    return "\n".join(_dumped(name, getattr(prompts, name)) for name in TABLES)


def dump_prompt(prompt: TeamPrompt) -> str:
    """The table [team] alone."""
    return _dumped("team", prompt)


def _table(own: Any, table: object, where: str, name: str) -> Any:
    """One kind of prompt: `own`, changed as the table says."""
    known = [key.name for key in fields(own)]
    if not isinstance(table, dict):
        raise InvalidRequest(
            f"{where} has '{name}' as a {type(table).__name__}, expected a table",
            hint=f"write [{name}], and below it some of the keys: {', '.join(known)}",
        )
    unknown = sorted(set(table) - set(known))
    if unknown:
        listed = ", ".join(f"'{key}'" for key in unknown)
        raise InvalidRequest(
            f"{where} has unknown keys: {listed} under [{name}]",
            hint=f"known keys: {', '.join(known)}",
        )
    try:
        return replace(own, **table)
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}, [{name}]: {error}", hint=error.hint) from error


def _dumped(name: str, prompt: Any) -> str:
    lines = [f"[{name}]"]
    for key in fields(prompt):
        value = getattr(prompt, key.name)
        if isinstance(value, tuple):
            lines.append(f"{key.name} = [{', '.join(map(_quoted, value))}]")
        else:
            lines.append(f"{key.name} = {_text(value)}")
    return "\n".join(lines) + "\n"


def _text(value: str) -> str:
    """Long texts over several lines and as they are, ready for editing; short ones quoted."""
    is_long = "\n" in value.strip("\n")
    if is_long and "'''" not in value and not value.endswith("'"):
        return f"'''\n{value}'''"
    return _quoted(value)


def _quoted(value: str) -> str:
    return '"' + "".join(_ESCAPES.get(char, char) for char in value) + '"'
