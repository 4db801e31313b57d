"""heaviside, logit_ and frexp: kernels/pointwise/elementwise.metal."""

import itertools
import math

import pytest
import torch
from metalops import testing
from metalops.testing.samples import FLOATS, INTEGERS

from .. import direct
from ..aten import relative_error, served_by_us, uniform
from ..benchmark import HALVES_ONE_BY_ONE, Benchmark

by_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)
by_dtype = pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS, torch.bool), ids=str)


# In torch's op_db.
OPINFOS = (
    "heaviside",
    "frexp",
    "logit",
)


BENCHMARKS = (
    Benchmark.same("heaviside", lambda a, b, out: torch.heaviside(a, b, out=out), inputs=2),
    Benchmark.same("frexp", lambda x, out: torch.frexp(x), reason=HALVES_ONE_BY_ONE),
    Benchmark.same("logit_", lambda x, out: out.copy_(x).logit_(), low=0.01, high=0.99),
)


# ---- heaviside -----------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@by_dtype
def test_heaviside_in_every_layout_and_broadcast(dtype):
    for case in testing.elementwise_cases(2, dtype, low=-1, high=1, promote=False):
        testing.check_forward(
            torch.heaviside, torch.heaviside, _with_zeros(case), "mps", name="heaviside"
        )


def _with_zeros(case):
    """Half of the first operand's values made zero in place: only there the second one matters."""
    first = case.args[0]
    if first.numel() > 1 and case.precise and not first._is_view() and first.is_contiguous():
        first.view(-1)[::2] = 0
    return case


@pytest.mark.usefixtures("taken_as_on")
@pytest.mark.parametrize("columns", [256, 257])
def test_heaviside_of_a_matrix_that_ends_within_a_tile(columns):
    x, values = (
        testing.make((258, columns), torch.float32),
        testing.make((columns, 258), torch.float32),
    )
    expected = torch.heaviside(x, values.t())
    actual = torch.heaviside(x.to("mps"), values.to("mps").t())
    assert torch.equal(actual.cpu(), expected)


@by_float
def test_heaviside_of_special_values(dtype):
    x = testing.special_values(dtype)
    values = torch.full_like(x, 0.25)
    expected = torch.heaviside(x, values)
    assert torch.equal(torch.heaviside(x.to("mps"), values.to("mps")).cpu(), expected)
    assert expected[x == 0].eq(0.25).all()


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.0, 1e-40])
def test_heaviside_hands_the_value_at_zero_through(value):
    x = torch.tensor([0.0, -0.0, 1.0, -1.0], device="mps")
    actual = torch.heaviside(x, torch.tensor(value))
    expected = torch.heaviside(x.cpu(), torch.tensor(value))
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(actual.cpu().signbit(), expected.signbit())


def test_heaviside_keeps_all_bits_of_wide_integers():
    x = torch.tensor([0, 2**53 + 1, -(2**62)], device="mps")
    values = torch.tensor([2**53 + 1, 3, 3], device="mps")
    assert torch.heaviside(x, values).tolist() == [2**53 + 1, 1, 0]


def test_heaviside_refuses_different_dtypes_and_complex_numbers():
    x = torch.ones(3, device="mps")
    different = "not yet implemented for tensors with different dtypes"
    with pytest.raises(RuntimeError, match=different):
        torch.heaviside(x, x.half())
    with pytest.raises(RuntimeError, match=different):
        torch.heaviside(x, torch.tensor(1))
    with pytest.raises(RuntimeError, match=different):
        torch.heaviside(x, x, out=torch.empty(3, dtype=torch.float16, device="mps"))
    with pytest.raises(RuntimeError, match=different):
        x.heaviside_(x.int())
    with pytest.raises(RuntimeError, match="not yet implemented for complex tensors"):
        torch.heaviside(x.to(torch.complex64), x.to(torch.complex64))


def test_heaviside_refuses_other_devices_and_shapes():
    x = torch.ones(3, device="mps")
    with pytest.raises(RuntimeError, match="same device"):
        torch.heaviside(x, torch.ones(3))
    with pytest.raises(RuntimeError, match="must match the size"):
        torch.heaviside(x, torch.ones(4, device="mps"))
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        x.heaviside_(torch.ones(2, 3, device="mps"))


