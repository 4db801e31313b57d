"""Accessor functions for the swizzles of a program (include/msl/rewrite.h)."""

from __future__ import annotations

_COMPONENTS = {"x": 0, "y": 1, "z": 2, "w": 3, "r": 0, "g": 1, "b": 2, "a": 3}


def accessors(swizzles: set[str]) -> str:
    """Returns the definitions of the accessors for the names that a program uses."""
    if not swizzles:
        return ""
    lines = []
    for name in sorted(swizzles):
        if len(name) == 1:
            lines.append(f"MSL_COMPONENT({name}, {'xyzw'[_COMPONENTS[name]]})")
        else:
            lines.append(f"MSL_SWIZZLE({name}, {', '.join(str(_COMPONENTS[c]) for c in name)})")
    return "namespace msl::msl_support {\n" + "\n".join(lines) + "\n}\n"
