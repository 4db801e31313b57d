"""Special functions of one variable: kernels/pointwise/special.metal."""

import math

import mpmath
import pytest
import torch
from metalops import testing
from metalops.testing.samples import FLOATS, INTEGERS
from scipy import special

from ..aten import reference, relative_error, served_by_us, uniform
from ..benchmark import Benchmark

FUNCTIONS = {
    "airy_ai": (-12, 8),
    "ndtri": (0, 1),
    "log_ndtr": (-12, 8),
}
by_name = pytest.mark.parametrize("name", FUNCTIONS)
by_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)


# In torch's op_db.
OPINFOS = (
    "special.airy_ai",
    "special.ndtri",
    "special.log_ndtr",
)


BENCHMARKS = (
    Benchmark.same("special.airy_ai", lambda x, out: torch.special.airy_ai(x, out=out)),
    Benchmark.same(
        "special.ndtri", lambda x, out: torch.special.ndtri(x, out=out), low=0.001, high=0.999
    ),
    Benchmark.same("special.log_ndtr", lambda x, out: torch.special.log_ndtr(x, out=out)),
)


def _function(name):
    return getattr(torch.special, name)


@pytest.mark.sampled(8)
@by_name
@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS, torch.bool), ids=str)
def test_values_in_every_layout(name, dtype):
    function = _function(name)
    low, high = FUNCTIONS[name]
    for case in testing.elementwise_cases(1, dtype, low=low, high=high, specials=False):
        testing.check_forward(function, reference(function), case, "mps", name=f"special.{name}")


@pytest.mark.sampled(3)
@by_name
@pytest.mark.parametrize("dtype", (torch.uint16, torch.uint32, torch.uint64), ids=str)
def test_wide_unsigned_integers(name, dtype):
    x = torch.tensor([0, 1, 2, 7, 50], dtype=dtype)
    expected = _function(name)(x.double()).float()
    torch.testing.assert_close(_function(name)(x.to("mps")).cpu(), expected, equal_nan=True)


@pytest.mark.sampled(2)
@by_name
@by_float
def test_out(name, dtype):
    function = _function(name)
    low, high = FUNCTIONS[name]
    case = testing.Case("simple", (testing.make((4, 6), dtype, low=low, high=high),))
    key = f"special.{name}"
    testing.check_out(
        function, reference(function), case, "mps", name=key, differentiable=name != "airy_ai"
    )


@by_name
def test_special_values_are_those_of_the_cpu(name):
    inf, nan = math.inf, math.nan
    x = torch.tensor([nan, inf, -inf, 0.0, -0.0, 1e-40, -1e-40, 1.0, 1.0000001, -1.0, 2.0, 3e38])
    expected = _function(name)(x)
    actual = _function(name)(x.to("mps")).cpu()
    torch.testing.assert_close(actual, expected, rtol=2e-6, atol=0, equal_nan=True)
    assert torch.equal(
        torch.signbit(actual[~actual.isnan()]), torch.signbit(expected[~expected.isnan()])
    )


@by_name
@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
def test_every_half_precision_number_is_rounded_once(name, dtype):
    x = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    # Where torch's double precision formula has lost all digits of the oscillation, nothing can be
    # compared.
    x = x[(x > -1e5) | x.isnan()]
    expected = _function(name)(x.double()).to(dtype)
    actual = _function(name)(x.to("mps")).cpu()
    assert torch.equal(actual.isnan(), expected.isnan())
    numbers = ~expected.isnan()
    actual, expected = actual[numbers], expected[numbers]
    different = actual != expected
    # Only a float32 result that float64 contradicts in its last bits, next to the middle of two
    # numbers, may differ.
    assert different.float().mean() < 2e-3
    torch.testing.assert_close(
        actual, expected, rtol=torch.finfo(dtype).eps, atol=torch.finfo(dtype).smallest_normal
    )


def _airy_exact(x):
    return torch.from_numpy(special.airy(x.double().numpy())[0])


