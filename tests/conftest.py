"""Without a GPU the kernels run under Triton's interpreter, which must be asked for before the import."""

import gc
import inspect
import math
import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch

# A script that begins the tests in the background has them ignore Ctrl-C, and all that they start inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# `nohup` does the same with the end of the terminal.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True, scope="session")
def _the_hub_is_there() -> Iterator[None]:
    """No test asks whether the hub can be reached; tests/test_hub.py has a hub that cannot."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("manyhands.hub._why_unreachable", lambda: None)
        yield


def pytest_collection_finish() -> None:
    """Modules stay: a collection of garbage, which tests ask for, need not look at them again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """At the end of the process they are looked at, as usual."""
    gc.unfreeze()


def quick_interpreter() -> None:
    """Let the interpreter make once what it makes at every operation: that takes more than half of its time away.

    As of Triton 3.9: each call of one kernel function by another lists all members of `triton.language`, although
    the launch has replaced them and puts them back when it ends; each look at a type builds the table of all types;
    each value makes its shape, its size and the name of its type anew. None of these changes once it is made. Each
    operation compares the two shapes number by number, each a constant of the language; equal shapes are one object
    here. Each sum of integers is made again in 64 bits for an assertion that exists in debug mode alone.
    """
    from triton.language import core
    from triton.language.core import is_builtin
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    names: dict[Any, list[str]] = {}

    def replace_builtins(module: Any, builder: object, scope: Any) -> None:
        if module not in names:
            names[module] = [n for n, each in inspect.getmembers(module) if is_builtin(each)]
        if is_builtin(getattr(module, names[module][-1])):  # all are replaced together
            for name in names[module]:
                interpreter._patch_attr(module, name, getattr(module, name), builder, scope)

    unwrap, make_type = core._unwrap_if_constexpr, core.block_type.__init__
    interned: dict[tuple[Any, ...], Any] = {}
    shapes: dict[int, tuple[Any, Any, Any]] = {}
    types: dict[tuple[Any, ...], dict[str, Any]] = {}

    def quick_unwrap(value: Any) -> Any:
        if isinstance(value, core.constexpr):
            return value.value
        return unwrap(value) if isinstance(value, (list, tuple, core.tuple)) else value

    def quick_tensor(self: Any, handle: Any, type: Any) -> None:
        shape = type.shape if isinstance(type, core.block_type) else ()
        # An id is of one shape as long as that shape lives, and `shapes` holds it.
        found = shapes.get(id(shape))
        if found is None:
            whole = core.tuple([core.constexpr(size) for size in shape])
            found = shapes[id(shape)] = whole, core.constexpr(math.prod(shape)), shape
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = found[:2]

    def quick_block_type(self: Any, element_ty: Any, shape: Any) -> None:
        # As with shapes: `known` holds the type.
        sizes = tuple(quick_unwrap(size) for size in shape)
        known = types.get((id(element_ty), *sizes))
        if known is None:
            make_type(self, element_ty, shape)
            self.shape = interned.setdefault(sizes, self.shape)
            types[id(element_ty), *sizes] = dict(vars(self))
        else:
            vars(self).update(known)

    broadcast, check_sum = (
        TritonSemantic.broadcast_impl_value,
        TritonSemantic.binary_op_sanitize_overflow_impl,
    )

    def quick_broadcast(self: Any, lhs: Any, rhs: Any) -> Any:
        left, right = lhs.type, rhs.type
        is_same = left.is_block() and right.is_block() and left.shape is right.shape
        return (lhs, rhs) if is_same else broadcast(self, lhs, rhs)

    def quick_check(self: Any, *operation: Any) -> None:
        if self.builder.options.debug:
            check_sum(self, *operation)

    numpy_type = interpreter._get_np_dtype
    numpy_types: dict[str, Any] = {}

    def quick_numpy_type(type: Any) -> Any:
        scalar = type.scalar
        if scalar.name not in numpy_types:
            numpy_types[scalar.name] = numpy_type(scalar)
        return numpy_types[scalar.name]

    interpreter._patch_builtin = replace_builtins
    interpreter._get_np_dtype = quick_numpy_type
    core._unwrap_if_constexpr = quick_unwrap
    core.tensor.__init__ = quick_tensor
    core.block_type.__init__ = quick_block_type
    TritonSemantic.broadcast_impl_value = quick_broadcast
    TritonSemantic.binary_op_sanitize_overflow_impl = quick_check


if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    if find_spec("triton") is not None:  # it comes for Linux only
        quick_interpreter()
