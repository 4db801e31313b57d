"""The elementwise operators under one interface, for tests that put every one of them to the same trial: those of
torch.ops.metalops from metalops.testing, and the ATen ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from metalops.testing.samples import FLOATS, INTEGERS

from .aten import reference
from .families import gather

_NUMBERS = (*FLOATS, *INTEGERS, torch.bool)


@dataclass(frozen=True)
class Subject:
    """function, and what the operator should return on the CPU: reference. inplace: the in-place form, if there is one.

    mixed: whether operands of different dtypes are promoted. out_dtype: whether the result has the dtype of its operands
    even if these are integers. has_out: whether the operator has an overload with one out=.
    """

    name: str
    function: Callable[..., Any]
    reference: Callable[..., Any]
    arity: int = 1
    inplace: Callable[..., Any] | None = None
    dtypes: tuple[torch.dtype, ...] = _NUMBERS
    arguments: tuple[dict[str, Any], ...] = ({},)
    low: float = -5
    high: float = 5
    halving: bool = False
    mixed: bool = True
    integers_stay: bool = False
    has_out: bool = True

    def __str__(self) -> str:
        return self.name

    def _repr_pretty_(self, printer, cycle) -> None:  # what hypothesis prints
        printer.text(self.name)


def _ours() -> list[Subject]:
    return [
        Subject(
            op.name,
            op.function,
            op.reference,
            op.operands,
            op.inplace,
            op.dtypes,
            op.arguments,
            op.low,
            op.high,
            halving=op.halving,
            integers_stay=op.integers_stay,
        )
        for op in gather("POINTWISE")
    ]


def _logit(x: torch.Tensor, **arguments: Any) -> torch.Tensor:
    """Only the in-place form is ours."""
    return torch.logit_(x.clone(), **arguments)


def _special(name: str, **properties: Any) -> Subject:
    function = getattr(torch.special, name)
    return Subject(f"special.{name}", function, reference(function), **properties)


SUBJECTS = (
    *_ours(),
    _special("airy_ai", low=-12, high=8),
    _special("ndtri", low=-0.25, high=1.25),
    _special("log_ndtr", low=-12, high=8),
    _special("laguerre_polynomial_l", arity=2, low=-2, high=6),
    _special("legendre_polynomial_p", arity=2, low=-2, high=6),
    Subject(
        "heaviside",
        torch.heaviside,
        torch.heaviside,
        arity=2,
        inplace=torch.Tensor.heaviside_,
        mixed=False,
        integers_stay=True,
        low=-2,
        high=2,
    ),
    Subject(
        "logit",
        _logit,
        reference(torch.logit),
        inplace=torch.Tensor.logit_,
        dtypes=FLOATS,
        arguments=({}, {"eps": 0.125}),
        low=-0.25,
        high=1.25,
        has_out=False,
    ),
    Subject("frexp", torch.frexp, torch.frexp, dtypes=FLOATS, has_out=False),
    Subject(
        "nn.functional.rrelu",
        torch.nn.functional.rrelu,
        reference(torch.nn.functional.rrelu),
        inplace=torch.nn.functional.rrelu_,
        dtypes=FLOATS,
        arguments=({}, {"lower": 0.25, "upper": 0.75}),
        has_out=False,
    ),
)
