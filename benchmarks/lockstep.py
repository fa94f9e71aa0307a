"""A few cells of docs/performance.md once more: is what was measured then not worse now?

    python -m benchmarks.lockstep --minutes 2

The programs are those that measured them (`decode.py`, `prefix.py`), with their gates, on fewer cells. Floors stand beside the times,
since machines differ by a few hundredths. The table (`benchmarks/tables.py`) puts the committed cells beside these.
"""

from __future__ import annotations

import argparse

from benchmarks.decode import Decode, each_network
from benchmarks.prefix import Prefix
from benchmarks.results import Clock, Results, parser

Cells = tuple[tuple[int, ...], tuple[int, ...]]
DECODED: dict[str, Cells] = {  # histories, workers
    "qwq-32b": ((16384,), (4,)),
    "qwen3-8b": ((1024, 16384), (1, 4, 16)),
}
COMPLETED: dict[str, Cells] = {"codellama-7b": ((1024, 16256), (1024,))}  # prefixes, batches


class FewTeams(Decode):
    """Some cells of a network, and nothing else."""

    looked_into = ()

    def __init__(self, name: str, arguments: argparse.Namespace, clock: Clock) -> None:
        super().__init__(name, arguments, clock)
        if not arguments.tiny:
            self.lengths, self.workers = DECODED[name]
        self.results = Results(f"lockstep_{name}", arguments, clock)

    def _sampled(self, engine: object) -> None:
        """Not here."""


class FewCompletions(Prefix):
    """Some cells of a network without the ceiling."""

    def __init__(self, name: str, arguments: argparse.Namespace, clock: Clock) -> None:
        super().__init__(name, arguments, clock)
        if not arguments.tiny:
            self.prefixes, self.batches = COMPLETED[name]
        self.results = Results(f"lockstep_{name}", arguments, clock)

    def _ceiling(self, engine: object, batch: int) -> None:
        """Not here."""


def few(name: str, arguments: argparse.Namespace, clock: Clock) -> FewTeams | FewCompletions:
    """The cells of this network."""
    return (FewTeams if name in DECODED else FewCompletions)(name, arguments, clock)


def main(words: list[str] | None = None) -> None:
    """Measure the networks that were asked for."""
    options = parser(__doc__, minutes=2.0)
    options.add_argument("--models", default=",".join((*DECODED, *COMPLETED)))
    arguments = options.parse_args(words)
    arguments.no_peers, arguments.tokens = True, 128
    each_network(arguments, few)


if __name__ == "__main__":
    main()
