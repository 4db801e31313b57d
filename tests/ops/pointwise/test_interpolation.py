"""Fused multiply-add and clamped interpolation: kernels/pointwise/interpolation.metal."""

from fractions import Fraction

import pytest
import torch
from metalops import ops
from metalops.testing import Operator
from metalops.testing.checks import rounded_once
from metalops.testing.promotion import promoted
from torch import Tensor

from ..aten import clamped
from ..benchmark import HALVES_ONE_BY_ONE, Benchmark
from ..matrix import Matrix, by_dtype

# ---- references ----------------------------------------------------------------------------------


def fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """In float64, of operands that are float32 or narrower: rounded to odd, so that rounding to the operands' dtype
    gives what one rounding of the exact value gives. In other dtypes only the result's dtype means something.

    Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd" (2008).
    """
    a, b, c = promoted(a, b, c)
    result = a * b + c
    if result.dtype != torch.float64:
        return result
    product = a * b
    from_c = result - product
    error = (product - (result - from_c)) + (c - from_c)
    bits = result.detach().view(torch.int64)
    step = torch.where((error > 0) == (result > 0), 1, -1)
    adjust = torch.isfinite(error) & (error != 0) & ((bits & 1) == 0) & torch.isfinite(result)
    odd = torch.where(adjust, bits + step, bits).view(torch.float64)
    # The adjustment is of no consequence for the gradient.
    return result + (odd - result).detach() if result.requires_grad else odd


def lerp_clamped(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    a, b, w = promoted(a, b, w)
    return a + clamped(w, 0, 1) * (b - a)


POINTWISE = (Operator(fma), Operator(lerp_clamped, low=-2, high=3))
BENCHMARKS = (
    Benchmark.of(
        fma,
        lambda a, b, c, out: torch.addcmul(c, a, b, out=out),
        composed=False,
        reason=HALVES_ONE_BY_ONE,
    ),
    Benchmark.of(lerp_clamped, lambda a, b, w, out: torch.lerp(a, b, w.clamp(0, 1), out=out)),
)


class TestInterpolation(Matrix):
    operators = POINTWISE


# ---- what is particular to each ------------------------------------------------------------------


def _nearest(value: Fraction, dtype: torch.dtype) -> float:
    """The number of this dtype nearest to a rational one in its normal range, ties to even."""
    digits = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}[dtype]
    if value == 0:
        return 0.0
    exponent = digits
    while abs(value) * Fraction(2) ** exponent >= 2**digits:
        exponent -= 1
    while abs(value) * Fraction(2) ** exponent < 2 ** (digits - 1):
        exponent += 1
    return float(round(value * Fraction(2) ** exponent) / Fraction(2) ** exponent)


def _operands(dtype, n):
    """Operands whose sums cancel and whose exact values often lie close to the middle of two numbers."""
    generator = torch.Generator().manual_seed(5)
    a = torch.rand(n, generator=generator) + 0.5
    b = torch.rand(n, generator=generator) + 0.5
    a, b = a.to(dtype), b.to(dtype)
    scale = torch.randint(-12, 13, (n,), generator=generator)
    c = ((torch.rand(n, generator=generator) - 0.5) * 2.0**scale).to(dtype)
    c[::3] = -(a[::3].float() * b[::3].float()).to(dtype)
    return a, b, c


@by_dtype
def test_fma_rounds_once(dtype):
    a, b, c = _operands(dtype, 6000)
    actual = ops.fma(a.to("mps"), b.to("mps"), c.to("mps")).cpu()
    expected = [
        _nearest(Fraction(x) * Fraction(y) + Fraction(z), dtype)
        for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    ]
    assert actual.tolist() == expected
    if dtype == torch.float32:
        assert (actual != a * b + c).any(), "the operands do not tell one rounding from two"


@by_dtype
def test_the_reference_of_fma_rounds_once(dtype):
    a, b, c = _operands(dtype, 2000)
    expected = [
        _nearest(Fraction(x) * Fraction(y) + Fraction(z), dtype)
        for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    ]
    assert _reference(a, b, c).tolist() == expected


def _reference(a, b, c):
    return rounded_once(fma(a.double(), b.double(), c.double()), a.dtype)


