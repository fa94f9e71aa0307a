"""vLLM beside this engine, each as a whole, on one GPU or over several: milliseconds per step of as many rows.

    python -m benchmarks.outsiders fetch-vllm FOLDER      where there is a network; then pack, and unpack
    python -m benchmarks.whole_engines --outsiders FOLDER --models qwen3-8b,codellama-7b --minutes 8
    python -m benchmarks.whole_engines --outsiders FOLDER --models gpt-oss-20b-mxfp4 --crowds lone
    python -m benchmarks.whole_engines --outsiders FOLDER --models qwen3-32b --ranks 2
    python -m benchmarks.whole_engines --outsiders FOLDER --models qwen3-8b --ranks 2 --ungated

Both get the same networks (real shapes, random weights) and the same prompts, as token ids. Timed are steps in which
every row gets a token, a team's too, on the caller's clock and from tokens to tokens: scheduling, network and choice of
tokens included, reading prompts (`benchmarks/whole_prompts.py`) and starting not. All rows choose the likeliest token. Each engine runs alone on the device, vLLM in a process of its own
(`benchmarks/vllm_process.py` says how it is set up, and has the crowds' type); both were started as servers are, with
graphs recorded ahead. This engine records more where a crowd wants other kernels, so it is timed in a run that recorded
nothing, the third at the latest; vLLM, which has graphs for just these rows, in its first. The situations:

    few rows behind one prompt      1, 4 and 16 completions of a history of 1 k and of 16 k
    a team                          as many workers that see each other's tokens; vLLM cannot run one
    many completions                256 and 1 024 behind 2 k and 16 k
    a plain batch                   128 requests with prompts of their own; nothing is shared

What this engine does is what a strategy asks for: the prompt's rows and the completions' in `Step`s, through scheduler
and planner. The crowds that do not fit into the device are halved, for both engines alike. Of networks with experts it
is counted, behind all timings, how many of them a layer reads in a step of either engine (launch by launch): a step takes
longer the more they are.

vLLM is timed first, for it takes longest; then comes the gate, then this engine, and each number is written when it is
there. The gate: a small network with random weights is saved, both engines load it, and vLLM writes greedily behind a shared
prompt, without cascade attention and with it. This engine then reads what vLLM wrote, token by token in one step for all
rows, and says how likely it finds each token: the log-probabilities must be alike, and each of vLLM's
tokens must be this engine's choice too, or as good as that (with experts, all but fifteen of a thousand: a row whose router
is undecided may get another expert by rounding). Where the gate is red this engine is not timed. A network with
experts has a gate of its own, with as many experts as large; where these come in mxfp4 they are saved as gpt-oss is
published, with random bits and scales, and neither engine unpacks them.

With `--ranks` each network lies over so many GPUs in both engines, and results are in files of their own (`whole_engines_over_2_...`).
Rows that fit are those that fit a rank's share. This engine's other ranks are there only when vLLM has ended. The gate above goes
by the GPUs, too, in both engines; and there is one more, without which this engine is not timed: a small network writes over the ranks
what it writes on one GPU (`benchmarks/ranks.py`). `--ungated` leaves out vLLM's gate, which starts vLLM a second time, and the
file says so. Networks with experts are refused: random weights are each rank's own, so its routers would choose other
experts than those of the next rank.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.breakdown import breakdown, kind_of
from benchmarks.decode import free, num_graphs, recording, steady
from benchmarks.engine_parts import ending, engine_on, executor_of
from benchmarks.outsiders import VLLM_PACKAGES, VLLM_TUNED
from benchmarks.ranks import writes_the_same
from benchmarks.results import ROOT, Clock, Results, parser
from benchmarks.routers import ChosenExperts, watched_routers
from benchmarks.shapes import SHAPES, TINY, Shape, tiny_of
from benchmarks.timing import python_loop_ms
from benchmarks.vllm_process import (
    COUNTED_STEPS,
    EMBEDDED,
    WARM_UP,
    Asked,
    Crowd,
    Tokens,
    account,
    exponent,
)
from manyhands import bundled
from manyhands.cache.block import Block
from manyhands.cache.logprobs import Logprobs
from manyhands.cache.logprobs import Tokens as Chosen
from manyhands.cache.step import Choice, Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.engine.loop import run_passes
from manyhands.engine.ranks.group import kind_of_group
from manyhands.engine.ranks.world import World
from manyhands.errors import InvalidRequest
from manyhands.evaluation.bench import fill, seat, views_of
from manyhands.model.dummy import STD
from manyhands.model.quantised.mxfp4 import PRODUCTS
from manyhands.model.settings import ModelSettings
from manyhands.strategies.base import Answer, Reserve, Strategy

OURS, TEAM = "manyhands", "manyhands, a team"
TOKENS = 128  # of a completion
_ALONE = Crowd("128 lone, 100 to 1 000", 128, (100, 1000), TOKENS, is_shared=False)


def _behind(rows: int, length: int) -> Crowd:
    return Crowd(f"{rows} behind {length // 1024} k", rows, (length, length), TOKENS)


_FEW = tuple(_behind(rows, length) for length in (1024, 16384) for rows in (1, 4, 16))
_MANY = tuple(_behind(rows, length) for length in (2048, 16384) for rows in (256, 1024))
CROWDS: dict[str, tuple[Crowd, ...]] = {
    "qwen3-8b": (*_FEW, _ALONE, *_MANY),
    "codellama-7b": _MANY,
    **dict.fromkeys(
        ("qwen3-30b-a3b", "gpt-oss-20b", "gpt-oss-20b-mxfp4"),
        (*_FEW[:3], _FEW[-1], _ALONE, _behind(128, 1024), _behind(256, 2048), _behind(256, 16384)),
    ),
    "qwen3-32b": (*_FEW, _ALONE),
}
PROFILED = ("1 behind 1 k", "16 behind 16 k", _ALONE.name, "256 behind 2 k")
TINY_CROWDS = (
    Crowd("4 behind 32", 4, (32, 32), 24),
    Crowd("3 lone, 5 to 20", 3, (5, 20), 24, is_shared=False),
)
_PAGE = 64  # tokens, the largest that an engine uses
_SHARE_OF_MEMORY, _SPARE_BYTES = 0.88, 4 << 30  # of what is free, and for what a pass holds
_TEAMS = (4, 16)  # workers; one worker is one row

# The gate's network: large enough that keys of a whole page matter, and sharp enough that a wrong one shows.
GATE_SHAPE = Shape(
    "of the gate",
    {
        **TINY.config,
        "hidden_size": 1024,
        "intermediate_size": 2048,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 4096,
        "max_position_embeddings": 4096,
    },
)
_OF_THE_GATE = ("hidden_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
_GATE_LAYERS = 2  # where they have experts
GATE_CROWD = Crowd("gate", 64, (512, 512), 32)  # so many that vLLM cascades
# So many times as transformers makes them: queries with norms and without, logits, and those of routers, which else
# choose by the last bit which expert is the last.
_SHARPER, _SHARPER_PLAIN, _LOUDER, _DECIDED = 2.0, 5.0, 5.0, 4.0
_STEP = 32  # numbers of mxfp4 with one scale
_BIAS, _SINK = 0.2, 3.0  # deviation of biases, and mean of sinks, which it begins at 0
# Natural logarithms: the mean difference between two engines' log-probabilities of one token, and by how much a token
# of the one may be less likely than the other's own choice. In bfloat16 this engine is 0.05 from itself in float32 by
# the first, and 0.25 by the second; with one token of the shared prompt exchanged, 0.32 and 5.6 (benchmarks/gate_controls.py).
MEAN_TOLERANCE, FAR = 0.1, 0.8
# With experts it is 0.06 from itself by the first, and of a thousand tokens one (Qwen3's shape) or five (gpt-oss's; eleven of those
# that vLLM wrote) are further than that, up to 5.3: rounding gave their rows another set of experts. With two experts of a layer
# exchanged that many rows ask for, 0.13 by the first and twenty of a thousand at the least; with one token of the prompt exchanged,
# 0.15 by the first.
FAR_WITH_EXPERTS = 0.015  # of all tokens
# The gate at most, and as long as it takes; seconds that vLLM leaves to this engine, also where that compiles kernels for experts.
_GATE_SECONDS, _GATE_TAKES = 150.0, 95.0
_OUR_SECONDS, _OUR_SECONDS_WITH_EXPERTS = 45.0, 80.0
# Seconds more that either engine may take over ranks, for processes that start and get ready: this engine's took 10 to 18 and 20 to 28.
_MORE_OVER_RANKS = 60.0
_LOOK = 0.5  # seconds between two looks at what vLLM told
_RELEASED = 0.95  # share of the device's memory that is free again when another process has ended


def chosen(crowds: Sequence[Crowd], words: str) -> tuple[Crowd, ...]:
    """The crowds whose names have one of these words in them, which commas part."""
    found = tuple(crowd for crowd in crowds if any(word in crowd.name for word in words.split(",")))
    if not found:
        names = "; ".join(crowd.name for crowd in crowds)
        raise InvalidRequest(
            f"no crowd has a name with {words!r} in it: give a part of one of these: {names}"
        )
    return found


def names_of(words: str, known: Iterable[str], what: str) -> list[str]:
    """Names that commas part, all of which have to be known. `what`: of an unknown one there is none."""
    names, there = words.split(","), list(known)
    if unknown := sorted({*names} - {*there}):
        raise InvalidRequest(f"no {what} {', '.join(unknown)}; there are {', '.join(there)}")
    return names


def add_ranks(options: argparse.ArgumentParser) -> None:
    """The option of both programs."""
    options.add_argument(
        "--ranks", type=int, default=1, help="GPUs over which each network lies, in both engines"
    )


def networks(arguments: argparse.Namespace, known: Sequence[str], what: str) -> list[str]:
    """The networks of `--models`, or without it of all that are known those that can be had.

    InvalidRequest for unknown ones, and with `--ranks` for those with experts and where there are too few GPUs.
    """
    ranks = arguments.ranks
    if ranks < 1:
        raise InvalidRequest(f"--ranks is {ranks}: give the number of GPUs, 1 or more")
    can_be_had = [name for name in known if ranks == 1 or not SHAPES[name].num_experts]
    names = names_of(arguments.models, known, what) if arguments.models else can_be_had
    if refused := [name for name in names if name not in can_be_had]:
        raise InvalidRequest(
            f"--ranks {ranks} with {', '.join(refused)}: random weights are each rank's own, so its routers would choose other "
            f"experts than those of the next rank. Give networks without experts: {', '.join(can_be_had)}"
        )
    if ranks > 1:
        kind_of_group(arguments.device, ranks)
    return names


class BesideVllm:
    """One network that both engines get, one after the other; `its_vllm` is what is left out where vLLM fails or is late."""

    its_vllm = "vLLM"

    def __init__(
        self, name: str, arguments: argparse.Namespace, clock: Clock, results: Results
    ) -> None:
        self.arguments, self.clock, self.results = arguments, clock, results
        self.device = torch.device(arguments.device)
        self.shape = SHAPES[name]
        if arguments.tiny:
            self.shape = tiny_of(self.shape) if self.shape.num_experts else TINY
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.ranks: int = arguments.ranks
        over = f", over {self.ranks} GPUs" if self.ranks > 1 else ""
        self.title = f"{self.shape.title}{over}"
        self.world: World | None = None  # while this engine's other ranks are there

    @property
    def vocab_size(self) -> int:
        """Of the network."""
        return int(self.shape.config["vocab_size"])

    @property
    def seconds_for_vllm(self) -> float:
        """Seconds that are left, without those that this engine needs."""
        ours = _OUR_SECONDS_WITH_EXPERTS if self.shape.num_experts else _OUR_SECONDS
        return self.clock.seconds - self.clock.spent - ours - self.more_seconds

    @property
    def more_seconds(self) -> float:
        """Seconds that either engine may take longer than on one GPU."""
        return _MORE_OVER_RANKS if self.ranks > 1 else 0.0

    def ask_vllm(
        self, asked: Asked, folder: Path, seconds: float, take: Callable[[dict[str, Any]], None]
    ) -> float:
        """Let vLLM do it in a process of its own; each line is taken when it is told. Seconds from begin to end."""
        assert self.world is None, "each engine runs alone"
        told = folder / "told.jsonl"
        told.write_text("")
        packages = Path(self.arguments.outsiders).resolve() / VLLM_PACKAGES
        path = os.pathsep.join(map(str, (packages, ROOT)))
        lent = folder / "tuned"
        if asked.has_experts and self.device.type == "cuda":
            name = torch.cuda.get_device_name(self.device)
            self.results.put(tuned_for_h200=lend_tuned(packages / VLLM_TUNED, lent, name))
        command = [sys.executable, "-m", "benchmarks.vllm_process"]
        before = self.clock.spent
        process = subprocess.Popen(
            [*command, str(asked.write(folder / "asked.json")), str(told)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "VLLM_TUNED_CONFIG_FOLDER": str(lent)},
            start_new_session=True,  # its own processes are ended with it
        )
        try:
            for line in lines_of(process, told, seconds):
                take(line)
        finally:
            is_late = process.poll() is None
            end_all(process)
            self._wait_for_memory()
        if is_late:
            self.results.leave_out(f"the rest of {self.its_vllm}", "the time was over")
        elif process.returncode:
            self.results.leave_out(self.its_vllm, f"its process ended with {process.returncode}")
        return round(self.clock.spent - before, 1)

    def _wait_for_memory(self, seconds: float = 20.0) -> None:
        """Until the devices have the memory again of processes that were ended."""
        until = time.monotonic() + seconds
        used = [self.device] if self.ranks == 1 else range(self.ranks)
        while self.device.type == "cuda" and time.monotonic() < until:
            memory = [torch.cuda.mem_get_info(device) for device in used]
            if all(there > _RELEASED * whole for there, whole in memory):
                return
            time.sleep(0.2)

    @contextmanager
    def over_ranks(self) -> Iterator[None]:
        """Inside, this engine's other ranks are there, if there are any.

        What they want in the environment is taken out of it behind them: vLLM's process gets the same one.
        """
        if self.ranks == 1:
            yield
            return
        before = set(os.environ)
        self.world = World.start(self.ranks, self.arguments.device)
        added = set(os.environ) - before
        try:
            with ending(self.world):
                yield
        finally:
            self.world = None
            for name in added:
                os.environ.pop(name, None)

    def ranks_are_green(self, length: int = 37) -> bool:
        """Whether the ranks write what one GPU writes, behind a prompt of this length; without ranks there is nothing to ask."""
        if self.world is None:
            return True
        is_same = writes_the_same(self.world, self.arguments, length)
        self.results.put(same_tokens=is_same)
        if not is_same:
            self.results.leave_out(
                f"{OURS}, {self.title}", "the gate is red: the ranks write other tokens"
            )
        return is_same

    def engine(self, folder: Path, memory_tokens: int, weights: Literal["auto", "dummy"]) -> Engine:
        """Load this engine, over the ranks that are there or on one device."""
        settings = ModelSettings(
            folder,
            device=self.arguments.device,
            dtype=str(self.dtype).removeprefix("torch."),
            backend=self.arguments.backend,
            weights=weights,
            memory_tokens=memory_tokens,
        )
        return engine_on(self.world, settings)

    def load(self, folder: Path, memory_tokens: int) -> Engine:
        """Load this engine with random weights, ready as a server is."""
        engine = self.engine(folder, memory_tokens, "dummy")
        if self.shape.num_experts:
            embed(engine)
        engine.get_ready()
        return engine


class WholeEngines(BesideVllm):
    """One network, both engines: steps."""

    def __init__(self, name: str, arguments: argparse.Namespace, clock: Clock) -> None:
        over = f"over_{arguments.ranks}_" if arguments.ranks > 1 else ""
        results = Results(f"whole_engines_{over}{name}", arguments, clock)
        super().__init__(name, arguments, clock, results)
        self.crowds = chosen(TINY_CROWDS if arguments.tiny else CROWDS[name], arguments.crowds)

    def run(self) -> None:
        """vLLM, gate, this engine."""
        self.results.put(
            model=self.title,
            ranks=self.ranks,
            dtype=str(self.dtype).removeprefix("torch."),
            num_experts=self.shape.num_experts,
            tokens=TOKENS,
            counted_from=WARM_UP,
        )
        self.halve()
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            written = None
            is_beside = self.arguments.outsiders is not None
            if not is_beside:
                self.results.leave_out("vLLM", "no folder with it (--outsiders)")
            elif not self._vllm(self.shape.write(place / "network")):
                return  # nothing to stand beside
            elif self.arguments.ungated:
                self.results.leave_out("the gate of both engines", "it was not wanted (--ungated)")
            else:
                written = self._written(place / "gate")
            with self.over_ranks():
                if not self.ranks_are_green():
                    return
                if is_beside and not self.arguments.ungated and not self._gate_is_green(written):
                    self.results.leave_out(OURS, "the gate is red")
                    return
                self._ours(self.shape.write(place / "network"))

    def halve(self) -> None:
        """Crowds that do not fit get half as many rows, until they do."""
        if self.device.type != "cuda":
            return
        weights = 2 * (
            sum(
                a * b for a, b in self.shape.products(self.ranks)
            )  # embeddings are whole everywhere
            + self.shape.config["hidden_size"] * self.shape.config["vocab_size"]
        )
        if self.shape.num_experts:
            weights += self.shape.num_layers * self.shape.num_experts * self.shape.expert_bytes(2)
        free_bytes = _SHARE_OF_MEMORY * torch.cuda.mem_get_info(self.device)[0]
        room = (free_bytes - weights - _SPARE_BYTES) / self.shape.token_bytes(2, self.ranks)
        fitting = []
        for crowd in self.crowds:
            rows = crowd.rows
            while most_memory(replace(crowd, rows=rows)) > room and rows > 1:
                rows //= 2
            if rows < crowd.rows:
                name = crowd.name.replace(str(crowd.rows), str(rows), 1)
                self.results.leave_out(crowd.name, f"out of memory; {rows} rows instead")
                crowd = replace(crowd, rows=rows, name=name)
            if crowd not in fitting:
                fitting.append(crowd)
        self.crowds = tuple(fitting)

    def _gate_is_green(self, written: Written | None) -> bool:
        """Both engines on one small network, once for all networks alike; what came of it is in the results.

        `written` is None where it is known from a network before.
        """
        shape = gate_shape(self.shape)
        if written is not None:
            self.arguments.gates[shape.title] = written.started, self._compared(written)
        started, lines = self.arguments.gates[shape.title]
        self.results.put(gate_start=started)
        for name, cascades, found in lines:
            self.results.add("gate", engine=name, steps_in_cascade=cascades, **asdict(found))
        has_experts = shape.num_experts > 0
        return bool(lines) and all(found.is_green(has_experts=has_experts) for _, _, found in lines)

    def _written(self, folder: Path) -> Written | None:
        """The gate's network in a folder, and what vLLM writes with it; None where the gate is known from a network before."""
        shape = gate_shape(self.shape)
        if shape.title in self.arguments.gates:
            return None
        save_small(folder, shape)
        asked = Asked(
            str(folder),
            "auto",
            shape.config["vocab_size"],
            (GATE_CROWD,),
            tells_tokens=True,
            has_experts=shape.num_experts > 0,
            ranks=self.ranks,
        )
        told: list[dict[str, Any]] = []
        seconds = _GATE_SECONDS + self.more_seconds
        whole_seconds = self.ask_vllm(asked, folder.parent, seconds, told.append)
        started = {**(told[0]["started"] if told else {}), "whole_seconds": whole_seconds}
        return Written(folder, started, told[1:])

    def _compared(self, written: Written) -> list[tuple[str, int, Agreement]]:
        """For each way in which vLLM wrote: steps in cascade attention, and how far off."""
        engine = self.engine(written.folder, 16384, "auto")
        found = [
            (
                line["engine"],
                line["used"],
                compare(engine, GATE_CROWD, line["tokens"], line["logprobs"]),
            )
            for line in written.lines
        ]
        del engine
        free(self.device)
        return found

    def _vllm(self, folder: Path) -> bool:
        """Time it; whether anything came of it."""
        vocab_size = self.shape.config["vocab_size"]
        asked = Asked(
            str(folder),
            "dummy",
            vocab_size,
            self.crowds,
            profiled=PROFILED,
            spread=STD,
            has_experts=self.shape.num_experts > 0,
            ranks=self.ranks,
        )
        left = self.seconds_for_vllm
        is_gated = not self.arguments.ungated
        if is_gated and gate_shape(self.shape).title not in self.arguments.gates:
            left -= _GATE_TAKES + self.more_seconds
        whole_seconds = self.ask_vllm(asked, folder.parent, max(1.0, left), self._told)
        started = self.results.content.get("vllm_start", {})
        self.results.put(vllm_start={**started, "whole_seconds": whole_seconds})
        return "cells" in self.results.content

    def _told(self, line: dict[str, Any]) -> None:
        """A line of what vLLM tells when it is timed."""
        if "started" in line:
            self.results.put(vllm_start=line["started"])
        elif "profiled" in line:
            self._profiled(line)
        elif "counted" in line:
            self.results.add("experts", engine=line.pop("counted"), **line)
        else:
            self.results.add("cells", **line)

    def _profiled(self, line: dict[str, Any]) -> None:
        """Where a step of vLLM's spends its time, and its longest kernels."""
        by_kind = {"attention": 0.0, "linears": 0.0, "rest": 0.0}
        for name, ms in line["kernels"]:
            kind = "attention" if "reshape_and_cache" in name else kind_of(name)
            by_kind[kind] = by_kind.get(kind, 0.0) + ms
        self.results.add(
            "breakdown",
            engine=line["profiled"],
            name=line["name"],
            steps=line["steps"],
            **{f"ms_{kind}": round(ms, 4) for kind, ms in by_kind.items()},
            kernels=[[name[:70], round(ms, 4)] for name, ms in line["kernels"][:12]],
        )

    def _ours(self, folder: Path) -> None:
        before = self.clock.spent
        engine = self.load(folder, max(map(most_memory, self.crowds)))
        self.results.put(
            backend=engine.facts.backend,
            start_seconds=round(self.clock.spent - before, 1),
            python_loop_ms=python_loop_ms(),
        )
        if engine.facts.about_ranks:
            self.results.put(about_ranks=engine.facts.about_ranks)
        vocab_size = self.shape.config["vocab_size"]
        for crowd in self.crowds:
            if not self.clock.allows(5):
                self.results.leave_out(f"{OURS}, {crowd.name}", "the time was over")
                continue
            with self.results.surviving(f"{OURS}, {crowd.name}"):
                measure = partial(decode, engine, crowd, vocab_size)
                self._add(OURS, crowd, steady(engine, measure), engine)
        for crowd in self.crowds:
            if crowd.is_shared and (crowd.rows in _TEAMS or self.arguments.tiny):
                with self.results.surviving(f"{TEAM}, {crowd.name}"):
                    history = fill(engine, Block("history"), crowd.prompt[0], seed=0).freeze()
                    measure = partial(decode_team, engine, history, crowd)
                    self._add(TEAM, crowd, steady(engine, measure), engine)
        self._count_experts(engine)
        for crowd in self.crowds:
            if crowd.name in PROFILED and self.clock.allows(5):
                with self.results.surviving(f"{OURS}, breakdown of {crowd.name}"):
                    self._take_apart(engine, crowd)
        self.results.put(**recording(engine))
        del engine, measure
        free(self.device)

    def _count_experts(self, engine: Engine) -> None:
        """The experts that a layer reads of each crowd, and of each team."""
        for crowd in self.crowds if self.shape.num_experts else ():
            if not self.clock.allows(5):
                self.results.leave_out(f"experts of {crowd.name}", "the time was over")
                continue
            few = replace(crowd, tokens=WARM_UP + COUNTED_STEPS)
            measures = {OURS: partial(decode, engine, few, self.shape.config["vocab_size"])}
            if crowd.is_shared and (crowd.rows in _TEAMS or self.arguments.tiny):
                history = fill(engine, Block("history"), crowd.prompt[0], seed=0).freeze()
                measures[TEAM] = partial(decode_team, engine, history, few)
            for name, measure in measures.items():
                with self.results.surviving(f"{name}, experts of {crowd.name}"):
                    read = round(experts_read(engine, crowd.rows, measure), 2)
                    self.results.add("experts", engine=name, name=crowd.name, experts_read=read)

    def _take_apart(self, engine: Engine, crowd: Crowd) -> None:
        """Where a pass spends its time, of rows that stand as the crowd's do, over made-up keys and values."""
        shared, tails = crowd.prompts(self.shape.config["vocab_size"])
        lengths = [len(shared)] if crowd.is_shared else list(map(len, tails))
        prompts = [
            fill(engine, Block("prompt"), length, seed=at).freeze()
            for at, length in enumerate(lengths)
        ]
        views = [View((prompts[row % len(prompts)], Block())) for row in range(crowd.rows)]
        for line in self.results.content["cells"]:
            if (line["engine"], line["name"]) == (OURS, crowd.name):
                parts = breakdown(engine, views, line["ms"], passes=12)
                self.results.add("breakdown", engine=OURS, name=crowd.name, **parts)

    def _add(self, name: str, crowd: Crowd, seconds: list[float], engine: Engine) -> None:
        line = account(seconds, crowd.rows)
        graphs = num_graphs(engine) > 0
        self.results.add(
            "cells", engine=name, name=crowd.name, rows=crowd.rows, **line, graphs=graphs
        )