@by_float
def test_heaviside_in_place(dtype):
    x = testing.make((5, 6), dtype, low=-1, high=1)
    x[::2] = 0
    values = testing.make((6,), dtype, seed=1)
    case = testing.Case("simple", (x, values))
    testing.check_inplace(torch.Tensor.heaviside_, torch.heaviside, case, "mps", name="heaviside")


def test_heaviside_out_is_resized_with_a_warning_and_may_be_strided():
    x = testing.make((4, 6), torch.float32).to("mps")
    values = torch.zeros(6, device="mps")
    expected = torch.heaviside(x.cpu(), values.cpu())
    out = torch.empty(3, device="mps")
    with pytest.warns(UserWarning, match="was resized"):
        assert torch.heaviside(x, values, out=out) is out
    assert torch.equal(out.cpu(), expected)
    whole = torch.full((9, 13), 7.0, device="mps")
    torch.heaviside(x, values, out=whole[1::2, 1::2])
    assert torch.equal(whole[1::2, 1::2].cpu(), expected)
    assert whole.eq(7).sum() == 9 * 13 - 24
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.heaviside(x, values, out=torch.empty(1, device="mps").expand(4, 6))


# ---- logit_ --------------------------------------------------------------------------------------


def _logit(x, eps=None):
    """The in-place form as a function, for the checks that compare results."""
    return torch.logit_(x.clone(), eps)


@by_float
@pytest.mark.parametrize("eps", [None, 1e-3, 0.2, 0.0])
def test_logit_in_every_layout(dtype, eps):
    for case in testing.elementwise_cases(1, dtype, low=0.02, high=0.98, specials=False):
        whole = testing.Case(case.name, case.args, {"eps": eps})
        testing.check_forward(_logit, _logit, whole, "mps", name="logit")


@by_float
def test_logit_in_place_on_views(dtype):
    case = testing.Case("simple", (testing.make((4, 6), dtype, low=0.02, high=0.98),))
    testing.check_inplace(torch.logit_, torch.logit, case, "mps", name="logit")
    testing.check_inplace(torch.Tensor.logit_, torch.logit, case, "mps", name="logit")


@pytest.mark.parametrize("eps", [None, -1e-3, 0.0, 1e-3, 0.5, 0.7, math.nan])
def test_logit_of_special_values(eps):
    inf, nan = math.inf, math.nan
    x = torch.tensor([nan, inf, -inf, 0.0, -0.0, 1.0, 1.0000001, -1e-40, 0.5, 0.25, 2.0])
    torch.testing.assert_close(
        torch.logit_(x.to("mps"), eps).cpu(), torch.logit_(x.clone(), eps), equal_nan=True
    )


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.4, 0.6), (0.0, 1e-6), (0.999, 1.0)])
def test_logit_is_as_good_as_on_the_cpu(low, high):
    x = uniform(low, high)
    x = x[(x > 0) & (x < 1) & (x != 0.5)]
    exact = torch.logit(x.double())
    error = relative_error(torch.logit_(x.to("mps")), exact)
    assert error.max() < 4e-7
    assert error.max() <= max(relative_error(torch.logit(x), exact).max(), 3e-7)


def test_logit_of_denormal_numbers():
    x = torch.tensor([2.0**-149, 1e-44, 1e-40, 1.1e-38])
    assert relative_error(torch.logit_(x.to("mps")), torch.logit(x.double())).max() < 2e-7


@pytest.mark.parametrize("dtype", (*INTEGERS, torch.bool), ids=str)
def test_logit_in_place_of_integers_is_refused(dtype):
    with pytest.raises(RuntimeError, match="result type Float can't be cast to"):
        torch.logit_(torch.ones(3, dtype=dtype, device="mps"))


def test_logit_in_place_of_overlapping_elements_is_refused():
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.logit_(torch.full((1,), 0.5, device="mps").expand(3))


@by_float
@pytest.mark.parametrize("eps", [None, 0.1])
def test_gradient_through_logit(dtype, eps):
    def function(x, eps):
        return torch.logit_(x * 1, eps)

    for case in testing.elementwise_cases(1, dtype, low=0.15, high=0.85, specials=False):
        whole = testing.Case(case.name, case.args, {"eps": eps})
        testing.check_gradient(function, function, whole, "mps", name="logit")


