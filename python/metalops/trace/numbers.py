"""Describes the kind of numbers in a memory, and generates numbers of that kind: for traces that do not keep the
contents (see Write)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def kind_of(values: Tensor) -> dict[str, object]:
    """Returns a description of numbers on the CPU, of any dtype."""
    values = _as_signed(values)
    dtype = values.dtype
    if dtype.is_complex:
        return {"kind": "normal"}
    if dtype == torch.bool:
        return {"kind": "bernoulli", "probability": float(values.float().mean())}
    low, high = (value.item() for value in values.aminmax())
    if not dtype.is_floating_point:
        return {"kind": "integers", "low": low, "high": high}
    # Rates, probabilities and the like may not be negative.
    if 0 <= low < high < math.inf:
        return {"kind": "uniform", "low": low, "high": high}
    return {"kind": "normal"}


def make(values: Tensor, kind: Mapping[str, object], source: torch.Generator) -> None:
    """Fills a tensor with numbers of a kind. Raises ValueError for unknown kinds."""
    values = _as_signed(values)
    if kind["kind"] == "normal":
        real = torch.view_as_real(values) if values.is_complex() else values
        real.normal_(generator=source)
    elif kind["kind"] == "uniform":
        values.uniform_(float(kind["low"]), float(kind["high"]), generator=source)
    elif kind["kind"] == "bernoulli":
        values.bernoulli_(float(kind["probability"]), generator=source)
    elif kind["kind"] == "integers":
        low, high = int(kind["low"]), int(kind["high"])
        # random_ excludes its upper end, which must fit in a signed 64-bit integer.
        end = min(high + 1, torch.iinfo(torch.int64).max)
        values.random_(low, end, generator=source) if low < end else values.fill_(low)
    else:
        raise ValueError(f"replay: unknown kind of contents {kind['kind']!r}")


def _as_signed(values: Tensor) -> Tensor:
    """Returns unsigned integers of more than eight bits as signed ones: torch has no aminmax for them."""
    return values.view(_SIGNED[values.dtype]) if values.dtype in _SIGNED else values
