"""poisson and binomial: kernels/creation/random.metal."""

import math

import numpy as np
import pytest
import torch
from metalops import testing
from metalops.testing.samples import FLOATS, layouts, make
from scipy import stats

from .. import direct
from ..aten import CPU_FLOATS, Calls, OpInfoSamples, only_ours, served_by_us
from ..benchmark import Benchmark

pytestmark = only_ours("aten::poisson")

by_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)
INFINITY, NAN = math.inf, math.nan

# On both sides of 10, where rejection begins, and as large as floats can tell integers.
RATES = [1e-3, 0.1, 0.5, 1.0, 3.0, 9.99, 10.0, 10.5, 20.0, 50.25, 1e3, 1e4, 1e6, 1.5e7]
COUNTS_AND_PROBABILITIES = [
    (1.0, 0.5),
    (3.0, 1e-3),
    (10.0, 0.3),
    (10.0, 0.9),
    (20.0, 0.499),
    (20.0, 0.5),
    (25.0, 0.55),
    (1000.0, 0.00999),
    (1000.0, 0.0101),
    (1000.0, 0.99),
    (1e5, 0.3),
    (1e6, 1e-6),
    (1e6, 0.5),
    (1.5e7, 0.75),
]


def _opinfo_poisson(dtype: torch.dtype) -> Calls:
    for _, x in layouts(dtype):
        yield (torch.zeros_like(x),), {}


def _opinfo_binomial(dtype: torch.dtype) -> Calls:
    for _, x in layouts(dtype):
        yield (x, (make(x.shape, torch.float32, seed=1) > 0).to(dtype)), {}
    for shapes in (((3, 4), (4,)), ((5,), ()), ((2, 0), (2, 1)), ((2, 3, 4), (3, 1))):
        count, probability = (make(shape, dtype, seed=i) for i, shape in enumerate(shapes))
        yield (count.abs(), (probability > 0).to(dtype)), {}


OPINFO_SAMPLES = (
    OpInfoSamples("poisson", torch.poisson, CPU_FLOATS, _opinfo_poisson),
    OpInfoSamples("binomial", torch.binomial, CPU_FLOATS, _opinfo_binomial),
)


def _binomial_of_counts(x, out):
    return torch.binomial(x, torch.full_like(x, 0.3))


# With inversion for the small means and rejection for the large ones.
BENCHMARKS = (
    Benchmark.same("poisson of small rates", lambda x, out: torch.poisson(x), low=0, high=10),
    Benchmark.same("poisson of large rates", lambda x, out: torch.poisson(x), low=10, high=1000),
    Benchmark.same("binomial of small counts", _binomial_of_counts, low=1, high=30),
    Benchmark.same("binomial of large counts", _binomial_of_counts, low=40, high=1000),
)


def _poisson(rate, count, **options):
    return torch.poisson(torch.full((count,), rate, device="mps"), **options).cpu()


def _binomial(trials, probability, count, **options):
    trials = torch.full((count,), trials, device="mps")
    probability = torch.full((count,), probability, device="mps")
    return torch.binomial(trials, probability, **options).cpu()


def _as_float32(value):
    """The number that the kernel sees."""
    return float(np.float32(value))


# ---- distributions -------------------------------------------------------------------------------


def _check(sample, distribution):
    """The sample's frequencies (chi-square test), mean and variance, each at the level 1e-4: seeds are
    fixed, so what passes once passes always."""
    assert torch.equal(sample, sample.floor()) and sample.min() >= 0
    sample = sample.double().numpy()
    n, mean, variance = len(sample), distribution.mean(), distribution.var()
    # Up to 200 bins that are equally probable, as far as there are integers for them.
    limits = np.unique(distribution.ppf(np.linspace(0, 1, 201)[1:-1]))
    expected = n * np.diff(np.concatenate([[0], distribution.cdf(limits), [1]]))
    edges = np.concatenate([[-np.inf], limits + 0.5, [np.inf]])
    observed = np.histogram(sample, edges)[0]
    # The chi-square distribution is an approximation for bins that are not too rare.
    rare = expected < 5
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    if expected[-1] < 5:
        assert observed[-1] <= stats.poisson(expected[-1]).isf(1e-4)
        observed, expected = observed[:-1], expected[:-1]
    if len(expected) > 1:
        scaled = expected * observed.sum() / expected.sum()
        assert stats.chisquare(observed, scaled).pvalue > 1e-4
    assert abs(sample.mean() - mean) < 4 * math.sqrt(variance / n)
    kurtosis = float(distribution.stats(moments="k"))
    assert abs(sample.var() / variance - 1) < 4 * math.sqrt((2 + kurtosis) / n) + 20 / n


