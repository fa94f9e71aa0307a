"""A recipe: one TOML file that says what is trained, on what, and how. See `recipes/`.

    [model]        start = "folder or hub id", and layers = 12 if it grows; or
                   config = { model_type = "qwen3", ... } and tokenizer = "folder, from here"
                   saved_dtype = "float32"
    [team], [branches], ...   the model's words, as in a prompt file: what differs from the defaults
    [curriculum]   lessons made by the scripted team; and with it
    [parts]        how many lessons are of other methods (`PartsMix`); or
    [traces]       files = ["runs/*.jsonl"]: recorded runs, the good ones of those that were graded
    [reading]      files = ["text/*.txt"]: ordinary text, mixed in
    [lora]         rank and alpha: an adapter is trained, and the model's own weights stay as they are
    [training]     the fields of TrainSettings

Nothing heavy is imported before a recipe has been read and checked. Every table is a dataclass: a key that it does not have, or a value of another type, is an error that
says what it does have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from manyhands.errors import InvalidRequest, ModelNotFound, UnsupportedModel, counted
from manyhands.hub import in_short
from manyhands.model.settings import DTYPES
from manyhands.prompts.load import TABLES, Prompts, model_prompts
from manyhands.replay.settings import TrainSettings
from manyhands.replay.trace import Trace, read_trace
from manyhands.schema.bounded import path_of
from manyhands.schema.plain import from_plain
from manyhands.schema.setting import check, setting
from manyhands.schema.toml import read_toml
from manyhands.school.arithmetic_team import check_tokenizer
from manyhands.school.curriculum import Curriculum
from manyhands.school.curriculum_parts import PartsMix
from manyhands.school.simulated import Simulated
from manyhands.text import Text

if TYPE_CHECKING:
    from manyhands.model.adapter import ModelAdapter
    from manyhands.replay.lessons import Lessons

_CONFIG, _KEYS = (
    "[model] config",
    "Its keys are those of the configuration class of its model_type.",
)
_DTYPES = tuple(name for name in DTYPES if name != "float64")
# The tables besides those of words; and what of [training] changes no gradient but how many there are, or when.
_TABLES = ("model", "lora", "curriculum", "parts", "traces", "reading", "training")
_MAY_CHANGE = frozenset(
    {"steps", "minutes", "parts", "recompute", "processes", "log_every", "checkpoint_minutes"}
)


@dataclass(frozen=True)
class ModelTable:
    """The network that is trained: a model to start from, or the configuration of a new one."""

    start: str = setting("", "A folder, or a name on the hub.")
    layers: int = setting(
        0,
        "Layers that the model of `start` grows to; the new ones change nothing at first.",
        at_least=0,
        zero="as many as it has",
    )
    config: Mapping[str, Any] = setting({}, "Configuration of a new model, with its model_type.")
    tokenizer: str = setting("", "The new model's: a folder, from the recipe's own.")
    saved_dtype: str = setting("float32", "Of the weights that are saved.", one_of=_DTYPES)

    def __post_init__(self) -> None:
        check(self)
        if bool(self.start) == bool(self.config):
            found = "both `start` and" if self.start else "neither `start` nor"
            raise InvalidRequest(
                f"[model] gives {found} `config`; expected one of them",
                hint="`start` fine-tunes a model, as --model MODEL does; `config` and `tokenizer` begin a new one.",
            )
        if self.layers and not self.start:
            raise InvalidRequest(
                f"[model] gives layers = {self.layers} without `start`",
                hint="A new model has its layers in `config`: num_hidden_layers.",
            )
        if self.tokenizer and self.start:
            raise InvalidRequest(
                f"[model] gives tokenizer = {self.tokenizer!r} beside `start`, whose model has one of its own",
                hint="Leave it out; a `tokenizer` belongs to the new model of a `config`.",
            )
        if self.config and not (self.tokenizer and self.config.get("model_type")):
            raise InvalidRequest(
                "[model] gives `config` without `tokenizer`, or without a model_type in it",
                hint='A new model needs both: config = { model_type = "qwen3", ... }.',
            )


@dataclass(frozen=True)
class LoraTable:
    """An adapter beside frozen weights (`model/lora.py`)."""

    rank: int = setting(
        0, "Numbers between the two small matrices.", at_least=0, zero="all weights are trained"
    )
    start: str = setting(
        "", "A folder with an adapter to go on from, as seen from the working directory."
    )
    alpha: float = setting(64.0, "Times 1 / rank: how much the adapter counts.", above=0)

    def __post_init__(self) -> None:
        check(self)
        if self.start and not self.rank:
            raise InvalidRequest(
                "[lora] gives `start` and no rank",
                hint="Give the rank and alpha of the adapter that it goes on from.",
            )


@dataclass(frozen=True)
class TracesTable:
    """Which recorded runs are learned: paths or patterns, from the recipe's folder.

    A run that was graded (`manyhands eval --traces`) counts as much as its score.
    """

    files: tuple[str, ...]
    least_score: float = setting(
        1.0, "Graded runs with a lower score are left out.", above=0, at_most=1
    )
    share: float = setting(
        0.5, "Of the lessons, where a curriculum makes others.", above=0, below=1
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class ReadingTable:
    """Ordinary text among the lessons: paths or patterns, from the recipe's folder.

    A file is one text, or with the ending .jsonl one object a line with the key `text`.
    """

    files: tuple[str, ...]
    share: float = setting(0.1, "Of all lessons.", above=0, below=1)
    tokens: int = setting(512, "Tokens of one piece, at most.", at_least=1)

    def __post_init__(self) -> None:
        check(self)


Table = TypeVar("Table")


@dataclass(frozen=True, eq=False)
class Recipe:
    """A recipe, read and checked. It has a curriculum, or traces, or both.

    `words` are its tables of words as they stand there, `prompts` what comes of them.
    """

    folder: Path
    model: ModelTable
    words: Mapping[str, Any]
    prompts: Prompts
    curriculum: Curriculum | None
    parts: PartsMix
    traces: TracesTable | None
    reading: ReadingTable | None
    lora: LoraTable
    training: TrainSettings

    def in_words_of_start(self) -> Recipe:
        """The same, with all words that it leaves out as the model, or the adapter, has them from which it starts.

        Raises ModelNotFound if there is no such model, InvalidRequest for words in it that cannot be used.
        """
        if not self.model.start:
            return self
        own = model_prompts(self.model.start, self.lora.start or None)
        return replace(self, prompts=_prompts(self.words, own))

    def made_of(self) -> dict[str, Any]:
        """The network and its lessons as plain data, table by table, without how long, how fast, and how often something is kept.

        A training that goes on in a folder must be made of the same; a table that is left out is None. What it starts from is
        known by its name alone, since it may lie elsewhere on another machine.
        """
        told: dict[str, Any] = asdict(self.prompts)
        for name in _TABLES:
            table = getattr(self, name)
            told[name] = None if table is None else asdict(table)
        del told["model"]["saved_dtype"]
        for name in ("model", "lora"):
            told[name]["start"] = Path(told[name]["start"]).name
        for name in _MAY_CHANGE:
            del told["training"][name]
        return told

    def load(self, device: str = "auto") -> tuple[ModelAdapter, Any]:
        """The model to train, with its adapter if it gets one, and its tokenizer.

        Weights that are trained are float32; frozen ones have the dtype of the products.
        """
        from manyhands.model.lora import add_lora, load_lora

        if self.lora.rank and (self.model.config or self.model.layers):
            by = "config" if self.model.config else "layers"
            raise InvalidRequest(
                f"[lora] asks for an adapter of a network that is saved nowhere: [model] makes a new one by `{by}`",
                hint="Train it without [lora] first; the recipe of the adapter has that model as its `start`.",
            )
        adapter, tokenizer = self._load(device)
        if self.lora.rank:
            add_lora(adapter.model, self.lora.rank, self.lora.alpha, seed=self.training.seed)
        if self.lora.start:
            load_lora(adapter.model, Path(self.lora.start))
        return adapter, tokenizer

    def _load(self, device: str) -> tuple[ModelAdapter, Any]:
        place = self.folder / self.model.tokenizer
        if not self.model.start and not place.is_dir():
            raise ModelNotFound(
                f"the recipe's tokenizer is not at {place}",
                hint="Make it first; the recipe's own folder says how.",
            )
        import torch
        from transformers import AutoModelForCausalLM

        from manyhands.model.devices import resolve_device
        from manyhands.model.loading import load_adapter, read_tokenizer
        from manyhands.model.quiet import quiet
        from manyhands.model.seeded import seeded

        if self.model.start:
            dtype = self.training.products if self.lora.rank else "float32"
            loaded = load_adapter(self.model.start, device=device, dtype=dtype, quantise="none")
            if not self.model.layers:
                return loaded
            from manyhands.model.growth import grown

            bigger = grown(loaded[0].model, self.model.layers)
            return load_adapter(bigger, device=resolve_device(device), tokenizer=loaded[1])
        made: Any = AutoModelForCausalLM  # transformers leaves from_config untyped
        with quiet():
            tokenizer = read_tokenizer(str(place), required=True)
            config = _config(self.model.config, tokenizer)
        with seeded(self.training.seed):
            model = made.from_config(config, dtype=torch.float32)
        return load_adapter(model, device=resolve_device(device), tokenizer=tokenizer)

    def lessons(self, text: Text) -> Lessons:
        """Where the lessons come from."""
        from manyhands.replay.lessons import Mixed, Recorded

        kinds: list[tuple[Lessons, float]] = []
        if self.curriculum is not None:
            check_tokenizer(text)
            kinds.append((Simulated(self.curriculum, text, self.prompts, self.parts), 1.0))
        if self.traces is not None:
            share = self.traces.share
            kinds = [(kind, 1 - share) for kind, _ in kinds]
            kinds.append((Recorded(self._kept(self.traces, text)), share if kinds else 1.0))
        if self.reading is not None:
            kinds = [(kind, share * (1 - self.reading.share)) for kind, share in kinds]
            kinds.append((self._texts(self.reading, text), self.reading.share))
        return kinds[0][0] if len(kinds) == 1 else Mixed(kinds)

    def _kept(self, table: TracesTable, text: Text) -> list[Trace]:
        """The traces that are good enough, each of this tokenizer."""
        found = [(path, read_trace(path)) for path in self._matches(table.files, "trace")]
        for path, trace in found:
            _check_vocabulary(path, trace, text)
        kept = [t for _, t in found if t.score is None or t.score >= table.least_score]
        if not kept:
            best = max(trace.score or 0.0 for _, trace in found)
            raise InvalidRequest(
                f"none of {counted(len(found), 'trace')} has a score of {table.least_score:g} or more; the best has {best:g}",
                hint="lower least_score in [traces], or record better runs",
            )
        return kept

    def _texts(self, table: ReadingTable, text: Text) -> Lessons:
        from manyhands.replay.lessons import Reading

        texts: list[str] = []
        for path in self._matches(table.files, "text"):
            texts += _texts_of(path)
        documents = [text.encode(one) for one in texts]
        if not any(len(one) > 1 for one in documents):
            raise InvalidRequest(
                f"the files of [reading] hold no text: {', '.join(table.files)}",
                hint="give files with text in them, or leave the table out",
            )
        return Reading(documents, table.tokens)

    def _matches(self, files: Sequence[str], what: str) -> list[Path]:
        paths = [path for each in files for path in _files_of(self.folder, each)]
        if not paths:
            hints = {
                "trace": "Record some with `manyhands solve --transcript FILE`, or `manyhands eval --traces`.",
                "text": "Give paths or patterns, from the recipe's folder.",
            }
            raise InvalidRequest(
                f"no {what} matches {', '.join(files)} in {self.folder}", hint=hints[what]
            )
        return paths


def _files_of(folder: Path, said: str) -> list[Path]:
    """The file of this path, or those that match it, from the folder; a path from the root is one, too."""
    path = folder / said
    if said and path.exists():  # also one with brackets in its name
        return [path]
    return [folder / found for found in sorted(glob(said, root_dir=folder, recursive=True))]


def _check_vocabulary(path: Path, trace: Trace, text: Text) -> None:
    """Raise InvalidRequest for a run of a model with other tokens: its numbers would be other words."""
    named = trace.header.get("vocabulary")
    size = len(text.tokenizer.get_vocab())
    rows = [row for rows in trace.passes for row in rows]
    largest = max((token for row in rows for token in (*row.feed, row.token)), default=0)
    if named not in (None, text.vocabulary) or largest >= size:
        model = trace.header.get("model", "another model")
        raise InvalidRequest(
            f"the trace {path} was recorded with the tokenizer of {model!s}; the model to train has another one",
            hint="record runs with the model that is trained, or with one of the same tokenizer",
        )


def _texts_of(path: Path) -> list[str]:
    """The texts of one file."""
    try:
        whole = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{path} is not UTF-8 text (byte {error.start})") from error
    if path.suffix != ".jsonl":
        return [whole]
    lines = whole.split("\n")  # no other sign ends a line of JSON
    return [
        _text_of(line, f"line {at} of {path}") for at, line in enumerate(lines, 1) if line.strip()
    ]


def _text_of(line: str, where: str) -> str:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{where} is not JSON: {error}") from error
    text = found.get("text") if isinstance(found, dict) else None
    if not isinstance(text, str):
        raise InvalidRequest(
            f'{where} has no text; expected an object with the key "text"',
            hint='write one {"text": "..."} a line',
        )
    return text


def _config(described: Mapping[str, Any], tokenizer: Any) -> Any:
    """The configuration of a new network. InvalidRequest where it makes none, OutOfMemory where it makes one that does not fit."""
    import torch
    from transformers import CONFIG_MAPPING, AutoConfig

    from manyhands.model.configuration import check_entries, check_read, check_sizes
    from manyhands.model.dummy import UNBUILDABLE, bare_model, size_of
    from manyhands.model.families import reject
    from manyhands.model.host_memory import check_room

    settings = dict(described)
    kind = settings.pop("model_type")
    if kind not in list(CONFIG_MAPPING):
        near = get_close_matches(str(kind), CONFIG_MAPPING, n=1)
        raise InvalidRequest(
            f"{_CONFIG} cannot be used: its model_type is {kind!r}, which is no type of transformers",
            hint=f"Did you mean {near[0]!r}?" if near else "Its types are those of docs/models.md.",
        )
    of_tokenizer = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    for name, value in of_tokenizer.items():
        if settings.setdefault(name, value) != value:
            raise InvalidRequest(
                f"{_CONFIG} cannot be used: its {name} is {settings[name]!r}; expected {value!r}, as the tokenizer has it",
                hint="Leave it out.",
            )
    try:
        check_entries(_CONFIG, settings)
        config = AutoConfig.for_model(kind, **settings)
    except UnsupportedModel as error:
        raise InvalidRequest(str(error), hint=_KEYS) from error
    except UNBUILDABLE as error:
        raise InvalidRequest(f"{_CONFIG} cannot be used: {in_short(error)}", hint=_KEYS) from error
    reject(config)
    try:
        check_sizes(_CONFIG, config)
        check_read(_CONFIG, config, described)
    except UnsupportedModel as error:
        raise InvalidRequest(str(error), hint=_KEYS) from error
    try:
        size = size_of(bare_model(config, torch.float32))
    except UnsupportedModel as error:
        raise InvalidRequest(f"{_CONFIG} cannot be used: {error}", hint=_KEYS) from error
    check_room(_CONFIG, size)
    return config


def read_recipe(path: str | Path, model: str | None = None) -> Recipe:
    """Read and check a recipe file. `model` stands in the place of what its [model] starts from, or makes anew."""
    path = path_of(path, "a recipe")
    tables = read_toml(path, f"the recipe {path}")
    kinds = {each.name for each in fields(Recipe)} - {"folder", "words", "prompts"} | set(TABLES)
    for name in tables:
        if name not in kinds:
            raise InvalidRequest(
                f"the recipe has {name!r}", hint=f"Known tables: {', '.join(sorted(kinds))}."
            )
    if "curriculum" not in tables and "traces" not in tables:
        raise InvalidRequest("the recipe needs [curriculum] or [traces]")
    if "parts" in tables and "curriculum" not in tables:
        raise InvalidRequest(
            "the recipe mixes [parts] into [traces]", hint="[parts] belong to a [curriculum]"
        )
    words = {name: table for name, table in tables.items() if name in TABLES}
    begins = tables.get("model", {})
    if model is not None and isinstance(begins, dict):
        # That model has its own configuration and tokenizer.
        begins = {**begins, "start": model, "config": {}, "tokenizer": ""}
    return Recipe(
        folder=path.parent,
        model=_filled(ModelTable, begins, "model"),
        words=words,
        prompts=_prompts(words, Prompts()),
        curriculum=_filled(Curriculum, tables["curriculum"], "curriculum")
        if "curriculum" in tables
        else None,
        parts=_filled(PartsMix, tables.get("parts", {}), "parts"),
        traces=_filled(TracesTable, tables["traces"], "traces") if "traces" in tables else None,
        reading=_filled(ReadingTable, tables["reading"], "reading")
        if "reading" in tables
        else None,
        lora=_filled(LoraTable, tables.get("lora", {}), "lora"),
        training=_filled(TrainSettings, tables.get("training", {}), "training"),
    )


def _prompts(words: Mapping[str, Any], own: Prompts) -> Prompts:
    """These words; what they leave out is as in `own`."""
    tables = {
        name: _filled(TABLES[name], words.get(name, {}), name, getattr(own, name))
        for name in TABLES
    }
    return Prompts(**tables)


def _filled(kind: type[Table], values: object, table: str, own: Table | None = None) -> Table:
    """The dataclass of a table, its values checked against the types of its fields; else they are those of `own`."""
    types = get_type_hints(kind)
    hint = f"[{table}] has: {', '.join(sorted(types))}."
    if not isinstance(values, dict):
        raise InvalidRequest(f"{table} is {values!r}; expected a table, [{table}]", hint=hint)
    given: dict[str, Any] = {}
    for name, value in values.items():
        if name not in types:
            raise InvalidRequest(f"[{table}] has the key {name!r}", hint=hint)
        try:
            given[name] = from_plain(types[name], value, f"{name} in [{table}]")
        except TypeError as error:
            raise InvalidRequest(str(error), hint=hint) from error
    try:
        return kind(**(given if own is None else {**vars(own), **given}))
    except TypeError as error:
        raise InvalidRequest(f"[{table}] is incomplete: {error}", hint=hint) from error
