"""Arguments of kernels, as torch.mps.compile_shader's kernels take them."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .._textures import Sampler, Texture

_LONG = struct.Struct("q").pack
_FLOAT = struct.Struct("f").pack
_CASTS = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
}


class LaunchArguments(NamedTuple):
    """The arguments of a launch. buffers: tensors, bytes, or None for none, by index. textures and samplers are
    numbered apart. group_size: None for the launcher's choice."""

    buffers: list[Tensor | bytes | None]
    textures: list[Texture]
    samplers: list[Sampler]
    threads: tuple[int, ...]
    group_size: tuple[int, ...] | None


def launch_arguments(
    args: Sequence,
    threads: int | Sequence[int] | None,
    group_size: int | Sequence[int] | None,
    arg_casts: str | Mapping[int, str] | None,
    address: Callable[[Tensor], int],
) -> LaunchArguments:
    """Takes the arguments of a call apart. threads: by default as many as the first tensor has elements. address: of a
    tensor of a list. Raises TypeError or RuntimeError for arguments that no launch has."""
    textures: list[Texture] = []
    samplers: list[Sampler] = []
    if any(isinstance(arg, (Texture, Sampler)) for arg in args):
        textures = [arg for arg in args if isinstance(arg, Texture)]
        samplers = [arg for arg in args if isinstance(arg, Sampler)]
        args = [arg for arg in args if not isinstance(arg, (Texture, Sampler))]
    buffers = [
        arg
        if arg is None or isinstance(arg, Tensor)
        else _bytes_of(arg, arg_casts and _cast_of(arg_casts, index), address)
        for index, arg in enumerate(args)
    ]
    if threads is None:
        first = next((arg for arg in args if isinstance(arg, Tensor)), None)
        if first is None:
            raise RuntimeError("Number of threads is undefined or has wrong dimension")
        threads = first.numel()
    threads = (threads,) if isinstance(threads, int) else tuple(threads)
    if group_size is not None:
        group_size = (group_size,) if isinstance(group_size, int) else tuple(group_size)
        if len(group_size) != len(threads):
            raise RuntimeError(
                "threads and group_size must have the same number of dimensions, got "
                f"{len(threads)} and {len(group_size)}"
            )
    return LaunchArguments(buffers, textures, samplers, threads, group_size)


def _cast_of(casts: str | Mapping[int, str], index: int) -> str | None:
    """Returns the cast of an argument, None for none. Raises TypeError for what are no casts."""
    if isinstance(casts, str):
        return casts
    if isinstance(casts, Mapping):
        return casts.get(index)
    raise TypeError(f"Unexpected caster arg type {type(casts).__name__}")


def _bytes_of(value: object, cast: str | None, address: Callable[[Tensor], int]) -> bytes:
    """Returns what a kernel gets for an integer (64 bits), a float (32 bits), a list of them, or a list of tensors. cast:
    "fp16", "bf16", "int32", "int16", "int8" or "uint8", for another type. address: of a tensor of a list.

    Raises TypeError or RuntimeError for other arguments.
    """
    if cast is None:
        if type(value) is int:
            return _LONG(value)
        if type(value) is float:
            return _FLOAT(value)
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    if not values:
        raise RuntimeError("Empty list/tuple can not be an argument to metal kernel")
    if all(isinstance(v, Tensor) for v in values):
        return struct.pack(f"{len(values)}Q", *map(address, values))
    if not all(isinstance(v, (int, float)) for v in values):
        raise TypeError(f"Unsupported argument type {type(values[0]).__name__}")
    if cast is None:
        kind = "q" if isinstance(values[0], int) else "f"
        return struct.pack(f"{len(values)}{kind}", *values)
    if cast not in _CASTS:
        raise RuntimeError(f"Unsupported cast instruction {cast}")
    # C++ conversion: integers wrap around, fractions are truncated.
    dtype = _CASTS[cast]
    if not dtype.is_floating_point:
        values = [math.trunc(v) for v in values]
        return torch.tensor(values, dtype=torch.int64).to(dtype).numpy().tobytes()
    return torch.tensor(values, dtype=torch.float64).to(dtype).view(torch.int16).numpy().tobytes()
