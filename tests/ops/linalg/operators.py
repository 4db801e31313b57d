"""How to try the operators of linear algebra: what each family's file declares as LINALG, and test_matrices.py gathers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .hard_matrices import HARD
from .linear_algebra import hard


def general(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, dtype=dtype)


def hermitian(*shape: int, dtype: torch.dtype) -> Tensor:
    a = general(*shape, dtype=dtype)
    return a + a.mH


def positive(*shape: int, dtype: torch.dtype, shift: float = 0.1) -> Tensor:
    """Hermitian positive definite matrices, no eigenvalue of which is below `shift`."""
    a = general(*shape, dtype=dtype)
    return a @ a.mH / shape[-1] + shift * torch.eye(shape[-1])


def diagonally_dominant(*shape: int, dtype: torch.dtype) -> Tensor:
    """Matrices far from singular ones, so that solutions are those of the CPU."""
    return general(*shape, dtype=dtype) / shape[-1] + 2 * torch.eye(*shape[-2:])


@dataclass(frozen=True)
class MatrixOperator:
    """An operator of batches of matrices.

    function: takes (*, m, n) and options of its own, such as out=; returns a tensor or several. check: of a matrix, the
    results and a message, asserts what holds for them (A = Q R); without it the results are compared with those of
    torch's CPU. made: random matrices of the kind that it takes. sizes: (m, n) on both sides of the boundaries between
    kernels. hard_names: of the hard matrices that it takes; hard_matrix makes one of a name, n and dtype, and hard_sizes
    are what n is. not_finite: the error's text for a matrix that is not finite, with {} for its place in the batch; None
    if the others of a batch have their results. error: its type. is_contiguous: true if results are, and do not have the
    strides of the CPU's. takes_out: false for a function with no out=. tolerance: of the comparison with the CPU,
    relative to the largest element.
    """

    name: str
    function: Callable[..., Any]
    check: Callable[..., None] | None = None
    made: Callable[..., Tensor] = general
    sizes: Sequence[tuple[int, int]] = ((4, 4), (12, 12), (40, 40))
    hard_names: Sequence[str] = tuple(HARD)
    hard_matrix: Callable[[str, int, torch.dtype], Tensor] = hard
    hard_sizes: Sequence[int] = ()
    not_finite: str | None = None
    error: type[Exception] = RuntimeError
    is_contiguous: bool = False
    takes_out: bool = True
    tolerance: float = 1e-3

    def results(self, a: Tensor, **options) -> tuple[Tensor, ...]:
        found = self.function(a, **options)
        return (found,) if isinstance(found, Tensor) else tuple(found)

    def check_results(self, a: Tensor, results: Sequence[Tensor], message: object) -> None:
        """Checks the results of mps. a: the matrices, on the CPU."""
        if self.check is not None:
            batch = a.shape[:-2]
            matrices = a.reshape(-1, *a.shape[-2:])
            parts = [x.reshape(-1, *x.shape[len(batch) :]) for x in results]
            for i, matrix in enumerate(matrices):
                self.check(matrix, *(x[i] for x in parts), (message, i))
            return
        for ours, expected in zip(results, self.results(a), strict=True):
            scale = 0.0 if expected.dtype == torch.int32 else expected.abs().max().item()
            limits = {"rtol": self.tolerance, "atol": self.tolerance * scale / 10}
            torch.testing.assert_close(
                ours.cpu(), expected, **limits, msg=str((self.name, message))
            )
