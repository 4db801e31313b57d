"""cumsum, cumprod and logcumsumexp in the place of stock's, while the fix "cumulative" is on: kernels/reduction/cumulative.metal."""

import metalops
import pytest
import torch
from metalops import debug, fixes, testing
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
        names = {fix.name: fix.operators for fix in fixes.status()}["cumulative"]
        assert len(names) == 8 and not set(names) & set(served)


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


@pytest.mark.sampled(4)
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


@pytest.mark.sampled(2)
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
    "op",
    [op for op in op_db if op.name in ("cumsum", "cumprod", "logcumsumexp")],
    ids=lambda op: op.name,
)
def test_samples(op):
    for sample in list(op.sample_inputs("cpu", torch.float32))[:20]:
        if op.name == "logcumsumexp" and sample.input.abs().max() > 100:
            continue  # float32 has no digits left for gradients
        case = testing.Case("sample", (sample.input, *sample.args), sample.kwargs)
        testing.check_gradient(op.op, op.op, case, "mps", name=op.name)
        args, kwargs = testing.to_device((case.args, case.kwargs), "mps")
        torch.testing.assert_close(op.op(*args, **kwargs).cpu(), op.op(*case.args, **case.kwargs))


# ---- logarithms of sums of exponentials ----------------------------------------------------------

HALVES = tuple(
    pytest.param(dtype, marks=pytest.mark.nightly) for dtype in (torch.float16, torch.bfloat16)
)


def assert_same_logarithms(x, dim):
    """Imaginary parts are known up to multiples of 2 pi."""
    actual = torch.logcumsumexp(x.to("mps"), dim)
    wide = x.to(torch.complex128 if x.is_complex() else torch.float64)
    expected = torch.logcumsumexp(wide, dim)
    assert actual.dtype == x.dtype and actual.shape == expected.shape
    if x.is_complex():
        scale = torch.logcumsumexp(wide.real, dim)  # of the terms, which may cancel
        a, e = ((each - scale).exp() for each in (actual.cpu().to(wide.dtype), expected))
        torch.testing.assert_close(a, e, rtol=0, atol=2e-5)
        return
    eps = torch.finfo(x.dtype).eps
    torch.testing.assert_close(
        actual.cpu(), expected.to(x.dtype), rtol=2 * eps, atol=1e-5, equal_nan=True
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", (torch.float32, *HALVES, torch.complex64), ids=str)
def test_logarithms_along_every_dimension(dtype):
    for _, x in layouts(dtype, low=-3, high=3):
        for dim in range(-1, min(x.dim(), 5)):
            assert_same_logarithms(x, dim)
    for length in LENGTHS:
        assert_same_logarithms(make((2, length), dtype, low=-9, high=9, seed=length), 1)


def test_logarithms_of_exponentials_that_overflow_or_vanish():
    x = torch.tensor([[-1000.0, 1000, 1000.5], [88.0, 89, -200], [-1e30, -2e30, 3e38]])
    assert_same_logarithms(x, 1)
    assert_same_logarithms(-x, 1)
    assert_same_logarithms(torch.full((4100,), 3e38), 0)
    assert_same_logarithms(torch.linspace(-1e4, 1e4, 5000), 0)


def test_logarithms_of_infinities_and_nan():
    inf, nan = torch.inf, torch.nan
    rows = [[2, -inf, -inf, 1, -inf, 3], [-inf, -inf, -inf, 0, 1, 2], [inf, 1, inf, -inf, 2, 3],
            [1, nan, 2, inf, 3, 4], [-inf, inf, -inf, nan, 0, 0]]  # fmt: skip
    for length in (6, 3000):
        x = torch.full((5, length), -inf)
        x[:, :6] = torch.tensor(rows)
        for each in (x, x.T.contiguous().T, x.flip(1)):
            assert_same_logarithms(each, 1)
    z = torch.tensor([complex(1, 2), complex(nan, 0), complex(0, 1)], device="mps")
    assert torch.logcumsumexp(z, 0)[1:].isnan().all()
    z = torch.tensor([complex(-inf, 1), complex(0.5, 3), complex(1, nan)], device="mps")
    assert torch.logcumsumexp(z, 0)[1].item() == complex(0.5, 3)


def test_logarithms_to_an_output():
    x = make((5, 40), torch.float32)
    expected = torch.logcumsumexp(x, 1)
    for out in (torch.empty(0), torch.empty(40, 5).T, torch.empty(5, 80)[:, ::2]):
        moved = torch.empty_strided(out.shape, out.stride(), device="mps")
        assert torch.logcumsumexp(x.to("mps"), 1, out=moved) is moved
        torch.testing.assert_close(moved.cpu(), expected)
    memory = torch.zeros(201, device="mps")
    memory[:-1] = x.to("mps").flatten()
    torch.logcumsumexp(memory[:-1].view(5, 40), 1, out=memory[1:].view(5, 40))
    torch.testing.assert_close(memory[1:].view(5, 40).cpu(), expected)


def test_second_derivatives_of_logarithms():
    def second(x):
        (grad,) = torch.autograd.grad(torch.logcumsumexp(x, 1).sin().sum(), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), x)[0]

    x = make((3, 20), torch.float32, low=-2, high=2)
    actual = second(x.to("mps").requires_grad_())
    torch.testing.assert_close(
        actual.cpu(), second(x.double().requires_grad_()).float(), rtol=1e-3, atol=1e-3
    )


def test_bad_arguments_of_logarithms():
    x = torch.ones(3, 4)
    assert_refused_as_on_the_cpu(
        (
            lambda to: torch.logcumsumexp(to(x), 2),
            lambda to: torch.logcumsumexp(to(x), 0, out=to(torch.ones(3, 4).half())),
        ),
        RuntimeError,
        IndexError,
    )
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        torch.logcumsumexp(torch.ones(3, dtype=torch.int64, device="mps"), 0)
