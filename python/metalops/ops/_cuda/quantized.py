"""GEMM and GEMV with quantised weights on CUDA tensors: the host side of kernels/quantized/quantized.metal,
kernels/quantized/quantized_matmul.metal and kernels/quantized/gguf.metal, the counterpart of
csrc/ops/quantized/quantized.mm, quantized_matmul.mm and gguf.mm on ``mps``. Large batches use torch's GEMM on
dequantised weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._formats import gguf as gguf_formats
from .._formats import quantized as formats
from .kernel_file import MOST_THREADS, TYPES, KernelFile, errors_of, header, number

_PACKING = KernelFile("quantized")
_SKINNY = KernelFile("quantized_matmul")
_TILES = KernelFile("quantized_matmul", has_products=True)
_GGUF = KernelFile("gguf")

FEW_ROWS = 8
_WITH_GEMV = ("int4", "mxfp4", "nvfp4")  # formats with a GEMV kernel
_CODES = {
    "affine": ("kInteger", "kElement"),
    "mxfp4": ("kE2M1", "kE8M0"),
    "mxfp8": ("kE4M3", "kE8M0"),
    "nvfp4": ("kE2M1", "kE4M3"),
    "nf4": ("kNormalFloat4", "kFloat"),
    "fp4": ("kFloat4", "kFloat"),
    "int8": ("kSigned8", "kElement"),
}


def takes(*tensors: Tensor | None) -> bool:
    """Returns true if the sizes fit the kernels' integers."""
    return all(t is None or t.numel() < 2**31 - 64 for t in tensors)


def _layout(lines: int, inner: int, bits: int, group_size: int, mode: str):
    types = header("quantized")
    code, scale = _CODES[mode]
    group_size = group_size or 2**30
    line_bytes, line_scales = inner // 8 * bits, -(-inner // group_size)
    return types.PackedLayout(
        line_bytes=line_bytes,
        line_scales=line_scales,
        matrix_bytes=line_bytes * lines,
        matrix_scales=line_scales * lines,
        lines=lines,
        inner=inner,
        bits=bits,
        group_shift=group_size.bit_length() - 1,
        format=types.CodeFormat[code],
        scale=types.ScaleFormat[scale],
    )


def _or_nothing(x: Tensor | None) -> Tensor | int:
    return 0 if x is None else x


def _aligned(x: Tensor, bytes: int) -> Tensor:
    x = x.contiguous()
    return x if x.data_ptr() % bytes == 0 else x.clone()


class _Weights:
    """Quantised weights as kernels read them."""

    def __init__(self, packed, scales, biases, global_scale, bits, group_size, mode):
        self.codes = _aligned(packed, 16)
        self.scales = scales.contiguous()
        self.biases = None if biases is None else biases.contiguous()
        self.global_scale = global_scale
        lines, inner = packed.shape[-2], packed.shape[-1] // bits * 8
        self.layout = _layout(lines, inner, bits, group_size, mode)
        together = min(16, 4 * bits & -(4 * bits))
        # Kernels count the bytes of eight rows of W in 32 bits.
        self.layout.is_aligned = (
            self.layout.line_bytes % together == 0 and self.layout.line_bytes < 2**29
        )
        self.layout.has_global = global_scale is not None


