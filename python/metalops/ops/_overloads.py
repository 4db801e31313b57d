"""The overloads of an operator of ours, looked up once: calling one directly costs half of a call by name."""

from __future__ import annotations

import torch
from torch._ops import OpOverload


def overloads(name: str, *, inplace: bool = True) -> tuple[OpOverload, ...]:
    """The functional and the ``out`` overload of ``metalops::name`` and, if ``inplace``, ``metalops::name_``."""
    functional = getattr(torch.ops.metalops, name)
    result = (functional.default, functional.out)
    return (*result, getattr(torch.ops.metalops, f"{name}_").default) if inplace else result
