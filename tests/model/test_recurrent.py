"""States of linear layers: hybrids whose rows fork, against Hugging Face's own network over each row's plain text.

All of it runs through the engine: views, pages and moves, and states in slots (`cache/states.py`). In float64 the worst of
logits of order 4 differs by 7e-14 to 4e-13, by the processor's products. A delta rule subtracts what a state predicts, so
rounding grows more here than elsewhere: in float32 Hugging Face's own differs from its float64 by 3.7e-5 on this story, ours
from Hugging Face's float32 by 5e-5. The controls miss by more than a tenth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from manyhands.attention.torch_backend import TorchBackend
from manyhands.cache.block import Block
from manyhands.cache.states import EMPTY, RowStates, StateBook
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.errors import UnsupportedModel
from manyhands.model.adapter import ModelAdapter
from manyhands.model.recurrent import StateCall, States, is_hybrid
from tests.covers import spared
from tests.engine.small import executor_of
from tests.model.double import DoublePrecision
from tests.model.families_zoo import _EXPERTS, _HEAD, _SIZES, some_tokens, tiny_model
from tests.model.test_conformance import VISIBLE
from tests.poison import poison

SLOTS = 40
FLOAT32, FLOAT64 = 1e-4, 2e-12
_HYBRID: dict[str, Any] = {
    **{**_SIZES, **_HEAD, "num_hidden_layers": 4},
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
}
_HYBRID_MOE: dict[str, Any] = {**_HYBRID, **_EXPERTS, "shared_expert_intermediate_size": 24}
CONFIGS: dict[str, Any] = {
    "qwen3_next": hf.Qwen3NextConfig(**_HYBRID_MOE, decoder_sparse_step=2),
    "qwen3_5_text": hf.Qwen3_5TextConfig(**_HYBRID),
    "qwen3_5_moe_text": hf.Qwen3_5MoeTextConfig(**_HYBRID_MOE),
}


def _taken_over(model: PreTrainedModel) -> ModelAdapter:
    return ModelAdapter(model)


class Forks:
    """Rows that grow and fork on one network."""

    def __init__(self, adapter: ModelAdapter, book: type[StateBook] = StateBook) -> None:
        self.adapter = adapter
        self.engine = Engine(adapter, memory_tokens=512, states=SLOTS)
        poison(executor_of(self.engine).memory)
        states = executor_of(self.engine).states
        assert states is not None
        self.states = states
        for store in self.states.stores.values():
            store.inputs[1:] = store.states[1:] = torch.nan
        self.book = self.engine.pool.states = book(SLOTS)
        self.words: dict[Block, list[int]] = {}
        self.views: dict[tuple[Block, ...], View] = {}
        self.stream = iter(some_tokens(400, seed=3).tolist())

    def feed(self, rows: Sequence[tuple[tuple[Block, ...], int | list[int]]]) -> list[Tensor]:
        """Logits of each row's last token. A count stands for new random tokens."""
        steps = []
        for view, given in rows:
            feed = [next(self.stream) for _ in range(given)] if isinstance(given, int) else given
            for block in view[:-1]:
                if block not in {other[-1] for other, _ in rows}:
                    block.freeze()
            steps.append(Row(self.views.setdefault(view, View(view)), tuple(feed)))
        logits = self.engine.forward(Step(steps))
        for row in steps:
            self.words.setdefault(row.view.own, []).extend(row.feed)
        return list(logits)

    def text(self, view: tuple[Block, ...]) -> list[int]:
        return [token for block in view for token in self.words[block]]


def story(forks: Forks) -> Iterator[tuple[list[int], Tensor]]:
    """Texts so far and logits at their ends: a prompt in chunks, a fork, a fork in a fork, a join that is encoded anew."""
    prompt, a, b, c, d, e, join = (Block(name) for name in "pabcdej")
    passes: list[Sequence[tuple[tuple[Block, ...], int]]] = [
        [((prompt,), 6)],
        [((prompt,), 1)],
        [((prompt,), 70)],  # more than a chunk of the delta rule
        # one token more of the prompt, and forks behind it in the very pass
        [((prompt,), 1), ((prompt, a), 4), ((prompt, b), 1), ((prompt, c), 4)],
        *[[((prompt, a), 1), ((prompt, b), 1), ((prompt, c), 1)]] * 3,
        [((prompt, a, d), 2), ((prompt, c), 1), ((prompt, a, e), 1)],
        *[[((prompt, a, d), 1), ((prompt, a, e), 3)]] * 2,
    ]
    for rows in passes:
        logits = forks.feed(rows)
        yield from ((forks.text(view), own) for (view, _), own in zip(rows, logits, strict=True))
    again = [*forks.words[b], *forks.words[c]]
    view = (prompt, join)
    yield forks.text((prompt,)) + again, forks.feed([(view, again)])[0]
    (own,) = forks.feed([(view, 1)])
    yield forks.text(view), own


def worst(name: str, double: bool, book: type[StateBook] = StateBook) -> float:
    """Worst logit of the story."""
    with DoublePrecision() if double else nullcontext(), torch.no_grad():
        plain, taken = (tiny_model(CONFIGS[name]) for _ in range(2))
        if double:
            plain, taken = plain.double(), taken.double()
            if plain._can_set_experts_implementation():
                plain.set_experts_implementation("eager")
        errors = [
            (plain(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1] - own).abs().max()
            for text, own in story(Forks(_taken_over(taken), book))
        ]
    assert len(errors) == 25
    return float(torch.stack(errors).max())  # NaN if one of them is


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("double", [True, *spared(False)], ids=["float64", "float32"])
def test_rows_that_fork(name: str, double: bool) -> None:
    assert worst(name, double) < (FLOAT64 if double else FLOAT32)


