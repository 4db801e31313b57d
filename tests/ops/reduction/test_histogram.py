"""Histograms in the place of stock's, while the fix "histogram" is on: kernels/reduction/histogram.metal."""

import math

import metalops
import numpy
import pytest
import torch
from metalops import debug, fixes
from metalops.testing.samples import INTEGERS, layouts, make, to_device
from torch.testing._internal.common_methods_invocations import op_db

from ..aten import assert_refused_as_on_the_cpu

HALVES = tuple(
    pytest.param(dtype, marks=pytest.mark.nightly) for dtype in (torch.float16, torch.bfloat16)
)
by_float = pytest.mark.parametrize("dtype", (torch.float32, *HALVES), ids=str)
BINS = (1, 3, 100, 128, 129, 4096, 4097, 9000)


@pytest.fixture(autouse=True)
def ours():
    with metalops.enable_fixes("histogram"), debug.standins() as served:
        yield
        names = {fix.name: fix.operators for fix in fixes.status()}["histogram"]
    assert not set(served) & set(names)


def _listed(result):
    return [result] if isinstance(result, torch.Tensor) else list(torch.utils._pytree.tree_leaves(result))  # fmt: skip


def assert_same(function, *args, rtol=0.0, **options):
    """The CPU's results, bit by bit unless terms are added."""
    actual = _listed(function(*to_device(args, "mps"), **to_device(options, "mps")))
    expected = _listed(function(*args, **options))
    for a, e in zip(actual, expected, strict=True):
        e = e.float() if e.dtype == torch.float64 else e  # noqa: PLW2901
        assert a.device.type == "mps" and a.shape == e.shape
        torch.testing.assert_close(a.cpu(), e, rtol=rtol, atol=rtol, equal_nan=True)


def _counts(x, bins, low, high, dtype):
    """The CPU's counts in float32, as which numbers of all dtypes are compared."""
    return torch.histc(x.float(), bins, low, high).to(dtype)


@by_float
def test_histc_of_all_layouts(dtype):
    for number, (_, x) in enumerate(layouts(dtype, low=-3, high=3)):
        bins = (5, 64, 1000)[number % 3]
        for low, high in ((0, 0), (-1.5, 2.25)):
            expected = _counts(x, bins, low, high, dtype)
            assert torch.equal(torch.histc(x.to("mps"), bins, low, high).cpu(), expected)


def test_bins_of_every_number():
    """They are counted in threadgroups, in copies of several numbers, or in device memory."""
    x = make((20_003,), torch.float32, low=-2, high=2)
    for bins in BINS:
        assert_same(torch.histc, x, bins)
        assert_same(torch.histogram, x, bins, range=(-1.0, 2.5))
        assert_same(torch.bincount, (x.abs() * bins / 2).long(), minlength=7)


