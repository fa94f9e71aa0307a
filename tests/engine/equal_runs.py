"""A crowd, told plan by plan: a program whose words are the same in every process, whatever its addresses and hashes are.

    python -m tests.engine.equal_runs NOISE       # a line of JSON; NOISE, a number, says which other objects lie in memory

Teams come and go, share prompts, and have copies of their markers; in the second of two engines, which has little memory, they are preempted and
come back. In the first blocks are moved as where passes are begun ahead.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

import numpy as np

from manyhands.cache.block import Block
from manyhands.cache.places import Ints, Move
from manyhands.cache.step import Choice
from manyhands.engine.engine import Engine
from manyhands.engine.ranks.packing import pack_moves, pack_plan
from manyhands.strategies.base import Strategy
from tests.engine.small import FEW, counting, finish, small_engine, solo, team

_DRAWN = Choice(temperature=1.0)


class Noise:
    """Objects as large as blocks that come and go, so that blocks lie at other addresses and in another order."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.held: list[Block] = []

    def stir(self, count: int) -> None:
        """Make so many, and let others go."""
        self.held += [Block() for _ in range(self.random.randrange(count))]
        self.random.shuffle(self.held)
        del self.held[: self.random.randrange(count)]


class Story:
    """All plans and moves of an engine, and where its blocks lie, as one line for each."""

    def __init__(self, engine: Engine, noise: Noise) -> None:
        self.lines: list[str] = []
        self.num_markers = 0  # at most, of which copies were made at one time
        self._numbers: dict[int, int] = {}  # of strips, in the order in which they are met
        planner, pool = engine.planner, engine.pool
        right, move = planner.plan, engine.executor.move

        def plan(step: Any) -> Any:
            noise.stir(40)
            found = right(step)
            self.num_markers = max(self.num_markers, len(planner.fronts.markers))
            lies = [
                [self._number(place.strip.number), place.offset, *place.strip.pages]
                for place in pool._places.values()
            ]
            self._tell("plan", pack_plan(found))
            self._tell("places", map(np.array, lies))
            self._tell("free", [np.array(pool._free)])
            return found

        def moved(moves: Sequence[Move]) -> None:
            self._tell("moves", pack_moves(moves))
            move(moves)

        of_planner: Any = planner
        of_planner.plan = plan
        executor: Any = engine.executor
        executor.move = moved

    def _number(self, strip: int) -> int:
        return self._numbers.setdefault(strip, len(self._numbers))

    def _tell(self, kind: str, told: Iterable[Ints]) -> None:
        digest = sha256(b"".join(numbers.tobytes() for numbers in told))
        self.lines.append(f"{kind} {digest.hexdigest()[:16]}")


def crowd() -> list[Strategy]:
    """Runs whose teams end steps at different times and at the same time."""
    teams = [team(3 + n % 2, choice=FEW, seed=n, budget=40 + 5 * n) for n in range(8)]
    lone = [solo(choice=_DRAWN, seed=n, budget=20) for n in range(3)]
    return [*teams, *lone, counting((5, 6, 7), 25)]


def told(noise: Noise, memory_tokens: int, overcommit: float, *, ahead: bool) -> dict[str, Any]:
    """The crowd on an engine of its own."""
    engine = small_engine(memory_tokens, overcommit, max_tokens_per_pass=256)
    engine.planner.joins_ahead = ahead
    story = Story(engine, noise)
    runs = [engine.submit(each) for each in crowd()]
    finish(engine, *runs)
    return {
        "lines": story.lines,
        "texts": [run.result().text for run in runs],
        "markers": story.num_markers,
        "preemptions": sum(run.num_preemptions for run in runs),
    }


def main() -> None:
    """See the module."""
    noise = Noise(int(sys.argv[1]))
    noise.stir(5000)
    roomy = told(noise, 24_000, 2.0, ahead=True)
    tight = told(noise, 2_400, 4.0, ahead=False)
    print(json.dumps({"roomy": roomy, "tight": tight}))


if __name__ == "__main__":
    main()
