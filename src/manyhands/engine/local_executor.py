"""The executor of one process: a loaded network, memory for its keys and values, and the passes over both, on one device.

    adapter, tokenizer, fused = load_network(ModelSettings("bundled"))
    executor = LocalExecutor(adapter, ModelSettings("bundled", memory_tokens=65536), fused=fused)
    engine = Engine(executor, tokenizer)

`LocalExecutor.load` is the first two in one. A rank that makes each pass together with others is one, too: it loads its part of the
network and is given those others (`engine/ranks/`).

Passes themselves are made elsewhere (`engine/passes.py`, `engine/graphs.py`), and so are the choices of tokens (`engine/sampling.py`).
Here is what lies between two of them: which one was begun ahead and may still be taken up, which logits are kept until they are asked
for, whether the network is where it was when memory and recordings were made.

    V  vocabulary      N  slots, or tokens that lie in them
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from manyhands.attention.attend import LayerCall
from manyhands.attention.compile_at_once import begin_key
from manyhands.attention.compile_count import num_compiled
from manyhands.attention.rotary import Rotations
from manyhands.attention.store import Targets as StoreTargets
from manyhands.cache.logprobs import Logprobs, Targets, Tokens
from manyhands.cache.places import Ints, Move
from manyhands.cache.plan import Plan
from manyhands.cache.step import Choice
from manyhands.cache.tally import Weighing
from manyhands.engine.backends import check_backend, choose_backend, make_passes
from manyhands.engine.executor import Kept, ModelFacts, Places, Sheets
from manyhands.engine.garbage import collect_if_near
from manyhands.engine.lookahead import Ahead
from manyhands.engine.pass_counts import PassCounts
from manyhands.engine.passes import ALONE, Late, Others, PassOutcome
from manyhands.engine.sampling import Chosen, choose, get_ready, sent
from manyhands.engine.weighing import Weights
from manyhands.errors import InvalidRequest, OutOfMemory, counted
from manyhands.model.adapter import ModelAdapter, experts_of_a_token, weight_bytes
from manyhands.model.fusion import FuseReport, check_fuse, fuse_modules
from manyhands.model.generation import end_ids
from manyhands.model.hybrids import check_early, check_settings
from manyhands.model.loading import load_adapter
from manyhands.model.memory import (
    Memory,
    about_memory,
    default_memory_tokens,
    default_states,
    free_bytes,
    num_weights,
    token_bytes,
)
from manyhands.model.parallel.collectives import Collectives
from manyhands.model.quantised.quantise import check_quantise
from manyhands.model.recurrent import States, state_bytes
from manyhands.model.settings import ModelSettings
from manyhands.model.shelf import MemoryShelf
from manyhands.model.whereabouts import (
    check_one_device,
    check_unmoved,
    landmarks_of,
    places_of,
    uneven,
)
from manyhands.replay.forward import Find, Replay, replay_logits
from manyhands.replay.merged import Merged


class Network(NamedTuple):
    """The loaded part of a model before there is memory for keys and values."""

    adapter: ModelAdapter
    tokenizer: Any  # None where there is none
    fused: FuseReport


def load_network(
    settings: ModelSettings,
    *,
    device: str | None = None,
    downloads: bool = False,
    collectives: Collectives | None = None,
) -> Network:
    """Load the model that `settings` describe, on another device if one is given; of several ranks, a part."""
    check_backend(settings.backend)  # a wrong name should not cost a load
    check_quantise(settings.quantise)
    check_fuse(settings.fuse)
    check_early(settings)
    place = device or settings.device
    if place != "cpu" and settings.backend in ("auto", "triton") and torch.cuda.is_available():
        begin_key()
    adapter, tokenizer = load_adapter(
        settings.model,
        device=place,
        dtype=settings.dtype,
        weights=settings.weights,
        quantise=settings.quantise,
        context=settings.context,
        downloads=downloads,
        collectives=collectives,
        adapted=None if settings.lora is None else Path(settings.lora).expanduser(),
    )
    # On a CPU a network that the caller has built stays as it is: it may be trained, or asked by others, too.
    is_built = not isinstance(settings.model, str | Path) and settings.model is not None
    left_alone = is_built and settings.fuse == "auto" and adapter.device.type == "cpu"
    return Network(
        adapter, tokenizer, fuse_modules(adapter, "off" if left_alone else settings.fuse)
    )


class LocalExecutor:
    """Network, memory and passes in this process, on one device."""

    def __init__(
        self,
        adapter: ModelAdapter,
        settings: ModelSettings | None = None,
        *,
        fused: FuseReport | None = None,
        graphs: bool = True,
        others: Others = ALONE,
    ) -> None:
        """Take a network that is loaded; `LocalExecutor.load` loads one.

        Of the settings, backend, memory_tokens, max_tokens_per_pass and those of the caches are read. `graphs`: passes may be
        recorded. `others`: the ranks that make each pass together with this one. Raises InvalidRequest for a
        backend that cannot serve the model, OutOfMemory for too large a memory, OutputFailed for a cache that
        cannot be written to.
        """
        settings = settings or ModelSettings()
        check_one_device(adapter.model, adapter.device)
        eight_bits = settings.kv_cache_dtype == "int8"
        chosen = choose_backend(settings.backend, adapter, eight_bits=eight_bits)
        free = free_bytes(adapter.device)
        self.states = _states(adapter, settings)
        slot_bytes = 0 if self.states is None else self.states.slot_bytes
        num_states = 0 if self.states is None else self.states.num_slots
        num_tokens = settings.memory_tokens or default_memory_tokens(
            adapter, eight_bits=eight_bits, besides=num_states * slot_bytes
        )
        num_pages = max(1, num_tokens // chosen.page_size)
        self.adapter = adapter
        self.backend = chosen.backend
        self.memory = Memory.for_model(adapter, num_pages * chosen.page_size, eight_bits=eight_bits)
        self.passes = make_passes(
            adapter,
            self.memory,
            chosen.backend,
            graphs=graphs,
            others=others,
            states=self.states,
        )
        self._most_tokens = settings.max_tokens_per_pass
        self.weights = Weights(adapter.device)
        self._first_weight = next(adapter.model.parameters())
        self._weights_were = places_of(adapter.model)
        self._landmarks = landmarks_of(adapter.model)
        self._landmarks_at = self._addresses()
        # It keeps no memory, and no other storage has its number while it is there.
        self._weights_at = StorageWeakRef(self._first_weight.untyped_storage())
        self._kept: Tensor | None = None  # logits [D, V] of the tokens that were drafted last
        # Of the pass that was begun ahead: gives its outcome, and makes the rest of it where its head alone was begun.
        self._begun: Callable[[], PassOutcome] | None = None
        self._shelf: MemoryShelf | None = None
        if settings.cache is not None:
            self._shelf = MemoryShelf(
                self.memory,
                adapter,
                Path(settings.cache),
                sheet_tokens=settings.sheet_tokens,
                limit=settings.cache_bytes,
            )
        self.facts = ModelFacts(
            name=adapter.name,
            vocab_size=adapter.vocab_size,
            max_positions=adapter.max_positions,
            num_layers=adapter.num_layers,
            eos_ids=_eos_ids(adapter),
            device=str(adapter.device),
            dtype=str(adapter.dtype).removeprefix("torch."),
            weight_bytes=weight_bytes(adapter),
            token_bytes=token_bytes(adapter, eight_bits=eight_bits),
            num_pages=num_pages,
            page_size=chosen.page_size,
            backend=chosen.backend.name,
            backend_reason=chosen.reason,
            fused=str(fused or FuseReport(left=("the network came as it is",))),
            about_memory=about_memory(
                adapter,
                num_pages,
                chosen.page_size,
                free,
                eight_bits=eight_bits,
                num_states=num_states,
            ),
            num_weights=num_weights(adapter),
            has_experts=experts_of_a_token(adapter.config) is not None,
            num_states=num_states,
            state_bytes=slot_bytes,
        )

    @classmethod
    def load(cls, settings: ModelSettings, *, downloads: bool = False) -> tuple[LocalExecutor, Any]:
        """Load the model that `settings` describe; the executor, and the model's tokenizer or None.

        `downloads` shows the progress of what is fetched from the hub. Raises ModelNotFound,
        UnsupportedModel, InvalidRequest, OutOfMemory.
        """
        network = load_network(settings, downloads=downloads)
        try:
            return cls(network.adapter, settings, fused=network.fused), network.tokenizer
        except BaseException:
            network.adapter.let_go()
            raise

    @property
    def about(self) -> str | None:
        """See `Executor.about`."""
        return self.passes.about

    @property
    def sheets(self) -> Sheets | None:
        """See `Executor.sheets`."""
        return self._shelf

    @torch.inference_mode()
    def run(
        self,
        plan: Plan,
        choices: Sequence[Choice] = (),
        *,
        lookahead: bool = False,
        weighing: Weighing | None = None,
        targets: Targets | None = None,
        ahead: Ahead | None = None,
    ) -> tuple[int, ...]:
        """See `Executor.run`."""
        self._check_place()
        self._drop_begun()
        outcome = self._passed(plan, targets)
        if plan.num_drafted is not None:
            outcome = self._keep_drafted(plan, outcome)
        tokens: tuple[int, ...] = ()
        if choices:
            # The next pass is begun behind all that reads this one's logits.
            chosen = choose(outcome.logits, choices, outcome.greedy, self._weigh(weighing))
            if not self._begin(chosen, ahead) and lookahead:
                self.passes.look_ahead(chosen)
            tokens = self._arrived(chosen)
        return tokens if targets is None else self._with_targets(tokens, plan, targets, outcome)

    @property
    def plans_ahead(self) -> bool:
        """See `Executor.plans_ahead`."""
        return self.passes.plans_ahead

    def tokens_at_once(self, num_tokens: int) -> int:
        """See `Executor.tokens_at_once`."""
        return self.passes.tokens_at_once(num_tokens)

    @property
    def has_begun(self) -> bool:
        """See `Executor.has_begun`."""
        return self._begun is not None

    @torch.inference_mode()
    def go_on(
        self,
        rows: Sequence[int],
        choices: Sequence[Choice],
        *,
        lookahead: bool = False,
        weighing: Weighing | None = None,
        ahead: Ahead | None = None,
    ) -> tuple[int, ...]:
        """See `Executor.go_on`."""
        self._check_place(is_begun=True)
        begun, self._begun = self._begun, None
        assert begun is not None, "only what was begun goes on"
        outcome = begun()
        num_in_vain = len(outcome.logits) - len(rows)
        self.passes.counts.in_vain += num_in_vain
        chosen = choose(
            outcome.logits,
            choices,
            outcome.greedy,
            self._weigh(weighing),
            rows if num_in_vain else None,
        )
        if not self._begin(chosen, ahead) and lookahead and not num_in_vain:
            self.passes.look_ahead(chosen)
        return self._arrived(chosen)

    def _check_place(self, *, is_begun: bool = False) -> None:
        """Raise InvalidRequest where the network's owner has moved or converted it: memory and recordings are of what it was.

        One that is again what it was lies somewhere else, where no recording reads: all are dropped. `is_begun`: so is a pass that was
        begun before, which raises InvalidRequest as well.
        """
        addresses = self._addresses()
        storage = self._first_weight.untyped_storage()
        if storage._cdata != self._weights_at.cdata or addresses != self._landmarks_at:
            check_unmoved(self.adapter.model, self._weights_were)
            self._weights_at, self._landmarks_at = StorageWeakRef(storage), addresses
            self._drop_begun()
            self.passes.others.forget()
            self.passes.forget()
            if is_begun:
                raise InvalidRequest(
                    "the network of this engine was moved, and came back, while a pass of it was under way",
                    hint="ask again, and leave the network where it is while it is used",
                )

    def _addresses(self) -> tuple[int, ...]:
        """Where the landmarks lie: a few, for a pass has no time to look at all weights."""
        return tuple([weights[name].data_ptr() for weights, name in self._landmarks])

    def _passed(self, plan: Plan, targets: Targets | None = None) -> PassOutcome:
        """The outcome of a pass. A failure for weights of different numbers is said as that."""
        try:
            return self.passes.run(plan, targets)
        except RuntimeError as error:
            if (reason := uneven(self.adapter.model)) is not None:
                raise reason from error
            raise

    def _begun_pass(self, plan: Plan, late: Late) -> PassOutcome:
        """The outcome of a pass that is begun ahead."""
        return self.passes.begin(plan, late)

    def _begin(self, chosen: Chosen, ahead: Ahead | None) -> bool:
        """Begin the pass that `ahead` gives, behind all that chooses these tokens; whether there was one."""
        begun = None if ahead is None else ahead()
        if begun is None:
            return False
        plan, sources, is_sure = begun
        (at,) = (sources >= 0).nonzero()
        rows = sources[at] if chosen.rows is None else np.array(chosen.rows)[sources[at]]
        late = Late(chosen.on_device, at, rows)
        if is_sure:
            outcome = self._begun_pass(plan, late)
            self._begun = lambda: outcome
        elif self.passes.begin_head(plan, late):
            self._begun = partial(self.passes.finish_head, plan)
        return self._begun is not None

    def _arrived(self, chosen: Chosen) -> tuple[int, ...]:
        """The tokens. Where those on the device were a guess that was wrong, what was begun with them is dropped."""
        self.passes.meanwhile()
        if not chosen.have_landed():
            collect_if_near()
        tokens = chosen.tokens()
        if self._begun is not None and not chosen.are_on_device():
            self._drop_begun()
        return tokens

    def forget(self) -> None:
        """Drop all recordings, and the pass that was begun with one: its logits would hold it."""
        self._begun = None
        self.passes.forget()

    def _drop_begun(self) -> None:
        """A pass that was begun ahead is not taken up, and its logits may be written over."""
        self.passes.counts.dropped += self._begun is not None
        self._begun = None

    @torch.inference_mode()
    def choose(
        self, kept: Sequence[int], choices: Sequence[Choice], *, weighing: Weighing | None = None
    ) -> tuple[int, ...]:
        """See `Executor.choose`."""
        assert self._kept is not None, "only what was drafted is known without a pass"
        at = sent(kept, torch.int64, self.adapter.device)
        logits = self._kept.index_select(0, at)
        return choose(logits, choices, weigh=self._weigh(weighing)).tokens()

    def _keep_drafted(self, plan: Plan, outcome: PassOutcome) -> PassOutcome:
        """The outcome of the pass for its rows; the logits of drafted tokens [D, V] are kept."""
        rows = plan.num_rows
        self._kept = outcome.logits[rows:].clone()  # a recorded pass writes to the same place again
        greedy = outcome.greedy
        if greedy is not None:
            greedy = greedy[: 1 + rows]
        return replace(outcome, logits=outcome.logits[:rows], greedy=greedy)

    def _weigh(self, weighing: Weighing | None) -> Callable[[Tensor], Tensor] | None:
        """A function that weighs logits by the tokens written before, if any are weighed."""
        if weighing is None:
            return None
        self.weights.take(weighing)
        return partial(self.weights.weigh, told=weighing)

    def _with_targets(
        self, tokens: tuple[int, ...], plan: Plan, targets: Targets, outcome: PassOutcome
    ) -> Tokens:
        """The tokens with the logprobs of all targets, by row."""
        if self.facts.is_on_gpu:
            torch.cuda.current_stream(self.adapter.device).synchronize()
        told = [each for part in outcome.told for each in part.arrived()]
        rows = np.searchsorted(plan.row_indptr, targets.at, side="right") - 1
        by_row: dict[int, tuple[Logprobs, ...]] = {}
        for row in dict.fromkeys(rows.tolist()):
            first, stop = np.searchsorted(rows, (row, row + 1))
            by_row[row] = tuple(told[first:stop])
        return Tokens(tokens, tokens.logprobs if isinstance(tokens, Tokens) else {}, by_row)

    @torch.inference_mode()
    def record_ahead(self, told: Callable[[int, int], None]) -> None:
        """See `Executor.record_ahead`."""
        self._check_place()
        self.passes.record_ahead(self.facts.page_size, told, self._most_tokens)
        size = 1, self.facts.vocab_size
        get_ready(torch.zeros(size, dtype=self.adapter.dtype, device=self.adapter.device))

    @torch.inference_mode()
    def logits(self, plan: Plan) -> Tensor:
        """See `Executor.logits`."""
        self._check_place()
        # A recorded pass writes its logits to the same place again.
        self._drop_begun()
        return self._passed(plan).logits.clone()

    @torch.inference_mode()
    def move(self, moves: Sequence[Move]) -> None:
        """See `Executor.move`."""
        self.memory.move(moves, self.backend)
        self.passes.counts.moves += sum(not move.is_clearing for move in moves)

    @torch.inference_mode()
    def write_keys(
        self,
        merged: Merged,
        tokens: Ints,
        places: Places,
        found: Places | None = None,
        states: Kept | None = None,
    ) -> None:
        """See `Executor.write_keys`."""
        self._check_place()
        self.passes.settle()
        kept, targets = torch.as_tensor(tokens, device=self.adapter.device), self._at(places)

        def keep(k: Tensor, v: Tensor, call: LayerCall) -> None:
            if self.memory.writes(call.layer):
                self.memory.stores[call.layer].write(targets, k[kept], v[kept])

        has_room = True
        try:
            replay = Replay.of(merged, rows=[0]).to(self.adapter.device)
            room = None
            if self.states is not None and states is not None:
                assert replay.states is not None, "the past was merged without its states"
                room = States(self.adapter.model, replay.states.num_slots)
                room.copy(self.states, states.taken)
            replay.logits(self.adapter, keep, self._finder(found), room)
            if self.states is not None and states is not None and room is not None:
                self.passes.drop_begun()
                self.states.copy(room, states.left)
        except torch.OutOfMemoryError:  # not kept as the cause: its frames hold blocks
            has_room = False
        if not has_room:
            raise OutOfMemory(
                f"{self.facts.device} has no room for the forward over {merged.plan.num_tokens} tokens "
                f"that brings a run back to memory",
                hint="Give the engine fewer memory_tokens, so that more is left for such a forward.",
            )

    @torch.inference_mode()
    def replay(self, merged: Merged, rows: Sequence[int] | None = None) -> Tensor:
        """See `Executor.replay`."""
        self._check_place()
        self.passes.settle()
        return replay_logits(self.adapter, merged, rows)

    @torch.inference_mode()
    def make_up(self, places: Places, seed: int) -> None:
        """See `Executor.make_up`."""
        targets = self._at(places)
        for layer, store in enumerate(self.memory.stores):
            if self.memory.writes(layer):
                store.write(targets, *made_up(self.adapter, layer, len(places.slots), seed))

    @property
    def counts(self) -> PassCounts:
        """See `Executor.counts`."""
        return replace(self.passes.counts, compiled=num_compiled())

    def fingerprint(self) -> str:
        """See `Executor.fingerprint`."""
        return self.adapter.fingerprint()

    def peak_bytes(self) -> int | None:
        """See `Executor.peak_bytes`."""
        if not self.facts.is_on_gpu:
            return None
        return torch.cuda.max_memory_allocated(self.adapter.device)

    def forget_peak(self) -> None:
        """See `Executor.forget_peak`."""
        if self.facts.is_on_gpu:
            torch.cuda.reset_peak_memory_stats(self.adapter.device)

    def _at(self, places: Places) -> StoreTargets:
        """Slots [N] and rotations [N] on the device."""
        device = self.adapter.device
        slots, offsets = (torch.as_tensor(integers, device=device) for integers in places)
        return StoreTargets(slots, Rotations(offsets))

    def _finder(self, found: Places | None) -> Find | None:
        """Reads keys, rotated back to offset 0, and values from memory, layer by layer."""
        if found is None:
            return None
        back = self._at(Places(found.slots, -found.offsets))

        def find(call: LayerCall) -> tuple[Tensor, Tensor]:
            store = self.memory.stores[call.layer]
            keys, values = store.read(back.slots)
            own = self.adapter.dtype  # a store in eight bits gives float32
            return back.rotations.rotate(keys, store.rope).to(own), values.to(own)

        return find


def made_up(adapter: ModelAdapter, layer: int, num_tokens: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random keys [N, G, D], not rotated yet, and values [N, G, Dv]; the same seed, the same numbers."""
    generator = torch.Generator(adapter.device).manual_seed(seed * 1009 + layer)
    shape = adapter.layers[layer]

    def numbers(width: int) -> Tensor:
        size = (num_tokens, shape.num_kv_heads, width)
        return torch.randn(size, generator=generator, device=adapter.device).to(adapter.dtype)

    return numbers(shape.head_dim), numbers(shape.value_dim)


def _states(adapter: ModelAdapter, settings: ModelSettings) -> States | None:
    """Room for the states of texts, where the network keeps any.

    Raises InvalidRequest for a setting that such a network does not bear, OutOfMemory where they do not fit.
    """
    check_settings(settings, adapter.keeps_states)
    if not adapter.keeps_states:
        return None
    num_states = settings.states or default_states(adapter)
    try:
        return States(adapter.model, num_states)
    except RuntimeError as error:  # torch's allocators raise nothing narrower on the CPU
        raise OutOfMemory(
            f"{counted(num_states, 'state')} would take {num_states * state_bytes(adapter.model) / 2**30:.1f} GiB, which "
            f"{adapter.device} does not have",
            hint="Ask for fewer (--states).",
        ) from error


def _eos_ids(adapter: ModelAdapter) -> tuple[int, ...]:
    """The ids that end a turn by the model's generation configuration: none, one or several."""
    network = adapter.model
    said = getattr(network.generation_config, "eos_token_id", None)
    return end_ids(str(network.name_or_path), said)
