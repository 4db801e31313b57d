"""Recorded operations: what a call does with mps tensors, to be done again on another device.

    recording = operators_capture.record(torch.linalg.eigh, a)            # on the software device
    values, vectors = operators.replay(recording, CudaDevice()).results   # on a GPU, without a compiled part of metalops

A large factorisation is many launches, which the host part of its operator makes, and that runs on mps tensors only. A
recording has the launches of our kernels and the calls of torch's own operators between them (products of matrices,
copies) in one trace. It holds for the arguments that were recorded: an operation that looks at elements on the host
chooses its steps by them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .format import Trace, Write
from .replay import Device, Libraries, launching, memories_of


@dataclasses.dataclass(frozen=True)
class Place:
    """A tensor in a memory of the trace. memory: None if it has no elements. offset: in elements, as strides are."""

    memory: int | None
    offset: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    is_conj: bool
    is_neg: bool


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a torch operator: "aten::bmm" and its overload. Arguments have Places for tensors. results: where what it
    returns belongs; None for what it wrote in place."""

    name: str
    overload: str
    args: tuple
    kwargs: dict[str, Any]
    results: tuple[Place | None, ...]


@dataclasses.dataclass
class Recording:
    """trace: its events may be Calls too, so it cannot be saved as a trace. arguments, results: the operation's tensors."""

    trace: Trace
    arguments: tuple[Place, ...]
    results: tuple[Place, ...]


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Returns nested lists, tuples and dicts with each leaf changed."""
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(one, change) for one in value)
    if isinstance(value, dict):
        return {name: mapped(one, change) for name, one in value.items()}
    return change(value)


def tensors_of(value: Any) -> list[Tensor]:
    """Returns the tensors among the leaves of nested lists, tuples and dicts, also of a single one."""
    found: list[Tensor] = []
    if not isinstance(value, (list, tuple, dict)):
        return [value] if isinstance(value, Tensor) else found
    for one in value.values() if isinstance(value, dict) else value:
        found += tensors_of(one)
    return found


class Replay:
    """The steps of a recording on a device. steps: names of kernels and operators, and functions that run them; writes of
    the host are among them, so that all can run any number of times, and in CUDA graphs."""

    def __init__(self, recording: Recording, device: Device):
        self.device = device.torch_device
        self.recording = recording
        trace = recording.trace
        self.memories = memories_of(trace, device)
        libraries = Libraries(trace, device)
        self.steps: list[tuple[str, Callable[[], object]]] = []
        for event in trace.events:
            if isinstance(event, Write):
                self.steps.append(("write", self._write(event)))
            elif isinstance(event, Call):
                self.steps.append((event.name, self._call(event)))
            else:
                run = launching(event, libraries.library_of(event), self.memories)
                self.steps.append((event.kernel, run))

    def run(self) -> None:
        for _, step in self.steps:
            step()

    def tensor(self, place: Place) -> Tensor:
        """Returns a tensor of the recording, which shares its memory here."""
        if place.memory is None:
            return torch.empty_strided(
                place.sizes, place.strides, dtype=place.dtype, device=self.device
            )
        memory = self.memories[place.memory]
        elements = memory[: memory.numel() // place.dtype.itemsize * place.dtype.itemsize]
        x = elements.view(place.dtype).as_strided(place.sizes, place.strides, place.offset)
        x = x.conj() if place.is_conj else x
        if place.is_neg:
            from .._torch.internals import negative_view

            x = negative_view(x)
        return x

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        return tuple(map(self.tensor, self.recording.arguments))

    @property
    def results(self) -> tuple[Tensor, ...]:
        return tuple(map(self.tensor, self.recording.results))

    def _write(self, write: Write) -> Callable[[], object]:
        if write.contents is None:
            raise ValueError("a recording has the contents of every memory")
        blob = bytearray(self.recording.trace.blobs[write.contents])
        memory = self.memories[write.memory]
        contents = torch.frombuffer(blob, dtype=torch.uint8).to(self.device)
        return lambda: memory.copy_(contents)

    def _call(self, call: Call) -> Callable[[], object]:
        packet = getattr(torch.ops.aten, call.name.removeprefix("aten::"))
        function = getattr(packet, call.overload or "default")

        def there(value: Any) -> Any:
            if isinstance(value, Place):
                return self.tensor(value)
            return self.device if isinstance(value, torch.device) else value

        args, kwargs = mapped(call.args, there), mapped(call.kwargs, there)
        places = [None if place is None else self.tensor(place) for place in call.results]

        def run() -> None:
            for to, x in zip(places, tensors_of(function(*args, **kwargs)), strict=True):
                if to is not None:
                    to.copy_(x)

        return run


def replay(recording: Recording, device: Device) -> Replay:
    """Runs a recording once, and returns what can run it again. Raises what metalops.trace.replay.replay() raises."""
    again = Replay(recording, device)
    again.run()
    return again
