"""Fixes for stock MPS operators that return wrong results: kernels of metalops that take their place while they are on.

FAULTS is the table of what is wrong with stock operators, and FIXES that of the fixes. Nothing here changes an operator
before a fix is turned on: by metalops.enable_fixes(), by the environment variable METALOPS_FIXES, by a settings file that
`python -m metalops doctor --apply` writes, or because stock is always wrong with this torch on a Mac.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from types import TracebackType

from .. import _C
from .table import FAULTS as FAULTS
from .table import FIXES as FIXES
from .table import Fault as Fault
from .table import Fix as Fix

# name -> why it is on
_reasons: dict[str, str] = {}


@dataclasses.dataclass(frozen=True)
class Status:
    """A fix. on: whether its kernels serve operators now, and why: what turned it on, or "". operators: the overloads of
    aten that they serve now. kernels: the families of kernels. faults: the names in FAULTS of what it cures."""

    name: str
    on: bool
    why: str
    operators: tuple[str, ...]
    kernels: tuple[str, ...]
    faults: tuple[str, ...]


class Enabled:
    """The result of enable_fixes, which may be used in a `with` statement: its end turns off what it turned on."""

    def __init__(self, names: tuple[str, ...]):
        self._names = names

    def __enter__(self) -> Enabled:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        disable_fixes(self._names)


def enable_fixes(names: str | Iterable[str] | None = None) -> Enabled:
    """Turns fixes on: kernels of metalops serve the operators in the place of stock MPS's, for the whole process. Those of
    functions that torch.compile has compiled are found at each call, as others.

    names: of metalops.fixes.FIXES, such as ("matmul", "multinomial"); by default all. Fixes that are on stay on. In a
    `with` statement, its end turns off those that the call turned on.

        >>> import metalops, torch
        >>> x = torch.full((1, 2, 2), torch.nan, device="mps")
        >>> with metalops.enable_fixes("matmul"):
        ...     torch.baddbmm(x, torch.ones_like(x), torch.ones_like(x), beta=0).sum().item()
        8.0

    Raises ValueError for an unknown name.
    """
    return _turn_on(_checked(names, "enable_fixes"), "enable_fixes()")


def disable_fixes(names: str | Iterable[str] | None = None) -> None:
    """Turns fixes off, by default all: stock operators are called again. Raises ValueError for an unknown name."""
    for name in _checked(names, "disable_fixes"):
        _C.turn_fix(name, False)
        _reasons.pop(name, None)


def status() -> list[Status]:
    """Returns the state of every fix: whether it is on and why, which operators its kernels serve, and what it cures.

    >>> import metalops
    >>> [fix.name for fix in metalops.fixes.status()]
    ['adaptive_max_pool', 'convolution', 'cumulative', 'embedding_bag', 'exponential', 'grid_sample', 'histogram', 'indexing', 'matmul', 'median', 'multinomial', 'norm', 'reduction', 'sort', 'unique']
    """
    return [
        Status(
            fix.name,
            fix.name in _reasons,
            _reasons.get(fix.name, ""),
            tuple(_C.fixed_overloads(fix.name)),
            fix.kernels,
            tuple(fault.name for fault in FAULTS.values() if fault.fix == fix.name),
        )
        for fix in FIXES.values()
    ]


def _turn_on(names: Iterable[str], reason: str) -> Enabled:
    turned = tuple(name for name in names if name not in _reasons)
    for name in turned:
        _C.turn_fix(name, True)
        _reasons[name] = reason
    return Enabled(turned)


def _checked(names: str | Iterable[str] | None, function: str) -> list[str]:
    if names is None:
        return list(FIXES)
    chosen = [names] if isinstance(names, str) else list(names)
    for name in chosen:
        if name not in FIXES:
            known = ", ".join(map(repr, FIXES))
            raise ValueError(f"{function}: no fix {name!r}; there are {known}")
    return chosen


def __dir__() -> list[str]:
    return ["FAULTS", "FIXES", "Enabled", "Fault", "Fix", "Status", "status"]
