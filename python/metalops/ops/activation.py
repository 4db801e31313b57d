"""Activations of one input.

All take a tensor of any shape and layout on ``mps`` and return one of the same shape. Dtypes: float32, float16, bfloat16
(half precision computes in float32 and rounds once) and the integers; where nothing else is said these are promoted to
the default dtype, as torch.sigmoid does. ``out=`` is resized and cast to as with torch's own functions; the names with a
trailing underscore work in place. Derivatives of any order and forward mode are there as for
torch's own functions. Complex tensors and tensors that are not on ``mps`` raise NotImplementedError.
"""

from __future__ import annotations

from torch import Tensor

from ._pointwise import pointwise


@pointwise
def gelu_new(input: Tensor) -> Tensor:
    """``0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))``, the tanh approximation of GELU.

    From Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016), as GPT-2 uses it.
    """


@pointwise
def gelu_fast(input: Tensor) -> Tensor:
    """``0.5 x (1 + tanh(sqrt(2/pi) x (1 + 0.044715 x^2)))``: :func:`gelu_new` with its polynomial factored.

    The order of operations is that of Hugging Face's "gelu_fast".
    """


@pointwise
def gelu_quick(input: Tensor) -> Tensor:
    """``x sigmoid(1.702 x)``, the sigmoid approximation of GELU.

    From Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016), as CLIP uses it.
    """


@pointwise(integers_stay=True)
def relu_squared(input: Tensor) -> Tensor:
    """``max(x, 0)^2``. Integers stay integers and wrap around, as with torch.square; bool raises NotImplementedError.

    From So et al., "Primer: Searching for Efficient Transformers for Language Modeling" (2021).
    """


@pointwise
def softcap(input: Tensor, cap: float) -> Tensor:
    """``cap tanh(x / cap)``: close to ``x`` around zero, and never beyond ``+-cap``.

    From Bello et al., "Neural Combinatorial Optimization with Reinforcement Learning" (2016), as Gemma 2 uses it.
    cap: a finite number other than 0, else ValueError.
    """
