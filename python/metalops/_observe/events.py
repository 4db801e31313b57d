"""Events of a profile in the JSON format of Chrome's traces, which Perfetto reads."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .profile import Event


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
