"""The engine: one model and one memory, for everything above and outside.

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

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import reduce
from itertools import chain
from operator import add
from pathlib import Path
from typing import Any, TypeVar, cast

from torch import Tensor

from manyhands.cache.block import Block
from manyhands.cache.chunks import in_chunks
from manyhands.cache.logprobs import Logprobs, Targets, Tokens, prompt_logprobs_of
from manyhands.cache.pages import PagePool
from manyhands.cache.plan import Plan
from manyhands.cache.planner import Planner
from manyhands.cache.prefixes import PrefixTree
from manyhands.cache.sheets import ShelfCounts
from manyhands.cache.step import Step
from manyhands.cache.tally import TallyBook
from manyhands.cache.usage import Usage, usage_of, usage_of_each
from manyhands.engine.executor import Executor, ModelFacts
from manyhands.engine.filling import Filling
from manyhands.engine.local_executor import LocalExecutor
from manyhands.engine.lookahead import Ahead, Begun, Lookahead
from manyhands.engine.loop import run_passes
from manyhands.engine.one_process import OfOneProcess
from manyhands.engine.pass_counts import PassCounts
from manyhands.engine.past import Past
from manyhands.engine.ranks.executor import RankedExecutor
from manyhands.engine.ranks.launched import num_ranks
from manyhands.engine.ranks.processes import Processes
from manyhands.engine.rebuild import rebuild_past
from manyhands.engine.restore import restore
from manyhands.engine.run import Run, RunState
from manyhands.engine.scheduler import Scheduler
from manyhands.engine.shelving import Shelving
from manyhands.engine.speculation import Speculation
from manyhands.errors import InvalidRequest, ModelNotFound
from manyhands.model.adapter import ModelAdapter
from manyhands.model.settings import (
    EFFORTS,
    PROMPT_TOKENS,
    PROMPT_TOKENS_ALONE,
    PROMPT_TOKENS_WITH_EXPERTS,
    ModelSettings,
)
from manyhands.native import build as native
from manyhands.prompts.load import Prompts, brings_words, model_prompts
from manyhands.replay.merged import Merged
from manyhands.replay.trace import Trace
from manyhands.schema.lines import Line
from manyhands.schema.setting import as_found, check_function, check_given, in_brief
from manyhands.strategies.base import Answer, AnswerT, Strategy, Work
from manyhands.strategies.events import Event, UsageCounted
from manyhands.text import Text, templates

T = TypeVar("T")
# A pass, its rows as (identity of the own block, whether it writes for somebody), and what it cost.
_Counted = tuple[Plan, list[tuple[int, bool]], Usage]
_IN_VAIN = (0, False)  # a row of a pass that was begun ahead, which no run asked for


class Engine(OfOneProcess):
    """One model, one memory, any number of runs. One thread drives it; a `Service` takes runs from any thread.

    A call from a second thread while one is inside is refused (InvalidRequest), and the one inside goes on. A call from a
    fork of the process is refused, too, and so is a pickle of an engine (`one_process.py`).

    The engine decides in integers: it plans steps, admits and preempts runs. Network and memory belong to
    its `executor` (`engine/executor.py`), and what is true of them stands in `facts`.
    """

    def __init__(
        self,
        executor: Executor | ModelAdapter,
        tokenizer: Any = None,
        settings: ModelSettings | None = None,
        *,
        prompts: Prompts | None = None,
        **choices: Any,
    ) -> None:
        """Take an executor; `Engine.load` is the usual door.

        A network that is loaded already (`ModelAdapter`) gets a `LocalExecutor`. `settings` as a whole, or
        `choices`: fields of `ModelSettings`. `prompts`: the words that the model was trained with. Raises InvalidRequest for
        what is none of these.
        """
        is_executor = hasattr(executor, "facts") and not isinstance(executor, Engine)
        if not isinstance(executor, ModelAdapter) and not is_executor:
            raise InvalidRequest(
                f"an engine was to be made of a {type(executor).__name__}; expected a ModelAdapter",
                hint="Write Engine.load(model), which takes a folder, a name or a network.",
            )
        if prompts is not None:
            check_given(prompts, Prompts, "as prompts", "Write prompts=load_prompts(path).")
        if settings is not None:
            check_given(settings, ModelSettings, "as settings", "Write ModelSettings(...).")
            _check_undivided(choices)
        self.prompts = Prompts() if prompts is None else prompts
        self.settings = ModelSettings(**choices) if settings is None else settings
        if isinstance(executor, ModelAdapter):
            executor = LocalExecutor(executor, self.settings)
        self.executor = executor
        self._text: Text | None = None
        if tokenizer is not None:
            self._text = _text_of(tokenizer, self.facts, self.settings, self.prompts)
        self.pool = PagePool(
            self.facts.num_pages, self.facts.page_size, num_states=self.facts.num_states
        )
        self.planner = Planner(self.pool, self.facts.max_positions)
        self.prefixes = PrefixTree(self.pool)  # beginnings of prompts, kept while there is room
        self.shelving: Shelving | None = None  # prompts on disk, where a cache was asked for
        if self.executor.sheets is not None:
            self.shelving = Shelving(self.executor.sheets, executor, self.pool, self.prefixes)
            self.prefixes.shelf = self.shelving
        self._usage = Usage()
        self._newest: list[_Counted] = []  # the passes of the newest step
        self._counted: _Counted | None = None  # the pass whose tokens are awaited
        self._tallies = TallyBook()
        self._early: dict[Block, tuple[Logprobs, ...]] = {}  # of the step's targets, fed in chunks
        self._speculation: Speculation | None = None
        if self.settings.speculate:
            self._speculation = Speculation(
                self.pool,
                self.prefixes,
                self.settings.speculate,
                self.facts.max_positions,
                self.settings.max_tokens_per_pass,
            )
        self._lookahead: Lookahead | None = None
        if self.executor.plans_ahead and self._speculation is None:
            self.planner.joins_ahead = True
            self._lookahead = Lookahead(
                self.planner,
                self.pool,
                check=self._check_tokens,
                move=lambda: self.pool.make_moves(self.executor.move),
            )
        self._scheduler = Scheduler(
            self._predict,
            self.pool,
            self._filling(),
            self._usage_of_each,
            rebuild=self._rebuild,
            # Keys are made again from unrounded ones: where they are rounded, a run that left would not come back as it was.
            # So runs that reserve stay.
            overcommit=1.0 if self.settings.kv_cache_dtype == "int8" else self.settings.overcommit,
            reserved_stay=self.settings.kv_cache_dtype == "int8",
            is_known=self._is_known if self._speculation is not None else None,
            lookahead=self._lookahead,
            check=self._check_whole,
            is_fetching=lambda: self.shelving is not None and self.shelving.is_fetching,
        )
        self.inside = self._scheduler.inside

    def _filling(self) -> Filling:
        return Filling(
            self.settings.max_tokens_per_pass,
            prompt_tokens=self._prompt_tokens(),
            prompt_tokens_of_crowds=self.settings.prompt_tokens or PROMPT_TOKENS,
            prompt_tokens_alone=self._prompt_tokens_alone(),
            tokens_at_once=self.executor.tokens_at_once,
        )

    def _prompt_tokens(self) -> int:
        """Rows that write wait for these; but with experts a pass of twice as many is hardly longer, since both read all weights."""
        if self.settings.prompt_tokens is not None:
            return self.settings.prompt_tokens
        return PROMPT_TOKENS_WITH_EXPERTS if self.facts.has_experts else PROMPT_TOKENS

    def _prompt_tokens_alone(self) -> int:
        """A pass of more is hardly faster a token; but with experts it reads all weights, whichever few a token goes through."""
        asked = self.settings.prompt_tokens_alone
        if asked is not None:
            return asked
        return self.settings.max_tokens_per_pass if self.facts.has_experts else PROMPT_TOKENS_ALONE

    @classmethod
    def load(
        cls,
        model: ModelSettings | str | Path | Any,
        *,
        downloads: bool = False,
        started: Processes | None = None,
        **choices: Any,
    ) -> Engine:
        """Load a Hugging Face model by hub id, folder or object, and make an engine of it.

            Engine.load("Qwen/Qwen3-8B", device="cuda", memory_tokens=65536)
            Engine.load("bundled")

        The words that lie beside the model or its adapter (`manyhands.toml`) are `engine.prompts`, and methods
        speak them where they are given none.

        `choices` are fields of `ModelSettings`, which says what each means; or give one whole. `downloads`
        shows the progress of what is fetched from the hub. `started`: the other ranks, where they were started before
        (`engine/ranks/processes.py::started_beside`). Raises ModelNotFound, UnsupportedModel,
        InvalidRequest, OutOfMemory.
        """
        if isinstance(model, ModelSettings):
            _check_undivided(choices)
            settings = model
        else:
            settings = ModelSettings(model, **choices)
        templates.start()  # it gets ready while the model is loaded
        executor: Executor
        if num_ranks(settings) == 1:
            executor, tokenizer = LocalExecutor.load(settings, downloads=downloads)
        else:
            executor, tokenizer = RankedExecutor.load(
                settings, downloads=downloads, started=started
            )
        return cls(executor, tokenizer, settings, prompts=_words_of(settings))

    @property
    def facts(self) -> ModelFacts:
        """The facts of the model and its memory, which hold for as long as they live."""
        return self.executor.facts

    @property
    def text(self) -> Text:
        """The model's tokenizer, and its habits of writing. Raises ModelNotFound for a model without one."""
        if self._text is None:
            raise ModelNotFound(
                f"the model {self.facts.name!r} has no tokenizer; expected one, to read and to write text",
                hint="Put tokenizer.json and tokenizer_config.json into its folder; "
                "for a network write Engine(ModelAdapter(network), tokenizer).",
            )
        return self._text

    @property
    def about(self) -> list[str]:
        """The choices made for this model on this machine, and their reasons; a sentence each."""
        return [
            f"attention by {self.facts.backend}: {self.facts.backend_reason}",
            f"layers: {self.facts.fused}",
            self.facts.about_memory,
            f"plans by {native.about()}",
            *([self.facts.about_ranks] if self.facts.about_ranks else []),
        ]

    @property
    def shelf_counts(self) -> ShelfCounts:
        """Counts of reads from the cache on disk and of writes to it; zeros without one."""
        return ShelfCounts() if self.shelving is None else self.shelving.sheets.counts

    @property
    def pass_counts(self) -> PassCounts:
        """How passes were made so far: recorded, launch by launch, begun ahead; kernels compiled, blocks moved."""
        return self.executor.counts

    @property
    def usage(self) -> Usage:
        """The work computed so far; each Run has a `usage` of its own."""
        return replace(
            self._usage,
            prefix_tokens_found=self.prefixes.num_tokens_found,
            prefix_tokens_fed=self.prefixes.num_tokens_added,
            tokens_drafted=self._speculation.num_drafted if self._speculation else 0,
            tokens_accepted=self._speculation.num_accepted if self._speculation else 0,
        )

    def get_ready(self, told: Callable[[int, int], None] | None = None) -> None:
        """Compile kernels and record passes of all sizes now, so that no run has to wait for it later.

        For whatever serves for long: on a GPU it takes seconds, elsewhere there is nothing to do. Such a program may leave what is
        loaded out of collections of garbage behind it (`garbage.py::keep_loaded`), as the commands do. `told` is
        called with how much of how much is done. Raises InvalidRequest for what cannot be called.
        """
        if told is not None:
            check_function(told, "to be told of it", "Write engine.get_ready(print), for instance.")
        with self.inside:
            self.executor.record_ahead(told or (lambda done, whole: None))

    def forward(self, step: Step) -> Tensor:
        """Feed all rows of `step`, then let all attend: logits [rows, vocab] of their last tokens.

        Each row's feed is appended to its own block. If this raises, no block has changed.
        """
        check_given(step, Step, "as a step", "Write Step([Row(view, feed), ...]).")
        _check_without_guesses(step)
        with self.inside:
            self._scheduler.check_between_passes()
            self._scheduler.settle()  # tokens of its own that an interrupt has kept from it
            if self._lookahead is not None:
                self._lookahead.forget()  # the logits of a pass that was begun may be written over
            return self._feed(step, lambda _, plan: self.executor.logits(plan))

    def replay(self, merged: Merged, rows: Sequence[int] | None = None) -> Tensor:
        """Logits [len(rows), vocab] of the given rows of a whole run (default: all), in one forward.

        `replay.forward.merge_trace` makes `merged` of a trace. No block is touched. Raises InvalidRequest for rows that
        it does not have.
        """
        check_given(merged, Merged, "to be replayed", "Write engine.replay(merge_trace(trace)).")
        if rows is not None:
            rows = _rows_of(merged, rows)
        with self.inside:
            return self.executor.replay(merged, rows)

    def run(self, strategy: Work[AnswerT]) -> AnswerT:
        """Run a strategy to its end (together with whatever was submitted before)."""
        return self.run_all([strategy])[0]

    def run_all(self, strategies: Iterable[Work[AnswerT]]) -> list[AnswerT]:
        """Run many strategies, all in the same forward passes; the first error ends them all."""
        given: object = strategies
        if not isinstance(given, Iterable):
            raise InvalidRequest(
                f"a {type(given).__name__} was given as strategies; expected a list of them",
                hint="Write engine.run_all([strategy, ...]).",
            )
        answers: dict[int, AnswerT] = {}
        with self.inside, closing(run_passes(self, enumerate(strategies))) as passes:
            for each in passes:
                ended = {index: run.result() for index, run in each.runs if run.done}
                answers.update(cast(dict[int, AnswerT], ended))  # as their strategies returned them
        return [answers[index] for index in sorted(answers)]

    def stream(self, strategy: Strategy | Run) -> Iterator[Event | Answer]:
        """Run a strategy and yield what it reports as it happens; its usage and the Answer come last.

        Closing the iterator cancels the run and frees its blocks. A run that is submitted already can be
        spoken to meanwhile: `run = engine.submit(team)`, then `engine.stream(run)` and `run.say(...)`.
        """
        with closing(run_passes(self, [(None, strategy)])) as passes:
            for each in passes:
                ((_, run),) = each.runs
                yield from run.take_events()
        answer = run.result()
        yield UsageCounted(run.usage.forward_passes, run.usage)
        yield answer

    def restore(
        self, strategy: Strategy, trace: Trace, *, write: Callable[[Line], None] | None = None
    ) -> Strategy:
        """`strategy`, made anew, as one that goes on where `trace`, a recorded run of it, ends.

        See `engine/restore.py`. `RunSpec.from_plain(trace.header).strategy(text)` makes it.
        `write` is given the lines that continue the trace.
        """
        check_given(trace, Trace, "to be restored", "Read one: replay.trace.read_trace(path).")
        if write is not None:
            check_function(write, "to be given lines", "Write write=lines.append, for instance.")
        with self.inside:
            return restore(strategy, trace, self.executor, self.pool, write=write)

    def submit(self, strategy: Strategy, *, lifecycle: bool = False) -> Run:
        """Begin a strategy without waiting for it; `step` moves it on with all others.

        `lifecycle`: the run also reports what the engine does with it, see `Run`.
        """
        run: Run | None = None
        try:
            with self.inside:
                run = self._scheduler.submit(strategy, lifecycle=lifecycle)
            return run
        except BaseException:
            if run is not None:
                run.cancel()
            raise

    def has_made(self, run: object) -> bool:
        """Whether this is a run that was submitted here."""
        return self._scheduler.has_made(run)

    def num_runs(self, state: RunState) -> int:
        """How many runs are in this state. Raises InvalidRequest for what is none."""
        check_given(state, RunState, "as a state", "Write engine.num_runs(RunState.RUNNING).")
        return self._scheduler.num_runs(state)

    @property
    def num_preemptions(self) -> int:
        """How often a run was preempted so far."""
        return self._scheduler.num_preemptions

    def step(self) -> bool:
        """One forward pass for every live run; False when none is left."""
        with self.inside:
            self._scheduler.check_outside()
            if self.shelving is not None:
                self._scheduler.settle()
                self.pool.take_back()  # an interrupt may have kept the last step from doing so
                self.shelving.step(is_alone=not self.num_runs(RunState.RUNNING))
            return self._scheduler.step()

    def cancel(self, run: Run) -> None:
        """End a run; its blocks are freed and the others' tokens do not change. See `Scheduler.cancel`.

        Raises InvalidRequest for what is no run of this engine.
        """
        if not self.has_made(run):
            raise InvalidRequest(
                f"a {type(run).__name__} was given to be cancelled; expected a Run of this engine",
                hint="Give what `engine.submit(strategy)` has returned.",
            )
        with self.inside:
            self._scheduler.cancel(run)

    def _is_known(self, step: Step) -> bool:
        """Whether the step is answered without a pass."""
        return self._speculation is not None and self._speculation.known(step) is not None

    def _predict(self, step: Step) -> tuple[int, ...]:
        speculation = self._speculation
        if speculation is not None:
            if (kept := speculation.known(step)) is not None:
                chosen = self._choose(step, kept)
                speculation.num_accepted += len(kept)
                return chosen
            _check_without_guesses(step)
            step = speculation.drafted(step)
        chosen = self._pass(step)
        if speculation is not None:
            speculation.was_fed(step)
        return chosen

    def _choose(self, step: Step, kept: Sequence[int]) -> tuple[int, ...]:
        """The tokens of a step whose feeds were guessed: their keys are written, their logits kept."""
        self._check_tokens(step)
        self._newest.clear()
        self.pool.take_back()
        try:
            self.pool.promise((row.view.own, len(row.feed)) for row in step.rows)
            self.pool.chosen = chosen = self.executor.choose(
                kept,
                [row.choice for row in step.rows],
                weighing=self._tallies.weighing([row.tally for row in step.rows]),
            )
            for row in step.rows:
                row.view.own.tokens.extend(row.feed)
            self.pool.keep()
        except BaseException:
            self.pool.take_back()
            raise
        self._usage += _usage_without_pass(step)
        self._tallies.sent()
        return chosen

    def _pass(self, step: Step) -> tuple[int, ...]:
        begun = None if self._lookahead is None else self._lookahead.take(step)
        if begun is not None:
            return self._go_on(step, *begun)
        chosen = self._feed(step, self._run)
        self._told(chosen)
        return chosen

    def _run(self, step: Step, plan: Plan) -> tuple[int, ...]:
        """The tokens of a step that is fed as one pass."""
        chosen = self.executor.run(
            plan,
            [row.choice for row in step.rows],
            lookahead=self.planner.can_look_ahead,
            weighing=self._tallies.weighing([row.tally for row in step.rows]),
            targets=targets_of(step, plan),
            ahead=self._ahead_of(step, plan),
        )
        if self._early:
            chosen = self._with_early(chosen, step)
        self.pool.chosen = chosen  # before the feeds are kept: an interrupt behind that finds it
        return chosen

    def _go_on(self, step: Step, plan: Plan, rows: Sequence[int]) -> tuple[int, ...]:
        """The tokens of a step that was expected: its pass has begun already, as these rows of its plan."""
        self._check_tokens(step)
        self._newest.clear()
        self._counted = None
        try:
            self.pool.promise((row.view.own, len(row.feed)) for row in step.rows)
            self.pool.chosen = chosen = self.executor.go_on(
                rows,
                [row.choice for row in step.rows],
                lookahead=self.planner.can_look_ahead,
                weighing=self._tallies.weighing([row.tally for row in step.rows]),
                ahead=self._ahead_of(step, plan, rows),
            )
            self._fed(step, plan, rows)
            self.pool.keep()
        except BaseException:
            self.pool.take_back()
            raise
        self._told(chosen)
        return chosen

    def _ahead_of(self, step: Step, plan: Plan, rows: Sequence[int] | None = None) -> Ahead | None:
        """The pass that is begun while the tokens of the pass that feeds `step` are being chosen.

        The work of that pass, which is `plan`, is counted then too, and strategies prepare the next one: where nothing is
        begun, the device waits for the host as soon as the tokens are there.
        """
        lookahead = self._lookahead
        if lookahead is None:
            return None
        scheduler = self._scheduler

        def begin() -> Begun | None:
            # A run alone whose rows go on token by token needs no plan: see `GraphedPasses.look_ahead`.
            scheduler.let_go()
            expected = scheduler.expected(of_one=not self.planner.can_look_ahead)
            begun = lookahead.plan(expected, step, is_sure=not scheduler.is_one_asked)
            self._counted = self._count(step, plan, rows)
            scheduler.prepare()
            return begun

        return begin

    def _told(self, chosen: tuple[int, ...]) -> None:
        """A pass was made, and its tokens are known."""
        self._tallies.sent()
        if self._lookahead is not None:
            self._lookahead.was_chosen(chosen, is_begun=self.executor.has_begun)

    def _with_early(self, chosen: tuple[int, ...], rest: Step) -> Tokens:
        """The chosen tokens; the logprobs of targets that were fed early stand before those fed last."""
        late = chosen if isinstance(chosen, Tokens) else Tokens(chosen, {})
        told = {
            index: self._early.get(row.view.own, ()) + prompt_logprobs_of(late, index)
            for index, row in enumerate(rest.rows)
        }
        return Tokens(late, late.logprobs, {index: each for index, each in told.items() if each})

    def _feed(self, step: Step, make: Callable[[Step, Plan], T]) -> T:
        """The outcome of `make`, which makes the pass of a step and its plan; then the feeds join their blocks.

        A step that is too long for one pass is fed early in chunks, and `make` is given what is left of it.
        If anything raises before that, an interrupt at any point included, every block is what it was.
        """
        self._check_tokens(step)
        self._newest.clear()
        self._counted = None
        self._early.clear()
        self.pool.take_back()  # an interrupt may have kept the last step from doing so
        early, rest = in_chunks(step, self.settings.max_tokens_per_pass)
        if early:
            self.planner.check_whole(step)
        try:
            for chunk in early:
                plan = self._plan(chunk)
                told = self.executor.run(plan, targets=targets_of(chunk, plan))
                self._fed(chunk, plan)
                if isinstance(told, Tokens):
                    for index, each in told.prompt_logprobs.items():
                        own = chunk.rows[index].view.own
                        self._early[own] = self._early.get(own, ()) + each
            plan = self._plan(rest)
            made = make(rest, plan)
            self._fed(rest, plan)
            self.pool.keep()
        except BaseException:
            self.pool.take_back()
            raise
        return made

    def _plan(self, step: Step) -> Plan:
        """Room for all feeds, and what is read in the pass, brought to where the plan reads it."""
        plan = self.planner.plan(step)
        if self.pool.states is not None:
            # A step that is fed in parts goes back further than this pass, and one of its parts that fails to where that began.
            known, pool = self._scheduler.lengths_before(), self.pool

            def earlier(block: Block) -> tuple[int, ...]:
                before = pool.before_step(block)
                return known.get(block, before), before

            states = self.pool.states.take(step, earlier)
            plan = replace(plan, states=states)
        self.pool.make_moves(self.executor.move)
        return plan

    def _fed(self, step: Step, plan: Plan, at: Sequence[int] | None = None) -> None:
        """The feeds join their blocks, and the pass is counted. `at`: which rows of the plan they are; None: all."""
        for row in step.rows:
            row.view.own.tokens.extend(row.feed)
        counted, self._counted = self._counted, None
        if counted is None or counted[0] is not plan:
            counted = self._count(step, plan, at)
        self._newest.append(counted)
        self._usage += counted[2]

    def _count(self, step: Step, plan: Plan, at: Sequence[int] | None = None) -> _Counted:
        """The pass that feeds this step. `at`: which rows of its plan the step's are; None: all."""
        rows = [_IN_VAIN] * plan.num_rows
        for index, row in zip(range(plan.num_rows) if at is None else at, step.rows, strict=True):
            rows[index] = (id(row.view.own), row.writer is not None)
        return plan, rows, usage_of(plan, step, self.facts.token_bytes)

    def _rebuild(self, past: Past, evicted: Collection[Block]) -> None:
        """Write the keys of a run that comes back."""
        rebuild_past(past, evicted, self.executor, self.pool)

    def _usage_of_each(self, steps: Sequence[Step]) -> list[Usage]:
        """The cost of each of the steps that were fed together just now, chunks included."""
        if not self._newest:
            return [_usage_without_pass(step) for step in steps]
        if len(steps) == 1 and not any(_IN_VAIN in rows for _, rows, _ in self._newest):
            return [reduce(add, [usage for _, _, usage in self._newest])]
        owners = {id(row.view.own): n for n, step in enumerate(steps) for row in step.rows}
        owners[_IN_VAIN[0]] = len(steps)  # charged to none of them
        costs = [
            usage_of_each(
                plan,
                [owners[own] for own, _ in rows],
                [is_written for _, is_written in rows],
                len(steps) + 1,
                self.facts.token_bytes,
            )[:-1]
            for plan, rows, _ in self._newest
        ]
        return [reduce(add, each) for each in zip(*costs, strict=True)]

    def _check_whole(self, step: Step) -> None:
        """Raise for a step that is to be fed in parts, before minutes are spent on the first ones."""
        self._check_tokens(step)
        self.planner.check_whole(step)

    def _check_tokens(self, step: Step) -> None:
        rows, size = step.rows, self.facts.vocab_size
        drafts = [row.draft for row in rows if row.draft]
        if drafts and self._speculation is None:
            _check_without_guesses(step)
        bound = [c for row in rows if (c := row.choice).allowed or c.forbidden]
        # Rows of a team share what they may choose from.
        allowed = {id(each.allowed): each.allowed for each in bound if each.allowed}
        forbidden = {id(each.forbidden): each.forbidden for each in bound if each.forbidden}
        uses: dict[str, Iterable[Iterable[int]]] = {
            "fed": [row.feed for row in rows],
            "allowed": allowed.values(),
            "forbidden": forbidden.values(),
            "weighed": [row.tally.span for row in rows if row.tally is not None],
            "a target": [row.targets for row in rows if row.targets],
            "a guess": drafts,
        }
        tokens = [*chain.from_iterable(chain.from_iterable(uses.values()))]
        if not 0 <= min(tokens) <= max(tokens) < size:
            use, wrong = next(
                (use, token)
                for use, lists in uses.items()
                for token in chain.from_iterable(lists)
                if not 0 <= token < size
            )
            raise InvalidRequest(
                f"token id {as_found(wrong)} is {use}, and the model's vocabulary has {size} tokens",
                hint="Encode the text with this model's own tokenizer.",
            )
        if size in map(len, forbidden.values()):
            raise InvalidRequest(
                "no token is left to choose from: the whole vocabulary is forbidden",
                hint="Forbid fewer tokens.",
            )


