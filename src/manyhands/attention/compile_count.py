"""Which kernels this process has compiled, or loaded from Triton's cache on disk.

A kernel is compiled when it is launched for the first time with a kind of arguments that it has not met.
While a server answers, that is a stall of tens of milliseconds to seconds, so it is counted.
"""

from __future__ import annotations

from typing import Any

_compiled: list[str] = []


def num_compiled() -> int:
    """Kernels compiled or loaded since `start_counting`."""
    return len(_compiled)


def compiled_since(number: int) -> tuple[str, ...]:
    """The kernels behind the first `number`, in order: name, options, types of their arguments, constants."""
    return tuple(_compiled[number:])


def start_counting() -> None:
    """Count from now on; called again it does nothing. A hook that somebody else has set stays."""
    from triton import knobs

    if knobs.runtime.jit_post_compile_hook is None:
        knobs.runtime.jit_post_compile_hook = _count


def _count(
    *_: object, repr: str = "?", compile: dict[str, Any] | None = None, **__: object
) -> None:
    constants = (compile or {}).get("constants", {})
    _compiled.append(f"{repr} {list(constants.values())}")
