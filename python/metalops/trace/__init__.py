"""Traces: recorded kernel launches in one file that can be replayed elsewhere.

with metalops.debug.capture("report.trace"):
    y = model(x)

python -m metalops replay report.trace --check --device cuda
"""

from __future__ import annotations

from .format import Argument, BoundTexture, Launch, Memory, Trace, TraceError, Write, load, save

__all__ = [
    "Argument",
    "BoundTexture",
    "Launch",
    "Memory",
    "Trace",
    "TraceError",
    "Write",
    "load",
    "save",
]
