"""Orthogonal polynomials: kernels/pointwise/polynomial.metal."""

import math

import pytest
import torch
from metalops import testing
from metalops.testing.samples import FLOATS, INTEGERS

from ..aten import reference, relative_error, served_by_us, skip_unless_ours, uniform
from ..benchmark import Benchmark

FUNCTIONS = {
    "laguerre_polynomial_l": torch.special.laguerre_polynomial_l,
    "legendre_polynomial_p": torch.special.legendre_polynomial_p,
}
by_name = pytest.mark.parametrize("name", FUNCTIONS)
by_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)


# In torch's op_db.
OPINFOS = (
    "special.laguerre_polynomial_l",
    "special.legendre_polynomial_p",
)


BENCHMARKS = (
    Benchmark.same(
        "special.laguerre_polynomial_l",
        lambda x, out: torch.special.laguerre_polynomial_l(x, 5, out=out),
    ),
    Benchmark.same(
        "special.legendre_polynomial_p",
        lambda x, out: torch.special.legendre_polynomial_p(x, 5, out=out),
        low=-1,
        high=1,
    ),
)


@pytest.mark.sampled(4)
@by_name
@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS, torch.bool), ids=str)
def test_values_in_every_layout_broadcast_and_promotion(name, dtype):
    function = FUNCTIONS[name]
    for case in testing.elementwise_cases(2, dtype, low=-2, high=6, specials=False):
        testing.check_forward(function, reference(function), case, "mps", name=f"special.{name}")


@pytest.mark.sampled(3)
@by_name
@pytest.mark.parametrize("dtype", (torch.uint16, torch.uint32, torch.uint64), ids=str)
def test_wide_unsigned_integers(name, dtype):
    x = torch.tensor([0, 1, 2, 3, 7], dtype=dtype)
    n = torch.tensor([5, 4, 3, 2, 1], dtype=dtype)
    expected = FUNCTIONS[name](x.double(), n.double()).float()
    torch.testing.assert_close(FUNCTIONS[name](x.to("mps"), n.to("mps")).cpu(), expected)


@by_name
@by_float
def test_out(name, dtype):
    skip_unless_ours(f"aten::special_{name}.out")
    x = testing.make((4, 6), dtype, low=-1, high=3)
    n = testing.make((4, 6), dtype, low=0, high=6, seed=1)
    function = FUNCTIONS[name]
    key = f"special.{name}"
    case = testing.Case("simple", (x, n))
    testing.check_out(function, reference(function), case, "mps", name=key, differentiable=False)


@by_name
def test_out_of_another_dtype_for_integers(name):
    x = torch.arange(6, device="mps")
    n = torch.arange(6, device="mps", dtype=torch.int32).flip(0)
    expected = FUNCTIONS[name](x.cpu(), n.cpu())
    for dtype in FLOATS:
        out = torch.empty(6, dtype=dtype, device="mps")
        assert FUNCTIONS[name](x, n, out=out) is out
        torch.testing.assert_close(out.cpu(), expected.to(dtype))


@pytest.mark.sampled(2)
@by_name
def test_scalar_in_either_place(name):
    function = FUNCTIONS[name]
    for dtype in FLOATS:
        x = testing.make((5, 3), dtype, low=-1, high=2)
        for degree in (0, 3, 3.7):
            actual = function(x.to("mps"), degree)
            assert actual.dtype == dtype
            expected = function(x.double(), degree).to(dtype)
            torch.testing.assert_close(actual.cpu(), expected, rtol=1e-2, atol=1e-2)
            out = torch.empty(5, 3, dtype=dtype, device="mps")
            assert torch.equal(function(x.to("mps"), degree, out=out), actual)
    n = torch.arange(6)
    for x in (2, 0.25):
        expected = function(x, n)
        torch.testing.assert_close(function(x, n.to("mps")).cpu(), expected)
        out = torch.empty(6, device="mps")
        torch.testing.assert_close(function(x, n.to("mps"), out=out).cpu(), expected)


@by_name
def test_tensor_without_dimensions_on_the_cpu(name):
    x = torch.linspace(-1, 2, 12, device="mps").view(4, 3)
    expected = FUNCTIONS[name](x.cpu(), torch.tensor(4.0))
    for strided in (x, testing.to_device(x.cpu().t().contiguous().t(), "mps")):
        actual = FUNCTIONS[name](strided, torch.tensor(4.0))
        assert actual.device.type == "mps"
        torch.testing.assert_close(actual.cpu(), expected)
    with pytest.raises(RuntimeError, match="same device"):
        FUNCTIONS[name](x, torch.ones(3))


