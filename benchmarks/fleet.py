"""A fleet of replicas under load, simulated: time to the first token and gaps, with affinity and without.

    python -m benchmarks.fleet

Discrete events: conversations come, each with a document and several turns; each turn is answered by a team or by one
worker alone. A replica makes one pass after another for all it has. How long a pass takes is measured, not guessed:

    products      `linears_ms` of `life_qwen3-8b.json`, by the tokens of the pass, between two sizes a straight line
    keys          the growth of `decode_qwen3-8b.json` with the history, in nanoseconds per key read
    the rest      what ragged teams took beyond their floor, as a factor: plans, recordings, pads

Prompts are fed 512 tokens a pass beside the rows that write. What a replica has read of a conversation stays until
its memory is full; the longest unused goes first. What is compared is where the next turn is sent: by the hash of the
conversation, to the second choice when the first has more than its share of requests; or to the least busy of all.

The simulation knows no failures, no network and no weights that load. Its gaps are those of whole passes.
"""

from __future__ import annotations

import heapq
import json
import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import RESULTS, Clock, Results, parser
from manyhands.cluster.affinity import ranked

PROMPT_PART = 512  # tokens of prompts in one pass
MODEL = "qwen3-8b"
KEY_BYTES = 36 * 8 * 128 * 2 * 2  # of one token: layers, heads, dims, key and value, 16 bits
MEMORY = 90 << 30  # bytes of keys and values: 140 GiB without weights, activations and recordings
RATES = (1.0, 2.0, 3.0, 4.0, 6.0)  # turns a second for each replica
CHOICES = 2  # replicas that a conversation may come to before the least busy takes it


@dataclass(frozen=True)
class PassTimes:
    """How long a pass takes, in milliseconds."""

    sizes: Sequence[float]
    linears: Sequence[float]
    key_ns: float
    factor: float

    def ms(self, tokens: int, keys: int) -> float:
        """Of a pass that feeds so many tokens and reads so many keys."""
        return self.factor * (
            float(np.interp(tokens, self.sizes, self.linears)) + keys * self.key_ns / 1e6
        )

    @classmethod
    def measured(cls, folder: Path = RESULTS, model: str = MODEL) -> PassTimes:
        """From the results of a GPU."""
        life = json.loads((folder / f"life_{model}.json").read_text())
        cells = json.loads((folder / f"decode_{model}.json").read_text())["cells"]
        alone = {cell["history"]: cell["ms"] for cell in cells if cell["workers"] == 1}
        low, high = min(alone), max(alone)
        (ragged,) = (
            each
            for each in life["situations"]
            if (each["name"], each["when"]) == ("32 teams of 4, ragged", "warm")
        )
        linears = {int(size): ms for size, ms in life["linears_ms"].items()}
        return cls(
            sorted(linears),
            [linears[size] for size in sorted(linears)],
            (alone[high] - alone[low]) / (high - low) * 1e6,
            ragged["mean_ms"] / ragged["floor_ms"],
        )


@dataclass(frozen=True)
class Load:
    """The clients that come. `per_replica`: turns a second that each replica has to answer, if all get as many."""

    workers: int
    per_replica: float
    document: int = 8192  # tokens, the median of a lognormal
    turns: int = 6  # of a conversation, mean
    passes: int = 300  # of an answer, mean
    said: int = 150  # tokens of a question
    reply: int = 250  # tokens of an answer that the next turn reads
    pause: float = 20.0  # seconds until the next turn, mean


@dataclass
class Turn:
    """One request."""

    name: int  # of its conversation
    came: float
    length: int  # tokens of the prompt
    to_feed: int = 0
    passes: int = 0
    turns_left: int = 0