def _check_without_guesses(step: Step) -> None:
    """Raise InvalidRequest for a row that brings guesses: keys of theirs are written where the engine has found room."""
    if any(row.draft for row in step.rows):
        raise InvalidRequest(
            "a row brings a draft; expected none, for guesses are the engine's own",
            hint="Leave it out: Engine.load(model, speculate=4) has guesses made.",
        )


def _rows_of(merged: Merged, rows: Iterable[Any]) -> list[int]:
    """Rows of a merged run, in Python's own numbers; those below 0 count from its end."""
    size = merged.plan.num_rows
    try:
        found = [operator.index(row) for row in rows]
    except TypeError:
        found = [size]
    if not all(-size <= row < size for row in found):
        raise InvalidRequest(
            f"the rows {in_brief(rows)} were asked for; expected numbers below {size}, which the run has of them",
            hint="Leave them out to have all rows.",
        )
    return found


def _text_of(tokenizer: Any, facts: ModelFacts, settings: ModelSettings, prompts: Prompts) -> Text:
    """The words of a model. Raises InvalidRequest for an effort that its chat template is not told."""
    effort = settings.thinking
    text = Text(tokenizer, facts.eos_ids, thinking=effort != "off", prompts=prompts)
    if effort not in EFFORTS:
        return text
    if not text.reads_effort:
        raise InvalidRequest(
            f"thinking is {effort!r}, and the chat template of this model is not told how much to think",
            hint="choose on or off",
        )
    return text.at_effort(effort)


