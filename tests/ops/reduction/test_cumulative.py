"""cumsum and cumprod in the place of stock's, while the fix "cumulative" is on: kernels/reduction/cumulative.metal."""

import metalops
import pytest
import torch
from metalops import debug, testing
from metalops.testing.samples import FLOATS, INTEGERS, layouts, make, to_device
from torch.testing._internal.common_methods_invocations import op_db

from ..aten import assert_refused_as_on_the_cpu

by_dtype = pytest.mark.parametrize(
    "dtype", (*FLOATS, *INTEGERS, torch.bool, torch.complex64), ids=str
)
by_operator = pytest.mark.parametrize("operator", [torch.cumsum, torch.cumprod])
LENGTHS = (1, 8, 32, 33, 2047, 2048, 2049, 9000)


@pytest.fixture(autouse=True)
def ours():
    with metalops.enable_fixes("cumulative"), debug.standins() as served:
        yield
        names = {
            f"aten::{name}{end}" for name in ("cumsum", "cumprod") for end in ("", "_", ".out")
        }
        assert not names & set(served)


def assert_same(operator, x, dim, **options):
    """Errors grow with the sums, not with the elements."""
    wide = x.double() if x.is_floating_point() else x
    if x.is_complex():
        wide = x.to(torch.complex128)
    actual = operator(to_device(x, "mps"), dim, **options)
    expected = operator(wide, dim, **options).to(
        operator(x[:0], 0, **options).dtype if x.dim() else actual.dtype
    )
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    if not (actual.is_floating_point() or actual.is_complex()):
        assert torch.equal(actual.cpu(), expected)
        return
    eps = torch.finfo(actual.dtype).eps
    largest = float(expected.abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(
        actual.cpu(), expected, rtol=4 * eps, atol=largest * 64 * 2**-24 + eps, equal_nan=True
    )


@by_dtype
@by_operator
def test_layouts_along_every_dimension(operator, dtype):
    for _, x in layouts(dtype, low=-1, high=1):
        if operator is torch.cumprod and x.dim() == 1 and dtype.is_floating_point:
            x = x[:50]
        for dim in range(min(x.dim(), 6)):
            assert_same(operator, x, dim)
        if x.dim() == 0:
            assert_same(operator, x, -1)


@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS), ids=str)
def test_rows_of_every_length(dtype):
    for length in LENGTHS:
        x = make((3, length), dtype, low=0 if dtype == torch.uint8 else -1, high=1, seed=length)
        assert_same(torch.cumsum, x, 1)
        assert_same(torch.cumsum, x.T.contiguous(), 0)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@by_operator
def test_integers_wrap_around(operator, dtype):
    x = make((2, 4100), dtype, low=1, high=9)
    for to in (None, dtype, torch.int16):
        assert_same(operator, x, 1, dtype=to)


def test_many_spans_and_many_rows():
    x = torch.randint(-5, 6, (1, 300_001))
    assert_same(torch.cumsum, x, 1)
    assert_same(torch.cumsum, torch.randint(-5, 6, (3000, 40)).T, 0)
    assert_same(torch.cumsum, torch.randint(-5, 6, (40, 3000)), 0)


def test_dimensions_before_the_last_four():
    """Stock MPS ends the process."""
    x = torch.randint(1, 4, (3, 2, 2, 3, 2, 2))
    for dim in range(-6, 6):
        assert_same(torch.cumsum, x, dim)
        assert_same(torch.cumprod, x, dim)


@by_operator
def test_nan_and_infinities_stay(operator):
    x = torch.ones(3, 2100)
    x[0, 2060], x[1, 5], x[2, 7] = torch.nan, torch.inf, -torch.inf
    actual, expected = operator(x.to("mps"), 1).cpu(), operator(x, 1)
    torch.testing.assert_close(actual, expected, equal_nan=True)


@by_operator
def test_out_and_in_place(operator):
    x = make((5, 40), torch.float32)
    expected, name = operator(x, 1), operator.__name__
    moved = x.to("mps")
    for out in (
        torch.empty(5, 40, device="mps"),
        torch.empty(0, device="mps"),
        torch.empty(40, 5, device="mps").T,
        torch.empty(5, 80, device="mps")[:, ::2],
    ):
        assert operator(moved, 1, out=out) is out
        torch.testing.assert_close(out.cpu(), expected)
    shifted = torch.zeros(5 * 40 + 1, device="mps")
    shifted[:-1] = moved.flatten()
    operator(shifted[:-1].view(5, 40), 1, out=shifted[1:].view(5, 40))
    torch.testing.assert_close(shifted[1:].view(5, 40).cpu(), expected)
    view = torch.stack((moved, moved), -1)[..., 1]
    getattr(view, f"{name}_")(1)
    torch.testing.assert_close(view.cpu(), expected)
    floats = torch.empty(4, device="mps")
    assert (
        operator(torch.arange(1, 5, device="mps"), 0, out=floats).tolist()
        == operator(torch.arange(1, 5), 0).tolist()
    )
    counts = torch.arange(1, 5, dtype=torch.int32, device="mps")
    getattr(counts, f"{name}_")(0)
    assert counts.tolist() == operator(torch.arange(1, 5), 0).tolist()


@by_operator
def test_bad_arguments(operator):
    x = torch.ones(3, 4)
    assert_refused_as_on_the_cpu(
        (
            lambda to: operator(to(x), 2),
            lambda to: operator(to(x), -3),
            lambda to: operator(to(x), 0, dtype=torch.int64, out=to(torch.ones(3, 4))),
        ),
        RuntimeError,
        IndexError,
    )
    with pytest.raises(NotImplementedError, match="not implemented for 'Bool'"):
        operator(x.to("mps"), 0, dtype=torch.bool)


@pytest.mark.parametrize(
    "op", [op for op in op_db if op.name in ("cumsum", "cumprod")], ids=lambda op: op.name
)
def test_samples(op):
    for sample in list(op.sample_inputs("cpu", torch.float32))[:20]:
        case = testing.Case("sample", (sample.input, *sample.args), sample.kwargs)
        testing.check_gradient(op.op, op.op, case, "mps", name=op.name)
        args, kwargs = testing.to_device((case.args, case.kwargs), "mps")
        torch.testing.assert_close(op.op(*args, **kwargs).cpu(), op.op(*case.args, **case.kwargs))
