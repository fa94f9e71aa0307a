"""An event of one's own joins all others by being defined."""

from dataclasses import dataclass

from manyhands.strategies.events import Event


@dataclass(frozen=True)
class RoundHeard(Event):
    """From now on all read what was written in this round."""

    round: int
