"""Eigenvalues and eigenvectors of general matrices: kernels/linalg/eig.metal."""

import math

import pytest
import torch

from ..aten import assert_refused_as_on_the_cpu
from ..benchmark import Benchmark
from .eigenpairs import check, check_all, check_pairs, check_values
from .hard_matrices import HARD
from .linear_algebra import EPSILON, WIDE, dtypes, hard, squares_of
from .operators import MatrixOperator

OPINFOS = ("linalg.eig", "linalg.eigvals")

eig = torch.linalg.eig
eigvals = torch.linalg.eigvals


def _squares(function):
    return lambda x, out: function(squares_of(x, most=32))


BENCHMARKS = (
    Benchmark.same("eig", _squares(eig), only_dtype="float32"),
    Benchmark.same("eigvals", _squares(eigvals), only_dtype="float32"),
)


def check_one(a, values, vectors, message):
    check(a, values, vectors, message)
    if not a.is_complex():
        check_pairs(values, vectors, message)


NOT_FINITE = "torch.linalg.{}: input tensor should not contain infs or NaNs."
LINALG = tuple(
    MatrixOperator(
        name,
        function,
        holds,
        sizes=((2, 2), (4, 4), (7, 7), (12, 12), (30, 30)),
        hard_sizes=(1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 40),
        not_finite=NOT_FINITE.format(name),
    )
    for name, function, holds in (("eig", eig, check_one), ("eigvals", eigvals, check_values))
)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


# Each size has kernels of its own, or shares those of the next larger one.
MORE = ((torch.float32, 56), (torch.float32, 57), (torch.complex64, 41))


@pytest.mark.parametrize(
    ("dtype", "n"),
    [
        *((torch.float32, n) for n in (41, 64)),
        (torch.complex64, 64),
        *(pytest.param(*case, marks=pytest.mark.nightly) for case in MORE),
    ],
    ids=str,
)
def test_larger_matrices(dtype, n):
    """In threadgroup memory, and in device memory where there is no room."""
    check_all(torch.stack([hard(name, n, dtype) for name in HARD]), list(HARD))


@pytest.mark.nightly
@dtypes
def test_companions_of_roots_of_one(dtype):
    """Without shifts, or with those of symmetric matrices, their iterations never end."""
    for n in (2, 3, 4, 7, 8, 24):
        a = torch.eye(n, dtype=dtype).roll(1, 0)
        found = torch.view_as_real(eigvals(a.to("mps"))).cpu().double()
        angles = torch.arange(n, dtype=torch.float64) * 2 * math.pi / n
        exact = torch.stack([angles.cos(), angles.sin()], -1)
        assert torch.cdist(found, exact).amin(0).max() <= 10 * n * EPSILON


@pytest.mark.sampled(2)
@dtypes
def test_badly_scaled_matrices_are_balanced(dtype):
    """Eigenvalues of D A / D are those of A, to almost all digits, though it has elements of 1e-8 to 1e8."""
    for n in (3, 8, 20):
        a = torch.randn(n, n, dtype=dtype)
        d = 2.0 ** torch.randint(-13, 14, (n,))
        found = eigvals((d[:, None] * a / d).to("mps")).cpu()
        exact = torch.linalg.eigvals(a.to(WIDE[dtype]))
        distances = (found.to(exact.dtype)[:, None] - exact).abs()
        assert distances.amin(1).max() <= 2e-4 * exact.abs().max()


@pytest.mark.sampled(2)
@dtypes
def test_exact_matrices(dtype):
    for n in (1, 3, 8, 20):
        zeros = torch.zeros(2, n, n, dtype=dtype, device="mps")
        values, vectors = eig(zeros)
        assert torch.equal(values, torch.zeros(2, n, dtype=torch.complex64, device="mps"))
        assert torch.equal(vectors.cpu(), torch.eye(n, dtype=torch.complex64).expand(2, n, n))
        # Triangular in some order of rows and columns: eigenvalues are elements of the diagonal.
        order = torch.randperm(n)
        triangle = torch.randn(n, n, dtype=dtype).tril()[order][:, order]
        found = eigvals(triangle.to("mps")).cpu()
        expected = triangle.diagonal().to(torch.complex64)
        pairs = torch.view_as_real(found)[:, None] == torch.view_as_real(expected)
        assert (pairs.all(-1).sum(0) == 1).all()


def test_errors_are_those_of_the_cpu():
    a = torch.randn(2, 3, 3)
    c = torch.empty(2, 3, 3, dtype=torch.complex64)
    assert_refused_as_on_the_cpu(
        (
            lambda move: eig(move(a[:, :2])),
            lambda move: eig(move(a[0, 0])),
            lambda move: eig(move(a.int())),
            lambda move: eigvals(move(a[:, :2])),
            lambda move: eigvals(move(a), out=move(a[0])),
            lambda move: eig(move(a), out=(move(a[0]), move(c))),
            lambda move: eig(move(a), out=(move(c[0]), move(a))),
        ),
        RuntimeError,
    )
    with pytest.raises(NotImplementedError, match="not implemented for 'Half'"):
        eig(a.to("mps", torch.half))


@pytest.mark.sampled(2)
@dtypes
def test_gradients(dtype):
    """Of what does not depend on the phases of the vectors."""
    a = torch.randn(3, 6, 6, dtype=dtype)
    weights = torch.rand(3, 6, 6)
    gradients = []
    for x, w in ((a.to("mps"), weights.to("mps")), (a.to(WIDE[dtype]), weights.double())):
        x.requires_grad_()
        values, vectors = eig(x)
        # In an order that both devices share.
        order = values.abs().sub(values.imag, alpha=1e-3).argsort(-1)
        vectors = vectors.gather(-1, order[:, None].expand_as(vectors))
        (vectors.abs().square() * w).sum().backward()
        (eigvals(x) ** 3).sum().abs().backward()
        gradients.append(x.grad.cpu().to(dtype))
    scale = gradients[1].abs().max()
    torch.testing.assert_close(gradients[0] / scale, gradients[1] / scale, rtol=1e-3, atol=1e-4)


@pytest.mark.nightly
@dtypes
def test_compiled(dtype):
    a = torch.randn(3, 9, 9, dtype=dtype, device="mps")
    compiled = torch.compile(lambda x: eigvals(x) * 2, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(a), 2 * eigvals(a))
    compiled = torch.compile(lambda x: eig(x)[1] * 2, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(a), 2 * eig(a)[1])