def quantize(weight, global_scale, bits, group_size, mode):
    inner = weight.shape[-1]
    lines = math.prod(weight.shape[:-1])
    layout = _layout(lines, inner, bits, group_size, mode)
    layout.has_global = global_scale is not None
    about = formats.MODES[mode]
    codes = weight.new_empty([*weight.shape[:-1], layout.line_bytes], dtype=torch.uint8)
    of_groups = [*weight.shape[:-1], layout.line_scales]
    scales = weight.new_empty(of_groups, dtype=about.scale or weight.dtype)
    biases = weight.new_empty(of_groups if about.biases else 0)
    threads = scales.numel() * min(group_size // 8, 32)
    _PACKING.grid(
        f"quantized_quantize_{TYPES[weight.dtype]}",
        (-(-threads // 32) * 32,),
        *(codes, scales, biases if about.biases else 0, weight.contiguous()),
        *(_or_nothing(global_scale), layout),
    )
    return codes, scales, biases


def dequantize(packed, scales, biases, global_scale, indices, bits, group_size, mode, dtype):
    w = _Weights(packed, scales, biases, global_scale, bits, group_size, mode)
    rows = packed.shape[:-1] if indices is None else indices.shape
    result = packed.new_empty([*rows, w.layout.inner], dtype=dtype)
    indices = None if indices is None else indices.contiguous()
    _PACKING.grid(
        f"quantized_dequantize_{TYPES[dtype]}",
        (w.layout.inner // 8, math.prod(rows)),
        *(result, w.codes, w.scales, _or_nothing(w.biases), _or_nothing(w.global_scale)),
        *(_or_nothing(indices), w.layout, number("?", indices is not None), errors_of(result)),
    )
    return result


def _splits(simdgroups: int, inner: int) -> int:
    splits = 1
    while splits < 4 and simdgroups * splits < 2048 and inner > 1024 * splits:
        splits *= 2
    return splits


def _suits_gemv(columns: int, inner: int) -> bool:
    return columns > 1 and inner <= 32 * 1024


def _launch_gemv(kernels: KernelFile, kernel: str, operands, p) -> None:
    """Launches a GEMV (kernels/quantized/gemv.h): a threadgroup computes several output features, with a simdgroup for
    each 1024 elements of K."""
    simdgroups = -(-p.inner // 1024)
    # At most as many simdgroups as are resident on a GPU of 128 multiprocessors.
    most = min(16, 128 // simdgroups, p.columns, p.columns * simdgroups // 4096)
    lines = max(most // 2 * 2, 2)
    groups = -(-p.columns // lines)
    kernels.threadgroups(kernel, groups, simdgroups * 32, *operands, p, number("i", lines))


def matmul(
    x, packed, scales, biases, bias, global_scale, left, right, transpose, bits, group_size, mode
):
    rows = x.shape[1]
    if rows > FEW_ROWS and left is None and right is None:
        weights = dequantize(
            packed, scales, biases, global_scale, None, bits, group_size, mode, x.dtype
        )
        result = torch.matmul(x, weights.mT if transpose else weights)
        return result if bias is None else result + bias
    w = _Weights(packed, scales, biases, global_scale, bits, group_size, mode)
    x = _aligned(x, 16)
    pairs = next((t.shape[0] for t in (left, right) if t is not None), x.shape[0])
    columns = packed.shape[1] if transpose else w.layout.inner
    result = x.new_empty([pairs, rows, columns])
    if result.numel() == 0 or x.shape[2] == 0:
        return result.zero_() if bias is None else result.copy_(bias.expand(result.shape))
    p = header("quantized").QuantizedProduct(
        right=w.layout,
        left_matrix=rows * x.shape[2],
        left_matrices=x.shape[0],
        right_matrices=packed.shape[0],
        rows=rows,
        columns=columns,
        inner=x.shape[2],
        splits=1,
        right_transposed=not transpose,
        has_bias=bias is not None,
        has_left_index=left is not None,
        has_right_index=right is not None,
    )
    format_name = {"affine": f"int{bits}", "int8": "signed8"}.get(mode, mode)
    operands = (
        *(result, x, w.codes, w.scales, _or_nothing(w.biases)),
        *(0 if bias is None else bias.contiguous(), _or_nothing(w.global_scale)),
    )
    is_whole = w.layout.is_aligned and p.inner % 32 == 0
    is_gemv = rows == pairs == 1 and left is None and right is None and transpose and is_whole
    if is_gemv and format_name in _WITH_GEMV and _suits_gemv(columns, p.inner):
        _launch_gemv(_SKINNY, f"quantized_matmul_gemv_{format_name}_{TYPES[x.dtype]}", operands, p)
        return result
    kernels, threads = _SKINNY, 128
    if rows > FEW_ROWS:
        kernels, name = _TILES, f"quantized_matmul_tiles_{'small' if rows <= 32 else 'large'}"
        down, across = 16 if rows <= 32 else 64, 64
    elif not transpose:
        name, threads = "quantized_matmul_gemv_transposed", 256
        down, across = 1, 256
    else:
        is_float = x.dtype == torch.float32
        if rows > 1 and not is_float and is_whole:
            name, down, across, threads = f"quantized_matmul_skinny_{format_name}", 8, 32, 256
        else:
            are_more = rows > 1 and is_float
            name = f"quantized_matmul_{'skinny' if are_more else 'skinny_1'}_{format_name}"
            down, across = (4, 4) if are_more else (1, 8)
            p.splits = _splits(pairs * -(-rows // down) * -(-columns // across), p.inner)
            across = across * 4 // p.splits
    groups = pairs * -(-rows // down) * -(-columns // across)
    if groups * threads > MOST_THREADS:
        raise RuntimeError(f"quantized_matmul: a result of sizes {list(result.shape)} is too large")
    indices = [None if t is None else t.contiguous() for t in (left, right)]
    kernels.threadgroups(
        f"{name}_{TYPES[x.dtype]}",
        groups,
        threads,
        *operands,
        *map(_or_nothing, indices),
        *(p, errors_of(x)),
    )
    return result


# ---- GGUF ----------------------------------------------------------------------------------------


# Types with kernels specialised at compile time.
_WITH_PIECES = {
    gguf_formats.TYPES[name].number: name for name in ("Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
}


def _gguf_layout(data: Tensor, qtype: int):
    known = gguf_formats.BY_NUMBER[qtype]
    line_bytes = data.shape[-1]
    return header("gguf").GgufLayout(
        line_bytes=line_bytes,
        lines=math.prod(data.shape[:-1]),
        inner=line_bytes // known.bytes * known.size,
        block_shift=known.size.bit_length() - 1,
        block_bytes=known.bytes,
        type=qtype,
    )


def gguf_dequantize(data: Tensor, indices: Tensor | None, qtype: int, dtype: torch.dtype) -> Tensor:
    layout = _gguf_layout(data, qtype)
    rows = data.shape[:-1] if indices is None else indices.shape
    result = data.new_empty([*rows, layout.inner], dtype=dtype)
    indices = None if indices is None else indices.contiguous()
    _GGUF.grid(
        f"gguf_dequantize_{TYPES[dtype]}",
        (layout.inner // 8, math.prod(rows)),
        *(result, data.contiguous(), _or_nothing(indices), layout),
        *(number("?", indices is not None), errors_of(result)),
    )
    return result


def gguf_linear(x: Tensor, data: Tensor, bias: Tensor | None, qtype: int) -> Tensor:
    rows, columns = x.shape[0], data.shape[0]
    if rows > FEW_ROWS or x.numel() == 0 or columns == 0:
        weights = gguf_dequantize(data, None, qtype, x.dtype)
        return torch.nn.functional.linear(x, weights, bias)
    result = x.new_empty([rows, columns])
    layout = _gguf_layout(data, qtype)
    p = header("gguf").GgufProduct(
        right=layout, rows=rows, columns=columns, inner=x.shape[1], splits=1,
        has_bias=bias is not None,
    )  # fmt: skip
    operands = (
        *(result, _aligned(x, 16), _aligned(data, 16)),
        0 if bias is None else bias.contiguous(),
    )
    if rows == 1 and _WITH_PIECES.get(qtype) == "Q4_K" and _suits_gemv(columns, p.inner):
        _launch_gemv(_GGUF, f"gguf_gemv_Q4_K_{TYPES[x.dtype]}", operands, p)
        return result
    name, down = ("gguf_skinny_1_", 1) if rows == 1 else ("gguf_skinny_", 4)
    if qtype in _WITH_PIECES:
        known = _WITH_PIECES[qtype]
        name += f"{known}_"
        across = 2 if rows > 1 else 8 if known == "Q4_K" else 4
        p.splits = _splits(-(-rows // down) * -(-columns // across), p.inner)
        across = across * 4 // p.splits
    else:
        across = 8
    _GGUF.threadgroups(
        name + TYPES[x.dtype],
        -(-rows // down) * -(-columns // across),
        128,
        *operands,
        p,
    )
    return result
