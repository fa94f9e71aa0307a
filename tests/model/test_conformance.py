"""Every family through the engine, against Hugging Face's own network.

(a) One worker whose text lies in several blocks, some of them frozen and moved together, against an
    ordinary forward pass over the same tokens.
(b) Teams of three workers in the combined layout, over several passes with desks that join the history
    midway, against `DenseTeam`, which shares neither bookkeeping nor rotations with us.

Families whose attention is one of these, with another network around it, get a short look: a team of two.

Tolerances. Logits are of order 4 here, so one rounding is 4e-16 of a float64 and 2e-7 of a float32, and
a few dozen of them meet on the way: the worst measured are 8e-15 and 5e-6. The mutants at the end, each a
mistake that is easily made, miss by more than a quarter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from manyhands.attention import rotary, torch_backend
from manyhands.attention.attend import Backend, QueryScale
from manyhands.attention.rotary import Rope
from manyhands.cache import planner as planning
from manyhands.cache.block import Block
from manyhands.cache.layouts import LAYOUTS, Cast
from manyhands.cache.places import Move
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.model import adapter as adapting
from manyhands.model.adapter import ModelAdapter
from manyhands.model.families import FAMILIES, nope_layers
from manyhands.model.memory import Memory
from manyhands.model.self_test import self_test
from tests.covers import in_turns, spared
from tests.engine.small import executor_of
from tests.model.dense_team import DenseRow, DenseTeam
from tests.model.double import DoublePrecision
from tests.model.families_zoo import repeating_models, some_tokens, tiny_models
from tests.poison import poison

ZOO = tiny_models()
REPEATING = repeating_models()
FLOAT32, FLOAT64 = 3e-5, 1e-13
VISIBLE = 0.1
LONGEST_VIEW = 96  # positions of longrope's network, and beyond the short ones' original length
BROAD = sorted(set(ZOO) - {"mistral", "phi3"})  # not all of their layers see through a window
YARN = ["qwen2_yarn", "olmo3", "gpt_oss", "deepseek_v2", "deepseek_v3"]
WINDOWS = ["qwen2_window", "mistral", "phi3", "gemma2", "gemma3_text", "gemma4_shared", "olmo3"]
WINDOWS += ["gpt_oss"]


def _engine(model: PreTrainedModel, double: bool) -> Engine:
    """An engine whose memory is NaN where nothing has been written."""
    engine = Engine(ModelAdapter(model.double() if double else model), memory_tokens=512)
    poison(executor_of(engine).memory)
    return engine


# -- one worker over split blocks ------------------------------------------------------------------


@pytest.mark.parametrize(("name", "double"), in_turns(ZOO, False, True))
def test_one_worker_over_split_blocks(name: str, double: bool) -> None:
    tokens = some_tokens(30)
    with DoublePrecision() if double else nullcontext(), torch.no_grad():
        model = ZOO[name]()
        if double:
            model = model.double()
            if model._can_set_experts_implementation():
                model.set_experts_implementation("eager")
        expected = model(input_ids=tokens[None], use_cache=False).logits[0]
        engine = _engine(model, double)
        error = _read_in_pieces(engine, tokens.tolist(), expected)
    assert error < (FLOAT64 if double else FLOAT32)


def _read_in_pieces(engine: Engine, tokens: list[int], expected: Tensor) -> float:
    """Worst error of the logits after every feed."""
    prompt, first, second, empty, third, own = (Block(name) for name in "p12e3o")
    feeds = [
        (View([prompt]), 7),
        (View([prompt, first]), 1),
        (View([prompt, first]), 4),
        (View([prompt, first, second]), 3),
        (View([prompt, first, second, empty, third]), 5),
        (View([prompt, first, second, empty, third]), 1),
        (View([prompt, first, second, empty, third, own]), 2),
        *[(View([prompt, first, second, empty, third, own]), 1)] * 7,
    ]
    errors, start = [], 0
    for view, size in feeds:
        for block in view.blocks[:-1]:
            if block is not empty:
                block.freeze()
        logits = engine.forward(Step([Row(view, tuple(tokens[start : start + size]))]))
        start += size
        errors.append((logits[0] - expected[start - 1]).abs().max())
    assert start == len(tokens)
    offsets = [engine.pool.place(block).offset for block in (prompt, first, second, third)]
    assert offsets == [0, 7, 12, 0], "the frozen neighbours were meant to be moved together"
    return float(torch.stack(errors).max())  # NaN if one of them is


# -- teams -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pass:
    """The tokens that one pass feeds, and which workers finish their step before it."""

    feeds: dict[int, int]  # worker -> number of tokens
    finished: tuple[int, ...] = ()


def _story(num_workers: int) -> list[_Pass]:
    """Prefixes, steady decoding, a step finished by each, two at once, a pause, a late worker."""
    everybody = range(num_workers)
    last = num_workers - 1
    return [
        _Pass({worker: 3 - worker for worker in everybody if worker < 2}),
        _Pass(dict.fromkeys(everybody, 1)),
        _Pass({worker: 4 if worker == 0 else 1 for worker in everybody}, finished=(0,)),
        _Pass({0: 1}),
        _Pass({worker: 3 if worker == last else 1 for worker in everybody}, finished=(last,)),
        _Pass({0: 2, 1: 4} | {worker: 1 for worker in everybody if worker > 1}, finished=(0, 1)),
        _Pass(dict.fromkeys(everybody, 1)),
        _Pass(dict.fromkeys(everybody, 1)),
    ]


HEADS = {"prompt": 6, "others": 2, "marker": 1, "own": 2}


def _feeds(num_workers: int) -> Iterator[dict[str | int, list[int]]]:
    """The tokens of every pass, random and always the same: by worker; by block for the opening."""
    stream = iter(some_tokens(200, seed=num_workers).tolist())
    opening = dict(HEADS)
    for story in _story(num_workers):
        sizes: list[tuple[str | int, int]] = [*opening.items(), *story.feeds.items()]
        opening.clear()
        yield {who: [next(stream) for _ in range(size)] for who, size in sizes}


def _by_definition(name: str, layout: str, num_workers: int) -> list[Tensor]:
    """Logits of the workers' rows after every pass, by `DenseTeam`."""
    with DoublePrecision():  # the frequencies too
        team = DenseTeam((ZOO | REPEATING)[name](), LONGEST_VIEW)
    desks = [f"{worker}.1" for worker in range(num_workers)]
    history: list[str] = []
    logits = []
    for story, feeds in zip(_story(num_workers), _feeds(num_workers), strict=True):
        for worker in story.finished:
            if LAYOUTS[layout].keeps_history:
                history.append(desks[worker])
                desks[worker] += "'"
        rows = []
        for who, feed in feeds.items():
            if who == "prompt":
                view = ["prompt"]
            elif who == "others":
                view = ["prompt", "others"]
            elif isinstance(who, str):
                view = ["prompt", "others", who]
            else:
                view = _seen_by(who, layout, desks, history)
            rows.append(DenseRow(view, feed))
        logits.append(team.step(rows)[len(feeds) - len(story.feeds) :])
    return logits


