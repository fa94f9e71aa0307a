"""`POST /v1/chat/completions` and `POST /v1/completions`, whole and in pieces.

A plain request is written by the model alone; `n` of them share their prompt. A method's workers think in
`reasoning_content` and `reasoning` (clients differ in the name), told one step after another, with
`delta.worker` beside it for those that keep unknown fields; the reply is `content`. `n` of a method are as many
runs, each with a seed and an id of its own, which share their prompt and are the choices of one answer. Branches and
points are told as thinking while they are written, and stand in the reply as well, once they are joined; a whole answer
tells the same.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from manyhands.engine.service import Moment
from manyhands.schema.openai import CHAT, PLAIN, SpelledToken, logprobs
from manyhands.server.asked import Asked, understand
from manyhands.server.failures import Refusal
from manyhands.server.front import Front, Left, front_of, headers_of
from manyhands.server.partial import CUT_SHORT
from manyhands.server.runs import ServedRun
from manyhands.server.streams import DONE, PING, data_event
from manyhands.server.telling import Teller
from manyhands.server.usage import usage_of, usage_of_all
from manyhands.strategies.base import Answer, FinishedStep
from manyhands.strategies.events import Event, TokenWritten, WorkerJoined, WorkerStopped
from manyhands.strategies.requests import Spelling, answer_body
from manyhands.strategies.shared_prefix import Completions
from manyhands.text import Text
from manyhands.text.stream import in_front

_compact = json.JSONEncoder(
    separators=(",", ":")
).encode  # json.dumps would make one for each piece
LEFT = Response(status_code=499)  # for the log: there is nobody to read it


async def chat(request: Request) -> Response:
    """`POST /v1/chat/completions`."""
    return await _create(CHAT, request)


async def completions(request: Request) -> Response:
    """`POST /v1/completions`."""
    return await _create(PLAIN, request)


async def _create(url: str, request: Request) -> Response:
    front = front_of(request)
    asked = await front.understand(request, lambda body: understand(url, body, front.served))
    runs = front.begin_all(asked, request)
    if asked.stream:
        return await front.stream(runs, request, _told(front, runs))
    try:
        answers = await front.answers(runs, request)
    except Left:
        return LEFT
    return JSONResponse(body_of(runs, answers, front.served.text), headers=headers_of(runs))


# -- whole ---------------------------------------------------------------------------------------------


def body_of(runs: Sequence[ServedRun], answers: Sequence[Answer], text: Text) -> dict[str, Any]:
    """The answer in one piece; `text` spells tokens whose logprobs are told."""
    first, name, usage = runs[0], uuid.uuid4().hex, _usage_of(runs, answers)
    asked, answer = first.asked, answers[0]
    if isinstance(answer, Completions):
        return {**answer_body(asked.url, answer, asked.model, name, text), "usage": usage}
    pairs = enumerate(zip(runs, answers, strict=True))
    return {
        "id": f"chatcmpl-{name}",
        "object": "chat.completion",
        "created": first.created,
        "model": asked.model,
        "choices": [_choice_of(index, run, answer) for index, (run, answer) in pairs],
        "usage": usage,
    }


def _choice_of(index: int, run: ServedRun, answer: Answer) -> dict[str, Any]:
    """The choice made of one run of a method."""
    message = {"role": "assistant", "content": answer.text, "refusal": None}
    thinking = thinking_of(run, answer)
    if thinking:
        message |= {"reasoning_content": thinking, "reasoning": thinking}
    end = {"finish_reason": finish_reason(answer), "logprobs": None}
    return {"index": index, "message": message, **end}


def _usage_of(runs: Sequence[ServedRun], answers: Sequence[Answer]) -> dict[str, Any]:
    pairs = zip(runs, answers, strict=True)
    return usage_of_all([usage_of(run.asked, answer, run.handle) for run, answer in pairs])


def finish_reason(answer: Answer) -> str:
    """Why a method's run ended, in OpenAI's words."""
    if answer.stopped_at is not None:
        return "stop"
    if answer.finish_reason == CUT_SHORT or answer.is_cut:
        return "length"
    is_cut = answer.finish_reason in ("budget", "context") and answer.answer is None
    return "length" if is_cut else "stop"


def thinking_of(run: ServedRun, answer: Answer) -> str:
    """The steps of the workers, each under its writer's name: what a stream of the run tells, too.

    A main strand that is the reply is told there alone. Parts that workers wrote and that were joined to it stand in both.
    """
    names, solo = names_of(run), run.spec.method.solo
    steps = [
        step
        for step in answer.steps
        if not (solo and step.worker == 0 and step.text in answer.text)
    ]
    return "\n\n".join(f"**{_label(step, names)}:** {step.text}" for step in steps)


def _label(step: FinishedStep, names: Sequence[str]) -> str:
    name = names[step.worker] if step.worker < len(names) else f"worker {step.worker}"
    return f"{name} [{step.step}]"


def names_of(run: ServedRun) -> list[str]:
    """The workers of a run, those who came while it went on included."""
    moments, missed = run.handle.moments(0)
    joined = [
        event.name
        for moment in moments
        for event in moment.events
        if isinstance(event, WorkerJoined)
    ]
    return [*run.spec.names, *([] if missed else joined)]


# -- in pieces -----------------------------------------------------------------------------------------


async def _told(front: Front, runs: Sequence[ServedRun]) -> AsyncIterator[bytes]:
    """The stream of a request: a chunk for every piece, those of a while in one write."""
    chunks = _Chunks(runs[0].asked, runs[0].created)
    pieces = [
        _PlainChunks(front, run, chunks)
        if run.asked.spec is None
        else _MethodChunks(front, run, chunks, index)
        for index, run in enumerate(runs)
    ]
    yield b"".join(each.opening() for each in pieces)
    answers: dict[int, Answer] = {}
    async with aclosing(front.news.follow_all([run.handle for run in runs])) as news:
        async for item in news:
            if item.missed:
                refusal = Refusal(
                    500, "the reader was so slow that pieces were lost", code="reader_too_slow"
                )
                yield data_event(refusal.body)
                return
            written = b"".join(pieces[item.run].of(item.moments))
            if item.is_last:
                answer, failure = runs[item.run].outcome()
                if answer is None:
                    assert failure is not None, "a run ends with an answer or an error"
                    yield written + data_event(failure.body) + DONE
                    return
                answers[item.run] = answer
                written += pieces[item.run].ending(answer)
            if written or not item.moments:
                yield written or PING
    ordered = [answers[index] for index in range(len(runs))]
    yield chunks.usage(_usage_of(runs, ordered)) + DONE


class _Chunks:
    """Chunks of one answer: what is the same in all of them is written once."""

    def __init__(self, asked: Asked, created: int) -> None:
        is_chat = asked.url == CHAT
        head = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": "chat.completion.chunk" if is_chat else "text_completion",
            "created": created,
            "model": asked.model,
        }
        self._head = "data: " + json.dumps(head, separators=(",", ":"))[:-1]
        self._key = "delta" if is_chat else "text"
        self._usage = ',"usage":null' if asked.include_usage else ""
        self._wants_usage = asked.include_usage

    def chunk(
        self, index: int, delta: Any, finish_reason: str | None = None, told: Any = None
    ) -> bytes:
        """One piece of one choice; `told` are the logprobs of its tokens."""
        written = _compact(delta)
        logprobs = "null" if told is None else _compact(told)
        end = "null" if finish_reason is None else f'"{finish_reason}"'
        choice = f'{{"index":{index},"{self._key}":{written},"logprobs":{logprobs},"finish_reason":{end}}}'
        return f'{self._head},"choices":[{choice}]{self._usage}}}\n\n'.encode()

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The last chunk, for those who asked for it."""
        if not self._wants_usage:
            return b""
        written = json.dumps(usage, separators=(",", ":"))
        return f'{self._head},"choices":[],"usage":{written}}}\n\n'.encode()


