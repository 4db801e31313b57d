"""One comparison of the self-test, and the message of its failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._torch.internals import pytree

# Values of larger tensors are not printed.
_PRINTED = 32


@dataclass(frozen=True)
class Check:
    """A check. run: raises if something is wrong."""

    name: str
    run: Callable[[], None]


def describe(tree: Any) -> str:
    """Describes the arguments of a call, one a line: for tensors dtype, sizes, strides and, if there are few, the
    values."""
    lines = []
    for x in pytree.tree_leaves(tree):
        if not isinstance(x, Tensor):
            lines.append(f"  {x!r}")
            continue
        about = f"  {str(x.dtype)[6:]} {tuple(x.shape)}, strides {x.stride()}, offset {x.storage_offset()}"
        few = x.numel() <= _PRINTED
        lines.append(f"{about}: {x.detach().cpu().tolist()}" if few else about)
    return "\n".join(lines)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Mismatch(AssertionError):
    """A failure together with the inputs of the call."""

    def __init__(self, error: BaseException, inputs: Any) -> None:
        super().__init__(f"{type(error).__name__}: {error}\nwith the inputs\n{describe(inputs)}")


def assert_near(actual: Tensor, expected: Tensor, bound: float, inputs: Any) -> None:
    """Raises unless the norm of the difference is at most bound times that of the expected result, which is on the CPU."""
    actual, expected = actual.detach().cpu().double(), expected.detach().cpu().double()
    problem = None
    if actual.shape != expected.shape:
        problem = f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    elif not bool(actual.isfinite().all()) and bool(expected.isfinite().all()):
        problem = f"{int((~actual.isfinite()).sum())} elements are no finite numbers"
    elif not (actual - expected).norm() <= bound * expected.norm() + 1e-30:
        at = (actual - expected).abs().argmax()
        problem = (
            f"off by {(actual - expected).norm() / expected.norm():.2g} of the expected norm, more than {bound:.2g}; "
            f"most at element {int(at)}: {actual.flatten()[at]:.6g}, expected {expected.flatten()[at]:.6g}"
        )
    if problem:
        raise Mismatch(AssertionError(problem), inputs)
