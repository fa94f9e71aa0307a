"""From options to a model: which one is meant, the words it was trained with, and the engine."""

from __future__ import annotations

import atexit
import gc
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from manyhands.cache.step import GREEDY
from manyhands.cli.command import Chosen
from manyhands.cli.guard import tell
from manyhands.cli.output import Notes
from manyhands.cli.threads import take_one, weight_bytes
from manyhands.engine.garbage import keep_loaded
from manyhands.errors import InvalidRequest
from manyhands.hub import BUNDLED, exists, is_gguf, is_local, place_of
from manyhands.model.checkpoint import check_lora, check_place
from manyhands.model.generation import GENERATION_FILE, about, own_choice
from manyhands.model.hybrids import check_early, keeps_states
from manyhands.model.settings import ModelSettings
from manyhands.prompts import Prompts, dump_prompts, load_prompts, model_prompts
from manyhands.prompts.load import brings_words
from manyhands.schema.choosing import pairs
from manyhands.strategies.methods import Method, check_forks
from manyhands.strategies.settings import Settings, SharedSettings

S = TypeVar("S", Settings, SharedSettings)

if TYPE_CHECKING:
    from manyhands.engine.engine import Engine
    from manyhands.model.adapter import ModelAdapter
    from manyhands.strategies.base import Strategy
    from manyhands.strategies.run_spec import RunSpec
    from manyhands.text import Text


class Sampling(Protocol):
    """The options of a command that chooses tokens."""

    @property
    def chosen(self) -> Chosen:
        """Settings of the method, by their options."""

    @property
    def listed(self) -> tuple[str, ...]:
        """Settings of the method, by --set."""

    @property
    def greedy(self) -> bool:
        """Whether the likeliest tokens are wanted, whatever the model says."""


def name_of(model: str | None) -> str:
    """How a run refers to its model: what lies here by its full path, so that a trace finds it again."""
    if model is None or model == BUNDLED:
        return BUNDLED
    place = Path(model).expanduser()
    is_folder = exists(place) and place.is_dir()
    return str(place.resolve()) if is_folder or is_gguf(model) else model


def prompts_for(model: str, file: Path | None, adapter: str | None = None) -> Prompts:
    """The words: those of `file`, else those that the adapter or the model brings, else our own."""
    if adapter is not None:
        check_lora(Path(adapter).expanduser())
    own = model_prompts(model, adapter)
    return load_prompts(file, own) if file is not None else own


def words_of(model: str | None, adapter: str | None = None) -> str:
    """The words that a model or its adapter brings, or our own, as a file; above them whose they are."""
    name = name_of(model)
    words = prompts_for(name, None, adapter)
    if brings_words(adapter):
        name = f"the adapter {adapter}"
    whose = f"The words of {name}." if words != Prompts() else f"{name} brings no words: ours."
    return f"# {whose} Of another model: manyhands prompts --model NAME\n\n{dump_prompts(words)}"


def sampled(settings: S, model: str, options: Sampling, *, say: bool = True) -> S:
    """The settings, sampling as the model does by itself, in all that was not chosen; `--greedy`: not at all.

    The model's part in it is said, unless nothing of that is left.
    """
    paths = (*options.chosen, *pairs(options.listed))
    named = {path.removeprefix("choice.") for path in paths if path.startswith("choice.")}
    if options.greedy and "temperature" in named:
        raise InvalidRequest(
            "--greedy and a temperature were asked for together", hint="leave one of them out"
        )
    own = GREEDY if options.greedy else own_choice(model)
    if own is None:
        return settings
    choice = replace(own, **{name: getattr(settings.choice, name) for name in named})
    if say and choice.temperature > 0 and (told := about(own, without=named)):
        tell(f"sampling as the model's own {GENERATION_FILE} says: {told} (--greedy turns it off)")
    return replace(settings, choice=choice)


def check_borne(model: str, method: Method, settings: Settings) -> None:
    """Raise InvalidRequest for a method that the model's network does not bear, as far as its configuration says, before it is loaded."""
    if keeps_states(model):
        check_forks(method, settings)


def load_engine(model: str, settings: ModelSettings, notes: Notes) -> tuple[Engine, Text]:
    """The engine for `model`, and the text side of its tokenizer."""
    engine = load_wordless_engine(model, settings, notes)
    return engine, engine.text


def get_ready(engine: Engine) -> None:
    """Compile and record now what passes need on a GPU, so that no answer waits for it later; shows how far it is."""
    if not engine.facts.is_on_gpu:
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("getting ready")
        engine.get_ready(lambda done, whole: progress.update(task, completed=done, total=whole))
    keep_loaded()


