"""Eigenvalues and eigenvectors of matrices that are more than a simdgroup's work: kernels/linalg/eig_large.metal."""

import pytest
import torch
from metalops import debug

from .eigenpairs import check, check_all, check_pairs
from .hard_matrices import HARD
from .linear_algebra import dtypes, hard

eig = torch.linalg.eig
eigvals = torch.linalg.eigvals


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize(("dtype", "n"), [(torch.float32, 65), (torch.complex64, 65)], ids=str)
def test_hard_matrices(dtype, n):
    """All in one batch, whose sweeps end at different times."""
    check_all(torch.stack([hard(name, n, dtype) for name in HARD]), list(HARD))


@dtypes
@pytest.mark.parametrize("name", ["random", "Grcar", "cyclic shift", "ones"])
def test_several_windows(dtype, name):
    a = hard(name, 118, dtype)
    values, vectors = eig(a.to("mps"))
    check(a, values, vectors)
    if not dtype.is_complex:
        check_pairs(values, vectors)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 75), (torch.complex64, 240)], ids=str)
def test_what_has_been_found_is_not_swept_over(dtype, most, tmp_path):
    """Without early deflation it takes 114 windows, and 328 of complex numbers."""
    a = torch.randn(200, 200, dtype=dtype)
    with debug.capture(tmp_path / "a.trace", contents=1) as trace:
        values, vectors = eig(a.to("mps"))
    check(a, values, vectors)
    windows = [x for x in trace.launches if x.kernel.startswith("eig_large_schur_chase")]
    assert 0 < len(windows) <= most


def test_vectors_of_long_jordan_chains_do_not_overflow():
    """Each step of back substitution divides by a rounding error."""
    a = torch.ones(100, 100).triu(1).tril(1) * 0.5 + torch.ones(100, 100).triu(7).tril(7)
    values, vectors = eig(a.to("mps"))
    assert vectors.isfinite().all()
    check(a, values, vectors)


@pytest.mark.full
@dtypes
def test_gradients(dtype):
    a = torch.randn(66, 66, dtype=dtype, device="mps", requires_grad=True)
    values = eigvals(a)
    (values**2).sum().abs().backward()
    # The sum of squares is the trace of the square.
    exact = a.detach().clone().requires_grad_()
    (exact @ exact).diagonal().sum().abs().backward()
    torch.testing.assert_close(a.grad, exact.grad, rtol=1e-2, atol=1e-2)


def test_each_time_bit_for_bit_the_same():
    a = torch.randn(3, 66, 66, device="mps")
    together = eig(a)
    for found, expected in zip(eig(a), together, strict=True):
        assert torch.equal(found, expected)
    values, vectors = eig(a[2])
    check(a[2], values, vectors)
    torch.testing.assert_close(values.real.sort()[0], together[0][2].real.sort()[0])
