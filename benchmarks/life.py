"""Milliseconds per pass in life: steps that end, ragged desks, runs that come and go with their prompts.

    python -m benchmarks.life --models qwen3-8b,qwq-32b --minutes 8
    python -m benchmarks.life --models qwen3-8b --only ragged --variants FILE     two ways to do it, in turns
    python -m benchmarks.life --models qwq-32b --ranks 2                          one network over two GPUs

What the situations are: `manyhands/evaluation/life.py`. Each is measured three times in one process that got ready as
a server does (`Engine.get_ready`), in memory that is full of prompts which are kept, as a server's is after a while: the first time it meets its passes (`fresh`), once more with the same draws and
other tokens (`warm`), and with other draws (`drawn anew`), whose runs differ in length and number, and so in their floor.
Of the fresh figures only the first situation's are those of a fresh process: what one has recorded serves
the next. Teams are made up, but for some: `hogwild` itself over a shared prompt, whose rows draw from eleven tokens, so that
steps have forty on average; alone, and thirty-two that come and go. Beside each stands the floor of its own passes: linear layers alone at so many tokens, plus the keys
and values that were read, at the speed of a copy, and the time of a fixed loop in Python right behind it (`python_loop_ms`):
passes that wait for the host are as slow as the host is then. With `--clocks` also the clock of the GPU, and whether power
held it back (`benchmarks/clocks.py`). The gate: tokens of a mixed crowd of a tiny network equal
those of each of its runs alone. With `--ranks` a network lies over so many GPUs, and the floor is that of one rank: its part of the
linear layers and of the keys and values, and no sum; the gate asks those ranks for the crowd and one process for each run.

Processes differ by a hundredth, and the two of a comparison are two. `--variants` compares in one engine: FILE is Python with
a function for each way to do it, which makes its change and gives back what undoes it. All play each situation in turns, there
and back again, so means that differ by a third of a hundredth can be told apart. What was recorded when the engine got
ready is not recorded anew: kernels and rooms are those without a change. What one of them records in the midst serves the
others too, and is told with its own passes. The op alone, repeated, tells less: sizes of
splits with which it was 3 to 7 % faster made ragged passes 1.6 % slower (docs/log.md).
"""

from __future__ import annotations

import argparse
import bisect
import inspect
import random
import runpy
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch
from transformers import AutoTokenizer

from benchmarks.clocks import Clocks
from benchmarks.decode import each_network, free
from benchmarks.engine_parts import ending, engine_on
from benchmarks.results import Clock, Results, parser
from benchmarks.shapes import SHAPES, TINY, Shape
from benchmarks.timing import linears_ms, python_loop_ms
from benchmarks.whole_engines import save_small
from manyhands import bundled
from manyhands.cache.step import Choice
from manyhands.engine.engine import Engine
from manyhands.engine.garbage import keep_loaded
from manyhands.engine.graphs import GraphedPasses
from manyhands.engine.ranks.world import World
from manyhands.errors import ManyhandsError
from manyhands.evaluation.bench import copy_bandwidth
from manyhands.evaluation.life import (
    FEW_TEAMS,
    LONES,
    MIX,
    RAGGED,
    TEAMS,
    FloorOf,
    Kind,
    Situation,
    crowd_equals_alone,
    live,
    one_team,
)
from manyhands.model.settings import ModelSettings
from manyhands.prompts.load import Prompts
from manyhands.strategies.base import Strategy
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.prompt_sharing import share_prompt
from manyhands.strategies.settings import EndSettings, TeamSettings
from manyhands.text import Text

MEMORY = {"qwen3-8b": 400_000, "qwq-32b": 120_000, "qwen3-32b": 200_000}  # tokens
TIMED_ROWS = (1, 4, 16, 32, 128, 256, 512, 1024, 2048, 4096, 8192)
TIMES = (("fresh", 1, 0), ("warm", 1, 1), ("drawn anew", 0, 2))  # with the draws and words of each
_HISTORY = 1000  # tokens of the prompt of `hogwild` itself, about
_ENDS, _WORDS = (".", "!", "?"), (" a", " b", " c", " d", " e", " f", " g")
_LONE = 256  # tokens of the widest pass of a team alone


