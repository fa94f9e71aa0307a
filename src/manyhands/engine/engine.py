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

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyhands.cache.block import Block
from manyhands.cache.chunks import in_chunks
from manyhands.cache.pages import PagePool
from manyhands.cache.plan import Plan
from manyhands.cache.planner import Planner
from manyhands.cache.prefixes import PrefixTree
from manyhands.cache.step import Row, Step
from manyhands.engine.backends import check_backend, choose_backend, make_passes
from manyhands.engine.past import Past
from manyhands.engine.rebuild import rebuild_past
from manyhands.engine.restore import restore
from manyhands.engine.run import Run
from manyhands.engine.sampling import choose
from manyhands.engine.scheduler import Scheduler
from manyhands.engine.usage import Usage, UsageCounted, usage_of, usage_of_each
from manyhands.errors import InvalidRequest
from manyhands.model.adapter import ModelAdapter
from manyhands.model.fusion import FuseReport, check_fuse, fuse_modules
from manyhands.model.loading import load_adapter
from manyhands.model.memory import (
    Memory,
    about_memory,
    default_memory_tokens,
    free_bytes,
    token_bytes,
)
from manyhands.model.quantise import check_quantise
from manyhands.model.settings import Fuse, Quantise, Weights
from manyhands.replay.trace import Line, Trace
from manyhands.strategies.base import Answer, Event, Strategy
from manyhands.text import Text

MAX_TOKENS_PER_PASS = 8192  # what bounds the activations of one pass
# Runs are let in until what they might need at most comes to so much of the memory.
OVERCOMMIT = 1.5


