"""GEMM and GEMV with quantised weights of 1 to 8 bits.

The names and the numerics are those of MLX; packed weights of mlx-community's checkpoints, of torchao (``affine``; its
offsets are biases here) and of bitsandbytes (``nf4`` and ``fp4``) are taken as they are.

======== ======== ================ ======================== =========================== ===================================
mode     bits     group_size       scales                   biases                      value of a quant
======== ======== ================ ======================== =========================== ===================================
affine   1 to 8   32 64 128 256    dtype of the weights     that of scales, needed      ``code scale + bias``
mxfp4    4        32               uint8: e8m0              none                        e2m1 times scale
mxfp8    8        32               uint8: e8m0              none                        e4m3 times scale
nvfp4    4        16               uint8: e4m3              none                        e2m1 times scale, global_scale / 2688
nf4, fp4 4        32 64 ... 4096   float32                  none                        of bitsandbytes' tables, times scale
======== ======== ================ ======================== =========================== ===================================

Packed weights are ``(..., N, K bits / 8)`` uint8; views of the same bytes as int32 and uint32 are accepted, too. Scales
and biases are ``(..., N, K / group_size)``. K is a multiple of the group's size, in mode affine of 8 only, with a
shorter last group.

Activations are float32, float16 or bfloat16; scales and biases of mode affine are taken in their dtype, sums are in
float32. Derivatives of any order flow to activations, scales, biases and bias. ``out=`` is resized and cast to as with
torch's own functions. Autocast lowers the precision as that of a linear layer. Wrong shapes, bits, groups and biases
are ValueErrors. On ``mps``, and on CUDA tensors for small batches, weights are dequantised inside the GEMM/GEMV kernel;
elsewhere operators of torch do it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import _problem
from ._cuda import quantized as on_cuda
from ._define import elsewhere
from ._define.fake import delivered
from ._define.registration import Operator, register
from ._define.vmap import sequence_of_calls
from ._formats import quantized as formats


def quantize(
    weight: Tensor,
    *,
    bits: int | None = None,
    group_size: int | None = None,
    mode: str = "affine",
    global_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """``(packed, scales, biases)`` of weights ``(..., N, K)``; biases are None except in mode affine.

    bits, group_size: by default 4 and 64, or those of the mode. global_scale: of mode nvfp4, one float32, usually the
    magnitude of the largest weight, which the largest quant (6) times the largest scale (448) then represents: weights
    are quants times scales times ``global_scale / 2688``, as in MLX (2688 times torchao's per_tensor_scale).

    affine, as MLX: ``scale`` is the group's range over ``2^bits - 1``, and the extreme farther from zero and, nearly,
    zero are representable; with 1 bit, both extremes. mxfp4, mxfp8: scales are the smallest powers of two that are no
    less than the largest magnitude over 6 or 448 (MLX from 0.32.4 on; before that the nearest in their logarithm, and
    torchao's default rounds down); nvfp4: the e4m3 nearest to the largest magnitude over 6. Quants are the nearest,
    ties to even ones, except for nf4 and fp4, whose thresholds are those of bitsandbytes. Not differentiable.
    """
    bits, group_size = formats.usual(mode, bits, group_size)
    if weight.dim() == 0:
        raise ValueError("quantize: weight must have at least one dimension, but has none")
    formats.check_columns("quantize", weight.shape[-1], group_size, mode)
    if global_scale is not None:
        formats.check_global("quantize", global_scale, mode)
        # Weights that are all zero are zero with any scale.
        global_scale = global_scale.detach()
        global_scale = torch.where(global_scale == 0, 1, global_scale)
    packed, scales, biases = torch.ops.metalops.quantize.default(
        weight.detach(), global_scale, bits, group_size, mode
    )
    return packed, scales, biases if formats.MODES[mode].biases else None


def dequantize(
    packed: Tensor,
    scales: Tensor,
    biases: Tensor | None = None,
    *,
    bits: int | None = None,
    group_size: int | None = None,
    mode: str = "affine",
    global_scale: Tensor | None = None,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The weights ``(..., N, K)``, rounded once. dtype: by default that of scales, or float32 if those are bytes."""
    p = formats.checked("dequantize", packed, scales, biases, global_scale, bits, group_size, mode)
    return delivered("dequantize", _dequantize(p, None, dtype), out)


def quantized_matmul(
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    biases: Tensor | None = None,
    *,
    transpose: bool = True,
    bits: int | None = None,
    group_size: int | None = None,
    mode: str = "affine",
    global_scale: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """``x w^T`` with the packed weights ``w``, or ``x w`` without transpose.

    x: ``(..., M, K)`` (``(..., M, N)``), its batch broadcast against that of the weights as torch.matmul does; with
    weights of two dimensions, ``(..., K)``. Returns ``(..., M, N)`` (``(..., M, K)``) of the dtype of x.
    """
    p = formats.checked(
        "quantized_matmul", packed, scales, biases, global_scale, bits, group_size, mode
    )
    return delivered("quantized_matmul", _matmul("quantized_matmul", x, p, None, transpose), out)


def quantized_linear(
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    biases: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    bits: int | None = None,
    group_size: int | None = None,
    mode: str = "affine",
    global_scale: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """``x w^T + bias`` as torch.nn.functional.linear, with the packed weights ``w (N, K)``. bias: ``(N,)``."""
    p = formats.checked(
        "quantized_linear", packed, scales, biases, global_scale, bits, group_size, mode
    )
    if p.codes.dim() != 2:
        raise ValueError(
            f"quantized_linear: packed must have 2 dimensions, but has sizes {list(packed.shape)}"
        )
    if bias is not None and list(bias.shape) != [p.shape[0]]:
        raise ValueError(
            f"quantized_linear: bias must have sizes [{p.shape[0]}], but has {list(bias.shape)}"
        )
    return delivered("quantized_linear", _matmul("quantized_linear", x, p, bias, True), out)


def gather_quantized_matmul(
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    biases: Tensor | None = None,
    *,
    lhs_indices: Tensor | None = None,
    rhs_indices: Tensor | None = None,
    transpose: bool = True,
    sorted_indices: bool = False,
    bits: int | None = None,
    group_size: int | None = None,
    mode: str = "affine",
    global_scale: Tensor | None = None,
) -> Tensor:
    """Batched GEMM of pairs of matrices: of ``x[lhs]`` and of the weights ``w[rhs]``, as mixtures of experts need it.

    x: ``(..., M, K)`` and weights: ``(..., N, K)``; the indices count their flattened batches, and each default to all
    matrices in order. The indices broadcast. Returns ``(*indices, M, N)``. sorted_indices: a promise that rhs_indices
    do not descend, for speed only. Raises RuntimeError for out-of-range indices, at the next synchronisation with the
    device.
    """
    name = "gather_quantized_matmul"
    p = formats.checked(name, packed, scales, biases, global_scale, bits, group_size, mode)
    if x.dim() < 2:
        raise ValueError(f"{name}: x must have at least 2 dimensions, but has {list(x.shape)}")
    _check_operands(name, x, p, None, transpose)
    for argument, index in (("lhs_indices", lhs_indices), ("rhs_indices", rhs_indices)):
        if index is not None and (index.is_floating_point() or index.dtype == torch.bool):
            raise ValueError(f"{name}: {argument} must be integers, but are {index.dtype}")
    left = _every_matrix(x) if lhs_indices is None else lhs_indices
    right = _every_matrix(p.codes) if rhs_indices is None else rhs_indices
    left, right = torch.broadcast_tensors(left, right)
    result = _pairs(
        _as_matrices(x),
        p,
        None,
        left.reshape(-1).long(),
        right.reshape(-1).long(),
        transpose,
    )
    return result.reshape(*left.shape, *result.shape[1:])


def quantized_embedding(
    indices: Tensor,
    packed: Tensor,
    scales: Tensor,
    biases: Tensor | None = None,
    *,
    bits: int | None = None,
    group_size: int | None = None,
    mode: str = "affine",
    global_scale: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The rows ``indices`` of weights ``(N, K)``: ``(*indices, K)``. dtype: as in :func:`dequantize`.

    Raises RuntimeError for out-of-range indices, at the next synchronisation with the device.
    """
    name = "quantized_embedding"
    p = formats.checked(name, packed, scales, biases, global_scale, bits, group_size, mode)
    if p.codes.dim() != 2:
        raise ValueError(
            f"{name}: packed must have 2 dimensions, but has sizes {list(packed.shape)}"
        )
    if indices.is_floating_point() or indices.dtype == torch.bool:
        raise ValueError(f"{name}: indices must be integers, but are {indices.dtype}")
    return _dequantize(p, indices.long(), dtype)


OPERATORS = (
    quantize,
    dequantize,
    quantized_matmul,
    quantized_linear,
    gather_quantized_matmul,
    quantized_embedding,
)


# ---- between the functions and the operators -----------------------------------------------------


def _dequantize(p: formats.Packed, indices: Tensor | None, dtype: torch.dtype | None) -> Tensor:
    dtype = dtype or (p.scales.dtype if p.scales.is_floating_point() else torch.float32)
    if dtype not in formats.DTYPES:
        known = ", ".join(map(str, formats.DTYPES))
        raise ValueError(f"dequantize: dtype must be one of {known}, but is {dtype}")
    # Scales of more precision than the result are not rounded to it.
    follows = formats.MODES[p.mode].scale is None
    computed = torch.promote_types(dtype, p.scales.dtype) if follows else dtype
    p = p.of_dtype(computed)
    result = torch.ops.metalops.dequantize.default(
        p.codes, p.scales, p.biases, p.global_scale, indices, p.bits, p.group_size, p.mode, computed
    )
    return result.to(dtype)


def _check_operands(
    name: str, x: Tensor, p: formats.Packed, bias: Tensor | None, transpose: bool
) -> None:
    elsewhere.check_dtypes(name, [x], formats.DTYPES)
    elsewhere.check_devices(packed=p.codes, x=x, bias=bias)
    inner = p.shape[-1 if transpose else -2]
    if x.dim() == 0 or x.shape[-1] != inner:
        raise ValueError(
            f"{name}: x must have rows of {inner} elements, but has sizes {list(x.shape)}"
        )


def _every_matrix(x: Tensor) -> Tensor:
    """Returns the indices of the matrices of a batch."""
    batch = x.shape[:-2]
    return torch.arange(math.prod(batch), device=x.device).reshape(batch)


def _as_matrices(x: Tensor) -> Tensor:
    return x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:])


def _pairs(
    x: Tensor,
    p: formats.Packed,
    bias: Tensor | None,
    left: Tensor | None,
    right: Tensor | None,
    transpose: bool,
) -> Tensor:
    p = p.of_dtype(x.dtype).map(_as_matrices)
    return torch.ops.metalops.quantized_matmul.default(
        x,
        p.codes,
        p.scales,
        p.biases,
        None if bias is None else bias.to(x.dtype),
        p.global_scale,
        left,
        right,
        transpose,
        p.bits,
        p.group_size,
        p.mode,
    )


def _matmul(
    name: str, x: Tensor, p: formats.Packed, bias: Tensor | None, transpose: bool
) -> Tensor:
    _check_operands(name, x, p, bias, transpose)
    if p.codes.dim() == 2:
        rows = x.reshape(1, math.prod(x.shape[:-1]), x.shape[-1])
        result = _pairs(rows, p, bias, None, None, transpose)
        return result.reshape(*x.shape[:-1], result.shape[-1])
    matrices = x.unsqueeze(0) if x.dim() == 1 else x
    batch = torch.broadcast_shapes(matrices.shape[:-2], p.codes.shape[:-2])
    left, right = (
        None if t.shape[:-2] == batch else _every_matrix(t).expand(batch).reshape(-1)
        for t in (matrices, p.codes)
    )
    result = _pairs(_as_matrices(matrices), p, bias, left, right, transpose)
    result = result.reshape(*batch, *result.shape[1:])
    return result.squeeze(-2) if x.dim() == 1 else result


# ---- in operators of torch -----------------------------------------------------------------------


def _quantize_kernel(weight, global_scale, bits, group_size, mode):
    packed, scales, biases = formats.quantized(weight, global_scale, bits, group_size, mode)
    return packed, scales, weight.new_empty(0) if biases is None else biases


def _check_indices(name: str, indices: Tensor, count: int) -> None:
    wrong = (indices < 0) | (indices >= count)
    if wrong.any():
        raise RuntimeError(f"{name}: index {indices[wrong][0].item()} is not one of {count}")


def _dequantize_kernel(
    packed, scales, biases, global_scale, indices, bits, group_size, mode, dtype
):
    p = formats.Packed(packed, scales, biases, global_scale, bits, group_size, mode)
    if indices is not None:
        _check_indices("quantized_embedding", indices, p.shape[0])
        p = p.map(lambda t: t[indices])
    return formats.dequantized(p).to(dtype).contiguous()


def _matmul_kernel(
    x, packed, scales, biases, bias, global_scale, left, right, transpose, bits, group_size, mode
):
    weights = formats.dequantized(
        formats.Packed(packed, scales, biases, global_scale, bits, group_size, mode)
    )
    for indices, matrices in ((left, x), (right, weights)):
        if indices is not None:
            _check_indices("gather_quantized_matmul", indices, matrices.shape[0])
    if right is not None:
        weights = weights[right]
    inputs = x.float() if left is None else x[left].float()
    result = torch.matmul(inputs, weights.mT if transpose else weights)
    if bias is not None:
        result = result + bias.float()
    return result.to(x.dtype).contiguous()


def _scales_gradient_kernel(grad, packed, scales, bits, group_size, mode):
    codes = formats.unpack(packed, bits, formats.is_high_first(mode))
    groups = scales.shape[-1]
    group_size = group_size or codes.shape[-1]
    missing = groups * group_size - codes.shape[-1]

    def total(x: Tensor) -> Tensor:
        x = torch.nn.functional.pad(x, (0, missing)).unflatten(-1, (groups, group_size))
        return x.sum(-1).to(scales.dtype)

    grad = grad.float().reshape(codes.shape)
    of_scales = total(grad * formats.values_of(codes, mode))
    return of_scales, total(grad) if mode == "affine" else scales.new_empty(0)


def _on_cuda(composed, kernels):
    """Returns a kernel that runs `kernels`, the CUDA counterpart of `composed`, if they support the sizes, else
    `composed`."""

    def kernel(*args):
        tensors = (x for x in args if isinstance(x, Tensor))
        return (kernels if on_cuda.takes(*tensors) else composed)(*args)

    return kernel


# ---- shapes --------------------------------------------------------------------------------------


def _fake_quantize(weight, global_scale, bits, group_size, mode):
    about = formats.MODES[mode]
    *lines, columns = weight.shape
    scales = [*lines, -(-columns // group_size)]
    return (
        weight.new_empty([*lines, columns * bits // 8], dtype=torch.uint8),
        weight.new_empty(scales, dtype=about.scale or weight.dtype),
        weight.new_empty(scales if about.biases else 0),
    )


def _fake_dequantize(packed, scales, biases, global_scale, indices, bits, group_size, mode, dtype):
    lines = packed.shape[:-1] if indices is None else indices.shape
    return packed.new_empty([*lines, packed.shape[-1] // bits * 8], dtype=dtype)


def _fake_matmul(
    x, packed, scales, biases, bias, global_scale, left, right, transpose, bits, group_size, mode
):
    pairs = x.shape[0]
    for index in (right, left):
        pairs = pairs if index is None else index.shape[0]
    columns = packed.shape[1] if transpose else packed.shape[2] // bits * 8
    return x.new_empty([pairs, x.shape[1], columns])


def _fake_scales_gradient(grad, packed, scales, bits, group_size, mode):
    biases = scales.shape if mode == "affine" else 0
    return scales.new_empty(scales.shape), scales.new_empty(biases)


# ---- derivatives ---------------------------------------------------------------------------------


def _of_scales(grad: Tensor, packed: Tensor, scales: Tensor, numbers: list) -> tuple:
    """Returns the gradients of scales and biases, from the gradient of the weights."""
    if not scales.is_floating_point():
        return None, None
    of_scales, of_biases = torch.ops.metalops.quantized_scales_gradient.default(
        grad, packed, scales, *numbers
    )
    return of_scales, of_biases if numbers[-1] == "affine" else None


def _differentiate_dequantize(args, results, grads, wanted):
    packed, scales, _, _, indices, *numbers, _ = args
    (grad,) = grads
    if indices is not None:
        rows = torch.zeros([packed.shape[0], grad.shape[-1]], dtype=grad.dtype, device=grad.device)
        grad = rows.index_add(0, indices.reshape(-1), grad.reshape(-1, grad.shape[-1]))
    of_scales, of_biases = _of_scales(grad, packed, scales, numbers)
    return None, of_scales, of_biases


def _differentiate_scales_gradient(args, results, grads, wanted):
    # It is the transpose of dequantize()'s linear map of scales and biases.
    grad, packed, scales, *numbers = args
    of_scales, of_biases = (torch.zeros_like(scales) if x is None else x for x in grads)
    biases = of_biases if numbers[-1] == "affine" else None
    of_grad = torch.ops.metalops.dequantize.default(
        packed, of_scales, biases, None, None, *numbers, grad.dtype
    )
    return (of_grad,)


def _differentiate_matmul(args, results, grads, wanted):
    x, packed, scales, biases, _, global_scale, left, right, transpose, *numbers = args
    (grad,) = grads
    of_x = of_scales = of_biases = of_bias = None
    if wanted[0]:
        of_x = torch.ops.metalops.quantized_matmul.default(
            grad, packed, scales, biases, None, global_scale, None, right, not transpose, *numbers
        )
        if left is not None:
            of_x = torch.zeros_like(x).index_add(0, left, of_x)
    if wanted[2] or wanted[3]:
        of_weights = _weight_gradient(grad, x, packed.shape[0], left, right, transpose)
        of_scales, of_biases = _of_scales(of_weights, packed, scales, numbers)
    if wanted[4]:
        rows = grad.reshape(-1, grad.shape[-1])
        of_bias = _column_sums(rows)
    return of_x, None, of_scales, of_biases, of_bias


def _column_sums(rows: Tensor) -> Tensor:
    if _problem is not None:
        return rows.sum(0)
    of_bias_only = [False, False, True]
    return torch.ops.metalops.linear_act_backward.default(
        rows, rows, rows, None, None, "none", of_bias_only
    )[2]


def _weight_gradient(grad, x, matrices, left, right, transpose) -> Tensor:
    """Returns the gradient of the dequantised weights, ``(matrices, N, K)``."""
    inputs = x if left is None else x[left]
    lines, columns = (grad, inputs) if transpose else (inputs, grad)
    if grad.shape[0] == 1 and right is None:
        product = torch.ops.metalops.linear_act.default(lines[0].mT, columns[0].mT)
        return product.unsqueeze(0)
    products = torch.matmul(lines.mT, columns)
    if right is None:
        return products
    of_weights = products.new_zeros([matrices, *products.shape[1:]])
    return of_weights.index_add(0, right, products)


def _lowered(dtype, device, x, packed, scales, biases, bias, *others) -> tuple:
    """Casts the arguments as torch's autocast does for linear layers."""
    if others[-1] in ("affine", "int8"):
        scales = scales.to(dtype)
        biases = None if biases is None else biases.to(dtype)
    return x.to(dtype), packed, scales, biases, None if bias is None else bias.to(dtype), *others


# ---- torch.vmap ----------------------------------------------------------------------------------


def _batch(size: int, x: Tensor | None, dim: int | None) -> Tensor | None:
    """Returns a tensor with the batch dimension first."""
    if x is None:
        return None
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def _vmap_quantize(info, in_dims, weight, global_scale, *numbers):
    overload = torch.ops.metalops.quantize.default
    if in_dims[1] is not None:
        return sequence_of_calls(overload, info, in_dims, (weight, global_scale, *numbers))
    results = overload(weight.movedim(in_dims[0], 0), global_scale, *numbers)
    if numbers[-1] == "affine":
        return results, (0, 0, 0)
    return results, (0, 0, None)


def _vmap_dequantize(info, in_dims, *args):
    overload = torch.ops.metalops.dequantize.default
    *weights, global_scale, indices = args[:5]
    if any(d is not None for d in in_dims[:3]):
        if indices is not None or in_dims[3] is not None:
            return sequence_of_calls(overload, info, in_dims, args)
        weights = [_batch(info.batch_size, x, d) for x, d in zip(weights, in_dims)]
    elif in_dims[3] is not None:
        return sequence_of_calls(overload, info, in_dims, args)
    else:
        indices = indices.movedim(in_dims[4], 0)
    return overload(*weights, global_scale, indices, *args[5:]), 0


def _vmap_scales_gradient(info, in_dims, grad, packed, scales, *numbers):
    tensors = (
        _batch(info.batch_size, x, d) for x, d in zip((grad, packed, scales), in_dims, strict=False)
    )
    results = torch.ops.metalops.quantized_scales_gradient.default(*tensors, *numbers)
    return results, (0, 0 if numbers[-1] == "affine" else None)


def _vmap_matmul(info, in_dims, *args):
    overload = torch.ops.metalops.quantized_matmul.default
    x, packed, scales, biases, bias, global_scale, left, right, *others = args
    of_x, *of_weights, of_bias, of_global, of_left, of_right = in_dims[:8]
    if of_bias is not None or of_global is not None:
        return sequence_of_calls(overload, info, in_dims, args)
    size = info.batch_size
    if all(d is None for d in (*of_weights, of_left, of_right)):
        # The rows of all samples, with the weights once.
        rows = x.movedim(of_x, 1)
        result = overload(rows.flatten(1, 2), *args[1:])
        return result.unflatten(1, rows.shape[1:3]), 1
    # Pairs of the matrices of all samples.
    left = _index_of_all(size, left, of_left, x, of_x)
    is_batch = any(d is not None for d in of_weights)
    if is_batch:
        packed, scales, biases = (
            _batch(size, t, d) for t, d in zip((packed, scales, biases), of_weights, strict=True)
        )
    right = _index_of_all(size, right, of_right, packed, 0 if is_batch else None)
    if of_x is not None:
        x = x.movedim(of_x, 0).flatten(0, 1)
    if is_batch:
        packed, scales, biases = (
            None if t is None else t.flatten(0, 1) for t in (packed, scales, biases)
        )
    result = overload(x, packed, scales, biases, bias, global_scale, left, right, *others)
    return result.unflatten(0, (size, result.shape[0] // size)), 0


def _index_of_all(
    size: int, index: Tensor | None, dim: int | None, matrices: Tensor, of_matrices: int | None
) -> Tensor:
    """Returns the indices of the matrices in each sample's pairs, among those of all samples."""
    count = matrices.shape[0] if of_matrices is None else matrices.movedim(of_matrices, 0).shape[1]
    if index is None:
        index = torch.arange(count, device=matrices.device)
    index = _batch(size, index, dim)
    if of_matrices is not None:
        index = index + count * torch.arange(size, device=matrices.device).unsqueeze(1)
    return index.reshape(-1)


# ---- registration --------------------------------------------------------------------------------

# The schemas agree with csrc/ops/quantized/quantized.mm and csrc/ops/quantized/quantized_matmul.mm.
register(
    Operator(
        "quantize(Tensor weight, Tensor? global_scale, int bits, int group_size, str mode) -> (Tensor, Tensor, Tensor)",
        cpu=_quantize_kernel,
        cuda=_on_cuda(_quantize_kernel, on_cuda.quantize),
        fake=_fake_quantize,
        vmap=_vmap_quantize,
    ),
    Operator(
        "dequantize(Tensor packed, Tensor scales, Tensor? biases, Tensor? global_scale, Tensor? indices, int bits, "
        "int group_size, str mode, ScalarType dtype) -> Tensor",
        cpu=_dequantize_kernel,
        cuda=_on_cuda(_dequantize_kernel, on_cuda.dequantize),
        fake=_fake_dequantize,
        gradients=_differentiate_dequantize,
        vmap=_vmap_dequantize,
    ),
    Operator(
        "quantized_scales_gradient(Tensor grad, Tensor packed, Tensor scales, int bits, int group_size, str mode) "
        "-> (Tensor, Tensor)",
        cpu=_scales_gradient_kernel,
        cuda=_scales_gradient_kernel,
        fake=_fake_scales_gradient,
        gradients=_differentiate_scales_gradient,
        vmap=_vmap_scales_gradient,
    ),
    Operator(
        "quantized_matmul(Tensor x, Tensor packed, Tensor scales, Tensor? biases, Tensor? bias, Tensor? global_scale, "
        "Tensor? left_index, Tensor? right_index, bool transpose, int bits, int group_size, str mode) -> Tensor",
        cpu=_matmul_kernel,
        cuda=_on_cuda(_matmul_kernel, on_cuda.matmul),
        fake=_fake_matmul,
        gradients=_differentiate_matmul,
        vmap=_vmap_matmul,
        lowered=_lowered,
    ),
)
