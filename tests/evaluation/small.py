"""Small pieces for the tests of the exam: a scripted engine, a candidate, records, a server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.step import Step
from manyhands.engine.filling import Filling
from manyhands.engine.scheduler import Scheduler
from manyhands.errors import ManyhandsError
from manyhands.evaluation.candidates import Answered, Asked
from manyhands.evaluation.record import Header, Record, RecordFile
from manyhands.schema.plain import to_plain
from manyhands.strategies.base import FinishedStep
from manyhands.text import Text
from tests.text.small_tokenizers import byte_level

TEXT = Text(byte_level())


class Says:
    """A candidate with an answer for each sample; None fails. Remembers who was asked."""

    def __init__(self, answers: Callable[[str], str | None], budgets: tuple[int, ...] = (8,)):
        self.answers, self.budgets = answers, budgets
        self.asked: list[tuple[str, int]] = []

    def answered(self, asked: Iterable[Asked]) -> Iterator[Answered]:
        for one in asked:
            self.asked.append(one.key)
            said = self.answers(one.sample.id)
            if said is None:
                yield Answered(one, ManyhandsError("no room"))
                continue
            yield Answered(
                one,
                answer=said,
                text=said,
                finish_reason="answer",
                forward_passes=3,
                tokens=(3,),
                seconds=0.5,
                answers=dict.fromkeys(self.budgets, said),
                spent={b: {"passes": 3, "tokens": 3, "seconds": 0.5} for b in self.budgets},
            )


def header(label: str = "sequential", **more: Any) -> Header:
    given: dict[str, Any] = {
        "task": "doubles",
        "method": "sequential",
        "label": label,
        "workers": 1,
        "names": ("Alice", "Bob"),
        "settings": {"budget": 8},
        "prompts": {},
        "budgets": (8,),
        "model": "tiny",
    }
    return Header(**{**given, **more})


def record(sample: str = "d1", value: float = 1.0, **more: Any) -> Record:
    budgets = more.pop("budgets", (8,))
    scores = {
        str(b): {"value": value, "extracted": "2", "explanation": "right", "passes": b}
        | {"tokens": 2 * b, "seconds": 0.1 * b}
        for b in budgets
    }
    given: dict[str, Any] = {
        "sample": sample,
        "repeat": 0,
        "question": f"Twice {sample}?",
        "gold": 2,
        "answer": "2",
        "text": "It is 2.",
        "finish_reason": "answer",
        "error": None,
        "forward_passes": 8,
        "extra_passes": 1,
        "tokens": (8, 8),
        "seconds": 0.8,
        "elapsed": 1.0,
        "scores": scores,
        "memory": {"kv_tokens": 64, "kv_bytes": 6400},
    }
    return Record(**{**given, **more})


def team_record(sample: str = "d1", **more: Any) -> Record:
    steps = (
        FinishedStep(0, 1, "I double it.", 1, 3),
        FinishedStep(1, 1, "I check.", 1, 4),
        FinishedStep(0, 2, "It is 2.", 4, 6, checked=True),
    )
    writing = [
        (0, 1, "I double"),
        (1, 1, "I "),
        (0, 3, " it."),
        (1, 4, "check."),
        (0, 6, "<b>2</b>"),
    ]
    return record(sample, steps=to_plain(steps), writing=writing, **more)


def write(folder: Path, head: Header, records: Iterable[Record]) -> Path:
    path = folder / head.task / f"{head.label}.jsonl"
    file = RecordFile(path, head)
    for one in records:
        file.append(one)
    file.close()
    return path


def engine(said: str = "So \\boxed{2}") -> Scheduler:
    """Every writer says this and ends its turn; whoever is asked for an answer says 5."""
    script, (end,) = TEXT.encode(said), TEXT.eos
    late = TEXT.encode("5}")
    first: WeakKeyDictionary[Block, int] = WeakKeyDictionary()

    def predict(step: Step) -> tuple[int, ...]:
        chosen = []
        for row in step.rows:
            own = row.view.own
            own.tokens.extend(row.feed)
            start = first.setdefault(own, own.num_tokens)
            at = own.num_tokens - start
            line = late if row.writer == "finisher" else script
            chosen.append(line[at] if at < len(line) else end)
        return tuple(chosen)

    return Scheduler(predict, PagePool(1000), Filling(8192))


@contextmanager
def server(reply: Callable[[dict[str, Any]], tuple[int, Any]]) -> Iterator[tuple[str, list[Any]]]:
    """An OpenAI-compatible endpoint: its address, and the requests it has had."""
    seen: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append(asked | {"key": self.headers["Authorization"]})
            status, body = reply(asked)
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Silence."""

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{running.server_port}/v1", seen
    finally:
        running.shutdown()
        thread.join()
        running.server_close()


def completion(text: Any, tokens: int | None = 5) -> tuple[int, dict[str, Any]]:
    """The response of a server."""
    usage = {"completion_tokens": tokens, "prompt_tokens": 1, "total_tokens": 1 + (tokens or 0)}
    return 200, {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": text},
            }
        ],
        **({"usage": usage} if tokens is not None else {}),
    }
