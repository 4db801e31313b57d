"""What the tests of attention share: the definition, in float64 on the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import metalops
import pytest
import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Absolute errors of results and of gradients for inputs from a normal distribution.
FORWARD = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
BACKWARD = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 8e-2}


BODIES = ("GPU's tensor", "tensor", "simdgroup")


@contextlib.contextmanager
def products_of(body: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels of attention with one of BODIES: products of the tensors of a simdgroup, where there are such, of those of a
    threadgroup, or of simdgroups' matrices."""
    products = body.removeprefix("GPU's ")
    monkeypatch.setenv("METALOPS_MATMUL", products)
    if products == body:
        yield
        return
    if not metalops._is_software:
        pytest.skip("a Mac has a GPU, for which the others are")
    from metalops import _host

    before = _host.set_elementwise_flavour("gpu", "gpu")
    try:
        yield
    finally:
        _host.set_elementwise_flavour(*before)


class Exact(NamedTuple):
    out: Tensor
    lse: Tensor


def exact(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    bottom_right: bool = False,
    window: tuple[int, int] = (-1, -1),
    scale: float | None = None,
    slopes: Tensor | None = None,
) -> Exact:
    """Of (..., heads, rows, columns), keys and values with as many heads or a divisor of that. slopes: (heads,)."""
    query, key, value = (x.cpu().double() for x in (query, key, value))
    if query.dim() > 2 and key.dim() > 2 and 1 < key.shape[-3] < query.shape[-3]:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = scale * query @ key.mT
    rows, columns = scores.shape[-2:]
    place = torch.arange(columns) - torch.arange(rows)[:, None]
    if bottom_right:
        place = place - (columns - rows)
    if slopes is not None:
        scores = scores - slopes.cpu().double()[:, None, None] * place.abs()
    left, right = window
    right = 0 if is_causal else right
    hidden = torch.zeros_like(place, dtype=torch.bool)
    if right >= 0:
        hidden |= place > right
    if left >= 0:
        hidden |= place < -left
    if mask is not None and mask.dtype == torch.bool:
        hidden = hidden | ~mask.cpu()
    elif mask is not None:
        scores = scores + mask.cpu().double()
    scores = scores.masked_fill(hidden, -torch.inf)
    lse = scores.logsumexp(-1)
    sees_any = lse.isfinite()[..., None]
    weights = torch.where(sees_any, scores, 0.0).softmax(-1) * sees_any
    return Exact(weights @ value, lse)


def assert_near(
    actual: Tensor,
    expected: Tensor,
    limits: dict[torch.dtype, float],
    dtype: torch.dtype | None = None,
) -> None:
    """limits: absolute errors by dtype, relative to the largest expected value if that is above 1. dtype: of actual, unless
    what it comes from is narrower.
    """
    assert actual.shape == expected.shape
    if expected.numel() == 0:
        return
    finite = expected[expected.isfinite()].abs()
    largest = max(1.0, finite.max().item() if finite.numel() else 1.0)
    torch.testing.assert_close(
        actual.cpu().double(),
        expected.double(),
        rtol=0,
        atol=limits[dtype or actual.dtype] * largest,
    )