def _check_undivided(choices: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for choices beside settings as a whole, which would say them twice."""
    if choices:
        raise InvalidRequest(
            f"{next(iter(choices))} was given beside settings as a whole; expected one of the two",
            hint="Write dataclasses.replace(settings, ...), or give every choice by its name.",
        )


def _words_of(settings: ModelSettings) -> Prompts:
    """The words beside the model or its adapter; the defaults for a network that is built already and has no folder."""
    model, adapter = settings.model, settings.lora
    if isinstance(model, str | Path):
        return model_prompts(model, adapter)
    return model_prompts(adapter) if adapter and brings_words(adapter) else Prompts()


def _usage_without_pass(step: Step) -> Usage:
    return Usage(tokens_chosen=sum(row.writer is not None for row in step.rows))


def targets_of(step: Step, plan: Plan) -> Targets | None:
    """The targets of a pass's rows, by the packed indices of the tokens that they follow."""
    if not any(row.targets for row in step.rows):
        return None
    at: list[int] = []
    tokens: list[int] = []
    top: list[int] = []
    for row, first in zip(step.rows, plan.row_indptr.tolist(), strict=False):
        at += range(first, first + len(row.targets))
        tokens += row.targets
        top += [row.choice.logprobs or 0] * len(row.targets)
    return Targets(tuple(at), tuple(tokens), tuple(top))
