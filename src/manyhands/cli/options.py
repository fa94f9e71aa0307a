"""The options of the command line: one frozen dataclass per command.

Each field is a setting (`schema/setting.py`) and becomes an option (`command.py`). What is declared
elsewhere is taken from there: the model's choices from `ModelSettings`, those of all methods by
`options_of`. A default of None means that something else decides, which the help names.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyhands.cli.command import Chosen, options_of
from manyhands.errors import InvalidRequest
from manyhands.hub import BUNDLED as BUNDLED
from manyhands.model.settings import Fuse, KeyDtype, ModelSettings, Quantise, Weights, check_named
from manyhands.replay.settings import TrainSettings
from manyhands.schema.setting import check, like, setting
from manyhands.strategies.listening import Said
from manyhands.strategies.methods import METHODS

_RECIPES = "the recipe's"

_METHOD, _OUTPUT, _BENCH = "Method", "Output", "What is timed"


@dataclass(frozen=True, kw_only=True)
class SolveOptions(ModelSettings):
    """`manyhands solve`."""

    problem: str | None = setting(
        None, "The problem; - or nothing: read it from a pipe.", names=("problem",)
    )
    file: Path | None = setting(None, "Read the problem from this file.", panel=_METHOD)
    method: str = setting(
        "hogwild",
        " ".join(f"{method.name}: {method.about}." for method in METHODS.rows.values()),
        one_of=METHODS,
        panel=_METHOD,
    )
    chosen: Chosen = options_of(METHODS)
    greedy: bool = setting(
        False,
        "Take the likeliest tokens, whatever the model's own generation_config.json says; without this "
        "option, what the file says is the default.",
        panel="Choice of tokens",
    )
    system: str | None = setting(None, "The system message.", unset="none", panel=_METHOD)
    draft: bool = setting(False, "Ask for thoughts of a few words (chain-of-draft).", panel=_METHOD)
    prompts: Path | None = setting(
        None,
        "The words, a TOML file (see: manyhands prompts). What it leaves out is the model's own.",
        unset="the model's own, if it brings a manyhands.toml",
        panel=_METHOD,
    )
    listed: tuple[str, ...] = setting(
        (),
        "Any setting of the method, as name=value, as often as needed; a name that does not exist is "
        "answered with those that do.",
        names=("--set",),
        panel=_METHOD,
    )

    json: bool = setting(False, "Print one JSON object, at the end.", panel=_OUTPUT)
    events: bool = setting(
        False,
        "Print each event of the run as a line of JSON, as it happens, and the object of --json as the "
        "last line.",
        names=("--json-events",),
        panel=_OUTPUT,
    )
    quiet: bool = setting(
        False, "Print the reply only, at the end.", names=("--quiet", "-q"), panel=_OUTPUT
    )
    transcript: Path | None = setting(
        None,
        "Save a trace of the run here, line by line (JSONL). The trace of a run that has ended is replaced; that of one "
        "which was cut short is not.",
        panel=_OUTPUT,
    )
    name: str | None = setting(
        None,
        "Yours, for what you type while a team of hogwild is live on a terminal; Enter says it to all.",
        unset="that of the user",
        panel=_OUTPUT,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_name(self.name)


@dataclass(frozen=True, kw_only=True)
class ChatOptions(ModelSettings):
    """`manyhands chat`."""

    method: str = like(SolveOptions, "method")
    chosen: Chosen = options_of(METHODS)
    greedy: bool = like(SolveOptions, "greedy")
    system: str | None = like(SolveOptions, "system")
    draft: bool = like(SolveOptions, "draft")
    prompts: Path | None = like(SolveOptions, "prompts")
    listed: tuple[str, ...] = like(SolveOptions, "listed")

    quiet: bool = like(SolveOptions, "quiet", help="Print the replies only.")
    verbose: bool = setting(
        False,
        "Say how much of each prompt was in the cache, also where nothing is typed.",
        panel=_OUTPUT,
    )


_TRACES = "the trace's"


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(ModelSettings):
    """`manyhands replay`. Model, weights and context are the trace's own unless others are named."""

    trace: Path = setting(..., "A trace, saved by solve --transcript.", names=("trace",))
    model: Any = like(ModelSettings, "model", help="Another place of the model.", unset=_TRACES)
    lora: str | None = like(
        ModelSettings, "lora", help="Another place of the LoRA adapter.", unset=_TRACES
    )
    weights: Weights = like(
        ModelSettings, "weights", help="Weights: the trace's (auto), or random ones (dummy)."
    )
    quantise: Quantise = like(
        ModelSettings,
        "quantise",
        help="Weights in fewer bits: as the trace says (auto), none, fp16, fp8 or int4.",
    )
    fuse: Fuse = like(
        ModelSettings,
        "fuse",
        help="Join small operations of each layer: as the trace says (auto), on or off. --verify "
        "never does.",
    )
    context: int | None = like(ModelSettings, "context", unset=_TRACES)
    kv_cache_dtype: KeyDtype = like(ModelSettings, "kv_cache_dtype", by="code")
    cache: str | None = like(ModelSettings, "cache", by="code")
    cache_size: float | None = like(ModelSettings, "cache_size", by="code")
    verify: bool = setting(
        False, "Compute the run again in one pass and compare every token.", panel=_OUTPUT
    )
    resume: bool = setting(
        False, "Go on with a run that was interrupted.", names=("--continue",), panel=_OUTPUT
    )
    transcript: Path | None = setting(
        None,
        "With --continue: save the whole trace here, what it was and what is new.",
        panel=_OUTPUT,
    )
    json: bool = like(SolveOptions, "json", help="Print one JSON object.")
    events: bool = like(
        SolveOptions,
        "events",
        help="With --continue: print each event as a line of JSON, and the object as the last line.",
    )
    quiet: bool = like(SolveOptions, "quiet", help="Leave the transcript out.")
    name: str | None = like(SolveOptions, "name", help="With --continue: yours, see solve.")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_name(self.name)


