"""How far a run is, in parts of one line: what it has spent, and its state.

    91/2048 passes + 12 extra · 182 tokens · 35.2 tokens/s · 0:04 · writing the reply

The budget bounds the passes of the work. Those of snapshots, finisher and reply are extra, and counted apart
(`strategies/base.py::Answer`).
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from manyhands.cli.outcome import Outcome
from manyhands.errors import counted

SEPARATOR = " · "


def parts(
    passes: int, budget: int, extra: int, num_tokens: int, rate: float, seconds: float, state: str
) -> tuple[str, ...]:
    """The parts in the order in which they stand; a `rate` of 0, in tokens per second, is unknown."""
    return tuple(
        filter(
            None,
            (
                f"{passes}/{budget} passes" + (f" + {extra} extra" if extra else ""),
                f"{counted(num_tokens, 'token')}",
                f"{rate:.1f} tokens/s" if rate else "",
                _clock(seconds),
                state,
            ),
        )
    )


def last_line(outcome: Outcome, budget: int) -> str:
    """The last line of a run's output: why it ended (the finish reason), and all that it has spent."""
    answer = outcome.answer
    spent = parts(
        answer.forward_passes,
        budget,
        answer.extra_passes,
        sum(answer.tokens),
        0.0,
        outcome.seconds,
        "",
    )
    return SEPARATOR.join((f"Ended: {answer.finish_reason}", *spent))


def folded(parts: Sequence[str], width: int, height: int) -> list[str]:
    """The parts as at most `height` lines of `width` cells, broken between parts where that can be.

    Where they do not fit, those in the middle give way: the first and the last say most.
    """
    kept = list(parts)
    while True:
        lines: list[str] = []
        for part in kept:
            if lines and len(lines[-1] + SEPARATOR + part) <= width:
                lines[-1] += SEPARATOR + part
            else:
                lines += textwrap.wrap(part, max(1, width))
        if len(lines) <= height or len(kept) <= 2:
            return lines[:height]
        del kept[1]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
