"""What can be asked of `manyhands batch`, as a frozen dataclass."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from manyhands.cli.options import ModelOptions

_LINES, _RUN = "Where a request says nothing", "How it is done"


@dataclass(frozen=True, kw_only=True)
class BatchOptions(ModelOptions):
    """`manyhands batch`."""

    requests: Annotated[
        Path, typer.Argument(help="Requests, one JSON object a line (OpenAI's batch format).")
    ]
    answers: Annotated[
        Path, typer.Argument(help="Answers, line by line. If there are some already, go on.")
    ]
    max_tokens: Annotated[
        int, typer.Option(help="Tokens of a completion, at most.", min=1, rich_help_panel=_LINES)
    ] = 1024
    temperature: Annotated[
        float, typer.Option(help="0 takes the likeliest token.", rich_help_panel=_LINES)
    ] = 1.0
    seed: Annotated[
        int,
        typer.Option(
            help="Of all random numbers, together with the custom_id.", rich_help_panel=_LINES
        ),
    ] = 0
    concurrency: Annotated[
        int,
        typer.Option(
            help="Requests at the same time, at most; memory may admit fewer.",
            min=1,
            rich_help_panel=_RUN,
        ),
    ] = 64
    retry_failures: Annotated[
        bool,
        typer.Option(
            "--retry-failures",
            help="Ask again where an answer says that it failed.",
            rich_help_panel=_RUN,
        ),
    ] = False
    isolate: Annotated[
        bool,
        typer.Option(
            "--isolate",
            help="Requests of different users (their field `user`) share nothing in memory.",
            rich_help_panel=_RUN,
        ),
    ] = False
    json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON.", rich_help_panel=_RUN)
    ] = False
