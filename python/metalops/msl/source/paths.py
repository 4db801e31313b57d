"""Paths of the front end's own headers (the metal_stdlib that emitted code is compiled against, for all targets), and
the files that a target's compiled kernels depend on."""

from __future__ import annotations

import os

_MSL = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADERS = os.path.join(_MSL, "include")
# metalops' own headers for Metal sources, <metalops/registration.h> among them.
PACKAGE_HEADERS = os.path.join(os.path.dirname(_MSL), "include")


def files_for(target: str) -> list[str]:
    """Returns the front end's files, sorted, that kernels compiled for a target ("host" or "cuda") depend on."""
    # The checker compiles nothing.
    others = {"__pycache__", "check", "host", "cuda"} - {target}
    result = []
    for folder, folders, names in os.walk(_MSL):
        folders[:] = [f for f in folders if f not in others]
        result += [os.path.join(folder, name) for name in names]
    return sorted(result)
