"""Gated linear units: an activation of one tensor times another one, in one pass.

The ``*_and_mul`` family and ``mul_and_silu`` take one tensor of shape ``[..., 2 d]`` and return ``[..., d]``, computed from
its halves ``a = x[..., :d]`` and ``b = x[..., d:]`` where they are, without copies: what a linear layer with twice the
features gives. An odd last dimension, or none, raises RuntimeError. The others take two tensors, which broadcast
and are promoted as torch.mul does it; they have an in-place form (a trailing underscore) that writes to ``a``.

Dtypes: float32, float16, bfloat16 (half precision computes in float32 and rounds once) and the integers; where nothing
else is said these are promoted to the default dtype. ``out=`` is resized and cast to as with torch's own functions. All
are differentiable once; forward-mode and second derivatives raise NotImplementedError and RuntimeError. Complex tensors
and tensors that are not on ``mps`` raise NotImplementedError.

Gated linear units are from Dauphin et al., "Language Modeling with Gated Convolutional Networks" (2016); their variants
from Shazeer, "GLU Variants Improve Transformer" (2020).
"""

from __future__ import annotations

from torch import Tensor

from . import fake
from ._overloads import overloads

__all__ = [
    "fatrelu_and_mul",
    "geglu",
    "geglu_",
    "gelu_and_mul",
    "gelu_tanh_and_mul",
    "mul_and_silu",
    "reglu",
    "reglu_",
    "silu_and_mul",
    "swiglu",
    "swiglu_",
    "swiglu_clamped",
    "swiglu_clamped_",
]

_silu_and_mul, _silu_and_mul_out = overloads("silu_and_mul", inplace=False)
_gelu_and_mul, _gelu_and_mul_out = overloads("gelu_and_mul", inplace=False)
_gelu_tanh_and_mul, _gelu_tanh_and_mul_out = overloads("gelu_tanh_and_mul", inplace=False)
_mul_and_silu, _mul_and_silu_out = overloads("mul_and_silu", inplace=False)
_fatrelu_and_mul, _fatrelu_and_mul_out = overloads("fatrelu_and_mul", inplace=False)
_swiglu, _swiglu_out, _swiglu_ = overloads("swiglu")
_geglu, _geglu_out, _geglu_ = overloads("geglu")
_reglu, _reglu_out, _reglu_ = overloads("reglu")
_swiglu_clamped, _swiglu_clamped_out, _swiglu_clamped_ = overloads("swiglu_clamped")


def silu_and_mul(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``silu(a) b`` of the halves of ``input``, with ``silu(x) = x sigmoid(x)``."""
    return _silu_and_mul(input) if out is None else _silu_and_mul_out(input, out=out)


def mul_and_silu(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``a silu(b)`` of the halves of ``input``, with ``silu(x) = x sigmoid(x)``."""
    return _mul_and_silu(input) if out is None else _mul_and_silu_out(input, out=out)


def gelu_and_mul(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``gelu(a) b`` of the halves of ``input``, with ``gelu(x) = 0.5 x (1 + erf(x / sqrt(2)))``."""
    return _gelu_and_mul(input) if out is None else _gelu_and_mul_out(input, out=out)


def gelu_tanh_and_mul(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``gelu(a) b`` of the halves of ``input``, with the tanh approximation of GELU: :func:`~metalops.ops.gelu_new`."""
    return _gelu_tanh_and_mul(input) if out is None else _gelu_tanh_and_mul_out(input, out=out)


def fatrelu_and_mul(input: Tensor, threshold: float = 0.0, *, out: Tensor | None = None) -> Tensor:
    """``where(a > threshold, a, 0) b`` of the halves of ``input``. Integers stay integers; bool raises
    NotImplementedError.

    FATReLU is from Kurtz et al., "Inducing and Exploiting Activation Sparsity for Fast Inference on Deep Neural
    Networks" (2020). ``threshold`` is rounded to float32 and compared with ``a`` as float32.
    """
    if out is None:
        return _fatrelu_and_mul(input, threshold)
    return _fatrelu_and_mul_out(input, threshold, out=out)


def swiglu(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``silu(a) b`` with ``silu(x) = x sigmoid(x)``."""
    return _swiglu(a, b) if out is None else _swiglu_out(a, b, out=out)


def swiglu_(a: Tensor, b: Tensor) -> Tensor:
    """:func:`swiglu`, written to ``a``."""
    return _swiglu_(a, b)


def geglu(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``gelu(a) b`` with ``gelu(x) = 0.5 x (1 + erf(x / sqrt(2)))``."""
    return _geglu(a, b) if out is None else _geglu_out(a, b, out=out)


def geglu_(a: Tensor, b: Tensor) -> Tensor:
    """:func:`geglu`, written to ``a``."""
    return _geglu_(a, b)


def reglu(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``max(a, 0) b``. Integers stay integers and wrap around, as with torch.mul; bool raises NotImplementedError."""
    return _reglu(a, b) if out is None else _reglu_out(a, b, out=out)


def reglu_(a: Tensor, b: Tensor) -> Tensor:
    """:func:`reglu`, written to ``a``."""
    return _reglu_(a, b)


def swiglu_clamped(
    a: Tensor, b: Tensor, limit: float = 7.0, *, out: Tensor | None = None
) -> Tensor:
    """``(clamp(b, -limit, limit) + 1) g sigmoid(1.702 g)`` with ``g = min(a, limit)``.

    The gate of OpenAI's gpt-oss models (2025), where ``limit`` is 7. The gradient of a clamp is zero outside its limits
    and passes on them.
    """
    if out is None:
        return _swiglu_clamped(a, b, limit)
    return _swiglu_clamped_out(a, b, limit, out=out)


def swiglu_clamped_(a: Tensor, b: Tensor, limit: float = 7.0) -> Tensor:
    """:func:`swiglu_clamped`, written to ``a``."""
    return _swiglu_clamped_(a, b, limit)


for _name in ("silu_and_mul", "mul_and_silu", "gelu_and_mul", "gelu_tanh_and_mul"):
    fake.register_halving(f"metalops::{_name}")
fake.register_halving("metalops::fatrelu_and_mul", integers_to_float=False)
for _name in ("swiglu", "geglu", "reglu", "swiglu_clamped"):
    fake.register_pointwise(f"metalops::{_name}", tensors=2, integers_to_float=_name != "reglu")
    fake.register_backward(f"metalops::{_name}_backward", tensors=3, gradients=2)