def _airy_envelope(x):
    """Of the oscillation on the negative axis."""
    return 1 / (math.sqrt(math.pi) * x.double().abs() ** 0.25)


@pytest.mark.parametrize(
    ("low", "high", "bound"),
    [
        (-1e5, -1e4, 3e-7),
        (-1e4, -100, 3e-7),
        (-100, -3.2, 3e-7),
        (-3.2, -1.6, 2e-7),
        (-1.6, 0, 2e-7),
        (0, 2.1, 4e-7),
        (2.1, 8, 4e-7),
        (8, 25, 5e-7),
    ],
)
def test_airy_ai_is_right_to_float_precision_and_better_than_on_the_cpu(low, high, bound):
    x = uniform(low, high)
    scale = _airy_envelope(x) if high <= -1.6 else None
    error = relative_error(torch.special.airy_ai(x.to("mps")), _airy_exact(x), scale)
    assert error.max() < bound
    assert error.max() < relative_error(torch.special.airy_ai(x), _airy_exact(x), scale).max()


@pytest.mark.parametrize(("low", "high", "bound"), [(-1e6, -1e5, 5e-6), (-1e7, -1e6, 2e-4)])
def test_airy_ai_far_down_the_negative_axis(low, high, bound):
    x = uniform(low, high, 200)
    exact = torch.tensor([float(mpmath.airyai(v)) for v in x.tolist()], dtype=torch.float64)
    error = relative_error(torch.special.airy_ai(x.to("mps")), exact, _airy_envelope(x))
    assert error.max() < bound


def test_airy_ai_underflows_smoothly():
    x = torch.tensor([25.7, 26.0, 27.0, 103.0])
    actual = torch.special.airy_ai(x.to("mps")).cpu()
    torch.testing.assert_close(actual, _airy_exact(x).float(), rtol=1e-2, atol=1.2e-38)
    far = torch.tensor([103.8, 104.0, 1e30, 3e38], device="mps")
    assert torch.special.airy_ai(far).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("sample", "bound"),
    [
        (lambda: torch.rand(50000), 4e-7),
        (lambda: 0.1 + 0.08 * torch.rand(50000), 4.5e-7),
        (lambda: (10 ** -(torch.rand(50000).double() * 37)).float(), 4e-7),
        (lambda: (1 - 10 ** -(torch.rand(50000).double() * 7)).float(), 4e-7),
        (lambda: 0.5 + 0.01 * (torch.rand(50000) - 0.5), 2e-7),
    ],
    ids=["uniform", "around exp(-2)", "lower tail", "upper tail", "center"],
)
def test_ndtri_is_as_good_as_on_the_cpu(sample, bound):
    y = sample()
    exact = torch.from_numpy(special.ndtri(y.double().numpy()))
    use = exact.isfinite() & (exact != 0)
    y, exact = y[use], exact[use]
    error = relative_error(torch.special.ndtri(y.to("mps")), exact)
    on_cpu = relative_error(torch.special.ndtri(y), exact)
    assert error.max() < bound
    assert error.square().mean() <= on_cpu.square().mean()


def test_ndtri_of_denormal_numbers():
    y = torch.tensor([2.0**-149, 1e-44, 1e-40, 1.1e-38])
    exact = torch.from_numpy(special.ndtri(y.double().numpy()))
    assert relative_error(torch.special.ndtri(y.to("mps")), exact).max() < 2e-7


def test_ndtri_outside_of_its_domain():
    y = torch.tensor([-1e-45, -0.5, 1.0000001, math.inf, -math.inf, math.nan], device="mps")
    assert torch.special.ndtri(y).isnan().all()
    ends = torch.special.ndtri(torch.tensor([0.0, -0.0, 1.0], device="mps")).tolist()
    assert ends == [-math.inf, -math.inf, math.inf]


