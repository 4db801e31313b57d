"""metalops.cuda.linalg on a GPU.

This needs a GPU and nothing that is compiled: in a source tree,
`PYTHONPATH=python pytest --noconftest tests/cuda/test_linalg.py`.
"""

import pytest
import torch
from metalops.cuda import linalg

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no NVIDIA GPU, or torch has no CUDA"
)
DTYPES = (torch.float32, torch.complex64)
EPSILON = 2.0**-23


def matrices(*sizes, dtype, seed=0):
    torch.manual_seed(seed)
    return torch.randn(sizes, dtype=dtype, device="cuda")


def wide(x):
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def error(difference, a):
    """In units of n eps and the matrix's norm."""
    norm = torch.linalg.matrix_norm(a, 1).amax().item()
    return torch.linalg.matrix_norm(difference, 1).amax().item() / (norm * a.shape[-1] * EPSILON)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [(5, 4, 4), (16, 16), (3, 50, 20), (20, 300), (2, 257, 257), (1024, 1024)], ids=str)  # fmt: skip
def test_lu(size, dtype):
    a = matrices(*size, dtype=dtype)
    factors, pivots, info = linalg.lu_factor_ex(a)
    assert not info.any()
    p, lower, upper = torch.lu_unpack(wide(factors), pivots)
    assert error(p @ lower @ upper - wide(a), wide(a)) < 5


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [(5, 4, 4), (8, 8), (3, 16, 16), (2, 3, 32, 32), (60, 60), (3, 100, 100), (300, 300)], ids=str)  # fmt: skip
def test_eig(size, dtype):
    a = matrices(*size, dtype=dtype)
    values, vectors = linalg.eig(a)
    assert values.shape == a.shape[:-1] and values.is_contiguous()
    assert vectors.shape == a.shape and vectors.mT.is_contiguous()
    of_a = a.to(torch.complex128)
    assert error(of_a @ wide(vectors) - wide(vectors) * wide(values)[..., None, :], of_a) < 20
    torch.testing.assert_close(linalg.eigvals(a).sum(-1), values.sum(-1), atol=1e-2, rtol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("size", [(5, 4, 4), (8, 8), (3, 16, 16), (2, 3, 32, 32), (60, 60), (3, 100, 100), (300, 300)], ids=str)  # fmt: skip
def test_eigh(size, upper, dtype):
    a = matrices(*size, dtype=dtype)
    a = a + a.mH
    values, vectors = linalg.eigh(a.triu() if upper else a.tril(), "U" if upper else "L")
    exact = torch.linalg.eigvalsh(wide(a))
    largest = exact.abs().amax()
    assert (values.double() - exact).abs().amax() <= (30 + a.shape[-1] / 4) * EPSILON * largest
    assert error(wide(a) @ wide(vectors) - wide(vectors) * values.double()[..., None, :], wide(a)) < 5  # fmt: skip
    identity = torch.eye(a.shape[-1], device="cuda", dtype=wide(a).dtype)
    assert error(wide(vectors).mH @ wide(vectors) - identity, identity) < 5
    close = {"atol": 1e-4 * largest.item(), "rtol": 0}
    torch.testing.assert_close(linalg.eigvalsh(a), values, **close)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("size", [(5, 4, 4), (8, 8), (3, 16, 16), (60, 60), (9, 20, 7), (3, 20, 50), (100, 100), (300, 200)], ids=str)  # fmt: skip
def test_svd(size, full, dtype):
    a = matrices(*size, dtype=dtype)
    u, values, v_adjoint = linalg.svd(a, full)
    expected = torch.linalg.svd(a, full)
    assert [x.shape for x in (u, values, v_adjoint)] == [x.shape for x in expected]
    exact = torch.linalg.svdvals(wide(a))
    bound = (30 + max(a.shape[-2:]) / 4) * EPSILON * exact.amax()
    assert (values.double() - exact).abs().amax() <= bound
    k = values.shape[-1]
    rebuilt = wide(u)[..., :k] * values.double()[..., None, :] @ wide(v_adjoint)[..., :k, :]
    assert error(rebuilt - wide(a), wide(a)) < 5
    for columns in (wide(u), wide(v_adjoint).mH):
        identity = torch.eye(columns.shape[-1], device="cuda", dtype=columns.dtype)
        assert error(columns.mH @ columns - identity, identity) < 5 * max(a.shape[-2:]) / k
    torch.testing.assert_close(linalg.svdvals(a), values, atol=1e-4 * exact.amax().item(), rtol=0)


@pytest.mark.parametrize("n", [5, 20, 60, 100])
def test_a_matrix_that_is_not_finite_has_no_eigenvalues(n):
    a = matrices(2, n, n, dtype=torch.float32)
    a[1, 2, 3] = float("inf")
    with pytest.raises(RuntimeError, match="should not contain infs or NaNs"):
        linalg.eig(a)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("n", [1, 7, 16, 40, 200, 1024])
def test_cholesky(n, upper, dtype):
    a = matrices(2, n, n, dtype=dtype)
    a = a @ a.mH / n + torch.eye(n, device="cuda")
    factor = wide(linalg.cholesky(a, upper=upper))
    product = factor.mH @ factor if upper else factor @ factor.mH
    assert error(product - wide(a), wide(a)) < 5


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [(5, 4, 4), (9, 20, 7), (32, 32), (3, 50, 20), (20, 300), (2, 700, 257), (1024, 1024)], ids=str)  # fmt: skip
def test_qr(size, dtype):
    a = matrices(*size, dtype=dtype)
    for mode in ("reduced", "complete"):
        q, r = linalg.qr(a, mode)
        expected = torch.linalg.qr(a, mode)
        assert [(x.shape, x.stride()) for x in (q, r)] == [(x.shape, x.stride()) for x in expected]
        assert torch.equal(r, r.triu())
        identity = torch.eye(q.shape[-1], device="cuda", dtype=wide(q).dtype)
        assert error(wide(q) @ wide(r) - wide(a), wide(a)) < 5
        assert error(wide(q).mH @ wide(q) - identity, identity) < 5
    assert torch.equal(linalg.qr(a, "r").R, linalg.qr(a).R)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("n", [5, 60, 300])
