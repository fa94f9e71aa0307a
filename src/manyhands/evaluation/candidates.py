"""Candidates of an exam: a method on our own engine, or an endpoint.

A candidate is given questions and gives each back as `Answered`, in the order in which they are finished:
what the answer would have been at every budget, and what had been spent by then. Whether it is right is
for the grader to say (`run.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from manyhands.cache.prefixes import PrefixTree
from manyhands.engine.loop import Packs
from manyhands.errors import InvalidRequest, ManyhandsError
from manyhands.evaluation.endpoint import Endpoint, at_once, poll
from manyhands.evaluation.record import Key
from manyhands.evaluation.seeds import seed_of
from manyhands.evaluation.sitting import Sitting, sit
from manyhands.prompts.hogwild import TeamPrompt
from manyhands.prompts.votes import VotesPrompt
from manyhands.replay.trace import header_of, record
from manyhands.schema.lines import Line
from manyhands.schema.plain import to_plain
from manyhands.schema.setting import check_given, whole_number
from manyhands.strategies.base import Answer, Strategy
from manyhands.strategies.prompt_sharing import share_prompt
from manyhands.strategies.run_spec import RunSpec
from manyhands.tasks.needles import ask
from manyhands.tasks.task import Sample
from manyhands.text import Text, clean_problem

ENDPOINT_METHODS = ("sequential", "self_consistency")


@dataclass(frozen=True)
class Asked:
    """One sample, for the `repeat`-th time (from 0)."""

    sample: Sample
    repeat: int = 0

    @property
    def key(self) -> Key:
        """Which record it becomes."""
        return self.sample.id, self.repeat

    def seed(self, first: int) -> int:
        """Its own seed, of the seed of an exam's first repeat; those behind it count on."""
        return seed_of(first + self.repeat, self.sample.id)

    @property
    def text(self) -> str:
        """The text put before the model: a shared document first."""
        sample = self.sample
        return ask(sample.document, sample.question) if sample.document else sample.question


@dataclass(frozen=True)
class Answered:
    """The outcome of one question. `answers` and `spent` have an entry for every budget."""

    asked: Asked
    error: ManyhandsError | None = None
    answer: str | None = None
    text: str = ""
    finish_reason: str = "error"
    forward_passes: int | None = None
    extra_passes: int = 0
    tokens: Sequence[int] = ()
    seconds: float = 0.0
    answers: Mapping[int, str | None] = field(default_factory=dict)
    spent: Mapping[int, Mapping[str, float | None]] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    steps: Sequence[Mapping[str, Any]] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    writing: Sequence[Sequence[Any]] = ()
    trace: Sequence[Line] = ()
    seed: int | None = None  # of its draws; None where it is not known


class Candidate(Protocol):
    """Takes an exam."""

    def answered(self, asked: Iterable[Asked]) -> Iterator[Answered]:
        """The outcome of every question, each as soon as it is finished."""


