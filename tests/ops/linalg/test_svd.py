"""Singular values and vectors: kernels/linalg/svd.metal."""

import warnings

import metalops
import pytest
import torch

from ..aten import assert_refused_as_on_the_cpu, only_ours, served_by_us
from ..benchmark import Benchmark
from .linear_algebra import HARD, dtypes, hard, squares_of, wide
from .operators import MatrixOperator
from .singular import check, check_values

pytestmark = only_ours("aten::_linalg_svd.U")

OPINFOS = ("linalg.svd", "linalg.svdvals", "svd")

svd = torch.linalg.svd
svdvals = torch.linalg.svdvals


BENCHMARKS = (
    Benchmark.same("svd", lambda x, out: svd(squares_of(x, most=32)), only_dtype="float32"),
    Benchmark.same("svdvals", lambda x, out: svdvals(squares_of(x, most=32)), only_dtype="float32"),
)


SIZES = ((2, 2), (4, 4), (7, 7), (12, 12), (30, 30), (40, 12), (12, 40), (40, 40), (50, 20))
HARD_SIZES = (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 48, 49, 64)
NOT_FINITE = {
    "not_finite": r"linalg.svd: {}The algorithm failed to converge because the input matrix contained non-finite",
    "error": torch.linalg.LinAlgError,
}


def reduced(a, **out):
    return svd(a, full_matrices=False, **out)


LINALG = (
    MatrixOperator("svd", reduced, check, sizes=SIZES, hard_sizes=HARD_SIZES, **NOT_FINITE),
    MatrixOperator("svd, full", svd, check, sizes=SIZES, **NOT_FINITE),
    MatrixOperator(
        "svdvals", svdvals, check_values, sizes=SIZES, hard_sizes=HARD_SIZES, **NOT_FINITE
    ),
)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@dtypes
@pytest.mark.parametrize(
    "shape",
    [
        (1, 9),
        (9, 1),
        (3, 8, 4),
        (5, 6),
        (2, 40, 20),
        (3, 5, 100),
        (33, 34),
        (40, 41),
        (2, 90, 70),
        (2, 2, 48, 9),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_wide", [False, True])
def test_tall_and_wide_matrices(dtype, shape, is_wide):
    a = torch.randn(shape, dtype=dtype)
    a = a.mT.contiguous() if is_wide else a
    for full_matrices in (False, True):
        found = svd(a.to("mps"), full_matrices)
        check(a, *found)
        for ours, theirs in zip(found, svd(a, full_matrices), strict=True):
            assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride())
    check_values(a, svdvals(a.to("mps")))


@pytest.mark.full
@dtypes
def test_very_tall_and_hard_rectangles(dtype):
    tall = torch.randn(4000, 36, dtype=dtype)
    check(tall, *svd(tall.to("mps"), full_matrices=False))
    check(tall.mH, *svd(tall.mH.to("mps"), full_matrices=False))
    for name in HARD:
        a = hard(name, 30, dtype)[:, :20]
        check(a, *svd(a.to("mps")), name)
        check(a.mT, *svd(a.mT.to("mps")), name)


def test_exact_matrices():
    for shape in ((5, 5), (5, 3), (2, 20, 20)):
        u, values, v_adjoint = svd(torch.zeros(shape, device="mps"))
        assert not values.any()
        for x in (u, v_adjoint):
            assert torch.equal(x.cpu(), torch.eye(x.shape[-1]).expand_as(x))
    for n in (3, 8, 30, 64):
        found = svdvals(torch.arange(1.0, n + 1).diag().to("mps"))
        assert torch.equal(found.cpu(), torch.arange(n, 0, -1.0))


def test_small_singular_values_of_bidiagonal_matrices_are_relatively_exact():
    """Where the reduction has nothing to do, as Demmel and Kahan's iterations without shift make them."""
    n = 20
    a = torch.logspace(0, -12, n).diag()
    a += (torch.logspace(0, -12, n)[1:] * torch.rand(n - 1)).diag(1)
    exact = svdvals(a.double())
    off = (svdvals(a.to("mps")).cpu().double() - exact).abs() / exact
    assert off.max() < 100 * 2.0**-24


@dtypes
@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (0, 0), (0, 4, 2), (2, 3, 0)], ids=str)
@pytest.mark.parametrize("full_matrices", [False, True])
def test_empty_matrices(dtype, shape, full_matrices):
    a = torch.empty(shape, dtype=dtype)
    found = svd(a.to("mps"), full_matrices)
    for ours, theirs in zip(found, svd(a, full_matrices), strict=True):
        assert torch.equal(ours.cpu(), theirs)
        assert (ours.stride(), ours.dtype) == (theirs.stride(), theirs.dtype)
    assert svdvals(a.to("mps")).shape == svdvals(a).shape


@dtypes
@pytest.mark.parametrize("shape", [(2, 6, 6), (2, 40, 20), (2, 20, 40)], ids=str)
def test_out_of_the_older_operator(dtype, shape):
    a = torch.randn(shape, dtype=dtype)
    empty = [torch.empty(0, dtype=x.dtype, device="mps") for x in svd(a)]
    u, values, v = torch.svd(a.to("mps"), out=tuple(empty))
    check(a, u, values, v.mH)