class _PlainChunks:
    """Plain decoding in chunks: each sample is a choice."""

    def __init__(self, front: Front, run: ServedRun, chunks: _Chunks) -> None:
        self._chunks, self._asked = chunks, run.asked
        self._is_chat = run.asked.url == CHAT
        assert run.asked.settings is not None, "plain decoding has its settings"
        samples = run.asked.settings.samples
        self._text = front.served.text
        self._watched = [p.watch(self._text) for p in run.asked.prompts for _ in range(samples)]
        self._ended: set[int] = set()
        self._tells = run.asked.settings.choice.logprobs is not None
        self._spelled = [
            _Spelled(
                self._text, self._is_chat, () if self._is_chat else in_front(self._text, p.tokens)
            )
            for p in run.asked.prompts
            for _ in range(samples)
        ]

    def opening(self) -> bytes:
        """The first chunk, which names the author of the message."""
        if not self._is_chat:
            return b""
        start = {"role": "assistant", "content": ""}
        return b"".join(self._chunks.chunk(i, start) for i in range(len(self._watched)))

    def of(self, moments: Iterable[Moment]) -> Iterator[bytes]:
        """Chunks of the text that was written, and of the choices that have ended."""
        texts: dict[tuple[int, bool], str] = {}
        for moment in moments:
            for event in moment.events:
                if isinstance(event, TokenWritten):
                    watched = self._watched[event.worker]
                    key = event.worker, watched.thinking
                    if self._tells:
                        yield self._told(event)
                    elif event.text:
                        texts[key] = texts.get(key, "") + event.text
                    watched.take(event.token)
                elif isinstance(event, WorkerStopped):
                    yield from self._written(texts)
                    texts = {}
                    self._ended.add(event.worker)
                    delta: Any = {} if self._is_chat else ""
                    yield self._chunks.chunk(event.worker, delta, event.reason)
        yield from self._written(texts)

    def ending(self, answer: Answer) -> bytes:
        """The end of what was cut short."""
        delta: Any = {} if self._is_chat else ""
        left = [index for index in range(len(self._watched)) if index not in self._ended]
        return b"".join(self._chunks.chunk(index, delta, "length") for index in left)

    def _told(self, event: TokenWritten) -> bytes:
        """One token with the logprobs that can be told by now. A message has those of its reply, without what ended it."""
        index, watched = event.worker, self._watched[event.worker]
        thinking, told = watched.thinking, None
        if not (self._is_chat and thinking):
            found = self._spelled[index].take(event, is_end=event.token in watched.ends)
            told = logprobs(self._asked.url, found) if found else None
        delta: Any = event.text
        if self._is_chat and thinking:
            delta = {"reasoning_content": event.text, "reasoning": event.text}
        elif self._is_chat:
            delta = {"content": event.text}
        return self._chunks.chunk(index, delta, told=told)

    def _written(self, texts: dict[tuple[int, bool], str]) -> Iterator[bytes]:
        for (index, thinking), text in texts.items():
            if not self._is_chat:
                yield self._chunks.chunk(index, text)
            elif thinking:
                yield self._chunks.chunk(index, {"reasoning_content": text, "reasoning": text})
            else:
                yield self._chunks.chunk(index, {"content": text})


