"""What can be asked for on the command line: one frozen dataclass per command.

A default of None means that the one in charge decides (the settings of the method, the model); the
help names its choice, and a test compares the two. An option of one method alone bears the name of a
field of that method's settings, and `solve.py` needs to know no more about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from manyhands.errors import InvalidRequest
from manyhands.strategies.methods import METHODS

BUNDLED = "bundled"

_MODEL, _METHOD, _BRANCHES = "Model", "Method", "Method: branches"
_SKELETON, _ATTEMPTS = "Method: skeleton", "Method: self_consistency"
_BENCH = "What is timed"
_SAMPLING, _END, _OUTPUT = "Choice of tokens", "How it ends", "Output"


def _known_method(name: str) -> str:
    if name not in METHODS:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(METHODS)}")
    return name


def _option(panel: str, help: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


def _check_named(model: str | None) -> None:
    if model is not None and not model.strip():  # a shell's variable that is not set
        raise InvalidRequest(
            "--model is empty; expected a folder or a name on the Hugging Face hub",
            hint="give one, or leave --model out",
        )


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which model computes, where and how."""

    model: Annotated[
        str | None,
        _option(
            _MODEL,
            "A folder, or a name on the Hugging Face hub such as Qwen/Qwen3-8B.",
            show_default="bundled, a small model that comes with manyhands",
        ),
    ] = None
    device: Annotated[str, _option(_MODEL, "auto, cpu, cuda or cuda:N.")] = "auto"
    dtype: Annotated[str, _option(_MODEL, "auto, float32, bfloat16, float16 or float64.")] = "auto"
    backend: Annotated[str, _option(_MODEL, "Attention: auto, triton, torch, reference.")] = "auto"
    load: Annotated[
        Literal["auto", "dummy"],
        _option(_MODEL, "Weights: the model's own, or random ones (dummy)."),
    ] = "auto"
    quantise: Annotated[
        Literal["auto", "none", "fp8", "int4"],
        _option(
            _MODEL,
            "Weights in fewer bits: as the checkpoint has them (auto; AWQ and GPTQ in four, FP8 in eight on "
            "GPUs that multiply them), none, or rounded to fp8 or int4.",
        ),
    ] = "auto"
    fuse: Annotated[
        Literal["auto", "on", "off"],
        _option(_MODEL, "Join small operations of each layer: auto is on for GPUs."),
    ] = "auto"
    memory_tokens: Annotated[
        int | None,
        _option(
            _MODEL,
            "Tokens whose keys and values are held.",
            min=1,
            show_default="what fits half of the free memory",
        ),
    ] = None
    context: Annotated[
        int | None, _option(_MODEL, "Longest view of a worker.", show_default="the model's own")
    ] = None

    def __post_init__(self) -> None:
        _check_named(self.model)


