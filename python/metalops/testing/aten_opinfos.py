"""OpInfo entries of ATen operators that torch's own list, op_db, lacks.

Their CPU kernels refuse float64 scales, steps and the like, so references run in float32, and gradients, which are
compared in float64, are left to the operators' own tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from .samples import FLOATS, INTEGERS, layouts, make, to_device

__all__ = ["aten_op_db"]

_FLOATS = {*FLOATS, torch.float64}
_SHAPES = ((4, 6), (8,), (2, 3, 4), (), (0, 2), (33, 5))

# Arguments of a call, on the CPU.
Arguments = tuple[Any, ...]


def _entry(
    name: str,
    op: Callable[..., Any],
    dtypes: set[torch.dtype],
    arguments: Callable[[torch.dtype], Iterator[tuple[Arguments, dict[str, Any]]]],
) -> OpInfo:
    def samples(info, device, dtype, requires_grad, **kwargs) -> Iterator[SampleInput]:
        for args, options in arguments(dtype):
            first, *others = to_device(args, device)
            yield SampleInput(first, args=tuple(others), kwargs=to_device(options, device))

    return OpInfo(
        name,
        op=op,
        dtypes=dtypes,
        sample_inputs_func=samples,
        supports_out=False,
        supports_autograd=False,
        supports_forward_ad=False,
        supports_gradgrad=False,
    )


# Scales are powers of two, so that values are the same in every precision.


def _per_tensor(dtype: torch.dtype) -> Iterator[tuple[Arguments, dict[str, Any]]]:
    for shape in _SHAPES:
        x = make(shape, dtype)
        yield (x, 0.25, 1, -8, 7), {}
        zero_point = torch.tensor([-3], dtype=torch.int32)
        yield (x, torch.tensor([0.5]), zero_point, -8, 7), {}
    for _, x in layouts(dtype):
        yield (x, 0.125, 0, -128, 127), {}


def _channels(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor, Tensor, int]]:
    for shape, axis in (((4, 6), 0), ((4, 6), 1), ((3, 5, 40), 1), ((8,), 0), ((2, 3, 4, 5), 1)):
        x = make(shape, dtype)
        scale = 0.25 * (1 + torch.arange(shape[axis]) % 2)
        zero_point = torch.arange(shape[axis]) % 5 - 2
        yield x, scale, zero_point, axis
        if x.dim() == 4:
            yield x.to(memory_format=torch.channels_last), scale, zero_point, axis


def _per_channel(dtype: torch.dtype) -> Iterator[tuple[Arguments, dict[str, Any]]]:
    for x, scale, zero_point, axis in _channels(dtype):
        yield (x, scale, zero_point.int(), axis, -8, 7), {}


def _learnable_per_tensor(dtype: torch.dtype) -> Iterator[tuple[Arguments, dict[str, Any]]]:
    for shape in _SHAPES:
        yield (make(shape, dtype), torch.tensor([0.25]), torch.tensor([1.3]), -8, 7, 0.5), {}


def _learnable_per_channel(dtype: torch.dtype) -> Iterator[tuple[Arguments, dict[str, Any]]]:
    for x, scale, zero_point, axis in _channels(dtype):
        yield (x, scale, zero_point + 0.3, axis, -8, 7, 0.5), {}


def _embedding_renorm(dtype: torch.dtype) -> Iterator[tuple[Arguments, dict[str, Any]]]:
    weight = make((10, 7), dtype)
    for indices in (torch.tensor([0, 3, 3, 9]), torch.tensor([[1, 2], [2, 1]]), torch.tensor(4)):
        for norm_type in (1.0, 2.0, float("inf")):
            yield (weight, indices, 2.0, norm_type), {}
            yield (weight.t().contiguous().t(), indices.int(), 2.0, norm_type), {}


def _glu(dtype: torch.dtype) -> Iterator[tuple[Tensor, int]]:
    for shape, dim in (((4, 6), 0), ((4, 6), -1), ((8,), 0), ((2, 4, 3), 1), ((0, 2), 1)):
        yield make(shape, dtype), dim


def _glu_jvp(dtype: torch.dtype) -> Iterator[tuple[Arguments, dict[str, Any]]]:
    for x, dim in _glu(dtype):
        y = torch.nn.functional.glu(x.float(), dim).to(dtype)
        yield (y, x, make(x.shape, dtype, seed=1), dim), {}


def _glu_backward_jvp(dtype: torch.dtype) -> Iterator[tuple[Arguments, dict[str, Any]]]:
    for x, dim in _glu(dtype):
        grad = make(torch.nn.functional.glu(x.float(), dim).shape, dtype, low=-1, high=1, seed=2)
        grad_x = torch.ops.aten.glu_backward(grad.float(), x.float(), dim).to(dtype)
        tangents = make(grad.shape, dtype, seed=3), make(x.shape, dtype, seed=4)
        yield (grad_x, grad, x, *tangents, dim), {}


def _adagrad(dtype: torch.dtype) -> Iterator[tuple[Arguments, dict[str, Any]]]:
    params = [make(shape, dtype, seed=i) for i, shape in enumerate(_SHAPES)]
    grads = [make(p.shape, dtype, seed=10) for p in params]
    sums = [make(p.shape, dtype, low=1, high=3, seed=20) for p in params]
    steps = [torch.tensor(3.0) for _ in params]
    options = {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-8}
    for maximize in (False, True):
        yield (params, grads, sums, steps), {**options, "maximize": maximize}
        scaled = {"grad_scale": torch.tensor(2.0), "found_inf": torch.tensor(0.0)}
        yield (params, grads, sums, steps), {**options, **scaled, "maximize": maximize}


def _linear_combination(dtype: torch.dtype) -> Iterator[tuple[Arguments, dict[str, Any]]]:
    for shape, rows in (((3, 5), 4), ((1, 2, 3), 2), ((4,), 1)):
        yield (make(shape, dtype), make((rows, shape[0]), dtype, seed=1)), {}


def _masked_softmax(dtype: torch.dtype) -> Iterator[tuple[Arguments, dict[str, Any]]]:
    for mask_type, mask_shape in enumerate(((5, 5), (2, 5), (2, 4, 5, 5))):
        mask = make(mask_shape, torch.bool)
        mask[..., 0] = False
        yield (make((2, 4, 5, 5), dtype), mask, 3, mask_type), {}
    for shape, dim in (((4, 300), 1), ((6, 3, 2), 0)):
        mask = make(shape, torch.bool)
        mask.select(dim, 0).fill_(False)
        yield (make(shape, dtype), mask, dim), {}


# Of random numbers only what is certain can be compared with another generator's.


def _poisson(dtype: torch.dtype) -> Iterator[tuple[Arguments, dict[str, Any]]]:
    for _, x in layouts(dtype):
        yield (torch.zeros_like(x),), {}


def _binomial(dtype: torch.dtype) -> Iterator[tuple[Arguments, dict[str, Any]]]:
    for _, x in layouts(dtype):
        yield (x, (make(x.shape, torch.float32, seed=1) > 0).to(dtype)), {}
    for shapes in (((3, 4), (4,)), ((5,), ()), ((2, 0), (2, 1)), ((2, 3, 4), (3, 1))):
        count, probability = (make(shape, dtype, seed=i) for i, shape in enumerate(shapes))
        yield (count.abs(), (probability > 0).to(dtype)), {}


def _resized(
    dtype: torch.dtype,
) -> Iterator[tuple[Tensor, tuple[int, int], tuple[float | None, float | None]]]:
    """Images, what sizes they are resized to, and by what factors if not by those of the sizes."""
    for size, other, scales in (
        ((6, 8), (3, 12), (None, None)),
        ((5, 7), (8, 4), (1.6, 0.6)),
        ((1, 9), (4, 9), (None, None)),
    ):
        x = make((2, 3, *size), dtype)
        for image in (x, x.to(memory_format=torch.channels_last), x[:, ::2]):
            yield image, other, scales


def _upsample(dtype: torch.dtype) -> Iterator[tuple[Arguments, dict[str, Any]]]:
    for x, size, scales in _resized(dtype):
        yield (x, size, False, *scales), {}


def _upsample_backward(dtype: torch.dtype) -> Iterator[tuple[Arguments, dict[str, Any]]]:
    for x, size, scales in _resized(dtype):
        for align_corners in (False, True):
            yield (x, x.shape[2:], (*x.shape[:2], *size), align_corners, *scales), {}


def _projection(dtype: torch.dtype) -> Iterator[tuple[Arguments, dict[str, Any]]]:
    for samples, tokens, heads, width in ((2, 3, 2, 10), (1, 40, 3, 33)):
        qkv = make((samples, tokens, 3 * width), dtype)
        yield (qkv, make((3 * width,), dtype, seed=1), heads), {}


def _attention(dtype: torch.dtype) -> Iterator[tuple[Arguments, dict[str, Any]]]:
    query, key, value = (make((2, 5, 8), dtype, low=-1, high=1, seed=i) for i in range(3))
    shapes = ((24, 8), (24,), (8, 8), (8,))
    weights = [make(shape, dtype, low=-1, high=1, seed=4 + i) for i, shape in enumerate(shapes)]
    padding = torch.arange(5) >= torch.tensor([[5], [3]])
    for operands in ((query, query, query), (query, key, value)):
        yield (*operands, 8, 2, *weights), {}
        yield (*operands, 8, 4, *weights, padding, True, False, 1), {}


def _encoder_layer(dtype: torch.dtype) -> Iterator[tuple[Arguments, dict[str, Any]]]:
    x = make((2, 5, 8), dtype, low=-1, high=1)
    shapes = ((24, 8), (24,), (8, 8), (8,), (8,), (8,), (8,), (8,), (12, 8), (12,), (8, 12), (8,))
    weights = [make(shape, dtype, low=-1, high=1, seed=i) for i, shape in enumerate(shapes)]
    causal = torch.ones(5, 5).triu(1).bool()
    for use_gelu, norm_first in ((False, False), (True, True)):
        arguments = (x, 8, 2, *weights[:4], use_gelu, norm_first, 1e-3, *weights[4:])
        yield arguments, {}
        yield (*arguments, causal, 0), {}


def _to_padded(dtype: torch.dtype) -> Iterator[tuple[Arguments, dict[str, Any]]]:
    for shape in ((9, 4), (9,), (9, 2, 3)):
        for offsets in (torch.tensor([0, 2, 2, 9]), torch.tensor([1, 9], dtype=torch.int32)):
            yield (make(shape, dtype), [offsets], [5], 1.0), {}


def _to_jagged(dtype: torch.dtype) -> Iterator[tuple[Arguments, dict[str, Any]]]:
    for shape in ((3, 7, 4), (4, 7), (3, 9, 2, 3)):
        yield (make(shape, dtype), [torch.tensor([0, 2, 2, 9])], 9), {}


def _add_relu(dtype: torch.dtype) -> Iterator[tuple[Arguments, dict[str, Any]]]:
    for shape in _SHAPES:
        x = make(shape, dtype)
        yield (x, make(shape[-1:], dtype, seed=1)), {"alpha": -2}
        yield (x, 3), {}


def _addmm_activation(dtype: torch.dtype) -> Iterator[tuple[Arguments, dict[str, Any]]]:
    operands = make((5,), dtype), make((4, 6), dtype, low=-1, high=1), make((6, 5), dtype, seed=1)
    yield operands, {}
    yield operands, {"beta": 0.5, "alpha": 2, "use_gelu": True}


def _functional_adagrad(params, grads, sums, steps, **options) -> Any:
    # The step counts, which come last, stay as they are.
    return torch.ops.aten._fused_adagrad(params, grads, sums, steps, **options)[:3]


def _segment_reduce_backward(dtype: torch.dtype) -> Iterator[tuple[Arguments, dict[str, Any]]]:
    x = make((2, 6, 3), dtype, low=0.5, high=2)
    lengths = torch.tensor([[1, 0, 5], [2, 2, 2]])
    for reduce in ("sum", "mean", "max", "min", "prod"):
        output = torch.segment_reduce(x.float(), reduce, lengths=lengths, axis=1).to(dtype)
        grad = make(output.shape, dtype, seed=1)
        yield (grad, output, x, reduce), {"lengths": lengths, "axis": 1}


def _batch_norm(dtype: torch.dtype) -> Iterator[tuple[Arguments, dict[str, Any]]]:
    for shape in ((4, 3), (2, 3, 70), (2, 5, 4, 4)):
        averages = make(shape[1:2], dtype), make(shape[1:2], dtype, low=0, high=1)
        yield (make(shape, dtype), *averages, 0.1), {}
        yield (make(shape, dtype), None, None, 0.1), {}


def _functional_batch_norm_stats(x, running_mean, running_var, momentum) -> Any:
    averages = [None if a is None else a.clone() for a in (running_mean, running_var)]
    stats = torch.batch_norm_update_stats(x, *averages, momentum)
    return stats if running_mean is None else (*stats, *averages)


aten_op_db: list[OpInfo] = [
    _entry(
        "fake_quantize_per_tensor_affine",
        torch.fake_quantize_per_tensor_affine,
        _FLOATS,
        _per_tensor,
    ),
    _entry(
        "fake_quantize_per_channel_affine",
        torch.fake_quantize_per_channel_affine,
        _FLOATS,
        _per_channel,
    ),
    _entry(
        "_fake_quantize_learnable_per_tensor_affine",
        torch._fake_quantize_learnable_per_tensor_affine,
        _FLOATS,
        _learnable_per_tensor,
    ),
    _entry(
        "_fake_quantize_learnable_per_channel_affine",
        torch._fake_quantize_learnable_per_channel_affine,
        _FLOATS,
        _learnable_per_channel,
    ),
    _entry(
        "embedding_renorm",
        torch.ops.aten.embedding_renorm,
        {*_FLOATS, torch.complex64},
        _embedding_renorm,
    ),
    _entry("glu_jvp", torch.ops.aten.glu_jvp, _FLOATS, _glu_jvp),
    _entry("glu_backward_jvp", torch.ops.aten.glu_backward_jvp, _FLOATS, _glu_backward_jvp),
    _entry("_masked_softmax", torch._masked_softmax, _FLOATS, _masked_softmax),
    _entry("_transform_bias_rescale_qkv", torch._transform_bias_rescale_qkv, _FLOATS, _projection),
    _entry("_native_multi_head_attention", torch._native_multi_head_attention, _FLOATS, _attention),
    _entry(
        "_transformer_encoder_layer_fwd",
        torch._transformer_encoder_layer_fwd,
        _FLOATS,
        _encoder_layer,
    ),
    _entry(
        "_jagged_to_padded_dense_forward",
        torch.ops.aten._jagged_to_padded_dense_forward,
        {*_FLOATS, *INTEGERS, torch.bool},
        _to_padded,
    ),
    _entry(
        "_padded_dense_to_jagged_forward",
        torch.ops.aten._padded_dense_to_jagged_forward,
        {*_FLOATS, *INTEGERS, torch.bool, torch.complex64},
        _to_jagged,
    ),
    _entry(
        "_add_relu",
        torch._add_relu,
        {*_FLOATS, torch.int8, torch.int16, torch.int32, torch.int64},
        _add_relu,
    ),
    _entry("_addmm_activation", torch._addmm_activation, _FLOATS, _addmm_activation),
    _entry("_fused_adagrad", _functional_adagrad, _FLOATS, _adagrad),
    _entry(
        "_compute_linear_combination",
        torch._compute_linear_combination,
        {*_FLOATS, *INTEGERS, torch.bool},
        _linear_combination,
    ),
    _entry("poisson", torch.poisson, _FLOATS, _poisson),
    _entry("binomial", torch.binomial, _FLOATS, _binomial),
    _entry(
        "_upsample_lanczos2d_aa", torch.ops.aten._upsample_lanczos2d_aa.default, _FLOATS, _upsample
    ),
    *(
        _entry(
            f"_upsample_{mode}2d_aa_backward",
            getattr(torch.ops.aten, f"_upsample_{mode}2d_aa_backward").default,
            _FLOATS,
            _upsample_backward,
        )
        for mode in ("bilinear", "bicubic", "lanczos")
    ),
    _entry(
        "_segment_reduce_backward",
        torch.ops.aten._segment_reduce_backward,
        _FLOATS,
        _segment_reduce_backward,
    ),
    _entry("batch_norm_update_stats", _functional_batch_norm_stats, _FLOATS, _batch_norm),
]
