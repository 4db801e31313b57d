"""Activations of one input.

All take a tensor of any shape and layout on ``mps`` and return one of the same shape. Dtypes: float32, float16, bfloat16
(half precision computes in float32 and rounds once) and the integers; where nothing else is said these are promoted to
the default dtype, as torch.sigmoid does. ``out=`` is resized and cast to as with torch's own functions; the names with a
trailing underscore work in place. All are differentiable once; forward-mode and second derivatives raise
NotImplementedError and RuntimeError. Complex tensors and tensors that are not on ``mps`` raise NotImplementedError.
"""

from __future__ import annotations

from torch import Tensor

from . import fake
from ._call import direct, is_dynamo_compiling, through_torch_ops
from .vmap import register_vmap

__all__ = [
    "gelu_fast",
    "gelu_fast_",
    "gelu_new",
    "gelu_new_",
    "gelu_quick",
    "gelu_quick_",
    "relu_squared",
    "relu_squared_",
    "softcap",
    "softcap_",
]

_gelu_new = direct("gelu_new")
_gelu_new_ = direct("gelu_new_")
_gelu_fast = direct("gelu_fast")
_gelu_fast_ = direct("gelu_fast_")
_gelu_quick = direct("gelu_quick")
_gelu_quick_ = direct("gelu_quick_")
_relu_squared = direct("relu_squared")
_relu_squared_ = direct("relu_squared_")
_softcap = direct("softcap")
_softcap_ = direct("softcap_")


def gelu_new(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))``, the tanh approximation of GELU.

    From Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016), as GPT-2 uses it.
    """
    if is_dynamo_compiling():
        return through_torch_ops("gelu_new", input, out=out)
    return _gelu_new(input, out)


def gelu_new_(input: Tensor) -> Tensor:
    """:func:`gelu_new` in place."""
    if is_dynamo_compiling():
        return through_torch_ops("gelu_new_", input)
    return _gelu_new_(input)


def gelu_fast(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``0.5 x (1 + tanh(sqrt(2/pi) x (1 + 0.044715 x^2)))``: :func:`gelu_new` with its polynomial factored.

    The order of operations is that of Hugging Face's "gelu_fast".
    """
    if is_dynamo_compiling():
        return through_torch_ops("gelu_fast", input, out=out)
    return _gelu_fast(input, out)


def gelu_fast_(input: Tensor) -> Tensor:
    """:func:`gelu_fast` in place."""
    if is_dynamo_compiling():
        return through_torch_ops("gelu_fast_", input)
    return _gelu_fast_(input)


def gelu_quick(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``x sigmoid(1.702 x)``, the sigmoid approximation of GELU.

    From Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016), as CLIP uses it.
    """
    if is_dynamo_compiling():
        return through_torch_ops("gelu_quick", input, out=out)
    return _gelu_quick(input, out)


def gelu_quick_(input: Tensor) -> Tensor:
    """:func:`gelu_quick` in place."""
    if is_dynamo_compiling():
        return through_torch_ops("gelu_quick_", input)
    return _gelu_quick_(input)


def relu_squared(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``max(x, 0)^2``. Integers stay integers and wrap around, as with torch.square; bool raises NotImplementedError.

    From So et al., "Primer: Searching for Efficient Transformers for Language Modeling" (2021).
    """
    if is_dynamo_compiling():
        return through_torch_ops("relu_squared", input, out=out)
    return _relu_squared(input, out)


def relu_squared_(input: Tensor) -> Tensor:
    """:func:`relu_squared` in place."""
    if is_dynamo_compiling():
        return through_torch_ops("relu_squared_", input)
    return _relu_squared_(input)


def softcap(input: Tensor, cap: float, *, out: Tensor | None = None) -> Tensor:
    """``cap tanh(x / cap)``: close to ``x`` around zero, and never beyond ``+-cap``.

    From Bello et al., "Neural Combinatorial Optimization with Reinforcement Learning" (2016), as Gemma 2 uses it.
    cap: a finite number other than 0, else ValueError.
    """
    if is_dynamo_compiling():
        return through_torch_ops("softcap", input, cap, out=out)
    return _softcap(input, cap, out)


def softcap_(input: Tensor, cap: float) -> Tensor:
    """:func:`softcap` in place."""
    if is_dynamo_compiling():
        return through_torch_ops("softcap_", input, cap)
    return _softcap_(input, cap)


for _name in ("gelu_new", "gelu_fast", "gelu_quick", "softcap"):
    fake.register_pointwise(f"metalops::{_name}", tensors=1)
    register_vmap(f"metalops::{_name}", tensors=1)
fake.register_pointwise("metalops::relu_squared", tensors=1, integers_to_float=False)
register_vmap("metalops::relu_squared", tensors=1)
for _name in ("gelu_new", "gelu_quick", "relu_squared", "softcap"):
    fake.register_backward(f"metalops::{_name}_backward", tensors=2, gradients=1)
    register_vmap(f"metalops::{_name}_backward", tensors=2)
