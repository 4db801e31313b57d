"""Dtypes that MPS takes and CPU kernels refuse: computed in a wider type and cast back."""

import concurrent.futures
import threading
import timeit

import pytest
import torch
from torch.nn import functional as F

HALVES = [torch.float16, torch.bfloat16]


def x(dtype):
    return torch.tensor([0.25, 0.5, 1.0, 1.5, 2.0]).to(dtype)


UNARY = [
    torch.special.bessel_j0,
    torch.special.bessel_j1,
    torch.special.bessel_y0,
    torch.special.bessel_y1,
    torch.special.modified_bessel_i0,
    torch.special.modified_bessel_i1,
    torch.special.modified_bessel_k0,
    torch.special.modified_bessel_k1,
    torch.special.scaled_modified_bessel_k0,
    torch.special.scaled_modified_bessel_k1,
    torch.special.spherical_bessel_j0,
]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("function", UNARY, ids=lambda f: f.__name__)
def test_bessel_functions(function, dtype):
    expected = function(x(dtype).float()).to(dtype)
    actual = function(x(dtype).to("mps"))
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0)
    out = torch.empty(0, dtype=dtype, device="mps")
    assert function(x(dtype).to("mps"), out=out) is out
    assert torch.equal(out, actual)


POLYNOMIALS = [
    torch.special.chebyshev_polynomial_t,
    torch.special.chebyshev_polynomial_u,
    torch.special.chebyshev_polynomial_v,
    torch.special.chebyshev_polynomial_w,
    torch.special.hermite_polynomial_h,
    torch.special.hermite_polynomial_he,
    torch.special.shifted_chebyshev_polynomial_t,
    torch.special.zeta,
]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("function", POLYNOMIALS, ids=lambda f: f.__name__)
def test_polynomials(function, dtype):
    a, b = x(dtype), torch.full((5,), 3.0, dtype=dtype)
    actual = function(a.to("mps"), b.to("mps"))
    assert actual.dtype == dtype
    expected = function(a.float(), b.float()).to(dtype)
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", HALVES)
def test_distances_and_pooling(dtype):
    a = torch.randn(4, 3).to(dtype)
    actual = torch.cdist(a.to("mps"), a.to("mps"))
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.cpu(), torch.cdist(a.float(), a.float()).to(dtype))
    volume = torch.randn(1, 2, 4, 4, 4).to(dtype)
    pooled = F.avg_pool3d(volume.to("mps"), 2)
    assert pooled.dtype == dtype
    torch.testing.assert_close(pooled.cpu(), F.avg_pool3d(volume.float(), 2).to(dtype))


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_polar_of_halves():
    length, angle = torch.rand(4).half(), torch.rand(4).half()
    actual = torch.polar(length.to("mps"), angle.to("mps"))
    assert actual.dtype == torch.complex32
    expected = torch.polar(length.float(), angle.float())
    torch.testing.assert_close(actual.cpu().to(torch.complex64), expected, rtol=1e-3, atol=1e-3)


def test_gradient_of_a_widened_operator():
    volume = torch.randn(1, 1, 4, 4, 4).half()
    leaf = volume.to("mps").requires_grad_()
    F.avg_pool3d(leaf, 2).sum().backward()
    assert leaf.grad.dtype == torch.float16
    torch.testing.assert_close(leaf.grad.cpu(), torch.full_like(volume, 0.125))


def test_bool_keeps_integer_meaning():
    t, f = torch.tensor([True, False, True]), torch.tensor([True, True, True])
    a, b = t.to("mps"), f.to("mps")
    for actual, expected in (
        (a.floor(), [True, False, True]),
        (torch.pow(a, b), [True, False, True]),
        (torch.remainder(a, b), [False, False, False]),
        (F.pad(a, (1, 1)), [False, True, False, True, False]),
    ):
        assert actual.dtype == torch.bool
        assert actual.tolist() == expected


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_integer_histogram(dtype):
    values = torch.arange(10, dtype=dtype, device="mps")
    counts = torch.histc(values, bins=5)
    assert counts.dtype == dtype
    assert counts.tolist() == [2] * 5


