"""The answer of a run that has to end before its end, made of its events.

When the server is told to end, runs that are still under way when their time is up end with what they have,
and say so by their finish reason, "length".
"""

from __future__ import annotations

from manyhands.engine.service import Handle
from manyhands.server.asked import Asked
from manyhands.strategies.account import Account
from manyhands.strategies.base import Answer
from manyhands.strategies.events import TokenWritten, WorkerStopped
from manyhands.strategies.shared_prefix import Completion, Completions
from manyhands.text import Text, ThinkingWatch

CUT_SHORT = "interrupted"  # the finish reason of such an answer, as on the command line


def partial_answer(asked: Asked, handle: Handle, text: Text) -> Answer | None:
    """The text that the run has written up to now; None where there is none, or its beginning is not kept."""
    moments, missed = handle.moments(0)
    events = [event for moment in moments for event in moment.events]
    if missed or not any(isinstance(event, TokenWritten) for event in events):
        return None
    if asked.spec is not None:
        account = Account(asked.spec.names, solo=asked.spec.method.solo)
        for event in events:
            account.take(event)
        return account.so_far(CUT_SHORT, moments[-1].num_passes)
    assert asked.settings is not None, "a request asks for a method, or for plain decoding"
    samples = asked.settings.samples
    told = [_Sample(prompt.watch(text)) for prompt in asked.prompts for _ in range(samples)]
    for event in events:
        if isinstance(event, TokenWritten):
            told[event.worker].take(event)
        elif isinstance(event, WorkerStopped):
            told[event.worker].reason = event.reason
    completions = tuple(
        each.completion(index // samples, index % samples) for index, each in enumerate(told)
    )
    return Completions(
        text=completions[0].text,
        finish_reason=CUT_SHORT,
        tokens=tuple(len(each.tokens) for each in completions),
        completions=completions,
        prompt_tokens=tuple(len(prompt.tokens) for prompt in asked.prompts),
        found=(0,) * len(asked.prompts),
    )


class _Sample:
    """One sample as its events tell it."""

    def __init__(self, watched: ThinkingWatch) -> None:
        self.watched = watched
        self.num_thought = 0  # tokens
        self.texts = {True: "", False: ""}
        self.tokens: list[int] = []
        self.reason = "length"

    def take(self, event: TokenWritten) -> None:
        is_thought = self.watched.thinking
        self.texts[is_thought] += event.text
        if event.token in self.watched.ends:  # it is no part of the text
            return
        self.tokens.append(event.token)
        self.num_thought += is_thought
        self.watched.take(event.token)

    def completion(self, prompt: int, sample: int) -> Completion:
        text, thought = self.texts[False], self.texts[True].strip()
        told = text, thought, tuple(self.tokens), self.reason, self.num_thought
        return Completion(prompt, sample, *told)
