"""Square matrices that algorithms of linear algebra find hard, in float64 on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

DOUBLE = torch.float64


def _random(n: int) -> Tensor:
    return torch.randn(n, n, dtype=DOUBLE)


def _orthogonal(n: int) -> Tensor:
    return torch.linalg.qr(_random(n))[0]


def _with_singular_values(values: Tensor) -> Tensor:
    n = len(values)
    return _orthogonal(n) * values @ _orthogonal(n)


def _with_eigenvalues(values: Tensor) -> Tensor:
    vectors = _orthogonal(len(values))
    return vectors * values @ vectors.T


def _geometric(n: int) -> Tensor:
    return torch.logspace(0, -12, n, dtype=DOUBLE)


def _kahan(n: int) -> Tensor:
    sine, cosine = 0.95, (1 - 0.95**2) ** 0.5
    upper = torch.eye(n, dtype=DOUBLE) - cosine * torch.ones(n, n, dtype=DOUBLE).triu(1)
    return sine ** torch.arange(n, dtype=DOUBLE)[:, None] * upper


def _tridiagonal(diagonal: Tensor, off_diagonal: float = 1.0) -> Tensor:
    ones = torch.full((len(diagonal) - 1,), off_diagonal, dtype=DOUBLE)
    return diagonal.diag() + ones.diag(1) + ones.diag(-1)


def _wilkinson(n: int) -> Tensor:
    return _tridiagonal((torch.arange(n, dtype=DOUBLE) - (n - 1) / 2).abs())


def _glued_wilkinson(n: int) -> Tensor:
    matrix = _tridiagonal((torch.arange(n, dtype=DOUBLE) % 7 - 3).abs())
    for i in range(7, n, 7):
        matrix[i, i - 1] = matrix[i - 1, i] = 1e-6
    return matrix


def _growth(n: int) -> Tensor:
    """Gaussian elimination with partial pivoting doubles its last column at each step."""
    matrix = torch.eye(n, dtype=DOUBLE) - torch.ones(n, n, dtype=DOUBLE).tril(-1)
    matrix[:, -1] = 1
    return matrix


def _frank(n: int) -> Tensor:
    i = torch.arange(n, dtype=DOUBLE)
    return torch.where(i[:, None] <= i + 1, n - torch.maximum(i[:, None], i), 0.0)


def _grcar(n: int) -> Tensor:
    ones = torch.ones(n, n, dtype=DOUBLE)
    return ones.triu() - ones.triu(4) - ones.tril(-1) + ones.tril(-2)


def _jordan(n: int) -> Tensor:
    return 0.5 * torch.eye(n, dtype=DOUBLE) + torch.ones(n, n, dtype=DOUBLE).triu(1).tril(1)


def _clustered(n: int) -> Tensor:
    return _with_eigenvalues(1 + 1e-6 * (torch.arange(n) % 3).double())


def _hilbert(n: int) -> Tensor:
    i = torch.arange(1, n + 1, dtype=DOUBLE)
    return 1 / (i[:, None] + i - 1)


def _cyclic_shift(n: int) -> Tensor:
    return torch.eye(n, dtype=DOUBLE).roll(1, 0)


def _zero_diagonal(n: int) -> Tensor:
    matrix = _random(n) + _random(n).T
    return matrix - matrix.diag().diag()


def _skew(n: int) -> Tensor:
    upper = _random(n).triu(1)
    return upper - upper.T


def _circulant(n: int) -> Tensor:
    row = torch.randn(n, dtype=DOUBLE)
    return torch.stack([row.roll(i) for i in range(n)])


def _graded(n: int) -> Tensor:
    return torch.logspace(0, -10, n, dtype=DOUBLE)[:, None] * _random(n)


HARD: dict[str, Callable[[int], Tensor]] = {
    "random": _random,
    "geometric singular values": lambda n: _with_singular_values(_geometric(n)),
    "geometric eigenvalues": lambda n: _with_eigenvalues(_geometric(n)),
    "graded rows": _graded,
    "graded columns": lambda n: _graded(n).T,
    "Kahan": _kahan,
    "Wilkinson": _wilkinson,
    "glued Wilkinson": _glued_wilkinson,
    "growth": _growth,
    "Frank": _frank,
    "Grcar": _grcar,
    "Jordan block": _jordan,
    "nilpotent shift": lambda n: torch.ones(n, n, dtype=DOUBLE).triu(1).tril(1),
    "clustered": _clustered,
    "identity": lambda n: torch.eye(n, dtype=DOUBLE),
    "zero": lambda n: torch.zeros(n, n, dtype=DOUBLE),
    "ones": lambda n: torch.ones(n, n, dtype=DOUBLE),
    "rank deficient": lambda n: _random(n)[:, : (n + 1) // 2] @ _random(n)[: (n + 1) // 2],
    "large": lambda n: 1e30 * _random(n),
    "small": lambda n: 1e-30 * _random(n),
    "denormal": lambda n: 1e-40 * _random(n),
    "of two scales": lambda n: _random(n) * torch.where(torch.rand(n, n) < 0.5, 1e18, 1e-18),
    "Hilbert": _hilbert,
    "cyclic shift": _cyclic_shift,
    "zero diagonal": _zero_diagonal,
    "skew": _skew,
    "orthogonal": _orthogonal,
    "circulant": _circulant,
    "triangular": lambda n: _random(n).triu(),
}


def complex_like(matrix: Tensor) -> Tensor:
    """With the same absolute values: rows and columns times numbers of the unit circle."""
    n = len(matrix)
    left, right = (torch.polar(torch.ones(n, dtype=DOUBLE), 6.28 * torch.rand(n, dtype=DOUBLE)) for _ in range(2))  # fmt: skip
    return left[:, None] * matrix * right
