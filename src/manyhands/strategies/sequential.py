"""One worker, one line of thought: ordinary decoding, the baseline of every comparison.

With the early-stopping finisher (Hogwild! Inference, section 4.1, "Baseline") or without it. The run
goes on until the model ends its turn or the budget is spent; a thinking model closes its thinking by
itself and what follows is the reply. The answer is the content of the last box.
"""

from __future__ import annotations

from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.prompts.hogwild import TeamPrompt
from manyhands.strategies.base import Answer, FinishedStep, Reserve, Strategy
from manyhands.strategies.ending import Ending, Scene, all_tokens
from manyhands.strategies.events import (
    AnswerFound,
    ReplyWritten,
    Snapshot,
    TokenWritten,
    WorkerStopped,
)
from manyhands.strategies.settings import SoloSettings
from manyhands.strategies.writer import Writer
from manyhands.text import Text


def sequential(
    problem: str,
    text: Text,
    settings: SoloSettings | None = None,
    prompt: TeamPrompt | None = None,
    *,
    context: int | None = None,
) -> Strategy:
    """The strategy: one worker writes until it has ended its turn."""
    settings, prompt = settings or SoloSettings(), prompt or TeamPrompt()
    start, own = Block("prompt"), Block("text")
    view = View((start, own))
    writer = Writer(text, settings.choice, settings.seed, "writer")
    prompt_tokens = text.chat_prompt(prompt.solo_message(problem))
    # The last token of the prompt is the writer's first feed, so that the first pass writes already.
    opening = [Row(View((start,)), prompt_tokens[:-1])] if len(prompt_tokens) > 1 else []
    writer.begin_step(own, prompt_tokens[-1:])
    ending = Ending(text, prompt, settings.end, settings.choice, settings.seed)
    ending_tokens = ending.num_tokens
    yield Reserve(len(prompt_tokens) + settings.budget + 2 * ending_tokens, num_blocks=8)

    thinking, reply, answer = text.thinking, "", None
    passes = extra_passes = 0
    snapshots: dict[int, str | None] = {}
    while True:
        tokens = yield Step((*opening, writer.row(view)))
        assert isinstance(tokens, tuple), "a step is answered with one token per row"
        opening, token = [], tokens[-1]
        passes += 1
        piece = writer.read(token, text.eos)
        yield TokenWritten(passes, 0, token, piece)
        if thinking:
            thinking = token != text.think_end
        elif piece:
            reply += piece
            yield ReplyWritten(passes, piece)
        boxed = writer.box.push(piece)
        if boxed is not None:
            answer = boxed
            yield AnswerFound(passes, 0, answer)
        if writer.stopped:
            yield WorkerStopped(passes, 0)
            reason = "stopped" if answer is None else "answer"
            break
        if passes >= settings.budget:
            reason = "budget"
            break
        # after one more pass: its token, and the newest one, which only the ending reads
        if context is not None and view.num_tokens + 2 + ending_tokens > context:
            reason = "context"
            break
        if passes in settings.snapshots:
            snapshots[passes] = answer
            if answer is None and settings.end.finisher:
                asked = Ending(text, prompt, settings.end, settings.choice, settings.seed)
                yield from asked.finish(_scene(start, own, writer))
                snapshots[passes], extra_passes = asked.answer, extra_passes + asked.passes
            yield Snapshot(passes, snapshots[passes])

    if answer is None and settings.end.finisher:
        yield from ending.finish(_scene(start, own, writer))
        answer, extra_passes = ending.answer, extra_passes + ending.passes
        yield AnswerFound(passes, None, answer)
    body = writer.step_text.strip()
    return Answer(
        text=reply.strip() or answer or body,
        answer=answer,
        finish_reason=reason,
        forward_passes=passes,
        extra_passes=extra_passes,
        tokens=(writer.num_tokens,),
        steps=(FinishedStep(0, 1, body, 1, passes),) if body else (),
        snapshots=snapshots,
    )


def _scene(start: Block, own: Block, writer: Writer) -> Scene:
    """Prompt, text, and the newest token in a block of its own."""
    tail = Block("newest")
    tails = ((View((start, own, tail)), writer.unread),) if writer.unread else ()
    return Scene(
        tails,
        lambda *last: View((start, own, tail, *last)),
        lambda: all_tokens((start, own), writer.unread),
    )
