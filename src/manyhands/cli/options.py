"""What can be asked for on the command line: one frozen dataclass per command.

A default of None means that the one in charge decides (`TeamSettings`, the model); the help names
its choice, and a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

BUNDLED = "bundled"

_MODEL, _TEAM = "Model", "Team"
_SAMPLING, _END, _OUTPUT = "Choice of tokens", "How it ends", "Output"


def _option(panel: str, help: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


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
    backend: Annotated[str, _option(_MODEL, "Attention: auto, torch or reference.")] = "auto"
    load: Annotated[
        Literal["auto", "dummy"],
        _option(_MODEL, "Weights: the model's own, or random ones (dummy)."),
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


@dataclass(frozen=True, kw_only=True)
class SolveOptions(ModelOptions):
    """`manyhands solve`."""

    problem: Annotated[
        str | None, typer.Argument(help="The problem; - or nothing: read it from a pipe.")
    ] = None
    file: Annotated[Path | None, _option(_TEAM, "Read the problem from this file.")] = None
    method: Annotated[
        Literal["hogwild", "sequential"],
        _option(_TEAM, "A team in one cache, or one worker alone."),
    ] = "hogwild"
    workers: Annotated[
        int | None, _option(_TEAM, "How many.", "--workers", "-n", show_default="2")
    ] = None
    layout: Annotated[
        Literal["combined", "contiguous", "interleaved"] | None,
        _option(_TEAM, "Who reads what, in which order.", show_default="combined"),
    ] = None
    check_every: Annotated[
        int | None,
        _option(
            _TEAM,
            "Tokens between the questions whether work is redundant; 0: never.",
            show_default="1024",
        ),
    ] = None
    headers: Annotated[
        Literal["in_context", "alone"] | None,
        _option(_TEAM, "How section headers are encoded.", show_default="in_context"),
    ] = None
    budget: Annotated[int, _option(_TEAM, "Forward passes, at most.")] = 2048
    prompts: Annotated[
        Path | None,
        _option(
            _TEAM,
            "The team's words, a TOML file (see: manyhands prompts).",
            show_default="the model's own, if its folder has a manyhands.toml",
        ),
    ] = None

    temperature: Annotated[float, _option(_SAMPLING, "0 takes the likeliest token.")] = 0.0
    top_k: Annotated[int, _option(_SAMPLING, "Only the k likeliest; 0: all.")] = 0
    top_p: Annotated[float, _option(_SAMPLING, "Only the likeliest, up to this probability.")] = 1.0
    min_p: Annotated[
        float, _option(_SAMPLING, "Only those at least this likely, relative to the likeliest.")
    ] = 0.0
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
        str, _option(_END, "Smaller budgets whose answers are also wanted: 100,200.")
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
    """`manyhands replay`. The model is the trace's own unless another is named."""

    trace: Annotated[Path, typer.Argument(help="A trace, saved by solve --transcript.")]
    model: Annotated[
        str | None, _option(_MODEL, "Another place of the model.", show_default="the trace's")
    ] = None
    verify: Annotated[
        bool,
        _option(_OUTPUT, "Compute the run again in one pass and compare every token.", "--verify"),
    ] = False
    resume: Annotated[
        bool, _option(_OUTPUT, "Go on with a run that was interrupted.", "--continue")
    ] = False
    json: Annotated[bool, _option(_OUTPUT, "Print one JSON object.", "--json")] = False
    quiet: Annotated[bool, _option(_OUTPUT, "Leave the transcript out.", "--quiet", "-q")] = False


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
