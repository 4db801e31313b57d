"""Where kernels of Python run: on mps, and on cuda."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from .._torch.internals import constant_to_dynamo

DEVICES = ("mps", "cuda")


@constant_to_dynamo
def default_device() -> torch.device:
    """Where kernels run that nothing else says it of: mps where there is one."""
    if torch.cuda.is_available() and not torch.backends.mps.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("mps")


def place_of(values: Iterable[object], device: torch.device | None = None) -> torch.device:
    """The device of the first tensor among the values; without one, device or the default one."""
    for value in values:
        if isinstance(value, torch.Tensor):
            return value.device
    if device is None:
        return default_device()
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def shader_compiler(device: torch.device) -> Callable[[str], object]:
    """What compiles Metal text for a device, as torch.mps.compile_shader does."""
    if device.type == "cuda":
        from ..cuda import compile_shader

        return compile_shader
    return torch.mps.compile_shader
