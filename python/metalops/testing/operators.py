"""What the tests know about each of our operators: how to call it, what it should return, and for which dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .. import ops
from . import references
from .samples import FLOATS, INTEGERS, Case, elementwise_cases, make, special_values


@dataclass(frozen=True)
class Operator:
    """An operator of ours.

    arguments: keyword arguments with which it is tried. halving: whether it takes the two halves of its only operand.
    low, high: the range of its samples.
    """

    name: str
    operands: int = 1
    arguments: tuple[dict[str, Any], ...] = ({},)
    halving: bool = False
    integers_stay: bool = False
    low: float = -5
    high: float = 5
    family: str = ""

    def __str__(self) -> str:
        return self.name

    @property
    def function(self) -> Callable[..., Tensor]:
        return getattr(ops, self.name)

    @property
    def inplace(self) -> Callable[..., Tensor] | None:
        return getattr(ops, f"{self.name}_", None)

    @property
    def reference(self) -> Callable[..., Tensor]:
        return getattr(references, self.name)

    @property
    def overload(self) -> torch._ops.OpOverload:
        return getattr(torch.ops.metalops, self.name).default

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        return (*FLOATS, *INTEGERS) if self.integers_stay else (*FLOATS, *INTEGERS, torch.bool)

    def sample(self, *shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
        """An operand."""
        return make(shape, dtype, low=self.low, high=self.high, seed=seed)

    def simple_case(self, dtype: torch.dtype, *shape: int) -> Case:
        """Contiguous operands of one shape, without broadcasting; by default one that gives a result of shape (4, 6)."""
        shape = shape or ((4, 12) if self.halving else (4, 6))
        args = tuple(self.sample(*shape, dtype=dtype, seed=i) for i in range(self.operands))
        return Case("simple", args, self.arguments[-1])

    def cases(self, dtype: torch.dtype) -> Iterator[Case]:
        """The whole matrix for floats and int64; for the other integers every fifth case and the special values."""
        if self.halving:
            cases = halving_cases(dtype, low=self.low, high=self.high)
        else:
            cases = elementwise_cases(self.operands, dtype, low=self.low, high=self.high)
        whole = dtype in (*FLOATS, torch.int64)
        for i, case in enumerate(cases):
            if whole or i % 5 == 0 or not case.precise:
                yield replace(case, kwargs=self.arguments[i % len(self.arguments)])


def halving_cases(dtype: torch.dtype, *, low: float, high: float) -> Iterator[Case]:
    """Operands whose last dimension has even size, in all layouts."""

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


OPERATORS = (
    Operator("gelu_new", family="activation"),
    Operator("gelu_fast", family="activation"),
    Operator("gelu_quick", family="activation"),
    Operator("relu_squared", integers_stay=True, family="activation"),
    Operator(
        "softcap", arguments=({"cap": 2.0}, {"cap": 30.0}), low=-20, high=20, family="activation"
    ),
    Operator("silu_and_mul", halving=True, family="gated"),
    Operator("mul_and_silu", halving=True, family="gated"),
    Operator("gelu_and_mul", halving=True, family="gated"),
    Operator("gelu_tanh_and_mul", halving=True, family="gated"),
    Operator(
        "fatrelu_and_mul",
        halving=True,
        integers_stay=True,
        arguments=({}, {"threshold": 1.25}),
        family="gated",
    ),
    Operator("swiglu", operands=2, family="gated"),
    Operator("geglu", operands=2, family="gated"),
    Operator("reglu", operands=2, integers_stay=True, family="gated"),
    Operator(
        "swiglu_clamped", operands=2, arguments=({}, {"limit": 2.5}), low=-9, high=9, family="gated"
    ),
    Operator("fma", operands=3, integers_stay=True, family="interpolation"),
    Operator(
        "lerp_clamped", operands=3, integers_stay=True, low=-2, high=3, family="interpolation"
    ),
)


def family(name: str) -> tuple[Operator, ...]:
    """The operators of kernels/``name``.metal."""
    return tuple(op for op in OPERATORS if op.family == name)
