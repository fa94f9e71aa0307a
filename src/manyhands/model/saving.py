"""Which networks cannot be saved, and what is said to a caller that tries.

Transformers would write a folder without a word that nothing can load again, or that loads as another network: packed weights
lie in an order of ours, replaced parts have other names, and one rank's part is a smaller network.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn

from manyhands.errors import InvalidRequest
from manyhands.model.parallel.layers import NormOverRanks, OutputLayer, Summed
from manyhands.model.quantised.linear import Quantised
from manyhands.model.quantised.mxfp4 import Mxfp4Stack

_VERBS = ("save_pretrained", "push_to_hub", "add_adapter", "load_adapter")


def refuse_to_save(model: Any, *, is_fused: bool = False) -> None:
    """Have a network say why it cannot be saved, where it cannot: packed, one rank's part, or `is_fused`."""
    kinds = {type(module) for module in model.modules()}
    why, mends = [], []
    if is_fused:
        why.append("parts of it were replaced by faster ones that are for inference only")
        mends.append('fuse="off"')
    if any(issubclass(kind, Quantised | Mxfp4Stack) for kind in kinds):
        why.append("its weights are packed, in an order that no checkpoint has")
        mends.append('quantise="none"')
    if any(issubclass(kind, Summed | OutputLayer | NormOverRanks) for kind in kinds):
        why.append("it is one rank's part of a network")
        mends.append("ranks=1")
    if why:
        refuse = partial(_refuse, "; ".join(why), f"load it with {', '.join(mends)}")
        for verb in _VERBS:
            setattr(model, verb, refuse)


def _refuse(why: str, mend: str, *_: Any, **__: Any) -> NoReturn:
    raise InvalidRequest(
        f"this network cannot be saved, trained or given adapters: {why}", hint=mend
    )
