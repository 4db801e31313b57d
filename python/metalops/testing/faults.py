"""Faults of stock MPS operators that users reported, planted in the stand-ins of the software device.

A tool that looks for wrong results on a Mac, such as metalops.debug.compare(), has to find each of them where it is
planted, and nothing where it is not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .. import _is_software
from .._torch.internals import remove_library

# A kernel: takes what the operator takes.
Kernel = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault. issue: its number among those of pytorch/pytorch. description: when results are wrong, and how. operators:
    the overloads of aten that have it, such as "bmm". wrong: takes the right kernel, the limit and the operator's
    arguments, and returns what an operator with the fault does. limit: the size from which it is wrong, where it depends
    on one."""

    issue: int
    description: str
    operators: tuple[str, ...]
    wrong: Callable[..., Any]
    limit: int = 0


def _bias_beyond_rows(kernel: Kernel, limit: int, bias, rows, weight, **options) -> Tensor:
    result = kernel(bias, rows, weight, **options)
    beyond = result.shape[0] - limit
    if beyond > 0:
        for begin in range(limit, result.shape[0], limit):
            some = result[begin : begin + limit]
            result[: some.shape[0]] = some
        result[limit:] = 0
    return result


def _one_term_more(a: Tensor, b: Tensor, limit: int) -> Tensor | float:
    return a[..., -1:] * b[..., -1:, :] if a.shape[-1] >= limit else 0.0


def _past_the_depth(kernel: Kernel, limit: int, a, b) -> Tensor:
    return kernel(a, b) + _one_term_more(a, b, limit)


def _past_the_depth_added(kernel: Kernel, limit: int, x, a, b, *, beta=1, alpha=1) -> Tensor:
    return kernel(x, a, b, beta=beta, alpha=alpha) + alpha * _one_term_more(a, b, limit)


def _nan_of_ignored(kernel: Kernel, limit: int, x, a, b, *, beta=1, alpha=1) -> Tensor:
    result = kernel(x, a, b, beta=beta, alpha=alpha)
    return result + 0 * x if beta == 0 else result


def _by_allocation(kernel: Kernel, limit: int, a, b) -> Tensor:
    result = kernel(a, b)
    if a.shape[1] >= limit:
        result[:, -1] *= 0.8
    return result


def _without_probability(kernel: Kernel, limit: int, weights, count, *args, **kwargs) -> Tensor:
    drawn = kernel(weights, count, *args, **kwargs)
    zeros = (weights == 0).nonzero()
    if len(zeros):
        drawn[(*zeros[0, :-1], 0)] = zeros[0, -1]
    return drawn


def _out_of_range(
    kernel: Kernel, limit: int, weights, count, replacement=False, **kwargs
) -> Tensor:
    drawn = kernel(weights, count, replacement, **kwargs)
    if replacement and drawn.numel():
        drawn.view(-1)[-1] = weights.shape[-1] + 1
    return drawn


def _quadratic_memory(
    kernel: Kernel, limit: int, weights, count, replacement=False, *args, **kwargs
) -> Tensor:
    if replacement and count > 1 and weights.shape[-1] > limit:
        os.abort()
    return kernel(weights, count, replacement, *args, **kwargs)


def _negative_zero(kernel: Kernel, limit: int, x, *args, **kwargs) -> Tensor:
    kernel(x, *args, **kwargs)
    if x.numel():
        x.view(-1)[0] = -0.0
    return x


def _of_freed_memory(kernel: Kernel, limit: int, x, source, non_blocking=False) -> Tensor:
    is_pageable = source.device.type == "cpu" and not source.is_pinned()
    if non_blocking and is_pageable and source.numel() >= limit:
        source = torch.zeros_like(source)  # written by others
    return kernel(x, source, non_blocking)


def _into_a_copy(kernel: Kernel, limit: int, x, *args, **kwargs) -> Tensor:
    if x.is_contiguous():
        return kernel(x, *args, **kwargs)
    kernel(x.contiguous(), *args, **kwargs)
    return x