@pytest.mark.parametrize("rate", RATES)
def test_poisson_distribution(rate):
    torch.manual_seed(0)
    _check(_poisson(rate, 100_000), stats.poisson(_as_float32(rate)))


@pytest.mark.parametrize("rate", [1e-3, 0.3, 3.0, 9.9])
def test_rare_numbers_of_events_are_as_rare_as_they_should_be(rate):
    """Those beyond the digits of the distribution function in float."""
    torch.manual_seed(0)
    distribution = stats.poisson(_as_float32(rate))
    sample = _poisson(rate, 2**23).numpy()
    counts = np.arange(1, 60)
    expected = len(sample) * distribution.sf(counts - 1)
    rare = (expected < len(sample) / 1000) & (expected > 20)
    observed = np.array([(sample >= k).sum() for k in counts[rare]])
    assert (abs(observed - expected[rare]) < 4.5 * np.sqrt(expected[rare])).all()
    assert sample.max() <= distribution.isf(1e-4 / len(sample))


@pytest.mark.parametrize(("count", "probability"), COUNTS_AND_PROBABILITIES)
def test_binomial_distribution(count, probability):
    torch.manual_seed(0)
    distribution = stats.binom(int(count), _as_float32(probability))
    _check(_binomial(count, probability, 100_000), distribution)


@pytest.mark.nightly
@pytest.mark.parametrize("rate", RATES)
def test_poisson_distribution_of_a_large_sample(rate):
    torch.manual_seed(1)
    _check(_poisson(rate, 4_000_000), stats.poisson(_as_float32(rate)))


@pytest.mark.nightly
@pytest.mark.parametrize(("count", "probability"), COUNTS_AND_PROBABILITIES)
def test_binomial_distribution_of_a_large_sample(count, probability):
    torch.manual_seed(1)
    distribution = stats.binom(int(count), _as_float32(probability))
    _check(_binomial(count, probability, 4_000_000), distribution)


def _check_normal(sample, mean, deviation):
    """Of a distribution so wide that nothing tells it from the normal one (Kolmogorov-Smirnov test), but
    for the rounding to float32, which is undone at random."""
    rounding = np.spacing(np.float32(mean)) * (torch.rand(len(sample)).double().numpy() - 0.5)
    scaled = (sample.double().numpy() + rounding - mean) / deviation
    assert stats.kstest(scaled, "norm").pvalue > 1e-4


@pytest.mark.parametrize("rate", [1e8, 1e10, 1e12])
def test_rates_beyond_the_integers_of_a_float(rate):
    torch.manual_seed(0)
    rate = _as_float32(rate)
    _check_normal(_poisson(rate, 50_000), rate, math.sqrt(rate))


@pytest.mark.parametrize(("count", "probability"), [(1e9, 0.25), (1e10, 0.5), (1e11, 0.9)])
def test_counts_beyond_the_integers_of_a_float(count, probability):
    torch.manual_seed(0)
    count, probability = _as_float32(count), _as_float32(probability)
    mean = count * probability
    sample = _binomial(count, probability, 50_000)
    _check_normal(sample, mean, math.sqrt(mean * (1 - probability)))


def test_many_trials_of_a_tiny_probability():
    torch.manual_seed(0)
    probability = _as_float32(3e-9)
    _check(_binomial(1e9, 3e-9, 100_000), stats.poisson(1e9 * probability))


@pytest.mark.parametrize("rate", [2.0, 30.0])
def test_neighbours_and_calls_know_nothing_of_each_other(rate):
    torch.manual_seed(0)
    first, second = (_poisson(rate, 100_000).double() - rate for _ in range(2))
    pairs = [(first, second)] + [(first[shift:], first[:-shift]) for shift in (1, 2, 3, 4)]
    for a, b in pairs:
        assert abs((a * b).mean() / rate) < 4.5 / math.sqrt(len(a))


