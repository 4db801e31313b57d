"""logspace: kernels/creation/range.metal."""

import math

import pytest
import torch
from metalops.testing.samples import FLOATS, INTEGERS

from .. import direct
from ..aten import only_ours, served_by_us
from ..benchmark import Benchmark

pytestmark = only_ours("aten::logspace.out")

by_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)
by_dtype = pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS), ids=str)


# In torch's op_db.
OPINFOS = ("logspace",)


BENCHMARKS = (
    Benchmark.same(
        "logspace",
        lambda x, out: torch.logspace(0, 1, out.numel(), out=out.view(-1)),
        reason="computed in pairs of floats, as Metal has no double",
    ),
)


def _both(*args, **kwargs):
    return torch.logspace(*args, **kwargs, device="mps").cpu(), torch.logspace(*args, **kwargs)


@pytest.mark.sampled(2)
@by_dtype
@pytest.mark.parametrize("base", [2.0, 10.0, 3.0, 1.1, 0.5, 1.0])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 28, 33])
def test_equal_to_the_cpu(dtype, base, steps):
    # To the last bit: the CPU computes in double and rounds once, and so, in effect, do we.
    ends = [(0, 1), (4, 0), (2, 2), (0, 6)]
    if dtype.is_floating_point:
        ends += [(-3, 3), (-2.5, 1.3), (0.1, 0.7)]
    elif dtype.is_signed:
        ends += [(-2, 2)]
    for start, end in ends:
        if base ** max(start, end) < 120 or dtype.itemsize > 1:
            actual, expected = _both(start, end, steps, base, dtype=dtype)
            assert actual.dtype == dtype and torch.equal(actual, expected), (start, end)


@by_float
def test_many_steps(dtype):
    actual, expected = _both(-6, 6, 20011, dtype=dtype)
    different = actual != expected
    assert different.float().mean() < 1e-4
    torch.testing.assert_close(actual, expected, rtol=2 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("base", [2.0, 10.0, 0.3, 7.7])
def test_float_results_are_correctly_rounded_over_the_whole_range(base):
    limit = 43 * math.log(2) / abs(math.log(base)) * 2.9
    actual = torch.logspace(-limit, limit, 4001, base, device="mps").cpu().double()
    ends = torch.tensor([-limit, limit]).double().tolist()  # the exponents have the result's dtype
    exact = torch.logspace(*ends, 4001, base, dtype=torch.float64)
    normal = (exact < 3.4e38) & (exact > 1.2e-38)
    assert ((actual - exact).abs() / exact)[normal].max() < 2**-24 * (1 + 1e-6)


@pytest.mark.parametrize("dtype", (torch.int64, torch.int32, torch.int16), ids=str)
@pytest.mark.parametrize("base", [2, 3, 7, 10, -2, -3, 100])
def test_powers_of_integers_are_exact(dtype, base):
    largest = torch.iinfo(dtype).max
    steps = next(n for n in range(99) if abs(base) ** n > largest)
    actual = torch.logspace(0, steps - 1, steps, base, dtype=dtype, device="mps")
    assert actual.tolist() == [base**n for n in range(steps)]


@pytest.mark.parametrize("base", [4, 9, 25, 100, 2, 10])
def test_roots_that_are_integers_are_not_taken_for_the_one_below(base):
    # Half steps of the exponent; exact, or the integer part, up to 2^40.
    last = int(40 / math.log2(base))
    actual = torch.logspace(0, last, 2 * last + 1, base, dtype=torch.int64, device="mps")
    assert actual.tolist() == [math.isqrt(base**n) for n in range(2 * last + 1)]


def test_integer_exponents_reached_by_inexact_steps():
    actual = torch.logspace(0, 10, 101, dtype=torch.int64, device="mps").tolist()
    assert actual[::10] == [10**n for n in range(11)]
    assert actual == torch.logspace(0, 10, 101, dtype=torch.int64).tolist()


@pytest.mark.parametrize("base", [-2.0, 0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0])
def test_bases_that_are_not_ordinary(base):
    actual, expected = _both(-3, 3, 13, base)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(actual.signbit()[~actual.isnan()], expected.signbit()[~actual.isnan()])


def test_overflow_underflow_and_exponents_that_are_not_finite():
    for args in ((-50, 50, 11), (-400, 400, 5, 2.0), (0, math.inf, 3), (math.nan, 1, 4)):
        actual, expected = _both(*args)
        torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1.2e-38, equal_nan=True)
    actual, expected = _both(0, 25, 6, dtype=torch.int64)
    assert torch.equal(actual, expected)
    actual, expected = _both(-8, 8, 5, dtype=torch.float16)
    assert torch.equal(actual, expected)


