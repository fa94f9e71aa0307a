"""Words that were said to a run and not heard yet, within bounds.

Words may be said to a run at any time and as often as a client likes, and a run hears nothing while it waits for its turn or for memory,
reads a long prompt, or answers. So what waits is bounded, and so is all that a run is told in its life: what it has heard stands
in its trace. The bounds stand where items are declared (`strategies/listening.py`).
"""

from __future__ import annotations

import threading
from collections import deque

from manyhands.errors import Busy, InvalidRequest
from manyhands.strategies.listening import MAX_TOLD_CHARS, MAX_UNHEARD_CHARS, Item, check_item


class Inbox:
    """Items in the order in which they were said. `put` may be called from any thread, `take` from the one that makes passes."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()  # an append and a popleft are safe from any thread
        self._putting = threading.Lock()
        self._num_put = 0  # characters, `Item.num_chars`, of all items that were ever put
        self._num_taken = 0

    @property
    def items(self) -> tuple[Item, ...]:
        """The items that wait."""
        return tuple(self._items)

    def put(self, item: Item) -> None:
        """Have one more wait.

        Raises InvalidRequest for what is no item, and where the run has been told as much as a run is; Busy where as much waits as may.
        """
        check_item(item)
        size = item.num_chars
        with self._putting:
            total = self._num_put + size
            if total > MAX_TOLD_CHARS:
                raise InvalidRequest(
                    f"the run would have been told {total} characters in its life; expected at most {MAX_TOLD_CHARS}",
                    hint="Begin another run.",
                )
            if total - self._num_taken > MAX_UNHEARD_CHARS:
                raise Busy(
                    f"{total - self._num_taken} characters would wait to be heard by the run; expected at most {MAX_UNHEARD_CHARS}",
                    hint="Say it once the run has heard what waits: it listens before each of its passes.",
                )
            self._items.append(item)
            self._num_put = total

    def take(self) -> tuple[Item, ...]:
        """All that wait; they wait no more."""
        taken = []
        while self._items:
            item = self._items.popleft()
            self._num_taken += item.num_chars
            taken.append(item)
        return tuple(taken)