def hogwild_itself(
    engine: Engine, kind: Kind, passes: int, rng: random.Random, words: int
) -> Strategy:
    """The method, as the commands run it: a step ends behind one token of three, by one of the eleven."""
    text = bundled_text()
    allowed = frozenset(text.encode(piece)[-1] for piece in (*_ENDS, *_WORDS, "\n\n"))
    settings = TeamSettings(
        workers=kind.rows,
        budget=passes,
        check_every=0,
        seed=rng.randrange(1 << 30),
        choice=Choice(temperature=100, allowed=allowed),
        end=EndSettings(finisher=False, reply=False),
    )
    longest = kind.prompt[1]
    size = rng.randint(*kind.prompt) if longest else _HISTORY
    problem = made_up_problem(rng, words, size)
    return share_prompt(hogwild(problem, text, settings, Prompts().team), engine.prefixes)


@cache
def bundled_text() -> Text:
    """Text of the bundled model's tokenizer, once for all teams."""
    return Text(AutoTokenizer.from_pretrained(bundled.path()))


def made_up_problem(rng: random.Random, words: int, size: int = _HISTORY) -> str:
    """A text of about `size` tokens. The same draws make another one with each number of `words`, as each variant has its own."""
    num_words = len(_WORDS)
    again = words // num_words  # how often each word has had its turn in the place of each
    return "".join(
        _WORDS[(rng.randrange(num_words) + words + again * place) % num_words]
        for place in range(size)
    )


def itself(workers: int) -> Situation:
    """A team that is `hogwild` itself, alone."""
    kind = Kind(workers, (0, 0), (600, 600))
    name = f"hogwild, {workers} workers, 1 k, steps of 40"
    return Situation(name, ((1, kind),), 300, begin_together=True, begin=hogwild_itself)


def teams_themselves(count: int) -> Situation:
    """Teams that are `hogwild` themselves, each behind a prompt of its own; they come and go."""
    kind = Kind(4, (200, 2000), (100, 400))
    name = f"{count} hogwild, 4 workers, come and go"
    return Situation(name, ((count, kind),), 500, warm_up=100, begin=hogwild_itself)


SITUATIONS: dict[str, tuple[Situation, ...]] = {
    "qwen3-8b": (
        MIX,
        one_team(4, 1024, 0),
        one_team(1, 1024, 40),
        one_team(4, 1024, 40),
        one_team(4, 1024, 100),
        one_team(16, 1024, 40),
        itself(4),
        itself(16),
        one_team(4, 16384, 40),
        RAGGED,
        FEW_TEAMS,
        TEAMS,
        teams_themselves(32),
        LONES,
    ),
    "qwq-32b": (
        one_team(4, 16384, 0, 200),
        one_team(4, 16384, 40, 200),
        one_team(4, 16384, 100, 200),
    ),
    "qwen3-32b": (LONES, TEAMS),
}
SMALL = Kind(4, (4, 20), (5, 20), step=4)
TINY_SITUATIONS = (
    Situation("tiny team", ((1, SMALL),), 8, history=16, warm_up=2),
    Situation("tiny mix", ((2, SMALL), (2, Kind(3, (4, 40), (3, 9), step=-1))), 12, warm_up=2),
)


