"""A team whose words are written beforehand: the real strategy, and a script instead of a model."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable

from manyhands.cache.pages import PagePool
from manyhands.cache.step import Step
from manyhands.engine.filling import Filling
from manyhands.engine.scheduler import Scheduler
from manyhands.text import Text
from tests.text.small_tokenizers import byte_level

TEXT = Text(byte_level())


def scripted(words: dict[str, str], before_a_pass: Callable[[], None] = lambda: None) -> Scheduler:
    """A stand-in for an engine in `drive`. Each writer says its words, and then ends its turn."""
    scripts: dict[str | None, deque[int]] = defaultdict(deque)
    for writer, said in words.items():
        scripts[writer].extend(TEXT.encode(said))
    (end,) = TEXT.eos

    def predict(step: Step) -> tuple[int, ...]:
        before_a_pass()
        for row in step.rows:
            row.view.own.tokens.extend(row.feed)
        scripted = [scripts[row.writer] for row in step.rows]
        return tuple(script.popleft() if script else end for script in scripted)

    return Scheduler(predict, PagePool(1000), Filling(8192))
