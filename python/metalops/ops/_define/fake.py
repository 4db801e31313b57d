"""Fake kernels of pointwise operators: the shape, dtype and strides of a result without its values.

torch.compile, torch.export and tensors on the ``meta`` device need them. They follow TensorIterator, which the real
operators run through, and work with symbolic shapes.

Operators of other packages that are defined with ``<metalops/pointwise.h>`` get theirs when they are first traced.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..._torch.internals import (
    PromotionKind,
    check,
    compute_elementwise_output_strides,
    elementwise_dtypes,
    has_kernel,
    has_kernel_for_key,
    is_cpu_scalar_tensor,
    maybe_resize_out,
    register_fake,
)


def pointwise_result(
    *inputs: Tensor | complex, integers_to_float: bool = True, kind: str = "promote"
) -> Tensor:
    """Returns an uninitialised tensor like the result of a pointwise operator on ``inputs``.

    kind: "promote" for the common dtype of the inputs, "bool", or "real" for the real dtype of the common one.
    """
    promotion = PromotionKind.INT_TO_FLOAT if integers_to_float else PromotionKind.DEFAULT
    _, dtype = elementwise_dtypes(*inputs, type_promotion_kind=promotion)
    if kind == "bool":
        dtype = torch.bool
    elif kind == "real" and dtype.is_complex:
        dtype = dtype.to_real()
    tensors = [x for x in inputs if isinstance(x, Tensor)]  # the others are numbers
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))
    strides = compute_elementwise_output_strides(*(x.expand(shape) for x in tensors))
    device = next((x.device for x in tensors if not is_cpu_scalar_tensor(x)), tensors[0].device)
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)


def halves(name: str, input: Tensor) -> tuple[Tensor, Tensor]:
    """Returns ``input[..., :d]`` and ``input[..., d:]`` if the last dimension of ``input`` has size ``2 d``. name: of
    the operator, for the RuntimeError otherwise."""
    check(input.dim() > 0, lambda: f"{name} does not support 0-dimensional tensors")
    check(
        input.shape[-1] % 2 == 0,
        lambda: (
            f"Halving dimension must be even, but dimension {input.dim() - 1} is size {input.shape[-1]}"
        ),
    )
    d = input.shape[-1] // 2
    return input.narrow(-1, 0, d), input.narrow(-1, d, d)


def check_out(name: str, result: Tensor, out: Tensor) -> None:
    """Raises RuntimeError, in torch's words, unless a tensor to be written is on the result's device and of a dtype
    that the result casts to. name: of the operator."""
    check(
        result.device == out.device,
        lambda: (
            f"Expected all tensors to be on the same device, but got out is on {out.device}, different from other tensors on "
            f"{result.device} (when checking argument in method {name})"
        ),
    )
    check(
        torch.can_cast(result.dtype, out.dtype),
        lambda: f"result type {result.dtype} can't be cast to the desired output type {out.dtype}",
    )


def check_shape(result: Tensor, written: Tensor) -> None:
    """Raises RuntimeError unless a result can be written to a tensor that is not resized."""
    check(
        result.shape == written.shape,
        lambda: (
            f"output with shape {list(written.shape)} doesn't match the broadcast shape {list(result.shape)}"
        ),
    )


def delivered(name: str, result: Tensor, out: Tensor | None) -> Tensor:
    """Returns the result; if out is given, writes it to out, resized and cast as with torch's own functions, and
    returns out. Raises RuntimeError for tensors that require grad and for another device. name: of the function."""
    if out is None:
        return result
    if torch.is_grad_enabled() and (result.requires_grad or out.requires_grad):
        raise RuntimeError(
            f"{name}(): functions with out=... arguments don't support automatic differentiation, but one of the arguments "
            "requires grad."
        )
    check_out(name, result, out)
    maybe_resize_out(out, result.shape)
    return out.copy_(result)


@functools.cache
def fragment(namespace: str) -> torch.library.Library:
    """Returns the library through which rules for the operators of a namespace are registered; torch takes long to make
    one."""
    return torch.library.Library(namespace, "FRAGMENT")


def _register(name: str, kernel: Callable) -> None:
    """Registers a kernel, unless the operator has one: kernels that an author wrote take precedence over generated
    ones."""
    if not has_kernel_for_key(name, "Meta"):
        register_fake(name, kernel, fragment(name.partition("::")[0]))


def register(name: str, result: Callable[..., Tensor], *, inplace: bool, results: int = 1) -> None:
    """Registers the fake kernels of all overloads of the operator ``name`` ("namespace::name").

    result: takes the operator's arguments and returns a tensor like its result; like each of them if there are several.
    """

    base = name.partition("::")[2]

    def functional(*args, **scalars):
        expected = [result(*args, **scalars) for _ in range(results)]
        return expected[0] if results == 1 else tuple(expected)

    def out_overload(*args, **keywords):
        names = ["out"] if results == 1 else [f"out{i}" for i in range(results)]
        outs = [keywords.pop(name) for name in names]
        expected = result(*args, **keywords)
        for out in outs:
            check_out(base, expected, out)
            maybe_resize_out(out, expected.shape)
        return outs[0] if results == 1 else tuple(outs)

    def inplace_overload(*args, **scalars) -> Tensor:
        expected = result(*args, **scalars)
        check_out(base, expected, args[0])
        check_shape(expected, args[0])
        return args[0]

    _register(name, functional)
    _register(f"{name}.out", out_overload)
    if inplace:
        _register(f"{name}_", inplace_overload)


def _chosen(args: Sequence, tensors: int | Sequence[int]) -> Sequence:
    return args[:tensors] if isinstance(tensors, int) else [args[i] for i in tensors]


def register_pointwise(
    name: str,
    tensors: int | Sequence[int],
    *,
    integers_to_float: bool = True,
    results: int = 1,
    kind: str = "promote",
) -> None:
    """Registers the fake kernels of a pointwise operator.

    tensors: how many of its first arguments are its operands, or which arguments. kind: see pointwise_result.
    """

    def result(*args, **scalars) -> Tensor:
        operands = _chosen(args, tensors)
        return pointwise_result(*operands, integers_to_float=integers_to_float, kind=kind)

    register(name, result, inplace=results == 1 and kind == "promote", results=results)


def register_halving(name: str, *, integers_to_float: bool = True) -> None:
    """Registers the fake kernels of an operator on the two halves of its first argument's last dimension, and of the
    operator that differentiates it, if there is one."""
    base = name.partition("::")[2]

    def result(input: Tensor, *args) -> Tensor:
        return pointwise_result(*halves(base, input), integers_to_float=integers_to_float)

    register(name, result, inplace=False)
    if has_kernel(f"{name}_backward"):
        register_halving_backward(f"{name}_backward")


def register_halving_backward(name: str) -> None:
    """Registers the fake kernel of an operator that differentiates one on the two halves of its argument's last
    dimension."""
    base = name.partition("::")[2]

    def backward(grad_output: Tensor, input: Tensor, *args) -> Tensor:
        dtype = torch.promote_types(grad_output.dtype, input.dtype)
        shape = list(torch.broadcast_shapes(grad_output.shape, halves(base, input)[0].shape))
        shape[-1] = input.shape[-1]
        if shape != list(input.shape):
            return input.new_empty(shape, dtype=dtype)
        return torch.empty_like(input, dtype=dtype)

    _register(name, backward)


def register_backward(name: str, tensors: int | Sequence[int], gradients: int) -> None:
    """Registers the fake kernel of a backward operator.

    tensors: how many of its first arguments are tensors, ``grad_output`` included, or which. gradients: how many it
    returns; of several, those that its ``output_mask`` excludes are None.
    """

    def backward(*args, output_mask=(True,) * gradients):
        if isinstance(args[-1], Sequence):
            output_mask = args[-1]
        results = tuple(
            pointwise_result(*_chosen(args, tensors)) if wanted else None for wanted in output_mask
        )
        return results if gradients > 1 else results[0]

    _register(name, backward)


def _register_defined(
    name: str,
    operands: Sequence[int],
    results: int,
    kind: str,
    integers_to_float: bool,
    halving: bool,
    is_backward: bool,
) -> None:
    """Registers the fake kernels of an operator as <metalops/pointwise.h> defined it."""
    if halving and is_backward:
        register_halving_backward(name)
    elif halving:
        register_halving(name, integers_to_float=integers_to_float)
    elif is_backward:
        register_backward(name, operands, results)
    else:
        register_pointwise(
            name, operands, integers_to_float=integers_to_float, results=results, kind=kind
        )


# C++ calls this operator when it needs fake kernels.
_registration = fragment("metalops_registration")
_registration.define(
    "fake(str functional, int[] operands, int results, str kind, bool integers_to_float, bool halves, bool is_backward) -> ()"
)
_registration.impl("fake", _register_defined, "CompositeExplicitAutograd")
