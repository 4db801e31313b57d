"""Looking into the software mps device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from . import _is_software


@contextlib.contextmanager
def standins() -> Iterator[dict[str, int]]:
    """Records which operators were served by a stand-in: a CPU kernel in the place of an MPS one.

    Yields a dict that is filled when the block ends: operator overload ("aten::sin.out") to the
    number of calls. Calls of this thread count, and of the autograd threads that work for it.
    Making, viewing and copying tensors is the device's own work, as on a Mac, and is not recorded.
    On a Mac there are no stand-ins and the dict stays empty.
    """
    counts: dict[str, int] = {}
    if not _is_software:
        yield counts
        return
    from . import _host

    record = _host.push_stand_in_record()
    try:
        yield counts
    finally:
        _host.pop_stand_in_record()
        counts.update(record.counts())
