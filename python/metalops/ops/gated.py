"""Gated linear units: an activation of one tensor times another one, in one pass.

The ``*_and_mul`` family and ``mul_and_silu`` take one tensor of shape ``[..., 2 d]`` and return ``[..., d]``, computed
from its halves ``a = x[..., :d]`` and ``b = x[..., d:]`` in place, without copies: the output of a linear layer with
twice the features. An odd last dimension, or none, raises RuntimeError. The others take two tensors, which broadcast
and are promoted as with torch.mul; they have an in-place form (a trailing underscore) that writes to ``a``.

Dtypes: float32, float16, bfloat16 (half precision computes in float32 and rounds once) and the integers; unless noted
these are promoted to the default dtype. ``out=`` is resized and cast to as with torch's own functions. Derivatives of
any order and forward mode work as for torch's own functions. Complex tensors and float64 raise NotImplementedError. On
``mps`` and ``cuda`` one kernel computes the result, on the CPU several operators of torch.

Gated linear units are from Dauphin et al., "Language Modeling with Gated Convolutional Networks" (2016); their variants
from Shazeer, "GLU Variants Improve Transformer" (2020).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from ._define.pointwise import Gradient, pointwise
from .activation import (
    gelu_and_derivative,
    gelu_tanh_and_derivative,
    relu_and_derivative,
    silu_and_derivative,
)

_SLOPE = 1.702


def _gradient_of(activation: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Gradient:
    """Returns the gradient of the gate activation(a) b; `activation` returns the value and the derivative."""

    def gradient(grad: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        value, derivative = activation(a)
        return grad * b * derivative, grad * value

    return gradient


def _fatrelu_gradient(
    grad: Tensor, a: Tensor, b: Tensor, threshold: float
) -> tuple[Tensor, Tensor]:
    passes = a > threshold
    return grad * b * passes, grad * torch.where(passes, a, 0)


def _swiglu_clamped_gradient(
    grad: Tensor, a: Tensor, b: Tensor, limit: float
) -> tuple[Tensor, Tensor]:
    gate = torch.clamp(a, max=limit)
    linear = torch.clamp(b, -limit, limit) + 1
    s = torch.sigmoid(_SLOPE * gate)
    derivative = s + _SLOPE * gate * (s * (1 - s))
    inside = (b >= -limit) & (b <= limit)
    return torch.where(a <= limit, grad * linear * derivative, 0), torch.where(
        inside, grad * gate * s, 0
    )


def _second_first(gradient: Gradient) -> Gradient:
    def swapped(grad: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return tuple(reversed(gradient(grad, b, a)))

    return swapped


_silu_gradient = _gradient_of(silu_and_derivative)
_gelu_gradient = _gradient_of(gelu_and_derivative)
_gelu_tanh_gradient = _gradient_of(gelu_tanh_and_derivative)
_relu_gradient = _gradient_of(relu_and_derivative)


@pointwise(gradient=_silu_gradient, halving=True, functor="swiglu")
def silu_and_mul(input: Tensor) -> Tensor:
    """``silu(a) b`` of the halves of ``input``, with ``silu(x) = x sigmoid(x)``."""
    a, b = input.chunk(2, dim=-1)
    return functional.silu(a) * b


@pointwise(gradient=_second_first(_silu_gradient), halving=True, functor="swiglu", swapped=True)
def mul_and_silu(input: Tensor) -> Tensor:
    """``a silu(b)`` of the halves of ``input``, with ``silu(x) = x sigmoid(x)``."""
    a, b = input.chunk(2, dim=-1)
    return a * functional.silu(b)


@pointwise(gradient=_gelu_gradient, halving=True, functor="geglu")
def gelu_and_mul(input: Tensor) -> Tensor:
    """``gelu(a) b`` of the halves of ``input``, with ``gelu(x) = 0.5 x (1 + erf(x / sqrt(2)))``."""
    a, b = input.chunk(2, dim=-1)
    return functional.gelu(a) * b


@pointwise(gradient=_gelu_tanh_gradient, halving=True, functor="geglu_tanh")
def gelu_tanh_and_mul(input: Tensor) -> Tensor:
    """``gelu(a) b`` of the halves of ``input``, with the tanh approximation of GELU: :func:`~metalops.ops.gelu_new`."""
    a, b = input.chunk(2, dim=-1)
    return gelu_tanh_and_derivative(a)[0] * b


@pointwise(gradient=_fatrelu_gradient, halving=True, integers_stay=True, functor="fatreglu")
def fatrelu_and_mul(input: Tensor, threshold: float = 0.0) -> Tensor:
    """``where(a > threshold, a, 0) b`` of the halves of ``input``. Integers stay integers; bool raises
    NotImplementedError.

    FATReLU is from Kurtz et al., "Inducing and Exploiting Activation Sparsity for Fast Inference on Deep Neural
    Networks" (2020). ``threshold`` is rounded to float32 and compared with ``a`` as float32.
    """
    a, b = input.chunk(2, dim=-1)
    return torch.where(a.float() > threshold, a, 0) * b


@pointwise(gradient=_silu_gradient)
def swiglu(a: Tensor, b: Tensor) -> Tensor:
    """``silu(a) b`` with ``silu(x) = x sigmoid(x)``."""
    return functional.silu(a) * b


@pointwise(gradient=_gelu_gradient)
def geglu(a: Tensor, b: Tensor) -> Tensor:
    """``gelu(a) b`` with ``gelu(x) = 0.5 x (1 + erf(x / sqrt(2)))``."""
    return functional.gelu(a) * b


@pointwise(gradient=_relu_gradient, integers_stay=True)
def reglu(a: Tensor, b: Tensor) -> Tensor:
    """``max(a, 0) b``. Integers stay integers and wrap around, as with torch.mul; bool raises NotImplementedError."""
    return torch.relu(a) * b


@pointwise(gradient=_swiglu_clamped_gradient)
def swiglu_clamped(a: Tensor, b: Tensor, limit: float = 7.0) -> Tensor:
    """``(clamp(b, -limit, limit) + 1) g sigmoid(1.702 g)`` with ``g = min(a, limit)``.

    The gate of OpenAI's gpt-oss models (2025), where ``limit`` is 7. The gradient of a clamp is zero outside its limits
    and passes on them.
    """
    gate = torch.clamp(a, max=limit)
    return (torch.clamp(b, -limit, limit) + 1) * (gate * torch.sigmoid(_SLOPE * gate))
