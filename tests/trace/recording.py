"""`python -m pytest --record-launches FOLDER tests/...`: traces of what tests launch, to be checked on another device.

Of each kernel the first few launches, on little memory. Each process of pytest-xdist writes a file of its own.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator

import torch
from metalops import _host, trace
from metalops.trace.capture import Recorder, run_by_default

LAUNCHES = 2
LARGEST = 2**17  # bytes of all memory that a launch sees


@contextlib.contextmanager
def recorded(folder: str) -> Iterator[None]:
    os.makedirs(folder, exist_ok=True)
    recorder = Recorder(largest=None, run=run_by_default)
    counts: Counter[str] = Counter()

    def hook(launch: _host.HookedLaunch) -> None:
        counts[launch.name] += 1
        size = sum(argument["bytes"] for argument in launch.arguments)
        if counts[launch.name] > LAUNCHES or size > LARGEST:
            run_by_default(launch)
            return
        with torch.inference_mode(False), torch.no_grad():
            recorder.record(launch)

    before = _host.set_launch_hook(hook)
    try:
        yield
    finally:
        _host.set_launch_hook(before)
        trace.save(recorder.trace, os.path.join(folder, f"{os.getpid()}.trace"))
