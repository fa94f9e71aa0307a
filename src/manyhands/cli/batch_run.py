"""Many requests through one engine: as many at once as memory admits, and the next as soon as one is done.

Every request is a run of its own, so it fails alone and is answered as it would be alone. All of them
share the engine's prefix tree: a system prompt, examples or a document that many begin with is read
once (Hydragen). There are no waves: each pass feeds all runs that are there.

    BatchRun     requests that were understood, into completions
    BatchWork    lines of the input into lines of the output; what a replica of a cluster has, too
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

from manyhands.cli.batch_lines import (
    Numbered,
    Request,
    answer_line,
    error_line,
    failure_line,
    understand,
)
from manyhands.engine.engine import Engine
from manyhands.engine.loop import run_passes
from manyhands.engine.run import Run
from manyhands.errors import InvalidRequest, ManyhandsError
from manyhands.schema.lines import Line
from manyhands.strategies.base import Strategy
from manyhands.strategies.requests import Defaults
from manyhands.strategies.shared_prefix import Completions, shared_prefix
from manyhands.text import Text

Result = tuple[Request, Completions | ManyhandsError]


class BatchRun:
    """Requests on their way. At most `concurrency` are in the engine; some of them wait for memory.

    None in the place of a request: there is none as yet, and more are asked for after the next pass.
    """

    def __init__(
        self,
        engine: Engine,
        text: Text,
        requests: Iterable[Request | None],
        concurrency: int = 64,
    ) -> None:
        if concurrency < 1:
            raise InvalidRequest(f"concurrency is {concurrency}; expected 1 or more")
        self.engine, self.text = engine, text
        self._requests = requests
        self._concurrency = concurrency
        self._failed: list[Result] = []

    def results(self) -> Generator[list[Result], None, None]:
        """After each forward pass, what was finished by it. Closing the iterator cancels the rest."""
        with closing(run_passes(self.engine, self._strategies(), self._concurrency)) as passes:
            for each in passes:
                done = [(request, _outcome(run)) for request, run in each.runs if run.done]
                yield self._take_failed() + done
        yield self._take_failed()

    def _strategies(self) -> Iterator[tuple[Request, Strategy] | None]:
        """The requests as strategies; those that cannot even begin are put aside."""
        for request in self._requests:
            if request is None:
                yield None
                continue
            try:
                strategy = shared_prefix(
                    request.prompts,
                    self.text,
                    request.settings,
                    tree=self.engine.prefixes,
                    context=self.engine.facts.max_positions,
                )
            except ManyhandsError as error:
                self._failed.append((request, error))
            else:
                yield request, strategy

    def _take_failed(self) -> list[Result]:
        failed, self._failed = self._failed, []
        return failed


def _outcome(run: Run) -> Completions | ManyhandsError:
    """The answer, or what was wrong with the request. A bug of ours is raised."""
    try:
        answer = run.result()
    except ManyhandsError as error:
        return error
    assert isinstance(answer, Completions), "shared_prefix answers with Completions"
    return answer


@dataclass
class BatchWork:
    """Lines of a file of requests, through one engine, into lines of answers."""

    engine: Engine
    text: Text
    defaults: Defaults
    isolate: bool = False
    concurrency: int = 64
    _refused: list[tuple[Numbered, Line]] = field(default_factory=list)

    def lines(
        self, asked: Iterable[Numbered | None]
    ) -> Generator[list[tuple[Numbered, Line]], None, None]:
        """After each forward pass, the requests that were finished by it, each with its line of the output.

        Closing the iterator cancels what is under way. None: there is none as yet.
        """
        under_way: dict[int, Numbered] = {}
        work = BatchRun(self.engine, self.text, self._requests(asked, under_way), self.concurrency)
        with closing(work.results()) as results:
            for finished in results:
                lines, self._refused = self._refused, []
                for request, outcome in finished:
                    lines.append((under_way.pop(request.number), self._line(request, outcome)))
                yield lines
        yield self._refused
        self._refused = []

    def answered(self, asked: Iterable[Numbered | None]) -> Iterator[tuple[Numbered, Line]]:
        """The same, one by one."""
        for lines in self.lines(asked):
            yield from lines

    def _requests(
        self, asked: Iterable[Numbered | None], under_way: dict[int, Numbered]
    ) -> Iterator[Request | None]:
        """Understood one by one, when there is a place for them; what is refused is kept for telling."""
        for each in asked:
            if each is None:
                yield None
                continue
            number, line = each
            under_way[number] = each
            try:
                yield understand(line, number, self.text, self.defaults, isolate=self.isolate)
            except ManyhandsError as error:
                del under_way[number]
                self._refused.append((each, failure_line(each, error, self.defaults)))

    def _line(self, request: Request, outcome: Completions | ManyhandsError) -> Line:
        if isinstance(outcome, ManyhandsError):
            return error_line(
                outcome, request.number, request.custom_id, request.fingerprint, request.url
            )
        return answer_line(request, outcome, self.defaults.model, self.text)
