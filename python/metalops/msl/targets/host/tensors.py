"""Compiler flags for programs with Metal 4's tensors: a newer C++, and the layout of cooperative tensors."""

from __future__ import annotations

import re

from .... import _environment

LAYOUT = "METALOPS_COOPERATIVE_LAYOUT"
_LAYOUTS = {"apple10": 10, "apple8": 8}
# The layout of NVIDIA's tensor cores, for programs that test nothing about Apple's.
OF_TENSOR_CORES = "tensor_cores"
_SCRAMBLE = re.compile(r"scramble(?::(\d{1,9}))?")


def layout() -> str:
    """Returns the value of METALOPS_COOPERATIVE_LAYOUT: "apple10" (the default), "apple8", or "scramble", optionally
    followed by ":SEED". Raises ValueError for anything else."""
    return _environment.value(LAYOUT) or "apple10"


def flags(standard: str, language: int, cooperative_layout: str) -> list[str]:
    """Returns the flags for a compiler. standard: of C++; an operation's descriptor is a template argument, and on the
    host subscripts have commas, both of which need a newer one."""
    scrambled = _SCRAMBLE.fullmatch(cooperative_layout)
    seed = int(scrambled.group(1) or 0) if scrambled else 0
    number = 16 if cooperative_layout == OF_TENSOR_CORES else _LAYOUTS.get(cooperative_layout, 0)
    return [
        f"-std={standard}",
        f"-DMSL_METAL_VERSION={language}",
        f"-DMSL_COOPERATIVE_LAYOUT={number}",
        f"-DMSL_COOPERATIVE_SEED={seed}",
    ]
