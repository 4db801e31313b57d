"""Test descriptions of the pointwise operators of ``metalops.ops``: their references, and the operands with which both
are called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .._torch.internals import OpOverload
from ..ops._define.pointwise import declared
from .samples import FLOATS, INTEGERS, Case, elementwise_cases, make, special_values


@dataclass(frozen=True)
class Operator:
    """An operator of ``metalops.ops`` as tests see it; other properties are taken from its declaration.

    reference: a function of the operator's name that computes the same from CPU tensors, in the operands' dtypes and
    exactly in float64. arguments: keyword arguments with which both are tried. low, high: the range of its samples.
    bad_arguments: keyword arguments that raise ValueError, and a part of its message.
    """

    reference: Callable[..., Tensor]
    arguments: tuple[dict[str, Any], ...] = ({},)
    low: float = -5
    high: float = 5
    bad_arguments: tuple[tuple[dict[str, Any], str], ...] = ()

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        return self.reference.__name__

    @property
    def function(self) -> Callable[..., Tensor]:
        return declared[self.name].function

    @property
    def inplace(self) -> Callable[..., Tensor] | None:
        return declared[self.name].inplace

    @property
    def operands(self) -> int:
        """The number of tensors it takes."""
        return declared[self.name].operands

    @property
    def halving(self) -> bool:
        """True if it takes the two halves of its only operand."""
        return declared[self.name].halving

    @property
    def integers_stay(self) -> bool:
        """True if integers stay integers, and bool is rejected."""
        return declared[self.name].integers_stay

    @property
    def overload(self) -> OpOverload:
        return getattr(torch.ops.metalops, self.name).default

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        return (*FLOATS, *INTEGERS) if self.integers_stay else (*FLOATS, *INTEGERS, torch.bool)

    def sample(self, *shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
        """Returns an operand."""
        return make(shape, dtype, low=self.low, high=self.high, seed=seed)

    def simple_case(self, dtype: torch.dtype, *shape: int) -> Case:
        """Returns contiguous operands of one shape, without broadcasting; by default one that gives a result of shape
        (4, 6)."""
        shape = shape or ((4, 12) if self.halving else (4, 6))
        args = tuple(self.sample(*shape, dtype=dtype, seed=i) for i in range(self.operands))
        return Case("simple", args, self.arguments[-1])

    def cases(self, dtype: torch.dtype) -> Iterator[Case]:
        """Yields the whole matrix of cases for floats and int64; for the other integers every fifth case and the
        special values."""
        if self.halving:
            cases = halving_cases(dtype, low=self.low, high=self.high)
        else:
            cases = elementwise_cases(self.operands, dtype, low=self.low, high=self.high)
        whole = dtype in (*FLOATS, torch.int64)
        for i, case in enumerate(cases):
            if whole or i % 5 == 0 or not case.precise:
                yield replace(case, kwargs=self.arguments[i % len(self.arguments)])


def halving_cases(dtype: torch.dtype, *, low: float, high: float) -> Iterator[Case]:
    """Yields operands whose last dimension has even size, in all layouts."""

    def sample(*shape: int) -> Tensor:
        return make(shape, dtype, low=low, high=high, seed=sum(shape))

    shapes = {
        "1-d": sample(14),
        "2-d": sample(6, 10),
        "28 in a half": sample(3, 56),
        "33 in a half": sample(3, 66),
        "3-d": sample(2, 3, 8),
        "many threadgroups": sample(11, 2048),
        "one pair": sample(2),
        "no pairs": sample(3, 0),
        "no rows": sample(0, 4),
        "transposed": sample(10, 6).t(),
        "permuted": sample(4, 3, 2).permute(2, 1, 0),
        "channels_last": sample(2, 3, 4, 6).to(memory_format=torch.channels_last),
        "slice with offset": sample(6, 19)[1:5, 3:17],
        "step 2 in the last dimension": sample(5, 40)[:, 1::2],
        "step 2 in the first dimension": sample(10, 12)[1::2],
        "expanded": sample(1, 12).expand(5, 12),
        "expanded in the last dimension": sample(5, 1).expand(5, 12),
        "10-d": sample(200).as_strided((2,) * 10, tuple(range(1, 20, 2)), 3),
        "16-d": sample(300).as_strided((2,) * 16, tuple(range(1, 32, 2)), 5),
    }
    for name, x in shapes.items():
        yield Case(name, (x,))
    values = special_values(dtype)
    first, second = torch.meshgrid(values, values, indexing="ij")
    yield Case("special values", (torch.cat([first, second], dim=-1),), precise=False)
