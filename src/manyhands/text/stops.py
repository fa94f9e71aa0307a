r"""Stop texts: a text ends where one of them would begin, and is no longer than that.

    watch = StopWatch(["\n\n", "END"])
    watch.push("Done. E")        "Done. "       what may become a stop text is held back
    watch.push("NDLESS")         ""             it was one: `found` is "END", and nothing is read any more

    watch.release()              what is held back when the text ends by itself

The text may come in pieces of any size.
"""

from __future__ import annotations

from manyhands.text.markers import MarkerWatch


class StopWatch(MarkerWatch):
    """Watches a text go by up to the first stop text."""

    def push(self, piece: str) -> str:
        """Read on, and return what is certainly part of the text."""
        return super().push(piece) if self.found is None else ""

    def release(self) -> str:
        """The text that was held back: nothing follows that could make a stop text of it."""
        held, self.pending = self.pending, ""
        return held

    def cut(self, text: str) -> str:
        """A whole text, up to the first stop text."""
        return self.push(text) + self.release()
