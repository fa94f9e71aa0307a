"""Memory of every rank that all ranks can write to, and sums through it.

A pass of a few tokens has two sums a layer of some ten kilobytes each, and what they cost is launches and the way
to the other GPU and back. With `Peers` a sum is one launch, together with the residual sum and the norm behind it
(`model/kernels/one_shot.py`). Of many tokens, as parts of prompts and crowds have, numbers come in rows in place of words: half of the
bytes, and a longer way. `finding.py` tries whether they can be had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from manyhands.model.layers import Norm

if TYPE_CHECKING:
    from manyhands.model.kernels.one_shot import Meeting

FEW = 32  # tokens of a sum up to which words are sooner there than flags


def is_recorded(x: Tensor) -> bool:
    """Whether what is launched on x now is recorded, and not made."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


class Peers:
    """One rank's way to the others' memory, for rows of one width and dtype."""

    def __init__(
        self, meeting: Meeting, dtype: torch.dtype, held: object = None, many: Meeting | None = None
    ) -> None:
        """`meeting` is for few tokens, `many` for more, where there is one; both wait no more when `meeting.stop` is set.

        `held`: what keeps the memory alive.
        """
        self.meeting = meeting
        self.many = many
        self.dtype = dtype
        self.num_made = 0  # sums, those of recordings left out
        self._held = held
        self._beside: tuple[Any, Tensor] | None = None
        if meeting.stop.is_cuda:
            # Made ahead: a kernel in the other stream may wait, and then nothing can be allotted or loaded.
            one = torch.ones(1, dtype=torch.int32).pin_memory()
            self._beside = torch.cuda.Stream(meeting.stop.device, priority=-1), one

    def can_sum(self, x: Tensor) -> bool:
        """Whether x [..., N] is of the right width and dtype, with few enough tokens."""
        width = self.meeting.width
        return (
            x.dtype == self.dtype and x.shape[-1] == width and x.numel() <= width * self.most_tokens
        )

    @property
    def most_tokens(self) -> int:
        """Tokens of the largest sum."""
        return max(self.meeting.places, 0 if self.many is None else self.many.places)

    def _meeting_of(self, x: Tensor) -> Meeting:
        """The one for so many tokens."""
        if self.many is None or x.numel() <= self.meeting.width * FEW:
            return self.meeting
        return self.many

    def keep_few(self) -> None:
        """Sums of many tokens were tried, and were wrong or did not arrive: have them made otherwise. Called by all ranks."""
        self.many = None
        self.meeting.stop.zero_()

    def sum(self, x: Tensor, patience: int | None = None, by: Meeting | None = None) -> Tensor:
        """The sum of all ranks' x [..., N], formed in float32 in the order of ranks.

        `by`: the meeting to be tried, in place of the one for so many tokens.
        """
        from manyhands.model.kernels.one_shot import PATIENCE, meet

        self.num_made += not is_recorded(x)
        return meet(by or self._meeting_of(x), None, x, patience=patience or PATIENCE)[0]

    def give_up(self) -> None:
        """Wait for nobody from now on, in a launch that runs already too: sums are NaN. From any thread."""
        assert self._beside is not None, "only on GPUs do ranks wait for each other's memory"
        stream, one = self._beside
        with torch.inference_mode(), torch.cuda.stream(stream):
            self.meeting.stop.copy_(one, non_blocking=True)  # a transfer: it needs no kernel

    def join(
        self, residual: Tensor | None, x: Tensor, post: Norm | None, pre: Norm | None
    ) -> tuple[Tensor, Tensor] | None:
        """As `model.layers.join` of the sum of all ranks' x [..., N]; None where norms differ in their form."""
        from manyhands.model.kernels.one_shot import meet

        if post is not None and pre is not None and post.form != pre.form:
            return None
        self.num_made += not is_recorded(x)
        known = post or pre
        form = 0 if known is None else known.form
        after, before = (norm.parts if norm else None for norm in (post, pre))
        total, normed = meet(self._meeting_of(x), residual, x, after, before, form)
        return total, total if normed is None else normed