def lines_of(
    process: subprocess.Popen[Any], told: Path, seconds: float
) -> Iterator[dict[str, Any]]:
    """Lines of JSON that a process writes into a file, as they come, until it has ended or the seconds are over."""
    until = time.monotonic() + seconds
    begun = ""
    with told.open(encoding="utf-8") as file:
        while True:
            has_ended = process.poll() is not None or time.monotonic() > until
            *lines, begun = (begun + file.read()).split("\n")
            yield from map(json.loads, lines)
            if has_ended:
                return
            time.sleep(_LOOK)


def lend_tuned(theirs: Path, lent: Path, device: str) -> list[str]:
    """Put the numbers for the H200 where vLLM finds them for this GPU, if it has none for it; names of files lent.

    An H100's processor is the same.
    """
    lent.mkdir(exist_ok=True)
    own, others = f"device_name={device.replace(' ', '_')}", "device_name=NVIDIA_H200"
    names = []
    if "H100" in device:
        for file in sorted(theirs.glob(f"*,{others}.json")):
            name = file.name.replace(others, own)
            if not (theirs / name).exists():
                shutil.copy(file, lent / name)
                names.append(name)
    return names


def most_memory(crowd: Crowd) -> int:
    """Tokens of keys and values at most, pages that are partly empty included."""
    prompts = 1 if crowd.is_shared else crowd.rows
    own = crowd.tokens + 1 + _PAGE
    return prompts * (crowd.prompt[1] + 2 * _PAGE) + crowd.rows * own + 32 * _PAGE


