"""What eigenvalues of matrices of any size begin with, scaling, balancing and reduction: kernels/linalg/hessenberg.metal."""

import math

import pytest
import torch

from .eigenpairs import check
from .linear_algebra import EPSILON, VIEWS, WIDE, dtypes

eig = torch.linalg.eig
eigvals = torch.linalg.eigvals


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@dtypes
def test_badly_scaled_matrices_are_balanced(dtype):
    """Eigenvalues of D A / D are those of A, to almost all digits, though it has elements of 1e-8 to 1e8."""
    n = 70
    a = torch.randn(n, n, dtype=dtype)
    d = 2.0 ** torch.randint(-13, 14, (n,))
    found = eigvals((d[:, None] * a / d).to("mps")).cpu()
    exact = torch.linalg.eigvals(a.to(WIDE[dtype]))
    distances = (found.to(exact.dtype)[:, None] - exact).abs()
    assert distances.amin(1).max() <= 1e-3 * exact.abs().max()


@dtypes
def test_what_balancing_would_spoil_is_not_balanced(dtype):
    """A row of rounding errors, below which are large elements: scaling these down would lose them."""
    n = 66
    a = torch.randn(n, n, dtype=dtype)
    a[:7] *= 1e-18
    check(a, *eig(a.to("mps")))


@dtypes
def test_matrices_of_any_scale_and_of_few_columns_that_matter(dtype):
    """Scales of 1e-40 to 1e30; reflectors of zeros and of a single element, in every place of a panel."""
    n = 68
    a = torch.randn(4, n, n, dtype=dtype)
    a[0] *= 1e30
    a[1] *= 1e-40
    a[2] = a[2].triu()
    a[3] = torch.eye(n, dtype=dtype).roll(1, 0) + 3 * torch.eye(n).roll(40, 1)
    values, vectors = eig(a.to("mps"))
    for i in range(4):
        check(a[i], values[i], vectors[i], i)
    pairs = torch.view_as_real(values[2].cpu())[:, None] == torch.view_as_real(
        a[2].diagonal().to(torch.complex64)
    )
    assert pairs.all(-1).any(1).all()


@dtypes
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_an_error(dtype, bad):
    a = torch.randn(2, 70, 70, dtype=dtype)
    a[1, 69, 3] = bad
    message = "torch.linalg.eig: input tensor should not contain infs or NaNs."
    with pytest.raises(RuntimeError, match=message):
        eig(a.to("mps"))


@pytest.mark.sampled(2)
@pytest.mark.full
@dtypes
def test_every_layout(dtype):
    a = torch.randn(1, 2, 132, 132, dtype=dtype)[..., :66, :66]
    for name, view in VIEWS.items():
        values, vectors = eig(view(a.to("mps")))
        expected = view(a).resolve_conj().resolve_neg()
        assert vectors.shape == expected.shape and vectors.mT.is_contiguous(), name
        if expected.numel() > 0 and expected.shape[-1] == 66:
            check(
                expected.flatten(0, -3)[-1] if expected.dim() > 2 else expected,
                values.flatten(0, -2)[-1] if values.dim() > 1 else values,
                vectors.flatten(0, -3)[-1] if vectors.dim() > 2 else vectors,
                name,
            )


def test_traces_and_norms_are_kept():
    """To rounding errors, over several panels: the sum of eigenvalues and, of a normal matrix, of their squares."""
    n = 150
    a = torch.linalg.qr(torch.randn(n, n))[0]
    values = eigvals(a.to("mps")).cpu().to(torch.complex128)
    assert (values.abs() - 1).abs().max() <= 20 * n * EPSILON
    assert (values.sum() - a.double().trace()).abs() <= 20 * n * EPSILON