def load_wordless_engine(model: str, settings: ModelSettings, notes: Notes) -> Engine:
    """The engine for `model`, whether it has a tokenizer or not."""
    place = place_of(model)
    if is_local(place):  # before torch is imported, which takes seconds
        check_place(place, with_weights=settings.weights == "auto")
    if settings.lora is not None:
        check_lora(Path(settings.lora).expanduser())
    check_early(replace(settings, model=place))
    is_watched = sys.stderr is not None and sys.stderr.isatty()
    if is_watched:
        tell(f"loading {model}")
    from manyhands.engine.ranks.processes import started_beside

    with started_beside(settings) as started:  # the other ranks import while this process does
        from manyhands.engine.engine import Engine

        gc.freeze()  # imported objects; `keep_loaded` has the rest
        atexit.register(gc.unfreeze)  # or libraries complain of what they think is leaked
        with _noted(notes):
            known = _share_processors(place, settings)
            whole = replace(settings, model=place)
            engine = Engine.load(whole, downloads=is_watched, started=started)
    keep_loaded()
    if known is None and engine.facts.device == "cpu":
        take_one(engine.facts.weight_bytes)
    if settings.quantise not in ("auto", "none", "fp16") and not engine.facts.is_on_gpu:
        notes.warn(
            f"on a CPU weights in {settings.quantise} are unpacked for every product: that takes less "
            "memory and more time than without --quantise"
        )
    is_slow = engine.facts.is_on_gpu and engine.facts.backend == "torch"
    if is_slow and settings.backend == "auto":
        notes.warn(f"attention runs in plain torch, slowly: {engine.facts.backend_reason}")
    return engine


def _share_processors(place: str, settings: ModelSettings) -> int | None:
    """Before a model is loaded on a CPU, take the threads that its weights' files are worth; their bytes, if known."""
    from manyhands.engine.ranks.launched import num_ranks
    from manyhands.model.devices import resolve_device

    if num_ranks(settings) > 1 or resolve_device(settings.device).type != "cpu":
        return 0  # ranks share the processors themselves
    known = weight_bytes(place) if settings.weights == "auto" and is_local(place) else None
    if known is not None:
        take_one(known)
    return known


def load_network(model: str, settings: ModelSettings, notes: Notes) -> ModelAdapter:
    """The network alone, for a replay: it needs no memory and no tokenizer."""
    from manyhands.engine.ranks.launched import num_ranks
    from manyhands.model.loading import load_adapter

    if num_ranks(settings) > 1:
        raise InvalidRequest(
            f"ranks is {num_ranks(settings)}, and a proof reads a trace in one process",
            hint="leave --ranks out",
        )

    place = place_of(model)
    with _noted(notes):
        _share_processors(place, settings)
        adapter, _ = load_adapter(
            place,
            device=settings.device,
            dtype=settings.dtype,
            weights=settings.weights,
            quantise=settings.quantise,
            context=settings.context,
            adapted=None if settings.lora is None else Path(settings.lora).expanduser(),
        )
    return adapter


def strategy_for(engine: Engine, text: Text, spec: RunSpec) -> Strategy:
    """The strategy of a spec, and what is to be measured of it besides.

    Raises InvalidRequest for a method that the model's network does not bear.
    """
    from manyhands.replay.joins import measure_joins

    if engine.facts.num_states:
        check_forks(spec.method, spec.settings)
    strategy = spec.strategy(text)
    wanted = getattr(spec.settings, "join_distance", False)
    return measure_joins(strategy, engine.replay) if wanted else strategy


def changes_of(settings: ModelSettings) -> tuple[str, ...]:
    """The choices by which the model's answers differ from those of the one that is named, as it comes."""
    usual, own = ModelSettings(), replace(settings, lora=_adapter_of(settings))
    return tuple(
        f"{name} {getattr(own, name)}"
        for name in ("lora", "weights", "dtype", "quantise", "kv_cache_dtype", "thinking")
        if getattr(own, name) != getattr(usual, name)
    )


def _adapter_of(settings: ModelSettings) -> str | None:
    """The adapter's folder by its full path."""
    return None if settings.lora is None else str(Path(settings.lora).expanduser().resolve())


def place_facts(
    engine: Engine, settings: ModelSettings, method: str | None = None
) -> dict[str, Any]:
    """Where and with what a run is computed, for its trace; of an installed method its distribution's version, too."""
    from manyhands.cli.output import version_of
    from manyhands.strategies.methods import METHODS

    known = {name: version_of(name) for name in ("manyhands", "torch", "transformers")}
    return {
        "lora": _adapter_of(settings),
        "weights": settings.weights,
        "quantise": settings.quantise,
        "kv_cache_dtype": settings.kv_cache_dtype,
        "fuse": settings.fuse,
        "thinking": settings.thinking,
        "device": engine.facts.device,
        "dtype": engine.facts.dtype,
        "backend": settings.backend,
        "versions": known
        | (METHODS.version(method) if method is not None and method in METHODS else {}),
    }


def traced_facts(engine: Engine, text: Text, settings: ModelSettings) -> dict[str, Any]:
    """All that stands in a trace's header besides the model's name and the run itself. Reads all weights, where no cache folder did."""
    return {
        "vocabulary": text.vocabulary,
        **place_facts(engine, settings),
        "fingerprint": engine.executor.fingerprint(),
    }


@contextmanager
def _noted(notes: Notes) -> Iterator[None]:
    """Warnings given inside reach the user as ours, without the line of code they come from."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in given:
        notes.warn(str(warning.message))
