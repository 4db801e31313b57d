"""How wrong singular values and vectors are, for the tests of svd."""

from __future__ import annotations

import torch
from torch import Tensor

from .linear_algebra import EPSILON, norm, wide


def _off_unitary(columns: Tensor, size: int) -> Tensor:
    identity = torch.eye(columns.shape[-1], dtype=columns.dtype)
    return norm(columns.mH @ columns - identity) / (size * EPSILON)


def value_errors(a: Tensor, values: Tensor) -> Tensor:
    """In units of eps times the largest one. A step between denormal numbers counts as no error."""
    exact = torch.linalg.svdvals(wide(a))
    largest = exact.amax(-1, keepdim=True).clamp(min=1e-37)
    return (values.cpu().double() - exact).abs() / (EPSILON * largest)


def errors(a: Tensor, u: Tensor, values: Tensor, v_adjoint: Tensor) -> tuple[float, ...]:
    """The largest of a batch: |A - U S V^H| / (size eps |A|), |U^H U - 1| / (size eps), the same of V, and the errors of
    values."""
    size = max(a.shape[-2:])
    k = min(a.shape[-2:])
    u, v_adjoint = wide(u), wide(v_adjoint)
    rebuilt = u[..., :k] * values.cpu().double()[..., None, :] @ v_adjoint[..., :k, :]
    largest = norm(wide(a)).clamp(min=1e-37)
    off = norm(rebuilt - wide(a)) / (size * EPSILON * largest)
    unitary = _off_unitary(u, size), _off_unitary(v_adjoint.mH, size)
    return tuple(x.max().item() for x in (off, *unitary, value_errors(a, values)))


def check_values(a: Tensor, values: Tensor, message: object = None) -> None:
    """In descending order, and where they are."""
    assert (values >= 0).all() and (values.diff() <= 0).all(), message
    off = value_errors(a, values).max().item()
    assert off <= 30 + max(a.shape[-2:]) / 4, (message, off)


def check(a: Tensor, u: Tensor, values: Tensor, v_adjoint: Tensor, message: object = None) -> None:
    """Against the bounds of LAPACK's own tests, much tightened."""
    check_values(a, values, message)
    rebuilt, left, right, _ = errors(a, u, values, v_adjoint)
    assert rebuilt <= 5, (message, rebuilt)
    assert left <= 5, (message, left)
    assert right <= 5, (message, right)