# ---- frexp ---------------------------------------------------------------------------------------


@by_float
def test_frexp_in_every_layout(dtype):
    for case in testing.elementwise_cases(1, dtype, low=-100, high=100):
        testing.check_forward(torch.frexp, _frexp, case, "mps", name="frexp")


def _frexp(x):
    """Of NaN and infinities C leaves the exponent open; torch's CPU operators and ours say 0."""
    mantissa, exponent = torch.frexp(x)
    return mantissa, torch.where(x.isfinite(), exponent, 0)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
def test_frexp_of_every_half_precision_number(dtype):
    x = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    expected = _frexp(x)
    actual = torch.frexp(x.to("mps"))
    assert torch.equal(actual.mantissa.cpu().nan_to_num(7), expected[0].nan_to_num(7))
    assert torch.equal(actual.exponent.cpu(), expected[1])


def test_frexp_of_float_bit_patterns_puts_itself_together_again():
    bits = torch.randint(-(2**31), 2**31, (100000,), dtype=torch.int64).int()
    denormal = torch.randint(-(2**23), 2**23, (1000,), dtype=torch.int64).abs().int()
    x = torch.cat([bits, denormal, -denormal]).view(torch.float32)
    x = x[x.isfinite()]
    x = x[: len(x) // 4 * 4]
    for part in (x, x[1:]):  # whole packs of four elements, and not
        mantissa, exponent = (t.cpu() for t in torch.frexp(part.to("mps")))
        assert torch.equal(mantissa.double() * 2.0 ** exponent.double(), part.double())
        nonzero = mantissa[part != 0].abs()
        assert nonzero.min() >= 0.5 and nonzero.max() < 1
        assert torch.equal(mantissa.signbit(), part.signbit())


@by_float
def test_frexp_of_tensors_that_begin_anywhere(dtype):
    for begin, size in itertools.product(range(4), (1, 3, 4, 5, 8, 1028)):
        x = testing.make((size + 4,), dtype, low=-50, high=50)
        expected = _frexp(x[begin : begin + size])
        outs = [torch.zeros(size + 4, dtype=kind, device="mps") for kind in (dtype, torch.int)]
        for out_begin in (0, 1):
            views = [out[out_begin : out_begin + size] for out in outs]
            torch.frexp(x.to("mps")[begin : begin + size], out=tuple(views))
            for view, e in zip(views, expected, strict=True):
                assert torch.equal(view.cpu(), e)


@by_float
def test_frexp_out(dtype):
    x = testing.make((4, 6), dtype, low=-50, high=50)
    expected = torch.frexp(x)
    on_device = x.to("mps")

    def check(mantissa, exponent):
        result = torch.frexp(on_device, out=(mantissa, exponent))
        assert result.mantissa is mantissa and result.exponent is exponent
        assert torch.equal(mantissa.cpu(), expected.mantissa)
        assert torch.equal(exponent.cpu(), expected.exponent)

    def empty(*shape, kind=dtype):
        return torch.empty(shape, dtype=kind, device="mps")

    check(empty(4, 6), empty(4, 6, kind=torch.int32))
    check(empty(0), empty(0, kind=torch.int32))
    check(empty(6, 4).t(), empty(4, 12, kind=torch.int32)[:, ::2])
    with pytest.warns(UserWarning, match="was resized"):
        check(empty(3), empty(4, 6, kind=torch.int32))
    with pytest.warns(UserWarning, match="was resized"):
        check(empty(4, 6), empty(2, 2, kind=torch.int32))
    check(on_device, empty(4, 6, kind=torch.int32))


def test_frexp_refuses_what_the_cpu_refuses():
    x = torch.ones(3, device="mps")
    exponent = torch.empty(3, dtype=torch.int32, device="mps")
    with pytest.raises(RuntimeError, match="only supports floating-point dtypes"):
        torch.frexp(x.int())
    with pytest.raises(RuntimeError, match="expects mantissa to have dtype float but got"):
        torch.frexp(x, out=(x.half(), exponent))
    with pytest.raises(RuntimeError, match="expects exponent to have int dtype but got"):
        torch.frexp(x, out=(x.clone(), exponent.long()))
    with pytest.raises(RuntimeError, match="same device"):
        torch.frexp(x, out=(torch.empty(3), exponent))
    with pytest.raises(RuntimeError, match="same device"):
        torch.frexp(x, out=(x.clone(), exponent.cpu()))
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.frexp(x, out=(torch.empty(1, device="mps").expand(3), exponent))


@by_float
def test_frexp_gradient_of_the_mantissa(dtype):
    for case in testing.elementwise_cases(1, dtype, low=1.1, high=60, specials=False):
        testing.check_gradient(_mantissa, _mantissa, case, "mps", name="frexp")


def _mantissa(x):
    return torch.frexp(x).mantissa


def test_exponent_has_no_gradient():
    x = torch.rand(3, device="mps", requires_grad=True)
    assert not torch.frexp(x).exponent.requires_grad
    assert torch.frexp(x).mantissa.requires_grad


# ---- all -----------------------------------------------------------------------------------------


def test_never_served_by_a_stand_in():
    x = torch.rand(4, 3, device="mps", requires_grad=True)

    def call():
        torch.frexp(x).mantissa.sum().backward()
        torch.logit_(x * 1).sum().backward()
        torch.heaviside(x, x)
        y = x.detach().clone()
        y.heaviside_(y)
        torch.heaviside(y, y, out=torch.empty_like(y))
        torch.frexp(
            y, out=(torch.empty_like(y), torch.empty(4, 3, dtype=torch.int32, device="mps"))
        )

    assert served_by_us(call) == []


@pytest.mark.parametrize("count", [1, 3, 1000, 4097])
def test_channels_last_and_permuted_inputs_keep_their_strides(count):
    x = torch.rand(2, 3, count, 2, device="mps").to(memory_format=torch.channels_last)
    for result in (*torch.frexp(x), torch.heaviside(x, x)):
        assert result.stride() == x.stride()


@pytest.mark.full
def test_elements_further_apart_than_32_bits_can_tell():
    # 4 GiB, of which a few pages are ever used.
    storage = torch.empty(2**31 + 100, dtype=torch.bfloat16, device="mps")
    view = storage.as_strided((2, 3), (2**31 + 7, 5))
    x = testing.make((2, 3), torch.bfloat16, low=0.1, high=0.9)
    view.copy_(x)
    # The CPU rounds every step of logit to bfloat16.
    for function in (torch.frexp, lambda t: (torch.heaviside(t, t), _logit(t))):
        for actual, expected in zip(function(view), function(x)):
            torch.testing.assert_close(actual.cpu(), expected, rtol=5e-2, atol=1e-2)
    torch.frexp(x.to("mps"), out=(view, torch.empty(2, 3, dtype=torch.int32, device="mps")))
    assert torch.equal(view.cpu(), torch.frexp(x).mantissa)
    torch.logspace(0, 1, 6, out=view)
    assert torch.equal(view.cpu().flatten(), torch.logspace(0, 1, 6, dtype=torch.bfloat16))
    view.fill_(-1)
    noise = torch.empty(2, 3, dtype=torch.bfloat16, device="mps")
    result = torch._C._nn.rrelu_with_noise(view, noise, 0.25, 0.5, True)
    assert torch.equal(result, -noise) and len(noise.unique()) > 1


def test_threads_beyond_the_last_element_of_frexp_do_nothing():
    mantissa = torch.full((9,), -1.0, device="mps")
    exponent = torch.full((9,), -1, dtype=torch.int32, device="mps")
    x = torch.full((9,), 12.0, device="mps")
    layout = direct.strided_layout([4], [[4]] * 3)
    direct.kernels("elementwise").elementwise_frexp_float(
        mantissa, exponent, x, layout, threads=(9, 1)
    )
    assert mantissa.tolist() == [0.75] * 4 + [-1] * 5
    assert exponent.tolist() == [4] * 4 + [-1] * 5


# ---- conj_physical_ ------------------------------------------------------------------------------


def test_complex_numbers_are_conjugated_in_place():
    x = torch.randn(3, 4, dtype=torch.complex64)
    y = x.to("mps")
    for ours, theirs in ((y, x), (y.mT[::2], x.mT[::2]), (y.conj(), x.conj())):
        assert ours.conj_physical_() is ours
        assert torch.equal(ours.cpu(), theirs.conj_physical_())
        assert torch.equal(y.cpu(), x)
    real = torch.ones(2, device="mps")
    assert real.conj_physical_() is real
