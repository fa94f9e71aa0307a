"""vLLM beside this engine, each as a whole, on one GPU or over several: milliseconds until prompts have their first tokens.

    python -m benchmarks.outsiders fetch-vllm FOLDER      where there is a network; then pack, and unpack
    python -m benchmarks.whole_prompts --outsiders FOLDER --minutes 9
    python -m benchmarks.whole_prompts --outsiders FOLDER --models qwen3-8b,gpt-oss-20b-mxfp4 --name two
    python -m benchmarks.whole_prompts --engines manyhands --minutes 2
    python -m benchmarks.whole_prompts --outsiders FOLDER --models qwen3-8b,qwen3-32b --ranks 2

Steps of writing are in `benchmarks/whole_engines.py`, which has the networks and the way in which vLLM is asked; here is
what comes before them. All requests are greedy and go on to a few tokens more; each prompt is made of random tokens of
its own, so no cache of prefixes has any of it. The situations:

    a prompt alone          1 024, 2 048, 8 192 or 16 384 tokens come to an idle engine
    prompts at once         eight of 1 024 tokens come to an idle engine

The time begins where the caller submits its first request and ends where it holds the first token of the first row, and
of the last one; and of each row, for their mean. vLLM runs in an engine process of its own, which begins with the request that it gets first; this engine
begins when it is stepped, with as many of them as it reads in one pass. Neither is told how many tokens a pass may have: vLLM's default depends on
the device and is told in the file (`tokens_of_a_pass`), as is this engine's. Graphs of vLLM are recorded for few rows
alone; its default ones end at 512 tokens, below every prompt here. Each situation comes twice without being counted, to compile and to
record, then five times; all times are in the file.

The gate of this engine: the logits behind a situation's prompts against plain torch attention (`benchmarks/prefill.py`); with experts
also the opinion of the modelling code's routers. A situation whose gate is red is not timed. vLLM's network is not looked at
here: its tokens are, in the gate of `whole_engines`. With `--ranks` each network lies over so many GPUs in both engines, and plain
attention has not its parts: the gate is that a small network writes over the ranks, behind a prompt longer than the sums that go
through peers' memory, what it writes on one GPU (`benchmarks/ranks.py`, `same_tokens` in the file, which is `whole_prompts_over_2`). The
kernels that read long prompts are looked at on one GPU.

What a call on a GPU spends its seconds on is told by `starts`. On an H200 vLLM has taken 70 to 150 s to import and to start, this
engine 10 to 20; the situations take some 10 s of each, the gate as many. So three networks take some seven minutes, and two of
them five: `--models`, `--engines` and `--name` choose a part and give it a file of its own.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.decode import free, recording
from benchmarks.prefill import check_prompts
from benchmarks.results import Clock, Results, parser
from benchmarks.start_up import WRITTEN, first_tokens
from benchmarks.vllm_process import PLAIN, Asked, Crowd, Tokens, come
from benchmarks.whole_engines import OURS, BesideVllm, add_ranks, names_of, networks
from manyhands.engine.engine import Engine
from manyhands.model.dummy import STD

MODELS = ("qwen3-8b", "qwen3-30b-a3b", "gpt-oss-20b-mxfp4")
KNOWN = (*MODELS, "qwen3-32b")
ENGINES = ("vllm", "manyhands")
NOT_COUNTED, COUNTED = 2, 5


def _at_once(rows: int, length: int, name: str = "") -> Crowd:
    name = name or f"{rows} of {length // 1024} k"
    return Crowd(name, rows, (length, length), WRITTEN, is_shared=False)


CROWDS = (*(_at_once(1, length) for length in (1024, 2048, 8192, 16384)), _at_once(8, 1024))
TINY_CROWDS = (_at_once(1, 70, "1 of 70"), _at_once(3, 40, "3 of 40"))
# Seconds below which vLLM is not started, and behind which it is ended; and those that a situation, with its gate, takes here at most.
_LEAST_FOR_VLLM, _MOST_FOR_VLLM, _SITUATION = 60.0, 240.0, 10.0
# Tokens of the prompt behind which ranks write: NCCL adds them up, as those that are timed.
_LONG = 900


class WholePrompts(BesideVllm):
    """One network, both engines: first tokens."""

    def __init__(
        self, name: str, arguments: argparse.Namespace, clock: Clock, results: Results
    ) -> None:
        super().__init__(name, arguments, clock, results)
        self.its_vllm = f"{PLAIN}, {self.title}"
        self.crowds = TINY_CROWDS if arguments.tiny else CROWDS
        self.turns = NOT_COUNTED + (1 if arguments.tiny else COUNTED)

    def run(self) -> None:
        """vLLM, then the gate and this engine."""
        engines = self.arguments.engines.split(",")
        with tempfile.TemporaryDirectory() as folder:
            place = self.shape.write(Path(folder) / "network")
            if "vllm" in engines:
                self._vllm(place)
            if "manyhands" in engines:
                with self.over_ranks():
                    if self.ranks_are_green(_LONG):
                        self._ours(place)

    def _vllm(self, folder: Path) -> None:
        if self.arguments.outsiders is None:
            self.results.leave_out(self.its_vllm, "no folder with it (--outsiders)")
            return
        if self.seconds_for_vllm < _LEAST_FOR_VLLM:
            self.results.leave_out(self.its_vllm, "the time was over")
            return
        asked = Asked(
            str(folder),
            "dummy",
            self.vocab_size,
            self.crowds,
            spread=STD,
            has_experts=self.shape.num_experts > 0,
            turns=self.turns,
            ranks=self.ranks,
        )
        facts: dict[str, Any] = {}

        def take(line: dict[str, Any]) -> None:
            if "started" in line:
                facts.update(line["started"])
            elif line["found_in_cache"]:
                self.results.add("red", model=self.title, **line)
            else:
                self._add(**line)

        seconds = min(self.seconds_for_vllm, _MOST_FOR_VLLM + self.more_seconds)
        whole_seconds = self.ask_vllm(asked, folder.parent, seconds, take)
        self._started(PLAIN, **facts, whole_seconds=whole_seconds)

    def _ours(self, folder: Path) -> None:
        before = self.clock.spent
        longest = max(crowd.prompt[1] for crowd in self.crowds)
        engine = self.load(folder, 4 * longest + 4096)
        start_seconds = round(self.clock.spent - before, 1)
        for crowd in self.crowds:
            what = f"{OURS}, {self.title}, {crowd.name}"
            if not self.clock.allows(_SITUATION):
                self.results.leave_out(what, "the time was over")
                continue
            with self.results.surviving(what):
                if self._gate_is_green(engine, crowd):
                    submit = partial(_first_tokens, engine)
                    told = come(crowd, self.turns, self.vocab_size, submit)
                    self._add(engine=OURS, **told)
        self._started(
            OURS,
            start_seconds=start_seconds,
            whole_seconds=round(self.clock.spent - before, 1),
            tokens_of_a_pass=engine.settings.max_tokens_per_pass,
            backend=engine.facts.backend,
            **({"about_ranks": engine.facts.about_ranks} if engine.facts.about_ranks else {}),
            **recording(engine),
        )

    def _gate_is_green(self, engine: Engine, crowd: Crowd) -> bool:
        """Whether the logits behind a crowd's prompts are right; these are of a turn that is not timed. Ranks were looked at before."""
        if self.world is not None:
            return True
        _, prompts = crowd.prompts(self.vocab_size, self.turns)
        gate, alike = check_prompts(engine, list(map(tuple, prompts)))
        is_green = gate.is_green and alike.is_green
        self.results.add(
            "gates" if is_green else "red",
            model=self.title,
            name=crowd.name,
            gate=asdict(gate),
            most_far_experts=max(alike.far, default=0.0),
            least_same_experts=min(alike.same, default=1.0),
        )
        return is_green

    def _started(self, engine: str, **facts: Any) -> None:
        self.results.add("starts", model=self.title, engine=engine, **facts)

    def _add(self, **line: Any) -> None:
        """The times of a situation, and of those that count the median and the worst."""
        middle = {}
        for kind in ("ms_first", "ms_last", "ms_mean"):
            counted = line[f"all_{kind}"][NOT_COUNTED:]
            middle[kind] = round(statistics.median(counted), 3)
            middle[f"{kind}_worst"] = max(counted)
        self.results.add("prompts", model=self.title, **{**line, **middle})