@pytest.mark.parametrize(
    ("low", "high", "bound"),
    [
        (-1e18, -1e4, 1e-7),
        (-1e4, -40, 1e-7),
        (-40, -5, 1.2e-7),
        (-5, -1, 2e-7),
        (-1, 0, 2e-7),
        (0, 1, 2e-7),
        (1, 5, 4e-7),
        (5, 13, 4e-7),
    ],
)
def test_log_ndtr_is_right_to_float_precision_and_better_than_on_the_cpu(low, high, bound):
    x = uniform(low, high)
    wide = x.double().numpy()
    exact = special.log_ndtr(wide) if high <= 5 else -special.ndtr(-wide)
    exact = torch.from_numpy(exact)
    error = relative_error(torch.special.log_ndtr(x.to("mps")), exact)
    assert error.max() < bound
    assert error.max() < relative_error(torch.special.log_ndtr(x), exact).max()


def test_log_ndtr_ends():
    x = torch.tensor([-math.inf, -3e38, -2.7e19, -2.5e19, 16.0, math.inf])
    actual = torch.special.log_ndtr(x.to("mps")).cpu()
    assert torch.equal(actual, torch.special.log_ndtr(x.double()).float())
    assert actual[-2:].tolist() == [0, 0] and actual.signbit().all()


@pytest.mark.parametrize("name", ["ndtri", "log_ndtr"])
@by_float
def test_gradients(name, dtype):
    # Away from the ends, where the derivative leaves the range of half precision.
    low, high = (0.05, 0.95) if name == "ndtri" else (-5, 3)
    function = _function(name)
    cases = testing.elementwise_cases(1, dtype, low=low, high=high, specials=False)
    for case in cases:
        testing.check_gradient(function, reference(function), case, "mps", name=f"special.{name}")


def test_airy_ai_has_no_derivative_as_in_torch():
    x = torch.ones(3, device="mps", requires_grad=True)
    assert torch.special.airy_ai(x).requires_grad == torch.special.airy_ai(x.cpu()).requires_grad
    assert not torch.special.airy_ai(x).requires_grad


@by_name
def test_complex_numbers_are_refused(name):
    with pytest.raises((RuntimeError, NotImplementedError)):
        _function(name)(torch.ones(3, dtype=torch.complex64, device="mps"))


@by_name
def test_out_on_another_device_is_refused(name):
    x = torch.full((3,), 0.5)
    with pytest.raises(RuntimeError, match="device"):
        _function(name)(x.to("mps"), out=torch.empty(3))
    with pytest.raises(RuntimeError, match="device"):
        _function(name)(x, out=torch.empty(3, device="mps"))


@pytest.mark.sampled(2)
@by_name
def test_default_dtype_decides_what_integers_become(name):
    x = torch.arange(5, device="mps")
    expected = _function(name)(x)
    torch.set_default_dtype(torch.bfloat16)
    try:
        actual = _function(name)(x)
    finally:
        torch.set_default_dtype(torch.float32)
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual, expected.bfloat16(), equal_nan=True)


@by_name
def test_channels_last_stays(name):
    x = torch.rand(2, 4, 3, 5, device="mps").to(memory_format=torch.channels_last)
    assert _function(name)(x).is_contiguous(memory_format=torch.channels_last)


@by_name
def test_never_served_by_a_stand_in(name):
    x = torch.rand(5, device="mps", requires_grad=name != "airy_ai")

    def call():
        y = _function(name)(x)
        _function(name)(x.detach(), out=torch.empty(5, device="mps"))
        _function(name)(torch.arange(5, device="mps"))
        if x.requires_grad:
            y.sum().backward()

    assert served_by_us(call) == []


def test_special_values_do_not_depend_on_the_layout():
    values = testing.special_values(torch.float32)
    whole = values.repeat_interleave(2)
    for name in FUNCTIONS:
        dense = _function(name)(values.to("mps")).cpu()
        strided = _function(name)(testing.to_device(whole[::2], "mps")).cpu()
        torch.testing.assert_close(dense, strided, rtol=0, atol=0, equal_nan=True)
