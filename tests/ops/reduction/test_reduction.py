"""Reductions in the place of stock's, while the fix "reduction" is on: kernels/reduction/reduction.metal."""

import itertools
import math
import warnings

import metalops
import pytest
import torch
from metalops import debug, fixes, testing
from metalops.testing.samples import FLOATS, INTEGERS, layouts, make, to_device
from torch.testing._internal.common_methods_invocations import op_db

from ..aten import assert_refused_as_on_the_cpu

EXACT = (*INTEGERS, torch.bool)


def by_dtype(*dtypes):
    """Each test compiles kernels of its own: those of most dtypes are left to the nightly tier."""
    first, *others = dtypes or (*FLOATS, *EXACT, torch.complex64)
    cases = (first, *(pytest.param(dtype, marks=pytest.mark.nightly) for dtype in others))
    return pytest.mark.parametrize("dtype", cases, ids=str)


@pytest.fixture(autouse=True)
def ours():
    with metalops.enable_fixes("reduction"), debug.standins() as served:
        yield
        names = {fix.name: fix.operators for fix in fixes.status()}["reduction"]
    assert not set(served) & set(names)


def wide(x):
    if x.is_complex():
        return x.to(torch.complex128)
    return x.double() if x.is_floating_point() else x


def assert_same(operator, x, *args, terms=1.0, **options):
    """terms: a bound of the magnitude of what is added up, of which errors are a share."""
    actual = operator(to_device(x, "mps"), *args, **options)
    if "dtype" in options and options["dtype"].is_floating_point:
        expected = operator(wide(x.to(options["dtype"])), *args, **{**options, "dtype": None})
    else:
        expected = operator(wide(x), *args, **options)
    assert actual.shape == expected.shape
    if not (actual.is_floating_point() or actual.is_complex()):
        assert torch.equal(actual.cpu(), expected.to(actual.dtype))
        return actual
    eps = torch.finfo(actual.dtype).eps
    torch.testing.assert_close(
        actual.cpu(), expected.to(actual.dtype), rtol=4 * eps, atol=terms * 2**-22, equal_nan=True
    )
    return actual


def dimensions(x):
    """Each dimension of a tensor, pairs of them, and all."""
    each = range(x.dim())
    return [
        None,
        *((d,) for d in each),
        *itertools.islice(itertools.combinations(each, 2), 0, 9, 2),
    ]


def operators_of(dtype):
    yield from (torch.sum, torch.count_nonzero)
    if not dtype.is_complex:
        yield torch.amax
    if dtype.is_floating_point or dtype.is_complex:
        yield from (torch.mean, torch.std)


@by_dtype()
def test_layouts_along_all_dimensions(dtype):
    for _, x in layouts(dtype, low=-2, high=2):
        for dim in dimensions(x):
            for operator in operators_of(dtype):
                if operator is torch.amax:
                    dims = dim or tuple(range(x.dim()))
                    if all(x.shape[d] for d in dims):
                        assert_same(operator, x, dims, keepdim=True)
                elif operator is torch.std:
                    if x.dim() < 16:  # of which complex numbers have one more in between
                        assert_same(operator, x, dim, correction=0, terms=8)
                elif operator is torch.count_nonzero:
                    assert_same(operator, x, dim)
                else:
                    assert_same(operator, x, dim=dim, keepdim=dim is not None, terms=x.numel())


@by_dtype(torch.float32, torch.float16, torch.int32, torch.uint8)
def test_rows_and_columns_of_every_length(dtype):
    for length, other in ((1, 5), (3, 40), (16, 7), (33, 64), (1000, 8), (1024, 3), (5000, 2)):
        x = make((other, length), dtype, low=-2, high=2, seed=length)
        for each in (x, x.T.contiguous().T, x[:, ::2], x[1:, 1:]):
            assert_same(torch.sum, each, 1, terms=2 * length)
            if each.numel():
                assert_same(torch.amax, each, 1)
            assert_same(torch.sum, each, 0, terms=2 * other)


def test_spans_of_long_rows_and_few_columns():
    row = make((300_001,), torch.float32, low=-1, high=1)
    for x in (row, row[:300_000], row[1:], row[:300_000].view(-1, 4), row[:-1].view(-1, 3)):
        assert_same(torch.sum, x, 0, terms=300_000)
        assert_same(torch.var, x, 0, terms=4)
        assert_same(torch.amax, x, 0)
    x = make((64, 37, 100), torch.float32)
    assert_same(torch.sum, x, (0, 2), terms=32_000)
    assert_same(torch.mean, x.permute(2, 0, 1), (0, 1), terms=5)