@by_float
def test_half_precision_is_the_rounded_result_of_float32(dtype):
    rate = torch.linspace(0, 300, 1001).to("mps", dtype)
    probability = torch.linspace(0, 1, 1001).to("mps", dtype)
    for draw in (torch.poisson, lambda x: torch.binomial(x.round(), probability.to(x.dtype))):
        torch.manual_seed(3)
        wide = draw(rate.float())
        torch.manual_seed(3)
        narrow = draw(rate)
        assert narrow.dtype == dtype
        assert torch.equal(narrow, wide.to(dtype))


# ---- the stream ----------------------------------------------------------------------------------

DRAWS = {
    "poisson": lambda x, **options: torch.poisson(x, **options),
    "binomial": lambda x, **options: torch.binomial(x.round(), torch.full_like(x, 0.4), **options),
}
by_operator = pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)


def _rates(count):
    """Of both algorithms."""
    return torch.linspace(0.5, 120, count, device="mps")


@by_operator
@pytest.mark.parametrize("count", [1, 5, 28, 33, 1000])
def test_the_same_seed_gives_the_same_numbers(draw, count):
    x = _rates(count) + 5
    torch.manual_seed(5)
    draws = [draw(x) for _ in range(8)]
    torch.manual_seed(5)
    assert all(torch.equal(draw(x), drawn) for drawn in draws)
    assert len(torch.stack(draws).unique(dim=0)) > 1


@by_operator
def test_state_can_be_saved_and_restored(draw):
    x = _rates(100)
    draw(x)
    state = torch.mps.get_rng_state()
    drawn = draw(x)
    assert not torch.equal(draw(x), drawn)
    torch.mps.set_rng_state(state)
    assert torch.equal(draw(x), drawn)


@by_operator
def test_generator_of_ones_own(draw):
    x = _rates(100)
    generator = torch.Generator(device="mps").manual_seed(11)
    before = torch.mps.get_rng_state()
    first = draw(x, generator=generator)
    second = draw(x, generator=generator)
    assert torch.equal(torch.mps.get_rng_state(), before)
    assert not torch.equal(first, second)
    torch.manual_seed(11)
    assert torch.equal(draw(x), first)
    with pytest.raises(RuntimeError, match="Expected a 'mps' device type for generator"):
        draw(x, generator=torch.Generator())


@by_operator
def test_each_element_takes_one_place_of_the_stream(draw):
    x = _rates(101)
    generator = torch.Generator(device="mps").manual_seed(2)
    whole = draw(x, generator=generator)
    assert generator.get_offset() == 101
    generator.manual_seed(2)
    parts = [draw(part, generator=generator) for part in x.split([1, 30, 70])]
    assert torch.equal(torch.cat(parts), whole)
    generator.set_offset(40)
    assert torch.equal(draw(x[40:], generator=generator), whole[40:])
    draw(x[:0], generator=generator)
    assert generator.get_offset() == 101


@by_operator
def test_the_layout_does_not_matter(draw):
    for _, x in layouts(torch.float32):
        x = x.abs() * 20
        torch.manual_seed(7)
        expected = draw(x.contiguous().to("mps"))
        torch.manual_seed(7)
        actual = draw(testing.to_device(x, "mps"))
        assert torch.equal(actual, expected), (x.shape, x.stride())


def _kernel_arguments(tensors, sizes=(20,), seed=3, offset=9):
    layout = direct.strided_layout(sizes, [[4]] * len(tensors))
    return *tensors, direct.as_bytes("2q", seed, offset), layout


@pytest.mark.parametrize("threads", [(20, 1), (32, 1), (4, 5), (1, 64)])
def test_the_grid_does_not_matter(threads):
    rates = torch.linspace(1, 60, 20, device="mps")
    probabilities = torch.full_like(rates, 0.25)
    generator = torch.Generator(device="mps").manual_seed(3)
    generator.set_offset(9)
    kernels = direct.kernels("random")
    errors = torch.zeros(20_000, dtype=torch.uint8, device="mps")
    drawn = torch.zeros(20, device="mps")
    kernels.random_poisson_float(*_kernel_arguments((drawn, rates)), errors, threads=threads)
    assert torch.equal(drawn, torch.poisson(rates, generator=generator))
    generator.set_offset(9)
    arguments = _kernel_arguments((drawn, rates, probabilities))
    kernels.random_binomial_float(*arguments, threads=threads)
    assert torch.equal(drawn, torch.binomial(rates, probabilities, generator=generator))


