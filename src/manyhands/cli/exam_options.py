"""What can be asked for of the exam: `manyhands eval`, `judge` and `report`.

Any setting of a method can be chosen with --set, so an ablation needs no option of its own; those that
are chosen most have one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from manyhands.cli.options import _MODEL, ModelOptions, _option
from manyhands.evaluation.shared import SHARED_PREFIX, shared_method
from manyhands.strategies.methods import METHODS
from manyhands.tasks.catalogue import TASKS

_TASK, _METHOD, _SAMPLING = "Task", "Method", "Choice of tokens"
_EXAM, _ENDPOINT = "The exam", "Somebody else's endpoint"


EXAM_METHODS = {**METHODS, SHARED_PREFIX: shared_method()}


def _known_method(name: str) -> str:
    if name not in EXAM_METHODS:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(EXAM_METHODS)}")
    return name


def _known_task(name: str) -> str:
    if name not in TASKS:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(TASKS)}")
    return name


@dataclass(frozen=True, kw_only=True)
class EndpointChoice:
    """A server that speaks the OpenAI protocol. Its key is read from OPENAI_API_KEY."""

    endpoint: Annotated[
        str | None,
        _option(_ENDPOINT, "Ask this OpenAI-compatible server instead of a model of our own."),
    ] = None
    endpoint_model: Annotated[
        str | None, _option(_ENDPOINT, "The model's name there; the key is $OPENAI_API_KEY.")
    ] = None
    timeout: Annotated[float, _option(_ENDPOINT, "Seconds to wait for one answer.", min=0.1)] = (
        600.0
    )
    retries: Annotated[
        int, _option(_ENDPOINT, "Tries after the first, for what may pass.", min=0)
    ] = 4


@dataclass(frozen=True, kw_only=True)
class EvalOptions(ModelOptions, EndpointChoice):
    """`manyhands eval`."""

    task: Annotated[
        str,
        _option(_TASK, "What is asked.", metavar=f"[{'|'.join(TASKS)}]", callback=_known_task),
    ]
    out: Annotated[
        Path, _option(_EXAM, "Folder of the records; one that has some goes on with them.")
    ]
    source: Annotated[
        str | None,
        _option(
            _TASK,
            "A JSONL or Parquet file, another dataset of the hub, or fixture (a few of our own).",
            show_default="the task's own",
        ),
    ] = None
    limit: Annotated[
        int | None, _option(_TASK, "Only the first so many samples.", show_default="all")
    ] = None
    count: Annotated[
        int | None,
        _option(_TASK, "Problems, students or questions of a sample.", show_default="the task's"),
    ] = None
    kind: Annotated[
        str | None,
        _option(
            _TASK,
            "Of generated tasks. arithmetic: bare, word, mixed, held-out; others: known, held-out.",
        ),
    ] = None
    sentences: Annotated[
        int | None,
        _option(
            _TASK,
            "Of needles: sentences between the questions' facts.",
            show_default="six a question; for the bundled model 40",
        ),
    ] = None
    task_seed: Annotated[int, _option(_TASK, "Of generated samples.")] = 0
    method: Annotated[
        str,
        _option(
            _METHOD,
            "How it is answered.",
            metavar=f"[{'|'.join(EXAM_METHODS)}]",
            callback=_known_method,
        ),
    ] = "hogwild"
    workers: Annotated[
        int | None,
        _option(_METHOD, "How many.", "--workers", "-n", show_default="the method's"),
    ] = None
    layout: Annotated[
        str | None, _option(_METHOD, "Who reads what, in which order.", show_default="combined")
    ] = None
    budgets: Annotated[
        str,
        _option(
            _METHOD,
            "Forward passes after which the answer is wanted: 64,128,256. One run gives them all.",
            show_default="2048",
        ),
    ] = ""
    chosen: Annotated[
        list[str] | None,
        _option(
            _METHOD,
            "Any other setting of the method, as name=value, as often as needed.",
            "--set",
        ),
    ] = None
    prompts: Annotated[
        Path | None,
        _option(_METHOD, "The words, a TOML file.", show_default="the model's own"),
    ] = None
    draft: Annotated[
        bool, _option(_METHOD, "Ask for thoughts of a few words (chain-of-draft).", "--draft")
    ] = False
    temperature: Annotated[
        float | None,
        _option(_SAMPLING, "0 takes the likeliest token.", show_default="the method's"),
    ] = None
    top_k: Annotated[int | None, _option(_SAMPLING, "Only the k likeliest; 0: all.")] = None
    top_p: Annotated[
        float | None, _option(_SAMPLING, "Only the likeliest, up to this probability.")
    ] = None
    min_p: Annotated[
        float | None, _option(_SAMPLING, "Only those at least this likely, relatively.")
    ] = None
    seed: Annotated[
        int | None,
        _option(_SAMPLING, "Of all random numbers; each repeat adds 1.", show_default="0"),
    ] = None
    repeats: Annotated[int, _option(_EXAM, "How often each sample is asked.", min=1)] = 1
    concurrency: Annotated[
        int,
        _option(
            _EXAM,
            "Samples in the same forward passes; 1 measures what one user waits.",
            min=1,
        ),
    ] = 16
    reply: Annotated[
        bool | None,
        _option(
            _EXAM,
            "Have a reply to the user written, too.",
            "--reply/--no-reply",
            show_default="if the task needs a judge",
        ),
    ] = None
    transcripts: Annotated[
        int, _option(_EXAM, "Keep every token of the first so many samples.", min=0)
    ] = 0
    label: Annotated[
        str | None,
        _option(_EXAM, "Name of this line of the exam.", show_default="method and choices"),
    ] = None
    retry_failures: Annotated[
        bool, _option(_EXAM, "Ask again where a record says that it failed.", "--retry-failures")
    ] = False
    grader_seconds: Annotated[
        float, _option(_EXAM, "The longest that one answer may take to grade.", min=0.01)
    ] = 60.0


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(ModelOptions, EndpointChoice):
    """`manyhands judge`."""

    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Records of `manyhands eval`.")]
    rubric: Annotated[
        Literal["collaborativeness", "quality"],
        _option(_EXAM, "Teamwork from 1 to 6 (three votes), or the answer from 1 to 5."),
    ]
    model: Annotated[
        str | None,
        _option(
            _MODEL,
            "The judge: a folder, a name on the Hugging Face hub, or bundled.",
            show_default="none; it has to be named, here or by --endpoint",
        ),
    ] = None
    prompts: Annotated[
        Path | None, _option(_EXAM, "The judges' words, a TOML file with a table 'judging'.")
    ] = None
    temperature: Annotated[
        float | None,
        _option(_SAMPLING, "Of the votes.", show_default="1 for three votes, 0 for one"),
    ] = None
    tokens: Annotated[int, _option(_SAMPLING, "Of one vote, at most.", min=1)] = 4096
    concurrency: Annotated[int, _option(_EXAM, "Votes asked at the same time.", min=1)] = 8
    retry_failures: Annotated[
        bool, _option(_EXAM, "Ask again for votes that could not be read.", "--retry-failures")
    ] = False


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """`manyhands report`."""

    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Records of `manyhands eval`.")]
    out: Annotated[
        Path | None,
        typer.Option(help="The page; the pictures go beside it.", show_default="DIR/report.html"),
    ] = None
    baseline: Annotated[
        str | None,
        typer.Option(help="Label of what others are compared with.", show_default="sequential"),
    ] = None