def completions(shared: Tokens, tails: Sequence[Tokens], num_tokens: int) -> Strategy:
    """A prompt, and rows that go on behind it, each from its own first tokens."""
    yield Reserve(len(shared) + sum(map(len, tails)) + len(tails) * num_tokens, len(tails) + 2)
    prompt = Block("prompt")
    views = [View((prompt, Block())) for _ in tails]
    opening = [Row(View((prompt,)), tuple(shared))]
    return (yield from writing(views, list(map(tuple, tails)), num_tokens, opening))


def writing(
    views: Sequence[View],
    feeds: Sequence[tuple[int, ...]],
    num_tokens: int,
    opening: Sequence[Row] = (),
) -> Strategy:
    """So many tokens at the end of each view, behind its first feed; `opening` rows are read in the first step."""
    for _ in range(num_tokens):
        rows = [Row(view, feed, writer="row") for view, feed in zip(views, feeds, strict=True)]
        tokens = yield Step([*opening, *rows])
        assert isinstance(tokens, tuple), "a step is answered with one token per row"
        feeds = [(token,) for token in tokens[len(opening) :]]
        opening = ()
    return Answer(text="")


def decode_team(engine: Engine, history: Block, crowd: Crowd) -> list[float]:
    """The same of a team that reads a frozen history and itself, whose desks are new; each worker begins with another token."""
    views = views_of(seat(engine, history, crowd.rows, desk=0))
    team = writing(views, [(row,) for row in range(crowd.rows)], crowd.tokens)
    return time_steps(engine, [(0, team)], crowd.rows)