def test_solutions_of_transposed_views(n, adjoint, dtype):
    a = matrices(2, n, n, dtype=dtype).mT + n * torch.eye(n, device="cuda")
    b = matrices(2, 3, n, dtype=dtype).mT
    x = linalg.lu_solve(*linalg.lu_factor(a), b, adjoint=adjoint)
    expected = torch.linalg.solve(wide(a.mH if adjoint else a), wide(b))
    torch.testing.assert_close(wide(x), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(linalg.solve(a, b), torch.linalg.solve(a, b), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("n", [5, 60])
def test_matrices_of_b_share_factors(n):
    a = matrices(n, n, dtype=torch.float32) + n * torch.eye(n, device="cuda")
    b = matrices(3, n, 2, dtype=torch.float32, seed=1)
    expected = torch.linalg.solve(wide(a), wide(b))
    torch.testing.assert_close(wide(linalg.solve(a, b)), expected, atol=1e-4, rtol=1e-4)


def test_there_are_no_derivatives():
    a = torch.eye(40, device="cuda", requires_grad=True)
    with pytest.raises(RuntimeError, match="derivative"):
        linalg.cholesky(a)


def test_matrices_without_elements_and_without_factors():
    assert linalg.lu_factor(torch.ones(0, 3, 3, device="cuda")).pivots.shape == (0, 3)
    assert linalg.cholesky(torch.ones(2, 0, 0, device="cuda")).shape == (2, 0, 0)
    q = linalg.qr(torch.ones(2, 40, 0, device="cuda"), "complete").Q
    assert torch.equal(q, torch.eye(40, device="cuda").expand(2, 40, 40))
    with pytest.raises(torch.linalg.LinAlgError, match="minor of order 1 "):
        linalg.cholesky(torch.zeros(40, 40, device="cuda"))
    with pytest.raises(RuntimeError, match="is zero"):
        linalg.lu_factor(torch.zeros(40, 40, device="cuda"))
