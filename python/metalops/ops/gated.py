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
from ._call import direct, is_dynamo_compiling, through_torch_ops
from .vmap import register_vmap

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

_silu_and_mul = direct("silu_and_mul")
_gelu_and_mul = direct("gelu_and_mul")
_gelu_tanh_and_mul = direct("gelu_tanh_and_mul")
_mul_and_silu = direct("mul_and_silu")
_fatrelu_and_mul = direct("fatrelu_and_mul")
_swiglu = direct("swiglu")
_swiglu_ = direct("swiglu_")
_geglu = direct("geglu")
_geglu_ = direct("geglu_")
_reglu = direct("reglu")
_reglu_ = direct("reglu_")
_swiglu_clamped = direct("swiglu_clamped")
_swiglu_clamped_ = direct("swiglu_clamped_")


def silu_and_mul(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``silu(a) b`` of the halves of ``input``, with ``silu(x) = x sigmoid(x)``."""
    if is_dynamo_compiling():
        return through_torch_ops("silu_and_mul", input, out=out)
    return _silu_and_mul(input, out)


def mul_and_silu(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``a silu(b)`` of the halves of ``input``, with ``silu(x) = x sigmoid(x)``."""
    if is_dynamo_compiling():
        return through_torch_ops("mul_and_silu", input, out=out)
    return _mul_and_silu(input, out)


def gelu_and_mul(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``gelu(a) b`` of the halves of ``input``, with ``gelu(x) = 0.5 x (1 + erf(x / sqrt(2)))``."""
    if is_dynamo_compiling():
        return through_torch_ops("gelu_and_mul", input, out=out)
    return _gelu_and_mul(input, out)


def gelu_tanh_and_mul(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``gelu(a) b`` of the halves of ``input``, with the tanh approximation of GELU: :func:`~metalops.ops.gelu_new`."""
    if is_dynamo_compiling():
        return through_torch_ops("gelu_tanh_and_mul", input, out=out)
    return _gelu_tanh_and_mul(input, out)


def fatrelu_and_mul(input: Tensor, threshold: float = 0.0, *, out: Tensor | None = None) -> Tensor:
    """``where(a > threshold, a, 0) b`` of the halves of ``input``. Integers stay integers; bool raises
    NotImplementedError.

    FATReLU is from Kurtz et al., "Inducing and Exploiting Activation Sparsity for Fast Inference on Deep Neural
    Networks" (2020). ``threshold`` is rounded to float32 and compared with ``a`` as float32.
    """
    if is_dynamo_compiling():
        return through_torch_ops("fatrelu_and_mul", input, threshold, out=out)
    return _fatrelu_and_mul(input, threshold, out)


def swiglu(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``silu(a) b`` with ``silu(x) = x sigmoid(x)``."""
    if is_dynamo_compiling():
        return through_torch_ops("swiglu", a, b, out=out)
    return _swiglu(a, b, out)


def swiglu_(a: Tensor, b: Tensor) -> Tensor:
    """:func:`swiglu`, written to ``a``."""
    if is_dynamo_compiling():
        return through_torch_ops("swiglu_", a, b)
    return _swiglu_(a, b)


def geglu(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``gelu(a) b`` with ``gelu(x) = 0.5 x (1 + erf(x / sqrt(2)))``."""
    if is_dynamo_compiling():
        return through_torch_ops("geglu", a, b, out=out)
    return _geglu(a, b, out)


def geglu_(a: Tensor, b: Tensor) -> Tensor:
    """:func:`geglu`, written to ``a``."""
    if is_dynamo_compiling():
        return through_torch_ops("geglu_", a, b)
    return _geglu_(a, b)


def reglu(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``max(a, 0) b``. Integers stay integers and wrap around, as with torch.mul; bool raises NotImplementedError."""
    if is_dynamo_compiling():
        return through_torch_ops("reglu", a, b, out=out)
    return _reglu(a, b, out)


def reglu_(a: Tensor, b: Tensor) -> Tensor:
    """:func:`reglu`, written to ``a``."""
    if is_dynamo_compiling():
        return through_torch_ops("reglu_", a, b)
    return _reglu_(a, b)


def swiglu_clamped(
    a: Tensor, b: Tensor, limit: float = 7.0, *, out: Tensor | None = None
) -> Tensor:
    """``(clamp(b, -limit, limit) + 1) g sigmoid(1.702 g)`` with ``g = min(a, limit)``.

    The gate of OpenAI's gpt-oss models (2025), where ``limit`` is 7. The gradient of a clamp is zero outside its limits
    and passes on them.
    """
    if is_dynamo_compiling():
        return through_torch_ops("swiglu_clamped", a, b, limit, out=out)
    return _swiglu_clamped(a, b, limit, out)


def swiglu_clamped_(a: Tensor, b: Tensor, limit: float = 7.0) -> Tensor:
    """:func:`swiglu_clamped`, written to ``a``."""
    if is_dynamo_compiling():
        return through_torch_ops("swiglu_clamped_", a, b, limit)
    return _swiglu_clamped_(a, b, limit)


for _name in (
    "silu_and_mul",
    "mul_and_silu",
    "gelu_and_mul",
    "gelu_tanh_and_mul",
    "fatrelu_and_mul",
):
    fake.register_halving(f"metalops::{_name}", integers_to_float=_name != "fatrelu_and_mul")
    register_vmap(f"metalops::{_name}", tensors=1, needs_dimension=True)
    register_vmap(f"metalops::{_name}_backward", tensors=2, needs_dimension=True)
for _name in ("swiglu", "geglu", "reglu", "swiglu_clamped"):
    fake.register_pointwise(f"metalops::{_name}", tensors=2, integers_to_float=_name != "reglu")
    fake.register_backward(f"metalops::{_name}_backward", tensors=3, gradients=2)
    register_vmap(f"metalops::{_name}", tensors=2)
    register_vmap(f"metalops::{_name}_backward", tensors=3)