def lone(tokens: Sequence[int], num_tokens: int, unread: set[int], number: int) -> Strategy:
    """A prompt of its own, and one row that goes on behind it once the prompts of all others have been read.

    Parts of prompts beside rows that write are short, so without waiting the first rows would have written all of their tokens
    before the last one began. `unread`: numbers of the runs whose prompts are not read yet, this one's among them.
    """
    most = Reserve(len(tokens) + num_tokens, 3)
    yield most
    prompt = Block("prompt")
    if len(tokens) > 1:
        yield Step([Row(View((prompt,)), tuple(tokens[:-1]))])
    unread.discard(number)
    while unread:
        yield most
    return (yield from writing([View((prompt, Block()))], [tuple(tokens[-1:])], num_tokens))


def strategies(crowd: Crowd, vocab_size: int) -> Iterator[tuple[int, Strategy]]:
    """The runs of a crowd: one with many rows, or many with one. All rows of it write at the same time."""
    shared, tails = crowd.prompts(vocab_size)
    if crowd.is_shared:
        yield 0, completions(shared, tails, crowd.tokens)
        return
    unread = set(range(len(tails)))
    for row, tail in enumerate(tails):
        yield row, lone(tail, crowd.tokens, unread, row)


def decode(engine: Engine, crowd: Crowd, vocab_size: int) -> list[float]:
    """Seconds of each step of a crowd, see `time_steps`."""
    return time_steps(engine, strategies(crowd, vocab_size), crowd.rows)