class Life:
    """One network in all its situations."""

    def __init__(self, name: str, arguments: argparse.Namespace, clock: Clock) -> None:
        self.arguments, self.clock = arguments, clock
        self.name, self.device = name, torch.device(arguments.device)
        self.shape = TINY if arguments.tiny else SHAPES[name]
        self.world: World | None = None
        self.situations = TINY_SITUATIONS if arguments.tiny else SITUATIONS[name]
        if arguments.only:
            wanted = arguments.only.split(";")
            self.situations = tuple(s for s in self.situations if any(w in s.name for w in wanted))
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.clocks = Clocks(self.device if arguments.clocks else torch.device("cpu"))
        self.variants = variants_of(arguments.variants)
        kind = f"over_{arguments.ranks}_" if arguments.ranks > 1 else ""
        kind += "apart_" * arguments.apart + "variants_" * (arguments.variants is not None)
        self.results = Results(f"life_{kind}{name}", arguments, clock)

    def run(self) -> None:
        """Gate, floor, situations."""
        if self.arguments.ranks > 1:
            self.world = World.start(self.arguments.ranks, self.arguments.device)
        with tempfile.TemporaryDirectory() as folder, ending(self.world):
            self._check(TINY.write(Path(folder) / "tiny"))
            floor_of = self._floor()
            place = self.shape.write(Path(folder) / "network")
            dtype = str(self.dtype).removeprefix("torch.")
            memory = 4096 if self.arguments.tiny else MEMORY[self.name]
            engine = self._load(place, dtype, memory, self.world)
            facts = engine.facts
            self.results.put(backend=facts.backend, load=round(self.clock.spent, 1))
            if facts.about_ranks:
                self.results.put(about_ranks=facts.about_ranks)
            began = time.perf_counter()
            engine.get_ready()
            self.results.put(get_ready_seconds=round(time.perf_counter() - began, 2))
            keep_loaded()  # as the command line does
            with self.clocks:
                for situation in self.situations:
                    for when, seed, words in TIMES:
                        self._in_turns(engine, situation, when, seed, words, floor_of)
            wanted = [part for part in self.arguments.profile.split(";") if part]
            for situation in self.situations:
                if any(part in situation.name for part in wanted):
                    self._profile(engine, situation)

    def _load(self, place: Path, dtype: str, memory_tokens: int, world: World | None) -> Engine:
        """The network of a folder, over the ranks of a world or on one device."""
        settings = ModelSettings(
            place,
            device=self.arguments.device,
            dtype=dtype,
            backend=self.arguments.backend,
            weights="auto" if (place / "model.safetensors").exists() else "dummy",
            memory_tokens=memory_tokens,
        )
        return engine_on(world, settings)

    def _in_turns(
        self,
        engine: Engine,
        situation: Situation,
        when: str,
        seed: int,
        words: int,
        floor_of: FloorOf,
    ) -> None:
        """One situation at one time, by all variants, each with words of its own; every other time the last one begins."""
        turn = TIMES.index((when, seed, words))
        order = list(enumerate(self.variants.items()))
        for place, (name, change) in order[:: -1 if turn % 2 else 1]:
            title = f"{situation.name}, {when}" + f", {name}" * bool(name)
            if not self.clock.allows(5):
                self.results.leave_out(title, "no time")
                continue
            undo = change()
            if not callable(undo):  # the networks behind would be measured with the change
                raise SystemExit(
                    f"the variant {name} gave back {undo!r} where a function that undoes its change was expected"
                )
            try:
                with self.results.surviving(title):
                    others, began = words + len(TIMES) * place, self.clocks.now()
                    record = live(engine, situation, floor_of, seed=seed, words=others)
                    self.results.add(
                        "situations",
                        name=situation.name,
                        when=when,
                        **({"variant": name} if name else {}),
                        **record.facts(),
                        **self.clocks.facts(began),
                        python_loop_ms=python_loop_ms(),
                    )
            finally:
                undo()

    def _profile(self, engine: Engine, situation: Situation) -> None:
        """Where the host's time goes: functions by their own time."""
        import cProfile
        import pstats

        profile = cProfile.Profile()
        profile.enable()
        live(engine, situation, seed=2)
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(28)

    def _check(self, place: Path) -> None:
        """The gate."""
        alone = None
        if self.world is not None:  # each rank would make up weights of its own
            save_small(place, Shape(TINY.title, {**TINY.config, "head_dim": 8}))
            alone = self._load(place, "float32", 16384, None)
        engine = self._load(place, "float32", 16384, self.world)
        equal, wrong = crowd_equals_alone(engine, alone)
        self.results.put(gate={"rows_equal": equal, "rows_that_differ": wrong})
        self.clock.say(f"gate: {equal} rows equal, {wrong} differ")
        if wrong:
            raise SystemExit("the gate is red: a crowd's tokens are not those of its runs alone")
        del engine, alone
        free(self.device)

    def _floor(self) -> FloorOf:
        rows: tuple[int, ...] = (1, 4, 16) if self.arguments.tiny else TIMED_ROWS
        if all(situation.history for situation in self.situations):  # no prompts come
            rows = tuple(count for count in rows if count <= _LONE)
        speed = copy_bandwidth(self.device)
        with torch.inference_mode():
            linears = linears_ms(
                self.shape.products(self.arguments.ranks), list(rows), self.device, self.dtype
            )
        free(self.device)
        self.results.put(
            model=self.shape.title,
            ranks=self.arguments.ranks,
            copy_bytes_per_second=round(speed),
            linears_ms={str(count): round(ms, 4) for count, ms in linears.items()},
        )
        return lambda fed, kv_bytes: between(rows, linears, fed) / 1e3 + kv_bytes / speed