@by_name
@pytest.mark.parametrize(("low", "high"), [(-5, 0), (0, 1), (0, 10), (0, 40)])
@pytest.mark.parametrize("n", [2, 3, 5, 10, 50])
def test_error_against_float64_is_no_larger_than_on_the_cpu(name, low, high, n):
    skip_unless_ours(f"aten::special_{name}.out")
    if name == "legendre_polynomial_p":
        low, high = {-5: (-1, -0.9), 0: (-0.6, 0.6)}.get(low, (0.6, 1))
    x = uniform(low, high)
    function = FUNCTIONS[name]
    exact = function(x.double(), n)
    # Between the zeros neighbours are of one size; the error cannot be relative to a value that is
    # nearly zero.
    scale = torch.maximum(exact.abs(), function(x.double(), n - 1).abs())
    error = relative_error(function(x.to("mps"), n), exact, scale)
    on_cpu = relative_error(function(x, n), exact, scale)
    assert error.max() < 5e-7 * n
    assert error.max() <= max(1.1 * on_cpu.max(), 1.5e-7)
    assert error.square().mean() <= max(1.1 * on_cpu.square().mean(), 1e-14)


@by_name
def test_ends_of_the_degree(name):
    inf, nan = math.inf, math.nan
    n = torch.tensor([-inf, -3.0, -1.0, -0.5, 0.0, 0.9, 1.0, 1.9, nan, inf, 1e30])
    for x in (0.0, 0.3, 1.0, -1.0, 7.0):
        actual = FUNCTIONS[name](torch.full((11,), x, device="mps"), n.to("mps")).cpu()
        assert torch.equal(actual, FUNCTIONS[name](torch.full((11,), x), n)), x


@by_name
def test_huge_degrees_where_the_value_is_known_or_overflows(name):
    skip_unless_ours(f"aten::special_{name}.out")
    n = torch.tensor([2.0**24, 2.0**53, 9e18], device="mps")
    one = 0.0 if name == "laguerre_polynomial_l" else 1.0
    assert FUNCTIONS[name](torch.tensor(one, device="mps"), n).tolist() == [1, 1, 1]
    beyond = -2.0 if name == "laguerre_polynomial_l" else 2.0
    assert FUNCTIONS[name](torch.tensor(beyond, device="mps"), n).tolist() == [math.inf] * 3


@by_name
def test_ends_of_the_argument(name):
    x = torch.tensor([math.inf, -math.inf, 1e30, -1e30, 0.0, -0.0, 1e-40])
    for n in (0, 1, 2):
        actual = FUNCTIONS[name](x.to("mps"), n).cpu()
        torch.testing.assert_close(actual, FUNCTIONS[name](x, n))
    not_a_number = torch.tensor([math.nan], device="mps")
    assert FUNCTIONS[name](not_a_number, 0).tolist() == [1]
    for n in (1, 2, 5):
        assert FUNCTIONS[name](not_a_number, n).isnan().all()


def test_legendre_at_the_ends_of_its_interval_is_exact():
    n = torch.arange(0, 200)
    for x in (1.0, -1.0):
        actual = torch.special.legendre_polynomial_p(torch.tensor(x, device="mps"), n.to("mps"))
        assert torch.equal(actual.cpu(), x**n)


@by_name
@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
def test_half_precision_is_rounded_once(name, dtype):
    x = torch.linspace(-0.9, 0.9, 5001).to(dtype)
    expected = FUNCTIONS[name](x.double(), 6).to(dtype)
    different = FUNCTIONS[name](x.to("mps"), 6).cpu() != expected
    assert different.float().mean() < 5e-3


@by_name
def test_no_derivative_as_in_torch(name):
    x = torch.rand(3, device="mps", requires_grad=True)
    n = torch.arange(3, device="mps")
    expected = FUNCTIONS[name](x.cpu(), n.cpu()).requires_grad
    assert FUNCTIONS[name](x, n).requires_grad == expected


@by_name
def test_default_dtype_decides_what_integers_become(name):
    skip_unless_ours(f"aten::special_{name}.out")
    x = torch.arange(5, device="mps")
    n = torch.arange(5, device="mps", dtype=torch.uint8)
    torch.set_default_dtype(torch.bfloat16)
    try:
        same, mixed = FUNCTIONS[name](x, x), FUNCTIONS[name](x, n)
    finally:
        torch.set_default_dtype(torch.float32)
    expected = FUNCTIONS[name](x, x).bfloat16()
    assert torch.equal(same, expected) and torch.equal(mixed, expected)


@by_name
def test_never_served_by_a_stand_in(name):
    x = torch.rand(4, 3, device="mps")
    n = torch.arange(3, device="mps")

    def call():
        FUNCTIONS[name](x, n)
        FUNCTIONS[name](x, 3)
        FUNCTIONS[name](2, n)
        FUNCTIONS[name](n, n)
        FUNCTIONS[name](x, n, out=torch.empty(4, 3, device="mps"))

    assert served_by_us(call) == []


def test_laguerre_just_below_overflow_beyond_its_zeros():
    """Where the value is a finite number but a difference of successive ones, times the degree, is not."""
    x = torch.tensor([623.5, 238.5, 239.0, 178.7])
    n = torch.tensor([20, 30, 30, 40])
    actual = torch.special.laguerre_polynomial_l(x.to("mps"), n.to("mps")).cpu()
    expected = torch.special.laguerre_polynomial_l(x.double(), n.double())
    torch.testing.assert_close(actual, expected.float(), rtol=1e-5, atol=0)
