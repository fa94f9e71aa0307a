"""The view of a run that a user has. A screen is shown every event, after the account has taken it.

JsonScreen   nothing, and one object at the end
EventScreen  every event as a line of JSON, and that object as the last line
QuietScreen  nothing, and the reply at the end
PlainScreen  each step as it is finished, then the reply: for pipes and files
LiveScreen   one column per worker, on a terminal (live.py)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Protocol, Self

from manyhands.cli.guard import tell
from manyhands.cli.outcome import Outcome
from manyhands.cli.output import Notes, say, say_json
from manyhands.cli.status import last_line
from manyhands.cli.stopping import word_for
from manyhands.errors import counted
from manyhands.schema.plain import to_plain
from manyhands.strategies.account import Account
from manyhands.strategies.base import Answer, FinishedStep
from manyhands.strategies.branches import BranchAnswer
from manyhands.strategies.events import Event, StepEnded, to_line
from manyhands.strategies.listening import Item
from manyhands.text import boxed_answer

# Of words of their own: a letter, a digit, a sign or another digit's point would make them part of others.
_BEFORE, _BEHIND = r"(?<![\w−-])(?<!\d[.,])", r"(?!\w|[.,]\d)"
_ITEM = re.compile(r"^\s*\d+[.)]\s+")
_REASONS = {
    "stopped": "every worker ended its turn without one",
    "budget": "the budget of forward passes is spent",
    "context": "the model's context is full",
    "asked": "the run was asked for its answer",
}


class Screen(Protocol):
    """Entered while the run goes on; `end` comes after that."""

    def listen(self, say: Callable[[Item], None]) -> None:
        """The run hears what is said to it: by `say`, from any thread."""

    def show(self, event: Event) -> None:
        """Something happened."""

    def refresh(self, num_passes: int) -> None:
        """A forward pass is over, or none has been made yet; `num_passes` have, extra ones included."""

    def end(self, outcome: Outcome) -> None:
        """The run is over: print what came of it."""

    def __enter__(self) -> Self:
        """The run begins."""

    def __exit__(self, *_: object) -> None:
        """The run is over, or an error struck."""


class _Still:
    """Shows nothing while the run goes on."""

    def listen(self, say: Callable[[Item], None]) -> None:
        """Nothing: no person types here."""

    def show(self, event: Event) -> None:
        """Nothing."""

    def refresh(self, num_passes: int) -> None:
        """Nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to put away."""


class JsonScreen(_Still):
    """One object. `facts` are what it says besides the answer: model, method, workers, layout, seed, budget."""

    indent: int | None = 2

    def __init__(self, account: Account, facts: dict[str, Any], notes: Notes) -> None:
        self.account = account
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
                "names": [hand.name for hand in self.account.hands],
                "steps": to_plain(answer.steps),
                "snapshots": {str(at): found for at, found in answer.snapshots.items()},
                **_more_of(answer),
                "warnings": warnings,
            },
            indent=self.indent,
        )
        _tell_of_interrupt(outcome)


class EventScreen(JsonScreen):
    """The run as lines of JSON: its events as they happen (`strategies/events.py`), then the object."""

    indent = None

    def show(self, event: Event) -> None:
        """Print it."""
        say_json(to_line(event), indent=None)


def _more_of(answer: Answer) -> dict[str, Any]:
    """The facts that the answers of this method have besides those of all answers."""
    common = {field.name for field in fields(Answer)}
    said: dict[str, Any] = to_plain(answer)
    return {name: value for name, value in said.items() if name not in common}


def _tell_of_interrupt(outcome: Outcome) -> None:
    """Beside an output that has no last line for it."""
    if outcome.signal is not None:
        tell(
            f"{word_for(outcome.signal)} after {counted(outcome.answer.forward_passes, 'forward pass')}"
        )


class QuietScreen(_Still):
    """The reply alone; without one the answer, without that what was written."""

    def end(self, outcome: Outcome) -> None:
        """Print it."""
        say(outcome.answer.text)
        _tell_of_interrupt(outcome)


class PlainScreen(_Still):
    """Text as it comes, for whatever is not a terminal."""

    def __init__(self, account: Account, budget: int) -> None:
        self.account = account
        self.budget = budget

    def show(self, event: Event) -> None:
        """Print a step when it is finished, if it has text and is no part of the reply."""
        if isinstance(event, StepEnded) and event.text.strip() and not self.account.solo:
            say(self.account.transcript([self.account.hands[event.worker].steps[-1]]) + "\n")

    def end(self, outcome: Outcome) -> None:
        """Print the steps that the end cut off, the reply, and how the run ended."""
        account = self.account
        above = account.thoughts() if account.solo else account.steps()
        say_steps(account, above if account.solo else account.unfinished(), outcome)
        say_reply(account, outcome, above)
        say(last_line(outcome, self.budget))


def say_steps(account: Account, steps: Sequence[FinishedStep], outcome: Outcome) -> None:
    """Print steps, those that were still being written marked if the run was cut short."""
    if not steps:
        return
    desks = account.unfinished() if outcome.is_cut_short else ()
    done = [step for step in steps if step not in desks]
    parts = [account.transcript(done), account.transcript(desks, unfinished=True)]
    say("\n\n".join(filter(None, parts)) + "\n")


def say_reply(account: Account, outcome: Outcome, above: Sequence[FinishedStep] = ()) -> None:
    """Print the answers of smaller budgets, the reply, and the answer if that does not contain it.

    A reply below steps that were printed as text (`above`) is headed; one that is one of these steps, word by
    word, is named and not printed again.
    """
    answer, reply = outcome.answer.answer, account.reply.strip()
    for passes, found in outcome.answer.snapshots.items():
        say(f"Answer after {counted(passes, 'pass')}: {found or 'none'}")
    chosen = [step for step in above if step.text == reply and not account.solo]
    if chosen:
        say(f"The reply is that of {account.label(chosen[0]).removesuffix(':')}.")
    elif reply:
        say(f"Reply:\n{reply}" if above else reply)
    if answer is not None and not _says(reply, answer):
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


def _says(reply: str, answer: str) -> bool:
    """Whether a reader of the reply knows the answer: it stands in a box, or as words of their own in the last line.

    Blanks do not count, nor does the number of a list's item. An answer of several lines, as a program is one, may
    stand anywhere.
    """
    squeezed = "".join(answer.split())
    if "".join((boxed_answer(reply) or "").split()) == squeezed:
        return True
    where = reply if "\n" in answer else _ITEM.sub("", reply.rpartition("\n")[2])
    inside = r"\s*".join(map(re.escape, squeezed))
    return re.search(rf"{_BEFORE}{inside}{_BEHIND}", where) is not None