def test_threads_beyond_the_last_element_do_nothing():
    drawn = torch.full((20,), 7.5, device="mps")
    ones = torch.ones(20, device="mps")
    errors = torch.zeros(20_000, dtype=torch.uint8, device="mps")
    kernels = direct.kernels("random")
    kernels.random_poisson_float(*_kernel_arguments((drawn, ones), (5,)), errors, threads=(20, 1))
    assert (drawn[:5] != 7.5).all() and (drawn[5:] == 7.5).all()
    kernels.random_binomial_float(*_kernel_arguments((drawn, ones, ones), (6,)), threads=(20, 1))
    assert (drawn[:6] == 1).all() and (drawn[6:] == 7.5).all()


# ---- arguments -----------------------------------------------------------------------------------


@by_float
def test_rates_at_the_ends(dtype):
    rates = torch.tensor([0.0, -0.0, INFINITY], dtype=dtype, device="mps").repeat(100)
    drawn = torch.poisson(rates).view(100, 3)
    assert (drawn[:, :2] == 0).all() and drawn[:, 2].isinf().all()
    torch.mps.synchronize()  # no error


def test_the_largest_rates():
    rates = torch.tensor([1e30, 3e38], device="mps").repeat(100)
    torch.testing.assert_close(torch.poisson(rates), rates)
    large = torch.full((100,), 65504.0, dtype=torch.half, device="mps")
    assert (torch.poisson(large) >= 64000).all()


@by_float
@pytest.mark.parametrize("rate", [-1e-3, -1.0, -INFINITY, NAN])
def test_invalid_rates_are_reported(dtype, rate):
    rates = torch.ones(40, dtype=dtype, device="mps")
    rates[33] = rate
    drawn = torch.poisson(rates)
    message = (
        r"poisson\(\): invalid Poisson rate, expected rate to be non-negative, but .* element 33"
    )
    with pytest.raises(torch.AcceleratorError, match=message):
        torch.mps.synchronize()
    assert drawn[33].isnan() and not drawn[:33].isnan().any()
    with pytest.raises(
        RuntimeError, match="invalid Poisson rate, expected rate to be non-negative"
    ):
        torch.poisson(rates.cpu())


# What is certain, whatever is drawn.
CERTAIN = [
    *((count, p) for count in (-INFINITY, -1.0, -0.0, 0.0) for p in (-1.0, 0.5, 1.0, 2.0, NAN)),
    *((count, p) for count in (2.5, 7.0, 1e30, NAN) for p in (-0.5, 0.0, 1.0, 1.5)),
    *((7.0, NAN), (1e6, NAN), (INFINITY, 0.0), (INFINITY, 1.0), (INFINITY, NAN)),
]


@by_float
def test_binomials_that_are_certain(dtype):
    counts, probabilities = torch.tensor(CERTAIN).to(dtype).float().repeat(20, 1).unbind(1)
    actual = torch.binomial(counts.to("mps", dtype), probabilities.to("mps", dtype))
    expected = torch.binomial(counts, probabilities).to(dtype)
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0, equal_nan=True)


def test_uncertain_binomials_of_no_meaning():
    """torch's CPU operator does not return, or gives a part of these."""
    counts = torch.tensor([NAN, INFINITY, INFINITY], device="mps").repeat(100)
    probabilities = torch.tensor([0.5, 0.25, 0.75], device="mps").repeat(100)
    drawn = torch.binomial(counts, probabilities).view(100, 3)
    assert drawn[:, 0].isnan().all() and (drawn[:, 1:] == INFINITY).all()


def test_a_count_that_is_no_integer_limits_the_successes_all_the_same():
    for count, probability in ((2.5, 0.4), (2.5, 0.7), (40.5, 0.3), (40.5, 0.7)):
        drawn = _binomial(count, probability, 10_000)
        successes = drawn if probability < 0.5 else count - drawn
        assert torch.equal(successes, successes.floor())
        assert successes.min() >= 0 and successes.max() <= count
        assert successes.max() > 0


def test_successes_never_exceed_the_count():
    for count in (1.0, 10.0, 21.0, 22.0, 30.0):
        for probability in (0.01, 0.5, 0.99):
            drawn = _binomial(count, probability, 50_000)
            assert drawn.min() >= 0 and drawn.max() <= count


