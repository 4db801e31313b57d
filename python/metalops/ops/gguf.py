"""Quantised weights of llama.cpp's GGUF files: types Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS and
MXFP4.

``data`` are the bytes of a tensor, ``(..., N, bytes of a row)`` uint8, as in gguf.GGUFReader; ``qtype`` is the name of
its type, or its number (gguf.GGMLQuantizationType). Activations are float32, float16 or bfloat16 and sums float32.
Derivatives flow to activations and bias. ``out=`` is resized and cast to as with torch's own functions. On ``mps``, and
on CUDA tensors for small batches, blocks are dequantised inside the GEMM/GEMV kernel; elsewhere operators of torch do
it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._cuda import quantized as on_cuda
from ._define.fake import delivered
from ._define.registration import Operator, register
from ._define.vmap import sequence_of_calls
from ._formats import gguf as formats
from ._formats import quantized as quantized


def gguf_dequantize(
    data: Tensor,
    qtype: str | int,
    *,
    dtype: torch.dtype = torch.float32,
    out: Tensor | None = None,
) -> Tensor:
    """The weights ``(..., N, K)``, computed in float32 and rounded to ``dtype``. Raises ValueError for rows that do not
    consist of whole blocks."""
    known = formats.checked("gguf_dequantize", data, qtype)
    result = torch.ops.metalops.gguf_dequantize.default(data, None, known.number, _float(dtype))
    return delivered("gguf_dequantize", result, out)


def gguf_linear(
    x: Tensor,
    data: Tensor,
    qtype: str | int,
    bias: Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """``x w^T + bias`` as torch.nn.functional.linear, with the weights ``w (N, K)``. x: ``(..., K)``. bias: ``(N,)``.

    Raises ValueError for other shapes.
    """
    name = "gguf_linear"
    known = formats.checked(name, data, qtype, dimensions=2)
    rows, columns = data.shape[0], data.shape[1] // known.bytes * known.size
    if x.dim() == 0 or x.shape[-1] != columns:
        raise ValueError(
            f"{name}: x must have rows of {columns} elements, but has sizes {list(x.shape)}"
        )
    if bias is not None and bias.shape != (rows,):
        raise ValueError(f"{name}: bias must have sizes [{rows}], but has {list(bias.shape)}")
    result = torch.ops.metalops.gguf_linear.default(
        x.reshape(math.prod(x.shape[:-1]), columns),
        data,
        None if bias is None else bias.to(x.dtype),
        known.number,
    )
    return delivered(name, result.reshape(*x.shape[:-1], rows), out)


def gguf_embedding(
    indices: Tensor, data: Tensor, qtype: str | int, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The rows ``indices`` of the weights ``(N, K)``: ``(*indices, K)``. Raises RuntimeError for out-of-range indices,
    at the next synchronisation with the device."""
    known = formats.checked("gguf_embedding", data, qtype, dimensions=2)
    if indices.is_floating_point() or indices.dtype == torch.bool:
        raise ValueError(f"gguf_embedding: indices must be integers, but are {indices.dtype}")
    return torch.ops.metalops.gguf_dequantize.default(
        data, indices.long(), known.number, _float(dtype)
    )


OPERATORS = (gguf_dequantize, gguf_linear, gguf_embedding)


def _float(dtype: torch.dtype) -> torch.dtype:
    if dtype not in quantized.DTYPES:
        known = ", ".join(map(str, quantized.DTYPES))
        raise ValueError(f"GGUF: dtype must be one of {known}, but is {dtype}")
    return dtype


# ---- in operators of torch -----------------------------------------------------------------------


def _dequantize(data: Tensor, indices: Tensor | None, qtype: int, dtype: torch.dtype) -> Tensor:
    known = formats.BY_NUMBER[qtype]
    if indices is not None:
        wrong = (indices < 0) | (indices >= data.shape[0])
        if wrong.any():
            raise RuntimeError(
                f"gguf_embedding: index {indices[wrong][0].item()} is not one of {data.shape[0]}"
            )
        data = data[indices]
    return formats.dequantized(data, known).to(dtype)


def _linear(x: Tensor, data: Tensor, bias: Tensor | None, qtype: int) -> Tensor:
    weight = formats.dequantized(data, formats.BY_NUMBER[qtype])
    result = torch.matmul(x.float(), weight.T)
    if bias is not None:
        result = result + bias.float()
    return result.to(x.dtype)


def _fake_dequantize(data, indices, qtype, dtype):
    known = formats.BY_NUMBER[qtype]
    rows = data.shape[:-1] if indices is None else indices.shape
    return data.new_empty([*rows, data.shape[-1] // known.bytes * known.size], dtype=dtype)


def _fake_linear(x, data, bias, qtype):
    return x.new_empty([x.shape[0], data.shape[0]])


# ---- derivatives, autocast, torch.vmap and registration ------------------------------------------


def _differentiate(args, results, grads, wanted):
    x, data, _, qtype = args
    (grad,) = grads
    of_x = of_bias = None
    if wanted[0]:
        weight = torch.ops.metalops.gguf_dequantize.default(data, None, qtype, x.dtype)
        of_x = torch.ops.metalops.linear_act.default(grad, weight.T)
    if wanted[2]:
        of_bias = grad.sum(0)
    return of_x, None, of_bias


def _lowered(dtype, device, x, data, bias, qtype) -> tuple:
    """Casts the arguments as torch's autocast does for linear layers."""
    return x.to(dtype), data, None if bias is None else bias.to(dtype), qtype


def _vmap_dequantize(info, in_dims, data, indices, qtype, dtype):
    overload = torch.ops.metalops.gguf_dequantize.default
    if in_dims[0] is not None and indices is not None:
        return sequence_of_calls(overload, info, in_dims, (data, indices, qtype, dtype))
    if indices is None:
        data = data.movedim(in_dims[0], 0)
    else:
        indices = indices.movedim(in_dims[1], 0)
    return overload(data, indices, qtype, dtype), 0


def _vmap_linear(info, in_dims, x, data, bias, qtype):
    overload = torch.ops.metalops.gguf_linear.default
    if in_dims[1:3] != (None, None):
        return sequence_of_calls(overload, info, in_dims, (x, data, bias, qtype))
    rows = x.movedim(in_dims[0], 0)
    return overload(rows.flatten(0, 1), data, bias, qtype).unflatten(0, rows.shape[:2]), 0


# The schemas agree with csrc/ops/quantized/gguf.mm.
register(
    Operator(
        "gguf_dequantize(Tensor data, Tensor? indices, int qtype, ScalarType dtype) -> Tensor",
        cpu=_dequantize,
        cuda=on_cuda.gguf_dequantize,
        fake=_fake_dequantize,
        vmap=_vmap_dequantize,
    ),
    Operator(
        "gguf_linear(Tensor x, Tensor data, Tensor? bias, int qtype) -> Tensor",
        cpu=_linear,
        cuda=on_cuda.gguf_linear,
        fake=_fake_linear,
        gradients=_differentiate,
        vmap=_vmap_linear,
        lowered=_lowered,
    ),
)