@dataclass(frozen=True, kw_only=True)
class SolveOptions(ModelOptions):
    """`manyhands solve`."""

    problem: Annotated[
        str | None, typer.Argument(help="The problem; - or nothing: read it from a pipe.")
    ] = None
    file: Annotated[Path | None, _option(_METHOD, "Read the problem from this file.")] = None
    method: Annotated[
        str,
        _option(
            _METHOD,
            " ".join(f"{method.name}: {method.about}." for method in METHODS.values()),
            metavar=f"[{'|'.join(METHODS)}]",
            callback=_known_method,
        ),
    ] = "hogwild"
    workers: Annotated[
        int | None,
        _option(
            _METHOD,
            "How many. Of skeleton: 0, one for each point; of independent attempts: 4.",
            "--workers",
            "-n",
            show_default="2",
        ),
    ] = None
    layout: Annotated[
        Literal["combined", "contiguous", "interleaved"] | None,
        _option(_METHOD, "Who reads what, in which order.", show_default="combined"),
    ] = None
    check_every: Annotated[
        int | None,
        _option(
            _METHOD,
            "Tokens between the questions whether work is redundant; 0: never.",
            show_default="1024",
        ),
    ] = None
    headers: Annotated[
        Literal["in_context", "alone"] | None,
        _option(_METHOD, "How section headers are encoded.", show_default="in_context"),
    ] = None
    join: Annotated[
        Literal["reencode", "stitch", "keep"] | None,
        _option(_BRANCHES, "How branches become one text again.", show_default="reencode"),
    ] = None
    max_blocks: Annotated[
        int | None,
        _option(_BRANCHES, "Blocks of branches, at most; 0: none.", show_default="4"),
    ] = None
    max_branches: Annotated[
        int | None, _option(_BRANCHES, "Branches of one block, at most.", show_default="16")
    ] = None
    branch_tokens: Annotated[
        int | None, _option(_BRANCHES, "Tokens of one branch, at most.", show_default="256")
    ] = None
    title_tokens: Annotated[
        int | None, _option(_BRANCHES, "Tokens of one title, at most.", show_default="48")
    ] = None
    join_distance: Annotated[
        bool | None,
        _option(
            _BRANCHES,
            "At the end, compute how far each join was from the exact text.",
            "--join-distance",
            show_default="no",
        ),
    ] = None
    outline_tokens: Annotated[
        int | None,
        _option(_SKELETON, "Tokens until the outline is closed, at most.", show_default="256"),
    ] = None
    max_points: Annotated[
        int | None,
        _option(_SKELETON, "Points that are worked out, at most.", show_default="32"),
    ] = None
    thread_tokens: Annotated[
        int | None, _option(_SKELETON, "Tokens of one point, at most.", show_default="1024")
    ] = None
    mode: Annotated[
        Literal["final", "vote"] | None,
        _option(
            _ATTEMPTS,
            "One answer from all attempts: a final row that reads them, or a vote.",
            show_default="final",
        ),
    ] = None
    budget: Annotated[int, _option(_METHOD, "Forward passes, at most.")] = 2048
    draft: Annotated[
        bool, _option(_METHOD, "Ask for thoughts of a few words (chain-of-draft).", "--draft")
    ] = False
    prompts: Annotated[
        Path | None,
        _option(
            _METHOD,
            "The words, a TOML file (see: manyhands prompts). What it leaves out is the model's own.",
            show_default="the model's own, if it brings a manyhands.toml",
        ),
    ] = None

    temperature: Annotated[
        float | None,
        _option(_SAMPLING, "0 takes the likeliest token.", show_default="the method's: 0 for most"),
    ] = None
    top_k: Annotated[
        int | None, _option(_SAMPLING, "Only the k likeliest; 0: all.", show_default="0")
    ] = None
    top_p: Annotated[
        float | None,
        _option(_SAMPLING, "Only the likeliest, up to this probability.", show_default="1.0"),
    ] = None
    min_p: Annotated[
        float | None,
        _option(
            _SAMPLING,
            "Only those at least this likely, relative to the likeliest.",
            show_default="0.0",
        ),
    ] = None
    seed: Annotated[int, _option(_SAMPLING, "Of all random numbers.")] = 0

    finisher: Annotated[bool, _option(_END, "Without an answer at the end, ask for one.")] = True
    finisher_tokens: Annotated[int, _option(_END, "Tokens for that answer, at most.")] = 64
    reencode: Annotated[
        bool,
        _option(
            _END, "Ask over text that is encoded anew, as one ordinary sequence.", "--reencode"
        ),
    ] = False
    reply: Annotated[bool, _option(_END, "Write a reply to the user at the end.")] = True
    reply_tokens: Annotated[int, _option(_END, "Tokens for that reply, at most.")] = 512
    snapshots: Annotated[
        str,
        _option(
            _END,
            "Smaller budgets whose answers are also wanted: 100,200. A run that ends before has none.",
        ),
    ] = ""

    json: Annotated[bool, _option(_OUTPUT, "Print one JSON object, at the end.", "--json")] = False
    quiet: Annotated[
        bool, _option(_OUTPUT, "Print the reply only, at the end.", "--quiet", "-q")
    ] = False
    transcript: Annotated[
        Path | None, _option(_OUTPUT, "Save a trace of the run here, line by line (JSONL).")
    ] = None


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(ModelOptions):
    """`manyhands replay`. Model, weights and context are the trace's own unless others are named."""

    trace: Annotated[Path, typer.Argument(help="A trace, saved by solve --transcript.")]
    model: Annotated[
        str | None, _option(_MODEL, "Another place of the model.", show_default="the trace's")
    ] = None
    load: Annotated[
        Literal["auto", "dummy"],
        _option(_MODEL, "Weights: the trace's (auto), or random ones (dummy)."),
    ] = "auto"
    quantise: Annotated[
        Literal["auto", "none", "fp8", "int4"],
        _option(_MODEL, "Weights in fewer bits: as the trace says (auto), none, fp8 or int4."),
    ] = "auto"
    fuse: Annotated[
        Literal["auto", "on", "off"],
        _option(
            _MODEL,
            "Join small operations of each layer: as the trace says (auto), on or off. "
            "--verify never does.",
        ),
    ] = "auto"
    context: Annotated[
        int | None, _option(_MODEL, "Longest view of a worker.", show_default="the trace's")
    ] = None
    verify: Annotated[
        bool,
        _option(_OUTPUT, "Compute the run again in one pass and compare every token.", "--verify"),
    ] = False
    resume: Annotated[
        bool, _option(_OUTPUT, "Go on with a run that was interrupted.", "--continue")
    ] = False
    transcript: Annotated[
        Path | None,
        _option(
            _OUTPUT, "With --continue: save the whole trace here, what it was and what is new."
        ),
    ] = None
    json: Annotated[bool, _option(_OUTPUT, "Print one JSON object.", "--json")] = False
    quiet: Annotated[bool, _option(_OUTPUT, "Leave the transcript out.", "--quiet", "-q")] = False


