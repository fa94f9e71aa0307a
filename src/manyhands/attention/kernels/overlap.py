"""Kernels that begin before the launch in front has ended (programmatic dependent launch, from Hopper on).

From the end of one kernel to the beginning of the next a GPU does nothing for about a microsecond, even
inside a CUDA graph, and then every program first waits for memory. A decode pass is some five hundred
launches, so both add up. A kernel launched to overlap is brought in while the one in front still runs,
and all kernels here keep three rules:

    before `take_over`   only what no kernel of the pass writes is read: weights, and the plan's integers
    `take_over`          waits until the launch in front is over, and lets the next one come in
    by whom              by every program that writes, and by at least one of every launch: the next one
                         comes in when all programs have let it, or are gone

Since a launch lets the next one in only after its own wait, what a kernel reads before its wait was
written at least two launches ago.

A launch that lets the next one in *early*, before its own wait, may do so if that one reads nothing but weights before
its wait: then these are on their way while two launches in front still end.

A launch *beside* the one in front begins without a wait, and both run at once: neither reads what the other
writes. All in front of both is over by then, since the first has let it in behind its own wait. Its first item
waits at the end instead (`end_beside`), so whatever waits for it waits for both. Only behind a wait is the
first-level cache known to hold what the pass has written, so queries are asked of the second-level one. Most
keys come from there in any case; the rest lie where nothing has read since the pass before.
"""

# Kernels are written in Triton's language, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl

_FIRST = (9, 0)  # compute capability


@triton.jit
def take_over(OVERLAP: tl.constexpr, BESIDE: tl.constexpr = False, EARLY: tl.constexpr = False):
    """Wait for the launch in front, unless this one is beside it; then, or early, the next one may come in."""
    if OVERLAP:
        if EARLY:
            tl.extra.cuda.gdc_launch_dependents()
        if not BESIDE:
            tl.extra.cuda.gdc_wait()
        if not EARLY:
            tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def end_beside(BESIDE: tl.constexpr):
    """The end of program (head, item): the first item waits for the launch in front, if this one is beside it."""
    if BESIDE:  # noqa: SIM102 - known when it is compiled, and the other is not
        if tl.program_id(1) == 0:
            tl.extra.cuda.gdc_wait()


def launch_options(device: torch.device, *, overlap: bool = True) -> dict[str, Any]:
    """Arguments of a launch whose kernel has an OVERLAP and calls `take_over`.

    With `overlap` false it begins when all in front of it has ended: where it waits for two streams, or reads before
    its wait what was just written.
    Joining a product and a sum is asked for outright, because Triton's default is about to change.
    """
    if not _can_overlap(device):
        return {"OVERLAP": False, "enable_fp_fusion": True}
    return {"OVERLAP": True, "launch_pdl": overlap, "enable_fp_fusion": True}


@functools.cache
def _can_overlap(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _FIRST
