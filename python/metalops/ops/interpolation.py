"""Fused multiply-add and clamped linear interpolation.

Both take three tensors on ``mps``, which broadcast and are promoted as torch.add does it, and have ``out=``, which is
resized and cast to as with torch's own functions, and an in-place form (a trailing underscore) that writes to ``a``.
Dtypes: float32, float16, bfloat16 and the integers, which stay integers; bool and complex tensors, and tensors that are
not on ``mps``, raise NotImplementedError. Derivatives of any order and forward mode are there as for
torch's own functions.
"""

from __future__ import annotations

from torch import Tensor

from ._pointwise import pointwise


@pointwise(integers_stay=True)
def fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """``a b + c``, rounded once: the representable number nearest to the exact value, in half precision too.

    IEEE 754-2019, fusedMultiplyAdd. Exceptions: bfloat16 operands whose product lies outside the range of normal float32
    numbers, and denormal results on devices that flush them. Integers wrap around.
    """


@pointwise(integers_stay=True)
def lerp_clamped(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    """``a + clamp(w, 0, 1) (b - a)``: from ``a`` to ``b`` and never beyond them. Half precision computes in float32.

    The gradient of the clamp is zero outside [0, 1] and passes on its ends, as with torch.clamp.
    """
