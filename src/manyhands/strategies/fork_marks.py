"""Fork marks in the text of a strand: where a model that was trained to think in parallel wants to part.

    watch = ForkWatch(PROFILES["npr"], text)
    watch.take(token, "</guideline>")      the newest token, and the text that it shows
    watch.fork()                           Fork(names=["1", "2"]), or why nothing forks, or None

The main strand has one such watch, and every part has its own: a part may fork again. Marks that a tokenizer
shows no text for are known by their tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from manyhands.strategies.profiles import Profile
from manyhands.text import Text


@dataclass(frozen=True)
class Fork:
    """A fork mark that was written: the names of the parts, or the reason for which nothing forks."""

    names: Sequence[str] = ()
    refused: str = ""


class ForkWatch:
    """All text of one strand, its marks included."""

    def __init__(self, profile: Profile, text: Text) -> None:
        self.profile = profile
        marks = [f"<{slash}{word}>" for word in profile.hidden for slash in ("", "/")]
        tokens = {mark: text.markup(mark) for mark in marks}
        self._marks_by_token = {ids[0]: mark for mark, ids in tokens.items() if len(ids) == 1}
        self._text = ""
        self._num_scanned = 0  # characters in which no fork is looked for any more

    def take(self, token: int | None, shown: str) -> None:
        """The newest token (None: the one that ends the turn) and its text."""
        mark = self._marks_by_token.get(token) if token is not None else None
        self._text += mark if mark is not None and mark not in shown else shown

    def skip(self, joined: str) -> None:
        """Text that was joined stands behind what was written, and none of its marks forks."""
        self._text += joined
        self._num_scanned = len(self._text)

    def fork(self) -> Fork | None:
        """The fork whose mark the newest token has completed; None where it has completed none."""
        profile = self.profile
        place = self._text.find(profile.fork, self._num_scanned)
        if place < 0:
            return None
        before, start = self._text[:place], self._num_scanned
        self._num_scanned = place + len(profile.fork)
        if profile.named is None:
            return Fork([""] * profile.unnamed)
        opened = before.rfind(profile.opens, start)
        if opened < 0:
            return Fork(refused=f"no {profile.opens} stands before {profile.fork}")
        names = list(dict.fromkeys(re.findall(profile.named, before[opened:])))
        if not names:
            return Fork(refused=f"no part is named between {profile.opens} and {profile.fork}")
        if len(names) > profile.max_children:
            most = f"{profile.name} has {profile.max_children} at most"
            return Fork(refused=f"{len(names)} parts are named, and {most}")
        return Fork(names)
