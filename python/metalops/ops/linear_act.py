"""A linear layer with a fused activation (GEMM with an epilogue).

Dtypes: float32, float16 and bfloat16, the same for all tensors; sums are in float32 and the result is rounded once.
Complex tensors, float64 and integers raise NotImplementedError. ``out=`` is resized and cast to as with torch's own
functions. Derivatives of any order and forward mode work, and autocast lowers the precision as that of a linear layer.
On ``mps`` one kernel computes the result, without copies of ``x`` and ``weight`` if their rows or their columns are
contiguous; elsewhere several operators of torch do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from .. import _problem
from .._torch.internals import register_fake
from ._define import elsewhere, fake
from ._define.call import through_torch_ops
from .activation import (
    gelu_and_derivative,
    gelu_tanh_and_derivative,
    relu_and_derivative,
    silu_and_derivative,
)

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_ACTIVATIONS = {
    "none": lambda x: (x, torch.ones_like(x)),
    "relu": relu_and_derivative,
    "gelu": gelu_and_derivative,
    "gelu_tanh": gelu_tanh_and_derivative,
    "silu": silu_and_derivative,
    "silu_and_mul": silu_and_derivative,
}
_GATED = ("silu_and_mul",)


def linear_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str = "none",
    *,
    out: Tensor | None = None,
) -> Tensor:
    """``activation(x weight^T + bias)``, as torch.nn.functional.linear followed by an activation.

    x: ``(..., K)``. weight: ``(N, K)``. bias: ``(N,)``. Returns ``(..., N)``. activation: "none", "relu", "gelu" (with
    erf), "gelu_tanh" (its approximation, :func:`~metalops.ops.gelu_new`) or "silu". "silu_and_mul" is ``silu(a) b`` of
    the halves ``a`` and ``b`` of the features, as in :func:`~metalops.ops.silu_and_mul`: weight ``(2 N, K)``, bias ``(2
    N,)``.

    Raises RuntimeError for other shapes and for tensors of several dtypes or devices, ValueError for another
    activation.
    """
    return through_torch_ops("linear_act", x, weight, bias, activation, out=out)


OPERATORS = (linear_act,)


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> None:
    """Raises what the operator raises on mps."""
    if activation not in _ACTIVATIONS:
        known = ", ".join(map(repr, _ACTIVATIONS))
        raise ValueError(f"linear_act: activation must be one of {known}, but is {activation!r}")
    others = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    elsewhere.check_dtypes("linear_act", [x], _DTYPES)
    elsewhere.check_devices(x=x, **others)
    for name, tensor in others.items():
        if tensor.dtype != x.dtype:
            raise RuntimeError(
                f"linear_act: {name} must have the dtype of x, {x.dtype}, but has {tensor.dtype}"
            )
    if x.dim() == 0:
        raise RuntimeError("linear_act: x must have at least one dimension, but has none")
    if weight.dim() != 2:
        raise RuntimeError(
            f"linear_act: weight must have 2 dimensions, but has sizes {list(weight.shape)}"
        )
    if weight.shape[1] != x.shape[-1]:
        raise RuntimeError(
            f"linear_act: weight must have as many columns as x, {x.shape[-1]}, but has sizes {list(weight.shape)}"
        )
    if activation in _GATED and weight.shape[0] % 2 != 0:
        raise RuntimeError(
            f"linear_act: weight must have an even number of rows for a gate, but has sizes {list(weight.shape)}"
        )
    if bias is not None and (bias.dim() != 1 or bias.shape[0] != weight.shape[0]):
        raise RuntimeError(
            f"linear_act: bias must have as many elements as weight has rows, {weight.shape[0]}, but has sizes "
            f"{list(bias.shape)}"
        )


# ---- in operators of torch -----------------------------------------------------------------------


def _activated(before: Tensor, activation: str) -> Tensor:
    function = _ACTIVATIONS[activation]
    if activation not in _GATED:
        return function(before)[0]
    gate, other = before.chunk(2, dim=-1)
    return function(gate)[0] * other


def _activation_gradient(grad: Tensor, before: Tensor, activation: str) -> Tensor:
    """Returns the gradient of the activation's input."""
    function = _ACTIVATIONS[activation]
    if activation not in _GATED:
        return grad * function(before)[1]
    gate, other = before.chunk(2, dim=-1)
    value, derivative = function(gate)
    return torch.cat([grad * other * derivative, grad * value], dim=-1)