def _seen_by(worker: int, layout: str, desks: Sequence[str], history: Sequence[str]) -> list[str]:
    others = []
    for other, desk in enumerate(desks):
        if other != worker:
            others += [desk, "marker"]
    seen = {
        "combined": ["prompt", *history, "others", *others],
        "contiguous": ["prompt", *others],
        "interleaved": ["prompt", *history],
    }
    return [*seen[layout], "own", desks[worker]]


_expected = functools.cache(_by_definition)


def _by_engine(name: str, layout: str, num_workers: int, double: bool) -> list[Tensor]:
    """The same through the product."""
    with DoublePrecision() if double else nullcontext():
        return told_to(_engine((ZOO | REPEATING)[name](), double), layout, num_workers)


def told_to(engine: Engine, layout: str, num_workers: int) -> list[Tensor]:
    """Logits of the workers' rows after every pass of the story, by this engine."""
    fixed = {name: Block(name) for name in HEADS}
    desks = [Block(f"{worker}.1") for worker in range(num_workers)]
    history: list[Block] = []
    context = (fixed["prompt"], fixed["others"])
    opening = {
        "prompt": View(context[:1]),
        "others": View(context),
        "marker": View((*context, fixed["marker"])),
        "own": View((*context, fixed["own"])),
    }
    logits = []
    for story, feeds in zip(_story(num_workers), _feeds(num_workers), strict=True):
        if history:
            fixed["prompt"].freeze()
        for worker in story.finished:
            if LAYOUTS[layout].keeps_history:
                history.append(desks[worker].freeze())
                desks[worker] = Block()
        cast = Cast(
            fixed["prompt"],
            fixed["others"],
            fixed["own"],
            fixed["marker"],
            tuple(desks),
            tuple(history),
        )
        step = Step(
            Row(
                opening[who] if isinstance(who, str) else LAYOUTS[layout](cast, who),
                tuple(feed),
            )
            for who, feed in feeds.items()
        )
        logits.append(engine.forward(step)[len(feeds) - len(story.feeds) :].clone())
    if history:
        assert engine.pool.place(history[-1]).offset > 0, "nothing was moved"
    return logits


def _worst(name: str, num_workers: int, *, layout: str = "combined", double: bool = True) -> float:
    expected = _expected(name, layout, num_workers)
    ours = _by_engine(name, layout, num_workers, double)
    errors = [(a.double() - b).abs().max() for a, b in zip(ours, expected, strict=True)]
    return float(torch.stack(errors).max())  # NaN if one of them is


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("double", [True, *spared(False)], ids=["float64", "float32"])
def test_a_team_against_the_definition(name: str, double: bool) -> None:
    error = _worst(name, 3, double=double)
    assert error < (FLOAT64 if double else FLOAT32)


@pytest.mark.parametrize("name", REPEATING)
def test_a_family_that_repeats_another(name: str) -> None:
    """A short look: the examination, which runs Hugging Face's own attention, and one team."""
    config = REPEATING[name]().config
    row, found = FAMILIES[config.model_type], self_test(config)
    assert found.interleaved == row.interleaved
    assert nope_layers(config, found) == nope_layers(config, row)
    spread = float(torch.stack([rows.std() for rows in _expected(name, "combined", 2)]).mean())
    assert _worst(name, 2) / spread < FLOAT64


