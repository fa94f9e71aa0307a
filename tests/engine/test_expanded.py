"""Prompts of networks with latents in the expanded form, against the absorbed form of the same rows.

Logits are of order 4. Both forms make the same sums in another order, a few dozen roundings of 2e-7 in float32 and
of 2e-16 in float64, as in `tests/model/test_conformance.py`, whose tolerances these are. A wrong page or order of dims is off by a tenth at least.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from manyhands.attention.attend import LatentForms
from manyhands.attention.store import LayerStore
from manyhands.attention.torch_backend import TorchBackend
from manyhands.cache.block import Block
from manyhands.cache.plan import Plan, over_copied_pages
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine import capacities, expanded
from manyhands.engine.engine import Engine
from manyhands.engine.graphs import GraphedPasses
from manyhands.model.adapter import ModelAdapter
from manyhands.model.latent import Expansion, expanded_shape
from manyhands.model.settings import ModelSettings
from tests.cache.test_plan import random_step
from tests.covers import examples
from tests.engine.small import executor_of
from tests.engine.test_graphs import Again
from tests.model.families_zoo import VOCABULARY, repeating_models, some_tokens, tiny_models
from tests.model.test_conformance import FLOAT32, FLOAT64, VISIBLE
from tests.poison import poison

ZOO = {**tiny_models(), **repeating_models()}
BOTH = ["deepseek_v2", "deepseek_v3"]
NEVER = 10**9  # tokens that no row feeds
LAYERS = 2


class Pen:
    """Steps of an engine, with tokens that are the same every time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.tokens = iter(some_tokens(400).tolist())
        self.logits: list[Tensor] = []

    def feed(self, *rows: tuple[View, int]) -> None:
        """One pass, in which each view is fed so many tokens."""
        step = Step(Row(view, tuple(next(self.tokens) for _ in range(n))) for view, n in rows)
        self.logits.append(self.engine.forward(step).clone())


Scene = Callable[[Pen], None]


def lone(pen: Pen) -> None:
    pen.feed((View([Block()]), 40))


def behind_a_history(pen: Pen) -> None:
    history, own = Block(), Block()
    pen.feed((View([history]), 37))
    history.freeze()
    pen.feed((View([history, own]), 23))


def beside_decoding_rows(pen: Pen) -> None:
    """Prompts do not stand one behind the other: a row that writes is between them."""
    prefix, old, *new = (Block() for _ in range(5))
    pen.feed((View([prefix]), 37), (View([old]), 3))
    writing = [View([prefix, new[2]]), View([old])]
    pen.feed(
        (View([prefix, new[0]]), 21), (writing[0], 1), (View([prefix, new[1]]), 6), (writing[1], 1)
    )
    pen.feed(*((view, 1) for view in writing))


def in_portions(pen: Pen) -> None:
    view = View([Block()])
    for size in (17, 20, 9, 2):
        pen.feed((view, size))


def at_other_positions(pen: Pen) -> None:
    """Two rows that read each other's new tokens, and two blocks in two orders."""
    first, second, *own = (Block() for _ in range(4))
    pen.feed((View([first]), 19), (View([second]), 30))
    views = [View([first, second, own[1], own[0]]), View([second, first, own[0], own[1]])]
    pen.feed((views[0], 8), (views[1], 18))
    pen.feed((views[0], 1), (views[1], 5))


def beside_what_is_not_read(pen: Pen) -> None:
    """Three finished blocks on one strip, of which a prompt reads the outer ones, and another the first."""
    blocks = [Block() for _ in range(3)]
    pen.feed((View([blocks[0]]), 21))
    for n in (1, 2):
        blocks[n - 1].freeze()
        pen.feed((View(blocks[: n + 1]), 9 + n))
    blocks[2].freeze()
    pen.feed((View([*blocks, Block()]), 1))
    pen.feed((View([blocks[0], blocks[2], Block()]), 6), (View([blocks[0], Block()]), 5))


SCENES: list[Scene] = [
    lone,
    behind_a_history,
    beside_decoding_rows,
    in_portions,
    at_other_positions,
    beside_what_is_not_read,
]