def _near_ties(dtype):
    """Operands whose exact values float32 does not tell from the middle between two numbers of this dtype."""
    eps = torch.finfo(dtype).eps
    # 1 + eps plus nearly half a unit ...
    a = (eps / 2 * (1 + eps * torch.arange(round(1 / eps), dtype=torch.float64))).to(dtype)
    steps = torch.arange(1, 21, dtype=torch.float64)
    b = torch.cat([1 - eps / 2 * steps, 1 + eps * steps]).to(dtype)
    a, b = a.repeat_interleave(len(b)), b.repeat(len(a))
    for one in (1.0, -1.0, 1 + eps):
        yield a, b, torch.full_like(a, one)
    # ... and products that are such a middle, plus almost nothing.
    a, b = torch.cartesian_prod(*[1 + eps * torch.arange(128, dtype=torch.float64)] * 2).unbind(1)
    unit = torch.where(a * b < 2, eps, 2 * eps)
    is_middle = (a * b / unit).frac() == 0.5
    a, b = a[is_middle].to(dtype), b[is_middle].to(dtype)
    for nothing in (2.0**-24, -(2.0**-24)):
        yield a, b, torch.full_like(a, nothing)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_fma_of_half_precision_rounds_once_where_float32_sees_a_tie(dtype):
    told_apart = 0
    for a, b, c in _near_ties(dtype):
        assert len(a) > 20
        actual = ops.fma(a.to("mps"), b.to("mps"), c.to("mps")).cpu()
        assert torch.equal(actual, _reference(a, b, c))
        in_float32 = fma(a.double(), b.double(), c.double()).float()
        told_apart += (actual != in_float32.to(dtype)).sum().item()
    assert told_apart > 0, "the operands do not tell one rounding from two"


def test_fma_of_infinities_and_nan():
    inf, nan = float("inf"), float("nan")
    a = torch.tensor([inf, inf, 0.0, nan, 1.0, 1e30, 1e30])
    b = torch.tensor([1.0, 1.0, inf, 1.0, 1.0, 1e30, 1e30])
    c = torch.tensor([1.0, -inf, 1.0, 1.0, nan, 0.0, -inf])
    expected = torch.tensor([inf, nan, nan, nan, nan, inf, -inf])
    for dtype in (torch.float32, torch.bfloat16):
        args = [x.to("mps", dtype) for x in (a, b, c)]
        torch.testing.assert_close(ops.fma(*args).cpu(), expected.to(dtype), equal_nan=True)


def test_fma_in_half_precision_overflows_only_in_the_end():
    a = torch.tensor([300.0], dtype=torch.float16, device="mps")
    c = torch.tensor([-60000.0], dtype=torch.float16, device="mps")
    assert ops.fma(a, a, c).item() == 30000


def test_fma_of_integers_is_exact_and_wraps_around():
    a = torch.tensor([2**53 + 1, 2**62, -7])
    b = torch.tensor([3, 4, 5])
    c = torch.tensor([-1, 9, 2**40])
    assert torch.equal(ops.fma(*(x.to("mps") for x in (a, b, c))).cpu(), a * b + c)
    a, b, c = (x.to(torch.uint8) for x in (a, b, c))
    assert torch.equal(ops.fma(*(x.to("mps") for x in (a, b, c))).cpu(), a * b + c)


def test_the_gradient_of_the_summand_is_passed_on():
    a, b = (torch.randn(3, 4, device="mps") for _ in range(2))
    c = torch.randn(4, device="mps", requires_grad=True)
    g = torch.randn(3, 4, device="mps")
    (gradient,) = torch.autograd.grad(ops.fma(a, b, c), c, g)
    torch.testing.assert_close(gradient, g.sum(0))


def test_the_summand_may_change_before_backward():
    a = torch.ones(3, device="mps", requires_grad=True)
    c = torch.ones(3, device="mps")
    y = ops.fma(a, a, c)
    c.zero_()
    y.sum().backward()
    assert a.grad.tolist() == [2, 2, 2]


def test_lerp_clamped_never_leaves_its_ends():
    a, b = torch.full((5,), 2.0), torch.full((5,), 10.0)
    w = torch.tensor([-3.0, 0.0, 0.25, 1.0, 7.0])
    y = ops.lerp_clamped(*(x.to("mps") for x in (a, b, w)))
    assert y.tolist() == [2, 2, 4, 10, 10]


def test_lerp_clamped_keeps_a_nan_weight():
    one = torch.ones(2, device="mps")
    assert ops.lerp_clamped(one, 2 * one, one * float("nan")).isnan().all()


def test_the_gradient_of_the_weight_passes_on_its_limits_and_not_beyond():
    a, b = torch.zeros(5, device="mps"), torch.full((5,), 3.0, device="mps")
    w = torch.tensor([-0.5, 0.0, 0.5, 1.0, 1.5], device="mps", requires_grad=True)
    ops.lerp_clamped(a, b, w).sum().backward()
    assert w.grad.tolist() == [0, 3, 3, 3, 0]
