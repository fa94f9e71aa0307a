"""Voices, which are asked for votes: a server, or a model on our own engine.

A voice is given messages and gives back texts, in the order in which they come. Whether a text is a vote
is for `judge.py` to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from manyhands.cache.step import Choice
from manyhands.errors import ManyhandsError
from manyhands.evaluation.endpoint import Endpoint, at_once
from manyhands.evaluation.record import Key
from manyhands.evaluation.seeds import seed_of
from manyhands.evaluation.sitting import sit
from manyhands.prompts.hogwild import TeamPrompt
from manyhands.schema.setting import whole_number
from manyhands.strategies.base import Strategy
from manyhands.strategies.methods import METHODS
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import EndSettings, SoloSettings
from manyhands.text import Text
from manyhands.text.boxed import boxed_answer

if TYPE_CHECKING:
    from manyhands.engine.loop import Packs

Ballot = tuple[Key, int]  # the work, and the number of the vote


def _seed(ballot: Ballot) -> int:
    """The seed of a vote: of its number and of the work that is voted on."""
    key, number = ballot
    return seed_of(number, *key)


class Voice(Protocol):
    """A model that can be asked: it gives back a text, or the error that kept it from one."""

    def replies(
        self, asked: Iterable[tuple[Ballot, str]]
    ) -> Iterator[tuple[Ballot, str | ManyhandsError]]:
        """A reply to every message, each as soon as it has come."""


@dataclass(frozen=True)
class EndpointVoice:
    """A judge behind an endpoint, `concurrency` messages at a time."""

    endpoint: Endpoint
    concurrency: int = 8

    def __post_init__(self) -> None:
        object.__setattr__(self, "concurrency", whole_number("concurrency", self.concurrency, 1))

    def replies(
        self, asked: Iterable[tuple[Ballot, str]]
    ) -> Iterator[tuple[Ballot, str | ManyhandsError]]:
        """Each vote has a seed of its own."""
        found = at_once(
            lambda one: self.endpoint.ask(one[1], seed=_seed(one[0])).text, asked, self.concurrency
        )
        for (ballot, _), told in found:
            yield ballot, told


def judge_spec(tokens: int, temperature: float, context: int | None = None) -> RunSpec:
    """How a judge on our own engine replies. The rubric is the whole message."""
    settings = SoloSettings(
        budget=tokens,
        choice=Choice(temperature),
        end=EndSettings(finisher_tokens=8, reply=False, answer="boxed"),
    )
    words = TeamPrompt(solo_rules="{problem}")
    return RunSpec(METHODS["sequential"], settings, words, context=context)


@dataclass(frozen=True)
class EngineVoice:
    """A judge on our own engine: one worker alone, and the finisher if it comes to no level.

    `spec`: see `judge_spec`.
    """

    engine: Packs
    text: Text
    spec: RunSpec
    concurrency: int = 8

    def __post_init__(self) -> None:
        object.__setattr__(self, "concurrency", whole_number("concurrency", self.concurrency, 1))

    def replies(
        self, asked: Iterable[tuple[Ballot, str] | None]
    ) -> Iterator[tuple[Ballot, str | ManyhandsError]]:
        """Each vote has a seed of its own. None: there is nothing to reply to as yet."""

        def strategy_of(pair: tuple[Ballot, str] | None) -> tuple[Ballot, Strategy] | None:
            if pair is None:
                return None
            ballot, message = pair
            return ballot, self.spec.asked(message, _seed(ballot)).strategy(self.text)

        strategies = map(strategy_of, asked)
        for sitting in sit(self.engine, strategies, self.concurrency):
            if sitting.answer is None:
                yield sitting.key, sitting.error or ManyhandsError("the judge gave no answer")
                continue
            answer, text = sitting.answer.answer, sitting.answer.text
            boxed = f"\n\\boxed{{{answer}}}" if answer is not None else ""
            yield sitting.key, text if boxed_answer(text) == answer else text + boxed
