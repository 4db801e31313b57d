"""The factorisation of symmetric and Hermitian matrices and solving with it: kernels/linalg/ldl.metal."""

import math

import pytest
import torch

from ..aten import assert_refused_as_on_the_cpu
from ..benchmark import Benchmark
from .linear_algebra import EPSILON, dtypes, hard, norm, squares_of, wide
from .operators import MatrixOperator, diagonally_dominant, general

OPINFOS = ("linalg.ldl_factor", "linalg.ldl_factor_ex", "linalg.ldl_solve")

factor, solve = torch.linalg.ldl_factor_ex, torch.linalg.ldl_solve
kinds = pytest.mark.parametrize("hermitian", [False, True])


def symmetric(a, hermitian):
    return a + (a.mH if hermitian else a.mT)


def symmetric_dominant(*shape, dtype):
    return symmetric(diagonally_dominant(*shape, dtype=dtype), False)


def _squares(x, out):
    return factor(symmetric(squares_of(x), False))[0]


BENCHMARKS = (Benchmark.same("ldl_factor", _squares, only_dtype="float32"),)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def product_of_factors(factors, pivots, hermitian):
    """P1 L1 P2 L2 ... D (P1 L1 P2 L2 ...)^H of one matrix, as LAPACK's xSYTRF describes its result."""
    n = len(factors)
    identity = torch.eye(n, dtype=factors.dtype)
    left, middle = identity.clone(), torch.diag(factors.diagonal())
    k = 0
    while k < n:
        last = k + (pivots[k] < 0)
        order = torch.arange(n)
        other = abs(pivots[k]) - 1
        order[[last, other]] = order[[other, last]]
        step = identity.clone()
        step[last + 1 :, k : last + 1] = factors[last + 1 :, k : last + 1]
        if last > k:
            off_diagonal = factors[last, k]
            middle[last, k], middle[k, last] = (
                off_diagonal,
                off_diagonal.conj() if hermitian else off_diagonal,
            )
        left = left @ identity[order].T @ step
        k = last + 1
    return left @ middle @ (left.mH if hermitian else left.mT)


def assert_factors(a, factors, pivots, hermitian):
    factors = wide(factors)
    assert torch.equal(factors, factors.tril())
    rebuilt = product_of_factors(factors, pivots.tolist(), hermitian)
    error = norm(rebuilt - wide(a))
    assert error <= 10 * len(a) * EPSILON * norm(wide(a)) + 1e-37


def _factorisation(hermitian):
    def check(a, factors, pivots, info, message):
        assert_factors(a, factors, pivots, hermitian)

    return MatrixOperator(
        f"ldl_factor_ex, {hermitian=}",
        lambda x, **out: factor(x, hermitian=hermitian, **out),
        check,
        made=lambda *shape, dtype: symmetric(general(*shape, dtype=dtype), hermitian),
        hard_matrix=lambda name, n, dtype: symmetric(hard(name, n, dtype) / 2, hermitian),
        hard_sizes=(2, 3, 5, 17, 40),
    )


def _solved(a, **out):
    factors, pivots, _ = factor(a)
    return solve(factors, pivots, a, **out)


LINALG = (
    _factorisation(False),
    _factorisation(True),
    MatrixOperator("ldl_solve", _solved, made=symmetric_dominant),
)


@pytest.mark.full
@dtypes
@kinds
@pytest.mark.parametrize(
    "n",
    [
        *(1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 64, 65, 70, 130),
        pytest.param(513, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.sampled(4)
def test_sizes_and_solutions(dtype, hermitian, n):
    """With zeros on one diagonal, which need blocks of two rows. Only lower triangles are read."""
    a = symmetric(torch.randn(2, n, n, dtype=dtype), hermitian)
    a[0].diagonal().zero_()
    factors, pivots, info = factor(a.tril().to("mps"), hermitian=hermitian)
    expected = factor(a, hermitian=hermitian)
    assert factors.stride() == expected[0].stride()
    assert torch.equal(pivots.cpu(), expected[1])
    assert torch.equal(info.cpu(), expected[2])
    for i in range(2):
        assert_factors(a[i], factors[i], pivots[i], hermitian)
    if not info.any():
        b = torch.randn(3, 1, n, 5, dtype=dtype)
        x = solve(factors, pivots, b.to("mps"), hermitian=hermitian)
        # torch's CPU operator ends the process where it has to broadcast factors.
        fake = solve(*(y.to("meta") for y in (*expected[:2], b)), hermitian=hermitian)
        assert x.stride() == fake.stride()
        residual = norm(wide(a) @ wide(x) - wide(b))
        assert (residual <= 10 * n * EPSILON * norm(wide(a)) * norm(wide(x))).all()


@kinds
def test_the_imaginary_part_of_a_hermitian_diagonal_is_ignored(hermitian):
    a = symmetric(torch.randn(6, 6, dtype=torch.complex64), hermitian)
    turned = a + 2j * torch.eye(6)
    same = torch.equal(
        factor(a.to("mps"), hermitian=hermitian)[0],
        factor(turned.to("mps"), hermitian=hermitian)[0],
    )
    assert same == hermitian


def test_pivots_of_exact_matrices():
    swap = torch.tensor([[0.0, 1], [1, 0]])
    assert factor(swap.to("mps")).pivots.tolist() == [-2, -2]
    for a in (torch.zeros(4, 4), torch.ones(4, 4), torch.diag(torch.tensor([1.0, 0, 2]))):
        found, expected = factor(a.to("mps")), factor(a)
        assert found.pivots.tolist() == expected.pivots.tolist()
        assert found.info.item() == expected.info.item() > 0
        assert torch.equal(found.LD.cpu(), expected.LD)
    integers = torch.randint(-2, 3, (50, 12, 12)).float()
    integers = integers + integers.mT
    for a in integers:
        same = factor(a.to("mps")).pivots.tolist()[:2] == factor(a).pivots.tolist()[:2]
        assert same  # later ones depend on rounding


@dtypes
@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0])
def test_a_bad_matrix_has_an_info(dtype, bad):
    a = symmetric(torch.randn(4, 40, 40, dtype=dtype), False)
    a[1] = bad
    assert factor(a.to("mps")).info[1].item() > 0


def test_many_columns_are_factored_in_several_launches():
    """A matrix so large that one launch does not take all its columns."""
    a = symmetric(torch.randn(1100, 1100), False)
    factors, pivots, info = factor(a.to("mps"))
    assert info.item() == 0
    b = torch.randn(1100, 2)
    x = solve(factors, pivots, b.to("mps"))
    residual = norm(wide(a) @ wide(x) - wide(b))
    assert residual <= 1100 * EPSILON * norm(wide(a)) * norm(wide(x))


def test_arguments_are_refused():
    a, pivots = torch.eye(3), torch.tensor([1, 2, 3], dtype=torch.int32)
    assert_refused_as_on_the_cpu(
        (
            lambda to: factor(to(a[:2])),
            lambda to: factor(to(a.int())),
            lambda to: solve(to(a), to(pivots[:2]), to(a)),
            lambda to: solve(to(a), to(pivots.float()), to(a)),
            lambda to: solve(to(a), to(pivots), to(a[:2])),
            lambda to: solve(to(a), to(pivots), to(a.to(torch.complex64))),
        ),
        RuntimeError,
    )
    for wrong in ([1, 7, 3], [0, 2, 3], [1, 2, -3]):
        with pytest.raises(RuntimeError, match="is none of ldl_factor's, of a matrix of 3 rows"):
            solve(a.to("mps"), torch.tensor(wrong, dtype=torch.int32, device="mps"), a.to("mps"))
            torch.mps.synchronize()
