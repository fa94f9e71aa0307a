"""Many requests through one engine: as many at once as memory admits, and the next as soon as one is done.

Every request is a run of its own, so it fails alone and is answered as it would be alone. All of them
share the engine's prefix tree: a system prompt, examples or a document that many begin with is read
once (Hydragen). There are no waves: each pass feeds all runs that are there.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing

from manyhands.cli.batch_lines import Request
from manyhands.engine.engine import Engine
from manyhands.engine.loop import run_passes
from manyhands.engine.run import Run
from manyhands.errors import InvalidRequest, ManyhandsError
from manyhands.strategies.base import Strategy
from manyhands.strategies.shared_prefix import Completions, shared_prefix
from manyhands.text import Text

Result = tuple[Request, Completions | ManyhandsError]


class BatchRun:
    """Requests on their way. At most `concurrency` are in the engine; some of them wait for memory."""

    def __init__(
        self, engine: Engine, text: Text, requests: Iterator[Request], concurrency: int = 64
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

    def _strategies(self) -> Iterator[tuple[Request, Strategy]]:
        """The requests as strategies; those that cannot even begin are put aside."""
        for request in self._requests:
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