def test_complex_exponents():
    for base in (10.0, 2.0, 0.5):
        for ends in ((0, 1 + 2j), (-1 - 1j, 2 + 3j), (1j, 1j)):
            actual = torch.logspace(*ends, 7, base, dtype=torch.complex64, device="mps").cpu()
            expected = torch.logspace(*ends, 7, base, dtype=torch.complex128)
            torch.testing.assert_close(actual, expected.to(torch.complex64), rtol=3e-7, atol=1e-7)
    actual = torch.logspace(0, 2 + 1j, 5, -3.0, dtype=torch.complex64, device="mps").cpu()
    expected = torch.logspace(0, 2 + 1j, 5, -3.0, dtype=torch.complex128)
    torch.testing.assert_close(actual, expected.to(torch.complex64), rtol=1e-6, atol=1e-6)


@by_dtype
def test_tensors_as_ends(dtype):
    start, end = torch.tensor(0), torch.tensor(2.0)
    expected = torch.logspace(0, 2, 5, 3.0, dtype=dtype)
    for first in (start, start.to("mps"), 0):
        for last in (end, end.to("mps"), 2.0):
            if isinstance(first, int) and isinstance(last, float):
                continue
            actual = torch.logspace(first, last, 5, 3.0, dtype=dtype, device="mps")
            assert actual.device.type == "mps" and torch.equal(actual.cpu(), expected)
            out = torch.empty(5, dtype=dtype, device="mps")
            assert torch.logspace(first, last, 5, 3.0, out=out) is out
            assert torch.equal(out.cpu(), expected)


def test_default_dtype():
    assert torch.logspace(0, 2, 3, device="mps").dtype == torch.float32
    torch.set_default_dtype(torch.float16)
    try:
        assert torch.logspace(0, 2, 3, device="mps").dtype == torch.float16
    finally:
        torch.set_default_dtype(torch.float32)


@by_dtype
def test_out(dtype):
    expected = torch.logspace(0, 2, 6, 3.0, dtype=dtype)

    def check(out, shape=(6,)):
        assert torch.logspace(0, 2, 6, 3.0, out=out) is out
        assert out.shape == shape and torch.equal(out.cpu(), expected.view(shape))

    def empty(*shape):
        return torch.empty(shape, dtype=dtype, device="mps")

    check(empty(6))
    check(empty(0))
    check(empty(4))
    check(empty(12)[::2])
    # As on the CPU an output of the right number of elements keeps its shape, and its strides.
    check(empty(2, 3), (2, 3))
    check(empty(3, 2).t(), (2, 3))
    whole = torch.full((7, 9), 77, dtype=dtype, device="mps")
    check(whole[1:6:2, 2:6:2], (3, 2))
    assert whole.eq(77).sum() == 63 - 6


def test_errors_are_those_of_the_cpu():
    with pytest.raises(RuntimeError, match="number of steps must be non-negative"):
        torch.logspace(0, 1, -1, device="mps")
    with pytest.raises(RuntimeError, match="only supports 0-dimensional start and end tensors"):
        torch.logspace(torch.ones(1), 2, 3, device="mps")
    with pytest.raises(RuntimeError, match="cannot be converted to type int8_t without overflow"):
        torch.logspace(0, 300, 3, dtype=torch.int8, device="mps")
    with pytest.raises(RuntimeError, match="can't be safely cast"):
        torch.logspace(0, 1j, 3, dtype=torch.float32, device="mps")
    for dtype in (torch.bool, torch.uint16):
        with pytest.raises(NotImplementedError, match='"logspace" not implemented for'):
            torch.logspace(0, 1, 3, dtype=dtype, device="mps")
    with pytest.raises(TypeError, match="float64"):
        torch.logspace(0, 1, 3, dtype=torch.float64, device="mps")


def test_never_served_by_a_stand_in():
    def call():
        torch.logspace(0, 3, 7, device="mps")
        torch.logspace(torch.tensor(0, device="mps"), torch.tensor(3.0), 7, 2.0, device="mps")
        torch.logspace(0, 3, 7, out=torch.empty(7, dtype=torch.int32, device="mps"))
        torch.logspace(2, 2, 1, device="mps")

    assert served_by_us(call) == []


def test_large_integers_of_a_base_that_is_none_are_exact():
    """0.5 ** -k: neither a rounding allowance nor a shift by more than there are bits may change them."""
    result = torch.logspace(-62, -36, 27, base=0.5, dtype=torch.int64, device="mps")
    assert result.tolist() == [2**k for k in range(62, 35, -1)]


def test_integers_far_below_one_are_zero():
    result = torch.logspace(-90, -1, 90, base=2, dtype=torch.int64, device="mps")
    assert not result.any()


def test_threads_beyond_the_last_element_do_nothing():
    steps = 5
    output = torch.full((steps + 7,), -1, dtype=torch.int32, device="mps")
    exponents = [*(0.0, 0.0) * 2, *(4.0, 0.0), *(0.0, 0.0), *(1.0, 0.0), *(0.0, 0.0), *(1.0, 0.0)]
    parameters = direct.as_bytes("q14fqf4x", steps, *exponents, 2, 2.0)
    layout = direct.strided_layout([steps], [[4]])
    direct.kernels("range").range_logspace_int(output, parameters, layout, threads=(steps + 7, 1))
    assert output.tolist() == [1, 2, 4, 8, 16] + [-1] * 7