@dataclass
class Replica:
    """One engine: what it feeds, what it decodes, which conversations it remembers."""

    feeding: list[Turn] = field(default_factory=list)
    ends: list[tuple[int, int, Turn]] = field(default_factory=list)  # heap, by the number of a pass
    remembered: OrderedDict[int, int] = field(default_factory=OrderedDict)  # tokens, oldest first
    remembered_tokens: int = 0
    keys: int = 0  # of the runs that decode
    num_passes: int = 0
    is_busy: bool = False

    @property
    def requests(self) -> int:
        """Under way here."""
        return len(self.feeding) + len(self.ends)

    def take(self, turn: Turn) -> int:
        """Begin a turn; how many tokens of its prompt are here already."""
        known = self.remembered.pop(turn.name, 0)
        self.remembered_tokens -= known
        turn.to_feed = max(1, turn.length - known)
        self.feeding.append(turn)
        return min(known, turn.length)

    def remember(self, name: int, tokens: int, most: int) -> None:
        """Keep what was read, and forget the oldest where there is no room."""
        self.remembered_tokens += tokens - self.remembered.pop(name, 0)
        self.remembered[name] = tokens
        while self.remembered_tokens > most and self.remembered:
            _, old = self.remembered.popitem(last=False)
            self.remembered_tokens -= old


class Fleet:
    """Replicas, turns that come, and what is measured of them."""

    def __init__(
        self, times: PassTimes, load: Load, replicas: int, affinity: bool, seed: int = 1
    ) -> None:
        self.times, self.load, self.affinity = times, load, affinity
        self.replicas = [Replica() for _ in range(replicas)]
        self.names = [str(number) for number in range(replicas)]
        self.chance = random.Random(seed)
        self.most = MEMORY // KEY_BYTES
        self.events: list[tuple[float, int, str, Any]] = []
        self.number = 0
        self.first: list[float] = []  # seconds
        self.gaps: list[tuple[float, int]] = []  # seconds, and how many runs waited them
        self.asked = self.found = self.done = 0
        self.order: dict[int, list[str]] = {}

    def run(self, seconds: float, warm: float) -> dict[str, Any]:
        """Let turns come for so long; what comes in the first `warm` seconds is not counted."""
        self.warm, self.until = warm, seconds
        rate = self.load.per_replica * len(self.replicas) / self.load.turns
        at, name = 0.0, 0
        while at < seconds:
            at += self.chance.expovariate(rate)
            name += 1
            length = int(self.load.document * self.chance.lognormvariate(0, 0.5))
            turns = 1 + min(40, int(self.chance.expovariate(1 / self.load.turns)))
            self.at(at, "turn", Turn(name, at, length, turns_left=turns))
        while self.events and self.events[0][0] < seconds:
            now, _, kind, what = heapq.heappop(self.events)
            if kind == "turn":
                self.place(now, what)
            else:
                self.end_pass(now, *what)
        return self.summary(seconds - warm)

    def at(self, time: float, kind: str, what: Any) -> None:
        """Let something happen later: a turn that comes, or a pass that is over."""
        self.number += 1
        heapq.heappush(self.events, (time, self.number, kind, what))

    def place(self, now: float, turn: Turn) -> None:
        """Send a turn to a replica."""
        turn.came = now
        replica = self.replicas[self.chosen(turn)]
        found = replica.take(turn)
        if now > self.warm:
            self.asked += turn.length
            self.found += found
        if not replica.is_busy:
            self.begin_pass(now, replica)

    def chosen(self, turn: Turn) -> int:
        """The replica for a turn. With affinity the least busy is the last choice, and else the only one."""
        least = min(
            range(len(self.replicas)),
            key=lambda at: (self.replicas[at].requests, self.chance.random()),
        )
        if not self.affinity:
            return least
        fair = 1.5 * sum(each.requests for each in self.replicas) / len(self.replicas) + 4
        if turn.name not in self.order:
            self.order[turn.name] = ranked(str(turn.name), self.names)[:CHOICES]
        for name in self.order[turn.name]:
            if self.replicas[int(name)].requests <= fair:
                return int(name)
        return least

    def begin_pass(self, now: float, replica: Replica) -> None:
        """One row for each worker that writes, and a part of the prompts that wait."""
        room, fed = PROMPT_PART, []
        for turn in replica.feeding:
            part = min(room, turn.to_feed)
            turn.to_feed -= part
            room -= part
            if not turn.to_feed:
                fed.append(turn)
            if not room:
                break
        rows = self.load.workers * len(replica.ends)
        tokens = rows + PROMPT_PART - room
        head = replica.feeding[0].length if replica.feeding else 0
        seconds = self.times.ms(tokens, replica.keys + head) / 1e3
        replica.is_busy = True
        self.at(now + seconds, "pass", (replica, seconds, fed))

    def end_pass(self, now: float, replica: Replica, seconds: float, fed: list[Turn]) -> None:
        """Turns whose prompts are fed write from now on; others have their answer."""
        replica.num_passes += 1
        writing = len(replica.ends)
        if writing and now > self.warm:
            self.gaps.append((seconds, writing))
        replica.keys += self.load.workers * writing
        for turn in fed:
            replica.feeding.remove(turn)
            if turn.came > self.warm:
                self.first.append(now - turn.came)
            turn.passes = max(20, int(self.chance.expovariate(1 / self.load.passes)))
            self.number += 1
            heapq.heappush(replica.ends, (replica.num_passes + turn.passes, self.number, turn))
            replica.keys += turn.length
        while replica.ends and replica.ends[0][0] <= replica.num_passes:
            self.end_turn(now, replica, heapq.heappop(replica.ends)[2])
        replica.is_busy = bool(replica.feeding or replica.ends)
        if replica.is_busy:
            self.begin_pass(now, replica)

    def end_turn(self, now: float, replica: Replica, turn: Turn) -> None:
        """The replica remembers the conversation, and its next turn comes after a while."""
        replica.keys -= turn.length + self.load.workers * turn.passes
        self.done += now > self.warm
        live = replica.keys + sum(each.length for each in replica.feeding)
        length = turn.length + self.load.reply
        replica.remember(turn.name, length, max(0, self.most - live))
        if turn.turns_left > 1:
            later = now + self.chance.expovariate(1 / self.load.pause)
            self.at(
                later,
                "turn",
                Turn(turn.name, later, length + self.load.said, turns_left=turn.turns_left - 1),
            )

    def summary(self, seconds: float) -> dict[str, Any]:
        """The waits that clients saw."""
        firsts = sorted(self.first) or [float("nan")]
        gaps = np.array([gap for gap, _ in self.gaps] or [float("nan")])
        weights = np.array([count for _, count in self.gaps] or [1])
        order = np.argsort(gaps)
        steps = np.cumsum(weights[order]) / weights.sum()

        def gap(part: float) -> float:
            at = min(len(order) - 1, int(np.searchsorted(steps, part)))
            return round(float(gaps[order][at]) * 1e3, 1)

        def first(part: float) -> float:
            return round(firsts[min(len(firsts) - 1, int(part * len(firsts)))], 3)

        waiting = sum(each.requests for each in self.replicas) / len(self.replicas)
        return {
            "first_s_p50": first(0.5),
            "first_s_p99": first(0.99),
            "gap_ms_p50": gap(0.5),
            "gap_ms_p99": gap(0.99),
            "found": round(self.found / max(1, self.asked), 3),
            "answers_per_second": round(self.done / seconds, 2),
            "requests_at_the_end": round(waiting, 1),
        }


