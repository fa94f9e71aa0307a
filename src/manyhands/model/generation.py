"""How a model wants its tokens chosen: the `generation_config.json` that its makers put beside it.

Makers of reasoning models warn against the likeliest token, and say there which temperature they mean. So
that is the default where a model says something, and every choice of a user goes before it, field by field.
A model that says nothing, or `do_sample: false`, is greedy. Fields that the file leaves out have our own
defaults, as in vLLM, and not those that transformers would fill in.

A GGUF file says the same in facts of its own (`general.sampling.temp` and others).

Both are read without torch, before anything is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from manyhands.cache.step import GREEDY, Choice
from manyhands.errors import InvalidRequest, ModelNotFound
from manyhands.hub import file_of, in_short, is_gguf
from manyhands.model.gguf.header import read_header
from manyhands.schema.setting import settings_of

GENERATION_FILE = "generation_config.json"
# Settings that a user can choose and a file can hold, by the same names.
_NAMES = tuple(name for name, declared in settings_of(Choice).items() if declared.by == "option")
_MEND = "mend the file or remove it"
_WITHOUT = f"{_MEND}; greedy choices (--greedy) do without"


# A choice, and what the facts of a GGUF file call it behind `general.sampling.`.
_IN_GGUF = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


def own_choice(model: str) -> Choice | None:
    """How the model samples by itself; None if it does not. A folder, a GGUF file, or a name on the hub.

    Raises ModelNotFound where there is no such model, or its file cannot be understood.
    """
    if is_gguf(model):
        facts = read_header(Path(model)).facts
        said = {name: facts.get(f"general.sampling.{word}") for name, word in _IN_GGUF.items()}
        given = {name: value for name, value in said.items() if value is not None}
        if not given:
            return None
    else:
        path = file_of(model, GENERATION_FILE)
        found = {} if path is None else _read(model, path)
        if not found.get("do_sample"):
            return None
        given = {name: found[name] for name in _NAMES if found.get(name) is not None}
    try:
        for name, value in given.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InvalidRequest(f"{name} is {value!r}; expected a number")
        if given.get("top_k") == -1:  # all tokens, in files that were written for vLLM or llama.cpp
            given["top_k"] = 0
        choice = Choice(**{"temperature": 1.0, **given})
    except InvalidRequest as error:
        raise _unusable(model, error) from error
    return choice if choice.temperature > 0 else None


def about(choice: Choice, without: Collection[str] = ()) -> str:
    """`temperature 0.6, top_p 0.95`: what is not greedy in a choice, `without` some of its fields."""
    named = (name for name in _NAMES if name not in without)
    said = ((name, getattr(choice, name)) for name in named)
    return ", ".join(f"{name} {value:g}" for name, value in said if value != getattr(GREEDY, name))


def check_generation(model: str) -> None:
    """Raise ModelNotFound where transformers cannot make anything of a model's generation_config.json.

    It reads the file beside the weights, so what is wrong in it looks like a mistake in these.
    """
    from transformers import GenerationConfig

    try:
        GenerationConfig.from_pretrained(model)
    except OSError:
        return  # there is none, or no JSON: the network goes without
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise _unusable(model, in_short(error), hint=_MEND) from error


def end_ids(model: str, said: object) -> tuple[int, ...]:
    """The tokens that end a turn, by `eos_token_id` of a generation configuration: none, one or several.

    Raises ModelNotFound where that is neither a number nor a list of numbers.
    """
    if said is None:
        return ()
    found = said if isinstance(said, list | tuple) else [said]
    for token in found:
        if isinstance(token, bool) or not isinstance(token, int):
            reason = f"eos_token_id is {said!r}; expected the number of a token, or a list of them"
            raise _unusable(model, reason, hint=_MEND)
    return tuple(found)


def _read(model: str, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _unusable(model, error) from error
    if not isinstance(found, dict):
        raise _unusable(model, f"it holds a {type(found).__name__}; expected an object")
    return found


def _unusable(model: str, reason: object, hint: str = _WITHOUT) -> ModelNotFound:
    return ModelNotFound(
        f"the model {model!r} has a {GENERATION_FILE} that cannot be used: {str(reason)[:200]}",
        hint=hint,
    )
