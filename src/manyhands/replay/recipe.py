"""A recipe: one TOML file that says what is trained, on what, and how. See `recipes/`.

    [model]        start = "folder or hub id"; or
                   config = { model_type = "qwen3", ... } and tokenizer = "folder, from here"
                   saved_dtype = "float32"
    [prompt]       the fields of a prompt file's [team] table that differ from the defaults
    [curriculum]   lessons made by the scripted team; or
    [traces]       files = ["runs/*.jsonl"]
    [training]     the fields of TrainSettings

An unknown table or key is an error that names the known ones.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from manyhands.errors import InvalidRequest
from manyhands.model.adapter import ModelAdapter
from manyhands.model.devices import resolve_device
from manyhands.model.loading import load_adapter
from manyhands.prompts.hogwild import TeamPrompt
from manyhands.replay.curriculum import Curriculum
from manyhands.replay.lessons import Lessons, Recorded, Simulated
from manyhands.replay.trace import read_trace
from manyhands.replay.train import TrainSettings
from manyhands.text import Text

_MODEL_KEYS = ("start", "config", "tokenizer", "saved_dtype")
_TABLES = ("model", "prompt", "curriculum", "traces", "training")
Settings = TypeVar("Settings", TrainSettings, Curriculum, TeamPrompt)


@dataclass(frozen=True, eq=False)
class Recipe:
    """A recipe, read and checked."""

    folder: Path
    model: Mapping[str, Any]
    prompt: TeamPrompt
    curriculum: Curriculum | None
    traces: tuple[str, ...]
    training: TrainSettings

    def load(self, device: str = "auto") -> tuple[ModelAdapter, Any]:
        """The model to train, in float32, and its tokenizer."""
        if "start" in self.model:
            return load_adapter(self.model["start"], device=device, dtype="float32")
        tokenizer = AutoTokenizer.from_pretrained(self.folder / self.model["tokenizer"])
        settings = dict(self.model["config"])
        config = AutoConfig.for_model(
            settings.pop("model_type"),
            vocab_size=len(tokenizer),
            eos_token_id=tokenizer.eos_token_id,
            **settings,
        )
        torch.manual_seed(self.training.seed)
        made: Any = AutoModelForCausalLM  # transformers leaves from_config untyped
        model = made.from_config(config)
        return load_adapter(model, device=resolve_device(device), tokenizer=tokenizer)

    @property
    def saved_dtype(self) -> str:
        """In which precision the trained weights are written."""
        return str(self.model.get("saved_dtype", "float32"))

    def lessons(self, text: Text) -> Lessons:
        """Where the lessons come from."""
        if self.curriculum is not None:
            return Simulated(self.curriculum, text, self.prompt)
        paths = [path for pattern in self.traces for path in sorted(self.folder.glob(pattern))]
        if not paths:
            raise InvalidRequest(
                f"no trace matches {', '.join(self.traces)} in {self.folder}",
                hint="Record some with `manyhands solve --transcript FILE`.",
            )
        return Recorded([read_trace(path) for path in paths])


def read_recipe(path: Path) -> Recipe:
    """Read and check a recipe file."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidRequest(f"the recipe {path} cannot be read: {error}") from error
    for name in tables:
        if name not in _TABLES:
            raise InvalidRequest(
                f"the recipe has a table [{name}]", hint=f"Known tables: {', '.join(_TABLES)}."
            )
    model = tables.get("model", {})
    for name in model:
        if name not in _MODEL_KEYS:
            raise InvalidRequest(
                f"[model] has the key {name!r}", hint=f"Known: {', '.join(_MODEL_KEYS)}."
            )
    if ("start" in model) == ("config" in model):
        raise InvalidRequest(
            "[model] gives neither or both of `start` and `config`",
            hint="`start` fine-tunes a model; `config` and `tokenizer` begin a new one.",
        )
    if ("curriculum" in tables) == ("traces" in tables):
        raise InvalidRequest("the recipe needs one of [curriculum] and [traces]")
    return Recipe(
        folder=path.parent,
        model=model,
        prompt=_filled(TeamPrompt, tables.get("prompt", {}), "prompt"),
        curriculum=_filled(Curriculum, tables["curriculum"], "curriculum")
        if "curriculum" in tables
        else None,
        traces=tuple(tables.get("traces", {}).get("files", ())),
        training=_filled(TrainSettings, tables.get("training", {}), "training"),
    )


def _filled(kind: type[Settings], values: Mapping[str, Any], table: str) -> Settings:
    known = {field.name for field in fields(kind)}
    for name in values:
        if name not in known:
            raise InvalidRequest(
                f"[{table}] has the key {name!r}", hint=f"Known: {', '.join(sorted(known))}."
            )
    return kind(**values)
