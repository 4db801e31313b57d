"""Factorisations on CUDA tensors by metalops' own kernels, with the results and errors of torch.linalg. There are no
derivatives, no ``out=``, no ``left=False`` and no ``driver=``.

    from metalops.cuda import linalg

    LU, pivots = linalg.lu_factor(A)
    L = linalg.cholesky(A)

The launches are computed by the plan functions of csrc/plans/linalg, which the operators on ``mps`` run too. Matrices are
float32 or complex64, (*, m, n), of any strides.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .._torch import internals
from ..ops._cuda import plan

__all__ = [
    "cholesky",
    "cholesky_ex",
    "eig",
    "eigvals",
    "eigh",
    "eigvalsh",
    "lu_factor",
    "lu_factor_ex",
    "lu_solve",
    "qr",
    "solve",
    "svd",
    "svdvals",
]

_DTYPES = (torch.float32, torch.complex64)
_DEVICE = "cuda"
_NOT_FINITE = -1  # kEigNotFinite of kernels/linalg/eig.h
_MOST_OF_EIG = 64  # kMostOfEigDevice
# Fields of SchurSweeps (kernels/linalg/eig_large.h), by number.
_HIGH, _WINDOWS = 1, 4


class CholeskyEx(NamedTuple):
    L: Tensor
    info: Tensor


class Eigh(NamedTuple):
    eigenvalues: Tensor
    eigenvectors: Tensor


class LuFactorEx(NamedTuple):
    LU: Tensor
    pivots: Tensor
    info: Tensor


class LuFactor(NamedTuple):
    LU: Tensor
    pivots: Tensor


class Eig(NamedTuple):
    eigenvalues: Tensor
    eigenvectors: Tensor


class Qr(NamedTuple):
    Q: Tensor
    R: Tensor


class Svd(NamedTuple):
    U: Tensor
    S: Tensor
    Vh: Tensor


def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> CholeskyEx:
    """Returns L with A = L L^H, or, if `upper`, U with A = U^H U, and info, (*) of int32: zero, or the order of the first
    leading minor that is not positive definite. A: (*, n, n). Only its upper triangle is read if `upper`, else only its
    lower one.

    Raises RuntimeError for tensors that are no square matrices on a GPU and for other dtypes; with check_errors
    torch.linalg.LinAlgError where info is not zero.
    """
    _check("linalg.cholesky_ex", A)
    _check_square("linalg.cholesky_ex", A)
    factors, info = _by_columns(A), A.new_empty(A.shape[:-2], dtype=torch.int32)
    if A.numel() == 0:
        return CholeskyEx(factors, info.zero_())
    plan.run(
        "cholesky",
        A,
        factors=_as_batch(factors),
        infos=info.view(-1),
        a=_as_batch(A),
        upper=upper,
    )
    if check_errors:
        internals.raise_linalg_errors(info, "linalg.cholesky_ex", is_matrix=A.dim() == 2)
    return CholeskyEx(factors, info)


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """Returns the factor of cholesky_ex(). Raises torch.linalg.LinAlgError where A is not positive definite; this waits
    for the GPU."""
    found = cholesky_ex(A, upper=upper)
    internals.raise_linalg_errors(found.info, "linalg.cholesky", is_matrix=A.dim() == 2)
    return found.L


def eig(A: Tensor) -> Eig:
    """Returns the eigenvalues L, (*, n), and eigenvectors V, (*, n, n), of norm 1, with A V = V diag(L), both complex64.
    A: (*, n, n).

    Raises RuntimeError for tensors that are no square matrices on a GPU, for other dtypes and for numbers that are not
    finite, and torch.linalg.LinAlgError where an eigenvalue is not found; this waits for the GPU.
    """
    _check("linalg.eig", A)
    vectors = A.new_empty(A.shape, dtype=torch.complex64).mT
    return Eig(_eigenvalues("linalg.eig", A, vectors), vectors)


def eigvals(A: Tensor) -> Tensor:
    """Returns the eigenvalues of eig(), with its errors."""
    _check("linalg.eigvals", A)
    return _eigenvalues("linalg.eigvals", A, None)


def _eigenvalues(name: str, A: Tensor, vectors: Tensor | None) -> Tensor:
    """Returns the eigenvalues, and writes the eigenvectors."""
    _check_square(name, A)
    values = A.new_empty(A.shape[:-1], dtype=torch.complex64)
    if A.numel() == 0:
        return values
    info = A.new_empty(A.shape[:-2], dtype=torch.int32)
    n = A.shape[-1]
    results = {
        "values": values.view(-1, n),
        "vectors": None if vectors is None else _as_batch(vectors),
    }
    if n <= _MOST_OF_EIG:
        plan.run("eig", A, **results, infos=info.view(-1), a=_as_batch(A))
    else:
        _eigenvalues_of_large(_as_batch(A), info.view(-1), results)
    known = info.cpu()
    if bool((known == _NOT_FINITE).any()):
        raise RuntimeError(f"torch.{name}: input tensor should not contain infs or NaNs.")
    internals.raise_linalg_errors(known, f"torch.{name}", is_matrix=A.dim() == 2)
    return values


def _eigenvalues_of_large(a: Tensor, infos: Tensor, results: dict[str, Tensor | None]) -> None:
    """Sweeps until all eigenvalues are known. a: (batch, n, n)."""
    with_vectors = results["vectors"] is not None
    names = ("h", "scales", "exponents", "sweeps", "transformations", "shifts", "q")
    made = plan.run("eig_large_reduce", a, infos=infos, a=a, with_vectors=with_vectors)
    state = dict(zip(names, made, strict=False))  # without eigenvectors there is no q
    windows = 0
    while True:
        plan.run("eig_large_sweep", a, **state, infos=infos, windows=windows)
        known = state["sweeps"].cpu().view(len(a), -1)
        if bool((known[:, _HIGH] < 0).all()):
            break
        windows = int(known[:, _WINDOWS].max())
    plan.run("eig_large_results", a, **results, **state)


def eigh(A: Tensor, UPLO: str = "L") -> Eigh:
    """Returns the eigenvalues of Hermitian matrices, (*, n), real and ascending, and their eigenvectors as contiguous
    columns, (*, n, n). A: (*, n, n). UPLO: the triangle that is read, "L" or "U".

    Raises RuntimeError for tensors that are no square matrices on a GPU, for other dtypes and for another UPLO;
    torch.linalg.LinAlgError for matrices that are not finite, for which this waits for the GPU.
    """
    _check("linalg.eigh", A)
    vectors = _by_columns(A)
    return Eigh(_real_eigenvalues("linalg.eigh", A, UPLO, vectors), vectors)


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """Returns the eigenvalues of eigh(), and raises what it does."""
    _check("linalg.eigh", A)
    return _real_eigenvalues("linalg.eigh", A, UPLO, None)


def _real_eigenvalues(name: str, A: Tensor, UPLO: str, vectors: Tensor | None) -> Tensor:
    _check_square(name, A)
    if UPLO.upper() not in ("L", "U"):
        raise RuntimeError(f"Expected UPLO argument to be 'L' or 'U', but got {UPLO}")
    values = A.new_empty(A.shape[:-1], dtype=torch.float32)
    if A.numel() == 0:
        return values
    info = A.new_empty(A.shape[:-2], dtype=torch.int32)
    plan.run(
        "eigh",
        A,
        values=values.view(-1, A.shape[-1]),
        vectors=None if vectors is None else _as_batch(vectors),
        infos=info.view(-1),
        a=_as_batch(A),
        is_upper=UPLO.upper() == "U",
    )
    internals.raise_linalg_errors(info, name, is_matrix=A.dim() == 2)
    return values


def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> LuFactorEx:
    """Returns L and U with P L U = A in one matrix, the row interchanges as LAPACK numbers them, (*, min(m, n)) of int32,
    and info, (*) of int32: zero, or the first column without a pivot. A: (*, m, n).

    Raises RuntimeError for tensors that are no matrices on a GPU and for other dtypes; with check_errors also where info
    is not zero.
    """
    name = "linalg.lu_factor_ex"
    _check(name, A)
    steps = min(A.shape[-2:])
    factors = _by_columns(A)
    pivots = A.new_empty([*A.shape[:-2], steps], dtype=torch.int32)
    info = A.new_empty(A.shape[:-2], dtype=torch.int32)
    if A.numel() == 0:
        return LuFactorEx(factors, pivots, info.zero_())
    plan.run(
        "lu_factor",
        A,
        factors=_as_batch(factors),
        pivots=pivots.view(-1, steps),
        infos=info.view(-1),
        a=_as_batch(A),
        is_pivoted=pivot,
    )
    if check_errors:
        internals.raise_linalg_errors(info, name, is_matrix=A.dim() == 2)
    return LuFactorEx(factors, pivots, info)


def lu_factor(A: Tensor, *, pivot: bool = True) -> LuFactor:
    """Returns the factors and interchanges of lu_factor_ex(). Raises RuntimeError where U is singular; this waits for the
    GPU."""
    found = lu_factor_ex(A, pivot=pivot)
    internals.raise_linalg_errors(found.info, "torch.linalg.lu_factor", is_matrix=A.dim() == 2)
    return LuFactor(found.LU, found.pivots)


def lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, adjoint: bool = False) -> Tensor:
    """Returns X with A X = B, or A^H X = B if `adjoint`, from the results of lu_factor(A). LU: (*, n, n). B: (*, n, k).
    Batch dimensions are broadcast. Raises RuntimeError for sizes and dtypes that do not fit."""
    name = "linalg.lu_solve"
    _check(name, LU)
    _check_square(name, LU)
    n = LU.shape[-1]
    if torch.is_grad_enabled() and B.requires_grad:
        raise RuntimeError(
            f"{name}: B requires grad, and there are no derivatives here; see torch.linalg"
        )
    if B.dtype != LU.dtype or B.device != LU.device or B.dim() < 2 or B.shape[-2] != n:
        raise RuntimeError(
            f"{name}: B must be matrices of {n} rows, {LU.dtype} on {LU.device}, but has shape {list(B.shape)}, {B.dtype} on "
            f"{B.device}"
        )
    if pivots.dtype != torch.int32 or pivots.shape != LU.shape[:-1] or pivots.device != LU.device:
        raise RuntimeError(
            f"{name}: pivots must be int32 of shape {list(LU.shape[:-1])} on {LU.device}, but are {pivots.dtype} of shape "
            f"{list(pivots.shape)} on {pivots.device}"
        )
    batch = torch.broadcast_shapes(LU.shape[:-2], B.shape[:-2])
    x = B.new_empty([*batch, *B.shape[-2:]])
    if x.numel() == 0:
        return x
    plan.run(
        "lu_solve",
        x,
        x=_as_batch(x),
        factors=_as_batch((LU.conj() if adjoint else LU).expand(*batch, n, n)),
        pivots=pivots.expand(*batch, n).reshape(-1, n).contiguous(),
        b=_as_batch(B.expand(x.shape)),
        is_transposed=adjoint,
    )
    return x


def qr(A: Tensor, mode: str = "reduced") -> Qr:
    """Returns Q and R with A = Q R, whose columns are contiguous. A: (*, m, n); k = min(m, n). mode: "reduced": Q is
    (*, m, k) and R (*, k, n); "complete": (*, m, m) and (*, m, n); "r": Q is empty and R (*, k, n).

    Raises RuntimeError for tensors that are no matrices on a GPU, for other dtypes and for other modes.
    """
    _check("linalg.qr", A)
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(
            f"qr received unrecognized mode '{mode}' but expected one of 'reduced' (default), 'r', or 'complete'"
        )
    *batch, m, n = A.shape
    k = m if mode == "complete" else min(m, n)
    q = A.new_empty(0) if mode == "r" else A.new_empty([*batch, k, m]).mT
    r = A.new_empty([*batch, n, k]).mT
    plan.run("qr", A, q=None if mode == "r" else _as_batch(q), r=_as_batch(r), a=_as_batch(A))
    return Qr(q, r)


def solve(A: Tensor, B: Tensor) -> Tensor:
    """Returns X with A X = B. A: (*, n, n). B: (*, n, k), or vectors as torch.linalg.solve takes them: (*, n) for A of one
    more dimension. Raises torch.linalg.LinAlgError where A is singular; this waits for the GPU."""
    name = "linalg.solve"
    _check(name, A)
    _check_square(name, A)
    is_vector = B.dim() == 1 or (B.dim() == A.dim() - 1 and B.shape == A.shape[:-1])
    found = lu_factor_ex(A)
    if bool((found.info != 0).any()):
        raise torch.linalg.LinAlgError(
            f"{name}: The solver failed because the input matrix is singular."
        )
    x = lu_solve(found.LU, found.pivots, B.unsqueeze(-1) if is_vector else B)
    return x.squeeze(-1) if is_vector else x


def svd(A: Tensor, full_matrices: bool = True) -> Svd:
    """Returns U, S and Vh with A = U diag(S) Vh; S is (*, k), real and descending. A: (*, m, n); k = min(m, n). U is (*, m, m)
    and Vh (*, n, n) if full_matrices, else (*, m, k) and (*, k, n); their columns are contiguous.

    Raises RuntimeError for tensors that are no matrices on a GPU and for other dtypes; torch.linalg.LinAlgError for
    matrices that are not finite, for which this waits for the GPU.
    """
    _check("linalg.svd", A)
    *batch, m, n = A.shape
    rows, columns = (m, n) if full_matrices else (min(m, n), min(m, n))
    U, Vh = A.new_empty([*batch, rows, m]).mT, A.new_empty([*batch, n, columns]).mT
    if A.numel() == 0:
        for x in (U, Vh):
            x.zero_().diagonal(dim1=-2, dim2=-1).fill_(1)
    return Svd(U, _singular_values(A, _as_batch(U), _as_batch(Vh)), Vh)


def svdvals(A: Tensor) -> Tensor:
    """Returns the singular values of svd(), and raises what it does."""
    _check("linalg.svd", A)
    return _singular_values(A, None, None)


def _singular_values(A: Tensor, U: Tensor | None, Vh: Tensor | None) -> Tensor:
    k = min(A.shape[-2:])
    values = A.new_empty([*A.shape[:-2], k], dtype=torch.float32)
    if A.numel() == 0:
        return values
    info = A.new_empty(A.shape[:-2], dtype=torch.int32)
    plan.run(
        "svd",
        A,
        u=U,
        values=values.view(-1, k),
        v_adjoint=Vh,
        infos=info.view(-1),
        a=_as_batch(A),
    )
    internals.raise_linalg_errors(info, "linalg.svd", is_matrix=A.dim() == 2)
    return values


# ---- arguments -------------------------------------------------------------------------------------


def _check(name: str, A: Tensor) -> None:
    if A.dim() < 2:
        raise RuntimeError(
            f"{name}: The input tensor A must have at least 2 dimensions, but has shape {list(A.shape)}."
        )
    if A.dtype not in _DTYPES:
        raise RuntimeError(f"{name}: A must be float32 or complex64, but is {A.dtype}")
    if torch.is_grad_enabled() and A.requires_grad:
        raise RuntimeError(
            f"{name}: A requires grad, and there are no derivatives here; see torch.linalg"
        )
    if A.device.type != _DEVICE:
        raise RuntimeError(f"{name}: A must be on a CUDA device, but is on {A.device}")


def _check_square(name: str, A: Tensor) -> None:
    if A.shape[-1] != A.shape[-2]:
        raise RuntimeError(
            f"{name}: A must be batches of square matrices, but they are {A.shape[-2]} by {A.shape[-1]} matrices"
        )


def _as_batch(x: Tensor) -> Tensor:
    """Returns (*, m, n) as (batch, m, n), without a copy where the strides allow it."""
    return x.resolve_neg().reshape(math.prod(x.shape[:-2]), *x.shape[-2:])


def _by_columns(like: Tensor) -> Tensor:
    """Returns memory for factors, which torch stores by columns."""
    return like.new_empty(like.mT.shape).mT
