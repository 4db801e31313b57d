"""Divide and conquer for tridiagonal matrices: kernels/linalg/eigh_merge.metal."""

import pytest
import torch

from ..aten import only_ours
from .spectra import check

pytestmark = only_ours("aten::_linalg_eigh.eigenvalues")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def tridiagonal(diagonal, off_diagonal):
    return diagonal.diag() + off_diagonal.diag(1) + off_diagonal.diag(-1)


N = 199  # eight leaves of 25 rows, the last padded; each of blocks of 16, 8 and one that is left over

MATRICES = {
    "random": lambda: tridiagonal(torch.randn(N), torch.randn(N - 1)),
    "Laplace": lambda: tridiagonal(torch.full((N,), 2.0), -torch.ones(N - 1)),
    "nearly equal poles": lambda: tridiagonal(1 + 1e-6 * torch.randn(N), 1e-3 * torch.randn(N - 1)),
    "all put aside": lambda: tridiagonal(torch.randn(N), torch.full((N - 1,), 1e-12)),
    "blocks that are equal": lambda: tridiagonal(torch.arange(N) % 32 / 8, torch.ones(N - 1)),
    "no diagonal": lambda: tridiagonal(torch.zeros(N), torch.ones(N - 1)),
    "graded": lambda: tridiagonal(torch.logspace(0, -30, N), torch.logspace(-1, -30, N - 1)),
    "graded upwards": lambda: tridiagonal(
        torch.logspace(-30, 0, N), torch.logspace(-30, -1, N - 1)
    ),
    "one large pole": lambda: tridiagonal(
        torch.cat([torch.randn(N - 1) * 1e-6, torch.ones(1)]), 1e-6 * torch.randn(N - 1)
    ),
    "small": lambda: 1e-30 * tridiagonal(torch.randn(N), torch.randn(N - 1)),
}


@pytest.mark.parametrize("name", MATRICES)
def test_tridiagonal_matrices(name):
    a = MATRICES[name]()
    values, vectors = torch.linalg.eigh(a.to("mps"))
    check(a, values, vectors)
    assert torch.equal(torch.linalg.eigvalsh(a.to("mps")), values)


@pytest.mark.parametrize("n", [66, 95, 96, 97, 127, 160, 257])
def test_blocks_left_over(n):
    """In batches whose matrices put aside different numbers of poles."""
    a = torch.stack([tridiagonal(torch.randn(n), 10.0**-k * torch.randn(n - 1)) for k in range(4)])
    values, vectors = torch.linalg.eigh(a.to("mps"))
    for i in range(len(a)):
        check(a[i], values[i], vectors[i], i)
