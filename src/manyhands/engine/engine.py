"""The engine: the face that everything above and outside talks to.

Two ways in. The low one drives blocks and rows by hand:

    engine = Engine.load("Qwen/Qwen3-8B")
    notes, alice, bob = Block("notes"), Block("alice"), Block("bob")
    logits = engine.forward(Step([
        Row(View([notes]), engine.text.encode("A shared beginning.")),
        Row(View([notes, bob, alice]), engine.text.encode("I think")),
        Row(View([notes, alice, bob]), engine.text.encode("Yes, and")),
    ]))                                       # [3, vocab]; every row has seen the others' words

The high one runs strategies, generators that ask for such steps: `run`, `run_all`, `stream`. Many at
a time share each forward pass, and each gets what it would get alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from manyhands.attention.attend import Backend, LayerCall
from manyhands.attention.reference import ReferenceBackend
from manyhands.attention.rotary import Turns
from manyhands.attention.torch_backend import TorchBackend
from manyhands.cache.pages import Move, PagePool
from manyhands.cache.plan import Plan, Planner
from manyhands.cache.step import Step
from manyhands.engine.restore import restore
from manyhands.engine.sampling import choose
from manyhands.engine.scheduler import Run, Scheduler
from manyhands.errors import InvalidRequest
from manyhands.model.adapter import ModelAdapter
from manyhands.model.loading import Weights, load_adapter
from manyhands.model.memory import Memory, default_memory_tokens
from manyhands.replay.trace import Line, Trace
from manyhands.strategies.base import Answer, Event, Strategy
from manyhands.text import Text

BACKENDS: Mapping[str, Callable[[], Backend]] = MappingProxyType(
    {"reference": ReferenceBackend, "torch": TorchBackend}
)
PAGE_SIZE = 16  # tokens; small, because a step of a team is a few dozen tokens long
MAX_TOKENS_PER_PASS = 8192  # what bounds the activations of one pass


class Engine:
    """One model, one memory, any number of runs. Not thread-safe: drive it from one thread."""

    def __init__(
        self,
        adapter: ModelAdapter,
        tokenizer: Any = None,
        *,
        backend: str = "auto",
        memory_tokens: int | None = None,
    ) -> None:
        """Take an adapter that is loaded already; `Engine.load` is the usual door."""
        self.adapter = adapter
        self.text = Text(tokenizer, _eos_ids(adapter)) if tokenizer is not None else None
        self.backend: Backend = _backend(backend)
        num_tokens = memory_tokens or default_memory_tokens(adapter)
        self.pool = PagePool(max(1, num_tokens // PAGE_SIZE), PAGE_SIZE)
        self.memory = Memory.for_model(adapter, self.pool.num_slots)
        self.planner = Planner(self.pool, adapter.max_positions)
        self._moves: deque[Move] = deque()  # planned, not made yet
        self._scheduler = Scheduler(self._predict, self.pool, MAX_TOKENS_PER_PASS)

    @classmethod
    def load(
        cls,
        model: str | Path | Any,
        *,
        device: str = "auto",
        dtype: str = "auto",
        backend: str = "auto",
        weights: Weights = "auto",
        memory_tokens: int | None = None,
        context: int | None = None,
        downloads: bool = False,
    ) -> Engine:
        """Load a Hugging Face model by hub id, folder or object, and make an engine of it.

        `weights="dummy"` takes the real configuration and random weights. `context` bounds the
        longest view (default: the model's own limit). `downloads` shows the progress of what is
        fetched from the hub. Raises ModelNotFound, UnsupportedModel,
        InvalidRequest, OutOfMemory.
        """
        _backend(backend)  # a wrong name should not cost a load
        adapter, tokenizer = load_adapter(
            model, device=device, dtype=dtype, weights=weights, context=context, downloads=downloads
        )
        return cls(adapter, tokenizer, backend=backend, memory_tokens=memory_tokens)

    @torch.inference_mode()
    def forward(self, step: Step) -> Tensor:
        """Feed all rows of `step`, then let all attend: logits [rows, vocab] of their last tokens.

        Each row's feed is appended to its own block. If this raises, no block has changed.
        """
        with self._feeding(step) as plan:
            return self._run(plan)

    def run(self, strategy: Strategy) -> Answer:
        """Run a strategy to its end (together with whatever was submitted before)."""
        run = self.submit(strategy)
        try:
            while not run.done:
                self.step()
        finally:
            if not run.done:
                self.cancel(run)
        return run.result()

    def run_all(self, strategies: Iterable[Strategy]) -> list[Answer]:
        """Run many strategies, all in the same forward passes; the first error ends them all."""
        runs = [self.submit(strategy) for strategy in strategies]
        try:
            while not all(run.done for run in runs):
                self.step()
                for run in runs:
                    if run.error is not None:
                        raise run.error
        finally:
            for run in runs:
                if not run.done:
                    self.cancel(run)
        return [run.result() for run in runs]

    def stream(self, strategy: Strategy) -> Iterator[Event | Answer]:
        """Run a strategy and yield what it reports as it happens; the Answer comes last.

        Closing the iterator cancels the run and frees its blocks.
        """
        run = self.submit(strategy)
        try:
            while True:
                while run.events:
                    yield run.events.popleft()
                if run.done:
                    break
                self.step()
            yield run.result()
        finally:
            if not run.done:
                self.cancel(run)

    def restore(
        self, strategy: Strategy, trace: Trace, *, write: Callable[[Line], None] | None = None
    ) -> Strategy:
        """`strategy`, made anew, as one that goes on where `trace`, a recorded run of it, ends.

        See `engine/restore.py`. `strategies.described.strategy_from(trace.header, ...)` makes it.
        `write` is given the lines that continue the trace.
        """
        return restore(strategy, trace, self.adapter, self.memory, self.pool, write=write)

    def submit(self, strategy: Strategy) -> Run:
        """Begin a strategy without waiting for it; `step` moves it on with all others."""
        return self._scheduler.submit(strategy)

    def step(self) -> bool:
        """One forward pass for every live run; False when none is left."""
        return self._scheduler.step()

    def cancel(self, run: Run) -> None:
        """End a run; its blocks are freed and the others' tokens do not change."""
        self._scheduler.cancel(run)

    @torch.inference_mode()
    def _predict(self, step: Step) -> tuple[int, ...]:
        with self._feeding(step) as plan:
            return choose(self._run(plan), [row.choice for row in step.rows])

    @contextmanager
    def _feeding(self, step: Step) -> Iterator[Plan]:
        """Make room for all feeds; they join their blocks if what is done meanwhile succeeds."""
        self._check_tokens(step)
        plan = self.planner.plan(step)
        self._moves.extend(plan.moves)
        try:
            yield plan
        except BaseException:
            self.pool.undo((row.view.own, len(row.feed)) for row in step.rows)
            raise
        for row in step.rows:
            row.view.own.tokens.extend(row.feed)

    def _run(self, plan: Plan) -> Tensor:
        device = self.adapter.device
        while self._moves:  # one by one: a move that fails can be made again, one forgotten cannot
            self.memory.move((self._moves[0],))
            self._moves.popleft()
        attend = _Pass(plan, self.memory, self.backend, device)
        token_ids = torch.as_tensor(plan.token_ids, device=device)
        keep = torch.as_tensor(plan.last, device=device)
        return self.adapter.forward(token_ids, keep, attend)

    def _check_tokens(self, step: Step) -> None:
        size = self.adapter.vocab_size
        for row in step.rows:
            choice = row.choice
            for use, tokens in (
                ("fed", row.feed),
                ("allowed", choice.allowed or ()),
                ("forbidden", choice.forbidden),
            ):
                if tokens and not 0 <= min(tokens) <= max(tokens) < size:
                    wrong = next(token for token in tokens if not 0 <= token < size)
                    raise InvalidRequest(
                        f"token id {wrong} is {use}, and the model's vocabulary has {size} tokens",
                        hint="Encode the text with this model's own tokenizer.",
                    )
            if len(choice.forbidden) == size:
                raise InvalidRequest(
                    "no token is left to choose from: the whole vocabulary is forbidden",
                    hint="Forbid fewer tokens.",
                )


class _Pass:
    """What the network's layers call during one forward pass: write all rows, then read."""

    def __init__(self, plan: Plan, memory: Memory, backend: Backend, device: torch.device) -> None:
        self.memory = memory
        self.backend = backend
        self.slots = torch.as_tensor(plan.slots, device=device)
        self.turns = Turns(torch.as_tensor(plan.angles, device=device))
        self.prepared = backend.prepare(plan, device)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> Tensor:
        layer, memory = call.layer, self.memory
        memory.write(layer, k, v, self.slots, self.turns)
        return self.backend.attend(
            q, memory.keys[layer], memory.values[layer], self.prepared, call, memory.ropes[layer]
        )


def _eos_ids(adapter: ModelAdapter) -> tuple[int, ...]:
    """What ends a turn by the model's generation configuration: none, one or several ids."""
    found = getattr(adapter.model.generation_config, "eos_token_id", None)
    if found is None:
        return ()
    return (found,) if isinstance(found, int) else tuple(found)


def _backend(name: str) -> Backend:
    """The backend of this name; `auto` is the fastest one that is exact on this machine."""
    name = "torch" if name == "auto" else name
    if name not in BACKENDS:
        raise InvalidRequest(
            f"there is no attention backend {name!r}", hint=f"Known: auto, {', '.join(BACKENDS)}."
        )
    return BACKENDS[name]()
