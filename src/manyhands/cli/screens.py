"""What a user sees of a run. A screen is shown every event, after the account has taken it.

JsonScreen   nothing, and one object at the end
QuietScreen  nothing, and the reply at the end
PlainScreen  each step as it is finished, then the reply: for pipes and files
LiveScreen   one column per worker, on a terminal (live.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from types import TracebackType
from typing import Any, Protocol, Self

from manyhands.cli.guard import tell
from manyhands.cli.outcome import Outcome
from manyhands.cli.output import Notes, say, say_json
from manyhands.schema.plain import to_plain
from manyhands.strategies.account import Account
from manyhands.strategies.base import Answer, FinishedStep
from manyhands.strategies.branches import BranchAnswer
from manyhands.strategies.events import Event, StepEnded

_REASONS = {
    "stopped": "every worker ended its turn without one",
    "budget": "the budget of forward passes is spent",
    "context": "the model's context is full",
    "asked": "the run was asked for its answer",
}


class Screen(Protocol):
    """Entered while the run goes on; `end` comes after that."""

    def show(self, event: Event) -> None:
        """Something happened."""

    def refresh(self) -> None:
        """A forward pass is over."""

    def end(self, outcome: Outcome) -> None:
        """The run is over: print what came of it."""

    def __enter__(self) -> Self:
        """The run begins."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """The run is over, or an error struck."""


class _Still:
    """Shows nothing while the run goes on."""

    def show(self, event: Event) -> None:
        """Nothing."""

    def refresh(self) -> None:
        """Nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing to put away."""


class JsonScreen(_Still):
    """`facts` are what the object says besides the answer: model, method, workers, layout, seed."""

    def __init__(self, facts: dict[str, Any], notes: Notes) -> None:
        self.facts = facts
        self.notes = notes

    def end(self, outcome: Outcome) -> None:
        """Print the object."""
        answer = outcome.answer
        warnings = [*self.notes.texts, *([str(outcome.error)] if outcome.error else [])]
        say_json(
            {
                "answer": answer.answer,
                "text": answer.text,
                "finish_reason": answer.finish_reason,
                "forward_passes": answer.forward_passes,
                "extra_passes": answer.extra_passes,
                "tokens": list(answer.tokens),
                "seconds": round(outcome.seconds, 3),
                **self.facts,
                "snapshots": {str(at): found for at, found in answer.snapshots.items()},
                **_more_of(answer),
                "warnings": warnings,
            }
        )


def _more_of(answer: Answer) -> dict[str, Any]:
    """What the answer of this method says besides what all answers say."""
    common = {field.name for field in fields(Answer)}
    said: dict[str, Any] = to_plain(answer)
    return {name: value for name, value in said.items() if name not in common}


class QuietScreen(_Still):
    """The reply alone; without one the answer, without that what was written."""

    def end(self, outcome: Outcome) -> None:
        """Print it."""
        say(outcome.answer.text)


class PlainScreen(_Still):
    """Text as it comes, for whatever is not a terminal."""

    def __init__(self, account: Account) -> None:
        self.account = account

    def show(self, event: Event) -> None:
        """Print a step when it is finished, if it is no part of the reply."""
        if isinstance(event, StepEnded) and not self.account.solo:
            say(self.account.transcript([self.account.hands[event.worker].steps[-1]]) + "\n")

    def end(self, outcome: Outcome) -> None:
        """Print the steps that the end cut off, and the reply."""
        account = self.account
        say_steps(account, account.thoughts() if account.solo else account.unfinished(), outcome)
        say_reply(account, outcome)


def say_steps(account: Account, steps: Sequence[FinishedStep], outcome: Outcome) -> None:
    """Print steps, those that were still being written marked if the run was cut short."""
    if not steps:
        return
    desks = account.unfinished() if outcome.is_cut_short else ()
    done = [step for step in steps if step not in desks]
    parts = [account.transcript(done), account.transcript(desks, unfinished=True)]
    say("\n\n".join(filter(None, parts)) + "\n")


def say_reply(account: Account, outcome: Outcome) -> None:
    """Print the answers of smaller budgets, the reply, and the answer if that does not contain it."""
    answer, reply = outcome.answer.answer, account.reply.strip()
    for passes, found in outcome.answer.snapshots.items():
        say(f"Answer after {passes} passes: {found or 'none'}")
    if reply:
        say(reply)
    if answer is not None and answer not in reply:
        say(f"Answer: {answer}")
    if answer is None and not reply and not outcome.is_cut_short:
        reason = outcome.answer.finish_reason
        tell(f"no answer was found: {_REASONS.get(reason, reason)}")
    if isinstance(outcome.answer, BranchAnswer):
        for join in outcome.answer.join_distances:
            tell(
                f"block {join.block}: behind the join, probabilities are up to {join.largest:.2g} "
                f"from those of the exact text (divergence {join.kl:.2g} nats)"
            )