def engine_of(
    name: str, *, gain: float | None = None, double: bool = False, **choices: Any
) -> Engine:
    model = ZOO[name]()
    adapter = ModelAdapter(model.double() if double else model)
    if gain is not None:
        adapter.gains = (gain,) * adapter.num_layers
    chosen = ModelSettings(**{"backend": "torch", "memory_tokens": 1024, **choices})
    engine = Engine(adapter, settings=chosen)
    poison(executor_of(engine).memory)
    return engine


def told(engine: Engine, scene: Scene) -> Tensor:
    pen = Pen(engine)
    scene(pen)
    return torch.cat(pen.logits)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[LayerStore]:
    """The stores that were made for prompts; four tokens are a prompt."""
    monkeypatch.setattr(expanded, "LEAST", 4)
    stores: list[LayerStore] = []
    make = expanded.expanded_store

    def noted(store: LayerStore, slots: Tensor, forms: LatentForms) -> LayerStore:
        stores.append(make(store, slots, forms))
        return stores[-1]

    monkeypatch.setattr(expanded, "expanded_store", noted)
    return stores


def worst(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def absorbed(scene: Scene, name: str, **choices: Any) -> Tensor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expanded, "LEAST", NEVER)
        return told(engine_of(name, **choices), scene)


# -- the same logits -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("scene", SCENES)
def test_prompts_have_the_same_logits_in_both_forms(
    name: str, scene: Scene, made: list[LayerStore]
) -> None:
    want = absorbed(scene, name)
    assert not made
    found = told(engine_of(name), scene)
    assert made
    assert worst(found, want) < FLOAT32
    assert want.std() > VISIBLE


@pytest.mark.parametrize("name", BOTH)
def test_yarns_gain_is_on_rotated_dims_in_both_forms(name: str, made: list[LayerStore]) -> None:
    """In float32 it is next to 1, so another one is given."""
    want = absorbed(beside_decoding_rows, name, gain=1.5)
    assert worst(told(engine_of(name, gain=1.5), beside_decoding_rows), want) < FLOAT32
    assert worst(told(engine_of(name), beside_decoding_rows), want) > VISIBLE


def test_queries_scaled_by_their_position(made: list[LayerStore]) -> None:
    want = absorbed(at_other_positions, "mistral4", double=True)
    assert worst(told(engine_of("mistral4", double=True), at_other_positions), want) < FLOAT64
    assert made


