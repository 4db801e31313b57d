"""rrelu in all its forms: kernels/pointwise/rrelu.metal."""

import math

import pytest
import torch
import torch.nn.functional as F
from metalops import testing
from metalops.testing.samples import FLOATS, INTEGERS

from .. import direct
from ..aten import served_by_us
from ..benchmark import HALVES_ONE_BY_ONE, Benchmark

by_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)
LOWER, UPPER = 0.125, 1 / 3


# In torch's op_db.
OPINFOS = ("nn.functional.rrelu",)


BENCHMARKS = (Benchmark.same("rrelu", lambda x, out: F.rrelu(x), reason=HALVES_ONE_BY_ONE),)


def _with_noise(x, lower=LOWER, upper=UPPER, training=True, generator=None):
    noise = torch.zeros_like(x)
    result = torch._C._nn.rrelu_with_noise(x, noise, lower, upper, training, generator)
    return result, noise


# ---- not in training -----------------------------------------------------------------------------


def _evaluated(x, lower=LOWER, upper=UPPER):
    return F.rrelu(x, lower, upper, training=False)


def _expected(x, lower=LOWER, upper=UPPER):
    return F.leaky_relu(x, (lower + upper) / 2)


@pytest.mark.sampled(2)
@by_float
def test_mean_slope_in_every_layout(dtype):
    for case in testing.elementwise_cases(1, dtype):
        testing.check_forward(_evaluated, _expected, case, "mps", name="rrelu")
        if case.precise:
            testing.check_gradient(_evaluated, _expected, case, "mps", name="rrelu")


def test_mean_slope_of_other_bounds_and_special_values():
    x = testing.special_values(torch.float32)
    for lower, upper in ((0.0, 0.0), (0.3, 0.3), (-0.5, 0.1), (1.0, 3.0)):
        expected = F.rrelu(x, lower, upper)
        actual = F.rrelu(x.to("mps"), lower, upper).cpu()
        torch.testing.assert_close(actual, expected, equal_nan=True)


@by_float
def test_mean_slope_in_place(dtype):
    case = testing.Case("simple", (testing.make((4, 6), dtype),))
    testing.check_inplace(torch.rrelu_, _expected, case, "mps", name="rrelu")

    def through_inplace(x):
        return F.rrelu(x * 1, inplace=True)

    testing.check_gradient(through_inplace, _expected, case, "mps", name="rrelu")


def test_negative_slope_in_place_cannot_be_differentiated():
    x = torch.randn(5, device="mps", requires_grad=True)
    y = torch.rrelu_(x * 1, -0.5, 0.1)
    with pytest.raises(RuntimeError, match="negative slope which is not supported"):
        y.sum().backward()


def test_noise_stays_as_it_is_when_not_in_training():
    x = torch.randn(5, device="mps")
    noise = torch.full_like(x, 7)
    torch._C._nn.rrelu_with_noise(x, noise, LOWER, UPPER, False)
    assert noise.tolist() == [7] * 5


# ---- in training ---------------------------------------------------------------------------------


@by_float
def test_noise_is_the_slope_where_negative_and_one_elsewhere(dtype):
    for case in testing.elementwise_cases(1, dtype, specials=False):
        (x,) = case.args
        result, noise = (t.cpu() for t in _with_noise(testing.to_device(x, "mps"), 0.25, 0.75))
        positive = x > 0
        assert torch.equal(result[positive], x[positive]), case
        assert noise[positive].eq(1).all(), case
        slopes = noise[~positive].double()
        assert ((slopes >= 0.25) & (slopes <= 0.75)).all(), case
        expected = x[~positive].double() * slopes
        # noise was rounded to the dtype, the result was not computed from the rounded one.
        torch.testing.assert_close(
            result[~positive].double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-7
        )


def test_slopes_are_uniform_between_the_bounds():
    x = torch.full((100_000,), -1.0, device="mps")
    result, noise = (t.cpu().double() for t in _with_noise(x, -0.5, 1.5))
    assert torch.equal(result, -noise)
    sample = ((noise + 0.5) / 2).sort().values
    # Kolmogorov and Smirnov's distance; one in a million samples is farther away than 2.65 /
    # sqrt(n).
    steps = torch.arange(len(sample) + 1, dtype=torch.float64) / len(sample)
    distance = torch.maximum((sample - steps[:-1]).abs(), (sample - steps[1:]).abs()).max()
    assert distance < 2.65 / math.sqrt(len(sample))
    assert sample[0] >= 0 and sample[-1] <= 1
    # Neighbours, which come of the same Philox call or of the next, know nothing of each other.
    centered = ((noise + 0.5) / 2 - 0.5) * math.sqrt(12)
    for shift in (1, 2, 3, 4, 5):
        correlation = (centered[shift:] * centered[:-shift]).mean()
        assert correlation.abs() < 5 / math.sqrt(len(sample))