class Anew(StateBook):
    """A mistake: a row that forks begins with the state of no text."""

    def _source(self, row: Row, growth: Any, targets: Any) -> int:
        return super()._source(row, growth, targets) if row.view.own.num_tokens else EMPTY


class Early(StateBook):
    """A mistake: a row that forks in the pass that feeds the text before it begins with the state before that feed."""

    def _source(self, row: Row, growth: Any, targets: Any) -> int:
        return super()._source(row, {}, targets)


class Stale(StateBook):
    """A mistake: a row goes on from the state before its last feed."""

    def _tidy(self, earlier: Any) -> None:
        """All states stay."""

    def _source(self, row: Row, growth: Any, targets: Any) -> int:
        right = super()._source(row, growth, targets)
        self._before = {**getattr(self, "_before", {})}
        before, self._before[row.view.own] = self._before.get(row.view.own, right), right
        return int(before)


@pytest.mark.parametrize("mistake", [Anew, Early, Stale])
def test_control_mistakes_show(mistake: type[StateBook]) -> None:
    assert worst("qwen3_5_text", False, mistake) > VISIBLE


def test_a_pass_that_fails_has_changed_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails in the last layer, when the linear layers have written; the same row is fed again."""

    def failing(*_: Any) -> Tensor:
        raise RuntimeError("out of power")

    undisturbed, forks = (Forks(_taken_over(tiny_model(CONFIGS["qwen3_5_text"]))) for _ in range(2))
    tokens = some_tokens(9).tolist()
    view = (Block(),)
    with torch.no_grad():
        undisturbed.feed([(view, tokens[:6])])
        (expected,) = undisturbed.feed([(view, tokens[6:])])
        view = (Block(),)
        forks.feed([(view, tokens[:6])])
        with monkeypatch.context() as patch:
            patch.setattr(TorchBackend, "attend", failing)
            with pytest.raises(RuntimeError, match="out of power"):
                forks.feed([(view, tokens[6:])])
        written = forks.states.stores[0].states[1:].isnan().flatten(1).any(1)
        assert int((~written).sum()) == 2, "the layer has written"
        (again,) = forks.feed([(view, tokens[6:])])
    assert torch.equal(expected, again)


def test_a_row_that_comes_back_computes_its_state_anew() -> None:
    """In one feed what came in many, beside a row of another length; and a state costs what it says."""
    one, many = (Forks(_taken_over(tiny_model(CONFIGS["qwen3_next"]))) for _ in range(2))
    tokens, (view, other, block) = some_tokens(75).tolist(), ((Block(),), Block(), Block())
    with torch.no_grad():
        for begin, end in ((0, 66), (66, 67), (67, 68), (68, 75)):
            many.feed([(view, tokens[begin:end])])
        one.feed([((other,), tokens[:5]), ((block,), tokens)])
    at, came = many.book.slot(view[0]), one.book.slot(block)
    for layer, store in many.states.stores.items():
        back = one.states.stores[layer]
        assert (store.states[at] - back.states[came]).abs().max() < FLOAT32
        assert (store.inputs[at] - back.inputs[came]).abs().max() < FLOAT32
    numbers = 4 * 8 * 12 + (2 * 2 * 8 + 4 * 12) * 3
    assert list(many.states.stores) == [0, 2]
    assert (many.states.num_slots, many.states.slot_bytes) == (SLOTS, 2 * 4 * numbers)


def test_a_linear_layer_does_not_run_without_its_states() -> None:
    """Else rows that lie one behind another would be read as one text."""
    adapter = _taken_over(tiny_model(CONFIGS["qwen3_5_text"]))
    with pytest.raises(UnsupportedModel, match="without the slots of its rows"):
        adapter.forward(torch.tensor([1, 2]), None, lambda q, k, v, call: v)


def test_states_of_other_tokens_are_refused() -> None:
    adapter = _taken_over(tiny_model(CONFIGS["qwen3_5_text"]))
    call = StateCall.of(States(adapter.model, 1), RowStates((0, 3), (EMPTY,), (1,)))
    with pytest.raises(ValueError, match="of 3 tokens, and the pass has 2"):
        adapter.forward(torch.tensor([1, 2]), None, lambda q, k, v, call: v, call)


@pytest.mark.parametrize(
    ("indptr", "sources", "targets", "said"),
    [
        ((0, 1), (0, 0), (1,), "1 rows have 2 sources"),
        ((0, 1, 1), (0, 0), (1, 2), "fed nothing"),
        ((0, 1, 2), (0, 0), (1, 1), "in one slot"),
        ((0, 1), (1,), (1,), r"slots \[1\] are read"),
        ((0, 1, 2), (0, 1), (2, 1), r"slots \[1\] are read"),
        ((0, 1), (1,), (EMPTY,), r"slots \[0\] are read"),
    ],
)
def test_slots_that_cannot_be(
    indptr: tuple[int, ...], sources: tuple[int, ...], targets: tuple[int, ...], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        RowStates(indptr, sources, targets)


def test_slots_that_are_not_there() -> None:
    states = States(tiny_model(CONFIGS["qwen3_5_text"]), 2)
    for rows in (RowStates((0, 1), (0,), (3,)), RowStates((0, 1), (-1,), (1,))):
        with pytest.raises(ValueError, match="there are 0 to 2"):
            StateCall.of(states, rows)


def test_which_networks_have_states_that_are_known() -> None:
    assert all(is_hybrid(config) for config in CONFIGS.values())
    assert not is_hybrid(hf.Qwen3Config())
    with pytest.raises(UnsupportedModel, match="'jamba' are not known here"):
        States(tiny_model(hf.Qwen3Config(**_SIZES)).apply(_named_jamba), 1)


def _named_jamba(module: Any) -> None:
    if hasattr(module, "config"):
        module.config.model_type = "jamba"
