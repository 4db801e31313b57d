"""Fused multiply-add and clamped linear interpolation.

Both take three tensors on ``mps``, which broadcast and are promoted as torch.add does it, and have ``out=``, which is
resized and cast to as with torch's own functions, and an in-place form (a trailing underscore) that writes to ``a``.
Dtypes: float32, float16, bfloat16 and the integers, which stay integers; bool and complex tensors, and tensors that are
not on ``mps``, raise NotImplementedError. Both are differentiable once; forward-mode and second derivatives raise
NotImplementedError and RuntimeError.
"""

from __future__ import annotations

from torch import Tensor

from . import fake
from ._call import direct, is_dynamo_compiling, through_torch_ops
from .vmap import register_vmap

__all__ = ["fma", "fma_", "lerp_clamped", "lerp_clamped_"]

_fma = direct("fma")
_fma_ = direct("fma_")
_lerp_clamped = direct("lerp_clamped")
_lerp_clamped_ = direct("lerp_clamped_")


def fma(a: Tensor, b: Tensor, c: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``a b + c``, rounded once: the representable number nearest to the exact value, in half precision too.

    IEEE 754-2019, fusedMultiplyAdd. Exceptions: bfloat16 operands whose product lies outside the range of normal float32
    numbers, and denormal results on devices that flush them. Integers wrap around.
    """
    if is_dynamo_compiling():
        return through_torch_ops("fma", a, b, c, out=out)
    return _fma(a, b, c, out)


def fma_(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """:func:`fma`, written to ``a``."""
    if is_dynamo_compiling():
        return through_torch_ops("fma_", a, b, c)
    return _fma_(a, b, c)


def lerp_clamped(a: Tensor, b: Tensor, w: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``a + clamp(w, 0, 1) (b - a)``: from ``a`` to ``b`` and never beyond them. Half precision computes in float32.

    The gradient of the clamp is zero outside [0, 1] and passes on its ends, as with torch.clamp.
    """
    if is_dynamo_compiling():
        return through_torch_ops("lerp_clamped", a, b, w, out=out)
    return _lerp_clamped(a, b, w, out)


def lerp_clamped_(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    """:func:`lerp_clamped`, written to ``a``."""
    if is_dynamo_compiling():
        return through_torch_ops("lerp_clamped_", a, b, w)
    return _lerp_clamped_(a, b, w)


fake.register_pointwise("metalops::fma", tensors=3, integers_to_float=False)
fake.register_backward("metalops::fma_backward", tensors=3, gradients=2)
register_vmap("metalops::fma", tensors=3)
register_vmap("metalops::fma_backward", tensors=3)
fake.register_pointwise("metalops::lerp_clamped", tensors=3, integers_to_float=False)
fake.register_backward("metalops::lerp_clamped_backward", tensors=4, gradients=3)
register_vmap("metalops::lerp_clamped", tensors=3)
register_vmap("metalops::lerp_clamped_backward", tensors=4)
