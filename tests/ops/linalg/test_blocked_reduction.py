"""Matrices that are reduced in panels, whatever their layout and scale: kernels/linalg/blocked_reduction.metal."""

import pytest
import torch

from ..aten import only_ours
from .linear_algebra import dtypes

N = 70  # three panels, of which the last one is short


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def _views(dtype):
    """Matrices of which neither rows nor columns, or only the columns, are contiguous, and a broadcast one."""
    whole = torch.randn(2, N, 2 * N, dtype=dtype)
    return whole[:, :, ::2], whole[:, :, N:].mT, whole[:1, :, N:].expand(2, N, N)


def _on_device(view):
    """The same view of the same memory."""
    whole = view.as_strided((2 * N * 2 * N,), (1,), 0).to("mps")
    return whole.as_strided(view.shape, view.stride(), view.storage_offset())


@pytest.mark.sampled(5)
@dtypes
@pytest.mark.parametrize("values", ["svdvals", "eigvalsh", "eigvals"])
def test_strides(values, dtype):
    function = getattr(torch.linalg, values)
    for view in _views(dtype):
        assert torch.equal(function(_on_device(view)), function(view.contiguous().to("mps")))


@dtypes
@pytest.mark.parametrize("uplo", ["L", "U"])
def test_one_triangle_is_read(uplo, dtype):
    a = torch.randn(N, N, dtype=dtype)
    a = a + a.mH
    bad = a.clone()
    bad[tuple(torch.triu_indices(N, N, 1) if uplo == "L" else torch.tril_indices(N, N, -1))] = (
        float("nan")
    )
    for layout in (bad, bad.mT.contiguous().mT):
        found = torch.linalg.eigvalsh(layout.to("mps"), UPLO=uplo).cpu()
        torch.testing.assert_close(found, torch.linalg.eigvalsh(a), rtol=0, atol=1e-4)


@pytest.mark.sampled(2)
@only_ours("aten::_linalg_eigh.eigenvalues")
@only_ours("aten::_linalg_svd.U")
@dtypes
@pytest.mark.parametrize("values", ["svdvals", "eigvalsh", "eigvals"])
def test_scales(values, dtype):
    """Each matrix of a batch is divided by a power of two of its own: the results are exact multiples."""
    a = torch.randn(N, N, dtype=dtype)
    exponents = torch.tensor([0.0, 100, -100])
    found = getattr(torch.linalg, values)((a * 2 ** exponents[:, None, None]).to("mps")).cpu()
    for i in range(3):
        assert torch.equal(found[i] / 2 ** exponents[i], found[0])
