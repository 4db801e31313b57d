"""What stock MPS lacks for sparse tensors in COO: csrc/ops/indexing/sparse_coo.mm, which has no kernels of its own."""

import itertools

import pytest
import torch

from ..aten import assert_refused_as_on_the_cpu, served_by_us
from ..benchmark import Benchmark

spdiags = torch.sparse.spdiags
aten = torch.ops.aten
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
DTYPES = (torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def matrix(*sizes, density=0.4, repeated=False):
    """Small integers, so that the order of sums does not matter; with `repeated` some places have two of them."""
    found = (torch.randint(-4, 5, sizes) * (torch.rand(sizes) < density)).float().to_sparse()
    if not repeated or found.values().numel() == 0:
        return found
    indices = torch.cat([found.indices(), found.indices()[:, :2]], 1)
    return torch.sparse_coo_tensor(
        indices, torch.cat([found.values(), found.values()[:2] + 1]), sizes
    )


def parts(tensor):
    return tensor._indices(), tensor._values(), tensor.shape


def assert_same(actual, expected):
    assert actual.device.type == "mps" and actual.is_sparse
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert actual.sparse_dim() == expected.sparse_dim()
    actual, expected = actual.cpu().coalesce(), expected.coalesce()
    assert torch.equal(actual.indices(), expected.indices())
    assert torch.equal(actual.values(), expected.values())


def _diagonals(x, out):
    return spdiags(x, torch.arange(x.shape[0], device=x.device), (x.shape[1], x.shape[1]))


def _hybrid_product(x, out):
    return torch.hspmm(x.relu().to_sparse(), x.T[:, :8])


BENCHMARKS = (
    Benchmark.same("_spdiags", _diagonals),
    Benchmark.same("hspmm", _hybrid_product),
)


def dense_of_diagonals(diagonals, offsets, shape):
    result = torch.zeros(shape, dtype=diagonals.dtype)
    for values, offset in zip(diagonals, offsets):
        for column, value in enumerate(values[: shape[1]]):
            if 0 <= column - offset < shape[0]:
                result[column - offset, column] = value
    return result


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_diagonals(dtype):
    for shape, length in itertools.product(
        [(5, 5), (3, 6), (6, 3), (1, 1), (4, 0), (0, 3)], (0, 3, 5, 8)
    ):
        offsets = torch.randperm(shape[0] + shape[1] + 1)[:4] - shape[0]
        diagonals = torch.randint(-3, 4, (len(offsets), length)).to(dtype)
        found = spdiags(diagonals.to("mps"), offsets.to("mps"), shape)
        assert found.dtype == dtype and found.layout == torch.sparse_coo
        assert torch.equal(found.to_dense().cpu(), dense_of_diagonals(diagonals, offsets, shape))


def test_diagonals_are_in_the_order_of_the_cpu():
    """It counts those that are outside of the matrix as negative numbers of elements; these are inside."""
    diagonals = torch.arange(24.0).reshape(6, 4).mT.contiguous()[:, ::2]
    offsets = torch.tensor([1, -2, 0, 2])
    for shape in ((3, 3), (3, 5), (5, 3)):
        found = spdiags(diagonals.to("mps"), offsets.to("mps"), shape)
        expected = spdiags(diagonals, offsets, shape)
        assert all(torch.equal(torch.as_tensor(x).cpu(), torch.as_tensor(y)) for x, y in zip(parts(found), parts(expected)))  # fmt: skip
        assert found.is_coalesced() == expected.is_coalesced()
    one = spdiags(diagonals[0].to("mps"), torch.tensor(1, device="mps"), (3, 3))
    assert_same(one, spdiags(diagonals[0], torch.tensor(1), (3, 3)))
    nothing = spdiags(diagonals[:0].to("mps"), offsets[:0].to("mps"), (3, 3))
    assert nothing._nnz() == 0 and nothing.shape == (3, 3)


def test_diagonals_that_are_refused():
    x, offsets = torch.ones(3, 3), torch.tensor([0, -1, 2])
    assert_refused_as_on_the_cpu(
        [
            lambda on: spdiags(on(x[None]), on(offsets), (3, 3)),
            lambda on: spdiags(on(x), on(offsets), (3,)),
            lambda on: spdiags(on(x), on(offsets[None]), (3, 3)),
            lambda on: spdiags(on(x), on(offsets[:2]), (3, 3)),
            lambda on: spdiags(on(x), on(offsets), (3, 3), torch.strided),
            lambda on: spdiags(on(x), on(offsets.int()), (3, 3)),
            lambda on: spdiags(on(x), on(offsets.abs() // 2), (3, 3)),
        ],
        RuntimeError,
    )
    x, offsets = x.to("mps"), offsets.to("mps")
    with pytest.raises(RuntimeError, match="negative dimension"):
        spdiags(x, offsets, (-3, 3))
    with pytest.raises(RuntimeError, match="on the same device"):
        spdiags(x, offsets.cpu(), (3, 3))
    with pytest.raises(
        NotImplementedError, match="_to_sparse_cs[rc]' with arguments from the 'SparseMPS'"
    ):
        spdiags(x, offsets, (3, 3), torch.sparse_csr)


SIZES = [(5, 4, 3), (1, 1, 1), (6, 2, 9), (3, 0, 2), (0, 4, 3), (3, 4, 0)]


def test_sums_with_sparse_products():
    for (rows, inner, columns), density in itertools.product(SIZES, (0, 0.3, 1)):
        for beta, alpha in ((1, 1), (2, 3), (0, 1), (-0.5, 0.5)):
            x = matrix(rows, columns, repeated=True)
            a = matrix(rows, inner, density=density, repeated=True)
            b = torch.randint(-4, 5, (inner, columns)).float()
            expected = torch.sspaddmm(x, a, b, beta=beta, alpha=alpha)
            found = torch.sspaddmm(x.to("mps"), a.to("mps"), b.to("mps"), beta=beta, alpha=alpha)
            assert torch.equal(found.to_dense().cpu(), expected.to_dense())
            assert found._nnz() == x.coalesce()._nnz() + expected._nnz() - x._nnz()


def test_sums_with_sparse_products_keep_and_leave_what_they_take():
    x, a, b = matrix(5, 3), matrix(5, 4), torch.randint(-4, 5, (4, 3)).float()
    on_mps = [t.to("mps") for t in (x, a, b)]
    before = [t.to_dense().cpu() for t in on_mps]
    out = torch.empty(9, layout=torch.sparse_coo, device="mps")
    assert torch.sspaddmm(*on_mps, beta=2, out=out) is out
    assert all(torch.equal(t.to_dense().cpu(), y) for t, y in zip(on_mps, before))
    assert_same(out, torch.sspaddmm(x, a, b, beta=2))
    into_itself = on_mps[0].clone()
    torch.sspaddmm(into_itself, *on_mps[1:], beta=2, out=into_itself)
    assert_same(into_itself, torch.sspaddmm(x, a, b, beta=2))
    integers = [t.to(torch.int32) for t in (x, a, b)]
    assert_same(
        torch.sspaddmm(*[t.to("mps") for t in integers], beta=3), torch.sspaddmm(*integers, beta=3)
    )
    assert_same(torch.sspaddmm(*[t.half() for t in on_mps]), torch.sspaddmm(x, a, b).half())
    assert_same(torch.smm(*on_mps[1:]), torch.smm(a, b))


def test_hybrid_products():
    for (rows, inner, columns), density in itertools.product(SIZES, (0, 0.3, 1)):
        a = matrix(rows, inner, density=density, repeated=True)
        b = torch.randint(-4, 5, (inner, columns)).float()
        expected = torch.hspmm(a, b)
        found = torch.hspmm(a.to("mps"), b.to("mps"))
        assert_same(found, expected)
        assert found.is_coalesced() and found.dense_dim() == 1
        out = torch.empty(2, layout=torch.sparse_coo, device="mps")
        assert torch.hspmm(a.to("mps"), b.to("mps"), out=out) is out
        assert_same(out, expected)


def test_products_that_are_refused():
    x, a, b = matrix(5, 3), matrix(5, 4), torch.ones(4, 3)
    hybrid = b.to_sparse(1)
    assert_refused_as_on_the_cpu(
        [
            lambda on: torch.sspaddmm(on(b), on(b), on(b)),
            lambda on: torch.sspaddmm(on(x), on(b), on(b)),
            lambda on: torch.sspaddmm(on(x), on(a), on(b[:2])),
            lambda on: torch.sspaddmm(on(x), on(a), on(b[:, :2])),
            lambda on: torch.sspaddmm(on(a), on(a), on(b)),
            lambda on: torch.sspaddmm(on(x), on(a), on(b[None])),
            lambda on: torch.sspaddmm(on(x), on(hybrid), on(b)),
            lambda on: torch.sspaddmm(on(x), on(a), on(b.int())),
            lambda on: torch.sspaddmm(on(x.int()), on(a), on(b)),
            lambda on: torch.hspmm(on(a), on(b[:2])),
            lambda on: torch.hspmm(on(a), on(b[None])),
            lambda on: torch.hspmm(on(hybrid), on(b)),
            lambda on: torch.hspmm(on(a), on(b.int())),
            lambda on: torch.hspmm(on(a), on(b), out=on(x.int())),
            lambda on: on(b).addmm_(on(a), on(b)),
        ],
        RuntimeError,
    )
    x, a, b = (t.to("mps") for t in (x, a, b))
    for message, call in (
        ("expected 'self' to have sparse layout", lambda: torch.sspaddmm(b, a, b)),
        ("expected 'mat2' to have strided layout", lambda: torch.sspaddmm(x, a, b.to_sparse())),
        ("expected 'out' to have sparse layout", lambda: torch.sspaddmm(x, a, b, out=b.clone())),
        ("Argument #1: matrices expected, got 1D", lambda: torch.sspaddmm(x.to_dense().to_sparse(1), a, b)),
        ("expected 'mat2' to have strided layout", lambda: torch.hspmm(a, b.to_sparse())),
        ("expected 'out' to have sparse layout", lambda: torch.hspmm(a, b, out=b.clone())),
        ("expected 't' to have strided layout", lambda: x.clone().addmm_(a, b)),
        ("matrices expected, got 1D tensor", lambda: b[0].addmm_(a, b)),
        ("same device", lambda: torch.hspmm(a, b.cpu())),
        ("same device", lambda: torch.sspaddmm(x.cpu(), a, b)),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match=message):
            call()


def test_sums_in_place_with_products_of_sparse_matrices():
    for rows, inner, columns in SIZES:
        a, b = matrix(rows, inner, repeated=True), torch.randint(-4, 5, (inner, columns)).float()
        x = torch.randint(-4, 5, (columns, rows)).float().t()
        expected = x.clone().addmm_(a, b, beta=2, alpha=3)
        found = x.to("mps")
        assert found.addmm_(a.to("mps"), b.to("mps"), beta=2, alpha=3) is found
        assert torch.equal(found.cpu(), expected)


def test_gradients_of_relu():
    for shape, dense_dim in (((5, 4), 0), ((4, 3, 2), 1), ((0, 3), 0)):
        x = torch.randn(shape).to_sparse(len(shape) - dense_dim)
        gradients = []
        for device in ("cpu", "mps"):
            leaf = x.to(device, copy=True).requires_grad_()
            weights = torch.arange(1.0, x.numel() + 1, device=device).reshape(shape)
            (leaf.relu().to_dense() * weights).sum().backward()
            gradients.append(leaf.grad)
        assert_same(*gradients[::-1])


def test_gradients_of_a_threshold():
    x, gradient = matrix(5, 4, density=0.8), matrix(5, 4, density=0.6)
    found = aten.threshold_backward(gradient.to("mps"), x.to("mps"), 1)
    expected = gradient.to_dense() * (x.to_dense() > 1)
    assert found._nnz() == x._nnz() and torch.equal(found.to_dense().cpu(), expected)
    out = torch.empty(3, layout=torch.sparse_coo, device="mps")
    aten.threshold_backward.grad_input(gradient.to("mps"), x.to("mps"), 1, grad_input=out)
    assert_same(out, found.cpu())
    nothing = torch.zeros(5, 4).to_sparse()
    assert_same(
        aten.threshold_backward(nothing.to("mps"), x.to("mps"), 1),
        aten.threshold_backward(nothing, x, 1),
    )
    for arguments in ((x.to("mps").to_dense(), x.to("mps")), (x.to("mps"), x.to("mps").to_dense())):
        with pytest.raises(
            RuntimeError, match="threshold_backward: expected '.*' to have sparse layout"
        ):
            aten.threshold_backward(*arguments, 1)


def test_sizes_and_numbers_of_dimensions():
    x = matrix(5, 4).to("mps")
    assert (x._dimI(), x._dimV()) == (2, 0)
    other = torch.empty(1, layout=torch.sparse_coo, device="mps")
    assert aten.resize_as_sparse_(other, x).shape == x.shape


def test_no_stand_in():
    x, a, b = matrix(5, 3).to("mps"), matrix(5, 4).to("mps"), torch.ones(4, 3, device="mps")
    assert served_by_us(lambda: spdiags(b, torch.arange(4, device="mps"), (4, 4))) == []
    assert served_by_us(lambda: torch.sspaddmm(x, a, b)) == []
    assert served_by_us(lambda: torch.hspmm(a, b)) == []
