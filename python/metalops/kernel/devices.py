"""The devices on which kernels of Python run: mps and cuda."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from .._textures import Texture
from .._torch.internals import constant_to_dynamo

DEVICES = ("mps", "cuda")


@constant_to_dynamo
def default_device() -> torch.device:
    """Returns the device of kernels for which nothing else determines it: mps if there is one."""
    if torch.cuda.is_available() and not torch.backends.mps.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("mps")


def place_of(values: Iterable[object], device: torch.device | None = None) -> torch.device:
    """Returns the device of the first tensor among the values; without one, device or the default one."""
    for value in values:
        if isinstance(value, torch.Tensor | Texture):
            return value.device
    if device is None:
        return default_device()
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def shader_compiler(device: torch.device, has_textures: bool = False) -> Callable[[str], object]:
    """Returns the compiler of Metal text for a device, with the interface of torch.mps.compile_shader. has_textures: true
    if kernels take textures or samplers."""
    if device.type == "cuda":
        from ..cuda import compile_shader

        return compile_shader
    if has_textures:  # which a Mac's torch does not pass to kernels
        from .._shaders.compile import compile_shader

        return compile_shader
    return torch.mps.compile_shader
