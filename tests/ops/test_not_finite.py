"""Factorisations of matrices with an infinite number or a NaN, wherever that is: what reports its success has a result, and
what iterates raises.
"""

import itertools
import math

import pytest
import torch

from .aten import skip_unless_ours

# Of each kernel: a thread for a matrix, some lanes, a threadgroup, blocks.
SIZES = (1, 2, 3, 4, 7, 12, 16, 17, 33, 64, 130)
VALUES = (math.inf, -math.inf, math.nan)

sizes = pytest.mark.parametrize("n", SIZES)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])


def places(n: int) -> list[tuple[int, int]]:
    ends = {0, n // 2, n - 1}
    return sorted(itertools.product(ends, ends))


def spoilt(n: int, dtype) -> tuple[list[tuple[int, int]], torch.Tensor]:
    """A positive definite matrix with one of the values at each place; these places."""
    torch.manual_seed(n)
    a = torch.randn(n, n, dtype=dtype)
    a = a @ a.mH + n * torch.eye(n)
    found, matrices = [], []
    for place, value in itertools.product(places(n), VALUES):
        found.append(place)
        matrices.append(a.clone())
        matrices[-1][place] = value
    return found, torch.stack(matrices).to("mps")


@sizes
@dtypes
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky_names_the_minor_that_is_not_finite(n, dtype, upper):
    where, a = spoilt(n, dtype)
    factors, infos = torch.linalg.cholesky_ex(a, upper=upper)
    is_read = [(row <= column) if upper else (row >= column) for row, column in where]
    expected = [max(place) + 1 if read else 0 for place, read in zip(where, is_read, strict=True)]
    assert infos.tolist() == expected
    assert factors[infos == 0].isfinite().all()
    if infos.any():
        with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
            torch.linalg.cholesky(a, upper=upper)


@sizes
@dtypes
@pytest.mark.parametrize("hermitian", [False, True])
def test_ldl_fails_unless_its_blocks_are_finite(n, dtype, hermitian):
    where, a = spoilt(n, dtype)
    factors, _, infos = torch.linalg.ldl_factor_ex(a, hermitian=hermitian)
    is_read = torch.tensor([row >= column for row, column in where], device="mps")
    assert torch.equal(infos != 0, is_read)
    assert factors[infos == 0].isfinite().all()
    assert (infos <= n).all()


def first_zero(factors: torch.Tensor) -> list[int]:
    """As LAPACK counts: the first pivot that is zero, from 1."""
    zeros = (factors.diagonal(dim1=-2, dim2=-1) == 0).tolist()
    return [row.index(True) + 1 if True in row else 0 for row in zeros]


@sizes
@dtypes
def test_lu_names_the_first_pivot_that_is_zero(n, dtype):
    """Infinite pivots and NaNs are none to LAPACK."""
    _, a = spoilt(n, dtype)
    factors, _, infos = torch.linalg.lu_factor_ex(a)
    assert infos.tolist() == first_zero(factors)
    assert torch.equal(torch.linalg.inv_ex(a).info, infos)
    assert torch.equal(torch.linalg.solve_ex(a, a[..., :1].nan_to_num()).info, infos)


RAISE = {
    "eig": torch.linalg.eig,
    "eigvals": torch.linalg.eigvals,
    "eigh": torch.linalg.eigh,
    "eigvalsh": torch.linalg.eigvalsh,
    "svd": torch.linalg.svd,
    "svdvals": torch.linalg.svdvals,
    "pinv": torch.linalg.pinv,
    "matrix_rank": torch.linalg.matrix_rank,
}
SPOIL = {
    "qr": torch.linalg.qr,
    "lu": torch.linalg.lu,
    "det": torch.linalg.det,
    "slogdet": torch.linalg.slogdet,
}


@pytest.mark.parametrize("name", RAISE)
@dtypes
def test_what_iterates_raises(name, dtype):
    if name.startswith("eigh"):
        skip_unless_ours("aten::_linalg_eigh.eigenvalues")
    for n in (1, 2, 5, 33):
        where, a = spoilt(n, dtype)
        for (row, column), matrix in zip(where, a, strict=True):
            if row < column and name in ("eigh", "eigvalsh"):
                continue  # not read
            with pytest.raises(RuntimeError, match="infs or NaNs|failed to converge"):
                RAISE[name](matrix)


@pytest.mark.parametrize("name", SPOIL)
@dtypes
def test_the_others_show_it_in_their_results(name, dtype):
    for n in (1, 2, 5, 33):
        for matrix in spoilt(n, dtype)[1]:
            results = SPOIL[name](matrix)
            results = [results] if isinstance(results, torch.Tensor) else results
            assert not all(result.isfinite().all() for result in results)