@pytest.mark.nightly
@pytest.mark.parametrize("to", (*FLOATS, *INTEGERS, torch.bool), ids=str)
def test_sums_and_products_in_another_dtype(to):
    for dtype in (*FLOATS, *EXACT):
        x = make((3, 50), dtype, low=-1, high=3)
        assert assert_same(torch.sum, x, 1, dtype=to, terms=150).dtype == to
        if to.is_floating_point:
            assert assert_same(torch.nansum, x, 1, dtype=to, terms=150).dtype == to
            assert assert_same(torch.mean, x, 1, dtype=to, terms=150).dtype == to
        small = x[:, :3].clamp(max=2) if dtype != torch.bool else x[:, :3]
        assert assert_same(torch.prod, small, 1, dtype=to, terms=16).dtype == to


@by_dtype()
def test_products(dtype):
    x = make((2, 3, 9), dtype, low=1 if dtype in INTEGERS else -1.5, high=2)
    for dim in (0, -1):
        assert_same(torch.prod, x, dim, terms=60)
    assert_same(torch.prod, x[0, :, :3], terms=60)


@by_dtype(torch.uint8, torch.int64, torch.int32, torch.int16, torch.int8)
def test_integers_wrap_around(dtype):
    x = torch.full((9, 300), torch.iinfo(dtype).max, dtype=dtype)
    for to in (dtype, torch.int16, torch.int64):
        assert_same(torch.sum, x, 1, dtype=to)
    assert_same(torch.prod, x[:, :9], 1)
    assert_same(torch.amin, x, 1)


ORDERS = (2, 3, 0, 0.5, 1, -1, -2.5, math.inf, -math.inf)


