"""Batched GEMM of all dtypes: kernels/matmul/gemm.metal, called by the operators of the fix "matmul"."""

import metalops
import pytest
import torch
from metalops.testing import to_device

from ..aten import kernels_of
from .bodies import with_dtypes

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
COMPLEX = (torch.complex64, torch.complex32)
# Results of one row, one column, one tile and several, with sides that no tile divides.
SHAPES = ((1, 7, 70), (70, 131, 1), (5, 33, 17), (16, 64, 64), (33, 40, 130), (70, 300, 67))

by_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


@pytest.fixture(autouse=True)
def ours():
    with metalops.enable_fixes("matmul"):
        yield


@pytest.fixture(params=["tensor", "simdgroup"])
def body(request, monkeypatch):
    """By which products: of tensors, or of simdgroup matrices."""
    monkeypatch.setenv("METALOPS_MATMUL", request.param)


def operand(*shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if dtype in INTEGERS:
        low = 0 if dtype == torch.uint8 else -100
        return torch.randint(low, 100, shape, generator=generator).to(dtype)
    real = torch.randn(shape, generator=generator)
    if dtype in COMPLEX:
        return torch.complex(real, torch.randn(shape, generator=generator)).to(dtype)
    return real.to(dtype)


def exact(left, right, added=None, beta=1, alpha=1):
    """In float64 or complex128, rounded once; integers modulo 2^bits."""
    dtype = left.dtype
    wide = (
        torch.int64
        if dtype in INTEGERS
        else torch.complex128
        if dtype in COMPLEX
        else torch.float64
    )
    result = alpha * (left.to(wide) @ right.to(wide))
    if added is not None:
        result = result + beta * added.to(wide)
    if dtype == torch.complex32:
        return result.to(torch.complex64)
    return result.to(dtype)


def assert_right(actual, expected):
    if actual.dtype == torch.complex32:
        actual = actual.cpu().to(torch.complex64)
        torch.testing.assert_close(actual, expected, rtol=2e-3, atol=2e-2)
        return
    rtol = {torch.float16: 1e-3, torch.bfloat16: 8e-3}.get(actual.dtype, 3e-6)
    exactly = actual.dtype in INTEGERS
    torch.testing.assert_close(
        actual.cpu(), expected, rtol=0 if exactly else rtol, atol=0 if exactly else 3e-4
    )


@pytest.mark.sampled(2)
@with_dtypes(FLOATS)
@by_shape
def test_floats(dtype, shape, body):
    m, k, n = shape
    for batch in ((), (3,)):
        left, right = operand(*batch, m, k, dtype=dtype), operand(*batch, k, n, dtype=dtype, seed=1)
        a, b = left.to("mps"), right.to("mps")
        assert_right(torch.bmm(a, b) if batch else torch.mm(a, b), exact(left, right))
        added = operand(*batch, m, n, dtype=dtype, seed=2)
        sum_of = torch.baddbmm if batch else torch.addmm
        actual = sum_of(added.to("mps"), a, b, beta=0.5, alpha=-2)
        assert_right(actual, exact(left, right, added, 0.5, -2))


@pytest.mark.parametrize("dtype", (*INTEGERS, *COMPLEX), ids=str)
@by_shape
def test_integers_and_complex_numbers(dtype, shape):
    m, k, n = shape
    factors = (0.5 - 1j, 2j) if dtype in COMPLEX else (3, -2)
    for batch in ((), (3,)):
        left, right = operand(*batch, m, k, dtype=dtype), operand(*batch, k, n, dtype=dtype, seed=1)
        a, b = left.to("mps"), right.to("mps")
        assert_right(torch.bmm(a, b) if batch else torch.mm(a, b), exact(left, right))
        added = operand(*batch, m, n, dtype=dtype, seed=2)
        sum_of = torch.baddbmm if batch else torch.addmm
        actual = sum_of(added.to("mps"), a, b, beta=factors[0], alpha=factors[1])
        assert_right(actual, exact(left, right, added, *factors))


def _layouts(x):
    """The matrices in other strides, each with the same elements."""
    steps = torch.zeros(2 * x.shape[0], 2 * x.shape[1], 3 * x.shape[2], dtype=x.dtype)
    steps[::2, ::2, ::3] = x
    return (
        x,
        x.mT.contiguous().mT,
        steps[::2, ::2, ::3],
        x.transpose(0, 1).contiguous().transpose(0, 1),
        x[:1].expand(3, -1, -1),
    )


def _moved(x):
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="mps").copy_(x)


