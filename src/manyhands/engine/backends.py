"""Which attention serves a model on this machine, and why: what `--backend` decides.

`auto` takes the kernels where they can run and plain torch elsewhere. A name that is asked for is taken
or refused with the reason; it is never replaced in silence. A new backend that serves every model is a row of
`ANYWHERE` and its name in `model/settings.py::BACKENDS`, which imports no torch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from manyhands.attention.attend import Backend
from manyhands.attention.reference import ReferenceBackend
from manyhands.attention.torch_backend import TorchBackend
from manyhands.engine.passes import ALONE, Others, Passes
from manyhands.errors import InvalidRequest
from manyhands.model.adapter import ModelAdapter
from manyhands.model.memory import Memory
from manyhands.model.recurrent import States
from manyhands.model.settings import BACKENDS

# The backends that serve every model on every device, by their names in BACKENDS; the only other one is the kernels'.
ANYWHERE: Mapping[str, Callable[[], Backend]] = MappingProxyType(
    {"torch": TorchBackend, "reference": ReferenceBackend}
)


@dataclass(frozen=True)
class ChosenBackend:
    """A backend and why it is this one; `page_size` is the one that suits it."""

    backend: Backend
    reason: str
    page_size: int


def check_backend(name: str) -> None:
    """Refuse a name that nobody knows. Cheap: asked before a model is loaded."""
    if name not in ("auto", *BACKENDS):
        raise InvalidRequest(
            f"there is no attention backend {name!r}", hint=f"Known: auto, {', '.join(BACKENDS)}."
        )


def choose_backend(name: str, adapter: ModelAdapter, *, eight_bits: bool = False) -> ChosenBackend:
    """The backend of this name for this model; `auto` is the fastest one that is exact here.

    `eight_bits`: of keys and values in memory.
    """
    check_backend(name)
    if name in ANYWHERE:
        return ChosenBackend(ANYWHERE[name](), "asked for", _SMALL_PAGE)
    assert name in ("auto", "triton"), f"the backend {name} is in BACKENDS and not in ANYWHERE"
    refusal = _refusal(adapter)
    if name == "auto" and adapter.device.type != "cuda":  # not in Triton's interpreter by chance
        refusal = f"they run on a CUDA device, and the model is on {adapter.device.type}"
    if refusal is None:
        reason = "asked for" if name == "triton" else "the kernels can serve this model"
        return ChosenBackend(_kernels(adapter, eight_bits), reason, _LARGE_PAGE)
    if name == "triton":
        raise InvalidRequest(
            f"the triton kernels cannot serve this model here: {refusal}",
            hint="Use --backend auto, which falls back to torch.",
        )
    return ChosenBackend(TorchBackend(), f"the triton kernels cannot: {refusal}", _SMALL_PAGE)


_SMALL_PAGE = 16  # tokens; a step of a team is a few dozen tokens long
_LARGE_PAGE = 64  # a key tile of the kernels lies on one page


def _refusal(adapter: ModelAdapter) -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (it comes for Linux, with torch for CUDA)"
    from manyhands.attention.fitting import refusal

    return refusal(adapter.layers, adapter.dtype, adapter.device)


def _kernels(adapter: ModelAdapter, eight_bits: bool) -> Backend:
    from manyhands.attention.triton_backend import TritonBackend

    return TritonBackend(adapter.layers, adapter.dtype, adapter.device, eight_bits=eight_bits)


def make_passes(
    adapter: ModelAdapter,
    memory: Memory,
    backend: Backend,
    *,
    graphs: bool,
    others: Others = ALONE,
    states: States | None = None,
) -> Passes:
    """How passes are run: recorded as CUDA graphs where the kernels run on a GPU. `states`: of a network whose linear layers keep some."""
    if graphs and backend.name == "triton" and adapter.device.type == "cuda":
        from manyhands.attention.triton_backend import TritonBackend
        from manyhands.engine.graphs import GraphedPasses
        from manyhands.engine.recorder import CudaRecorder

        assert isinstance(backend, TritonBackend)
        # Ranks make the same sums in the same order, whatever one of them finds.
        recorder = CudaRecorder(adapter.device, always_runs=others is not ALONE)
        return GraphedPasses(adapter, memory, backend, recorder, others, states)
    return Passes(adapter, memory, backend, others, states)