def test_only_values():
    a = torch.randn(2, 5, 3)
    for x in (a, a.to("mps")):
        u, values, v_adjoint = torch.ops.aten._linalg_svd(x, False, False)
        assert u.shape == v_adjoint.shape == (0,) and values.shape == (2, 3)


def test_errors_are_those_of_the_cpu():
    a = torch.randn(2, 3, 3)
    assert_refused_as_on_the_cpu(
        (
            lambda move: svd(move(a[0, 0])),
            lambda move: svd(move(a.int())),
            lambda move: svd(move(a), driver="gesvd"),
            lambda move: svd(move(a), out=(move(a), move(a[0].int()), move(a))),
        ),
        RuntimeError,
    )
    assert svd(a[:0].to("mps"), driver="gesvd")[0].shape == (0, 3, 3)
    with pytest.raises(NotImplementedError, match="not implemented for 'Half'"):
        svd(a.to("mps", torch.half))


def _invariant(x, full_matrices):
    """Of what does not depend on the phases of the vectors, nor on how U and V are completed."""
    u, values, v_adjoint = svd(x, full_matrices)
    k = values.shape[-1]
    u, v_adjoint = u[..., :k], v_adjoint[..., :k, :]
    return (u * values.exp()[..., None, :]) @ v_adjoint, (u * values[..., None, :]) @ u.mH


@dtypes
@pytest.mark.parametrize("shape", [(3, 6, 6), (2, 7, 4), (4, 7)], ids=str)
def test_gradients(dtype, shape):
    a = torch.randn(shape, dtype=dtype)
    gradients = []
    for x in (a.to("mps"), wide(a)):
        x.requires_grad_()
        torch.manual_seed(1)
        loss = (svdvals(x) ** 3).sum()
        for result in _invariant(x, full_matrices=shape[-1] == shape[-2]):
            weights = torch.randn(result.shape, dtype=dtype).to(result)
            loss = loss + (result * weights).sum().abs()
        loss.backward()
        gradients.append(x.grad.cpu().to(dtype))
    scale = gradients[1].abs().max()
    torch.testing.assert_close(gradients[0] / scale, gradients[1] / scale, rtol=1e-4, atol=3e-5)


def test_ours_runs_and_gradients_flow_without_a_warning():
    """Of linalg.svd a Mac's torch copies matrices to the CPU, where gradients flow by a warning."""
    x = torch.randn(4, 3, device="mps", requires_grad=True)
    with warnings.catch_warnings(), metalops.debug.standins() as served:
        warnings.simplefilter("error")
        u, s, vh = svd(x, full_matrices=False)
        assert type(s.grad_fn).__name__ == "LinalgSvdBackward0"
        s.sum().backward()
        with torch.no_grad():
            svd(x, out=tuple(torch.empty(0, device="mps") for _ in range(3)))
    assert not {name for name in served if "svd" in name}
    torch.testing.assert_close(x.grad, (u @ vh).detach())
    statuses = {entry.name: entry.status for entry in metalops.coverage()}
    assert statuses["aten::linalg_svd"] == statuses["aten::linalg_svd.U"] == "replaced"
    assert served_by_us(lambda: (svdvals(x), svd(x.mT))) == []


@dtypes
def test_what_torch_makes_of_it(dtype):
    a = torch.randn(3, 9, 6, dtype=dtype)
    a[1] = a[1, :, :1] @ a[1, :1]
    x = a.to("mps")
    assert torch.linalg.matrix_rank(x).tolist() == [6, 1, 6]
    close = {"rtol": 1e-4, "atol": 1e-4}
    for order in (2, -2, "nuc"):
        expected = torch.linalg.matrix_norm(a, order)
        torch.testing.assert_close(torch.linalg.matrix_norm(x, order).cpu(), expected, **close)
    torch.testing.assert_close(torch.linalg.cond(x[0]).cpu(), torch.linalg.cond(a[0]), **close)
    inverse = torch.linalg.pinv(x, rtol=1e-4)
    torch.testing.assert_close((x @ inverse @ x).cpu(), a, **close)
    for u, s, v in (
        torch.svd(x),
        torch.svd_lowrank(x[:1], q=6),
        torch.pca_lowrank(x, center=False),
    ):
        torch.testing.assert_close(((u * s[..., None, :]) @ v.mH).cpu(), a[: len(u)], **close)
    compiled = torch.compile(lambda x: svdvals(x) * 2, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), 2 * svdvals(x))


@pytest.mark.parametrize("shape", [(70, 3, 3), (9, 12, 12), (3, 40, 40), (3, 50, 20)], ids=str)
def test_batches_are_solved_one_by_one(shape):
    """Bit for bit, in batches and alone, each time, and with hopeless matrices among them."""
    a = torch.randn(shape)
    a[1] = 0
    a[1, 0] = 1e-38
    x = a.to("mps")
    together = svd(x)
    for i in (0, len(a) - 1):
        for found, expected in zip(svd(x[i]), together, strict=True):
            assert torch.equal(found, expected[i])


def test_many_matrices():
    a = torch.randn(70000, 2, 2)
    check_values(a, svdvals(a.to("mps")))
