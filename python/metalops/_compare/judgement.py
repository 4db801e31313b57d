"""Whether a result agrees with its reference on the CPU.

The tolerance is the policy of metalops.testing, of a reference in float64. In addition a result may be as far from it as
the CPU's own result in the dtype, times SLACK: another order of the terms of a sum has another error of the same kind,
and only the CPU's error says how ill-conditioned the arguments are. So a result that equals the CPU's own is never wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..testing.checks import rounded_once, scale_of
from ..testing.tolerances import tolerance
from .differences import Mismatch

# In units of the CPU's own error. It sums in blocks, a GPU perhaps term by term.
SLACK = 16.0
# Elementwise operators whose operands are terms of the result.
_SUMS = {"add", "sub", "rsub", "lerp", "addcmul", "addcdiv"}


def judge(
    actual: Any,
    native: Any,
    wide: Any,
    *,
    name: str,
    gradient: bool = False,
    pointwise: bool = False,
    operands: Sequence[Tensor] = (),
) -> Mismatch | None:
    """Returns what is wrong with a result, or None. All are on the CPU.

    native: the CPU's result in the same dtypes. wide: that in float64, or None. pointwise: each element is computed from
    the operands' elements at its place, so the CPU's error elsewhere says nothing of it.
    """
    if not isinstance(native, Tensor):
        return _judge_value(actual, native)
    if not isinstance(actual, Tensor):
        return Mismatch(f"{type(actual).__name__} instead of a tensor")
    if actual.dtype != native.dtype:
        return Mismatch(f"dtype {actual.dtype}, on the CPU {native.dtype}")
    if actual.shape != native.shape:
        return Mismatch(f"shape {tuple(actual.shape)}, on the CPU {tuple(native.shape)}")
    if actual.numel() == 0:
        return None
    actual, native = actual.resolve_conj().resolve_neg(), native.resolve_conj().resolve_neg()
    if not (native.is_floating_point() or native.is_complex()):
        return _judge_exact(actual, native)
    if wide is None or wide.shape != native.shape or wide.dtype.is_complex != native.is_complex():
        wide = native
    else:
        wide = rounded_once(wide, native.dtype)
    return _judge_numbers(actual, native, wide, name, gradient, pointwise, operands)


def _judge_value(actual: Any, native: Any) -> Mismatch | None:
    if type(actual) is not type(native):
        return Mismatch(f"{actual!r}, on the CPU {native!r}")
    if actual == native or (actual != actual and native != native):
        return None
    return Mismatch("the value differs", 1, 1, (), actual, native)


def _judge_exact(actual: Tensor, native: Tensor) -> Mismatch | None:
    wrong = actual != native
    if not bool(wrong.any()):
        return None
    place = tuple(wrong.nonzero()[0].tolist())
    found, expected = actual[place].item(), native[place].item()
    return Mismatch("", int(wrong.sum()), wrong.numel(), place, found, expected)


def _judge_numbers(
    actual: Tensor,
    native: Tensor,
    expected: Tensor,
    name: str,
    gradient: bool,
    pointwise: bool,
    operands: Sequence[Tensor],
) -> Mismatch | None:
    """expected: the reference, rounded to the dtype."""
    rtol, atol = _tolerance(name, expected, gradient, operands)
    kind = torch.complex128 if expected.is_complex() else torch.float64
    a, n, e = (x.to(kind) for x in (actual, native, expected))
    error, own = (a - e).abs(), (n - e).abs()
    own = torch.where(own.isfinite(), own, 0.0)
    if pointwise:
        terms = operands if name.rstrip("_") in _SUMS else ()
        allowed = SLACK * own + _rounding(terms, expected)
    else:
        allowed = SLACK * own.max()
    bound = atol + rtol * torch.where(e.isfinite(), e.abs(), 0.0) + allowed
    # An infinity may have a NaN part or be NaN, depending on the order of the arithmetic (see assert_close).
    both_nan = (a.isnan() & n.isnan()) | (a.isnan() & e.isnan())
    if expected.is_complex():
        both_nan |= ~a.isfinite() & ~e.isfinite() & (a.isnan() | e.isnan())
    wrong = ~((error <= bound) | (a == n) | (a == e) | both_nan)
    if not bool(wrong.any()):
        return None
    excess = torch.where(wrong, torch.nan_to_num(error - bound, nan=torch.inf), -torch.inf)
    place = tuple(int(i) for i in torch.unravel_index(excess.argmax(), excess.shape))
    found, right = actual[place].item(), expected[place].item()
    return Mismatch("", int(wrong.sum()), wrong.numel(), place, found, right, rtol, atol)


def _tolerance(
    name: str, expected: Tensor, gradient: bool, operands: Sequence[Tensor]
) -> tuple[float, float]:
    real = expected.dtype.to_real() if expected.is_complex() else expected.dtype
    if real not in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        return torch.finfo(real).eps, 0.0  # narrow formats, of which the policy says nothing
    return tolerance(name, expected.dtype, gradient, scale_of(expected, operands))


def _rounding(operands: Sequence[Tensor], expected: Tensor) -> Tensor | float:
    """Returns a few units in the last place of the terms at each place: they may cancel in the result."""
    eps = torch.finfo(expected.dtype).eps
    total: Tensor | float = 0.0
    for x in operands:
        if not (x.is_floating_point() or x.is_complex()):
            continue
        try:
            at_place = x.to(torch.complex128 if x.is_complex() else torch.float64)
            at_place = at_place.expand(expected.shape).abs()
        except RuntimeError:
            continue  # it is no operand of each element
        total = total + 4 * eps * torch.where(at_place.isfinite(), at_place, 0.0)
    return total
