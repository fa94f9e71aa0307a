"""`POST /v1/responses`: a chat completion in the words of OpenAI's newer API, where workers are items.

    output[0]    a step of Alice      reasoning, or for clients that know of agents a message of hers
    output[1]    a step of Bob        with  "agent": {"agent_name": "Bob"}
    ...
    output[-1]   the reply            a message, "phase": "final_answer"

Clients that send `OpenAI-Beta: responses_multi_agent=v1` are given steps as messages with the phase
"commentary". For all others a step is an item of reasoning, because they take every message for a part of the
reply. In a stream an item is added, grows, and is done; what happens besides is told by events of our own,
`manyhands:step_finished`, `manyhands:check_asked` and so on, one for each kind in the registry.

Nothing is stored: a conversation goes on by sending its items once more.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from manyhands.engine.service import Moment
from manyhands.server.asked import understand
from manyhands.server.chat import LEFT, finish_reason
from manyhands.server.failures import Refusal
from manyhands.server.front import Front, Left, front_of, headers_of
from manyhands.server.runs import ServedRun
from manyhands.server.shapes import RESPONSES
from manyhands.server.streams import PING, data_event
from manyhands.server.telling import Teller, Told
from manyhands.server.usage import usage_of
from manyhands.strategies.base import Answer
from manyhands.strategies.events import (
    EngineEvent,
    Event,
    ReplyWritten,
    TokenWritten,
    to_line,
)
from manyhands.strategies.shared_prefix import Completions

_AGENTS = "responses_multi_agent=v1"  # of the header OpenAI-Beta
_NAMES = {"StepEnded": "step_finished"}
_UNTOLD = (TokenWritten, ReplyWritten, EngineEvent)  # told by items, or nobody's business here
_Sent = dict[str, Any]


async def create(request: Request) -> Response:
    """`POST /v1/responses`."""
    front = front_of(request)
    asked = await front.understand(request, lambda body: understand(RESPONSES, body, front.served))
    knows_agents = _AGENTS in request.headers.get("openai-beta", "").replace(" ", "")
    run = front.begin(asked, request)
    if asked.stream:
        return await front.stream([run], request, _told(front, run, knows_agents))
    try:
        answer = await front.answer(run, request)
    except Left:
        return LEFT
    told = _Output(front, run, knows_agents)
    moments, _ = run.handle.moments(0)
    for _ in told.of(moments):
        pass
    *_, last = told.ending(answer)
    return JSONResponse(last["response"], headers=headers_of([run]))


async def _told(front: Front, run: ServedRun, knows_agents: bool) -> AsyncIterator[bytes]:
    """The stream: every event by its type, those of a while in one write."""
    told = _Output(front, run, knows_agents)
    yield _written(told.opening())
    async with aclosing(front.news.follow(run.handle)) as news:
        async for moments, missed in news:
            if missed:
                lost = Refusal(
                    500, "the reader was so slow that pieces were lost", code="reader_too_slow"
                )
                yield _written(told.failure(lost))
                return
            if not moments:
                yield PING
            elif written := _written(told.of(moments)):
                yield written
    answer, refusal = run.outcome()
    if answer is None:
        assert refusal is not None, "a run ends with an answer or an error"
        yield _written(told.failure(refusal))
    else:
        yield _written(told.ending(answer))


def _written(events: Iterable[_Sent]) -> bytes:
    return b"".join(data_event(event, event["type"]) for event in events)


@dataclass
class _Item:
    """One item of the output while it grows. `worker` None: the reply."""

    index: int
    worker: int | None
    step: int
    agent: str | None
    is_message: bool
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    text: str = ""
    status: str = "in_progress"

    @property
    def name(self) -> str:
        return f"{'msg' if self.is_message else 'rs'}_{self.id}"

    @property
    def part(self) -> _Sent:
        if not self.is_message:
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}

    def told(self) -> _Sent:
        """The item as it is."""
        content = [self.part] if self.status != "in_progress" else []
        found: _Sent = {"id": self.name, "status": self.status, "content": content}
        if self.is_message:
            phase = "final_answer" if self.worker is None else "commentary"
            found |= {"type": "message", "role": "assistant", "phase": phase}
        else:
            found |= {"type": "reasoning", "summary": []}
        if self.agent is not None:
            found["agent"] = {"agent_name": self.agent}
        return found


class _Output:
    """Events of a run as events of a response; the items that come of them."""

    def __init__(self, front: Front, run: ServedRun, knows_agents: bool) -> None:
        self._run, self._knows_agents = run, knows_agents
        self._id = f"resp_{uuid.uuid4().hex}"
        self._number = 0
        self._items: list[_Item] = []
        spec, asked = run.asked.spec, run.asked
        self._watched = asked.prompts[0].watch(front.served.text) if asked.prompts else None
        self._teller = (
            None if spec is None else Teller.of_run(spec, front.served.text, labels=False)
        )
        self._is_open = False

    def opening(self) -> Iterator[_Sent]:
        """The response at its beginning."""
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response=self._response("in_progress", None))

    def of(self, moments: Iterable[Moment]) -> Iterator[_Sent]:
        """The events to send for these passes."""
        for moment in moments:
            for event in moment.events:
                yield from self._happened(event)

    def ending(self, answer: Answer) -> Iterator[_Sent]:
        """Events of the text held back, of the reply if it was not told yet, and of the whole response."""
        if self._teller is not None:
            for piece in self._teller.rest():
                yield from self._grow(piece)
        if not any(item.worker is None for item in self._items):
            yield from self._grow(Told(answer.text))
        reason = (
            answer.completions[0].finish_reason
            if isinstance(answer, Completions)
            else finish_reason(answer)
        )
        status = "incomplete" if reason == "length" else "completed"
        yield from self._close(status)
        yield self._event(f"response.{status}", response=self._response(status, answer))

    def failure(self, refusal: Refusal) -> Iterator[_Sent]:
        """There is no answer."""
        yield from self._close("incomplete")
        error = {"code": "server_error", "message": refusal.error["message"]}
        response = {**self._response("failed", None), "error": error}
        yield self._event("response.failed", response=response)

    def _happened(self, event: Event) -> Iterator[_Sent]:
        if self._teller is None:
            if isinstance(event, TokenWritten):
                assert self._watched is not None, "plain decoding has its prompt"
                if event.text:
                    yield from self._grow(Told(event.text, 0 if self._watched.thinking else None))
                self._watched.take(event.token)
            return
        for piece in self._teller.take(event):
            yield from self._grow(piece)
        if not isinstance(event, _UNTOLD):
            line = to_line(event)
            kind = line.pop("event")
            if (worker := line.get("worker")) is not None:
                line["agent"] = {"agent_name": self._teller.names[worker]}
            yield self._event(f"manyhands:{_NAMES.get(kind, _snake(kind))}", **line)

    def _grow(self, piece: Told) -> Iterator[_Sent]:
        """A piece joins the item of its writer, which may be a new one."""
        last = self._items[-1] if self._is_open else None
        if last is None or (last.worker, last.step) != (piece.worker, piece.step):
            yield from self._close("completed")
            last = self._new_item(piece)
            yield self._event(
                "response.output_item.added",
                output_index=last.index,
                item=last.told(),
            )
            yield self._part(last, "added", {**last.part, "text": ""})
        last.text += piece.text
        kind = "output_text" if last.is_message else "reasoning_text"
        more: _Sent = {"logprobs": []} if last.is_message else {}
        yield self._event(f"response.{kind}.delta", **self._place(last), delta=piece.text, **more)

    def _new_item(self, piece: Told) -> _Item:
        agent = None
        if piece.worker is not None and self._teller is not None:
            agent = self._teller.names[piece.worker]
        is_message = piece.worker is None or (self._knows_agents and agent is not None)
        item = _Item(len(self._items), piece.worker, piece.step, agent, is_message)
        self._items.append(item)
        self._is_open = True
        return item

    def _close(self, status: str) -> Iterator[_Sent]:
        """The newest item is done."""
        if not self._is_open:
            return
        self._is_open, item = False, self._items[-1]
        item.status = status
        kind = "output_text" if item.is_message else "reasoning_text"
        more: _Sent = {"logprobs": []} if item.is_message else {}
        yield self._event(f"response.{kind}.done", **self._place(item), text=item.text, **more)
        yield self._part(item, "done", item.part)
        yield self._event("response.output_item.done", output_index=item.index, item=item.told())

    def _part(self, item: _Item, what: str, part: _Sent) -> _Sent:
        return self._event(f"response.content_part.{what}", **self._place(item), part=part)

    def _place(self, item: _Item) -> _Sent:
        return {"item_id": item.name, "output_index": item.index, "content_index": 0}

    def _event(self, kind: str, **more: Any) -> _Sent:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **more}

    def _response(self, status: str, answer: Answer | None) -> _Sent:
        run, choice = self._run, self._run.asked.choice
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self._id,
            "object": "response",
            "created_at": float(run.created),
            "status": status,
            "model": run.asked.model,
            "output": [item.told() for item in self._items] if answer else [],
            "error": None,
            "incomplete_details": cut,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "temperature": choice.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "top_p": choice.top_p,
            **run.asked.echoed,
            **({} if answer is None else {"usage": self._usage(answer)}),
        }

    def _usage(self, answer: Answer) -> _Sent:
        used = usage_of(self._run.asked, answer, self._run.handle)
        cached = used["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": used["prompt_tokens"],
            "input_tokens_details": {
                "cached_tokens": cached,
                "cache_write_tokens": used["prompt_tokens"] - cached,
            },
            "output_tokens": used["completion_tokens"],
            "output_tokens_details": used["completion_tokens_details"],
            "total_tokens": used["total_tokens"],
            "manyhands": used["manyhands"],
        }


def _snake(name: str) -> str:
    return re.sub("(?<!^)(?=[A-Z])", "_", name).lower()
