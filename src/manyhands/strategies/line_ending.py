"""How a run with one main line is asked for its answer: at its end, and at smaller budgets in passing.

So it is with `branches` and `skeleton`, whatever others write beside the line. The line is the reply, so
none is written after it; what is left of an ending is the finisher.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace

from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import Item, View, blocks_of
from manyhands.prompts.hogwild import TeamPrompt
from manyhands.strategies.base import Event, Snapshot
from manyhands.strategies.ending import Ending, Scene, Steps
from manyhands.strategies.settings import BranchSettings, SkeletonSettings
from manyhands.text import Text


class LineEnding:
    """Asks, and keeps what was answered. `passes` are those that nobody is charged for.

    `finisher` are the words of the prompt that ask.
    """

    def __init__(
        self, text: Text, settings: BranchSettings | SkeletonSettings, finisher: str
    ) -> None:
        self.text, self.settings = text, settings
        self.words = TeamPrompt(finisher=finisher, reply="")
        self.passes = 0
        self.snapshots: dict[int, str | None] = {}

    @property
    def num_tokens(self) -> int:
        """At most so many tokens are added by one ending."""
        return self._ending().num_tokens if self.settings.end.finisher else 0

    def _ending(self) -> Ending:
        s = self.settings
        return Ending(self.text, self.words, replace(s.end, reply_tokens=1), s.choice, s.seed)

    def ask(self, scene: Scene) -> Generator[Step | Event, tuple[int, ...] | None, str | None]:
        """Have the finisher say the answer."""
        ending = self._ending()
        yield from ending.finish(scene)
        self.passes += ending.passes
        return ending.answer

    def look(self, at: int, scene: Callable[[], Scene], answer: Callable[[], str | None]) -> Steps:
        """Take the snapshot of pass `at` if one is due: what if the budget ended here?

        `answer` is what such an end would find without asking, `scene` what the finisher would read.
        """
        if at not in self.settings.snapshots or at in self.snapshots:
            return
        found = answer()
        if found is None and self.settings.end.finisher:
            found = yield from self.ask(scene())
        self.snapshots[at] = found
        yield Snapshot(at, found)


def scene_of(items: tuple[Item, ...], opening: Sequence[Row], newest: tuple[int, ...]) -> Scene:
    """What an ending reads: a line's `items`, and `newest`, its last token, which nobody was fed yet.

    `opening` are rows that write to blocks of the line and have not been asked for either.
    """
    rows = list(opening)
    if newest:
        items = (*items, Block("newest"))
        rows.append(Row(View(items), newest))
    unfed = {row.view.own: row.feed for row in rows}
    return Scene(
        tuple((row.view, row.feed) for row in rows),
        lambda *last: View((*items, *last)),
        lambda: tuple(t for b in blocks_of(items) for t in (*b.tokens, *unfed.get(b, ()))),
    )
