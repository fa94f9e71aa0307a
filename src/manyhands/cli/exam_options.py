"""The options of the exam: `manyhands eval`, `judge`, `report` and `compare`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyhands.cache.step import Choice
from manyhands.cli.command import Chosen, options_of
from manyhands.cli.options import SolveOptions
from manyhands.cluster.settings import ClusterSettings
from manyhands.evaluation.endpoint import EndpointOptions
from manyhands.evaluation.grading import MOST_GRADERS
from manyhands.evaluation.judge import RUBRICS
from manyhands.evaluation.shared import SHARED_PREFIX, shared_method
from manyhands.model.settings import ModelSettings
from manyhands.schema.setting import check, like, setting
from manyhands.schema.waits import LONGEST_WAIT
from manyhands.strategies.methods import METHODS
from manyhands.strategies.settings import Settings
from manyhands.tasks.catalogue import TASKS
from manyhands.tasks.task import TaskOptions

_TASK, _METHOD, _SAMPLING = "Task", "Method", "Choice of tokens"
_EXAM, _ENDPOINT = "The exam", "Another server"

EXAM_METHODS = METHODS.beside({SHARED_PREFIX: shared_method()})


@dataclass(frozen=True, kw_only=True)
class EndpointChoice:
    """A server that speaks the OpenAI protocol. Its key is read from OPENAI_API_KEY."""

    endpoint: str | None = setting(
        None,
        "Ask this OpenAI-compatible server instead of a model of our own.",
        panel=_ENDPOINT,
    )
    endpoint_model: str | None = setting(
        None, "The model's name there; the key is $OPENAI_API_KEY.", panel=_ENDPOINT
    )
    timeout: float = like(EndpointOptions, "timeout", panel=_ENDPOINT)
    retries: int = like(EndpointOptions, "retries", panel=_ENDPOINT)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class EvalOptions(ModelSettings, EndpointChoice, ClusterSettings):
    """`manyhands eval`."""

    task: str = setting(..., "What is asked.", one_of=TASKS, panel=_TASK)
    out: Path = setting(
        ..., "Folder of the records; one that has some goes on with them.", panel=_EXAM
    )
    source: str | None = like(TaskOptions, "source")
    limit: int | None = like(TaskOptions, "limit")
    count: int | None = like(TaskOptions, "count")
    kind: str | None = like(TaskOptions, "kind")
    sentences: int | None = like(TaskOptions, "sentences")
    shots: int | None = like(TaskOptions, "shots")
    allow_code: bool = like(TaskOptions, "allow_code")
    task_seed: int = like(TaskOptions, "seed")
    method: str = like(SolveOptions, "method", help="How it is answered.", one_of=EXAM_METHODS)
    budgets: tuple[int, ...] = setting(
        (),
        "Forward passes after which the answer is wanted: 64,128,256. One run gives them all.",
        at_least=1,
        unit="forward passes",
        unset=str(Settings().budget),
        panel=_METHOD,
    )
    chosen: Chosen = options_of(
        EXAM_METHODS,
        without=("budget", "snapshots"),
        unset={
            "end.reply": "if the task needs a judge",
            "end.answer": "the task's",
            "end.finisher_tokens": "the task's",
        },
    )
    greedy: bool = like(SolveOptions, "greedy")
    draft: bool = like(SolveOptions, "draft")
    prompts: Path | None = like(SolveOptions, "prompts")
    listed: tuple[str, ...] = like(SolveOptions, "listed")
    repeats: int | None = setting(
        None,
        "How often each sample is asked; each time the seed is 1 more.",
        at_least=1,
        unset="the task's",
        panel=_EXAM,
    )
    concurrency: int = setting(
        16,
        "Samples in the same forward passes; 1 measures what one user waits.",
        at_least=1,
        panel=_EXAM,
    )
    transcripts: int = setting(
        0, "Keep every token of the first so many samples.", at_least=0, panel=_EXAM
    )
    traces: bool = setting(
        False, "Keep the trace of every run with its score, to learn from.", panel=_EXAM
    )
    label: str | None = setting(
        None, "Name of this line of the exam.", unset="method and choices", panel=_EXAM
    )
    retry_failures: bool = setting(
        False, "Ask again where a record says that it failed.", panel=_EXAM
    )
    grader_seconds: float | None = setting(
        None,
        "The longest that one answer may take to grade.",
        at_least=0.01,
        at_most=LONGEST_WAIT,
        unset="the task's",
        panel=_EXAM,
    )
    graders: int | None = setting(
        None,
        "Processes that grade, at most; one is started when all others are busy.",
        at_least=1,
        unset=f"the cores that it may use, {MOST_GRADERS} at most",
        panel=_EXAM,
    )


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(ModelSettings, EndpointChoice, ClusterSettings):
    """`manyhands judge`."""

    folder: Path = setting(..., "Records of `manyhands eval`.", names=("DIR",))
    rubric: str = setting(
        ...,
        "Teamwork from 1 to 6 (three votes), or the answer from 1 to 5.",
        one_of=RUBRICS,
        panel=_EXAM,
    )
    model: Any = like(
        ModelSettings,
        "model",
        help="The judge: a folder, a name on the Hugging Face hub, or bundled.",
        unset="none; it has to be named, here or by --endpoint",
    )
    cache: str | None = like(ModelSettings, "cache", by="code")
    cache_size: float | None = like(ModelSettings, "cache_size", by="code")
    prompts: Path | None = setting(
        None, "The judges' words, a TOML file with a table 'judging'.", panel=_EXAM
    )
    temperature: float | None = like(
        Choice,
        "temperature",
        default=None,
        help="Of the votes.",
        unset="1 for three votes, 0 for one",
        panel=_SAMPLING,
    )
    tokens: int = setting(4096, "Of one vote, at most.", at_least=1, panel=_SAMPLING)
    concurrency: int = setting(8, "Votes asked at the same time.", at_least=1, panel=_EXAM)
    retry_failures: bool = setting(
        False, "Ask again for votes that could not be read.", panel=_EXAM
    )


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """`manyhands report`."""

    folder: Path = like(JudgeOptions, "folder")
    out: Path | None = setting(
        None, "The page; the pictures go beside it.", unset="DIR/report.html"
    )
    baseline: str | None = setting(
        None, "Label of what others are compared with.", unset="sequential"
    )
    runs: int = setting(
        8,
        "Pages of runs that kept their traces (eval --traces): so many of each method, the worst first.",
        at_least=0,
        zero="none",
    )
    inspect: Path | None = setting(
        None,
        "A folder for logs that `inspect view` opens, of Inspect's own library.",
        unset="no logs",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """`manyhands compare`."""

    first: Path = setting(..., "Records of one method: DIR/TASK/LABEL.jsonl.", names=("A",))
    second: Path = setting(..., "Records of another on the same task.", names=("B",))