def test_in_place_and_out_views_are_written():
    base = torch.zeros(6, dtype=torch.float16, device="mps")
    torch.special.bessel_j0(x(torch.float16).to("mps")[:3], out=base[::2])
    expected = torch.special.bessel_j0(x(torch.float16).float()[:3]).half()
    assert torch.equal(base[::2].cpu(), expected)
    assert base[1::2].tolist() == [0, 0, 0]


def test_integers_keep_every_digit_of_32_bits():
    x = torch.tensor([16777217, -2147483647], dtype=torch.int32, device="mps")
    assert torch.equal(torch.lerp(x, x, 0.5), x)


def test_integers_join_float32_tensors():
    x = torch.tensor([1, 2, 3], dtype=torch.int32, device="mps")
    weight = torch.tensor([0.0, 0.5, 1.0], device="mps")
    with pytest.raises(RuntimeError, match="expected .*dtype"):
        torch.lerp(x, x + 2, weight)


def test_a_kernel_that_wrote_before_it_refused_runs_once():
    """The CPU's kernel scales the first tensor and then refuses the second one's dtype."""
    for _ in range(2):  # when it is tried, and when it is remembered
        first = torch.tensor([1.0, 2.0], device="mps")
        second = torch.tensor([8, 16], dtype=torch.int32, device="mps")
        found_inf = torch.zeros((), device="mps")
        torch._amp_foreach_non_finite_check_and_unscale_(
            [first, second], found_inf, torch.tensor(0.5, device="mps")
        )
        assert first.tolist() == [0.5, 1.0]
        assert second.tolist() == [4, 8]


def test_what_a_kernel_takes_is_remembered():
    """A refusal costs several times what the casts do; only the first call pays for it."""
    half = x(torch.float16).to("mps")

    def seconds(function):
        def calls():
            for _ in range(50):
                function()

        return min(timeit.repeat(calls, number=1, repeat=20))

    widened = seconds(lambda: torch.special.bessel_y1(half))
    by_hand = seconds(lambda: torch.special.bessel_y1(half.float()).half())
    assert widened < 2.5 * by_hand


def test_numbers_that_the_remembered_type_cannot_hold_take_the_next_one():
    for start in (0, -2.0, 0):
        result = torch.linspace(start, 3, 2, dtype=torch.bool, device="mps")
        assert result.tolist() == [start != 0, True]


def test_threads_that_meet_a_dtype_at_the_same_time_agree():
    functions = [torch.special.modified_bessel_i0, torch.special.bessel_j1, torch.special.erfcx]
    dtypes = [torch.float16, torch.bfloat16, torch.int32, torch.bool]
    expected = {
        (f, dtype): f(x(torch.float32).to(dtype).float().to("mps"))
        for f in functions
        for dtype in dtypes
    }
    meet = threading.Barrier(4)

    def work(_):
        meet.wait()
        return [
            (f(x(dtype).to("mps")).float() - expected[f, dtype]).abs().max().item()
            for f in functions
            for dtype in dtypes
            for _ in range(20)
        ]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        errors = list(pool.map(work, range(4)))
    assert len(errors) == 4
    assert all(one == errors[0] for one in errors)
    assert max(errors[0]) < 0.2


def test_refusals_without_a_wider_type_stay():
    with pytest.raises(NotImplementedError, match="not implemented for 'Float'"):
        torch.ones(2, device="mps") & torch.ones(2, device="mps")


def test_a_float32_result_of_half_arguments_stays_float32():
    a = torch.randn(3, 4).half().to("mps")
    assert a.sum(dtype=torch.float32).dtype == torch.float32
    assert F.softmax(a, -1, dtype=torch.float32).dtype == torch.float32
