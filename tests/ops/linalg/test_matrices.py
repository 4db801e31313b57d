"""Every operator that a family of linear algebra declares (LINALG): hard matrices, layouts, batches, outputs, fake tensors."""

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ..aten import served_by_us
from ..families import gather
from .linear_algebra import VIEWS, dtypes

OPERATORS = {operator.name: operator for operator in gather("LINALG")}
BATCH = 3

operators = pytest.mark.parametrize("name", OPERATORS)


@pytest.fixture
def operator(name):
    torch.manual_seed(0)
    return OPERATORS[name]


def assert_equal(results, expected):
    """Bit for bit."""
    for ours, theirs in zip(results, expected, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs.cpu(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.usefixtures("taken_as_on")
@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("name", "n"), [(x.name, n) for x in OPERATORS.values() for n in x.hard_sizes]
)
@dtypes
def test_hard_matrices(operator, n, dtype):
    """All in one batch."""
    a = torch.stack([operator.hard_matrix(kind, n, dtype) for kind in operator.hard_names])
    results = operator.results(a.to("mps"))
    for i, kind in enumerate(operator.hard_names):
        operator.check_results(a[i], [x[i] for x in results], kind)


@pytest.mark.sampled(6)
@operators
@pytest.mark.parametrize("view", VIEWS)
@dtypes
def test_every_layout(operator, view, dtype):
    """Results have the strides of the CPU's, unless they are always contiguous."""
    for m, n in operator.sizes:

        def take(x, m=m, n=n):
            return VIEWS[view](x[..., :m, :n])

        a = operator.made(2, 4, 2 * m, 2 * n, dtype=dtype)
        if view == "negative":
            a = -a
        if view == "negative imaginary part" and dtype.is_complex:
            a = operator.made(2, 4, 2 * m, 2 * n, dtype=torch.float32)
            a = torch.complex(torch.zeros_like(a), -a)
        results = operator.results(take(a.to("mps")))
        there = take(a).resolve_conj().resolve_neg().contiguous()
        of_cpu = operator.results(there if operator.is_contiguous else take(a))
        for ours, theirs in zip(results, of_cpu, strict=True):
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
            assert ours.numel() == 0 or ours.stride() == theirs.stride()
        if there.numel() > 0:
            operator.check_results(there, results, (view, m, n))


@operators
@dtypes
def test_batches_are_solved_one_by_one(operator, dtype):
    """Bit for bit, in batches and alone, and each time; also beside a matrix of zeros and one that is not
    finite, unless that is an error, which names it."""
    for m, n in operator.sizes:
        a = operator.made(BATCH, m, n, dtype=dtype).to("mps")
        together = operator.results(a)
        assert_equal(operator.results(a), together)
        for i in range(BATCH):
            assert_equal(operator.results(a[i]), [x[i] for x in together])
        for bad in (math.nan, math.inf, -math.inf, 0.0):
            spoilt = a.clone()
            if bad == 0.0:
                spoilt[1] = 0
            else:
                spoilt[1, m - 1, 0] = spoilt[1, 0, n - 1] = bad
                if operator.not_finite is not None:
                    for x, place in ((spoilt, r"\(Batch element 1\): "), (spoilt[1], "")):
                        with pytest.raises(operator.error, match=operator.not_finite.format(place)):
                            operator.results(x)
                    continue
            found = operator.results(spoilt)
            if math.isnan(bad) or (math.isinf(bad) and operator.name != "inv_ex"):  # 1 / inf is 0
                assert not all(x[1].isfinite().all() for x in found)
            for i in (0, 2):
                assert_equal([x[i] for x in found], [x[i] for x in together])


@pytest.mark.parametrize("name", [x.name for x in OPERATORS.values() if x.takes_out])
@dtypes
def test_outputs_of_any_strides(operator, dtype):
    for m, n in operator.sizes:
        a = operator.made(BATCH, m, n, dtype=dtype).to("mps")
        expected = operator.results(a)
        empty = [x.new_empty(0) for x in expected]
        wider = [x.new_empty([*x.shape[:-1], 2 * x.shape[-1]])[..., ::2] for x in expected]
        turned = [x.new_empty(x.shape[::-1]).permute(*range(x.dim())[::-1]) for x in expected]
        for out in (empty, wider, turned):
            found = operator.results(a, out=out[0] if len(out) == 1 else tuple(out))
            for ours, given in zip(found, out, strict=True):
                assert ours is given
            assert_equal(out, expected)


@operators
@dtypes
def test_no_stand_in_serves(operator, dtype):
    for m, n in operator.sizes:
        a = operator.made(BATCH, m, n, dtype=dtype).to("mps")
        assert served_by_us(lambda a=a: operator.function(a)) == []


@operators
@dtypes
def test_fake_tensors_have_the_results_properties(operator, dtype):
    for m, n in operator.sizes:
        for take in (lambda x: x, lambda x: x.mT.contiguous().mT):
            a = take(operator.made(BATCH, m, n, dtype=dtype).to("mps"))
            with FakeTensorMode() as mode:
                fakes = operator.results(mode.from_tensor(a))
            for fake, real in zip(fakes, operator.results(a), strict=True):
                assert (fake.shape, fake.dtype, fake.device) == (
                    real.shape,
                    real.dtype,
                    real.device,
                )
                assert fake.stride() == real.stride()
