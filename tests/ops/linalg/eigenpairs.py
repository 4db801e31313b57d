"""How wrong eigenvalues and eigenvectors of general matrices are, for the tests of eig."""

from __future__ import annotations

import torch
from torch import Tensor

from .linear_algebra import EPSILON, norm


def check(a: Tensor, values: Tensor, vectors: Tensor, message: object = None) -> None:
    """Of one matrix, against the bounds of LAPACK's own tests, tightened: |A V - V L| <= 20 n eps |A|, norms of 1, largest
    elements that are real, the trace; of real matrices, pairs of conjugates side by side and the rest real."""
    n = a.shape[-1]
    a, values, vectors = (x.cpu().to(torch.complex128) for x in (a, values, vectors))
    unit = n * EPSILON * norm(a).clamp(min=1e-37)
    assert norm(a @ vectors - vectors * values) <= 20 * unit, message
    assert (values.sum() - a.diagonal().sum()).abs() <= 20 * unit, message
    assert ((vectors.norm(dim=0) - 1).abs() <= 10 * EPSILON).all(), message
    sizes = vectors.abs()
    is_largest = sizes >= (1 - 4 * EPSILON) * sizes.amax(0)
    assert (is_largest & (vectors.imag == 0)).any(0).all(), message


def check_pairs(values: Tensor, vectors: Tensor, message: object = None) -> None:
    """Of a real matrix."""
    values, vectors = values.cpu(), vectors.cpu()
    first = values.imag > 0
    second = values.imag < 0
    assert not first[-1] and torch.equal(first[:-1], second[1:]) and not second[0], message
    assert torch.equal(values[second], values[first].conj()), message
    assert torch.equal(vectors[:, second], vectors[:, first].conj()), message
    assert (vectors[:, values.imag == 0].imag == 0).all(), message


def check_all(a: Tensor, message: object = None) -> None:
    """What mps finds of a batch of matrices."""
    values, vectors = torch.linalg.eig(a.to("mps"))
    alone = torch.linalg.eigvals(a.to("mps"))
    for i in range(len(a)):
        check(a[i], values[i], vectors[i], (message, i))
        check_values(a[i], alone[i], (message, i))
        if not a.is_complex():
            check_pairs(values[i], vectors[i], (message, i))


def check_values(a: Tensor, values: Tensor, message: object = None) -> None:
    """That up to ten of them are those of matrices next to `a`: the least singular value of a - value is at most 20 n eps |a|."""
    n = a.shape[-1]
    a, values = a.cpu().to(torch.complex128), values.cpu().to(torch.complex128)
    some = values[:: max(1, n // 10)]
    shifted = a - some[:, None, None] * torch.eye(n, dtype=a.dtype)
    unit = n * EPSILON * norm(a).clamp(min=1e-37)
    assert (torch.linalg.svdvals(shifted)[:, -1] <= 20 * unit).all(), message
    assert (values.sum() - a.diagonal().sum()).abs() <= 20 * unit, message
