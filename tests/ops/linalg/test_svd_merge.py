"""Divide and conquer for the singular vectors of bidiagonal matrices: kernels/linalg/svd_merge.metal."""

import pytest
import torch

from .singular import check, check_values


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def bidiagonal(diagonal, superdiagonal):
    return diagonal.diag() + superdiagonal.diag(1)


N = 200  # regions of 26 columns, of blocks of 16, 8 and 2 columns

MATRICES = {
    "random": lambda: bidiagonal(torch.randn(N), torch.randn(N - 1)),
    "differences": lambda: bidiagonal(torch.ones(N), -torch.ones(N - 1)),
    "nearly equal poles": lambda: bidiagonal(1 + 1e-6 * torch.randn(N), 1e-3 * torch.randn(N - 1)),
    "all put aside": lambda: bidiagonal(torch.randn(N), torch.full((N - 1,), 1e-12)),
    "blocks that are equal": lambda: bidiagonal(torch.arange(N) % 25 / 8, torch.ones(N - 1)),
    "no diagonal": lambda: bidiagonal(torch.zeros(N), torch.ones(N - 1)),
    "a zero in each place": lambda: bidiagonal(
        (torch.arange(N) % 3 > 0).float(), torch.randn(N - 1)
    ),
    "two last columns": lambda: bidiagonal(torch.zeros(N), torch.eye(N - 1)[-1]),
    "graded": lambda: bidiagonal(torch.logspace(0, -30, N), torch.logspace(-1, -30, N - 1)),
    "graded upwards": lambda: bidiagonal(torch.logspace(-30, 0, N), torch.logspace(-30, -1, N - 1)),
    "one large pole": lambda: bidiagonal(
        torch.cat([torch.randn(N - 1) * 1e-6, torch.ones(1)]), 1e-6 * torch.randn(N - 1)
    ),
    "ill conditioned": lambda: bidiagonal(torch.full((N,), 0.5), torch.ones(N - 1)),
}


@pytest.mark.parametrize("name", MATRICES)
def test_bidiagonal_matrices(name):
    a = MATRICES[name]()
    check(a, *torch.linalg.svd(a.to("mps")))
    check_values(a, torch.linalg.svdvals(a.to("mps")))


@pytest.mark.parametrize("n", [66, 95, 96, 127, 128, 257])
def test_sizes_of_regions(n):
    """In batches whose matrices put aside different numbers of poles."""
    a = torch.stack([bidiagonal(torch.randn(n), 10.0**-k * torch.randn(n - 1)) for k in range(4)])
    u, values, v_adjoint = torch.linalg.svd(a.to("mps"))
    for i in range(len(a)):
        check(a[i], u[i], values[i], v_adjoint[i], i)
