"""Events of a profile in the JSON format of Chrome's traces, which Perfetto reads."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True)
class Event:
    """A call of an operator, or a launch of a kernel by one. name: "aten::addmm", or the kernel's name. begin, end: in
    nanoseconds of time.perf_counter_ns(), of the device's work. bytes: of the memory that it reads and writes, each tensor
    counted once. operator: by which a kernel was launched, "" if by none. module: the name of the module that made the
    call. is_backward: whether autograd's backward pass did. thread: the number of the CPU thread. description: the
    sizes of its tensors."""

    name: str
    kind: str
    begin: int
    end: int
    bytes: int
    operator: str
    module: str
    is_backward: bool
    thread: int
    description: str = ""

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        return (self.end - self.begin) / 1e9


def save(path: str | os.PathLike, events: Iterable[Event]) -> None:
    """Writes events to a file."""
    listed = sorted(events, key=lambda event: (event.begin, -event.end))
    first = listed[0].begin if listed else 0
    tracks = {thread: number for number, thread in enumerate({e.thread: 0 for e in listed}, 1)}
    document = {
        "displayTimeUnit": "ns",
        "traceEvents": [
            {"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "mps"}},
            *(_name_of_track(number) for number in tracks.values()),
            *(_written(event, first, tracks[event.thread]) for event in listed),
        ],
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file)


def _name_of_track(number: int) -> dict:
    name = f"calls of thread {number}"
    return {"name": "thread_name", "ph": "M", "pid": 1, "tid": number, "args": {"name": name}}


def _written(event: Event, first: int, track: int) -> dict:
    details = {
        "bytes": event.bytes,
        "module": event.module,
        "pass": "backward" if event.is_backward else "forward",
        "sizes" if event.kind == "operator" else "grid": event.description,
    }
    return {
        "name": event.name,
        "cat": event.kind,
        "ph": "X",
        "ts": (event.begin - first) / 1e3,  # microseconds
        "dur": (event.end - event.begin) / 1e3,
        "pid": 1,
        "tid": track,
        "args": details,
    }
