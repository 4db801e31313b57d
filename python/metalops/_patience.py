"""The line on stderr that says what takes long."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

from . import _environment

# Seconds after which the line is written.
_PATIENCE = 2.0


@contextlib.contextmanager
def announced_if_slow(what: str) -> Iterator[None]:
    """Says that `what` is being compiled if the block takes long."""
    timer = threading.Timer(_PATIENCE, _report, [what])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _report(what: str) -> None:
    if _environment.value("METALOPS_QUIET") != "1":
        print(f"metalops: compiling {what} ...", file=sys.stderr, flush=True)