def test_each_call_draws_new_slopes():
    x = torch.full((1001,), -1.0, device="mps")
    draws = torch.stack([F.rrelu(x, 0, 1, training=True) for _ in range(3)]).cpu()
    assert len(draws.unique()) > 0.99 * draws.numel()


@pytest.mark.parametrize("count", [1, 3, 4, 5, 28, 33, 1000])
def test_the_same_seed_gives_the_same_slopes(count):
    x = -torch.rand(count, device="mps")
    torch.manual_seed(5)
    first = F.rrelu(x, training=True)
    second = F.rrelu(x, training=True)
    torch.manual_seed(5)
    assert torch.equal(F.rrelu(x, training=True), first)
    assert torch.equal(F.rrelu(x, training=True), second)
    assert not torch.equal(first, second)
    state = torch.mps.get_rng_state()
    third = F.rrelu(x, training=True)
    torch.mps.set_rng_state(state)
    assert torch.equal(F.rrelu(x, training=True), third)


def test_generator_of_ones_own():
    x = -torch.rand(50, device="mps")
    generator = torch.Generator(device="mps").manual_seed(11)
    before = torch.mps.get_rng_state()
    first, _ = _with_noise(x, generator=generator)
    second, _ = _with_noise(x, generator=generator)
    assert torch.equal(torch.mps.get_rng_state(), before)
    assert not torch.equal(first, second)
    assert torch.equal(_with_noise(x, generator=generator.manual_seed(11))[0], first)
    with pytest.raises(RuntimeError, match="Expected a 'mps' device type for generator"):
        _with_noise(x, generator=torch.Generator())


def test_the_stream_advances_by_one_call_for_four_elements():
    torch.manual_seed(5)
    x = -torch.ones(40, device="mps")
    whole = F.rrelu(x, training=True)
    torch.manual_seed(5)
    parts = [F.rrelu(x[:8], training=True), F.rrelu(x[:32], training=True)]
    assert torch.equal(torch.cat(parts), whole)
    torch.manual_seed(5)
    F.rrelu(x[:0], training=True)
    assert torch.equal(F.rrelu(x, training=True), whole)


def test_slopes_do_not_depend_on_the_layout():
    x = -torch.rand(6, 10)
    layouts = [
        x,
        x.t().contiguous().t(),
        x.repeat_interleave(2, dim=1)[:, ::2],
        torch.cat([torch.zeros(2, 10), x])[2:],
    ]
    results = []
    for layout in layouts:
        torch.manual_seed(3)
        results.append(_with_noise(testing.to_device(layout, "mps")))
    for result, noise in results[1:]:
        assert torch.equal(result, results[0][0]) and torch.equal(noise, results[0][1])


@by_float
def test_training_in_place_and_out(dtype):
    x = testing.make((4, 6), dtype).to("mps")
    torch.manual_seed(3)
    expected, expected_noise = _with_noise(x)

    def call(function, *args, **kwargs):
        torch.manual_seed(3)
        return function(*args, LOWER, UPPER, True, **kwargs)

    changed = x.clone()
    assert call(torch.rrelu_, changed) is changed
    assert torch.equal(changed, expected)
    whole = torch.full((9, 13), 77, dtype=dtype, device="mps")
    view = whole[1::2, 1::2]
    view.copy_(x)
    noise = torch.empty(6, 4, dtype=dtype, device="mps").t()
    call(torch._C._nn.rrelu_with_noise_, view, noise)
    assert torch.equal(view, expected) and torch.equal(noise, expected_noise)
    assert whole.eq(77).sum() == 9 * 13 - 24
    for out in (torch.empty_like(x), torch.empty(0, dtype=dtype, device="mps"), whole[1::2, 1::2]):
        assert call(torch._C._nn.rrelu_with_noise, x, noise, out=out) is out
        assert torch.equal(out, expected)
    with pytest.warns(UserWarning, match="was resized"):
        call(torch._C._nn.rrelu_with_noise, x, noise, out=torch.empty(3, dtype=dtype, device="mps"))


