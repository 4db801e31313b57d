"""Calls of operators by the functions of this package.

``torch.ops`` handles arguments in Python and takes several times as long as dispatching a small operator does. So the
functions call a C++ function instead, except under Dynamo, which can trace torch.ops only.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from ... import _problem

__all__ = ["direct", "is_dynamo_compiling", "through_torch_ops"]


def through_torch_ops(name: str, *args, out: Tensor | None = None) -> Tensor:
    """Calls ``torch.ops.metalops.<name>``."""
    packet = getattr(torch.ops.metalops, name)
    return packet.default(*args) if out is None else packet.out(*args, out=out)


def direct(name: str) -> Callable[..., Tensor]:
    """Returns a function that calls ``metalops::<name>``.

    It takes the arguments by position and, unless the operator works in place, the ``out`` tensor or None after them.
    """
    packet = getattr(torch.ops.metalops, name)
    takes_out = "out" in packet.overloads()

    def fallback(*args) -> Tensor:
        if not takes_out:
            return packet.default(*args)
        *args, out = args
        return through_torch_ops(name, *args, out=out)

    if _problem is not None:
        return fallback
    from ... import _C

    return _C.direct_call(f"metalops::{name}", fallback)
