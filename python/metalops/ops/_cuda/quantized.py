"""GEMM and GEMV with quantised weights on CUDA tensors: runs the plans of csrc/plans/quantized, as
csrc/ops/quantized/{quantized,quantized_matmul,gguf}.mm do on ``mps``. Large batches use torch's GEMM on dequantised
weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._formats import gguf as gguf_formats
from .._formats import quantized as formats
from . import kernel_file, plan

# The largest number of rows that are multiplied by weights as they are read: by any kernel, and by simdgroup matrices; and by
# weights that are decoded for each tile of a product. Decoding them once takes less for more rows.
FEW_ROWS = 8
_FEW_ROWS_OF_MATRICES = 16
_MOST_ROWS_OF_LINES = 1024
_MODES = ("affine", "mxfp4", "mxfp8", "nvfp4", "nf4", "fp4", "int8")  # as plans::QuantizedMode


def takes(*tensors: Tensor | None) -> bool:
    """Returns true if the sizes fit the kernels' integers."""
    return all(t is None or t.numel() < 2**31 - 64 for t in tensors)


def _weights(codes, scales, biases, global_scale, bits, group_size, mode) -> dict[str, object]:
    """Returns quantised weights as arguments of a plan function."""
    return {
        "codes": codes,
        "scales": scales,
        "biases": biases,
        "global_scale": None if global_scale is None else global_scale.reshape(1),
        "bits": bits,
        "group_size": group_size,
        "mode": _MODES.index(mode),
    }


def _rows(x: Tensor | None) -> Tensor | None:
    """Returns matrices as one of two dimensions."""
    return x if x is None else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def quantize(weight, global_scale, bits, group_size, mode):
    about = formats.MODES[mode]
    inner, sizes = weight.shape[-1], weight.shape[:-1]
    codes = weight.new_empty([*sizes, inner // 8 * bits], dtype=torch.uint8)
    of_groups = [*sizes, -(-inner // (group_size or max(inner, 1)))]
    scales = weight.new_empty(of_groups, dtype=about.scale or weight.dtype)
    biases = weight.new_empty(of_groups if about.biases else 0)
    if weight.numel() > 0:
        results = (_rows(codes), _rows(scales), _rows(biases) if about.biases else None)
        plan.run(
            "quantized_quantize",
            weight,
            weight=_rows(weight),
            **_weights(*results, global_scale, bits, group_size, mode),
        )
    return codes, scales, biases


def dequantize(packed, scales, biases, global_scale, indices, bits, group_size, mode, dtype):
    rows = packed.shape[:-1] if indices is None else indices.shape
    result = packed.new_empty([*rows, packed.shape[-1] // bits * 8], dtype=dtype)
    if result.numel() > 0:
        weights = _rows(packed), _rows(scales), _rows(biases)
        plan.run(
            "quantized_dequantize",
            result,
            result=_rows(result),
            indices=None if indices is None else indices.reshape(-1),
            **_weights(*weights, global_scale, bits, group_size, mode),
        )
    return result


def _are_few(rows: int, x: Tensor, has_matrices: bool) -> bool:
    by_matrices = has_matrices and x.dtype != torch.float32 and x.shape[-1] % 32 == 0
    return rows <= (_FEW_ROWS_OF_MATRICES if by_matrices else FEW_ROWS)


def _are_coded_lines(x: Tensor, bits: int, mode: str) -> bool:
    """Returns true if warpgroups multiply the weights of one matrix while they are decoded: see plans::quantized_matmul()."""
    pairs, rows, inner = x.shape
    suits = bits in (2, 4, 8) and mode != "int8" and x.dtype != torch.float32 and inner % 64 == 0
    return suits and pairs == 1 and rows <= _MOST_ROWS_OF_LINES and kernel_file.has_warpgroups(x)


def matmul(
    x, packed, scales, biases, bias, global_scale, left, right, transpose, bits, group_size, mode
):
    rows = x.shape[1]
    are_few = _are_few(rows, x, transpose) or (transpose and _are_coded_lines(x, bits, mode))
    if not are_few and left is None and right is None:
        weights = dequantize(
            packed, scales, biases, global_scale, None, bits, group_size, mode, x.dtype
        )
        result = torch.matmul(x, weights.mT if transpose else weights)
        return result if bias is None else result + bias
    pairs = next((t.shape[0] for t in (left, right) if t is not None), x.shape[0])
    columns = packed.shape[1] if transpose else packed.shape[-1] // bits * 8
    result = x.new_empty([pairs, rows, columns])
    if result.numel() == 0 or x.shape[2] == 0:
        return result.zero_() if bias is None else result.copy_(bias.expand(result.shape))
    plan.run(
        "quantized_matmul",
        x,
        result=result,
        x=x,
        bias=bias,
        left_index=left,
        right_index=right,
        transpose=transpose,
        **_weights(packed, scales, biases, global_scale, bits, group_size, mode),
    )
    return result


# ---- GGUF ----------------------------------------------------------------------------------------


# Types that have a product of simdgroup matrices.
_WITH_MATRICES = {
    gguf_formats.TYPES[name].number
    for name in ("Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")
}


def gguf_dequantize(data: Tensor, indices: Tensor | None, qtype: int, dtype: torch.dtype) -> Tensor:
    known = gguf_formats.BY_NUMBER[qtype]
    rows = data.shape[:-1] if indices is None else indices.shape
    result = data.new_empty([*rows, data.shape[-1] // known.bytes * known.size], dtype=dtype)
    if result.numel() > 0:
        plan.run(
            "gguf_dequantize",
            result,
            result=_rows(result),
            data=_rows(data),
            indices=None if indices is None else indices.reshape(-1),
            qtype=qtype,
        )
    return result


def gguf_linear(x: Tensor, data: Tensor, bias: Tensor | None, qtype: int) -> Tensor:
    rows, columns = x.shape[0], data.shape[0]
    if not _are_few(rows, x, qtype in _WITH_MATRICES) or x.numel() == 0 or columns == 0:
        weights = gguf_dequantize(data, None, qtype, x.dtype)
        return torch.nn.functional.linear(x, weights, bias)
    result = x.new_empty([rows, columns])
    plan.run("gguf_linear", x, result=result, x=x, data=data, bias=bias, qtype=qtype)
    return result
