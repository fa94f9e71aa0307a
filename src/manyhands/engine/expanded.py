"""Prompts of networks with latent attention (MLA) in the expanded form; all other rows attend in the absorbed one.

Absorbed, all heads of a query meet one latent, R + C dims for the score and C for the output. Expanded, they meet keys
and values of their own, R + N and Dv dims, a third of the arithmetic with DeepSeek's sizes; but these are made first, of
every latent that is read, whichever of its tokens need it. So it pays for rows that feed many tokens at once, and a row
that writes one token stays with the latents.

All rows of a pass write first. Then, layer by layer, the pages that prompts read are copied from the store, expanded,
read by the prompts' tokens, and let go. k_pe is stored rotated by the block's ruler, and stays so: views, moves
and shared prefixes are what they are in the store. Recorded passes attend in the absorbed form, and a pass with
such prompts is not recorded.

    T  new tokens      P, S  pages and slots of the copy      H  query heads      R, N  rotated and other dims of a head's key
    C  dims of a latent      Dv  dims of a head's value
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from manyhands.attention.attend import Backend, LatentForms, LayerCall
from manyhands.attention.store import LayerShape, LayerStore, Targets
from manyhands.attention.torch_backend import TorchBackend
from manyhands.attention.work import Bools
from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.places import Ints
from manyhands.cache.plan import Plan, of_rows, over_copied_pages
from manyhands.cache.planner import Planner
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.model.adapter import ModelAdapter
from manyhands.model.latent import expanded_shape, is_latent
from manyhands.model.memory import Memory, free_bytes

# Tokens that a row feeds at least to be a prompt. Expanding a latent takes 2 C (N + Dv) operations a head, and saves a token that
# reads it 2 ((R + C) + C - (R + N) - Dv): with DeepSeek's C = 512 and N = Dv = 128 as much from 171 tokens on, with the broad
# heads of GLM-4.7-Flash (192 and 256) from 398. One product over all latents lies nearer to a GPU's limit than attention does.
LEAST = 256
# Bytes of the expanded keys and values of one layer; while they are made, nearly as much again. Latents of more stay as they are.
MOST_BYTES = 1 << 29
# Pairs of a prompt's token and a key in a pass, from which on it pays by kernels, where more launches count. Of a whole network of
# DeepSeek-V2-Lite's shape prompts of 2 k take 14 ms longer on an H200, of 8 k 42 ms less, of 16 k in two passes 160 ms less.
MUCH = 1 << 24
# Tokens of the prompts of passes whose kernels are loaded ahead: of few tokens heads are split and leave partials, of many they
# leave outputs; beside a prompt that reads another's strip and its own, some leave outputs and others partials.
_LOADED = ((LEAST,), (4096,), (4096, LEAST))


@dataclass(frozen=True, eq=False)
class ExpandedRows:
    """The rows of one pass that attend in the expanded form, and the others."""

    plan: Plan  # of these rows, over a copy of the pages that they read
    tokens: Ints  # where their tokens stand among all
    pages: Ints  # [P]: the pages that are copied
    others: tuple[Plan, Ints] | None  # the same of the other rows; None: there are none


class ExpandedForm:
    """The expanded form of one network: which backend serves it, and which rows of a plan have it."""

    def __init__(
        self, backend: Backend, shape: LayerShape, dtype: torch.dtype, device: torch.device
    ) -> None:
        """`shape`: the heads of every layer in this form."""
        self.backend = backend
        self._device = device
        self._shape = shape
        self._token_bytes = shape.numbers_per_token * dtype.itemsize

    @classmethod
    def of(cls, adapter: ModelAdapter, backend: Backend) -> Self | None:
        """The expanded form beside this backend; None where the network has no latents, or nothing serves it."""
        if not is_latent(adapter.config):
            return None
        shape = expanded_shape(adapter.config)
        own = _serving(backend, shape, adapter)
        if own is None:
            return None
        return cls(own, shape, adapter.dtype, adapter.device)

    def has_prompts(self, plan: Plan) -> bool:
        """Whether this form spares more of a pass than it costs."""
        return bool(self._prompts(plan).any())

    def _prompts(self, plan: Plan) -> Bools:
        sizes = np.diff(plan.row_indptr)
        are_prompts: Bools = sizes >= LEAST
        if not are_prompts.any():
            return are_prompts
        keys = plan.positions[plan.row_indptr[1:] - 1] + 1
        is_much = int((sizes * keys)[are_prompts].sum()) >= self._least_pairs
        return are_prompts & is_much

    def are_many(self, num_tokens: int) -> bool:
        """Whether a prompt of so many tokens, in one pass, would have this form."""
        return num_tokens >= LEAST and num_tokens**2 >= self._least_pairs

    @property
    def _least_pairs(self) -> int:
        return 0 if isinstance(self.backend, TorchBackend) else MUCH

    def rows_of(self, plan: Plan) -> ExpandedRows | None:
        """The rows of this plan that are prompts; None if there are none, or they read more than there is room for."""
        is_prompt = self._prompts(plan)
        if not is_prompt.any():
            return None
        part, tokens = of_rows(plan, is_prompt.nonzero()[0].tolist())
        part, pages = over_copied_pages(part)
        size = len(pages) * plan.page_size * self._token_bytes
        if size > MOST_BYTES or 2 * size > room_of_passes(self._device):
            return None
        others = None if is_prompt.all() else of_rows(plan, (~is_prompt).nonzero()[0].tolist())
        return ExpandedRows(part, tokens, pages, others)

    @torch.inference_mode()
    def load(self, memory: Memory, page_size: int) -> None:
        """Launch its kernels for prompts of nothing, so that none is compiled or loaded when the first prompts come.

        A device without room for such prompts lacks the kernels, too, until some come.
        """
        shape, rope = self._shape, memory.stores[0].rope
        for counts in _LOADED:
            pool = PagePool(sum(-(-count // page_size) for count in counts), page_size)
            slots = pool.num_slots
            if 2 * slots * self._token_bytes > room_of_passes(self._device):
                continue
            blocks = [Block() for _ in counts]
            views = [View(blocks[: number + 1]) for number in range(len(counts))]
            rows = [Row(view, (0,) * count) for view, count in zip(views, counts, strict=True)]
            plan = Planner(pool).plan(Step(rows))
            room = memory.stores[0].keys
            store = LayerStore(
                room.new_zeros(slots, shape.num_kv_heads, shape.head_dim),
                room.new_zeros(slots, shape.num_kv_heads, shape.value_dim),
                rope,
            )
            q = room.new_zeros(sum(counts), shape.num_heads, shape.head_dim)
            prepared = self.backend.prepare(plan, memory.device)
            self.backend.attend(store, q, prepared, LayerCall(layer=0, scaling=1.0))


class AttendingInForms:
    """The attention that layers with latents call during a pass that has prompts: write all rows, then read.

    It brings queries into either form itself (`LayerCall.forms`).
    """

    takes_forms = True

    def __init__(
        self, plan: Plan, rows: ExpandedRows, form: ExpandedForm, memory: Memory, backend: Backend
    ) -> None:
        """`rows` of `plan` are attended in the expanded `form`, the others by `backend`."""
        device = memory.device
        self.memory = memory
        self._targets = Targets.of(plan, device)
        slots = rows.pages[:, None] * plan.page_size + np.arange(plan.page_size)
        self._slots = torch.as_tensor(slots.flatten(), device=device)
        self._expanded = _Part.of(rows.plan, rows.tokens, form.backend, device)
        self._absorbed = rows.others and _Part.of(*rows.others, backend, device)

    def takes_norms(self, layer: int) -> bool:
        """No norm may be left: keys are written by no backend."""
        return False

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> Tensor:
        """One layer; see `attention.attend.AttendFn`."""
        forms = call.forms
        assert forms is not None, "all layers of a network with latents have them"
        call = replace(call, forms=None)
        store = self.memory.stores[call.layer]
        if self.memory.writes(call.layer):
            store.write(self._targets, k, v)
        expanded, absorbed = self._expanded, self._absorbed
        whole = expanded_store(store, self._slots, forms)
        mine = q if absorbed is None else q.index_select(0, expanded.tokens)
        out = expanded.attend(whole, forms.expanded_queries(mine), call)
        if absorbed is None:
            return out
        theirs = forms.queries(q.index_select(0, absorbed.tokens))
        both = out.new_empty(len(q), *out.shape[1:])
        both.index_copy_(0, expanded.tokens, out)
        both.index_copy_(0, absorbed.tokens, forms.values(absorbed.attend(store, theirs, call)))
        return both


def room_of_passes(device: torch.device) -> float:
    """Bytes that a pass may take: on a GPU what is free, and what torch holds and does not use."""
    if device.type != "cuda":
        return float("inf")  # as for all else that passes take there
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free_bytes(device) + idle


def expanded_store(store: LayerStore, slots: Tensor, forms: LatentForms) -> LayerStore:
    """The keys [S, H, R + N] and values [S, H, Dv] that a layer makes of the latents at `slots` [S].

    What was never written may be anything, and so is what is made of it: no row sees it there, nor here.
    """
    keys, latents = store.read(slots)
    bare, values = forms.keys_and_values(latents[:, 0])
    rotated = keys[..., : -store.value_dim].expand(-1, bare.shape[1], -1)
    return LayerStore(torch.cat((rotated, bare), dim=-1), values.contiguous(), store.rope)


@dataclass(frozen=True, eq=False)
class _Part:
    """Some rows of a pass, and the backend that attends for them."""

    backend: Backend
    prepared: Any
    tokens: Tensor

    @classmethod
    def of(cls, plan: Plan, tokens: Ints, backend: Backend, device: torch.device) -> Self:
        """Prepare their plan."""
        prepared = backend.prepare(plan, device)
        return cls(backend, prepared, torch.as_tensor(tokens, device=device))

    def attend(self, store: LayerStore, q: Tensor, call: LayerCall) -> Tensor:
        """Attend for their tokens, of which q is."""
        return self.backend.attend(store, q, self.prepared, call)


def _serving(backend: Backend, shape: LayerShape, adapter: ModelAdapter) -> Backend | None:
    """A backend of the same kind for heads of this shape; plain torch serves any, kernels what they say, the reference none."""
    if isinstance(backend, TorchBackend):
        return TorchBackend(backend.budget, backend.long_run)
    if backend.name != "triton":
        return None
    from manyhands.attention.fitting import serves_expanded
    from manyhands.attention.triton_backend import TritonBackend

    if not serves_expanded(shape, adapter.dtype, adapter.device):
        return None
    return TritonBackend([shape] * adapter.num_layers, adapter.dtype, adapter.device)