@dataclass(frozen=True)
class MethodCandidate:
    """A method on our engine, `concurrency` questions at a time.

    `spec` says how each question is answered; its own problem is not asked. Its settings hold the budgets:
    the largest as budget, the others as snapshots. Each question and each repeat has a seed of its own (`Asked.seed`). The first repeat of the
    samples in `watched` keeps its writing. With a `tree`, prompts are found in it and left there. With `traced`, all that
    stands in a trace's header besides the run itself, every answer brings its trace.
    """

    engine: Packs
    text: Text
    spec: RunSpec
    concurrency: int = 16
    watched: frozenset[str] = frozenset()
    tree: PrefixTree | None = None
    traced: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "concurrency", whole_number("concurrency", self.concurrency, 1))
        spec: object = self.spec
        if not isinstance(spec, RunSpec):
            raise InvalidRequest(
                f"the spec of a candidate is of type {type(spec).__name__}; expected a RunSpec",
                hint="Write RunSpec(METHODS[name], settings, words).",
            )
        check_given(self.text, Text, "as the text of a candidate", "Give engine.text.")

    def answered(self, asked: Iterable[Asked | None]) -> Iterator[Answered]:
        """Continuous batching: whenever one has ended, the next one begins. None: there is none as yet."""
        failed: list[Answered] = []
        traces: dict[Key, list[Line]] = {}
        sittings = sit(
            self.engine,
            self._strategies(asked, failed, traces),
            self.concurrency,
            lambda one: one.repeat == 0 and one.sample.id in self.watched,
        )
        for sitting in sittings:
            yield from _emptied(failed)
            trace = traces.pop(sitting.key.key, [])
            yield replace(self._answered(sitting), trace=trace)
        yield from _emptied(failed)

    def _strategies(
        self,
        asked: Iterable[Asked | None],
        failed: list[Answered],
        traces: dict[Key, list[Line]],
    ) -> Iterator[tuple[Asked, Strategy] | None]:
        for one in asked:
            if one is None:
                yield None
                continue
            check_given(one, Asked, "as a question of an exam", "Write Asked(sample).")
            try:
                spec = self.spec.asked(clean_problem(one.text), one.seed(self.spec.settings.seed))
                strategy = spec.strategy(self.text)
            except ManyhandsError as error:
                failed.append(Answered(one, error))
            else:
                if self.traced is not None:
                    lines = traces[one.key] = []
                    strategy = record(strategy, header_of(spec, self.traced), lines.append)
                yield one, strategy if self.tree is None else share_prompt(strategy, self.tree)

    def _answered(self, sitting: Sitting) -> Answered:
        answer = sitting.answer or Answer("", finish_reason="error")
        budgets = (*self.spec.settings.snapshots, self.spec.settings.budget)
        spent = {budget: sitting.spent_by(budget) for budget in budgets}
        return Answered(
            sitting.key,
            sitting.error,
            answer=answer.answer,
            text=answer.text,
            finish_reason=answer.finish_reason,
            forward_passes=answer.forward_passes or sitting.charged,
            extra_passes=answer.extra_passes,
            tokens=answer.tokens if sitting.answer else (sitting.num_tokens,),
            seconds=sitting.seconds,
            # A run that was over before a budget has its final answer there; one that went on and took no snapshot, none.
            answers={
                b: answer.snapshots.get(b, answer.answer if sitting.charged <= b else None)
                for b in budgets
            },
            spent={
                b: {"passes": p, "tokens": t, "seconds": None if s is None else round(s, 4)}
                for b, (p, t, s) in spent.items()
            },
            memory=sitting.memory,
            steps=to_plain(answer.steps),
            names={str(worker): name for worker, name in sitting.names.items()},
            writing=to_plain(sitting.writing or ()),
            seed=sitting.key.seed(self.spec.settings.seed),
        )


@dataclass(frozen=True)
class EndpointCandidate:
    """A server behind an endpoint. The budget bounds the tokens of an answer, whatever they cost it.

    `prompt` has the rules: with a TeamPrompt a question is put as `sequential` puts it, with a
    VotesPrompt as `self_consistency` does. Without them the model would not be told where its answer
    has to stand.
    """

    endpoint: Endpoint
    budget: int
    workers: int = 1
    seed: int = 0
    concurrency: int = 16
    prompt: TeamPrompt | VotesPrompt = field(default_factory=TeamPrompt)
    kind: str = "boxed"  # of the answers: boxed, or code

    def __post_init__(self) -> None:
        for name, least in (("budget", 1), ("workers", 1), ("concurrency", 1)):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least))

    def message(self, question: str) -> str:
        """The message sent to the server: the user's message that a model of our own would be given."""
        if isinstance(self.prompt, VotesPrompt):
            return self.prompt.message(question)
        return self.prompt.solo_message(question)

    def answered(self, asked: Iterable[Asked]) -> Iterator[Answered]:
        """So many questions at a time, each with all its workers."""

        def answer(one: Asked) -> Answered:
            message = self.message(clean_problem(one.text))
            said = poll(self.endpoint, message, self.workers, one.seed(self.seed), self.kind)
            tokens = sum(said.tokens) if said.tokens else None
            return Answered(
                one,
                seed=one.seed(self.seed),
                answer=said.answer,
                text=said.text,
                finish_reason=said.finish_reason,
                tokens=said.tokens,
                seconds=said.seconds,
                answers={self.budget: said.answer},
                spent={
                    self.budget: {
                        "passes": None,
                        "tokens": tokens,
                        "seconds": round(said.seconds, 4),
                    }
                },
            )

        for one, told in at_once(answer, asked, self.concurrency):
            yield Answered(one, told) if isinstance(told, ManyhandsError) else told


def check_endpoint(method: str, budgets: Sequence[int]) -> None:
    """Raises InvalidRequest where an endpoint cannot do what our own engine can."""
    if method not in ENDPOINT_METHODS:
        raise InvalidRequest(
            f"an endpoint cannot take the exam as {method!r}: its cache cannot be reached",
            hint=f"choose one of: {', '.join(ENDPOINT_METHODS)}",
        )
    if len(budgets) != 1:
        raise InvalidRequest(
            f"{len(budgets)} budgets were given for an endpoint, expected one",
            hint="an endpoint shows finished answers only; give the most tokens of an answer",
        )


def _emptied(failed: list[Answered]) -> Iterator[Answered]:
    """Hand over what has gathered."""
    while failed:
        yield failed.pop(0)