def test_many_samples_in_one_bin():
    x = torch.ones(300_007)
    assert torch.histc(x.to("mps"), 3).tolist() == [0, 300_007, 0]
    assert torch.bincount(x.to("mps").int()).tolist() == [0, 300_007]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_histc_of_integers(dtype):
    """By exact divisions, as on CUDA; torch's CPU refuses them."""
    x = make((3, 500), dtype, low=-100 if dtype.is_signed else 0, high=100)
    for bins, low, high in ((7, 0, 0), (10, 0, 30), (201, 3, 90)):
        begin, end = (low, high) if high else (int(x.min()), int(x.max()))
        inside = x[(x >= begin) & (x <= end)].long()
        places = ((inside - begin) * bins // (end - begin)).clamp(max=bins - 1)
        expected = torch.bincount(places, minlength=bins).to(dtype)
        assert torch.equal(torch.histc(x.T.to("mps"), bins, low, high).cpu(), expected)


def test_integers_at_the_limits_of_their_range():
    least, most = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
    x = torch.tensor([least, -1, 0, most], device="mps")
    assert torch.histc(x, 4).tolist() == [1, 1, 1, 1]
    assert torch.histc(x[:1], 2).sum().item() == 1
    assert torch.histc(x, 2, 5, 5).tolist() == [2, 2]


@by_float
def test_edges_of_any_distance(dtype):
    """The CPU's counts in float32: in bfloat it counts up to 256 for each of its threads."""
    x = make((3000,), dtype, low=-3, high=3)
    cases = [
        (x.view(60, 50).T, torch.tensor(edges).to(dtype))
        for edges in ([-2, 0, 0.5, 2.5], [0, 1, 1, 1, 2], [1, 2], [2, 0, -2], [-4, 2, 1, 3], [-1, math.nan, 2], [-math.inf, 0, math.inf])
    ]  # fmt: skip
    cases.append((x, make((500,), dtype, low=-3, high=3).sort().values))
    for values, edges in cases:
        counts, found = torch.histogram(values.to("mps"), edges.to("mps"))
        expected = torch.histogram(values.float(), edges.float()).hist.to(dtype)
        assert torch.equal(counts.cpu(), expected), edges
        torch.testing.assert_close(found.cpu(), edges, rtol=0, atol=0, equal_nan=True)


def test_weights_and_densities():
    x, weight = make((40, 25), torch.float32), make((40, 25), torch.float32, low=-1, high=1)
    edges = torch.tensor([-4.0, 0, 1, 4.5])
    for density in (False, True):
        for options in ({}, {"weight": weight}, {"weight": weight.T.contiguous().T.abs()}):
            assert_same(torch.histogram, x, edges, density=density, rtol=2e-5, **options)
            assert_same(torch.histogram, x, 6, density=density, rtol=2e-5, **options)
    assert_same(torch.histogram, torch.tensor(1.0), 2, weight=torch.tensor(3.0))
    assert_same(torch.histogram, x[:0], 2, density=True)


def test_histogramdd():
    x, weight = make((7, 30, 3), torch.float32), make((7, 30), torch.float32, low=0, high=1)
    for samples in (x, x.permute(1, 0, 2), x.transpose(0, 2).contiguous().transpose(0, 2)):
        w = weight if samples.shape[0] == 7 else weight.T
        for bins in ([2, 5, 3], [20, 30, 40], [1, 1, 1]):
            assert_same(torch.histogramdd, samples, bins)
            assert_same(torch.histogramdd, samples, bins, range=[-1.0, 1, 0, 4, -5, 0], weight=w, rtol=2e-5)  # fmt: skip
        edges = [torch.tensor([-5.0, 0, 5]), torch.tensor([0.0, 1, 3, 4]), torch.tensor([-1.0, 2])]
        assert_same(torch.histogramdd, samples, edges, density=True, rtol=2e-5)
    assert_same(torch.histogramdd, x[..., :0], [])
    assert_same(torch.histogramdd, x[0], [4, 4, 4], rtol=2e-5, density=True)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_bincount(dtype):
    x = make((900,), dtype, low=0, high=60)
    for each in (x, x[::3], x[:1].expand(50), x[:0]):
        assert_same(torch.bincount, each)
        assert_same(torch.bincount, each, minlength=100)
        assert_same(torch.bincount, each, weights=make(each.shape, torch.float32), rtol=3e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool], ids=str)  # fmt: skip
def test_weights_of_bincount_are_added_in_float32(dtype):
    x = make((900,), torch.int64, low=0, high=20)
    weights = make((900,), dtype, low=0, high=9)
    actual = torch.bincount(x.to("mps"), weights.to("mps"))
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual.cpu(), torch.bincount(x, weights).float())


def test_sums_of_weights_are_the_same_each_time():
    x, weight = make((5000,), torch.float32).to("mps"), make((5000,), torch.float32).to("mps")
    first, *others = [torch.histogram(x, 3, weight=weight).hist for _ in range(4)]
    assert all(torch.equal(first, other) for other in others)


def test_empty_and_equal_samples():
    for x in (torch.empty(0), torch.empty(0, 3), torch.full((3,), 2.0), torch.tensor(-7.0)):
        for low, high in ((0, 0), (2, 2), (1, 3)):
            assert_same(torch.histc, x, 4, low, high)
            assert_same(torch.histogram, x, 4, range=(float(low), float(high)))
        assert_same(torch.histogram, x, 4)


def test_ranges_whose_products_overflow():
    x = torch.tensor([-1e38, -3e37, 0, 6e37, 1e38, 3e38])
    for index in (4, 5):
        low, high = -x[index].item(), x[index].item()
        expected = numpy.histogram(x.double(), 8, (low, high))[0].tolist()
        assert torch.histc(x.to("mps"), 8, low, high).tolist() == expected
        if high < 2e38:  # torch's edges are not finite otherwise
            assert torch.histogram(x.to("mps"), 8, range=(low, high)).hist.tolist() == expected


def test_out():
    x = make((50,), torch.float32)
    expected = torch.histc(x, 6)
    for out in (torch.empty(6), torch.empty(0), torch.empty(12)[::2]):
        moved = out.to("mps") if out.is_contiguous() else torch.empty(12, device="mps")[::2]
        assert torch.histc(x.to("mps"), 6, out=moved) is moved
        assert torch.equal(moved.cpu(), expected)
    results = torch.empty(0, device="mps"), torch.empty(10, device="mps")[:7]
    torch.histogram(x.to("mps"), 6, out=results)
    for a, e in zip(results, torch.histogram(x, 6), strict=True):
        assert torch.equal(a.cpu(), e)
    edges = torch.tensor([-1.0, 0, 3])
    torch.histogram(x.to("mps"), edges.to("mps"), out=results)
    assert torch.equal(results[0].cpu(), torch.histogram(x, edges).hist)