class _Spelled:
    """The tokens of one choice whose logprobs are told.

    A message tells a token as soon as its first character is certain to be in it: text that may become a stop text is held
    back, and once it is one, its tokens are never told. A plain completion tells every token at once.
    """

    def __init__(self, text: Text, is_chat: bool, in_front: Sequence[int]) -> None:
        self._spelling, self._is_chat = Spelling(text, in_front, is_message=is_chat), is_chat
        self._held: list[SpelledToken] = []
        self._num_certain = 0  # characters of the message

    def take(self, event: TokenWritten, *, is_end: bool) -> list[SpelledToken]:
        """The tokens that can be told with this one; `is_end`: it ended the text."""
        if not (self._is_chat and is_end):
            token = self._spelling.take(event.token, event.logprobs)
            self._held += [token] if token is not None else []
        self._num_certain += len(event.text)
        told = [each for each in self._held if each.offset < self._num_certain or not self._is_chat]
        self._held = self._held[len(told) :]
        return told


class _MethodChunks:
    """One run of a method in chunks: its workers think, the reply is the content of its choice."""

    def __init__(self, front: Front, run: ServedRun, chunks: _Chunks, index: int) -> None:
        self._chunks, self._index = chunks, index
        self._teller = Teller.of_run(run.spec, front.served.text)
        self._has_content = False

    def opening(self) -> bytes:
        """The first chunk, which names the author of the message."""
        return self._chunk({"role": "assistant", "content": ""})

    def of(self, moments: Iterable[Moment]) -> Iterator[bytes]:
        """Chunks of all that can be told of these passes."""
        events: list[Event] = [event for moment in moments for event in moment.events]
        told = [piece for event in events for piece in self._teller.take(event)]
        yield from self._pieces(told)

    def ending(self, answer: Answer) -> bytes:
        """Chunks of the text held back, of the reply if it was not told yet, and of the end."""
        pieces = [*self._pieces(self._teller.rest())]
        if not self._has_content and answer.text:
            pieces.append(self._chunk({"content": answer.text}))
        return b"".join([*pieces, self._chunk({}, finish_reason(answer))])

    def _chunk(self, delta: Any, finish_reason: str | None = None) -> bytes:
        return self._chunks.chunk(self._index, delta, finish_reason)

    def _pieces(self, told: Iterable[Any]) -> Iterator[bytes]:
        """Neighbours of one writer in one chunk."""
        text, who = "", None
        for piece in told:
            if text and (piece.worker, piece.step) != who:
                yield self._piece(text, who)
                text = ""
            who = (piece.worker, piece.step)
            text += piece.text
        if text:
            yield self._piece(text, who)

    def _piece(self, text: str, who: tuple[int | None, int] | None) -> bytes:
        assert who is not None, "a piece has a writer"
        worker, step = who
        if worker is None:
            self._has_content = True
            return self._chunk({"content": text})
        own = {"index": worker, "name": self._teller.names[worker], "step": step}
        delta = {"reasoning_content": text, "reasoning": text, "worker": own}
        return self._chunk(delta)
