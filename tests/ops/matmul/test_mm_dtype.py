"""mm, bmm, addmm and baddbmm with out_dtype: kernels/matmul/gemm.metal."""

import metalops
import pytest
import torch
from metalops import debug
from metalops.testing import no_standins

from ..benchmark import Benchmark

HALVES = (torch.float16, torch.bfloat16)
SHAPES = ((1, 1, 1), (5, 33, 17), (16, 64, 64), (33, 40, 130), (70, 300, 67))

dtypes = pytest.mark.parametrize("dtype", HALVES, ids=str)


def _times_itself(x, out):
    x = x.to(torch.bfloat16)
    return torch.mm(x, x.t(), torch.float32) if x.is_mps else x.float() @ x.float().t()


BENCHMARKS = (
    Benchmark.same(
        "mm, out_dtype",
        _times_itself,
        composed=True,
        only_dtype="float32",
        reason="torch's CPU operator is a library's, which is written for each processor",
    ),
)


@pytest.fixture(params=["tensor", "simdgroup"])
def body(request, monkeypatch):
    """By which products: of tensors, or of simdgroup matrices."""
    monkeypatch.setenv("METALOPS_MATMUL", request.param)


def operand(*shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


def assert_right(actual, left, right, added=None, beta=1.0, alpha=1.0):
    expected = alpha * (left.double() @ right.double())
    if added is not None:
        expected = expected + beta * added.double()
    assert actual.dtype == torch.float32 and actual.device.type == "mps"
    torch.testing.assert_close(actual.cpu().double(), expected, rtol=2e-6, atol=1e-4)


@pytest.mark.sampled(4)
@dtypes
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results_are_not_rounded(dtype, shape, body):
    m, k, n = shape
    for batch in ((), (1,), (3,)):
        left = operand(*batch, m, k, dtype=dtype)
        right = operand(*batch, k, n, dtype=dtype, seed=1)
        added = operand(*batch, m, n, dtype=dtype, seed=2)
        a, b = left.to("mps"), right.to("mps")
        product, sum_of = (torch.bmm, torch.baddbmm) if batch else (torch.mm, torch.addmm)
        with no_standins():
            actual = product(a, b, torch.float32)
        assert_right(actual, left, right)
        for addend in (added, added.float()):
            arguments = (addend.to("mps"), a, b, torch.float32)
            assert_right(sum_of(*arguments), left, right, addend)
            actual = sum_of(*arguments, beta=0.5, alpha=-2)
            assert_right(actual, left, right, addend, 0.5, -2)


@dtypes
def test_layouts_and_broadcast_addends(dtype):
    left, right = operand(3, 20, 36, dtype=dtype), operand(3, 36, 50, dtype=dtype, seed=1)

    def layouts(x):
        x = x.to("mps")
        steps = torch.zeros(6, x.shape[1] * 2, x.shape[2] * 3, dtype=dtype, device="mps")
        steps[::2, ::2, ::3] = x
        swapped = x.transpose(0, 1).contiguous().transpose(0, 1)
        return x, x.mT.contiguous().mT, steps[::2, ::2, ::3], swapped

    for a in layouts(left):
        for b in layouts(right):
            assert_right(torch.bmm(a, b, torch.float32), left, right)
            assert_right(torch.mm(a[1], b[1], torch.float32), left[1], right[1])
    a, b = left.to("mps"), right.to("mps")
    assert_right(torch.bmm(a[:1].expand(3, -1, -1), b, torch.float32), left[:1], right)
    for shape in ((50,), (20, 1), (1, 50), ()):
        added = operand(*shape, dtype=torch.float32)
        actual = torch.addmm(added.to("mps"), a[0], b[0], torch.float32)
        assert_right(actual, left[0], right[0], added)
        actual = torch.baddbmm(added.to("mps"), a, b, torch.float32)
        assert_right(actual, left, right, added)


def test_out_and_an_addend_that_is_written():
    left, right = operand(6, 20, dtype=torch.half), operand(20, 9, dtype=torch.half, seed=1)
    a, b = left.to("mps"), right.to("mps")
    for out in (
        torch.empty(0, device="mps"),
        torch.empty(9, 6, device="mps").t(),
        torch.empty(6, 18, device="mps")[:, ::2],
    ):
        assert torch.mm(a, b, torch.float32, out=out) is out
        assert_right(out, left, right)
    added = operand(6, 9, dtype=torch.float32, seed=2)
    out = added.to("mps")
    torch.addmm(out, a, b, torch.float32, out=out)
    assert_right(out, left, right, added)
    batch = torch.empty(0, device="mps")
    torch.bmm(a[None], b[None], torch.float32, out=batch)
    assert_right(batch, left[None], right[None])
    torch.baddbmm(out, a[None], b[None], torch.float32, out=batch)
    assert_right(batch, left[None], right[None], out.cpu()[None])


def test_nothing_of_the_addend_is_seen_where_beta_is_zero():
    x = torch.ones(3, 3, dtype=torch.half, device="mps")
    nan = torch.full((3, 3), torch.nan, device="mps")
    assert torch.addmm(nan, x, x, torch.float32, beta=0).unique().tolist() == [3]


def test_large_sums_of_half_are_finite():
    x = torch.full((2, 64), 300.0, dtype=torch.half, device="mps")
    assert torch.mm(x, x.t(), torch.float32).unique().tolist() == [64 * 300.0**2]


@dtypes
def test_empty_matrices_and_sums_of_nothing(dtype, body):
    for m, k, n in ((0, 3, 2), (2, 0, 3), (2, 3, 0), (40, 0, 3)):
        a = torch.ones(m, k, dtype=dtype, device="mps")
        b = torch.ones(k, n, dtype=dtype, device="mps")
        assert torch.equal(torch.mm(a, b, torch.float32).cpu(), torch.zeros(m, n).fill_(k))
        one = torch.ones((), device="mps")
        assert torch.equal(
            torch.addmm(one, a, b, torch.float32).cpu(), torch.ones(m, n).fill_(k + 1)
        )
        assert torch.bmm(a[None][:0], b[None][:0], torch.float32).shape == (0, m, n)


def test_the_same_dtype_is_left_to_torch():
    x = operand(4, 4, dtype=torch.float32)
    a = x.to("mps")
    for call, operator in (
        (lambda: torch.mm(a, a, torch.float32), "aten::mm.out"),
        (lambda: torch.bmm(a[None], a[None], torch.float32), "aten::bmm.out"),
        (lambda: torch.addmm(a, a, a, torch.float32), "aten::addmm.out"),
        (lambda: torch.baddbmm(a, a[None], a[None], torch.float32), "aten::baddbmm.out"),
    ):
        with debug.standins() as served:
            result = call()
        if metalops._is_software:
            assert list(served) == [operator]
        added = x if "add" in operator else None
        assert_right(result if result.dim() == 2 else result[0], x, x, added)


def test_wrong_arguments_are_named():
    x = torch.ones(3, 3, dtype=torch.half, device="mps")
    for call, message in (
        (lambda: torch.mm(x, x, torch.bfloat16), "out_dtype must be the same as input dtype or fp32"),
        (lambda: torch.mm(x, x.float(), torch.float32), "input dtypes must be the same"),
        (lambda: torch.mm(x[0], x, torch.float32), "self must be a matrix"),
        (lambda: torch.mm(x[:, :2], x, torch.float32), r"cannot be multiplied \(3x2 and 3x3\)"),
        (lambda: torch.bmm(x, x, torch.float32), "batch1 must be a 3D tensor"),
        (lambda: torch.bmm(x[None], x[None][:, :2], torch.float32), r"batch2 tensor to be: \[1, 3\]"),
        (lambda: torch.addmm(x.int(), x, x, torch.float32), "self dtype must match either out_dtype"),
        (lambda: torch.addmm(x.float()[:2], x, x, torch.float32), "size"),
        (lambda: torch.mm(x, x, torch.float32, out=x.clone()), "provided out tensor"),
        (lambda: torch.mm(x, x.cpu(), torch.float32), "same device"),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match=message):
            call()


def test_fake_tensors_are_like_real_ones():
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = torch.ones(4, 4, dtype=torch.half, device="mps")
    for call in (
        lambda x: torch.mm(x, x.t(), torch.float32),
        lambda x: torch.bmm(x[None], x[None], torch.float32),
    ):
        real = call(x)
        with FakeTensorMode() as mode:
            fake = call(mode.from_tensor(x))
        assert (real.shape, real.dtype, real.stride()) == (fake.shape, fake.dtype, fake.stride())