def _before(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns the activation's input, in float32. GPUs accumulate half precision in float32, CPUs need not."""
    if x.is_cpu:
        x, weight, bias = x.float(), weight.float(), None if bias is None else bias.float()
    return functional.linear(x, weight, bias).float()


def _linear_act(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none"
) -> Tensor:
    _check(x, weight, bias, activation)
    return _activated(_before(x, weight, bias), activation).to(x.dtype)


def _linear_act_out(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str = "none",
    *,
    out: Tensor,
) -> Tensor:
    return fake.delivered("linear_act", _linear_act(x, weight, bias, activation), out)


def _linear_act_with_input(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none"
) -> tuple[Tensor, Tensor]:
    _check(x, weight, bias, activation)
    before = _before(x, weight, bias)
    return _activated(before, activation).to(x.dtype), before.to(x.dtype)


def _linear_act_backward(
    grad_output: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    saved: Tensor | None,
    activation: str,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Computes the gradients, also for a batch of calls: all tensors then have one more dimension, the first one."""
    grad = grad_output.float()
    if saved is not None:
        grad = _activation_gradient(grad, saved.float(), activation)
    batch = weight.dim() - 2
    grad, inputs = (_rows(tensor, batch) for tensor in (grad, x.float()))
    gradients = (
        lambda: torch.matmul(grad, weight.float()).reshape(x.shape),
        lambda: torch.matmul(grad.mT, inputs),
        lambda: grad.sum(-2),
    )
    return tuple(
        gradient().to(x.dtype) if wanted else None
        for gradient, wanted in zip(gradients, output_mask, strict=True)
    )


def _rows(tensor: Tensor, batch: int) -> Tensor:
    """Returns the tensor as a matrix, after `batch` dimensions."""
    shape = tensor.shape
    return tensor.reshape(*shape[:batch], math.prod(shape[batch:-1]), shape[-1])


# ---- torch.compile and torch.vmap ----------------------------------------------------------------


def _fake(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none"
) -> Tensor:
    _check(x, weight, bias, activation)
    features = weight.shape[0] // 2 if activation in _GATED else weight.shape[0]
    return x.new_empty([*x.shape[:-1], features])


def _fake_with_input(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none"
) -> tuple[Tensor, Tensor]:
    before = x.new_empty([*x.shape[:-1], weight.shape[0]])
    return _fake(x, weight, bias, activation), before


def _fake_backward(
    grad_output: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    saved: Tensor | None,
    activation: str,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    # If only the gradient of the bias is wanted, weight may be anything.
    features = weight.shape[:1] if activation == "silu_and_mul" else grad_output.shape[-1:]
    shapes = (x.shape, weight.shape, features)
    return tuple(
        x.new_empty(shape) if wanted else None
        for shape, wanted in zip(shapes, output_mask, strict=True)
    )


def _batch_first(size: int, tensor: Tensor | None, dim: int | None) -> Tensor | None:
    if tensor is None:
        return None
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _batch_of_calls(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns the activations' inputs, for a batch of all three."""
    before = torch.matmul(_rows(x, 1).float(), weight.float().mT)
    if bias is not None:
        before = before + bias.float()[:, None]
    return before.reshape(*x.shape[:-1], weight.shape[-2])


def _vmap(info, in_dims, x, weight, bias=None, activation="none"):
    dims = [*in_dims, None][:3]
    if dims[1] is None and dims[2] is None:
        if x.dim() == 1:
            raise RuntimeError("linear_act: x must have at least one dimension, but has none")
        return torch.ops.metalops.linear_act(x.movedim(dims[0], 0), weight, bias, activation), 0
    results, _ = _vmap_with_input(info, in_dims, x, weight, bias, activation)
    return results[0], 0


def _vmap_with_input(info, in_dims, x, weight, bias=None, activation="none"):
    dims = [*in_dims, None][:3]
    if dims[1] is None and dims[2] is None:
        x = x.movedim(dims[0], 0)
        op = torch.ops.metalops.linear_act_with_input
        return op(x, weight, bias, activation), (0, 0)
    tensors = (x, weight, bias)
    x, weight, bias = (
        _batch_first(info.batch_size, tensor, dim)
        for tensor, dim in zip(tensors, dims, strict=True)
    )
    before = _batch_of_calls(x, weight, bias)
    return (_activated(before, activation).to(x.dtype), before.to(x.dtype)), (0, 0)


def _vmap_backward(info, in_dims, grad_output, x, weight, bias, saved, activation, output_mask):
    tensors = (grad_output, x, weight, bias, saved)
    batch = [
        _batch_first(info.batch_size, tensor, dim)
        for tensor, dim in zip(tensors, in_dims[:5], strict=True)
    ]
    results = _linear_act_backward(*batch, activation, output_mask)
    return results, tuple(None if x is None else 0 for x in results)


# ---- registration --------------------------------------------------------------------------------


def _register() -> None:
    library = fake.fragment("metalops")
    if _problem is not None:
        # Without compiled parts the operator is a composition, with its derivatives.
        arguments = 'Tensor x, Tensor weight, Tensor? bias=None, str activation="none"'
        tags = [torch.Tag.pt2_compliant_tag]
        library.define(f"linear_act({arguments}) -> Tensor", tags=tags)
        library.define(f"linear_act.out({arguments}, *, Tensor(a!) out) -> Tensor(a!)", tags=tags)
        library.impl("linear_act", _linear_act, "CompositeImplicitAutograd")
        library.impl("linear_act.out", _linear_act_out, "CompositeExplicitAutograd")
        return
    for key in ("CPU", "CUDA"):
        library.impl("linear_act", _linear_act, key)
        library.impl("linear_act.out", _linear_act_out, key)
        library.impl("linear_act_with_input", _linear_act_with_input, key)
        library.impl("linear_act_backward", _linear_act_backward, key)
    fake.register("metalops::linear_act", _fake, inplace=False)
    for name, fake_kernel in (
        ("linear_act_with_input", _fake_with_input),
        ("linear_act_backward", _fake_backward),
    ):
        register_fake(f"metalops::{name}", fake_kernel, library)
    for name, rule in (
        ("linear_act", _vmap),
        ("linear_act_with_input", _vmap_with_input),
        ("linear_act_backward", _vmap_backward),
    ):
        torch.library.register_vmap(f"metalops::{name}", rule, lib=library)


_register()