def _check_name(name: str | None) -> None:
    """Raise InvalidRequest for a name that no words can be said under."""
    if name is not None:
        Said("words", name)


@dataclass(frozen=True, kw_only=True)
class ViewOptions:
    """`manyhands view`."""

    trace: Path = like(ReplayOptions, "trace")
    out: Path | None = setting(
        None, "Write the page here instead: one file that needs no server and can be mailed."
    )
    port: int = setting(
        0,
        "Of this machine, where the page is served.",
        at_least=0,
        at_most=65535,
        zero="a free one",
    )
    browser: bool = setting(True, "Open the page in a browser.")

    def __post_init__(self) -> None:
        check(self)


LOCKSTEP_PASSES, LIFE_PASSES = 16, 100


@dataclass(frozen=True, kw_only=True)
class BenchOptions(ModelSettings):
    """`manyhands bench`."""

    workers: tuple[int, ...] = setting(
        (1, 2, 4), "Team sizes.", at_least=1, names=("--workers", "-n"), panel=_BENCH
    )
    lengths: tuple[int, ...] | None = setting(
        None,
        "Tokens of history that all workers share.",
        at_least=1,
        unset="those of 256,1024,4096,16384 that fit",
        panel=_BENCH,
    )
    desk: int = setting(
        32, "Tokens on the desk of every worker when the clock starts.", at_least=0, panel=_BENCH
    )
    passes: int | None = setting(
        None,
        "Passes that are timed, per number.",
        at_least=1,
        unset=f"{LOCKSTEP_PASSES}; with --life {LIFE_PASSES}",
        panel=_BENCH,
    )
    life: bool = setting(
        False,
        "Time runs as they live instead: steps end, desks differ, runs come and go and bring prompts.",
        panel=_BENCH,
    )
    cache: str | None = like(ModelSettings, "cache", by="code")
    cache_size: float | None = like(ModelSettings, "cache_size", by="code")
    json: bool = like(SolveOptions, "json")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("workers", "lengths", "desk") if self.life else ():
            if getattr(self, name) != getattr(type(self)(), name):
                raise InvalidRequest(
                    f"--{name} says what a team in lockstep is, and --life was asked for",
                    hint=f"leave out --{name}, or --life",
                )


@dataclass(frozen=True, kw_only=True)
class PromptsOptions:
    """`manyhands prompts`."""

    model: str | None = like(
        ModelSettings,
        "model",
        help="Whose: a folder, or a name on the hub.",
        unset=BUNDLED,
        panel="",
    )
    lora: str | None = like(
        ModelSettings,
        "lora",
        help="A folder with a LoRA adapter: words that lie beside it are the model's.",
        panel="",
    )

    def __post_init__(self) -> None:
        check_named(self.model)


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """`manyhands train`. What is None is as the recipe says."""

    recipe: Path = setting(..., "What is trained, on what, and how (TOML).", names=("recipe",))
    out: Path = setting(..., "Folder for the model, its log and its checkpoint.")
    model: str | None = setting(
        None,
        "The model to start from: a folder, a GGUF file, or a name on the hub.",
        unset=_RECIPES,
    )
    device: str = like(ModelSettings, "device", panel="")
    steps: int | None = like(TrainSettings, "steps", default=None, unset=_RECIPES)
    minutes: float | None = like(TrainSettings, "minutes", default=None, unset=_RECIPES)
    processes: int | None = like(TrainSettings, "processes", default=None, unset=_RECIPES)
    pause: float = setting(
        0.0,
        "Minutes after which this command stops for now; the same command goes on from there.",
        at_least=0,
        zero="never",
    )

    def __post_init__(self) -> None:
        check(self)
