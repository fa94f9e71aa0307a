"""Replay: a run's attention, all passes at once, with gradients if they are wanted.

The logits of every row of every pass come out of one forward over all tokens of the run, equal to
those the run saw. Used to learn from runs (`train.py`) and to restore one (`engine/restore.py`).

    T  tokens of the run      S  slots      R  rows of all passes
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from manyhands.attention import strips
from manyhands.attention.attend import AttendFn, LayerCall
from manyhands.attention.rotary import Rotations
from manyhands.attention.store import LayerStore
from manyhands.attention.strips import Strips
from manyhands.attention.torch_backend import Prepared, TorchBackend
from manyhands.cache.places import Ints
from manyhands.cache.states import RowStates
from manyhands.errors import InvalidRequest, UnsupportedModel
from manyhands.model.adapter import ModelAdapter
from manyhands.model.recurrent import StateCall, States
from manyhands.replay.merged import Merged, merge_passes
from manyhands.replay.text_rows import TextRows
from manyhands.replay.trace import Trace

_BACKEND = TorchBackend()
Keep = Callable[[Tensor, Tensor, LayerCall], None]
Find = Callable[[LayerCall], tuple[Tensor, Tensor]]


def merge_trace(trace: Trace, *, keeps_states: bool = False) -> Merged:
    """The plan of a whole trace. `keeps_states`: for a network some of whose layers do (`ModelAdapter.keeps_states`).

    Raises InvalidRequest where such a network cannot have made the trace, and for one without a pass.
    """
    given: object = trace
    if not isinstance(given, Trace):
        raise InvalidRequest(
            f"a {type(given).__name__} was given to be replayed; expected a Trace",
            hint="Write merge_trace(read_trace(path)).",
        )
    if not trace.passes:
        raise InvalidRequest(
            "the trace has no pass that could be replayed: the run was cut short before its first one",
            hint="Give the trace of a run that has written something.",
        )
    text_rows = TextRows() if keeps_states else None
    return merge_passes((step for step, _ in trace.steps()), trace.num_tokens, text_rows=text_rows)


@dataclass(frozen=True, eq=False)
class Replay:
    """A merged run as tensors: what one parallel forward needs, on one device."""

    token_ids: Tensor  # [T]
    slot_token: Tensor  # [S]
    slot_offset: Tensor  # [S]
    keep: Tensor  # packed indices whose logits are wanted
    prepared: Prepared | Strips
    states: RowStates | None = None  # for a network that keeps some

    @classmethod
    def of(
        cls,
        merged: Merged,
        rows: Sequence[int] | Ints | None = None,
        budget: int = 1 << 22,
        *,
        fused: bool = False,
    ) -> Replay:
        """For the logits of `rows` (default: all R), on the CPU.

        `budget`: see `TorchBackend`. `fused`: by kernels with gradients (`attention/strips.py`) instead of that
        backend; for networks all of whose layers they know (`fits_kernels`).
        """
        last = (
            merged.plan.last if rows is None else merged.plan.last[np.asarray(rows, dtype=np.int64)]
        )
        prepared: Prepared | Strips
        if fused:
            prepared = Strips.of(merged.plan)
        else:
            prepared = TorchBackend(budget).prepare(merged.plan, torch.device("cpu"))
        return cls(
            token_ids=torch.as_tensor(merged.plan.token_ids),
            slot_token=torch.as_tensor(merged.slot_token),
            slot_offset=torch.as_tensor(merged.slot_offset),
            keep=torch.as_tensor(last),
            prepared=prepared,
            states=merged.plan.states,
        )

    def to(self, device: torch.device) -> Replay:
        """The same replay on another device."""
        return Replay(
            self.token_ids.to(device, non_blocking=True),
            self.slot_token.to(device, non_blocking=True),
            self.slot_offset.to(device, non_blocking=True),
            self.keep.to(device, non_blocking=True),
            self.prepared.to(device),
            self.states,
        )

    def logits(
        self,
        adapter: ModelAdapter,
        keep: Keep | None = None,
        find: Find | None = None,
        states: States | None = None,
    ) -> Tensor:
        """Logits [len(keep), vocab]. Differentiable when gradients are enabled.

        `keep` is shown every layer's k [T, G, D] and v [T, G, Dv], not rotated; `find` gives those of
        the tokens that were there before (`found` in `merge_passes`). `states`: room for those of a network that keeps
        some, where it is wanted afterwards. Raises UnsupportedModel for such a network and a run that was merged
        without them, and where gradients are asked for: slots are written in place.
        """
        call = None
        if adapter.keeps_states:
            if self.states is None or torch.is_grad_enabled():
                raise UnsupportedModel(
                    f"model type {adapter.config.model_type!r} keeps states of texts, and a replay for gradients or "
                    "without the order of its texts is not built for it",
                    hint="train another network; runs of this one can be restored and verified",
                )
            if states is None:
                states = States(adapter.model, self.states.num_slots)
            call = StateCall.of(states, self.states)
        return adapter.forward(self.token_ids, self.keep, self.attention(adapter, keep, find), call)

    def attention(
        self, adapter: ModelAdapter, keep: Keep | None = None, find: Find | None = None
    ) -> AttendFn:
        """The function by which the network's layers attend; `keep` and `find` as in `logits`."""
        rotations, prepared = Rotations(self.slot_offset), self.prepared

        def attend(q: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> Tensor:
            if keep is not None:
                keep(k, v, call)
            if find is not None:
                found_k, found_v = find(call)
                k, v = torch.cat((k, found_k)), torch.cat((v, found_v))
            # Keys are not stored: each slot takes the key of the token that lay there, as it lay.
            rope = adapter.ropes[call.layer]
            keys = rotations.rotate(k.index_select(0, self.slot_token), rope)  # [S, G, D]
            values = v.index_select(0, self.slot_token)
            store = LayerStore(keys, values, rope)
            if isinstance(prepared, Strips):
                return strips.attend(store, q, prepared, call)
            return _BACKEND.attend(store, q, prepared, call)

        return attend


@torch.no_grad()
def fits_kernels(adapter: ModelAdapter) -> bool:
    """Whether a fused replay can serve all layers of this network on its device."""
    if adapter.device.type != "cuda" or find_spec("triton") is None:
        return False
    calls: list[tuple[LayerCall, int]] = []

    def noted(q: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> Tensor:
        calls.append((call, max(q.shape[-1], v.shape[-1])))
        return q.new_zeros(*q.shape[:2], v.shape[-1])

    adapter.forward(torch.zeros(1, dtype=torch.int64, device=adapter.device), None, noted)
    return all(strips.can_attend(call, size, adapter.dtype) for call, size in calls)


def replay_logits(
    adapter: ModelAdapter, merged: Merged, rows: Sequence[int] | Ints | None = None
) -> Tensor:
    """Logits [len(rows), vocab] after the last token of the given rows (default: all R of them).

    Differentiable: wrap it in `torch.no_grad()` where no gradient is wanted.
    """
    return Replay.of(merged, rows).to(adapter.device).logits(adapter)
