"""Gated linear units: an activation of one tensor times another one, in one pass.

The ``*_and_mul`` family and ``mul_and_silu`` take one tensor of shape ``[..., 2 d]`` and return ``[..., d]``, computed from
its halves ``a = x[..., :d]`` and ``b = x[..., d:]`` where they are, without copies: what a linear layer with twice the
features gives. An odd last dimension, or none, raises RuntimeError. The others take two tensors, which broadcast
and are promoted as torch.mul does it; they have an in-place form (a trailing underscore) that writes to ``a``.

Dtypes: float32, float16, bfloat16 (half precision computes in float32 and rounds once) and the integers; where nothing
else is said these are promoted to the default dtype. ``out=`` is resized and cast to as with torch's own functions.
Derivatives of any order and forward mode are there as for torch's own functions. Complex tensors and tensors that are
not on ``mps`` raise NotImplementedError.

Gated linear units are from Dauphin et al., "Language Modeling with Gated Convolutional Networks" (2016); their variants
from Shazeer, "GLU Variants Improve Transformer" (2020).
"""

from __future__ import annotations

from torch import Tensor

from ._pointwise import pointwise


@pointwise
def silu_and_mul(input: Tensor) -> Tensor:
    """``silu(a) b`` of the halves of ``input``, with ``silu(x) = x sigmoid(x)``."""


@pointwise
def mul_and_silu(input: Tensor) -> Tensor:
    """``a silu(b)`` of the halves of ``input``, with ``silu(x) = x sigmoid(x)``."""


@pointwise
def gelu_and_mul(input: Tensor) -> Tensor:
    """``gelu(a) b`` of the halves of ``input``, with ``gelu(x) = 0.5 x (1 + erf(x / sqrt(2)))``."""


@pointwise
def gelu_tanh_and_mul(input: Tensor) -> Tensor:
    """``gelu(a) b`` of the halves of ``input``, with the tanh approximation of GELU: :func:`~metalops.ops.gelu_new`."""


@pointwise(integers_stay=True)
def fatrelu_and_mul(input: Tensor, threshold: float = 0.0) -> Tensor:
    """``where(a > threshold, a, 0) b`` of the halves of ``input``. Integers stay integers; bool raises
    NotImplementedError.

    FATReLU is from Kurtz et al., "Inducing and Exploiting Activation Sparsity for Fast Inference on Deep Neural
    Networks" (2020). ``threshold`` is rounded to float32 and compared with ``a`` as float32.
    """


@pointwise
def swiglu(a: Tensor, b: Tensor) -> Tensor:
    """``silu(a) b`` with ``silu(x) = x sigmoid(x)``."""


@pointwise
def geglu(a: Tensor, b: Tensor) -> Tensor:
    """``gelu(a) b`` with ``gelu(x) = 0.5 x (1 + erf(x / sqrt(2)))``."""


@pointwise(integers_stay=True)
def reglu(a: Tensor, b: Tensor) -> Tensor:
    """``max(a, 0) b``. Integers stay integers and wrap around, as with torch.mul; bool raises NotImplementedError."""


@pointwise
def swiglu_clamped(a: Tensor, b: Tensor, limit: float = 7.0) -> Tensor:
    """``(clamp(b, -limit, limit) + 1) g sigmoid(1.702 g)`` with ``g = min(a, limit)``.

    The gate of OpenAI's gpt-oss models (2025), where ``limit`` is 7. The gradient of a clamp is zero outside its limits
    and passes on them.
    """