def test_counts_and_probabilities_are_broadcast():
    counts = torch.tensor([[3.0], [100.0]], device="mps")
    probabilities = torch.tensor([0.0, 0.5, 1.0], device="mps")
    for drawn in (torch.binomial(counts, probabilities), torch.binomial(counts[:, 0], counts / 50)):
        assert drawn.is_contiguous()
    drawn = torch.binomial(counts, probabilities)
    assert drawn.shape == (2, 3)
    assert (drawn[:, 0] == 0).all() and torch.equal(drawn[:, 2:], counts)
    assert torch.binomial(counts[0, 0], probabilities[2]).shape == ()
    assert torch.binomial(counts[:0], probabilities).shape == (0, 3)


def test_poisson_keeps_the_strides_and_the_shape():
    for _, x in layouts(torch.float32):
        x = testing.to_device(x.abs(), "mps")
        drawn = torch.poisson(x)
        assert drawn.shape == x.shape
        assert drawn.stride() == torch.empty_like(x).stride()


@by_operator
def test_out(draw):
    x = _rates(12).view(3, 4)
    overload = (
        torch.ops.aten.poisson.out if draw is DRAWS["poisson"] else torch.ops.aten.binomial.out
    )
    arguments = (x,) if draw is DRAWS["poisson"] else (x.round(), torch.full_like(x, 0.4))
    torch.manual_seed(1)
    expected = draw(x)
    torch.manual_seed(1)
    out = torch.empty(4, 3, device="mps").t()
    assert overload(*arguments, out=out) is out
    assert torch.equal(out, expected) and out.stride() == (1, 3)


OTHER_DTYPES = (torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64)


@pytest.mark.parametrize("dtype", OTHER_DTYPES, ids=str)
def test_other_dtypes_are_refused_as_on_the_cpu(dtype):
    for device in ("cpu", "mps"):
        x, y = torch.ones(3, dtype=dtype, device=device), torch.ones(3, device=device)
        with pytest.raises(NotImplementedError, match="not implemented for '"):
            torch.poisson(x)
        with pytest.raises(ValueError, match="only supports floating-point dtypes for count, got"):
            torch.binomial(x, y)
        with pytest.raises(ValueError, match="only supports floating-point dtypes for prob, got"):
            torch.binomial(y, x)


def test_errors_are_those_of_the_cpu():
    for device in ("cpu", "mps"):
        x = torch.ones(3, device=device)
        with pytest.raises(RuntimeError, match="Found dtype Half but expected Float"):
            torch.binomial(x, x.half())
        with pytest.raises(RuntimeError, match=r"The size of tensor a \(3\) must match the size"):
            torch.binomial(x, torch.ones(4, device=device))
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.binomial(torch.ones(3, device="mps"), torch.ones(3))


# ---- what is built on them -----------------------------------------------------------------------


def test_derivatives_are_those_of_the_cpu():
    x = torch.ones(3, device="mps", requires_grad=True)
    torch.poisson(x).sum().backward()
    assert x.grad.tolist() == [0, 0, 0]
    with pytest.raises(RuntimeError, match="derivative for aten::binomial is not implemented"):
        torch.binomial(x, x).sum().backward()


def test_torch_distributions():
    torch.manual_seed(0)
    rate = torch.tensor([0.5, 40.0], device="mps")
    drawn = torch.distributions.Poisson(rate).sample((20_000,))
    torch.testing.assert_close(drawn.mean(0), rate, rtol=0.05, atol=0)
    distribution = torch.distributions.Binomial(torch.tensor([4, 200], device="mps"), rate / 80)
    drawn = distribution.sample((20_000,))
    torch.testing.assert_close(drawn.mean(0), distribution.mean, rtol=0.1, atol=0)
    assert distribution.log_prob(drawn).isfinite().all()


@pytest.mark.nightly
def test_compiled():
    """torch.compile checks that strides are those of the meta function."""
    compiled = torch.compile(lambda x: torch.poisson(x) + torch.binomial(x, torch.full_like(x, 1)))
    x = torch.full((5, 4), 30.0, device="mps").t()
    drawn = compiled(x)
    assert drawn.stride() == (1, 4)
    assert (drawn > 30).all() and (drawn < 100).all()


def test_neither_stand_in_nor_host_copy():
    x = torch.full((30,), 12.0, device="mps")

    def call():
        with testing.no_host_copies():
            torch.poisson(x)
            torch.binomial(x, x / 24)
            torch.ops.aten.poisson.out(x, out=torch.empty_like(x))

    assert served_by_us(call) == []