def _first_tokens(engine: Engine, prompts: Sequence[Tokens], num_tokens: int) -> list[float]:
    assert num_tokens == WRITTEN, "a run of `start_up` writes so many"
    return first_tokens(engine, list(map(tuple, prompts)))


def main(words: list[str] | None = None) -> None:
    """Measure the networks that were asked for."""
    options = parser(__doc__, minutes=9.0)
    options.add_argument(
        "--models",
        default="",
        help=f"comma-separated, of {', '.join(KNOWN)}; with --ranks, without experts",
    )
    add_ranks(options)
    options.add_argument("--engines", default=",".join(ENGINES), help="those that are timed")
    options.add_argument(
        "--outsiders", type=Path, help="folder with vLLM (benchmarks/outsiders.py)"
    )
    options.add_argument("--name", default="", help="in the file's name, of a part beside others")
    arguments = options.parse_args(words)
    if not arguments.models and arguments.ranks == 1:
        arguments.models = ",".join(MODELS)
    names = networks(arguments, KNOWN, "prompts for")
    names_of(arguments.engines, ENGINES, "engine")
    clock = Clock(arguments.minutes)
    over = f"_over_{arguments.ranks}" if arguments.ranks > 1 else ""
    part = f"_{arguments.name}" if arguments.name else ""
    results = Results(f"whole_prompts{over}{part}", arguments, clock)
    results.put(ranks=arguments.ranks, written=WRITTEN, not_counted=NOT_COUNTED)
    for name in names:
        whole = WholePrompts(name, arguments, clock, results)
        with results.surviving(f"the rest of {whole.title}"):
            whole.run()
        free(whole.device)


if __name__ == "__main__":
    main()
