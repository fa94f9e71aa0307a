"""Triton's interpreter with a memory: an operation takes half the time.

As of Triton 3.9. Nothing that is remembered here changes once it is made, and no number changes: an operation that is
not known yet is left to Triton's own code, which also finds all mistakes, and its types are remembered.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter


def quick_interpreter() -> None:
    """Put the quick parts in place of Triton's."""
    _replace_once()
    _intern_types()
    _remember_operations()


def _replace_once() -> None:
    """A call of one kernel function by another replaces nothing: the launch has replaced all of `triton.language`.

    A function of the language is called at once, and not through two that take its last argument out and put it back.
    """
    builtins: dict[Any, list[str]] = {}
    languages: dict[Any, list[Any]] = {}
    quick: dict[Any, Any] = {}
    replace_all, replace_one = interpreter._patch_lang, interpreter._patch_attr
    ranges = [(module, module.range) for module in (interpreter.tl, core)]
    checked = core.add.__code__  # of all that is marked as a builtin

    def replace_builtins(module: Any, builder: object, scope: Any) -> None:
        if module not in builtins:
            members = inspect.getmembers(module)
            builtins[module] = [name for name, each in members if core.is_builtin(each)]
        for name in builtins[module]:
            member = getattr(module, name)
            if core.is_builtin(member):
                interpreter._patch_attr(module, name, member, builder, scope)

    def replace_member(place: Any, name: str, member: Any, builder: object, scope: Any) -> None:
        if getattr(member, "__code__", None) is not checked:
            replace_one(place, name, member, builder, scope)
            return
        if member not in quick:
            quick[member] = quick_member(member.__wrapped__)
        scope.set_attr(place, name, quick[member])

    def quick_member(work: Any) -> Any:
        semantic = interpreter.interpreter_semantic

        def member(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return work(*args, **kwargs)

        return member

    def replace_language(function: Any) -> Any:
        found = languages.get(function)
        if found is None:
            seen = {id(each) for each in function.__globals__.values() if inspect.ismodule(each)}
            found = languages[function] = [both for both in ranges if id(both[0]) in seen]
        for module, usual in found:
            if module.range is usual:
                return replace_all(function)
        return None if found else replace_all(function)  # None: within a launch

    interpreter._patch_builtin = replace_builtins
    interpreter._patch_attr = replace_member
    interpreter._patch_lang = replace_language


def _intern_types() -> None:
    """Types of blocks, shapes and NumPy's names of types are made once; equal shapes are one object."""
    unwrap, make_type = core._unwrap_if_constexpr, core.block_type.__init__
    tensor, block_type = core.tensor, core.block_type
    interned: dict[tuple[Any, ...], Any] = {}
    # An id is of one object as long as that lives, and all that is remembered lives.
    types: dict[tuple[Any, ...], dict[str, Any]] = {}
    types_of_shape: dict[tuple[int, int], dict[str, Any]] = {}

    def quick_unwrap(value: Any) -> Any:
        if value.__class__ is tensor:
            return value
        if isinstance(value, core.constexpr):
            return value.value
        return unwrap(value) if isinstance(value, (list, tuple, core.tuple)) else value

    def quick_tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type = handle, type
        if type.__class__ is block_type:
            self.dtype = type.element_ty
            self.shape, self.numel = type.of_tensors
        else:
            self.dtype = type.scalar
            self.shape, self.numel = no_shape

    def quick_block_type(self: Any, element_ty: Any, shape: Any) -> None:
        known = types_of_shape.get((id(element_ty), id(shape)))
        if known is None:
            sizes = tuple([quick_unwrap(size) for size in shape])
            known = types.get((id(element_ty), *sizes))
            if known is None:
                make_type(self, element_ty, shape)
                self.shape = interned.setdefault(sizes, self.shape)
                self.of_tensors = of_tensors(self.shape)
                known = types[id(element_ty), *sizes] = dict(vars(self))
                types_of_shape[id(element_ty), id(self.shape)] = known
        vars(self).update(known)

    def of_tensors(shape: Any) -> tuple[Any, Any]:
        """Shape and size of a tensor, as its code has them."""
        return core.tuple([core.constexpr(size) for size in shape]), core.constexpr(
            math.prod(shape)
        )

    no_shape = of_tensors(())
    check_size = interpreter.TensorHandle.__post_init__

    def quick_handle(self: Any, data: Any, dtype: Any, attr: Any = None) -> None:
        self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr
        is_number = data.itemsize > 1 and dtype.__class__ is not core.pointer_type
        if is_number and data.itemsize << 3 > dtype.primitive_bitwidth:
            check_size(self)

    make_named = interpreter.tl.str_to_ty
    named: dict[str, Any] = {}

    def quick_named(name: Any, c: Any) -> Any:
        """An argument's type, of a pointer mostly: made for each launch anew it would be remembered as another one."""
        if c is not None or not isinstance(name, str):
            return make_named(name, c)
        if name not in named:
            named[name] = make_named(name, c)
        return named[name]

    make_pointer = interpreter.InterpreterBuilder.get_ptr_ty
    pointers: dict[tuple[int, Any], Any] = {}

    def quick_pointer(self: Any, element_ty: Any, space: Any) -> Any:
        """The same for the type of a block's elements, which holds the type that it points to."""
        if (id(element_ty), space) not in pointers:
            pointers[id(element_ty), space] = make_pointer(self, element_ty, space)
        return pointers[id(element_ty), space]

    numpy_type = interpreter._get_np_dtype
    numpy_types: dict[str, Any] = {}

    def quick_numpy_type(type: Any) -> Any:
        scalar = type.scalar
        found = numpy_types.get(scalar.name)
        if found is None:
            found = numpy_types[scalar.name] = numpy_type(scalar)
        return found

    interpreter.tl.str_to_ty = quick_named
    interpreter.InterpreterBuilder.get_ptr_ty = quick_pointer
    interpreter._get_np_dtype = quick_numpy_type
    core._unwrap_if_constexpr = quick_unwrap
    interpreter.TensorHandle.__init__ = quick_handle
    tensor.__init__ = quick_tensor
    block_type.__init__ = quick_block_type


def _remember_operations() -> None:
    """Remember the types and the shape that two sides of an operation get, and a number as a tensor beside another.

    A sum of integers is not made again in 64 bits for an assertion that exists in debug mode alone.
    """
    broadcast, check_sum, agree, cast = (
        TritonSemantic.broadcast_impl_value,
        TritonSemantic.binary_op_sanitize_overflow_impl,
        TritonSemantic.binary_op_type_checking_impl,
        TritonSemantic.cast,
    )
    tensor, block_type, make_handle = core.tensor, core.block_type, interpreter.TensorHandle
    # Each holds the objects whose ids are its key.
    agreed: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    numbers: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    joined: dict[tuple[int, int], tuple[Any, ...]] = {}

    def quick_cast(self: Any, value: Any, to: Any, *rounding: Any, **named: Any) -> Any:
        return value if value.dtype is to.scalar else cast(self, value, to, *rounding, **named)

    def shaped(value: Any, shape: Any) -> Any:
        data = np.broadcast_to(value.handle.data, shape)
        return tensor(make_handle(data, value.dtype), block_type(value.dtype, shape))

    def quick_broadcast(self: Any, lhs: Any, rhs: Any) -> Any:
        left, right = lhs.type, rhs.type
        if not (left.is_block() and right.is_block()):
            return broadcast(self, lhs, rhs)
        if left.shape is right.shape:
            return lhs, rhs
        known = joined.get((id(left.shape), id(right.shape)))
        if known is None:
            both = broadcast(self, lhs, rhs)
            if len(left.shape) == len(right.shape):
                joined[id(left.shape), id(right.shape)] = (
                    both[0].type.shape,
                    left.shape,
                    right.shape,
                )
            return both
        shape = known[0]
        return (
            lhs if left.shape is shape else shaped(lhs, shape),
            rhs if right.shape is shape else shaped(rhs, shape),
        )

    def quick_agree(self: Any, lhs: Any, rhs: Any, *how: bool, **named: bool) -> Any:
        is_left, is_right = lhs.__class__ is tensor, rhs.__class__ is tensor
        if named or not (is_left or is_right):
            return agree(self, lhs, rhs, *how, **named)
        if not is_right:
            return with_number(self, lhs, rhs, how, False)
        if not is_left:
            return with_number(self, rhs, lhs, how, True)
        left, right = lhs.dtype, rhs.dtype
        known = agreed.get((id(left), id(right), *how))
        if known is None:
            both = agree(self, lhs, rhs, *how)
            agreed[id(left), id(right), *how] = both[0].dtype, both[1].dtype, left, right
            return both
        if left is not known[0]:
            lhs = cast(self, lhs, known[0])
        if right is not known[1]:
            rhs = cast(self, rhs, known[1])
        return quick_broadcast(self, lhs, rhs)

    def with_number(self: Any, value: Any, number: Any, how: Any, is_first: bool) -> Any:
        dtype, kind = value.dtype, value.type
        shape = kind.shape if kind.is_block() else None
        # 0.0 and -0.0 are one key.
        key = id(dtype), id(shape), number.__class__, number or str(number), is_first, *how
        known = numbers.get(key)
        if known is None:
            both = (
                agree(self, number, value, *how) if is_first else agree(self, value, number, *how)
            )
            made, number = (both[1], both[0]) if is_first else both
            if number.handle.data.size <= 4096:
                number.handle.data.setflags(write=False)
                numbers[key] = (
                    made.dtype,
                    number.handle.data,
                    number.dtype,
                    number.type,
                    dtype,
                    shape,
                )
            return both
        if dtype is not known[0]:
            value = cast(self, value, known[0])
        made = tensor(make_handle(known[1], known[2]), known[3])
        return (made, value) if is_first else (value, made)

    def quick_check(self: Any, *operation: Any) -> None:
        if self.builder.options.debug:
            check_sum(self, *operation)

    TritonSemantic.cast = quick_cast
    TritonSemantic.broadcast_impl_value = quick_broadcast
    TritonSemantic.binary_op_sanitize_overflow_impl = quick_check
    TritonSemantic.binary_op_type_checking_impl = quick_agree
