"""Checks of the arguments of quantised and GGUF operators on CUDA and CPU tensors, with the messages of
csrc/ops/quantized/{quantized,quantized_matmul,gguf}.mm: whoever calls torch.ops.metalops directly comes past the checks of
the public functions, and a kernel would read beyond its operands.

Each raises ValueError, RuntimeError for tensors on several devices or NotImplementedError for dtypes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from .._define.elsewhere import check_devices, check_dtypes, scalar_type
from .._formats import gguf as gguf_formats
from .._formats import quantized as formats

_LARGEST_GROUP = 1 << 30
_INT8 = formats.Mode((8,), ())  # of int8_linear, a scale for each row


def checked(check: Callable[..., None], kernel: Callable) -> Callable:
    """Returns a kernel that checks its arguments before it runs."""

    @functools.wraps(kernel)
    def run(*args):
        check(*args)
        return kernel(*args)

    return run


def _check(condition: bool, name: str, *words: object) -> None:
    if not condition:
        raise ValueError(f"{name}: {''.join(map(str, words))}")


def _check_layout(name: str, inner: int, bits: int, group_size: int, mode: str) -> None:
    _check(mode == "int8" or mode in formats.MODES, name, f"there is no mode '{mode}'")
    _check(1 <= bits <= 8, name, f"bits must be between 1 and 8, but are {bits}")
    group_size = _LARGEST_GROUP if mode == "int8" else group_size
    is_power = group_size > 0 and group_size & (group_size - 1) == 0
    _check(
        16 <= group_size <= _LARGEST_GROUP and is_power,
        name,
        f"group_size must be a power of two from 16 to 2^30, but is {group_size}",
    )
    _check(
        inner % 8 == 0,
        name,
        f"rows of weights must have a multiple of 8 elements, but have {inner}",
    )


def _check_global(name: str, global_scale: Tensor | None) -> None:
    _check(
        global_scale is None or (global_scale.numel() == 1 and global_scale.dtype == torch.float32),
        name,
        "global_scale must be one float32",
    )


def _check_weights(
    name: str,
    packed: Tensor,
    scales: Tensor,
    biases: Tensor | None,
    global_scale: Tensor | None,
    bits: int,
    group_size: int,
    mode: str,
    element: torch.dtype,
) -> tuple[int, int]:
    """Returns the rows of a matrix and the elements of a row. element: the dtype of scales that have no format of their
    own."""
    check_devices(packed=packed, scales=scales, biases=biases, global_scale=global_scale)
    _check(
        packed.dim() >= 2 and packed.dtype == torch.uint8,
        name,
        f"packed must be bytes of at least 2 dimensions, but is {scalar_type(packed.dtype)} of sizes "
        f"{list(packed.shape)}",
    )
    row = packed.shape[-1]
    _check(
        bits >= 1 and row % bits == 0, name, f"rows of {row} bytes do not hold codes of {bits} bits"
    )
    inner = row // bits * 8
    _check_layout(name, inner, bits, group_size, mode)
    about = formats.MODES.get(mode, _INT8)
    per_group = group_size if mode != "int8" else _LARGEST_GROUP
    sizes = [*packed.shape[:-1], -(-inner // per_group)]
    dtype = about.scale or element
    for argument, tensor in (("scales", scales), ("biases", biases)):
        if tensor is not None:
            _check(
                list(tensor.shape) == sizes and tensor.dtype == dtype,
                name,
                f"{argument} must be {scalar_type(dtype)} of sizes {sizes}, but are "
                f"{scalar_type(tensor.dtype)} of sizes {list(tensor.shape)}",
            )
        if argument == "scales":
            _check(
                (biases is not None) == about.biases,
                name,
                f"mode '{mode}' has {'no ' if biases is not None else ''}biases",
            )
    _check_global(name, global_scale)
    return packed.shape[-2], inner


def quantize(weight, global_scale, bits, group_size, mode) -> None:
    name = "quantize"
    check_dtypes(name, [weight], formats.DTYPES)
    _check(weight.dim() > 0, name, "weights must have at least one dimension")
    _check_global(name, global_scale)
    check_devices(weight=weight, global_scale=global_scale)
    _check_layout(name, weight.shape[-1], bits, group_size, mode)


def _as_matrix(x: Tensor | None) -> Tensor | None:
    return x[None] if x is not None and x.dim() == 1 else x


def dequantize(
    packed, scales, biases, global_scale, indices, bits, group_size, mode, dtype
) -> None:
    name = "dequantize"
    if dtype not in formats.DTYPES:
        raise NotImplementedError(f"\"{name}\" not implemented for '{scalar_type(dtype)}'")
    _check(
        packed.dim() > 0 and scales.dim() > 0,
        name,
        "packed and scales must have at least one dimension",
    )
    weights = map(_as_matrix, (packed, scales, biases))
    _check_weights(name, *weights, global_scale, bits, group_size, mode, dtype)
    if indices is not None:
        _check(
            packed.dim() == 2 and indices.dtype == torch.int64,
            name,
            "indices must be int64 and packed of 2 dimensions",
        )
        check_devices(packed=packed, indices=indices)


def matmul(
    x, packed, scales, biases, bias, global_scale, left, right, transpose, bits, group_size, mode
) -> None:
    name = "quantized_matmul"
    check_dtypes(name, [x], formats.DTYPES)
    check_devices(x=x, packed=packed, bias=bias, lhs_indices=left, rhs_indices=right)
    _check(
        x.dim() == 3 and packed.dim() == 3,
        name,
        f"x and packed must have 3 dimensions, but have sizes {list(x.shape)} and {list(packed.shape)}",
    )
    lines, elements = _check_weights(
        name, packed, scales, biases, global_scale, bits, group_size, mode, x.dtype
    )
    inner, columns = (elements, lines) if transpose else (lines, elements)
    _check(
        x.shape[2] == inner,
        name,
        f"rows of x must have {inner} elements, but x has sizes {list(x.shape)}",
    )
    _check_bias(name, bias, columns, x.dtype)
    pairs = next((t.numel() for t in (left, right) if t is not None), x.shape[0])
    for index in (left, right):
        _check(
            index is None
            or (index.dtype == torch.int64 and index.dim() == 1 and index.numel() == pairs),
            name,
            "indices must be int64 and as many as each other, of one dimension",
        )
    matrices, of_weights = x.shape[0], packed.shape[0]
    if pairs > 0 and 0 in (matrices, of_weights):
        raise RuntimeError(
            f"gather_quantized_matmul: no index is one of {matrices} matrices of x and {of_weights} of weights"
        )
    _check(
        (left is not None or matrices == pairs) and (right is not None or of_weights == pairs),
        name,
        f"there are {matrices} matrices of x and {of_weights} of weights for {pairs} pairs",
    )


def scales_gradient(grad, packed, scales, bits, group_size, mode) -> None:
    name = "quantized_scales_gradient"
    check_dtypes(name, [grad], formats.DTYPES)
    biases = scales if mode == "affine" else None
    check_devices(packed=packed, grad=grad)
    _check_weights(name, packed, scales, biases, None, bits, group_size, mode, grad.dtype)
    _check(
        grad.numel() == packed.numel() // bits * 8,
        name,
        f"grad of sizes {list(grad.shape)} is not of packed of sizes {list(packed.shape)}",
    )
    _check(scales.is_floating_point(), name, f"mode '{mode}' has no gradients")


def _check_bias(name: str, bias: Tensor | None, columns: int, dtype: torch.dtype) -> None:
    _check(
        bias is None or (bias.dim() == 1 and bias.shape[0] == columns and bias.dtype == dtype),
        name,
        f"bias must be {scalar_type(dtype)} of {columns} elements",
    )


# ---- GGUF ----------------------------------------------------------------------------------------


def _check_blocks(name: str, data: Tensor, qtype: int) -> int:
    """Returns the elements of a row."""
    known = gguf_formats.BY_NUMBER.get(qtype)
    _check(known is not None, name, f"there is no type {qtype}")
    _check(
        data.dim() >= 1 and data.dtype == torch.uint8,
        name,
        f"data must be bytes of at least one dimension, but is {scalar_type(data.dtype)} of sizes {list(data.shape)}",
    )
    _check(
        data.shape[-1] % known.bytes == 0,
        name,
        f"rows must be blocks of {known.bytes} bytes, but data has sizes {list(data.shape)}",
    )
    return data.shape[-1] // known.bytes * known.size


def gguf_dequantize(data, indices, qtype, dtype) -> None:
    name = "gguf_dequantize"
    if dtype not in formats.DTYPES:
        raise NotImplementedError(f"\"{name}\" not implemented for '{scalar_type(dtype)}'")
    _check_blocks(name, data, qtype)
    if indices is not None:
        check_devices(data=data, indices=indices)
        _check(
            data.dim() == 2 and indices.dtype == torch.int64,
            name,
            "indices must be int64 and data of 2 dimensions",
        )


def gguf_linear(x, data, bias, qtype) -> None:
    name = "gguf_linear"
    check_dtypes(name, [x], formats.DTYPES)
    check_devices(x=x, data=data, bias=bias)
    inner = _check_blocks(name, data, qtype)
    _check(
        x.dim() == 2 and data.dim() == 2 and x.shape[1] == inner,
        name,
        f"x must have rows of {inner} elements, but has sizes {list(x.shape)}",
    )
    _check_bias(name, bias, data.shape[0], x.dtype)
