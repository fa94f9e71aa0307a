r"""Many endings of one beginning: short questions about a long text, all in the same passes.

The lesson of the needles. What their prompts have in common is one block that everybody reads, as it is
when questions about one text are asked together (Hydragen, section 3): so a text of three thousand
words is learned from once, whatever is asked about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from manyhands.cache.block import Block
from manyhands.cache.step import GREEDY, Row, Step
from manyhands.cache.view import View
from manyhands.errors import InvalidRequest
from manyhands.school.scripted import ANSWER, DECISION, END, Said
from manyhands.strategies.base import Answer, Strategy
from manyhands.strategies.writer import Writer
from manyhands.text import Text


def endings(prompts: Sequence[tuple[int, ...]], text: Text, budget: int = 64) -> Strategy:
    """Continue all prompts (tokens) at the same time; the Answer's text has a line for each."""
    if not prompts:
        raise InvalidRequest("there is no prompt to continue", hint="give one or more")
    size = _common(prompts)
    start = Block("beginning")
    writers = [Writer(text, GREEDY, 0, f"ending {k}") for k in range(len(prompts))]
    for writer, prompt in zip(writers, prompts, strict=True):
        writer.begin_step(View((start, Block(writer.name))), prompt[size:])
    opening = [Row(View((start,)), prompts[0][:size])] if size else []
    passes = 0
    while passes < budget and (live := [writer for writer in writers if not writer.stopped]):
        tokens = yield Step((*opening, *(writer.row() for writer in live)))
        assert isinstance(tokens, tuple), "a step is answered with one token per row"
        for writer, token in zip(live, tokens[len(opening) :], strict=True):
            writer.read(token, text.turn_end)
        opening, passes = [], passes + 1
    return Answer(
        text="\n".join(writer.step_text for writer in writers),
        forward_passes=passes,
        tokens=tuple(writer.num_tokens for writer in writers),
    )


def _common(prompts: Sequence[tuple[int, ...]]) -> int:
    """How many first tokens all prompts share; each keeps one to itself."""
    shared = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*prompts, strict=False))
    return min(sum(1 for _ in shared), min(map(len, prompts)) - 1)


class BoxedAnswers:
    """The script of `endings`: ending k boxes answer k and stops."""

    def __init__(self, answers: Sequence[str]) -> None:
        self.answers = answers

    def __call__(self, writer: str, fed: str, done: frozenset[int]) -> Sequence[Said]:
        """See `Script`."""
        answer = self.answers[int(writer.removeprefix("ending "))]
        return [Said("\\boxed{"), Said(answer, DECISION), Said("}", ANSWER), END]
