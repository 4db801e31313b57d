"""Values that are too long to be passed with a launch: preceding launches write them to memory, so that nothing
synchronises and a CUDA graph captures them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from torch import Tensor

from . import device

if TYPE_CHECKING:
    from .library import Library

_PART = 3840  # bytes of a launch, whose parameters may have 4096
_SOURCE = f"""#include <metal_stdlib>
using namespace metal;
struct Part {{ uint4 words[{_PART // 16}]; }};
kernel void write(device uint4* out, constant Part& part, uint i [[thread_position_in_grid]]) {{ out[i] = part.words[i]; }}
"""


@functools.cache
def _library() -> Library:
    from .library import Library

    return Library(_SOURCE, "long_values")


def on_gpu(value: bytes) -> Tensor:
    """Returns the bytes in memory of the current GPU, valid from here on in its current stream."""
    size = -(-len(value) // 16) * 16
    memory = device.empty_bytes(size)
    for at in range(0, size, _PART):
        part = value[at : at + _PART]
        words = -(-len(part) // 16)
        _library().launch("write", [memory[at:], part.ljust(_PART, b"\0")], words, words)
    return memory[: len(value)]
