"""Fake kernels of grouped GEMM on ``mps``, for tracing.

torch's fake kernels accept only what CUDA's fastest kernels accept, and except for CUDA builds their results lack the
padding that real ones have on every device; _scaled_grouped_mm_v2 has no fake kernel.
"""

from __future__ import annotations

import functools

import torch

from .internals import register_fake_implementation


@functools.cache
def install() -> None:
    aten = torch.ops.aten
    register_fake_implementation(aten._grouped_mm.default)(_grouped_mm)
    register_fake_implementation(aten._scaled_grouped_mm.default)(_scaled_grouped_mm)
    register_fake_implementation(aten._scaled_grouped_mm_v2.default)(_scaled_grouped_mm_v2)


def _grouped_mm(mode, operator, mat_a, mat_b, offs=None, bias=None, out_dtype=None):
    if mat_a.device.type != "mps":
        return NotImplemented
    return _result(mode, mat_a, mat_b, offs, mat_a.dtype)


def _scaled_grouped_mm(
    mode,
    operator,
    mat_a,
    mat_b,
    scale_a,
    scale_b,
    offs=None,
    bias=None,
    scale_result=None,
    out_dtype=None,
    use_fast_accum=False,
):
    if mat_a.device.type != "mps":
        return NotImplemented
    return _result(mode, mat_a, mat_b, offs, out_dtype or torch.bfloat16)


def _scaled_grouped_mm_v2(
    mode,
    operator,
    mat_a,
    mat_b,
    scale_a,
    recipe_a,
    swizzle_a,
    scale_b,
    recipe_b,
    swizzle_b,
    offs=None,
    bias=None,
    out_dtype=None,
    contraction_dim=(),
    use_fast_accum=False,
):
    if mat_a.device.type != "mps":
        return NotImplemented
    return _result(mode, mat_a, mat_b, offs, out_dtype or torch.bfloat16)


def _result(mode, mat_a, mat_b, offs, dtype):
    """Returns the result as at::native::create_grouped_gemm_output_tensor lays it out: rows begin at multiples of 16
    bytes."""
    rows, columns = mat_a.shape[-2], mat_b.shape[-1]
    step = 16 // dtype.itemsize
    stride = (columns + step - 1) // step * step
    with mode:
        if (mat_a.dim() == 2) != (mat_b.dim() == 2):
            shape, strides = (rows, columns), (stride, 1)
        else:
            matrices = offs.shape[0] if mat_a.dim() == 2 else mat_a.shape[0]
            shape, strides = (matrices, rows, columns), (rows * stride, stride, 1)
        return torch.empty_strided(shape, strides, dtype=dtype, device=mat_a.device)
