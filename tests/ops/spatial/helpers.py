"""What the tests of pooling share: inputs and outputs of every layout, comparisons with the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from metalops import testing
from metalops.testing.samples import make, to_device
from torch import Tensor

from ..aten import reference

# Of adaptive pooling, input and output: smaller, larger, both, of one element, the same.
ADAPTIVE_SIZES_3D = [
    ((5, 6, 7), (2, 4, 3)),
    ((2, 3, 4), (5, 7, 6)),
    ((4, 1, 9), (3, 5, 9)),
    ((6, 4, 10), (3, 2, 5)),
    ((1, 1, 1), (2, 1, 3)),
    ((3, 4, 70), (1, 2, 33)),
]
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def check(function: Callable[[Tensor], Tensor], x: Tensor, name: str) -> None:
    """Values and gradients."""
    case = testing.Case(f"{tuple(x.shape)} {x.stride()}", (x,))
    testing.check_forward(function, reference(function), case, "mps", name=name)
    testing.check_gradient(function, reference(function), case, "mps", name=name)


def both(function: Callable[..., Any], *arguments: Any) -> tuple[Any, Any]:
    """The results on the CPU and on the device."""
    return function(*arguments), function(*to_device(arguments, "mps"))


def assert_same(expected: Any, actual: Any, strides: bool = False) -> None:
    """Exactly, NaN included."""
    for e, a in zip(pytree.tree_leaves(expected), pytree.tree_leaves(actual), strict=True):
        assert not strides or e.stride() == a.stride()
        torch.testing.assert_close(a.cpu(), e, rtol=0, atol=0, equal_nan=True)


def layouts(*shape: int) -> Iterator[Tensor]:
    """Tensors of this shape, with and without dimensions that are next to each other in memory."""
    yield make(shape, torch.float32)
    yield make(shape[::-1], torch.float32).permute(*reversed(range(len(shape))))
    wide = make((*shape[:-1], 2 * shape[-1] + 1), torch.float32)
    yield wide[..., 1::2]
    yield make((*shape[:-1], 1), torch.float32).expand(shape)
    yield make((1, *shape[1:]), torch.float32).expand(shape)
    if len(shape) in CHANNELS_LAST:
        yield make(shape, torch.float32).to(memory_format=CHANNELS_LAST[len(shape)])


def outs(like: Tensor) -> Iterator[Tensor]:
    """Tensors for out=: an empty one, one with its dimensions in another order, a view with gaps."""
    yield torch.empty(0, dtype=like.dtype, device=like.device)
    yield torch.empty_like(
        like, memory_format=CHANNELS_LAST.get(like.dim(), torch.contiguous_format)
    )
    wide = torch.full([2 * n for n in like.shape], 7, dtype=like.dtype, device=like.device)
    yield wide[tuple(slice(None, None, 2) for _ in like.shape)]
    assert (wide[..., 1::2] == 7).all()
