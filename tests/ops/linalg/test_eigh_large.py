"""Hermitian matrices that are reduced in panels: kernels/linalg/eigh_large.metal."""

import pytest
import torch

from .spectra import check, check_values, hard_hermitian

HARDEST = ("random", "ones", "glued Wilkinson", "clustered", "cyclic shift", "graded rows", "large")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def solve(a):
    values, vectors = torch.linalg.eigh(a.to("mps"))
    check_values(a, torch.linalg.eigvalsh(a.to("mps")))
    return values, vectors


@pytest.mark.parametrize("n", [96, 97, 128, 129, 252])
def test_boundaries_of_panels(n):
    a = torch.stack([hard_hermitian(name, n, torch.float32) for name in HARDEST])
    values, vectors = solve(a)
    for i, name in enumerate(HARDEST):
        check(a[i], values[i], vectors[i], name)


@pytest.mark.parametrize("n", [95, 128, 161])
def test_complex_matrices(n):
    a = torch.stack([hard_hermitian(name, n, torch.complex64) for name in HARDEST])
    values, vectors = solve(a)
    for i, name in enumerate(HARDEST):
        check(a[i], values[i], vectors[i], name)


def test_several_launches_of_sweeps():
    """Of 65536 rotations each."""
    a = hard_hermitian("random", 513, torch.float32)
    check(a, *solve(a))


@pytest.mark.full
def test_diagonals_too_long_for_threadgroup_memory():
    """Blocks of two rows, which take no sweeps, only rotations."""
    n = 2050
    a = torch.zeros(n, n)
    numbers = torch.randn(n)
    a.diagonal().copy_(numbers)
    a.diagonal(1)[::2] = 1
    values = torch.linalg.eigvalsh(a.to("mps"), UPLO="U")
    x, y = numbers.double().view(-1, 2).unbind(-1)
    root = ((x - y) ** 2 / 4 + 1).sqrt()
    exact = torch.cat([(x + y) / 2 - root, (x + y) / 2 + root]).sort()[0]
    torch.testing.assert_close(values.cpu().double(), exact, rtol=0, atol=1e-5)