def test_arguments_are_refused_as_on_the_cpu():
    x, nan, long = torch.arange(4.0), torch.tensor([1.0, math.nan]), torch.tensor([1, 2])
    histogram = torch.histogram
    assert_refused_as_on_the_cpu(
        [
            lambda d: torch.histc(d(x), 4, 0, math.inf),
            lambda d: torch.histc(d(x), 4, 3, 0),
            lambda d: torch.histc(d(x), 0),
            lambda d: torch.histc(d(x), 4, out=d(torch.empty(3, dtype=torch.float16))),
            lambda d: histogram(d(nan), 4),
            lambda d: histogram(d(x), 0),
            lambda d: histogram(d(x), 2, range=(3.0, 0.0)),
            lambda d: histogram(d(x), 2, range=(3.0,)),
            lambda d: histogram(d(x), 2, range=(0.0, math.inf)),
            lambda d: histogram(d(x), d(torch.zeros(1))),
            lambda d: histogram(d(x), d(torch.zeros(0))),
            lambda d: histogram(d(x), d(torch.zeros(2, 2))),
            lambda d: histogram(d(x), d(long)),
            lambda d: histogram(d(x), 2, weight=d(x[:3])),
            lambda d: histogram(d(x), 2, weight=d(long)),
            lambda d: torch.histogramdd(d(x), [2]),
            lambda d: torch.histogramdd(d(x.view(2, 2)), [2, 3, 4]),
            lambda d: torch.histogramdd(d(x.view(2, 2)), [2, -1]),
            lambda d: torch.histogramdd(d(x.view(2, 2)), [2, 0]),
            lambda d: torch.histogramdd(d(x.view(2, 2)), [d(x)]),
            lambda d: torch.bincount(d(torch.tensor([-1, 2]))),
            lambda d: torch.bincount(d(long.view(1, 2))),
            lambda d: torch.bincount(d(long), minlength=-1),
            lambda d: torch.bincount(d(long), d(x)),
        ],
        RuntimeError,
    )
    for call in (
        lambda: torch.histc(x.to("mps").bool(), 4),
        lambda: torch.bincount(x.to("mps")),
        lambda: histogram(x.to("mps", torch.complex64), 4),
    ):
        with pytest.raises(NotImplementedError, match="not implemented for"):
            call()
    with pytest.raises(RuntimeError, match="not finite"):
        torch.histc(nan.to("mps"), 4)


# ---- cases that users reported -------------------------------------------------------------------


@pytest.mark.parametrize("edge", [0.0, 2.0])
@pytest.mark.parametrize("distance", [1e-7, 1e-6, 3e-6, 5e-6])
def test_numbers_right_outside_of_the_range_are_not_counted(edge, distance):
    beyond = -distance if edge == 0 else edge + max(distance, 3e-7)
    x = torch.tensor([1.0, beyond])
    edges = torch.tensor([0.0, 1.5, 2.0])
    assert_same(torch.histogram, x, edges)
    assert_same(torch.histogram, x, 2, range=(0.0, 2.0))
    assert_same(torch.histc, x, 2, 0, 2)
    assert torch.histc(x.to("mps"), 2, 0, 2).sum().item() == 1


def test_more_bins_than_arguments_have_room_for():
    x = torch.tensor([0.0, 0.5, 1.0])
    for bins in (8180, 8192, 100_000):
        assert_same(torch.histogram, x, bins, range=(0.0, 1.0))
        assert_same(torch.histc, x, bins, 0, 1)


def test_tokens_of_experts():
    """Routing of a mixture of experts counts int32."""
    x = torch.tensor([0, 1, 2, 1, 0], dtype=torch.int32, device="mps")
    counts = torch.histc(x, bins=3, min=0, max=2)
    assert counts.tolist() == [2, 2, 1] and counts.dtype == torch.int32


# ---- torch's own samples, compiled functions -----------------------------------------------------

NAMES = ("histc", "histogram", "histogramdd", "bincount")
ENTRIES = [pytest.param(op, id=op.formatted_name) for op in op_db if op.name in NAMES]


@pytest.mark.parametrize("op", ENTRIES)
def test_samples(op):
    dtype = torch.int64 if op.name == "bincount" else torch.float32
    for sample in list(op.sample_inputs("cpu", dtype))[:60]:
        assert_same(op.op, sample.input, *sample.args, rtol=3e-5, **sample.kwargs)


@pytest.mark.full
def test_compiled_functions():
    def function(x):
        return torch.histc(x, 5, -2, 2) + torch.bincount((x + 9).long(), minlength=5)[:5]

    assert_same(torch.compile(function, backend="aot_eager"), make((50,), torch.float32))
