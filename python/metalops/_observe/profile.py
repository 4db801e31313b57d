"""Times of operators and kernels.

On the software device a call is timed with the work that it does, and each launch within it, as the engine runs it. On a Mac
a call is timed by the command buffer that it encodes: the device is waited for after each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from .. import _C, _is_software, _outputs
from .._compare.call import Operator
from .._locks import recursive_lock
from . import events
from .calls import Observer, results_on_mps
from .events import Event

# Events beyond these are counted, but are not in the trace.
_MOST_EVENTS = 2**20


@dataclasses.dataclass
class Cost:
    """All events of a name. seconds, bytes: their sums."""

    name: str
    calls: int = 0
    seconds: float = 0.0
    bytes: int = 0

    def add(self, event: Event) -> None:
        self.calls += 1
        self.seconds += event.seconds
        self.bytes += event.bytes


class Profile(Observer):
    """A profile: a context manager and a decorator. metalops.debug.profile() makes it.

    events: the calls of operators and the launches of kernels, in order of their ends; at most 2^20 of them.
    """

    def __init__(self, model: nn.Module | None, path: str | os.PathLike | None) -> None:
        super().__init__(model)
        if path is not None:
            _outputs.check_file(path)
        self.events: list[Event] = []
        self._path = path
        self._costs: dict[tuple[str, str], Cost] = {}
        self._lock = recursive_lock()
        self._here = threading.local()

    def begin(self, stack: contextlib.ExitStack) -> None:
        if self._path is not None:
            stack.callback(lambda: self.save(self._path))
        if _is_software:
            stack.enter_context(_launches_timed(self._launched))
        torch.mps.synchronize()

    def observe(self, operator: Operator, tensors: list[Tensor], call: Callable[[], Any]) -> Any:
        outer = getattr(self._here, "operator", "")
        self._here.operator = operator.name
        try:
            result, begin, end = _timed(call)
        finally:
            self._here.operator = outer
        everything = tensors + results_on_mps(result)
        self._note(operator.name, "operator", begin, end, _bytes_of(everything), _sizes_of(tensors))
        return result

    def _launched(self, name: str, begin: int, end: int, size: int, grid: str) -> None:
        self._note(name, "kernel", begin, end, size, grid)

    def _note(
        self, name: str, kind: str, begin: int, end: int, size: int, description: str
    ) -> None:
        module, is_backward = self.module()
        operator = getattr(self._here, "operator", "")
        thread = threading.get_native_id()
        event = Event(
            name, kind, begin, end, size, operator, module, is_backward, thread, description
        )
        keys = [(kind, name), ("module", module)] if kind == "operator" else [(kind, name)]
        with self._lock:
            if len(self.events) < _MOST_EVENTS:
                self.events.append(event)
            for key in keys:
                self._costs.setdefault(key, Cost(key[1])).add(event)

    def costs(self, by: str = "operator") -> list[Cost]:
        """Returns the costs of operators, by their names or by the "module" that calls them, or of each "kernel", the longest
        first. Raises ValueError for another word."""
        if by not in ("operator", "kernel", "module"):
            raise ValueError(f'profile: by must be "operator", "kernel" or "module", got {by!r}')
        with self._lock:
            found = [dataclasses.replace(cost) for key, cost in self._costs.items() if key[0] == by]
        return sorted(found, key=lambda cost: -cost.seconds)

    def table(self, by: str = "operator", most: int = 20) -> str:
        """Returns as text the costs that are longest."""
        costs = self.costs(by)
        total = sum(cost.seconds for cost in costs)
        wide = max([len(cost.name or "(no module)") for cost in costs[:most]] + [len(by)])
        lines = [
            f"{by:{wide}}  {'calls':>7}  {'time':>10}  {'share':>6}  {'bytes':>10}  {'GB/s':>7}"
        ]
        for cost in costs[:most]:
            rate = cost.bytes / cost.seconds / 1e9 if cost.seconds else 0.0
            share = cost.seconds / total if total else 0.0
            lines.append(
                f"{cost.name or '(no module)':{wide}}  {cost.calls:7}  {cost.seconds * 1e3:7.3f} ms  "
                f"{share:6.1%}  {in_words(cost.bytes):>10}  {rate:7.2f}"
            )
        if len(costs) > most:
            rest = sum(cost.seconds for cost in costs[most:])
            lines.append(f"and {len(costs) - most} more, {rest * 1e3:.3f} ms")
        return "\n".join([*lines, f"together {total * 1e3:.3f} ms"])

    def save(self, path: str | os.PathLike) -> None:
        """Writes the events as a trace, which https://ui.perfetto.dev opens. Raises OSError if it cannot be written."""
        with self._lock:
            events.save(path, list(self.events))


def in_words(size: int) -> str:
    """Returns a number of bytes as text."""
    value, unit = float(abs(size)), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):  # noqa: B007
        if value < 1024:
            break
        value /= 1024
    sign = "-" if size < 0 else ""
    return f"{sign}{value:.0f} {unit}" if unit == "B" else f"{sign}{value:.1f} {unit}"


def _timed(call: Callable[[], Any]) -> tuple[Any, int, int]:
    """Returns the result of a call, and when the device began and ended its work."""
    if sys.platform == "darwin":
        _C.finish_commands()
        result = call()
        begin, end = _C.finish_commands()
        return result, round(begin * 1e9), round(end * 1e9)
    begin = time.perf_counter_ns()
    result = call()
    torch.mps.synchronize()  # other streams than the default one work later
    return result, begin, time.perf_counter_ns()


@contextlib.contextmanager
def _launches_timed(note: Callable[[str, int, int, int, str], None]):
    from .. import _host
    from ..trace.capture import run_by_default

    before = _host.set_launch_hook(None)  # perhaps that of a capture
    run = before or run_by_default

    def hook(launch) -> None:
        begin = time.perf_counter_ns()
        run(launch)
        end = time.perf_counter_ns()
        size = sum(map(_bytes_of_argument, launch.arguments))
        grid = " x ".join(map(str, launch.grid))
        note(launch.name, begin, end, size, f"{grid} threads")

    _host.set_launch_hook(hook)
    try:
        yield
    finally:
        _host.set_launch_hook(before)


def _bytes_of_argument(argument: dict) -> int:
    if argument["is_value"]:
        return 0
    dtype = getattr(torch, argument.get("dtype", ""), None)
    if isinstance(dtype, torch.dtype):
        return math.prod(argument["sizes"]) * dtype.itemsize
    return argument["bytes"]


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    strided = (x for x in tensors if x.layout == torch.strided)
    different = {(x.data_ptr(), x.shape, x.stride()): x for x in strided}
    return sum(x.numel() * x.element_size() for x in different.values())


def _sizes_of(tensors: Iterable[Tensor]) -> str:
    return ", ".join(f"{str(x.dtype)[6:]} {list(x.shape)}" for x in tensors)