@dataclass(frozen=True, kw_only=True)
class BenchOptions(ModelOptions):
    """`manyhands bench`."""

    workers: Annotated[str, _option(_BENCH, "Team sizes.", "--workers", "-n")] = "1,2,4"
    lengths: Annotated[
        str | None,
        _option(
            _BENCH,
            "Tokens of history that all workers share.",
            show_default="those of 256,1024,4096,16384 that fit",
        ),
    ] = None
    desk: Annotated[
        int, _option(_BENCH, "Tokens on the desk of every worker when the clock starts.", min=0)
    ] = 32
    passes: Annotated[int, _option(_BENCH, "Passes that are timed, per number.", min=1)] = 16
    json: Annotated[bool, _option(_OUTPUT, "Print one JSON object, at the end.", "--json")] = False


@dataclass(frozen=True, kw_only=True)
class PromptsOptions:
    """`manyhands prompts`."""

    model: Annotated[
        str | None,
        typer.Option(help="Whose: a folder, or a name on the hub.", show_default="bundled"),
    ] = None

    def __post_init__(self) -> None:
        _check_named(self.model)


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """`manyhands train`. What is None is as the recipe says."""

    recipe: Annotated[Path, typer.Argument(help="What is trained, on what, and how (TOML).")]
    out: Annotated[Path, typer.Option(help="Folder for the model, its log and its checkpoint.")]
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto"
    steps: Annotated[
        int | None, typer.Option(help="Training steps, at most.", show_default="the recipe's")
    ] = None
    minutes: Annotated[
        float | None, typer.Option(help="Time, at most; 0: no limit.", show_default="the recipe's")
    ] = None
    processes: Annotated[
        int | None, typer.Option(help="That make batches.", show_default="the recipe's")
    ] = None
