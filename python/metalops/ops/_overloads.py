"""The overloads of an operator of ours, looked up once: calling one directly costs half of a call by name."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch._ops import OpOverload

from .. import _C


def _with_warnings(overload: OpOverload) -> Callable[..., Tensor]:
    """An ``out`` overload whose warning about a resized tensor is a Python warning.

    Calls of operators outside torch's own bindings print what C++ code warns of.
    """

    def call(*args, out: Tensor) -> Tensor:
        if (
            out.shape == args[0].shape
            or out.numel() == 0  # resized without a warning
            or torch.compiler.is_compiling()
        ):
            return overload(*args, out=out)
        return _C.call_with_warnings(overload, *args, out=out)

    return call


def overloads(name: str, *, inplace: bool = True) -> tuple[Callable[..., Tensor], ...]:
    """The functional and the ``out`` overload of ``metalops::name`` and, if ``inplace``, ``metalops::name_``."""
    functional = getattr(torch.ops.metalops, name)
    result = (functional.default, _with_warnings(functional.out))
    return (*result, getattr(torch.ops.metalops, f"{name}_").default) if inplace else result