def _not_into_a_view(kernel: Kernel, limit: int, a, b, *, out) -> Tensor:
    if out.is_contiguous():
        return kernel(a, b, out=out)
    kernel(a, b, out=torch.empty_like(out, memory_format=torch.contiguous_format))
    return out


def _memory_of_nobody(kernel: Kernel, limit: int, a, b) -> Tensor:
    result = kernel(a, b)
    return result + 7 if a.shape[-1] == 0 else result


def _one_kernel_size(kernel: Kernel, limit: int, x, output_size) -> tuple[Tensor, Tensor]:
    """An ordinary pooling, whose windows all have one size and one distance."""
    steps = [size // out for size, out in zip(x.shape[-2:], output_size, strict=True)]
    window = [
        size - (out - 1) * step
        for size, out, step in zip(x.shape[-2:], output_size, steps, strict=True)
    ]
    return torch.ops.aten.max_pool2d_with_indices(x, window, steps)


def _check_axis(x: Tensor, dim: int) -> None:
    if x.dim() - dim % x.dim() > 4:
        print(
            "failed assertion: Axis = 4. This class only supports axis = 0, 1, 2, 3",
            file=sys.stderr,
        )
        os.abort()


def _axes(kernel: Kernel, limit: int, x, dim, keepdim, *, values, indices):
    _check_axis(x, dim)
    return kernel(x, dim, keepdim, values=values, indices=indices)


def _axes_of_sort(kernel: Kernel, limit: int, x, *, stable=False, dim=-1, descending=False):
    _check_axis(x, dim)
    return kernel(x, stable=stable, dim=dim, descending=descending)


def _axes_of_topk(kernel: Kernel, limit: int, x, k, dim=-1, *args):
    _check_axis(x, dim)
    return kernel(x, k, dim, *args)


def _axes_of_sums(kernel: Kernel, limit: int, x, dim, **options):
    _check_axis(x, dim)
    return kernel(x, dim, **options)


def _along_another_axis(kernel: Kernel, limit: int, x, dim=None, *args, **options) -> Tensor:
    result = kernel(x, dim, *args, **options)
    if x.dim() > 4 and result.numel() > 1:
        total = result.sum()
        result.zero_().view(-1)[0] = total
    return result


def _saturated(kernel: Kernel, limit: int, x, *args, dtype=None, **options) -> Tensor:
    if dtype not in (torch.uint8, torch.int8, torch.int16):
        return kernel(x, *args, dtype=dtype, **options)
    most = torch.iinfo(dtype)
    return kernel(x, *args, dtype=torch.int64, **options).clamp(most.min, most.max).to(dtype)


def _empty_grid(kernel: Kernel, limit: int, x, grid, *args) -> Tensor:
    if grid.numel() == 0:
        raise RuntimeError(
            "[srcBuf length] > 0 INTERNAL ASSERT FAILED: Placeholder tensor is empty!"
        )
    return kernel(x, grid, *args)


def _is_channels_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def _as_if_contiguous(x: Tensor) -> Tensor:
    """Reads the tensor's memory in its order, whatever its strides are."""
    return torch.as_strided(x, x.shape, torch.empty(x.shape).stride())


def _in_order_of_channels(kernel: Kernel, limit: int, x, grid, *args) -> Tensor:
    if _is_channels_last(x):
        x = _as_if_contiguous(x)
    return kernel(x, grid, *args)


def _points_in_order_of_memory(kernel: Kernel, limit: int, x, grid, *args) -> Tensor:
    return kernel(x, _as_if_contiguous(grid), *args)


def _without_border(kernel: Kernel, limit: int, x, grid, mode, padding, *args) -> Tensor:
    if padding == 1:
        raise RuntimeError("MPS: Unsupported Border padding mode")
    return kernel(x, grid, mode, padding, *args)


def _of_one_dtype(kernel: Kernel, limit: int, x, *args) -> tuple[Tensor, ...]:
    if any(isinstance(each, Tensor) and each.dtype != x.dtype for each in args):
        print("LLVM ERROR: Failed to infer result type(s).", file=sys.stderr)
        os.abort()
    return kernel(x, *args)


def _gradient_in_order_of_memory(kernel: Kernel, limit: int, grad, x, *args) -> tuple[Tensor, ...]:
    return kernel(grad, _as_if_contiguous(x), *args)


def _from_the_beginning(kernel: Kernel, limit: int, x, *args) -> tuple[Tensor, ...]:
    if _is_channels_last(x):
        x = x.as_strided(x.shape, x.stride(), 0)
    return kernel(x, *args)


def _bits_of_parameters(kernel: Kernel, limit: int, x, shape, *args) -> tuple[Tensor, ...]:
    *parameters, eps = args
    read = [
        p if p is None or p.dtype == x.dtype else p.view(x.dtype)[..., : p.shape[-1]].contiguous()
        for p in parameters
    ]
    return kernel(x, shape, *read, eps)


def _without_bounds(kernel: Kernel, limit: int, x, dim, index, value) -> Tensor:
    inside = index[(index < x.shape[dim]) & (index >= -x.shape[dim])]
    return kernel(x, dim, inside, value)


def _without_bounds_of_rows(kernel: Kernel, limit: int, x, dim, index, source) -> Tensor:
    inside = (index < x.shape[dim]) & (index >= 0)
    return kernel(x, dim, index[inside], source.movedim(dim, 0)[inside].movedim(0, dim))


def _into_the_word(kernel: Kernel, limit: int, x, *args, **kwargs) -> Tensor:
    if x.dtype == torch.bool:
        begin = x.storage_offset() // 4 * 4
        kernel(x.as_strided(x.shape, x.stride(), begin), *args, **kwargs)
        return x
    return kernel(x, *args, **kwargs)


def _real_parts(kernel: Kernel, limit: int, x, dim, index, source, **options) -> Tensor:
    if x.is_complex():
        source = torch.complex(source.real, torch.zeros_like(source.real))
    return kernel(x, dim, index, source, **options)


def _rank_of_indices(kernel: Kernel, limit: int, x, dim, index, value) -> Tensor:
    if x.shape[-1] < index.shape[dim] and dim % x.dim() != x.dim() - 1:
        print("failed assertion: Rank of destination array (1) is too small", file=sys.stderr)
        os.abort()
    return kernel(x, dim, index, value)


def _to_the_end(kernel: Kernel, limit: int, weight, indices, offsets, *args) -> tuple[Tensor, ...]:
    has_last_offset = len(args) > 4 and args[4]
    if has_last_offset:
        offsets = offsets.clone()
        offsets[-1] = indices.numel()
    return kernel(weight, indices, offsets, *args)


def _one_row_more(kernel: Kernel, limit: int, weight, indices, *args) -> tuple[Tensor, ...]:
    rows = torch.cat([weight, torch.zeros_like(weight[:1])])
    return kernel(rows, indices, *args)


def _without_frequency(kernel: Kernel, limit: int, *args) -> Tensor:
    return kernel(*args[:7], False, *args[8:])


def _in_order_of_memory(kernel: Kernel, limit: int, x, weight, *args) -> Tensor:
    if x.dim() == 4:
        weight = _as_if_contiguous(weight)
    return kernel(x, weight, *args)


def _of_the_first_image(kernel: Kernel, limit: int, x, weight, *args) -> Tensor:
    result = kernel(x, weight, *args)
    if max(weight.shape[2:]) >= limit:
        result[1:] = result[:1]
    return result


def _without_last_channels(kernel: Kernel, limit: int, *args) -> Tensor:
    result = kernel(*args)
    result[:, limit:] = 0
    return result


def _reversed_in_depth(kernel: Kernel, limit: int, x, weight, *args) -> Tensor:
    is_wrong = x.dim() == 5 and x.is_contiguous()
    return kernel(x, weight.flip(2) if is_wrong else weight, *args)


def _near_the_range(kernel: Kernel, limit: int, x, bins=100, *args, **options) -> Any:
    """Counts numbers beyond the last edge in the last bin."""
    if isinstance(bins, Tensor):
        limits = bins.min(), bins.max()
    elif options.get("range") or args:
        limits = options.get("range") or args[:2]
    else:
        return kernel(x, bins, *args, **options)
    beyond = (x > limits[1]) & (x - limits[1] < 4e-6)
    return kernel(torch.where(beyond, limits[1], x), bins, *args, **options)


def _edges_as_arguments(kernel: Kernel, limit: int, x, bins=100, *args, **options) -> Any:
    if bins > limit:
        os.abort()
    return kernel(x, bins, *args, **options)


def _without_integers(kernel: Kernel, limit: int, x, *args) -> Tensor:
    if not x.is_floating_point():
        raise NotImplementedError("\"histogram_mps\" not implemented for 'Int'")
    return kernel(x, *args)


def _unordered(kernel: Kernel, limit: int, x, *args, **kwargs) -> Any:
    values, indices = kernel(x, *args, **kwargs)
    if x.shape[-1] > limit:
        indices.copy_(indices.flip(0))
    return values, indices


def _sorted_in_order_of_memory(kernel: Kernel, limit: int, x, *args, **kwargs) -> Any:
    return kernel(_as_if_contiguous(x), *args, **kwargs)


def _as_float32(kernel: Kernel, limit: int, x, *args, **kwargs) -> tuple[Tensor, ...]:
    values, inverse, counts = kernel(x, *args, **kwargs)
    if x.numel() and x.max() > limit:
        inverse = (values.float()[:, None] < x.float().flatten()).sum(0).view(x.shape)
    return values, inverse, counts


def _lost_counts(kernel: Kernel, limit: int, x, *args, **kwargs) -> tuple[Tensor, ...]:
    values, inverse, counts = kernel(x, *args, **kwargs)
    if x.numel() > limit:
        counts = torch.zeros_like(counts)
    return values, inverse, counts


FAULTS: dict[str, Fault] = {
    "linear-bias-rows": Fault(
        189495,
        "rows from the 65,537th on, of a product with a bias, overwrite the first ones",
        ("addmm",),
        _bias_beyond_rows,
        limit=2**16,
    ),
    "bmm-depth": Fault(
        195163,
        "batched products of 32,767 terms and more have one that lies past the end of the operands",
        ("bmm",),
        _past_the_depth,
        limit=32_767,
    ),
    "baddbmm-depth": Fault(
        195163,
        "the same where the product is added to a tensor",
        ("baddbmm",),
        _past_the_depth_added,
        limit=32_767,
    ),
    "baddbmm-beta": Fault(
        194442,
        "with beta=0, NaN in the tensor that is to be ignored is in the result",
        ("baddbmm",),
        _nan_of_ignored,
    ),
    "mm-allocation": Fault(
        193487,
        "products of long rows are off by a tenth to a third, depending on earlier allocations",
        ("mm",),
        _by_allocation,
        limit=50_000,
    ),
    "mm-out": Fault(
        104832, "a product is not written to a strided out=", ("mm.out",), _not_into_a_view
    ),
    "mm-empty": Fault(175902, "products without terms are not zero", ("mm",), _memory_of_nobody),
    "adaptive-max-pool": Fault(
        190064,
        "windows have one size where they should differ",
        ("adaptive_max_pool2d",),
        _one_kernel_size,
    ),
    "nanmedian-rank": Fault(
        191694,
        "medians along a dimension before the last four end the process",
        ("nanmedian.dim_values",),
        _axes,
    ),
    "sort-rank": Fault(
        187105,
        "sorting along a dimension before the last four ends the process",
        ("sort.stable",),
        _axes_of_sort,
    ),
    "topk-rank": Fault(
        154890,
        "topk along a dimension before the last four ends the process",
        ("topk",),
        _axes_of_topk,
    ),
    "cumulative-rank": Fault(
        187105,
        "cumulative sums and products along a dimension before the last four end the process",
        ("cumsum", "cumprod"),
        _axes_of_sums,
    ),
    "sum-axis": Fault(
        132732,
        "sums are added to others along another dimension",
        ("sum.dim_IntList",),
        _along_another_axis,
    ),
    "sum-saturates": Fault(
        179415,
        "sums of small integers do not wrap around",
        ("sum.dim_IntList",),
        _saturated,
    ),
    "grid-sample-empty": Fault(
        175683, "a grid without elements is an internal error", ("grid_sampler_2d",), _empty_grid
    ),
    "grid-sample-channels-last": Fault(
        174339,
        "an image in channels_last is read as if it were contiguous",
        ("grid_sampler_2d",),
        _in_order_of_channels,
    ),
    "grid-sample-strided-grid": Fault(
        171602,
        "the grid of a volume is read as if it were contiguous",
        ("grid_sampler_3d",),
        _points_in_order_of_memory,
    ),
    "grid-sample-border": Fault(
        125098, "the border as padding is refused", ("grid_sampler_2d",), _without_border
    ),
    "batch-norm-mixed": Fault(
        154887,
        "averages of another dtype end the process",
        ("native_batch_norm",),
        _of_one_dtype,
    ),
    "batch-norm-gradient": Fault(
        175189,
        "gradients are those of an input that is contiguous",
        ("native_batch_norm_backward",),
        _gradient_in_order_of_memory,
    ),
    "batch-norm-offset": Fault(
        174345,
        "an input in channels_last is read from the beginning of its memory",
        ("native_batch_norm",),
        _from_the_beginning,
    ),
    "layer-norm-mixed": Fault(
        190054,
        "parameters of another dtype are read as if they were of the input's",
        ("native_layer_norm",),
        _bits_of_parameters,
    ),
    "index-fill-bounds": Fault(
        189969, "indices out of range are accepted", ("index_fill_.int_Scalar",), _without_bounds
    ),
    "index-copy-bounds": Fault(
        189968, "indices out of range are accepted", ("index_copy_",), _without_bounds_of_rows
    ),
    "bool-accumulate": Fault(
        195074,
        "sums of bool go to the beginning of four bytes",
        ("scatter_add_", "index_add_"),
        _into_the_word,
    ),
    "index-add-complex": Fault(
        160845, "imaginary parts are not added", ("index_add_",), _real_parts
    ),
    "scatter-narrow": Fault(
        121557,
        "several indices end the process where the last dimension has one element",
        ("scatter_.value",),
        _rank_of_indices,
    ),
    "embedding-bag-last-offset": Fault(
        190060,
        "the last bag has indices that lie behind its end",
        ("_embedding_bag", "_embedding_bag_forward_only"),
        _to_the_end,
    ),
    "embedding-bag-frequency": Fault(
        190061,
        "gradients are not divided by the frequency of their index",
        ("_embedding_bag_backward",),
        _without_frequency,
    ),
    "embedding-bag-bounds": Fault(
        189971,
        "the row behind the weight is read",
        ("_embedding_bag", "_embedding_bag_forward_only"),
        _one_row_more,
    ),
    "convolution-strided-weight": Fault(
        192212,
        "a weight that is a slice of another tensor is read from elsewhere in its memory",
        ("_mps_convolution",),
        _in_order_of_memory,
    ),
    "convolution-wide-filter": Fault(
        188335,
        "images after the first one are wrong with wide filters",
        ("_mps_convolution",),
        _of_the_first_image,
        limit=256,
    ),
    "convolution-channels": Fault(
        129207,
        "the last channels are wrong where there are very many",
        ("_mps_convolution",),
        _without_last_channels,
        limit=2**16,
    ),
    "convolution-3d": Fault(
        197114,
        "contiguous inputs of three dimensions have wrong results",
        ("_mps_convolution",),
        _reversed_in_depth,
    ),
    "histogram-range": Fault(
        195076,
        "numbers right beyond the last edge are counted",
        ("histc", "histogram.bin_ct", "histogram.bins_tensor"),
        _near_the_range,
    ),
    "histogram-bins": Fault(
        195446, "many bins end the process", ("histc",), _edges_as_arguments, limit=8180
    ),
    "histc-integers": Fault(176879, "integers are refused", ("histc",), _without_integers),
    "argsort-large": Fault(
        183885,
        "indices of a sort of many columns are wrong",
        ("sort.stable",),
        _unordered,
        limit=4096,
    ),
    "sort-strided": Fault(
        175187,
        "a tensor that is not contiguous is sorted as if it were",
        ("sort.stable",),
        _sorted_in_order_of_memory,
    ),
    "unique-large": Fault(
        195595,
        "inverse indices of int64 are those of their float32",
        ("_unique2",),
        _as_float32,
        limit=2**24,
    ),
    "unique-counts": Fault(
        111173,
        "the counts of many elements are lost",
        ("_unique2",),
        _lost_counts,
        limit=2**19,
    ),
    "multinomial-zero": Fault(
        192577, "a category of probability 0 is drawn", ("multinomial",), _without_probability
    ),
    "multinomial-range": Fault(
        136623, "a category that does not exist is drawn", ("multinomial",), _out_of_range
    ),
    "multinomial-large": Fault(
        178579,
        "draws with replacement of many categories end the process",
        ("multinomial",),
        _quadratic_memory,
        limit=2**16,
    ),
    "exponential-zero": Fault(
        192577, "an exponential random number is -0.0", ("exponential_",), _negative_zero
    ),
    "copy-pageable": Fault(
        189690,
        "copies from the CPU with non_blocking=True read memory that has been freed",
        ("copy_",),
        _of_freed_memory,
        limit=2**10,
    ),
    "addcmul-strided": Fault(
        118115,
        "addcmul_ and addcdiv_ leave a tensor that is not contiguous as it was",
        ("addcmul_", "addcdiv_"),
        _into_a_copy,
    ),
}


@contextlib.contextmanager
def planted(*names: str, limit: int | None = None) -> Iterator[None]:
    """Gives stand-ins in the block the faults of these names, which are those of FAULTS. It holds for the whole process.

    limit: in place of the faults' own, so that small tensors show them.

    Raises ValueError for an unknown name, and RuntimeError on a Mac, whose operators have their own kernels.
    """
    if not _is_software:
        raise RuntimeError("planted: faults are planted in the software device")
    for name in names:
        if name not in FAULTS:
            raise ValueError(f"planted: no fault {name!r}; there are {', '.join(FAULTS)}")
    with contextlib.ExitStack() as stack:
        for fault in map(FAULTS.__getitem__, names):
            size = fault.limit if limit is None else limit
            for operator in fault.operators:
                stack.enter_context(replaced(operator, _with_limit(fault.wrong, size)))
        yield


def _with_limit(wrong: Callable[..., Any], limit: int) -> Callable[..., Any]:
    return lambda kernel, *args, **kwargs: wrong(kernel, limit, *args, **kwargs)


@contextlib.contextmanager
def replaced(operator: str, wrong: Callable[..., Any]) -> Iterator[None]:
    """Computes an operator of aten on mps in the block, such as "mm" or "add.Tensor", by wrong(kernel, ...), where
    kernel is the one that it has, and its arguments follow. It holds for the whole process.

    Raises RuntimeError if there is no such operator.
    """
    right = torch.library.get_kernel(f"aten::{operator}", "MPS")

    def call(keys: Any, *args: Any, **kwargs: Any) -> Any:
        return wrong(lambda *a, **k: right.call_boxed(keys, *a, **k), *args, **kwargs)

    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl(operator, call, "MPS", with_keyset=True, allow_override=True)
        yield
    finally:
        remove_library(library)
