"""Checks of operators' arguments on all devices but ``mps``, whose operators make the same ones: those of csrc/plans
(see csrc/plans/arguments.h), in the library of launch plans.

Whoever calls torch.ops.metalops directly comes past the checks of the public functions, and a kernel would read beyond
its operands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from .._cuda import plan
from .elsewhere import check_devices

_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def checked(name: str, arguments: Sequence[str], kernel: Callable) -> Callable:
    """Returns an operator's kernel that checks its arguments before it runs. arguments: their names in the schema."""

    @functools.wraps(kernel)
    def run(*args):
        check(name, dict(zip(arguments, args, strict=True)))
        return kernel(*args)

    return run


def check(name: str, arguments: Mapping[str, object]) -> None:
    """Raises what the operator raises on mps: RuntimeError, ValueError or NotImplementedError. Calls with symbolic sizes
    or numbers, which a check would specialise, are checked when the compiled program runs, except for their devices."""
    check_devices(**{key: x for key, x in arguments.items() if isinstance(x, Tensor)})
    values = [_seen(arguments[field]) for field, *_ in _fields(name)]
    if not any(map(_is_symbolic, values)):
        error = _error(name, tuple(values))
        if error is not None:
            raise type(error)(*error.args)


def _fields(name: str) -> Sequence[tuple[str, int, int]]:
    return plan.functions().fields(f"check_{name}")


def _seen(x: object) -> object:
    """Returns what checks see of an argument: it can be hashed, except for symbols."""
    if isinstance(x, Tensor):
        return plan.Operand(x.dtype, tuple(x.shape))
    return tuple(x) if isinstance(x, list) else x


def _is_symbolic(value: object) -> bool:
    if isinstance(value, plan.Operand):
        return any(isinstance(size, torch.SymInt) for size in value.sizes)
    return isinstance(value, _SYMBOLS)


@functools.lru_cache(maxsize=4096)
def _error(name: str, values: tuple) -> Exception | None:
    fields = (field for field, *_ in _fields(name))
    try:
        plan.functions().check(f"check_{name}", dict(zip(fields, values, strict=True)))
    except (RuntimeError, ValueError) as error:  # NotImplementedError is a RuntimeError
        return error.with_traceback(None)
    return None
