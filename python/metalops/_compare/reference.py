"""A call on the CPU: with the arguments of a snapshot, in their dtypes or in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._torch.internals import OpOverload, has_kernel, has_kernel_for_key, pytree
from ..testing.checks import wider
from .arguments import Snapshot

aten = torch.ops.aten

# Operators whose work is to round or to copy to a dtype, or that are about the bits of theirs.
EXACT = {
    "aten::_to_copy",
    "aten::copy",
    "aten::copy_",
    "aten::eps",
    "aten::frexp",
    "aten::nextafter",
    "aten::nextafter_",
    "aten::view_copy",
}
# Namespaces of operators that do more than to compute, and would do it twice.
_EFFECTS = ("c10d", "_c10d", "symm_mem", "fsdp", "profiler", "streams", "inductor", "prim")
_CPU_KEYS = ("CPU", "CompositeExplicitAutogradNonFunctional", "CompositeExplicitAutograd")


class NoReferenceError(RuntimeError):
    """The CPU has no kernel for a call."""


def has_effects(func: OpOverload) -> bool:
    return func.namespace.startswith(_EFFECTS)


def run(func: OpOverload, snapshot: Snapshot, *, wide: bool) -> tuple[Any, tuple, dict]:
    """Returns the result, and the arguments after the call. Raises NoReferenceError.

    wide: in float64 and complex128, where a dtype among the arguments is widened as well.
    """
    function = _on_cpu(func)
    args, kwargs = snapshot.on_cpu()
    args, kwargs = pytree.tree_map(off_the_device, (args, kwargs))
    if wide:
        args, kwargs = pytree.tree_map(widened, (args, kwargs))
    before = torch.get_default_dtype()
    try:
        if wide:
            # Integers that the operator promotes to the default dtype.
            torch.set_default_dtype(torch.float64)
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            return function(*args, **kwargs), args, kwargs
    except NotImplementedError as error:
        raise NoReferenceError(str(error)) from None
    finally:
        torch.set_default_dtype(before)


def off_the_device(x: Any) -> Any:
    if isinstance(x, torch.device) and x.type == "mps":
        return torch.device("cpu")
    return x


def widened(x: Any) -> Any:
    if isinstance(x, Tensor):
        return wider(x)
    if isinstance(x, torch.dtype):
        if x.is_complex:
            return torch.complex128
        return torch.float64 if x.is_floating_point else x
    return x


def _on_cpu(func: OpOverload) -> Callable[..., Any]:
    """Returns what computes the same on the CPU as an overload on mps."""
    name = func.name()
    if name in _INSTEAD:
        return _INSTEAD[name]
    if any(has_kernel_for_key(name, key) for key in _CPU_KEYS):
        return func
    if has_kernel(name) and has_kernel_for_key(name, "CompositeImplicitAutograd"):
        return func
    raise NoReferenceError(f"{name} has no kernel for the CPU")


# ---- operators that torch has for mps alone, by those that it has for the CPU ---------------------


def _linear_backward(x: Tensor, grad: Tensor, weight: Tensor, mask: list[bool]) -> tuple:
    rows = grad.reshape(-1, grad.shape[-1])
    of_x = grad @ weight if mask[0] else None
    of_weight = rows.t() @ x.reshape(-1, x.shape[-1]) if mask[1] else None
    return of_x, of_weight, rows.sum(0) if mask[2] else None


def _max_pool2d_backward(
    grad, x, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False
) -> Tensor:
    window = kernel_size, stride, padding, dilation, ceil_mode
    _, indices = aten.max_pool2d_with_indices(x, *window)
    return aten.max_pool2d_with_indices_backward(grad, x, *window, indices)


def _from_half(softmax: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def compute(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
        return softmax(x.float() if half_to_float and x.itemsize < 4 else x, dim, False)

    return compute


def _attention(
    q, k, v, mask=None, dropout_p=0.0, is_causal=False, dropout_mask=None, *, scale=None
):
    return torch.ops.aten._scaled_dot_product_attention_math(
        q, k, v, mask, dropout_p, is_causal, dropout_mask, scale=scale
    )


def _lstm(x, hx, params, has_biases, layers, dropout, train, bidirectional, batch_first):
    if train and dropout > 0:
        raise NoReferenceError("dropout of an LSTM draws other numbers on the CPU")
    options = has_biases, layers, dropout, train, bidirectional, batch_first
    # The other results are what the backward pass keeps.
    return *aten.lstm.input(x, hx, params, *options), None, None, None


_INSTEAD: dict[str, Callable[..., Any]] = {
    "aten::linear_backward": _linear_backward,
    "aten::max_pool2d_backward": _max_pool2d_backward,
    "aten::_lstm_mps": _lstm,
    "aten::_softmax": _from_half(torch.ops.aten._softmax),
    "aten::_log_softmax": _from_half(torch.ops.aten._log_softmax),
    "aten::_scaled_dot_product_attention_math_for_mps": _attention,
}
