"""The formulas of our operators in plain torch, for the CPU. Exact in float64; not meant to be fast."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor


def _floating(x: Tensor, *partners: Tensor) -> Tensor:
    """``x`` in the floating-point dtype to which it is promoted together with its partners."""
    dtype = torch.result_type(x, partners[0]) if partners else x.dtype
    return x.to(dtype if dtype.is_floating_point else torch.get_default_dtype())


def _common_dtype(*operands: Tensor) -> torch.dtype:
    """To which all operands are promoted at once, as in torch.where: in pairs, ((a, b), c) may differ from (a, (b, c))
    if there are operands without dimensions.
    """
    with_dimensions = [x.dtype for x in operands if x.dim()]
    without = [x.dtype for x in operands if not x.dim()]
    if not with_dimensions or not without:
        return functools.reduce(torch.promote_types, with_dimensions or without)
    return torch.result_type(
        torch.empty(0, dtype=functools.reduce(torch.promote_types, with_dimensions)),
        torch.empty((), dtype=functools.reduce(torch.promote_types, without)),
    )


def _promoted(*operands: Tensor) -> list[Tensor]:
    dtype = _common_dtype(*operands)
    return [x.to(dtype) for x in operands]


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    d = x.shape[-1] // 2
    return x[..., :d], x[..., d:]


def gelu_new(x: Tensor) -> Tensor:
    x = _floating(x)
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_fast(x: Tensor) -> Tensor:
    x = _floating(x)
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x**2)))


def gelu_quick(x: Tensor) -> Tensor:
    x = _floating(x)
    return x * torch.sigmoid(1.702 * x)


def relu_squared(x: Tensor) -> Tensor:
    return torch.square(torch.relu(x))


def softcap(x: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(_floating(x) / cap)


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def _silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def swiglu(a: Tensor, b: Tensor) -> Tensor:
    return _silu(_floating(a, b)) * _floating(b, a)


def geglu(a: Tensor, b: Tensor) -> Tensor:
    return _gelu(_floating(a, b)) * _floating(b, a)


def reglu(a: Tensor, b: Tensor) -> Tensor:
    return torch.relu(a) * b


def swiglu_clamped(a: Tensor, b: Tensor, limit: float = 7.0) -> Tensor:
    gate = torch.clamp(_floating(a, b), max=limit)
    return (torch.clamp(_floating(b, a), -limit, limit) + 1) * (gate * torch.sigmoid(1.702 * gate))


def silu_and_mul(x: Tensor) -> Tensor:
    return swiglu(*_halves(x))


def mul_and_silu(x: Tensor) -> Tensor:
    a, b = _halves(x)
    return swiglu(b, a)


def gelu_and_mul(x: Tensor) -> Tensor:
    return geglu(*_halves(x))


def gelu_tanh_and_mul(x: Tensor) -> Tensor:
    a, b = _halves(x)
    return gelu_new(a) * b


def fatrelu_and_mul(x: Tensor, threshold: float = 0.0) -> Tensor:
    a, b = _halves(x)
    threshold = torch.tensor(threshold, dtype=torch.float32).item()
    return torch.where(a > threshold, a, 0) * b


def fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """In float64, of operands that are float32 or narrower: rounded to odd, so that rounding to the operands' dtype
    gives what one rounding of the exact value gives. In other dtypes only the result's dtype means something.

    Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd" (2008).
    """
    a, b, c = _promoted(a, b, c)
    result = a * b + c
    if result.dtype != torch.float64:
        return result
    product = a * b
    from_c = result - product
    error = (product - (result - from_c)) + (c - from_c)
    bits = result.detach().view(torch.int64)
    step = torch.where((error > 0) == (result > 0), 1, -1)
    adjust = torch.isfinite(error) & (error != 0) & ((bits & 1) == 0) & torch.isfinite(result)
    odd = torch.where(adjust, bits + step, bits).view(torch.float64)
    # The adjustment is of no consequence for the gradient.
    return result + (odd - result).detach() if result.requires_grad else odd


def lerp_clamped(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    a, b, w = _promoted(a, b, w)
    return a + torch.clamp(w, 0, 1) * (b - a)