Change = Callable[[], Callable[[], None]]  # makes it, and gives back what undoes it


def variants_of(file: Path | None) -> dict[str, Change]:
    """The functions that a file defines, by their names, in order; without one, nothing is changed, and has no name.

    Raises:
        ManyhandsError: There is no such file, or it defines no function that takes no argument.

    """
    if file is None:
        return {"": lambda: lambda: None}
    if not file.is_file():
        raise ManyhandsError(f"there is no file {file}, where Python with variants was expected")
    found: dict[str, Change] = {
        name: each
        for name, each in runpy.run_path(str(file), run_name="variants").items()
        if inspect.isfunction(each)
        and each.__module__ == "variants"
        and not name.startswith("_")
        and not inspect.signature(each).parameters
    }
    if not found:
        raise ManyhandsError(
            f"{file} has no variants: functions without arguments were expected, each of which makes its change and gives "
            "back a function that undoes it"
        )
    return found


def between(rows: Sequence[int], milliseconds: dict[int, float], count: int) -> float:
    """Milliseconds at so many tokens, in a straight line between the two that were timed."""
    at = bisect.bisect_left(rows, count)
    if at == 0:
        return milliseconds[rows[0]]
    if at == len(rows):
        return milliseconds[rows[-1]] * count / rows[-1]
    low, high = rows[at - 1], rows[at]
    share = (count - low) / (high - low)
    return statistics.fmean([milliseconds[low]]) * (1 - share) + milliseconds[high] * share


def main(words: list[str] | None = None) -> None:
    """Measure the networks that were asked for."""
    options = parser(__doc__, minutes=8.0)
    options.add_argument("--models", default="qwen3-8b,qwq-32b")
    options.add_argument(
        "--only", default="", help="parts of the names of situations, by semicolons"
    )
    options.add_argument("--ranks", type=int, default=1, help="GPUs that share each network")
    options.add_argument("--profile", default="", help="of these, print where the host's time goes")
    options.add_argument(
        "--variants",
        type=Path,
        help="a file of functions, each of which makes a change, for one engine",
    )
    options.add_argument(
        "--clocks",
        action="store_true",
        help="tell the clock of the GPU, too; what asks for it runs beside, so the host's part may be longer",
    )
    options.add_argument(
        "--apart", action="store_true", help="no pass is begun while another one is made"
    )
    arguments = options.parse_args(words)
    GraphedPasses.plans_ahead = not arguments.apart
    each_network(arguments, Life)


if __name__ == "__main__":
    main()
