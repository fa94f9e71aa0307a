"""Triton's interpreter with a memory: an operation takes a quarter of the time.

As of Triton 3.9. Nothing that is remembered here changes once it is made, and no number changes: an operation that is
not known yet is left to Triton's own code, which also finds all mistakes, and its types are remembered.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
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
    interpreter._convert_float = _quick_conversion(interpreter._convert_float)


def _replace_once() -> None:
    """A call of one kernel function by another replaces nothing: the launch has replaced all of `triton.language`.

    A function of the language is called at once, and not through two that take its last argument out and put it back.
    """
    builtins: dict[Any, list[str]] = {}
    languages: dict[Any, list[Any]] = {}
    quick: dict[Any, Any] = {
        getattr(core.tensor, name): _quick_operator(getattr(core.tensor, name).__wrapped__, *how)
        for name, *how in OPERATORS
    }
    quick[core.tensor.__getitem__] = _quick_index(core.tensor.__getitem__.__wrapped__)
    quick[core.load] = _quick_load(core.load.__wrapped__)
    quick[core.arange] = _quick_arange(core.arange.__wrapped__)
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


OPERATORS: list[tuple[str, Any, bool]] = [
    ("__add__", np.add, False),
    ("__radd__", np.add, True),
    ("__sub__", np.subtract, False),
    ("__rsub__", np.subtract, True),
    ("__mul__", np.multiply, False),
    ("__rmul__", np.multiply, True),
    ("__and__", np.bitwise_and, False),
    ("__or__", np.bitwise_or, False),
    ("__lt__", np.less, False),
    ("__le__", np.less_equal, False),
    ("__gt__", np.greater, False),
    ("__ge__", np.greater_equal, False),
    ("__eq__", np.equal, False),
    ("__ne__", np.not_equal, False),
]  # of a tensor: its name, NumPy's, and whether the other side is the left one
INTEGERS = ("int32", "int64")
PLAIN = (*INTEGERS, "int8", "int16", "uint8", "fp16", "fp32")  # NumPy has them


def _quick_operator(work: Any, operation: Any, is_reversed: bool) -> Callable[..., Any]:
    """An operator of tensors by NumPy's alone, for two sides of one kind, a number beside one, and steps of pointers.

    Types and numbers are remembered where Triton's own code, which is asked first, gives the same array to the bit.
    """
    semantic = interpreter.interpreter_semantic
    tensor, make_handle = core.tensor, interpreter.TensorHandle
    known: dict[tuple[Any, ...], Any] = {}  # None: Triton's own
    kept: list[Any] = []  # ids are of objects that live
    is_step = operation is np.add and not is_reversed
    numbers = (*INTEGERS, "fp32")
    bits = ["int1"] if operation in (np.bitwise_and, np.bitwise_or) else []

    def agree(one: Any, other: Any) -> bool:
        if one is other:
            return one.name in (*numbers, *bits)
        return one.name in INTEGERS and other.name in INTEGERS

    def fits(number: Any) -> bool:
        return number.__class__ is int and -(2**31) <= number < 2**31

    def operator(self: Any, other: Any, _semantic: object = None) -> Any:
        if other.__class__ is tensor:
            key: Any = id(self.dtype), id(self.shape), id(other.dtype), id(other.shape)
            right = other.handle.data
        elif other.__class__ is int or other.__class__ is float:
            key = id(self.dtype), id(self.shape), other.__class__, other or str(other)
            right = None
        else:
            return work(self, other, _semantic=semantic)
        found = known.get(key, known)
        if found is known:
            return learn(self, other, key)
        if found is None:
            return work(self, other, _semantic=semantic)
        kind, dtype, width, number, left_type, right_type = found
        left = self.handle.data
        if right is None:
            right = number
        if left.dtype is not left_type or right.dtype is not right_type:
            return work(self, other, _semantic=semantic)
        if width:
            data = left + width * right.astype(np.uint64)
        else:
            data = operation(right, left) if is_reversed else operation(left, right)
        return tensor(make_handle(data, dtype), kind)

    def learn(self: Any, other: Any, key: Any) -> Any:
        result = work(self, other, _semantic=semantic)
        known[key] = None
        kept.append((self.dtype, self.shape, getattr(other, "dtype", None), other))
        left, dtype, width = self.handle.data, self.dtype, 0
        if other.__class__ is tensor:
            right, number = other.handle.data, None
            if dtype.is_ptr() and is_step and other.dtype.name in INTEGERS:
                width = max(1, dtype.element_ty.primitive_bitwidth // 8)
            elif not agree(dtype, other.dtype):
                return result
        elif dtype.name == "fp32" or (dtype.name in INTEGERS and fits(other)):
            right = number = np.asarray(other, interpreter._get_np_dtype(dtype))
        else:
            return result
        if width:
            data = left + width * right.astype(np.uint64)
        else:
            data = operation(right, left) if is_reversed else operation(left, right)
        wanted = result.handle.data
        is_same = data.dtype is wanted.dtype and data.shape == wanted.shape
        if is_same and data.tobytes() == wanted.tobytes():
            known[key] = result.type, result.handle.dtype, width, number, left.dtype, right.dtype
        return result

    return operator


def _quick_index(work: Any) -> Callable[..., Any]:
    """New dims of a block by one view of its array."""
    semantic = interpreter.interpreter_semantic
    tensor, make_handle = core.tensor, interpreter.TensorHandle
    known: dict[tuple[Any, ...], tuple[Any, Any]] = {}
    whole = slice(None)

    def index(self: Any, slices: Any, _semantic: object = None) -> Any:
        if slices.__class__ is not tuple or not all(
            each is None or (each.__class__ is slice and each == whole) for each in slices
        ):
            return work(self, slices, _semantic=semantic)
        key = id(self.dtype), id(self.shape), *[each is None for each in slices]
        found = known.get(key)
        if found is None:
            result = work(self, slices, _semantic=semantic)
            if self.type.is_block():
                known[key] = result.type, self.shape
            return result
        return tensor(make_handle(self.handle.data[slices], self.dtype), found[0])

    return index


def _quick_load(work: Any) -> Callable[..., Any]:
    """Numbers of a pointer, or of a block of them: what stands for those that are masked is made once."""
    semantic = interpreter.interpreter_semantic
    tensor, make_handle = core.tensor, interpreter.TensorHandle
    read = interpreter._interpreter.load
    known: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def load(
        pointer: Any,
        mask: Any = None,
        other: Any = None,
        *more: Any,
        _semantic: object = None,
        **how: Any,
    ) -> Any:
        is_number = other is None or other.__class__ in (int, float)
        if more or not is_number or not (mask is None or mask.__class__ is tensor):
            return work(pointer, mask, other, *more, **how, _semantic=semantic)
        sides = (None, None) if mask is None else (id(mask.dtype), id(mask.shape))
        number = other.__class__, other or str(other)
        key = id(pointer.dtype), id(pointer.shape), *sides, *number, *how.items()
        found = known.get(key)
        if found is None:
            result = work(pointer, mask, other, **how, _semantic=semantic)
            learn(key, pointer, mask, other, result)
            return result
        kind, element, shape, numpy_type, is_in, instead, _ = found
        at = pointer.handle.data
        if mask is not None:
            is_in = mask.handle.data
            if is_in.shape != shape:
                is_in = np.broadcast_to(is_in, shape)
        if at.shape != shape:
            at = np.broadcast_to(at, shape)
        return tensor(make_handle(read(at, is_in, instead, numpy_type), element), kind)

    def learn(key: Any, pointer: Any, mask: Any, other: Any, result: Any) -> None:
        shape, numpy_type = result.handle.data.shape, result.handle.data.dtype
        element = pointer.dtype.element_ty
        is_plain = element.name in PLAIN and result.dtype is element
        if not is_plain or not (other is None or element.is_floating() or isinstance(other, int)):
            return
        instead = np.full(shape, other or 0, numpy_type)
        kept = pointer.dtype, pointer.shape, mask
        known[key] = result.type, element, shape, numpy_type, np.ones(shape, bool), instead, kept

    return load


def _quick_arange(work: Any) -> Callable[..., Any]:
    """Integers in a row, which are made once."""
    semantic = interpreter.interpreter_semantic
    known: dict[tuple[int, int], Any] = {}

    def arange(start: Any, end: Any, _semantic: object = None) -> Any:
        key = core._unwrap_if_constexpr(start), core._unwrap_if_constexpr(end)
        found = known.get(key)
        if found is None:
            result = work(start, end, _semantic=semantic)
            result.handle.data.setflags(write=False)
            known[key] = found = result.handle, result.type
        return core.tensor(*found)

    return arange


def _quick_conversion(work: Any) -> Callable[..., Any]:
    """Numbers in bfloat16 as float32, and float32 that is cut off to bfloat16: the same bits but the last sixteen.

    Triton's own code takes apart sign, exponent and significand of each, and makes other numbers of those below the normal ones.
    """

    def convert(data: Any, of: Any, to: Any, rounding: Any) -> Any:
        both = of.name, to.name
        if rounding is not None or both not in JOINED:
            return work(data, of, to, rounding)
        if both == JOINED[0]:
            return np.asarray(data.view(np.uint16).astype(np.uint32) << np.uint32(16))
        return np.asarray((data.view(np.uint32) >> np.uint32(16)).astype(np.uint16))

    return convert


JOINED = ("bf16", "fp32"), ("fp32", "bf16")


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

    casts: dict[tuple[int, int, int], tuple[Any, ...]] = {}

    def quick_cast(self: Any, value: Any, to: Any, *rounding: Any, **named: Any) -> Any:
        scalar = to.scalar
        if value.dtype is scalar:
            return value
        if named or (rounding and rounding[0] is not None):
            return cast(self, value, to, *rounding, **named)
        key = id(value.dtype), id(value.shape), id(scalar)
        found = casts.get(key)
        if found is None:
            made = cast(self, value, to)
            if (value.dtype.name in PLAIN and scalar.name in PLAIN) or is_joined(value, scalar):
                casts[key] = (
                    *(made.type, scalar, made.handle.data.dtype, value.handle.data.dtype),
                    *(value.dtype, value.shape),
                )
            return made
        kind, scalar, numpy_type, known_type, *_ = found
        data = value.handle.data
        if data.dtype is not known_type:
            return cast(self, value, to)
        if is_joined(value, scalar):
            converted = interpreter._convert_float(data, value.dtype, scalar, None)
            return tensor(make_handle(converted.view(numpy_type), scalar), kind)
        return tensor(make_handle(data.astype(numpy_type), scalar), kind)

    def is_joined(value: Any, scalar: Any) -> bool:
        return (value.dtype.name, scalar.name) in JOINED

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
