"""The quick interpreter of `tests/interpreter.py`: what it remembers is right for other numbers than the first."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton comes for Linux only")

import triton
import triton.language as tl

from tests.interpreter import OPERATORS

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are compiled where a GPU is"
)
IS_NEW = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9)
KINDS = [torch.int32, torch.int64, torch.float32]


@triton.jit  # type: ignore[untyped-decorator]
def _operators(a, b, out, NUMBER: tl.constexpr):  # type: ignore[no-untyped-def]
    """Every operator of a block of four beside another, and beside a number, as integers of 64 bits or in float32."""
    at = tl.arange(0, 4)
    x, y = tl.load(a + at), tl.load(b + at)
    DTYPE: tl.constexpr = out.dtype.element_ty
    tl.store(out + 0 + at, (x + y).to(DTYPE))
    tl.store(out + 4 + at, (x - y).to(DTYPE))
    tl.store(out + 8 + at, (x * y).to(DTYPE))
    tl.store(out + 12 + at, (x + NUMBER).to(DTYPE))
    tl.store(out + 16 + at, (NUMBER - x).to(DTYPE))
    tl.store(out + 20 + at, (x * NUMBER).to(DTYPE))
    tl.store(out + 24 + at, (x < y).to(DTYPE))
    tl.store(out + 28 + at, (x >= NUMBER).to(DTYPE))
    tl.store(out + 32 + at, ((x == y) & (x != NUMBER)).to(DTYPE))
    tl.store(out + 36 + at, ((x <= y) | (x > NUMBER)).to(DTYPE))


def expected(x: Any, y: Any, number: Any) -> list[Any]:
    """The same by torch, whose integers of 64 bits and floats are joined as Triton joins them."""
    results = [x + y, x - y, x * y, x + number, number - x, x * number]
    results += [x < y, x >= number, (x == y) & (x != number), (x <= y) | (x > number)]
    return results


@pytest.mark.parametrize("one", KINDS, ids=str)
@pytest.mark.parametrize("other", KINDS, ids=str)
@pytest.mark.parametrize("number", [3, 0, -7, 0.5, -0.0])
def test_operators(one: torch.dtype, other: torch.dtype, number: float) -> None:
    """Twice: zeros and ones, for which most operators say the same, are the first that are seen."""
    is_float = torch.float32 in (one, other) or isinstance(number, float)
    kind = torch.float32 if is_float else torch.int64
    for values in (((0, 0, 1, 1), (0, 1, 0, 1)), ((7, -5, 2**30, 3), (-2, -5, 2, 2**31 - 1))):
        x, y = torch.tensor(values[0], dtype=one), torch.tensor(values[1], dtype=other)
        out = torch.full((40,), 9, dtype=kind)
        _operators[(1,)](x, y, out, NUMBER=number)
        wanted = torch.cat([each.to(kind) for each in expected(x, y, number)])
        assert torch.equal(out, wanted), (out - wanted).reshape(-1, 4)


@triton.jit
def _bits(a, b, out):  # type: ignore[no-untyped-def]
    """The sum of two single bits, of eight of each."""
    at = tl.arange(0, 8)
    tl.store(out + at, ((tl.load(a + at) > 0) + (tl.load(b + at) > 0)).to(tl.int32))


def test_a_sum_of_single_bits_is_tritons() -> None:
    """NumPy's has no bit that is carried, nor has Triton's before 3.9; the first sum does not show it."""
    one, none, out = torch.ones(8), torch.zeros(8), torch.full((8,), 9, dtype=torch.int32)
    for a, b, wanted in ((one, none, 1), (one, one, 0 if IS_NEW else 1)):
        _bits[(1,)](a, b, out)
        assert out.eq(wanted).all()


@triton.jit
def _largest(a, out):  # type: ignore[no-untyped-def]
    """The place of the largest of eight numbers: by functions of the language that call each other."""
    tl.store(out, tl.argmax(tl.load(a + tl.arange(0, 8)), 0))


def test_functions_of_the_language_call_each_other() -> None:
    numbers, out = torch.tensor([3.0, -1, 7, 0, 2, 2, -5, 1]), torch.zeros(1, dtype=torch.int32)
    _largest[(1,)](numbers, out)
    assert out.item() == 2


def test_zeros_of_both_signs_are_two_numbers() -> None:
    out = torch.zeros(40)
    for number, sign in ((0.0, 1.0), (-0.0, -1.0 if IS_NEW else 1.0)):  # before 3.9 one constant
        _operators[(1,)](torch.ones(4), torch.ones(4), out, NUMBER=number)
        assert out[20:24].sign().eq(0).all()
        assert torch.copysign(torch.ones(4), out[20:24]).eq(sign).all()


@triton.jit  # type: ignore[untyped-decorator]
def _loads(a, out, SHIFT: tl.constexpr, OTHER: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows [2, 4] of which some columns are masked, by masks that have one row."""
    column = tl.arange(0, 4)
    at = tl.arange(0, 2)[:, None] * 4 + column[None, :]
    tl.store(out + at, tl.load(a + at, mask=(column < SHIFT)[None, :], other=OTHER))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.float16, torch.float32], ids=str)
def test_what_is_masked_is_the_other_number(dtype: torch.dtype) -> None:
    x = torch.arange(1, 9).to(dtype).reshape(2, 4)
    for shift, other in ((1, 0), (3, 0), (3, 5), (4, 5), (2, 0)):
        out = torch.zeros_like(x)
        _loads[(1,)](x, out, SHIFT=shift, OTHER=other)
        assert torch.equal(out[:, :shift], x[:, :shift])
        assert (out[:, shift:] == other).all()


@triton.jit  # type: ignore[untyped-decorator]
def _cast(a, out, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, SIZE)
    tl.store(out + at, tl.load(a + at).to(out.dtype.element_ty))


def test_every_number_of_bfloat16_stays_and_others_are_cut_off() -> None:
    size = 1 << 16
    every = torch.arange(size, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    wide, back = torch.empty(size), torch.empty_like(every)
    _cast[(1,)](every, wide, SIZE=size)
    assert torch.equal(wide.view(torch.int32), every.float().view(torch.int32))
    wide.view(torch.int32).bitwise_or_(0xABCD)
    _cast[(1,)](wide, back, SIZE=size)
    assert torch.equal(back.view(torch.int16), every.view(torch.int16))


def test_operators_are_there() -> None:
    """Each is one of Triton's tensors'."""
    assert {name for name, *_ in OPERATORS} <= set(dir(tl.tensor))
