"""Which models keep states, by their config.json alone, and which settings such a network does not bear.

    keeps_states("Qwen/Qwen3-Next-80B-A3B-Instruct")    # True, before torch is imported or a weight is fetched

A checkpoint of this kind may have 160 GB. What will be refused of it is refused here, by a file of a few kilobytes; the
network itself is asked again when it is there (`engine/local_executor.py`), for one that its caller has built has no file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from manyhands.errors import InvalidRequest
from manyhands.hub import file_of, is_gguf, place_of
from manyhands.model.settings import ModelSettings

# Model types whose linear layers keep a state (`model/recurrent.py`), and composites out of which such a network is taken.
MODEL_TYPES = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
COMPOSITES = {"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}
_KEEPS = "layers of this network keep one state of a text"


def keeps_states(model: Any) -> bool | None:
    """Whether layers of a model keep states: a folder, a GGUF file, or a name on the hub. None: its files do not say.

    They do not where the configuration is missing or cannot be read, which the loader says, or where a network is given in
    the place of a name. Raises ModelNotFound for a name on the hub that is none.
    """
    if not isinstance(model, str | Path):
        return None
    if is_gguf(place_of(model)):
        return False
    path = file_of(model, "config.json")
    try:
        found = None if path is None else json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    said = found.get("model_type") if isinstance(found, dict) else None
    return said in (*MODEL_TYPES, *COMPOSITES) if isinstance(said, str) else None


def check_settings(settings: ModelSettings, keeps: bool) -> None:
    """Raise InvalidRequest for a setting that a network does not bear. `keeps`: whether layers of it keep states."""
    if not keeps:
        if settings.states is not None:
            raise InvalidRequest(
                f"states is {settings.states}, and this network is none of those whose layers keep a state here: "
                f"{', '.join(MODEL_TYPES)}",
                hint="leave it out",
            )
        return
    for name, is_asked, reason in (
        (
            "speculate",
            settings.speculate,
            "a guess that is refused in its middle has left no state there",
        ),
        (
            "kv_cache_dtype int8",
            settings.kv_cache_dtype == "int8",
            "runs leave for want of states, and with rounded keys they would not come back as they were",
        ),
        ("cache", settings.cache is not None, "sheets on disk hold keys and values, and no states"),
    ):
        if is_asked:
            raise InvalidRequest(
                f"{name} was asked for, and {_KEEPS}: {reason}", hint=f"leave out {name}"
            )


def check_early(settings: ModelSettings) -> None:
    """`check_settings` before a weight is read, where the model's files say what it is."""
    keeps = keeps_states(settings.model)
    if keeps is not None:
        check_settings(settings, keeps)
