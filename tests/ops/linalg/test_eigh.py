"""Eigenvalues and eigenvectors of Hermitian matrices: kernels/linalg/eigh.metal."""

import math

import pytest
import torch

from ..aten import assert_refused_as_on_the_cpu, only_ours
from ..benchmark import Benchmark
from .linear_algebra import WIDE, dtypes, squares_of
from .operators import MatrixOperator, hermitian
from .spectra import check, check_values, hard_hermitian

pytestmark = only_ours("aten::_linalg_eigh.eigenvalues")

OPINFOS = ("linalg.eigh", "linalg.eigvalsh")

eigh = torch.linalg.eigh
eigvalsh = torch.linalg.eigvalsh


def _squares(function):
    return lambda x, out: function(squares_of(x, most=32))


BENCHMARKS = (
    Benchmark.same("eigh", _squares(eigh), only_dtype="float32"),
    Benchmark.same("eigvalsh", _squares(eigvalsh), only_dtype="float32"),
)


SIZES = ((2, 2), (4, 4), (7, 7), (12, 12), (30, 30), (68, 68))
HARD_SIZES = (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 48, 49, 64, 65)
NOT_FINITE = r"linalg.eigh: {}The algorithm failed to converge because the input matrix is ill.*error code: 1\)"
LINALG = tuple(
    MatrixOperator(
        function.__name__.removeprefix("linalg_"),
        function,
        holds,
        made=hermitian,
        sizes=SIZES,
        hard_matrix=hard_hermitian,
        hard_sizes=HARD_SIZES,
        not_finite=NOT_FINITE,
        error=torch.linalg.LinAlgError,
    )
    for function, holds in ((eigh, check), (eigvalsh, check_values))
)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def batch(shape, dtype):
    return hermitian(*shape, dtype=dtype)


@pytest.mark.sampled(5)
@dtypes
@pytest.mark.parametrize("n", [3, 8, 20, 40, 70])
def test_only_one_triangle_and_real_diagonals_are_read(dtype, n):
    a = batch((2, n, n), dtype)
    nans = torch.full((n, n), math.nan, dtype=dtype)
    for uplo, spoilt in (("L", nans.triu(1)), ("u", nans.tril(-1))):
        stored = a.tril() + spoilt if uplo == "L" else a.triu() + spoilt
        stored = stored.where(stored.isfinite() | spoilt.isnan(), 0)
        if dtype.is_complex:
            stored += 1j * torch.eye(n)
        values, vectors = eigh(stored.to("mps"), UPLO=uplo)
        check(a, values, vectors, uplo)


def test_exact_matrices():
    zeros = torch.zeros(2, 5, 5, device="mps")
    values, vectors = eigh(zeros)
    assert torch.equal(values, zeros[..., 0])
    assert torch.equal(vectors.cpu(), torch.eye(5).expand(2, 5, 5))
    for n in (3, 8, 30, 64, 100):
        values = eigvalsh(torch.arange(n, 0, -1.0).diag().to("mps"))
        assert torch.equal(values.cpu(), torch.arange(1.0, n + 1))


def test_errors_are_those_of_the_cpu():
    a = torch.randn(2, 3, 3)
    assert_refused_as_on_the_cpu(
        (
            lambda move: eigh(move(a[:, :2])),
            lambda move: eigh(move(a[0, 0])),
            lambda move: eigh(move(a), UPLO="X"),
            lambda move: eigh(move(a), out=(move(a[0].int()), move(a))),
        ),
        RuntimeError,
    )
    for dtype, name in ((torch.half, "Half"), (torch.int32, "Int")):
        with pytest.raises(NotImplementedError, match=f"not implemented for '{name}'"):
            eigh(a.to("mps", dtype))


@dtypes
def test_gradients(dtype):
    """Of what does not depend on the phases of the vectors."""
    a = batch((3, 6, 6), dtype)
    weights = torch.randn(3, 6, 6, dtype=dtype)
    gradients = []
    for x, w in ((a.to("mps"), weights.to("mps")), (a.to(WIDE[dtype]), weights.to(WIDE[dtype]))):
        x.requires_grad_()
        values, vectors = eigh(x)
        ((vectors * values.exp()[:, None]) @ vectors.mH * w).sum().abs().backward()
        (torch.linalg.eigvalsh(x) ** 3).sum().backward()
        gradients.append(x.grad.cpu().to(dtype))
    scale = gradients[1].abs().max()
    torch.testing.assert_close(gradients[0] / scale, gradients[1] / scale, rtol=1e-4, atol=2e-5)


@pytest.mark.sampled(2)
@dtypes
def test_what_torch_makes_of_it(dtype):
    a = batch((3, 9, 9), dtype)
    a[1] = a[1, :, :1] @ a[1, :, :1].mH
    x = a.to("mps")
    ranks = torch.linalg.matrix_rank(x, hermitian=True)
    assert ranks.tolist() == [9, 1, 9]
    inverse = torch.linalg.pinv(x, rtol=1e-4, hermitian=True)
    torch.testing.assert_close(x @ inverse @ x, x, rtol=1e-3, atol=1e-3)
    compiled = torch.compile(lambda x: eigvalsh(x) * 2, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), 2 * eigvalsh(x))


@pytest.mark.parametrize("is_general", [False, True])
@pytest.mark.parametrize("largest", [False, True])
def test_lobpcg_finds_the_ends_of_a_spectrum(is_general, largest):
    a = batch((60, 60), torch.float32) / 60 + torch.arange(60.0).diag()
    b = torch.randn(60, 60)
    b = b @ b.T / 60 + torch.eye(60) if is_general else None
    root = torch.linalg.cholesky(b).inverse() if is_general else torch.eye(60)
    exact = torch.linalg.eigvalsh((root @ a @ root.T).double())
    values, vectors = torch.lobpcg(
        a.to("mps"),
        B=b.to("mps") if is_general else None,
        X=torch.randn(60, 4).to("mps"),
        niter=200,
        largest=largest,
    )
    expected = exact.flip(0)[:4] if largest else exact[:4]
    torch.testing.assert_close(values.cpu().double(), expected, rtol=1e-4, atol=1e-3)
    right = vectors.cpu() if b is None else b @ vectors.cpu()
    torch.testing.assert_close(a @ vectors.cpu(), right * values.cpu(), rtol=1e-3, atol=2e-2)