class Engine:
    """One model, one memory, any number of runs. Not thread-safe: drive it from one thread."""

    def __init__(
        self,
        adapter: ModelAdapter,
        tokenizer: Any = None,
        *,
        backend: str = "auto",
        memory_tokens: int | None = None,
        graphs: bool = True,
        overcommit: float = OVERCOMMIT,
    ) -> None:
        """Take an adapter that is loaded already; `Engine.load` is the usual door.

        `overcommit`: runs are admitted until their reservations come to so many times the memory;
        those that then do not fit leave for a while and come back (`engine/guests.py`). 1: never.
        """
        self.adapter = adapter
        self.fused = FuseReport(left=("the adapter came as it is",))
        self.text = Text(tokenizer, _eos_ids(adapter)) if tokenizer is not None else None
        chosen = choose_backend(backend, adapter)
        self.backend, self.backend_reason = chosen.backend, chosen.reason
        free = free_bytes(adapter.device)
        num_tokens = memory_tokens or default_memory_tokens(adapter)
        num_pages = max(1, num_tokens // chosen.page_size)
        self.about_memory = about_memory(adapter, num_pages, chosen.page_size, free)
        # Memory before its accounting: it says what is too much.
        self.memory = Memory.for_model(adapter, num_pages * chosen.page_size)
        self.pool = PagePool(num_pages, chosen.page_size)
        self.passes = make_passes(adapter, self.memory, self.backend, graphs=graphs)
        self.planner = Planner(self.pool, adapter.max_positions)
        self.prefixes = PrefixTree(self.pool)  # beginnings of prompts, kept while there is room
        self.max_tokens_per_pass = MAX_TOKENS_PER_PASS
        self._usage = Usage()
        # The passes of the newest step, until they are charged for.
        self._newest: list[tuple[Plan, Step, Usage]] = []
        self._token_bytes = token_bytes(adapter)
        self._scheduler = Scheduler(
            self._predict,
            self.pool,
            self.max_tokens_per_pass,
            self._usage_of_each,
            rebuild=self._rebuild,
            overcommit=overcommit,
        )

    @classmethod
    def load(
        cls,
        model: str | Path | Any,
        *,
        device: str = "auto",
        dtype: str = "auto",
        backend: str = "auto",
        weights: Weights = "auto",
        quantise: Quantise = "auto",
        fuse: Fuse = "auto",
        memory_tokens: int | None = None,
        context: int | None = None,
        downloads: bool = False,
        overcommit: float = OVERCOMMIT,
    ) -> Engine:
        """Load a Hugging Face model by hub id, folder or object, and make an engine of it.

        `weights="dummy"` takes the real configuration and random weights. `context` bounds the
        longest view (default: the model's own limit). `downloads` shows the progress of what is
        fetched from the hub. `quantise` and `fuse`: see `load_adapter` and `model/fusion.py`.
        `overcommit`: see the constructor. Raises ModelNotFound, UnsupportedModel, InvalidRequest,
        OutOfMemory.
        """
        check_backend(backend)  # a wrong name should not cost a load
        check_quantise(quantise)
        check_fuse(fuse)
        adapter, tokenizer = load_adapter(
            model,
            device=device,
            dtype=dtype,
            weights=weights,
            quantise=quantise,
            context=context,
            downloads=downloads,
        )
        report = fuse_modules(adapter, fuse)
        engine = cls(
            adapter,
            tokenizer,
            backend=backend,
            memory_tokens=memory_tokens,
            overcommit=overcommit,
        )
        engine.fused = report
        return engine

    @property
    def about(self) -> list[str]:
        """What was chosen for this model on this machine, and why; a sentence each."""
        return [
            f"attention by {self.backend.name}: {self.backend_reason}",
            f"layers: {self.fused}",
            self.about_memory,
        ]

    @property
    def usage(self) -> Usage:
        """What has been computed so far; each Run has a `usage` of its own."""
        return replace(
            self._usage,
            prefix_tokens_found=self.prefixes.num_tokens_found,
            prefix_tokens_fed=self.prefixes.num_tokens_added,
        )

    @torch.inference_mode()
    def forward(self, step: Step) -> Tensor:
        """Feed all rows of `step`, then let all attend: logits [rows, vocab] of their last tokens.

        Each row's feed is appended to its own block. If this raises, no block has changed.
        """
        with self._feeding_long(step) as (_, plan):
            # A recorded pass writes its logits to the same place again: these are the caller's own.
            logits = self.passes.run(plan).logits.clone()
        self._newest.clear()  # or it would hold the blocks
        return logits

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
        runs: list[Run] = []
        try:
            for strategy in strategies:
                runs.append(self.submit(strategy))  # noqa: PERF401 (the next one may raise)
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
        """Run a strategy and yield what it reports as it happens; its usage and the Answer come last.

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
            answer = run.result()
            yield UsageCounted(run.usage.forward_passes, run.usage)
            yield answer
        finally:
            if not run.done:
                self.cancel(run)

    def restore(
        self, strategy: Strategy, trace: Trace, *, write: Callable[[Line], None] | None = None
    ) -> Strategy:
        """`strategy`, made anew, as one that goes on where `trace`, a recorded run of it, ends.

        See `engine/restore.py`. `RunSpec.from_plain(trace.header).strategy(text)` makes it.
        `write` is given the lines that continue the trace.
        """
        return restore(
            strategy, trace, self.adapter, self.memory, self.pool, settle=self._settle, write=write
        )

    def submit(self, strategy: Strategy) -> Run:
        """Begin a strategy without waiting for it; `step` moves it on with all others."""
        return self._scheduler.submit(strategy)

    def step(self) -> bool:
        """One forward pass for every live run; False when none is left."""
        return self._scheduler.step()

    def cancel(self, run: Run) -> None:
        """End a run; its blocks are freed and the others' tokens do not change."""
        self._scheduler.cancel(run)

    def _rebuild(self, past: Past, away: Collection[Block]) -> None:
        """Write the keys of a run that comes back."""
        self._settle()
        rebuild_past(past, away, self.adapter, self.memory, self.pool)

    @torch.inference_mode()
    def _settle(self) -> None:
        """Make all planned moves: what they are about to read may be overwritten otherwise."""
        self.passes.settle(self.planner.take_moves())

    @torch.inference_mode()
    def _predict(self, step: Step) -> tuple[int, ...]:
        with self._feeding_long(step) as (rest, plan):
            outcome = self.passes.run(plan)
            chosen = choose(outcome.logits, [row.choice for row in rest.rows], outcome.greedy)
            if self.passes.can_go_ahead and self.planner.can_go_on:
                self.passes.go_ahead(chosen)
            return chosen.tokens()

    @contextmanager
    def _feeding_long(self, step: Step) -> Iterator[tuple[Step, Plan]]:
        """Feed what goes ahead in chunks; then as `_feeding`, with the step that is left."""
        self._check_tokens(step)
        self._newest.clear()
        ahead, rest = in_chunks(step, self.max_tokens_per_pass)
        fed: list[Row] = []
        try:
            for chunk in ahead:
                with self._feeding(chunk) as plan:
                    self.passes.run(plan)
                fed += chunk.rows
            with self._feeding(rest) as plan:
                yield rest, plan
        except BaseException:
            for row in fed:
                del row.view.own.tokens[-len(row.feed) :]
            self.pool.undo((row.view.own, len(row.feed)) for row in fed)
            self._newest.clear()
            raise

    @contextmanager
    def _feeding(self, step: Step) -> Iterator[Plan]:
        """Make room for all feeds; they join their blocks if what is done meanwhile succeeds."""
        plan = self.planner.plan(step)
        self.passes.move(plan)
        try:
            yield plan
        except BaseException:
            self.planner.forget()
            self.pool.undo((row.view.own, len(row.feed)) for row in step.rows)
            raise
        for row in step.rows:
            row.view.own.tokens.extend(row.feed)
        usage = usage_of(plan, step, self._token_bytes)
        self._newest.append((plan, step, usage))
        self._usage += usage

    def _usage_of_each(self, steps: Sequence[Step]) -> list[Usage]:
        """What each of the steps that were fed together just now has cost, chunks included."""
        newest, self._newest = self._newest, []
        if len(steps) == 1:
            return [sum((usage for _, _, usage in newest), Usage())]
        owners = {row.view.own: index for index, step in enumerate(steps) for row in step.rows}
        each = [Usage()] * len(steps)
        for plan, step, _ in newest:
            owner = [owners[row.view.own] for row in step.rows]
            costs = usage_of_each(plan, step, owner, len(steps), self._token_bytes)
            each = [usage + cost for usage, cost in zip(each, costs, strict=True)]
        return each

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


def _eos_ids(adapter: ModelAdapter) -> tuple[int, ...]:
    """What ends a turn by the model's generation configuration: none, one or several ids."""
    found = getattr(adapter.model.generation_config, "eos_token_id", None)
    if found is None:
        return ()
    return (found,) if isinstance(found, int) else tuple(found)
