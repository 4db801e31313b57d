"""Weights as llama.cpp stores them in GGUF files: types Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS and MXFP4.

``data`` are the bytes of a tensor, ``(..., N, bytes of a row)`` uint8, as gguf.GGUFReader has them; ``qtype`` is the name of its
type, or its number (gguf.GGMLQuantizationType). Activations are float32, float16 or bfloat16 and sums float32. Derivatives flow
to activations and bias. On ``mps`` kernels decode blocks where they multiply them, on CUDA tensors too for few
rows; elsewhere operators of torch do.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import _problem
from .._torch_internals import DispatchKey, DispatchKeySet, excluded_keys
from . import _elsewhere, fake
from . import _gguf_formats as formats
from . import _quantized_formats as quantized
from . import _quantized_on_cuda as on_cuda


def gguf_dequantize(
    data: Tensor, qtype: str | int, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The weights ``(..., N, K)``, computed in float32 and rounded to ``dtype``. ValueError for rows that are no whole blocks."""
    known = formats.checked("gguf_dequantize", data, qtype)
    return torch.ops.metalops.gguf_dequantize.default(data, None, known.number, _float(dtype))


def gguf_linear(x: Tensor, data: Tensor, qtype: str | int, bias: Tensor | None = None) -> Tensor:
    """``x w^T + bias`` as torch.nn.functional.linear, with the weights ``w (N, K)``. x: ``(..., K)``. bias: ``(N,)``.

    ValueError for other shapes.
    """
    name = "gguf_linear"
    _elsewhere.check_dtypes(name, [x], quantized.DTYPES)
    known = formats.checked(name, data, qtype, dimensions=2)
    rows, columns = data.shape[0], data.shape[1] // known.bytes * known.size
    if x.dim() == 0 or x.shape[-1] != columns:
        raise ValueError(
            f"{name}: x must have rows of {columns} elements, but has sizes {list(x.shape)}"
        )
    if bias is not None and bias.shape != (rows,):
        raise ValueError(f"{name}: bias must have sizes [{rows}], but has {list(bias.shape)}")
    for argument, tensor in (("data", data), ("bias", bias)):
        if tensor is not None and tensor.device != x.device:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but {argument} is on {tensor.device} and x on {x.device}"
            )
    result = torch.ops.metalops.gguf_linear.default(
        x.reshape(math.prod(x.shape[:-1]), columns),
        data,
        None if bias is None else bias.to(x.dtype),
        known.number,
    )
    return result.reshape(*x.shape[:-1], rows)


def gguf_embedding(
    indices: Tensor, data: Tensor, qtype: str | int, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The rows ``indices`` of the weights ``(N, K)``: ``(*indices, K)``. RuntimeError for indices that are not of rows, when next
    the device is waited for."""
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
    known = formats.checked("gguf_dequantize", data, qtype)
    if indices is not None:
        wrong = (indices < 0) | (indices >= data.shape[0])
        if wrong.any():
            raise RuntimeError(
                f"gguf_embedding: index {indices[wrong][0].item()} is not one of {data.shape[0]}"
            )
        data = data[indices]
    return formats.dequantized(data, known).to(dtype)


def _linear(x: Tensor, data: Tensor, bias: Tensor | None, qtype: int) -> Tensor:
    weight = formats.dequantized(data, formats.checked("gguf_linear", data, qtype))
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


# ---- derivatives, autocast and registration ------------------------------------------------------


def _save(ctx, inputs, output) -> None:
    x, data, _, ctx.qtype = inputs
    ctx.dtype = x.dtype
    ctx.save_for_backward(data)


def _differentiate(ctx, grad):
    (data,) = ctx.saved_tensors
    of_x = of_bias = None
    if ctx.needs_input_grad[0]:
        weight = torch.ops.metalops.gguf_dequantize.default(data, None, ctx.qtype, ctx.dtype)
        of_x = torch.ops.metalops.linear_act.default(grad, weight.T)
    if ctx.needs_input_grad[2]:
        of_bias = grad.sum(0)
    return of_x, None, of_bias, None


def _autocast(key: str):
    """As torch's autocast has its linear layers."""
    device = key.removeprefix("Autocast").lower()
    keys = DispatchKeySet(getattr(DispatchKey, key))

    def kernel(x, data, bias, qtype):
        with excluded_keys(keys):
            dtype = torch.get_autocast_dtype(device)
            bias = None if bias is None else bias.to(dtype)
            return torch.ops.metalops.gguf_linear.default(x.to(dtype), data, bias, qtype)

    return kernel


# As csrc/ops/gguf.mm has them.
_SCHEMAS = (
    "gguf_dequantize(Tensor data, Tensor? indices, int qtype, ScalarType dtype) -> Tensor",
    "gguf_linear(Tensor x, Tensor data, Tensor? bias, int qtype) -> Tensor",
)


def _register() -> None:
    library = fake.fragment("metalops")
    if _problem is not None:
        for schema in _SCHEMAS:
            library.define(schema, tags=[torch.Tag.pt2_compliant_tag])
    for name, kernel, cuda_kernel, fake_kernel in (
        ("gguf_dequantize", _dequantize, on_cuda.gguf_dequantize, _fake_dequantize),
        ("gguf_linear", _linear, on_cuda.gguf_linear, _fake_linear),
    ):
        library.impl(name, kernel, "CPU")
        library.impl(name, cuda_kernel, "CUDA")
        torch.library.register_fake(f"metalops::{name}", fake_kernel, lib=library)
    torch.library.register_autograd(
        "metalops::gguf_linear", _differentiate, setup_context=_save, lib=library
    )
    for key in ("AutocastCPU", "AutocastCUDA", "AutocastMPS"):
        library.impl("gguf_linear", _autocast(key), key)


_register()