@pytest.mark.parametrize("dtype", (torch.float32, torch.int32, torch.complex64), ids=str)
@pytest.mark.parametrize("shape", [(20, 36, 50), (1, 40, 33), (33, 40, 1)], ids=str)
def test_layouts(dtype, shape):
    m, k, n = shape
    for left in _layouts(operand(3, m, k, dtype=dtype)):
        for right in _layouts(operand(3, k, n, dtype=dtype, seed=1)):
            a, b = (
                x.to("mps")[:1].expand(3, -1, -1) if x.stride(0) == 0 else _moved(x)
                for x in (left, right)
            )
            assert_right(torch.bmm(a, b), exact(left, right))


def test_conjugated_and_negated_views():
    left, right = (
        operand(9, 20, dtype=torch.complex64),
        operand(20, 7, dtype=torch.complex64, seed=1),
    )
    a, b = left.to("mps"), right.to("mps")
    assert_right(a.conj() @ b, exact(left.conj().resolve_conj(), right))
    assert_right(a @ b.t().mH, exact(left, right.conj().resolve_conj()))
    negated = torch.imag(torch.conj(a))
    assert negated.is_neg()
    assert_right(negated @ b.real, exact(-left.imag, right.real))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_row_is_computed_by_simdgroups(dtype, tmp_path):
    """Of a row, and of a column, whose matrix is read once."""
    left, right = operand(1, 300, dtype=dtype), operand(300, 45, dtype=dtype, seed=1)
    for a, b in ((left, right.t().contiguous().t()), (right.t().contiguous(), left.t())):
        moved = _moved(a), _moved(b)
        actual, launched = kernels_of(lambda moved=moved: torch.mm(*moved), tmp_path)
        assert [kernel.rpartition("_row_")[0] for kernel in launched] == ["gemm"]
        assert_right(actual, exact(a, b))


def test_sums_of_half_precision_are_in_float():
    """4,096 ones and a small number that half precision would lose."""
    ones = torch.ones(1, 4097, dtype=torch.float16)
    ones[0, 4096] = 2.0
    for dtype in (torch.float16, torch.bfloat16):
        x = ones.to("mps", dtype)
        assert torch.mm(x, x.t()).item() == torch.tensor(4100.0).to(dtype).item()
        assert torch.mm(x.expand(40, -1), x.t().expand(-1, 40)).unique().numel() == 1


def test_every_argument_may_be_empty(body):
    for m, k, n in ((0, 3, 2), (2, 0, 3), (2, 3, 0), (40, 0, 70)):
        for dtype in (torch.float32, torch.int32):
            a, b = (
                torch.ones(m, k, dtype=dtype, device="mps"),
                torch.ones(k, n, dtype=dtype, device="mps"),
            )
            assert torch.equal(torch.mm(a, b).cpu(), torch.full((m, n), k, dtype=dtype))
            one = torch.ones((), dtype=dtype, device="mps")
            expected = torch.full((m, n), k + 2, dtype=dtype)
            assert torch.equal(torch.addmm(one, a, b, beta=2).cpu(), expected)
            assert torch.bmm(a[None][:0], b[None][:0]).shape == (0, m, n)


def test_results_are_those_of_the_kernel_on_every_call():
    """Not of memory that was there before: equal bits, whatever was allocated and freed."""
    a, b = to_device((torch.randn(50, 301), torch.randn(301, 40)), "mps")
    first = torch.mm(a, b)
    for count in (1, 1000, 100_000):
        torch.full((count,), torch.nan, device="mps")
        assert torch.equal(torch.mm(a, b), first)
