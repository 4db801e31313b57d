"""The memory of mps tensors, by the operators and modules that allocated it.

A result whose storage no argument has was allocated by the call. The storage is followed until it is freed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .._compare.call import Operator
from .._locks import recursive_lock
from .calls import Observer, results_on_mps
from .profile import in_words


@dataclasses.dataclass(frozen=True, order=True)
class Holder:
    """The maker of tensors that are alive. operator: "aten::addmm", or "parameters" or "buffers" of the model. module: the
    name of the module that called it. is_backward: whether autograd's backward pass did."""

    module: str
    operator: str
    is_backward: bool = False

    def __str__(self) -> str:
        where = self.module or "(no module)"
        return (
            f"{where}, backward: {self.operator}"
            if self.is_backward
            else f"{where}: {self.operator}"
        )


@dataclasses.dataclass(frozen=True)
class MemorySnapshot:
    """Memory at a time. live: bytes that tensors have. driver: bytes that the device has for the process. holders: the bytes
    that are alive of each holder, and the number of allocations."""

    live: int
    driver: int
    holders: dict[Holder, tuple[int, int]]

    @property
    def cached(self) -> int:
        """The bytes that the allocator keeps for tensors to come, or for other purposes."""
        return self.driver - self.live

    @property
    def others(self) -> int:
        """The live bytes without a known holder: those that were allocated before the block, or within operators."""
        return self.live - sum(size for size, _ in self.holders.values())

    def __sub__(self, before: MemorySnapshot) -> MemorySnapshot:
        """Returns the growth since an earlier snapshot: the holders that have more or less than then."""
        names = {*self.holders, *before.holders}
        pairs = {x: (self.holders.get(x, (0, 0)), before.holders.get(x, (0, 0))) for x in names}
        changes = {x: (a[0] - b[0], a[1] - b[1]) for x, (a, b) in pairs.items() if a != b}
        return MemorySnapshot(self.live - before.live, self.driver - before.driver, changes)

    def table(self, most: int = 20) -> str:
        """Returns as text the holders that have most."""
        lines = [
            f"live {in_words(self.live)}, cached {in_words(self.cached)}, "
            f"driver {in_words(self.driver)}"
        ]
        ordered = sorted(self.holders.items(), key=lambda item: (-abs(item[1][0]), item[0]))
        for holder, (size, count) in ordered[:most]:
            lines.append(f"{in_words(size):>10} in {count:4}  {holder}")
        if len(ordered) > most:
            rest = sum(size for _, (size, _) in ordered[most:])
            lines.append(f"{in_words(rest):>10} of {len(ordered) - most} more holders")
        lines.append(f"{in_words(self.others):>10} of others")
        return "\n".join(lines)


class Memory(Observer):
    """Follows memory: a context manager and a decorator. metalops.debug.memory() makes it.

    peak: the snapshot when most was alive, after a call of an operator in the block.
    """

    def __init__(self, model: nn.Module | None) -> None:
        super().__init__(model)
        self._model = model
        self._holders: dict[Holder, list[int]] = {}
        self._known: dict[int, tuple[weakref.ref, Holder, int]] = {}
        self._lock = recursive_lock()
        self.peak = MemorySnapshot(0, 0, {})

    def begin(self, stack: contextlib.ExitStack) -> None:
        if self._model is not None:
            for holder, tensor in _of_model(self._model):
                self._follow(tensor, holder)
        self.peak = self.snapshot()

    def observe(self, operator: Operator, tensors: list[Tensor], call: Callable[[], Any]) -> Any:
        given = {_address(x) for x in tensors}
        result = call()
        made = [x for x in results_on_mps(result) if _address(x) not in given]
        if made:
            module, is_backward = self.module()
            holder = Holder(module, operator.name, is_backward)
            for tensor in made:
                self._follow(tensor, holder)
            if torch.mps.current_allocated_memory() > self.peak.live:
                self.peak = self.snapshot()
        return result

    def _follow(self, tensor: Tensor, holder: Holder) -> None:
        address = _address(tensor)
        if not address:
            return
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        with self._lock:
            if address in self._known:
                return
            reference = weakref.ref(storage, lambda _: self._freed(address))
            self._known[address] = reference, holder, size
            total = self._holders.setdefault(holder, [0, 0])
            total[0] += size
            total[1] += 1

    def _freed(self, address: int) -> None:
        with self._lock:
            known = self._known.pop(address, None)
            if known is None:
                return
            _, holder, size = known
            total = self._holders[holder]
            total[0] -= size
            total[1] -= 1
            if not total[1]:
                del self._holders[holder]

    def snapshot(self) -> MemorySnapshot:
        """Returns what is alive now."""
        with self._lock:
            holders = {holder: (size, count) for holder, (size, count) in self._holders.items()}
        live, driver = torch.mps.current_allocated_memory(), torch.mps.driver_allocated_memory()
        return MemorySnapshot(live, driver, holders)

    def table(self, most: int = 20) -> str:
        """Returns as text the holders that have most now, and those that had most at the peak."""
        now, peak = self.snapshot().table(most), self.peak.table(most)
        return f"now: {now}\n\nat the peak: {peak}"


def _address(tensor: Tensor) -> int:
    """Returns where the memory of a tensor begins; 0 if it has none."""
    if tensor.layout != torch.strided:
        return 0
    storage = tensor.untyped_storage()
    return storage.data_ptr() if storage.nbytes() else 0


def _of_model(model: nn.Module) -> Iterator[tuple[Holder, Tensor]]:
    for kind, tensors in (
        ("parameters", model.named_parameters()),
        ("buffers", model.named_buffers()),
    ):
        for name, tensor in tensors:
            if tensor.is_mps:
                yield Holder(name.rpartition(".")[0], kind), tensor
