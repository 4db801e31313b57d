"""Faults of stock MPS operators that users reported, planted in the stand-ins of the software device.

A tool that looks for wrong results on a Mac, such as metalops.debug.compare(), has to find each of them where it is
planted, and nothing where it is not.
"""

from __future__ import annotations

import contextlib
import dataclasses
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


def _negative_zero(kernel: Kernel, limit: int, x, *args, **kwargs) -> Tensor:
    kernel(x, *args, **kwargs)
    if x.numel():
        x.view(-1)[0] = -0.0
    return x


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
    "multinomial-zero": Fault(
        192577, "a category of probability 0 is drawn", ("multinomial",), _without_probability
    ),
    "exponential-zero": Fault(
        192577, "an exponential random number is -0.0", ("exponential_",), _negative_zero
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
