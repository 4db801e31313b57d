"""Activations of one input.

All take a tensor of any shape and layout and return one of the same shape. Dtypes: float32, float16, bfloat16 (half
precision computes in float32 and rounds once) and the integers; unless noted these are promoted to the default dtype,
as with torch.sigmoid. ``out=`` is resized and cast to as with torch's own functions; the names with a trailing
underscore work in place. Derivatives of any order and forward mode work as for torch's own functions. Complex tensors
and float64 raise NotImplementedError. On ``mps`` and ``cuda`` one kernel computes the result, on the CPU several
operators of torch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._define.pointwise import pointwise

_SCALE = math.sqrt(2 / math.pi)
_CUBIC = 0.044715
_SLOPE = 1.702


def silu_and_derivative(x: Tensor) -> tuple[Tensor, Tensor]:
    s = torch.sigmoid(x)
    return x * s, s + x * (s * (1 - s))


def gelu_and_derivative(x: Tensor) -> tuple[Tensor, Tensor]:
    share = 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))
    density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return x * share, share + x * density


def relu_and_derivative(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.relu(x), torch.where(x <= 0, 0.0, 1.0)


def gelu_tanh_and_derivative(x: Tensor) -> tuple[Tensor, Tensor]:
    t = torch.tanh(_SCALE * x * (1 + _CUBIC * x * x))
    # Where the tanh is saturated, x * x may overflow; its factor is zero there, and the product must stay zero.
    slope = _SCALE * (1 + 3 * _CUBIC * torch.clamp(x * x, max=1e30))
    return 0.5 * x * (1 + t), 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope


def _gelu_gradient(grad: Tensor, x: Tensor) -> tuple[Tensor]:
    return (grad * gelu_tanh_and_derivative(x)[1],)


def _gelu_quick_gradient(grad: Tensor, x: Tensor) -> tuple[Tensor]:
    s = torch.sigmoid(_SLOPE * x)
    return (grad * (s + _SLOPE * x * (s * (1 - s))),)


def _relu_squared_gradient(grad: Tensor, x: Tensor) -> tuple[Tensor]:
    return (grad * (2 * torch.relu(x)),)


def _softcap_gradient(grad: Tensor, x: Tensor, cap: float) -> tuple[Tensor]:
    # 1 - tanh(z)^2 without the difference, which cancels where tanh is close to 1.
    e = torch.exp(-2 * torch.abs(x / cap))
    return (grad * (4 * e / ((1 + e) * (1 + e))),)


@pointwise(gradient=_gelu_gradient)
def gelu_new(input: Tensor) -> Tensor:
    """``0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))``, the tanh approximation of GELU.

    From Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016), as GPT-2 uses it.
    """
    return gelu_tanh_and_derivative(input)[0]


@pointwise(gradient=_gelu_gradient, shares_backward="gelu_new")
def gelu_fast(input: Tensor) -> Tensor:
    """``0.5 x (1 + tanh(sqrt(2/pi) x (1 + 0.044715 x^2)))``: :func:`gelu_new` with its polynomial factored.

    The order of operations is that of Hugging Face's "gelu_fast".
    """
    return gelu_tanh_and_derivative(input)[0]


@pointwise(gradient=_gelu_quick_gradient)
def gelu_quick(input: Tensor) -> Tensor:
    """``x sigmoid(1.702 x)``, the sigmoid approximation of GELU.

    From Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016), as CLIP uses it.
    """
    return input * torch.sigmoid(_SLOPE * input)


@pointwise(gradient=_relu_squared_gradient, integers_stay=True)
def relu_squared(input: Tensor) -> Tensor:
    """``max(x, 0)^2``. Integers stay integers and wrap around, as with torch.square; bool raises NotImplementedError.

    From So et al., "Primer: Searching for Efficient Transformers for Language Modeling" (2021).
    """
    return torch.square(torch.relu(input))


def _check_cap(cap: float) -> None:
    if not math.isfinite(cap) or cap == 0:
        raise ValueError(f"softcap: cap must be a finite number other than 0, but got {cap:g}")


@pointwise(gradient=_softcap_gradient, check=_check_cap)
def softcap(input: Tensor, cap: float) -> Tensor:
    """``cap tanh(x / cap)``: close to ``x`` around zero, and never beyond ``+-cap``.

    From Bello et al., "Neural Combinatorial Optimization with Reinforcement Learning" (2016), as Gemma 2 uses it.
    cap: a finite number other than 0, else ValueError.
    """
    return cap * torch.tanh(input / cap)