def main() -> None:
    options = parser(__doc__, 6)
    options.add_argument("--seconds", type=float, default=160.0, help="of the fleet's own time")
    arguments = options.parse_args()
    clock = Clock(arguments.minutes)
    results = Results("fleet", arguments, clock)
    times = PassTimes.measured()
    results.put(
        model=MODEL,
        key_ns=round(times.key_ns, 2),
        factor=round(times.factor, 3),
        memory_bytes=MEMORY,
        key_bytes=KEY_BYTES,
        load=vars(Load(4, 1.0)),
        seconds=arguments.seconds,
    )
    sizes = (1, 4) if arguments.tiny else (1, 4, 16, 64)
    for replicas in sizes:
        for workers in (1, 4):
            for rate in RATES:
                for affinity in (True, False):
                    if replicas == 1 and not affinity:
                        continue  # there is no choice
                    if (replicas == 64 and rate != 2.0) or not clock.allows(10):
                        continue
                    seconds = 20.0 if arguments.tiny else arguments.seconds
                    if replicas == 64:
                        seconds /= 2
                    fleet = Fleet(times, Load(workers, rate), replicas, affinity)
                    found = fleet.run(seconds, seconds / 4)
                    results.add(
                        "fleet",
                        replicas=replicas,
                        workers=workers,
                        turns_per_replica_second=rate,
                        affinity=affinity,
                        **found,
                    )


if __name__ == "__main__":
    main()
