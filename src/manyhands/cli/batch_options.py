"""The options of `manyhands batch`, as a frozen dataclass."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from manyhands.cli.command import Chosen, options_of
from manyhands.cli.options import SolveOptions
from manyhands.cluster.settings import ClusterSettings
from manyhands.evaluation.shared import SHARED_PREFIX
from manyhands.model.settings import ModelSettings
from manyhands.schema.setting import like, setting
from manyhands.strategies.settings import UNSAID

_LINES, _RUN = "Where a request says nothing", "How it is done"


@dataclass(frozen=True, kw_only=True)
class BatchOptions(ModelSettings, ClusterSettings):
    """`manyhands batch`."""

    requests: Path = setting(
        ..., "Requests, one JSON object a line (OpenAI's batch format).", names=("requests",)
    )
    answers: Path = setting(
        ..., "Answers, line by line. If there are some already, go on.", names=("answers",)
    )
    chosen: Chosen = options_of({SHARED_PREFIX: UNSAID}, panel=_LINES)
    greedy: bool = like(SolveOptions, "greedy", panel=_LINES)
    listed: tuple[str, ...] = like(
        SolveOptions,
        "listed",
        help="Any setting of a request, as name=value, as often as needed.",
        panel=_LINES,
    )
    concurrency: int = setting(
        64, "Requests at the same time, at most; memory may admit fewer.", at_least=1, panel=_RUN
    )
    retry_failures: bool = setting(
        False, "Ask again where an answer says that it failed.", panel=_RUN
    )
    isolate: bool = setting(
        False,
        "Requests of different users (their field `user`) share nothing in memory.",
        panel=_RUN,
    )
    json: bool = like(SolveOptions, "json", help="Print the summary as JSON.", panel=_RUN)
