"""What the tests of ATen operators share: references on the CPU for dtypes that torch's CPU
operators lack, the names under which the device would record a stand-in, errors against float64."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import metalops
import pytest
import torch
import torch.utils._pytree as pytree
from metalops import debug
from metalops.testing import to_device
from metalops.testing.samples import FLOATS
from torch import Tensor

NARROW = (torch.float16, torch.bfloat16)

# The floating-point dtypes of the CPU, and shapes of operands that say little in themselves.
CPU_FLOATS = frozenset({*FLOATS, torch.float64})
OPINFO_SHAPES = ((4, 6), (8,), (2, 3, 4), (), (0, 2), (33, 5))

# Arguments and keyword arguments, on the CPU.
Calls = Iterator[tuple[tuple[Any, ...], dict[str, Any]]]


class OpInfoSamples(NamedTuple):
    """What an OpInfo entry of an ATen operator says, where torch's own list, op_db, has none.

    calls: of a dtype. Where CPU kernels refuse float64 scales, steps and the like, references run in float32, and gradients,
    which are compared in float64, are left to the operators' own tests.
    """

    name: str
    op: Callable[..., Any]
    dtypes: frozenset[torch.dtype]
    calls: Callable[[torch.dtype], Calls]


@functools.cache
def our_overloads() -> frozenset[str]:
    """The overloads that only we have a kernel for."""
    return frozenset(entry.name for entry in metalops.coverage() if entry.status == "ours")


@functools.cache
def _overloads_that_we_serve() -> frozenset[str]:
    return frozenset(x.name for x in metalops.coverage() if x.status in ("ours", "replaced"))


@functools.cache
def is_left_to_torch(operator: str) -> bool:
    """Whether the installed torch has a kernel itself for one of ours, "aten::heaviside", which is left to it."""
    names = (x.name for x in metalops.coverage() if x.status == "left to torch")
    return operator in {name.split(".")[0] for name in names}


def skip_unless_ours(overload: str) -> None:
    """Skips a test of an operator that the installed torch has its own kernel for, which it is left to."""
    if overload not in _overloads_that_we_serve():
        pytest.skip(f"torch {torch.__version__} has a kernel for {overload} itself")


def only_ours(overload: str) -> pytest.MarkDecorator:
    """A mark for tests of our kernel for an operator: they are skipped where it is left to torch's."""
    return pytest.mark.skipif(
        overload not in _overloads_that_we_serve(),
        reason=f"torch {torch.__version__} has a kernel for {overload} itself",
    )


def clamped(x: Tensor, low: float, high: float) -> Tensor:
    """torch.clamp with a gradient of 1 at the limits, as torch had it before 2.15."""
    x = torch.where(x < low, torch.full_like(x, low), x)
    return torch.where(x > high, torch.full_like(x, high), x)


def reference(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``function`` with half and bfloat16 tensors computed in float32, the result rounded.

    torch's CPU operators of special functions refuse half precision.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Tensor:
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if not any(x.dtype in NARROW for x in tensors):
            return function(*args, **kwargs)
        dtype = functools.reduce(torch.promote_types, (x.dtype for x in tensors))
        if len(tensors) == 2:
            dtype = torch.result_type(*tensors)
        args, kwargs = pytree.tree_map_only(
            Tensor, lambda x: x.float() if x.dtype in NARROW else x, (args, kwargs)
        )
        result = function(*args, **kwargs)
        return pytree.tree_map(lambda x: x.to(dtype) if x.is_floating_point() else x, result)

    return wrapper


def served_by_us(call: Callable[[], Any]) -> list[str]:
    """Runs ``call``; which of our operators a stand-in served.

    Operators of stock MPS that the formulas of torch's autograd use are none of our business.
    """
    with debug.standins() as served:
        call()
    return [name for name in served if name in our_overloads()]


def kernels_of(call: Callable[[], Any], folder: Path) -> tuple[Any, list[str]]:
    """What call() gives, and the names of the kernels that it launches, in order."""
    with debug.capture(folder / "launches.trace", contents=False) as trace:
        result = call()
    return result, [launch.kernel for launch in trace.launches]


def assert_refused_as_on_the_cpu(
    calls: Iterable[Callable[[Callable[[Tensor], Tensor]], Any]], *errors: type[Exception]
) -> None:
    """Each call takes a function that moves its tensors. On the CPU it raises one of `errors`, and on the device the
    same one with the same message: that of torch's own code, since oneDNN, which serves some operators on some
    processors, has others."""
    for number, call in enumerate(calls):
        with torch.backends.mkldnn.flags(enabled=False), pytest.raises(errors) as expected:
            call(lambda tensor: tensor)
        with pytest.raises(type(expected.value)) as actual:
            call(lambda tensor: to_device(tensor, "mps"))
        assert str(actual.value) == str(expected.value), number


def relative_error(actual: Tensor, exact: Tensor, scale: Tensor | None = None) -> Tensor:
    """Of float32 results against float64 ones.

    Relative to ``scale``; by default to the exact value, at least the smallest normal number.
    """
    scale = exact.abs().clamp_min(torch.finfo(torch.float32).tiny) if scale is None else scale
    return (actual.cpu().double() - exact).abs() / scale


def uniform(low: float, high: float, count: int = 20000) -> Tensor:
    return (torch.rand(count, dtype=torch.float64) * (high - low) + low).float()
