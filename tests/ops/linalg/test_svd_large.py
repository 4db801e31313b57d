"""Matrices that are reduced to bidiagonal ones in panels: kernels/linalg/svd_large.metal."""

import pytest
import torch

from ..aten import only_ours
from .linear_algebra import dtypes, hard
from .singular import check, check_values

pytestmark = only_ours("aten::_linalg_svd.U")

HARDEST = (
    *("random", "ones", "rank deficient", "clustered", "cyclic shift", "graded rows", "large"),
    *("denormal", "of two scales", "zero"),
)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def check_each(a, names):
    u, values, v_adjoint = torch.linalg.svd(a.to("mps"))
    without_vectors = torch.linalg.svdvals(a.to("mps"))
    for i, name in enumerate(names):
        check(a[i], u[i], values[i], v_adjoint[i], name)
        check_values(a[i], without_vectors[i], name)


@dtypes
@pytest.mark.parametrize("n", [65, 96, 129])
def test_hard_matrices(n, dtype):
    check_each(torch.stack([hard(name, n, dtype) for name in HARDEST]), HARDEST)


@dtypes
def test_several_slices_of_a_product(dtype):
    """Of 32 columns up to 1024 rows, of 64 behind them."""
    check_each(hard("rank deficient", 252, dtype)[None], ["rank deficient"])


@dtypes
def test_a_matrix_is_the_same_in_every_batch(dtype):
    a = torch.randn(3, 97, 97, dtype=dtype)
    a[1] = 0
    for alone, of_batch in zip(
        torch.linalg.svd(a[2:].to("mps")), torch.linalg.svd(a.to("mps")), strict=True
    ):
        assert torch.equal(alone[0], of_batch[2])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_matrices_that_are_not_finite(bad):
    a = torch.randn(2, 80, 80)
    a[1, 79, 3] = bad
    with pytest.raises(torch.linalg.LinAlgError, match=r"\(Batch element 1\).*non-finite"):
        torch.linalg.svd(a.to("mps"))