@pytest.mark.parametrize("layout", sorted(set(LAYOUTS) - {"combined"}))
@pytest.mark.parametrize("name", ["qwen3", "gpt_oss"])
def test_the_other_layouts(name: str, layout: str) -> None:
    assert _worst(name, 3, layout=layout) < FLOAT64


# -- controls: each of these mistakes must be seen -------------------------------------------------


@pytest.mark.parametrize("name", [*BROAD[::3], *spared(*BROAD[1::3], *BROAD[2::3])])
def test_control_others_off_by_one_position(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = planning.Planner._read_all

    def shifted(self: planning.Planner, rows: Any, growth: dict[Block, int]) -> None:
        right(self, rows, growth)
        for reader, _ in rows:
            reader.table[1:-1, planning.TABLE.index("base")] += 1

    monkeypatch.setattr(planning.Planner, "_read_all", shifted)
    assert _worst(name, 2) > VISIBLE


@pytest.mark.parametrize("name", [*BROAD[1::3], *spared(*BROAD[::3], *BROAD[2::3])])
def test_control_the_others_newest_token_is_not_seen(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = planning.Planner._read_all

    def alone(self: planning.Planner, rows: Any, growth: dict[Block, int]) -> None:
        for row in rows:
            own = row[1].own
            is_desk = "." in own.name or not own.name
            right(self, [row], {own: growth[own]} if is_desk else growth)

    monkeypatch.setattr(planning.Planner, "_read_all", alone)
    assert _worst(name, 2) > VISIBLE


@pytest.mark.parametrize(
    "name", [*BROAD[2::3], *spared(*sorted({*BROAD[::3], *BROAD[1::3]} - {"llama4_text"}))]
)  # a moved key is in few of Llama 4's chunks
def test_control_a_moved_key_is_rotated_twice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Memory.move

    def twice(self: Memory, moves: Sequence[Move], backend: Backend) -> None:
        right(self, [replace(move, shift=2 * move.shift) for move in moves], backend)

    monkeypatch.setattr(Memory, "move", twice)
    assert _worst(name, 2) > VISIBLE


@pytest.mark.parametrize("name", YARN)
def test_control_the_factor_of_yarn_at_every_rotation(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right: Callable[..., Tensor] = rotary.apply_rotation
    monkeypatch.setattr(
        rotary, "apply_rotation", lambda *args: right(*args) * 1.1386
    )  # 0.1 ln 4 + 1
    assert _worst(name, 2) > VISIBLE


@pytest.mark.parametrize("name", WINDOWS)
def test_control_a_window_measured_inside_the_block(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = torch_backend.Bucket.visible

    def near_the_end(
        self: torch_backend.Bucket, window: int | None, chunk: int | None = None
    ) -> Tensor:
        seen = right(self, None)
        if window is None:
            return seen
        offset = self.offsets[:, :, None]
        last = torch.minimum(offset, self.highs[:, :, None] - 1)  # the block's last key
        return seen & (last - self.indices[:, None, :] < window)

    monkeypatch.setattr(torch_backend.Bucket, "visible", near_the_end)
    assert _worst(name, 2) > VISIBLE


@pytest.mark.parametrize("wrong", ["window", "chunk of the block"])
def test_control_a_chunk_that_does_not_begin_in_the_view(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the last keys, as many as a chunk has, nor chunks that are counted from the strip's beginning."""
    right = torch_backend.Bucket.visible

    def elsewhere(
        self: torch_backend.Bucket, window: int | None, chunk: int | None = None
    ) -> Tensor:
        if wrong == "window":
            return right(self, chunk)
        own = replace(self, positions=self.offsets, _visible={}, _masks={})
        return right(own, window, chunk)

    monkeypatch.setattr(torch_backend.Bucket, "visible", elsewhere)
    assert _worst("llama4_text", 2) > VISIBLE


def test_control_scaled_queries_that_count_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    right = adapting.query_scales  # type: ignore[attr-defined]

    def late(config: Any) -> tuple[QueryScale | None, ...]:
        return tuple(scale and replace(scale, first=0) for scale in right(config))

    monkeypatch.setattr(adapting, "query_scales", late)
    assert _worst("llama4_text", 2) > 1e-3


def test_control_a_partial_rotation_in_the_pairs_of_other_families(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gemma 4 rotates pairs (i, i + half of the head), not of the dims that rotate."""
    right = adapting.read_ropes  # type: ignore[attr-defined]

    def squeezed(*given: Any) -> tuple[tuple[Rope | None, ...], tuple[float, ...]]:
        ropes, gains = right(*given)
        found = []
        for rope in ropes:
            assert rope is not None
            fast = rope.inv_freq[rope.inv_freq > 0]
            found.append(Rope(fast, 2 * len(fast)))
        return tuple(found), gains

    monkeypatch.setattr(adapting, "read_ropes", squeezed)
    assert _worst("gemma4_text", 2) > VISIBLE
