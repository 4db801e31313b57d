"""What tests of linear algebra have in common: units of error, wide dtypes, hard matrices, views."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from .hard_matrices import HARD, complex_like

EPSILON = 2.0**-23
WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}

dtypes = pytest.mark.parametrize("dtype", WIDE, ids=str)


def wide(x: Tensor) -> Tensor:
    return x.cpu().to(WIDE[x.dtype])


def norm(x: Tensor) -> Tensor:
    """The 1-norm of each matrix."""
    return x.abs().sum(-2).amax(-1)


def squares_of(x: Tensor, most: int = 64) -> Tensor:
    """The numbers of a tensor as matrices of at most so many rows, for benchmarks."""
    n = min(most, math.isqrt(x.numel()))
    return x.reshape(-1)[: x.numel() // n**2 * n * n].view(-1, n, n)


def hard(name: str, n: int, dtype: torch.dtype) -> Tensor:
    a = HARD[name](n)
    return (complex_like(a) if dtype.is_complex else a).to(dtype)


@contextmanager
def one_thread() -> Iterator[None]:
    """For a reference of torch's CPU: on some processors its LU factorisation of 200 rows and more is wrong with several
    threads ("Parameter 6 was incorrect on entry to SLASWP")."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.mT,
    "every other": lambda x: x[:, :, ::2, ::2],
    "expanded": lambda x: x[:1, :1].expand(2, 3, *x.shape[-2:]),
    "flipped batch": lambda x: x.transpose(0, 1),
    "conjugate": lambda x: x.conj(),
    "adjoint": lambda x: x.mH,
    "negative": torch._neg_view,
    "negative imaginary part": lambda x: x.conj().imag if x.is_complex() else x,
    "from an odd place": lambda x: x[..., 1:, 1:],
    "the last one": lambda x: x[-1, -1],
    "empty batch": lambda x: x[:0],
    "empty": lambda x: x[..., :0, :0],
}