@pytest.mark.sampled(2)
@by_float
def test_gradient_in_training_is_the_slope(dtype):
    for case in testing.elementwise_cases(1, dtype, specials=False):
        x = testing.to_device(case.args[0], "mps").detach().requires_grad_()
        torch.manual_seed(9)
        y = F.rrelu(x, training=True)
        torch.manual_seed(9)
        _, noise = _with_noise(x.detach())
        for _, cotangent in testing.checks.cotangents(case.args[0]):
            cotangent = testing.to_device(cotangent, "mps")
            (gradient,) = torch.autograd.grad(y, x, cotangent, retain_graph=True)
            assert torch.equal(gradient.cpu(), (noise.cpu() * cotangent.cpu())), case


def test_gradient_through_training_in_place():
    x = torch.randn(20, device="mps", requires_grad=True)
    torch.manual_seed(9)
    y = F.rrelu(x * 1, training=True, inplace=True)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient * x, y)


def test_second_derivative_is_zero_and_the_gradient_is_differentiable_in_the_cotangent():
    x = torch.randn(20, device="mps", requires_grad=True)
    y = F.rrelu(x, training=True)
    cotangent = torch.randn(20, device="mps", requires_grad=True)
    (gradient,) = torch.autograd.grad(y, x, cotangent, create_graph=True)
    (slope,) = torch.autograd.grad(gradient.sum(), cotangent)
    torch.testing.assert_close(slope * x, y)


def test_module():
    layer = torch.nn.RReLU(0.1, 0.3)
    x = torch.randn(3, 5, device="mps")
    y = layer(x)
    slopes = (y / x)[x < 0].cpu()
    assert ((slopes > 0.0999) & (slopes < 0.3001)).all() and len(slopes.unique()) == len(slopes)
    torch.testing.assert_close(layer.eval()(x), _expected(x, 0.1, 0.3))


def test_nan_stays_and_infinities_too():
    x = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0], device="mps")
    result, noise = _with_noise(x)
    assert result[0].isnan() and result[1:].tolist() == [math.inf, -math.inf, 0, 0]
    assert noise[:2].tolist() == [1, 1] and noise[2:].lt(1).all()
    assert result.signbit().tolist()[3:] == [False, True]


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", (*INTEGERS, torch.bool, torch.complex64), ids=str)
@pytest.mark.parametrize("training", [False, True])
def test_other_dtypes_are_refused(dtype, training):
    with pytest.raises(NotImplementedError, match="not implemented for"):
        torch.rrelu(torch.ones(3, dtype=dtype, device="mps"), training=training)


def test_errors_are_those_of_the_cpu():
    x = torch.randn(2, 3, device="mps")
    with pytest.raises(RuntimeError, match="Lower bound should be less than or equal to the upper"):
        torch.rrelu(x, 0.5, 0.25)
    with pytest.raises(RuntimeError, match="noise tensor shape must match self tensor shape"):
        torch._C._nn.rrelu_with_noise(x, x[0].clone(), LOWER, UPPER, True)
    with pytest.raises(RuntimeError, match="expected scalar type Float but found Half"):
        torch._C._nn.rrelu_with_noise(x, x.half(), LOWER, UPPER, True)
    with pytest.raises(RuntimeError, match="same device"):
        torch._C._nn.rrelu_with_noise(x, x.cpu(), LOWER, UPPER, True)
    with pytest.raises(RuntimeError, match="single memory location"):
        torch._C._nn.rrelu_with_noise(x, x[:1, :1].clone().expand(2, 3), LOWER, UPPER, True)
    with pytest.raises(RuntimeError, match="single memory location"):
        storage = torch.randn(7, device="mps")
        torch._C._nn.rrelu_with_noise(storage[:6], storage[1:], LOWER, UPPER, True)


def test_never_served_by_a_stand_in():
    x = torch.randn(4, 3, device="mps", requires_grad=True)

    def call():
        for training in (False, True):
            F.rrelu(x, training=training).sum().backward()
            F.rrelu(x * 1, training=training, inplace=True).sum().backward()
            y, noise = x.detach(), torch.empty(4, 3, device="mps")
            out = torch.empty_like(y)
            torch._C._nn.rrelu_with_noise(y, noise, LOWER, UPPER, training, out=out)

    assert served_by_us(call) == []


def test_threads_beyond_the_last_element_do_nothing():
    output, noise = (torch.full((20,), 7.0, device="mps") for _ in range(2))
    x = torch.full((20,), -2.0, device="mps")
    parameters = direct.as_bytes("2q2f", 3, 0, 0.25, 0.5)
    layout = direct.strided_layout([5], [[4]] * 3)
    direct.kernels("rrelu").rrelu_training_float(
        output, noise, x, parameters, layout, threads=(5, 1)
    )
    assert (output[:5] == -2 * noise[:5]).all() and (noise[:5] < 1).all()
    assert (output[5:] == 7).all() and (noise[5:] == 7).all()
