"""Is the trace what the model writes? All passes in one parallel forward, compared token by token.

R  rows that wrote a token      V  vocabulary
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from manyhands.cache.step import Choice
from manyhands.engine.sampling import choose
from manyhands.errors import BrokenTrace, InvalidRequest
from manyhands.model.adapter import ModelAdapter
from manyhands.replay.forward import merge_trace, replay_logits
from manyhands.replay.trace import Trace

# By bytes of the dtype: logits lie around 10, and their errors add up over the layers.
_ROUNDING = {2: 0.5, 4: 1e-3, 8: 1e-6}
_LOGITS_AT_ONCE = 1 << 28  # numbers; a vocabulary of 150 000 allows 1 700 rows in one forward


@dataclass(frozen=True)
class Verification:
    """How much of a greedy run the model would write again.

    `largest_gap` is the greatest difference between the likeliest logit and that of the recorded
    token, where the two tokens differ. Within `rounding`, how far apart two logits may be whose order
    the model's dtype leaves to chance, that is a rounding error; beyond, it is another model.
    """

    num_tokens: int
    num_agreeing: int
    largest_gap: float
    rounding: float

    @property
    def is_right(self) -> bool:
        """Whether the model would write this, but for tokens that are all but equally likely."""
        return self.largest_gap <= self.rounding

    @property
    def agreement(self) -> float:
        """The fraction of tokens that agree; 1 if there are none."""
        return self.num_agreeing / self.num_tokens if self.num_tokens else 1.0


@torch.inference_mode()
def verify(adapter: ModelAdapter, trace: Trace, choice: Choice) -> Verification:
    """Compare every token that somebody wrote with the greedy choice of the replayed logits."""
    written = [row for rows in trace.passes for row in rows]
    of_writers = np.array(
        [at for at, row in enumerate(written) if row.writer is not None], np.int64
    )
    if not len(of_writers):
        return Verification(0, 0, 0.0, 0.0)
    _check_vocabulary(adapter, trace)
    try:
        merged = merge_trace(trace, keeps_states=adapter.keeps_states)
    except InvalidRequest as error:
        raise BrokenTrace(f"the trace cannot be run again: {error}") from error
    num_agreeing, largest_gap = 0, 0.0
    size = max(1, _LOGITS_AT_ONCE // adapter.vocab_size)
    for start in range(0, len(of_writers), size):
        rows = of_writers[start : start + size]
        logits = replay_logits(adapter, merged, rows).float()  # [R, V]
        choices = [replace(choice, forbidden=written[row].forbidden) for row in rows]
        chosen = choose(logits, choices).tokens()
        recorded = [written[row].token for row in rows]
        for row, (ours, theirs) in enumerate(zip(chosen, recorded, strict=True)):
            if ours == theirs:
                num_agreeing += 1
            else:
                gap = float(logits[row, ours] - logits[row, theirs])
                largest_gap = max(largest_gap, gap)
    rounding = _ROUNDING[adapter.dtype.itemsize]
    return Verification(len(of_writers), num_agreeing, largest_gap, rounding)


def _check_vocabulary(adapter: ModelAdapter, trace: Trace) -> None:
    tokens = [t for rows in trace.passes for row in rows for t in (*row.feed, row.token)]
    if max(tokens) >= adapter.vocab_size:  # a trace has none below 0
        raise InvalidRequest(
            f"the trace has tokens up to {max(tokens)}, and the model's vocabulary has "
            f"{adapter.vocab_size}",
            hint="name the model that the run was made with: --model",
        )