@by_dtype(torch.float32, torch.float16, torch.bfloat16, torch.complex64)
def test_norms(dtype):
    for order in ORDERS[: 2 if dtype == torch.float32 else None]:
        x = make((4, 35), dtype, low=0.5, high=2)
        assert_same(torch.linalg.vector_norm, x, order, terms=400)
        assert_same(torch.linalg.vector_norm, x, order, 0, True, terms=50)
        if dtype in FLOATS:
            moved = torch.linalg.vector_norm(x.to("mps"), order, 1, dtype=torch.float32)
            expected = torch.linalg.vector_norm(x.double(), order, 1)
            torch.testing.assert_close(moved.cpu(), expected.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.nightly
def test_norms_of_every_order():
    x = make((4, 35), torch.float32, low=0.5, high=2)
    for order in ORDERS:
        assert_same(torch.linalg.vector_norm, x, order, 1, terms=50)
        assert_same(torch.linalg.vector_norm, x, order, 0, terms=50)
    z = torch.tensor(
        [[3e30 + 4e30j, 0j], [complex(math.nan, 0), 1], [complex(-math.inf, math.nan), 1]]
    )
    for dim in (0, 1):
        actual = torch.linalg.vector_norm(z.to("mps"), math.inf, dim)
        torch.testing.assert_close(
            actual.cpu(), torch.linalg.vector_norm(z, math.inf, dim), equal_nan=True
        )


@by_dtype(torch.float32, torch.float16, torch.bfloat16, torch.complex64)
def test_variances_with_a_correction(dtype):
    x = make((4, 35, 3), dtype, low=10, high=11)
    moved = x.to("mps")
    for correction, dim in itertools.product((0, 1, 2, 0.5), (1, (0, 2), None)):
        for function in (torch.var, torch.std):
            assert_same(function, x, dim, correction=correction, keepdim=True, terms=16)
        for function in (torch.var_mean, torch.std_mean):
            actual = function(moved, dim, correction=correction)
            expected = function(wide(x), dim, correction=correction)
            for a, e in zip(actual, expected, strict=True):
                eps = max(torch.finfo(dtype).eps, 2**-16)
                torch.testing.assert_close(a.cpu(), e.to(a.dtype), rtol=2 * eps, atol=2**-20)


def test_a_variance_far_from_zero():
    """The difference of a sum of squares and the square of a sum would have no digit left."""
    x = make((3, 70_000), torch.float32, low=0, high=1) + 10_000
    for each in (x, x.T.contiguous().T):
        actual, mean = torch.var_mean(each.to("mps"), 1)
        torch.testing.assert_close(actual.cpu(), each.double().var(1).float(), rtol=1e-4, atol=0)
        torch.testing.assert_close(mean.cpu(), each.double().mean(1).float(), rtol=1e-6, atol=0)
    large = torch.full((9, 9), 2e38)
    assert torch.var(large.to("mps"), 1).tolist() == [0.0] * 9


def test_too_few_elements_for_a_variance():
    for x, correction in ((torch.ones(3, 1), 1), (torch.ones(3, 0), 0), (torch.rand(3, 2), 5)):
        with warnings.catch_warnings(record=True) as expected:
            warnings.simplefilter("always")
            reference = torch.var(x, 1, correction=correction)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            actual = torch.var(x.to("mps"), 1, correction=correction)
        assert [str(w.message).split(" (")[0] for w in caught] == [str(w.message).split(" (")[0] for w in expected]  # fmt: skip
        torch.testing.assert_close(actual.cpu(), reference, equal_nan=True)


@pytest.mark.nightly
def test_nan_and_infinities():
    x = torch.ones(4, 2100)
    x[0, 2060], x[1, 5], x[2, 7], x[3, 9], x[3, 10] = (math.nan, math.inf, -math.inf, math.inf, -math.inf)  # fmt: skip
    for each in (x, x.T.contiguous().T, x[:, :7].contiguous()):
        for function in (torch.sum, torch.nansum, torch.mean, torch.prod, torch.amax, torch.amin, torch.count_nonzero, torch.var):  # fmt: skip
            for dim in (0, 1):
                torch.testing.assert_close(
                    function(each.to("mps"), dim).cpu(), function(each, dim), equal_nan=True
                )
    assert torch.isnan(x.to("mps").max()) and torch.isnan(x.to("mps").min())


def test_empty_tensors():
    for shape, dim in (((0,), None), ((3, 0), 1), ((0, 3), 1), ((2, 0, 3), (0, 1)), ((3, 0), None)):
        x = torch.ones(shape)
        for function in (torch.sum, torch.nansum, torch.mean, torch.count_nonzero):
            assert_same(function, x, dim)
        assert_same(torch.linalg.vector_norm, x, 2, dim)
    assert torch.prod(torch.ones(0, device="mps")).item() == 1
    assert torch.prod(torch.ones(0, 3, device="mps"), 0).tolist() == [1, 1, 1]
    assert torch.trace(torch.ones(0, 3, device="mps")).item() == 0
    assert torch.amax(torch.ones(0, 3, device="mps"), 1).shape == (0,)


def test_traces_and_extrema_of_all_elements():
    x = make((5, 7), torch.float32)
    for each in (x, x.T, x[:, 1:]):
        moved = to_device(each, "mps")
        torch.testing.assert_close(torch.trace(moved).cpu(), torch.trace(each))
        assert torch.max(moved).item() == each.max() and torch.min(moved).item() == each.min()


def test_out():
    x = make((5, 40), torch.float32)
    moved, expected = x.to("mps"), x.double().sum(1).float()
    for out in (
        torch.empty(5, device="mps"),
        torch.empty(0, device="mps"),
        torch.empty(10, device="mps")[::2],
    ):
        assert torch.sum(moved, 1, out=out) is out
        torch.testing.assert_close(out.cpu(), expected)
    transposed = torch.empty(8, 5, device="mps").T
    torch.amax(moved.view(5, 8, 5), 2, out=transposed)
    assert torch.equal(transposed.cpu(), x.view(5, 8, 5).amax(2))
    shared = moved.clone()
    torch.sum(shared, 0, out=shared[2])
    torch.testing.assert_close(shared[2].cpu(), x.double().sum(0).float())
    integers = torch.empty(5, dtype=torch.int64, device="mps")
    torch.sum(moved, 1, dtype=torch.int64, out=integers)
    assert torch.equal(integers.cpu(), x.long().sum(1))


def test_bad_arguments():
    x, z = torch.ones(3, 4), torch.ones(3, 4, dtype=torch.complex64)
    assert_refused_as_on_the_cpu(
        (
            lambda to: torch.sum(to(x), 2),
            lambda to: torch.sum(to(x), (0, -2)),
            lambda to: torch.mean(to(x.int())),
            lambda to: torch.sum(to(x), 0, dtype=torch.int64, out=to(torch.ones(4))),
            lambda to: torch.amax(to(torch.ones(0, 3)), 0),
            lambda to: torch.max(to(torch.ones(0))),
            lambda to: torch.trace(to(torch.ones(3))),
            lambda to: torch.var(to(x.int())),
            lambda to: torch.linalg.vector_norm(to(x.int())),
            lambda to: torch.linalg.vector_norm(to(torch.ones(0)), math.inf),
        ),
        RuntimeError,
        IndexError,
        NotImplementedError,
    )
    with pytest.raises(RuntimeError, match="nansum on MPS does not support complex inputs"):
        torch.nansum(z.to("mps"))
    with pytest.raises(NotImplementedError, match="\"amax\" not implemented for 'ComplexFloat'"):
        torch.amax(z.to("mps"), 0)


SAMPLED = ("sum", "nansum", "mean", "prod", "trace", "amax", "amin", "std", "var", "var_mean", "std_mean", "linalg.vector_norm", "max", "min")  # fmt: skip


@pytest.mark.parametrize(
    "op",
    [
        pytest.param(x, marks=() if x.name in ("sum", "var") else pytest.mark.nightly)
        for x in op_db
        if x.name in SAMPLED and x.variant_test_name in ("", "reduction_no_dim")
    ],
    ids=lambda op: op.formatted_name,
)
def test_gradients(op):
    def first(*args, **kwargs):
        result = op.op(*args, **kwargs)
        return result if isinstance(result, torch.Tensor) else result[0]

    for sample in list(op.sample_inputs("cpu", torch.float32))[:8]:
        case = testing.Case("sample", (sample.input, *sample.args), sample.kwargs)
        testing.check_gradient(first, first, case, "mps", name=op.name)
