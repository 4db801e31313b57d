"""What a family's test file says of its operators' speed: BENCHMARKS, which benchmarks/run.py measures."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from metalops.ops._define.pointwise import declared
from torch import Tensor

# Reasons for which several operators are slow on the software device.
FIBERS = (
    "the threads of a group wait for each other, so on the software device they are fibers, each of which costs as much "
    "as adding a hundred numbers"
)
WINDOWS = (
    "each element finds its window by itself, which torch does once for a row or a plane; and gradients are gathered, by "
    "each element in parallel and without atomics, from all windows that it may be in, where torch adds that of each "
    "window to its elements in turn"
)
HALVES_ONE_BY_ONE = "g++ 12 converts numbers of 16 bits one by one"


@dataclass(frozen=True)
class Benchmark:
    """ours and theirs are called as f(*inputs, out), on mps and on the CPU.

    inputs: how many tensors; low and high bound them. halves: whether the result is half as long. composed: whether theirs
    is a composition of several operators. only_dtype: the only one that both sides take. reason: why it is less than half
    as fast as torch's at 4M elements on the software device, if it is.
    """

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    inputs: int = 1
    composed: bool = False
    halves: bool = False
    low: float = -4
    high: float = 4
    only_dtype: str | None = None
    reason: str = ""

    @classmethod
    def same(cls, name: str, function: Callable[..., Any], **properties: Any) -> Benchmark:
        """Of a function of torch that reaches our kernels on mps."""
        return cls(name, function, function, **properties)

    @classmethod
    def with_gradient(
        cls,
        name: str,
        function: Callable[[Tensor], Tensor],
        *,
        gradient_reason: str = "",
        **properties: Any,
    ) -> tuple[Benchmark, Benchmark]:
        """Of a function of one tensor, forward alone and with its gradient. gradient_reason: the latter's, if it is slow
        for another reason."""

        def both(x: Tensor, out: Tensor) -> tuple[Tensor, ...]:
            x = x.detach().requires_grad_()
            result = function(x)
            return torch.autograd.grad(result, x, torch.ones_like(result))

        forward = cls.same(name, lambda x, out: function(x), **properties)
        if gradient_reason:
            properties["reason"] = gradient_reason
        return forward, cls.same(f"{name}, gradient", both, **properties)

    @classmethod
    def of(
        cls,
        reference: Callable[..., Any],
        theirs: Callable[..., Any],
        *arguments: float,
        composed: bool = True,
        reason: str = "",
    ) -> Benchmark:
        """Of the operator of ``metalops.ops`` that has the reference's name, with these arguments after its tensors."""
        operator = declared[reference.__name__]
        function = operator.function
        return cls(
            reference.__name__,
            lambda *tensors: function(*tensors[:-1], *arguments, out=tensors[-1]),
            theirs,
            inputs=operator.operands,
            composed=composed,
            halves=operator.halving,
            reason=reason,
        )


# Operands beside those that are timed, made once.


@functools.lru_cache(maxsize=4)
def permutation(shape: torch.Size, device: torch.device) -> Tensor:
    return torch.randperm(math.prod(shape)).view(shape).to(device)


@functools.lru_cache(maxsize=4)
def ones(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.ones(shape, dtype=dtype, device=device)


@functools.cache
def random_classes(rows: int, columns: int, count: int, device: torch.device) -> Tensor:
    """`count` random classes for each row of `columns` values; one alone without a dimension."""
    shape = (rows,) if count == 1 else (rows, count)
    return torch.randint(columns, shape).to(device)


# Of pooling.


def images(x: Tensor, dimensions: int) -> Tensor:
    """As many planes of 64 x 64 or 16 x 16 x 16 elements as there are; a smaller one of few elements."""
    edge = 2 ** min(6 if dimensions == 2 else 4, (x.numel().bit_length() - 1) // dimensions)
    return x.reshape(1, -1, *[edge] * dimensions)


def adaptive(function: Callable[..., Tensor], x: Tensor, dimensions: int, window: float) -> Tensor:
    """Adaptive pooling to windows of about this size in each dimension."""
    x = images(x, dimensions)
    return function(x, max(1, round(x.shape[-1] / window)))
