"""Fused multiply-add and clamped linear interpolation.

Both take three tensors, which broadcast and are promoted as with torch.add, and have ``out=``, which is resized and
cast to as with torch's own functions, and an in-place form (a trailing underscore) that writes to ``a``. Dtypes:
float32, float16, bfloat16 and the integers, which stay integers; bool and complex tensors and float64 raise
NotImplementedError. Derivatives of any order and forward mode work as for torch's own functions. On ``mps`` and
``cuda`` one kernel computes the result, on the CPU several operators of torch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._define.pointwise import pointwise


def _fma_gradient(grad: Tensor, a: Tensor, b: Tensor, *c: Tensor) -> tuple[Tensor, ...]:
    """Returns the gradients; that of c is grad itself."""
    return grad * b, grad * a, *([grad] if c else [])


def _lerp_gradient(grad: Tensor, a: Tensor, b: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    weight = torch.clamp(w, 0, 1)
    inside = (w >= 0) & (w <= 1)
    return grad * (1 - weight), grad * weight, torch.where(inside, grad * (b - a), 0)


def _sum_to_odd(product: Tensor, c: Tensor) -> Tensor:
    """Returns ``product + c``, in float64 or float32, rounded to odd: rounding it to a narrower type gives the
    correctly rounded sum, where rounding the nearest number would round twice (Boldo and Melquiond, "Emulation of a FMA
    and correctly rounded sums: proved algorithms using rounding to odd", 2008). The error of the sum is exact by
    Knuth's two-sum."""
    sum = product + c
    from_c = sum - product
    error = (product - (sum - from_c)) + (c - from_c)
    bits = sum.view(torch.int64 if sum.dtype == torch.float64 else torch.int32)
    is_rounded = torch.isfinite(error) & torch.isfinite(sum) & (error != 0) & (bits & 1 == 0)
    step = torch.where((error > 0) == (sum > 0), 1, -1).to(bits.dtype)
    return torch.where(is_rounded, bits + step, bits).view(sum.dtype)


@pointwise(gradient=_fma_gradient, integers_stay=True, rounds=True)
def fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """``a b + c``, rounded once: the representable number nearest to the exact value, in half precision too.

    IEEE 754-2019, fusedMultiplyAdd. Exceptions: bfloat16 operands whose product lies outside the range of normal float32
    numbers, and denormal results on devices that flush them. Integers wrap around.
    """
    if not a.dtype.is_floating_point:
        return a * b + c
    wide = torch.float64 if a.dtype == torch.float32 else torch.float32
    return _sum_to_odd(a.to(wide) * b.to(wide), c.to(wide)).to(a.dtype)


@pointwise(gradient=_lerp_gradient, integers_stay=True)
def lerp_clamped(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    """``a + clamp(w, 0, 1) (b - a)``: from ``a`` to ``b`` and never beyond them. Half precision computes in float32.

    The gradient of the clamp is zero outside [0, 1] and passes on its ends, as with torch.clamp.
    """
    return a + torch.clamp(w, 0, 1) * (b - a)