@settings(max_examples=examples(25, of=100), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_random_views(seed: int) -> None:
    """Blocks in any order, and beside each other, are fed by rows of all sizes; some are finished and moved."""

    def walk(pen: Pen) -> None:
        rng = random.Random(seed)
        blocks: list[Block] = []
        views: list[View] = []
        for _ in range(5):
            step = random_step(rng, blocks, views)
            known = [Row(r.view, tuple(t % VOCABULARY for t in r.feed)) for r in step.rows]
            pen.logits.append(pen.engine.forward(Step(known)).clone())
            for block in blocks:
                if rng.random() < 0.2:
                    block.freeze()

    want = absorbed(walk, "deepseek_v3", double=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expanded, "LEAST", 2)
        found = told(engine_of("deepseek_v3", double=True), walk)
    assert worst(found, want) < FLOAT64


# -- controls --------------------------------------------------------------------------------------


def test_control_one_page_exchanged_is_seen(
    made: list[LayerStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    def exchanged(plan: Plan) -> tuple[Plan, Any]:
        plan, pages = over_copied_pages(plan)
        pages[[0, 1]] = pages[[1, 0]]
        return plan, pages

    want = absorbed(behind_a_history, "deepseek_v3")
    monkeypatch.setattr(expanded, "over_copied_pages", exchanged)
    assert not worst(told(engine_of("deepseek_v3"), behind_a_history), want) < VISIBLE


def test_control_rotated_dims_behind_the_others_are_seen(
    made: list[LayerStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    want = absorbed(lone, "deepseek_v3")
    monkeypatch.setattr(Expansion, "expanded_queries", lambda _, q: q)
    assert worst(told(engine_of("deepseek_v3"), lone), want) > VISIBLE


def test_control_a_row_in_the_place_of_another_is_seen(
    made: list[LayerStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    want = absorbed(beside_decoding_rows, "deepseek_v3")
    rows_of = expanded.ExpandedForm.rows_of

    def turned(form: expanded.ExpandedForm, plan: Plan) -> expanded.ExpandedRows | None:
        rows = rows_of(form, plan)
        return rows and replace(rows, tokens=rows.tokens[::-1].copy())

    monkeypatch.setattr(expanded.ExpandedForm, "rows_of", turned)
    assert worst(told(engine_of("deepseek_v3"), beside_decoding_rows), want) > VISIBLE


# -- which rows ------------------------------------------------------------------------------------


def test_prompts_alone_are_read_by_no_absorbed_call(
    made: list[LayerStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of("deepseek_v2")
    backend: Any = executor_of(engine).backend

    def none(*_: object) -> None:
        raise AssertionError("nothing is left to attend to in the absorbed form")

    monkeypatch.setattr(backend, "attend", none)
    Pen(engine).feed((View([Block()]), 5), (View([Block()]), 4))
    assert len(made) == LAYERS


def test_the_copy_has_the_pages_that_prompts_read(made: list[LayerStore]) -> None:
    """Three pages of 16 for a prefix of 37 tokens and two prompts' own pages; no page of the decoding rows."""
    told(engine_of("deepseek_v2"), beside_decoding_rows)
    shape = expanded_shape(ZOO["deepseek_v2"].args[0])
    first, second = made[0], made[LAYERS]
    assert len(first.keys) == 3 * 16
    assert second.keys.shape[1:] == (shape.num_heads, shape.head_dim)
    assert second.values.shape[1:] == (shape.num_heads, shape.value_dim)
    assert len(second.keys) == (3 + 2 + 1) * 16
    assert len(made) == 2 * LAYERS


def test_more_than_a_layer_may_take_stays_as_it_is(
    made: list[LayerStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    want = absorbed(in_portions, "deepseek_v2")
    token = expanded_shape(ZOO["deepseek_v2"].args[0]).numbers_per_token * 4
    monkeypatch.setattr(expanded, "MOST_BYTES", 2 * 16 * token)
    found = told(engine_of("deepseek_v2"), in_portions)
    assert [len(store.keys) for store in made] == [32] * LAYERS
    assert worst(found, want) < FLOAT32


def test_a_device_that_is_full_keeps_latents_as_they_are(
    made: list[LayerStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two pages of 16 latents, and what making them takes once more."""
    token = expanded_shape(ZOO["deepseek_v2"].args[0]).numbers_per_token * 4
    for room, num_made in ((2 * 32 * token, LAYERS), (2 * 32 * token - 1, 0)):
        monkeypatch.setattr(expanded, "room_of_passes", lambda device, room=room: room)
        made.clear()
        Pen(engine_of("deepseek_v2")).feed((View([Block()]), 20))
        assert len(made) == num_made


def test_networks_without_latents_are_not_concerned(made: list[LayerStore]) -> None:
    engine = engine_of("llama")
    assert executor_of(engine).passes.expanded is None
    Pen(engine).feed((View([Block()]), 40))
    assert not made


def test_the_reference_stays_with_latents(made: list[LayerStore]) -> None:
    assert executor_of(engine_of("deepseek_v2", backend="reference")).passes.expanded is None


def test_plain_torch_has_a_backend_of_its_own_for_prompts() -> None:
    """The other one remembers, from pass to pass, how groups were put together."""
    passes = executor_of(engine_of("deepseek_v2")).passes
    assert passes.expanded is not None
    assert isinstance(passes.expanded.backend, TorchBackend)
    assert passes.expanded.backend is not passes.backend


# -- kernels, through Triton's interpreter or on the GPU -------------------------------------------


def kernels_engine(monkeypatch: pytest.MonkeyPatch, *, serves: bool) -> Engine:
    from manyhands.attention import fitting

    monkeypatch.setattr(fitting, "serves_expanded", lambda *_: serves)
    monkeypatch.setattr(expanded, "MUCH", 0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    adapter = ModelAdapter(ZOO["deepseek_v3"]().to(device))  # type: ignore[arg-type]
    engine = Engine(adapter, settings=ModelSettings(backend="triton", memory_tokens=512))
    poison(executor_of(engine).memory)
    return engine


@pytest.mark.parametrize("serves", [True, False])
def test_kernels_say_whether_they_serve(
    serves: bool, made: list[LayerStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = kernels_engine(monkeypatch, serves=serves)

    def short(pen: Pen) -> None:
        prefix = Block()
        pen.feed((View([prefix]), 5))
        pen.feed((View([prefix, Block()]), 1), (View([prefix, Block()]), 4))

    found = told(engine, short).cpu()
    assert bool(made) == serves
    assert worst(found, absorbed(short, "deepseek_v3")) < FLOAT32


def test_recorded_passes_attend_in_the_absorbed_form(
    made: list[LayerStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens times keys are counted: 25 of the first pass, which is not recorded, and 12, 14 and 16 of those behind it."""
    monkeypatch.setattr(expanded, "LEAST", 1)
    engine = kernels_engine(monkeypatch, serves=True)
    monkeypatch.setattr(expanded, "MUCH", 17)
    executor: Any = executor_of(engine)
    executor.passes = GraphedPasses(executor.adapter, executor.memory, executor.backend, Again())

    def steps(pen: Pen) -> None:
        prefix = Block()
        views = [View([prefix, Block()]) for _ in range(2)]
        pen.feed((View([prefix]), 5))
        for _ in range(3):
            pen.feed(*((view, 1) for view in views))

    found = told(engine, steps).cpu()
    counts = executor.passes.counts
    assert counts.replayed + counts.followed > 0
    assert len(made) == LAYERS, "the first pass"
    want = absorbed(steps, "deepseek_v3")
    assert worst(found, want) < FLOAT32


def test_a_pass_with_much_of_prompts_is_never_recorded(
    made: list[LayerStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it comes, and nothing is expanded for less."""
    monkeypatch.setattr(expanded, "LEAST", 1)
    engine = kernels_engine(monkeypatch, serves=True)
    executor: Any = executor_of(engine)
    executor.passes = passes = GraphedPasses(
        executor.adapter, executor.memory, executor.backend, Again()
    )
    for much, num_made in ((9, 4 * LAYERS), (10, 0)):
        monkeypatch.setattr(expanded, "MUCH", much)
        made.clear()
        for _ in range(4):
            Pen(engine).feed((View([Block()]), 3))
        assert len(made) == num_made
        assert (passes.counts.recorded > 0) == (num_made == 0)


def test_kernels_of_prompts_are_loaded_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """For prompts whose heads are split, for such as leave outputs, and for several of which some leave outputs."""
    engine = kernels_engine(monkeypatch, serves=True)
    executor: Any = executor_of(engine)
    form = executor.passes.expanded
    tiling = {"large_rows": 16, "most_small_rows": 0, "num_processors": 2, "least_left": 8}
    form.backend.tiling = replace(form.backend.tiling, **tiling)
    sizes = [[5], [40], [40, 5]]
    assert [len(each) for each in expanded._LOADED] == [1, 1, 2]
    monkeypatch.setattr(expanded, "_LOADED", sizes)
    lengths: list[int] = []
    leaving: list[bool] = []
    usual = form.backend.attend

    def noted(store: Any, q: Tensor, prepared: Any, call: Any) -> Tensor:
        assert len(store.keys) < len(q) + 2 * engine.pool.page_size, "no page more than they fill"
        lengths.append(len(q))
        leaving.append(prepared.capacity.end_merged > 0)
        out: Tensor = usual(store, q, prepared, call)
        return out

    monkeypatch.setattr(form.backend, "attend", noted)
    passes = GraphedPasses(executor.adapter, executor.memory, executor.backend, Again())
    passes.recordings.expanded = form
    monkeypatch.setattr(capacities, "uncommon_capacities", lambda tiling: [])
    monkeypatch.setattr(capacities, "AHEAD", 2)
    passes.record_ahead(engine.pool.page_size, lambda done, whole: None, 2048)
    assert lengths[-3:] == [5, 40, 45], "behind those that are compiled at once, on a GPU"
    assert leaving[-3:] == [False, False, True], (
        "tokens that have one partial beside those that have two"
    )
    monkeypatch.setattr(expanded, "room_of_passes", lambda device: 0)
    lengths.clear()
    form.load(executor.memory, engine.pool.page_size)
    assert not lengths
