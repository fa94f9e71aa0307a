"""Many requests through one engine: as many at once as memory admits, and the next as soon as one is done.

Every request is a run of its own, so it fails alone and is answered as it would be alone. All of them
share the engine's prefix tree: a system prompt, examples or a document that many begin with is read
once (Hydragen). There are no waves: each pass feeds whoever is there.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from manyhands.cli.batch_lines import Request
from manyhands.engine.engine import Engine
from manyhands.engine.scheduler import Run
from manyhands.errors import InvalidRequest, ManyhandsError
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
        self._runs: list[tuple[Request, Run]] = []

    def results(self) -> Generator[list[Result], None, None]:
        """After each forward pass, what was finished by it. Closing the iterator cancels the rest."""
        try:
            while True:
                failed = self._refill()
                if not self._runs and not failed:
                    return
                self.engine.step()
                yield failed + self._collect()
        finally:
            for _, run in self._runs:
                if not run.done:
                    self.engine.cancel(run)
            self._runs = []

    def _refill(self) -> list[Result]:
        """Send the next requests in; those that cannot even begin."""
        failed: list[Result] = []
        while len(self._runs) < self._concurrency:
            request = next(self._requests, None)
            if request is None:
                break
            try:
                strategy = shared_prefix(
                    request.prompts,
                    self.text,
                    request.settings,
                    tree=self.engine.prefixes,
                    context=self.engine.facts.max_positions,
                )
            except ManyhandsError as error:
                failed.append((request, error))
            else:
                self._runs.append((request, self.engine.submit(strategy)))
        return failed

    def _collect(self) -> list[Result]:
        done = [(request, run) for request, run in self._runs if run.done]
        self._runs = [(request, run) for request, run in self._runs if not run.done]
        return [(request, _outcome(run)) for request, run in done]


def _outcome(run: Run) -> Completions | ManyhandsError:
    """The answer, or what was wrong with the request. A bug of ours is raised."""
    try:
        answer = run.result()
    except ManyhandsError as error:
        return error
    assert isinstance(answer, Completions), "shared_prefix answers with Completions"
    return answer
