"""Hermitian matrices and how wrong their eigenvalues and eigenvectors are, for the tests of eigh."""

from __future__ import annotations

import torch
from torch import Tensor

from .hard_matrices import HARD
from .linear_algebra import EPSILON, WIDE, norm


def hard_hermitian(name: str, n: int, dtype: torch.dtype) -> Tensor:
    """The Hermitian part of a hard matrix; rows and columns of a complex one are turned."""
    a = HARD[name](n)
    a = (a + a.T) / 2
    if dtype.is_complex:
        turns = torch.polar(torch.ones(n, dtype=a.dtype), 6.28 * torch.rand(n, dtype=a.dtype))
        a = turns[:, None] * a * turns.conj()
    return a.to(dtype)


def errors(a: Tensor, values: Tensor, vectors: Tensor) -> tuple[float, float, float]:
    """The largest of a batch: |A V - V L| / (n eps |A|), |V^H V - 1| / (n eps), and that of a value in units of
    eps times the largest one. A step between denormal numbers counts as no error of values."""
    n = a.shape[-1]
    dtype = WIDE[a.dtype]
    a, vectors, values = a.to(dtype), vectors.cpu().to(dtype), values.cpu().double()
    size = norm(a).clamp(min=1e-37)
    rebuilt = norm(a @ vectors - vectors * values[..., None, :]) / (n * EPSILON * size)
    orthogonal = norm(vectors.mH @ vectors - torch.eye(n, dtype=dtype)) / (n * EPSILON)
    exact = torch.linalg.eigvalsh(a)
    largest = exact.abs().amax(-1, keepdim=True).clamp(min=1e-37)
    off = (values - exact).abs() / (EPSILON * largest)
    return rebuilt.max().item(), orthogonal.max().item(), off.max().item()


def check_values(a: Tensor, values: Tensor, message: object = None) -> None:
    """Where they are computed without vectors."""
    exact = torch.linalg.eigvalsh(a.to(WIDE[a.dtype]))
    bound = (30 + a.shape[-1] / 4) * EPSILON * exact.abs().amax(-1, keepdim=True).clamp(min=1e-37)
    assert (values.diff() >= 0).all(), message
    assert ((values.cpu().double() - exact).abs() <= bound).all(), message


def check(a: Tensor, values: Tensor, vectors: Tensor, message: object = None) -> None:
    """Against the bounds of LAPACK's own tests, much tightened."""
    rebuilt, orthogonal, off = errors(a, values, vectors)
    assert (values.diff() >= 0).all(), message
    assert rebuilt <= 5, (message, rebuilt)
    assert orthogonal <= 5, (message, orthogonal)
    assert off <= 30 + a.shape[-1] / 4, (message, off)
