"""Operators that stock MPS has, by the kernels of metalops.fixes: those that are off on this machine are turned on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..fixes import enable_fixes
from ..testing.samples import FLOATS, make
from .check import Check, dtype_name
from .models import in_both_ways
from .operators import compare


def _calls() -> Iterator[tuple[str, str, Callable[..., Any], tuple[Tensor, ...], bool]]:
    """Yields (fix, name in the tolerance policy, function, float32 operands, true if it has a gradient)."""

    def x(*shape, low=-2.0, high=2.0, seed=0):
        return make(shape, torch.float32, low=low, high=high, seed=seed)

    def index(*shape, high):
        return make(shape, torch.int64, low=0, high=high - 1, seed=7)

    def grid(*shape):
        return x(*shape, low=-1, high=1, seed=3)

    yield "adaptive_max_pool", "adaptive_max_pool2d", _pooled, (x(2, 3, 7, 9),), True
    yield "convolution", "conv2d", _convolved, (x(2, 8, 9, 9), x(16, 8, 3, 3) / 9), True
    yield "convolution", "conv2d of packs", _convolved, (x(1, 32, 9, 9), x(64, 32, 3, 3) / 17), True
    yield (
        "convolution",
        "conv2d, depthwise",
        _depthwise,
        (x(2, 32, 16, 16), x(32, 1, 3, 3) / 3),
        True,
    )
    yield "cumulative", "cumsum", lambda x: x.cumsum(1) / 9, (x(9, 300),), True
    yield "cumulative", "logcumsumexp", lambda x: x.logcumsumexp(1), (x(9, 300),), False
    yield "embedding_bag", "embedding_bag", _bags, (x(50, 33), index(20, high=50)), True
    yield "grid_sample", "grid_sampler_2d", _sampled, (x(2, 3, 9, 9), grid(2, 7, 7, 2)), True
    yield "histogram", "histc", lambda x: torch.histc(x, 10, -2, 2), (x(1000),), False
    yield "indexing", "index_add", _added, (x(50, 33), x(20, 33, seed=1), index(20, high=50)), True
    yield "matmul", "mm", lambda a, b: a @ b, (x(70, 90) / 9, x(90, 50, seed=1)), True
    yield "matmul", "addmm", torch.addmm, (x(50), x(70, 90) / 9, x(90, 50, seed=1)), True
    yield "median", "median of rows", lambda x: x.median(1)[0], (x(9, 301),), True
    yield "norm", "native_layer_norm", _layer_norm, (x(9, 96), x(96, seed=1)), True
    yield "norm", "native_layer_norm of long rows", _layer_norm, (x(3, 4096), x(4096, seed=1)), True
    yield "norm", "native_group_norm", _group_norm, (x(3, 8, 7, 7), x(8, seed=1)), True
    yield "norm", "native_batch_norm", _batch_norm, (x(9, 8, 7, 7), x(8, seed=1)), True
    yield "reduction", "sum", lambda x: x.sum(1) / 9, (x(9, 300),), True
    yield "reduction", "var", lambda x: x.var(1), (x(9, 300),), True
    yield "sort", "sort", lambda x: x.sort(1)[0], (x(9, 300),), False
    yield "unique", "unique", lambda x: torch.unique(x), (index(300, high=50),), False


def _pooled(x):
    return F.adaptive_max_pool2d(x, (3, 4))


def _convolved(x, weight):
    return F.conv2d(x, weight, padding=1)


def _depthwise(x, weight):
    return F.conv2d(x, weight, padding=1, groups=x.shape[1])


def _bags(weight, rows):
    return F.embedding_bag(rows, weight, torch.tensor([0, 3, 9], device=rows.device), mode="mean")


def _sampled(x, grid):
    return F.grid_sample(x, grid, align_corners=False)


def _added(x, rows, index):
    return x.index_add(0, index, rows)


def _layer_norm(x, weight):
    return F.layer_norm(x, weight.shape, weight)


def _group_norm(x, weight):
    return F.group_norm(x, 2, weight)


def _batch_norm(x, weight):
    return F.batch_norm(x, None, None, weight, training=True)


def _distributions() -> Iterator[Check]:
    def exponential():
        with enable_fixes("exponential"):
            x = torch.empty(200_000, device="mps").exponential_(2.0).cpu()
        assert x.min() > 0 and abs(x.mean() - 0.5) < 0.01, f"mean {x.mean():.4f} of rate 2"

    def multinomial():
        weights = torch.tensor([1.0, 0.0, 3.0], device="mps")
        with enable_fixes("multinomial"):
            counts = (
                torch.multinomial(weights, 100_000, replacement=True).cpu().bincount(minlength=3)
            )
        assert counts[1] == 0 and abs(counts[0] / 1e5 - 0.25) < 0.01, counts.tolist()

    yield Check("exponential", exponential)
    yield Check("multinomial", multinomial)


def checks() -> Iterator[Check]:
    """Checks contiguous and strided operands, results and gradients, with each operator's fix on."""
    for fix, name, function, operands, differentiable in _calls():
        for dtype in FLOATS if operands[0].is_floating_point() else (operands[0].dtype,):

            def run(
                fix=fix,
                arguments=(name, function, operands, dtype, differentiable),
            ):
                with enable_fixes(fix):
                    compare(*arguments)

            has_two_ways = fix in ("convolution", "matmul")
            yield Check(f"{name} {dtype_name(dtype)}", in_both_ways(run) if has_two_ways else run)
    yield from _distributions()