def time_steps(engine: Engine, runs: Iterable[tuple[int, Strategy]], rows: int) -> list[float]:
    """Seconds from tokens to tokens where each of so many rows writes one and no prompt is read; the first few do not count."""
    seconds = []
    before, last = engine.usage, time.perf_counter()
    with closing(run_passes(engine, runs)) as passes:
        for each in passes:
            now = time.perf_counter()
            for _, run in each.runs:
                if run.done:
                    run.result()  # raises what went wrong
            cost, before = engine.usage - before, engine.usage
            if cost.tokens_fed == cost.tokens_chosen == rows:
                seconds.append(now - last)
            last = now
    return seconds[min(WARM_UP, len(seconds) // 2) :]


@torch.inference_mode()
def embed(engine: Engine) -> None:
    """Make random embeddings so large that a row's own token chooses its experts, as `fill` of vllm_process does there."""
    torch.manual_seed(0)
    model: Any = executor_of(engine).adapter.model
    model.get_input_embeddings().weight.normal_(std=EMBEDDED)


def experts_read(engine: Engine, rows: int, measure: Callable[[], Any]) -> float:
    """The experts that a layer reads in one of the last passes of so many rows that `measure` makes, on average."""
    counts: dict[int, list[int]] = {}  # of each router

    def note(router: int, chosen: ChosenExperts) -> None:
        if len(chosen.experts) == rows:
            counts.setdefault(router, []).append(chosen.experts.unique().numel())

    with watched_routers(engine, note):
        measure()
    return statistics.fmean(count for each in counts.values() for count in each[-COUNTED_STEPS:])


# -- gate ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Written:
    """A small network's folder, how vLLM started with it, and what it wrote, a line for each way."""

    folder: Path
    started: dict[str, Any]
    lines: list[dict[str, Any]]


@dataclass(frozen=True)
class Agreement:
    """How far two engines' log-probabilities of the same tokens are from each other (natural logarithms)."""

    tokens: int
    same: int  # tokens that both would choose
    mean: float  # of the differences
    worst: float  # of how much less likely the token is than one's own choice
    far: int  # tokens that are less likely than that by more than `FAR`

    def is_green(self, *, has_experts: bool) -> bool:
        """Whether they compute the same network (what is not a number is red)."""
        share = FAR_WITH_EXPERTS if has_experts else 0.0
        return self.mean <= MEAN_TOLERANCE and self.far <= share * self.tokens


def gate_shape(shape: Shape) -> Shape:
    """The small network by which one of this shape is examined."""
    if not shape.num_experts:
        return GATE_SHAPE
    own = shape.config
    config = {**own, **{name: GATE_SHAPE.config[name] for name in _OF_THE_GATE}}
    config["num_hidden_layers"] = _GATE_LAYERS
    if "layer_types" in own:
        config["layer_types"] = own["layer_types"][:_GATE_LAYERS]
    return Shape(f"of the gate, with experts of {shape.title}", config)


def save_small(folder: Path, shape: Shape) -> Path:
    """A small network with random weights, as transformers saves it; experts in mxfp4 as they are published."""
    config = AutoConfig.from_pretrained(shape.write(folder))
    if shape.is_mxfp4:
        del config.quantization_config
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    weights = dict(model.named_parameters())
    has_norms = any(name.endswith("q_norm.weight") for name in weights)
    with torch.no_grad():
        for name, weight in weights.items():
            if name.endswith("q_norm.weight"):
                weight.mul_(_SHARPER)
            elif name.endswith("q_proj.weight") and not has_norms:
                weight.mul_(_SHARPER_PLAIN)
            elif name == "lm_head.weight":
                weight.mul_(_LOUDER)
            elif name.endswith(("mlp.gate.weight", "mlp.router.weight")):
                weight.mul_(_DECIDED)
            elif name.endswith("bias"):
                weight.normal_(std=_BIAS)
            elif name.endswith("sinks"):
                weight.normal_(mean=_SINK)
    model.to(torch.bfloat16)
    if shape.is_mxfp4:
        save_file(published(model), folder / "model.safetensors", metadata={"format": "pt"})
    else:
        model.save_pretrained(folder)
    for each in bundled.path().glob("tokenizer*"):  # weights that are read come with one
        shutil.copy(each, folder)
    return folder


def published(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a network as gpt-oss is published; experts get random bits, and scales around what `fill` gives them."""
    tensors = dict(model.state_dict())
    for name in [
        name for name in tensors if name.endswith(tuple(f".experts.{p}" for p in PRODUCTS))
    ]:
        experts, inputs, outputs = tensors.pop(name).shape
        size, middle = (experts, outputs, inputs // _STEP), exponent(STD)
        tensors[f"{name}_blocks"] = torch.randint(0, 256, (*size, _STEP // 2)).to(torch.uint8)
        tensors[f"{name}_scales"] = torch.randint(middle - 1, middle + 2, size).to(torch.uint8)
    return tensors


def compare(
    engine: Engine, crowd: Crowd, tokens: Sequence[Tokens], logprobs: Sequence[Sequence[float]]
) -> Agreement:
    """Agreement on tokens that another engine wrote; `tokens` and `logprobs` are [rows][of each row]."""
    told = [each for row in read_along(engine, crowd, tokens) for each in row]
    theirs = [each for row in logprobs for each in row]
    wrote = [each for row in tokens for each in row]
    differences = [abs(ours.logprob - other) for ours, other in zip(told, theirs, strict=True)]
    behind = [ours.top[0][1] - ours.logprob for ours in told]
    return Agreement(
        tokens=len(told),
        same=sum(ours.top[0][0] == token for ours, token in zip(told, wrote, strict=True)),
        mean=round(statistics.fmean(differences), 5),
        worst=round(max(behind), 5),
        far=sum(not each <= FAR for each in behind),
    )


def read_along(engine: Engine, crowd: Crowd, tokens: Sequence[Tokens]) -> list[list[Logprobs]]:
    """The log-probability of each of these tokens, and of the likeliest in its place, all rows in one step."""

    def forced(turn: int) -> list[Choice]:
        return [Choice(allowed=frozenset((row[turn],)), logprobs=1) for row in tokens]

    return write_along(engine, crowd, min(map(len, tokens)), forced)[1]


def write_along(
    engine: Engine, crowd: Crowd, turns: int, choices: Callable[[int], Sequence[Choice]]
) -> tuple[list[Tokens], list[list[Logprobs]]]:
    """The tokens of each row of a crowd, and how likely each is, all rows in one step; `choices` are those of a turn's rows."""
    wrote: list[Tokens] = [[] for _ in range(crowd.rows)]
    told: list[list[Logprobs]] = [[] for _ in range(crowd.rows)]

    def writing() -> Strategy:
        shared, tails = crowd.prompts(engine.facts.vocab_size)
        yield Reserve(len(shared) + crowd.rows * (crowd.tokens + 1), crowd.rows + 2)
        prompt = Block("prompt")
        views = [View((prompt, Block())) for _ in tails]
        feeds = [tuple(tail) for tail in tails]
        opening = [Row(View((prompt,)), tuple(shared))]
        for turn in range(turns):
            rows = [Row(*each) for each in zip(views, feeds, choices(turn), strict=True)]
            chosen = yield Step([*opening, *rows])
            assert isinstance(chosen, Chosen), "logprobs were asked for"
            behind = len(opening)
            for row in range(crowd.rows):
                wrote[row].append(chosen[behind + row])
                told[row].append(chosen.logprobs[behind + row])
            feeds = [(token,) for token in chosen[behind:]]
            opening = []
        return Answer(text="")

    engine.run(writing())
    return wrote, told


def end_all(process: subprocess.Popen[Any]) -> None:
    """End a process that leads a session, with all that it began."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main(words: list[str] | None = None) -> None:
    """Measure the networks that were asked for."""
    options = parser(__doc__, minutes=8.0)
    options.add_argument(
        "--models", default="", help="comma-separated; with --ranks, without experts"
    )
    add_ranks(options)
    options.add_argument(
        "--ungated",
        action="store_true",
        help="with --ranks: leave out the gate for which vLLM starts once more; the file says so",
    )
    options.add_argument(
        "--outsiders", type=Path, help="folder with vLLM (benchmarks/outsiders.py)"
    )
    options.add_argument(
        "--crowds", default="", help="parts of names, comma-separated: only crowds with one of them"
    )
    options.set_defaults(gates={})  # by their titles: networks without experts have one
    arguments = options.parse_args(words)
    names = networks(arguments, tuple(CROWDS), "crowds for")
    if arguments.ungated and arguments.ranks == 1:
        raise InvalidRequest(
            "--ungated on one GPU: this engine has no other gate there. Leave it out, or give --ranks"
        )
    clock = Clock(arguments.minutes)  # one for all: the first network has the gate
    for name in names:
        whole = WholeEngines(name, arguments, clock)
        with whole.results.surviving("the rest"):
            whole.run()
        free(whole.device)


if __name__ == "__main__":
    main()
