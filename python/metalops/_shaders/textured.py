"""Kernels with textures and samplers on a Mac, whose torch passes none to a kernel: csrc/macos launches them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .._textures import Sampler, Texture
from .._textures.argument import ACCESSES, HandleArgument, bound
from .arguments import bytes_of, cast_of

# MTLTextureUsage, by msl::abi::TextureAccess.
_USAGES = {"sample": 1, "read": 1, "write": 2, "read_write": 3}
_ATOMIC = 0x20  # MTLTextureUsageShaderAtomic
_WITH_ATOMICS = ("r32uint", "r32sint")


class TexturedKernel:
    """A kernel, to be called as those of torch.mps.compile_shader are, with textures and samplers among its arguments.

    launcher: a TexturedKernel of metalops._C. arguments: its textures and samplers.
    """

    def __init__(self, launcher, name: str, arguments: Sequence[HandleArgument]):
        self._launcher = launcher
        self._name = name
        self._arguments = arguments

    def __repr__(self) -> str:
        return f"<metalops kernel '{self._name}'>"

    @property
    def max_threads_per_threadgroup(self) -> int:
        return self._launcher.max_threads_per_threadgroup

    @property
    def thread_execution_width(self) -> int:
        return self._launcher.thread_execution_width

    def __call__(
        self,
        *args: Tensor | Texture | Sampler | float | Sequence[float],
        threads: int | Sequence[int] | None = None,
        group_size: int | Sequence[int] | None = None,
        arg_casts: str | Mapping[int, str] | None = None,
        error_buf_idx: int | None = None,
    ) -> None:
        """Launches the kernel on torch's stream. Raises NotImplementedError for textures that Metal cannot make of a
        buffer, ValueError for rows that the GPU cannot read in a buffer, and otherwise what torch's kernels raise."""
        textures = [arg for arg in args if isinstance(arg, Texture)]
        samplers = [arg for arg in args if isinstance(arg, Sampler)]
        buffers = [arg for arg in args if not isinstance(arg, (Texture, Sampler))]
        if threads is None:
            first = next((b for b in buffers if isinstance(b, Tensor)), None)
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
        usages = dict.fromkeys(range(len(textures)), 1)
        places = {id(a): iter(range(a.index, a.last + 1)) for a in self._arguments}
        for argument, value in bound(self._name, self._arguments, textures, samplers):
            if isinstance(value, Texture):
                usage = _USAGES[ACCESSES[argument.access]]
                if usage == 3 and value.format in _WITH_ATOMICS:
                    usage |= _ATOMIC
                usages[next(places[id(argument)])] = usage
        self._launcher.launch(
            [
                b
                if b is None or isinstance(b, Tensor)
                else bytes_of(b, arg_casts and cast_of(arg_casts, index), _no_addresses)
                for index, b in enumerate(buffers)
            ],
            [described(texture, usages[index]) for index, texture in enumerate(textures)],
            [sampler.bits for sampler in samplers],
            threads,
            group_size,
            error_buf_idx,
        )


def described(texture: Texture, usage: int) -> tuple:
    """Returns a texture as metalops._C takes it. Raises NotImplementedError for one that Metal cannot make of a buffer."""
    if texture.kind not in ("2d", "buffer"):
        raise NotImplementedError(
            f"on a Mac a texture over a tensor is of kind '2d' or 'buffer', but got one of kind '{texture.kind}'"
        )
    if len(texture.levels) > 1:
        raise NotImplementedError(
            f"on a Mac a texture over a tensor has one level, but got one of {len(texture.levels)}"
        )
    format = texture.layout.format
    if format.is_depth:
        raise NotImplementedError(
            f"on a Mac a texture over a tensor has no depth format, but got one of {format.name}; r32float has the same numbers"
        )
    return (
        texture.levels[0],
        texture.pixel_format,
        texture.kind == "buffer",
        texture.width,
        texture.height,
        texture.layout.levels[0].row_bytes,
        format.bytes,
        usage,
    )


def _no_addresses(tensor: torch.Tensor) -> int:
    raise NotImplementedError("a kernel with textures takes no lists of tensors on a Mac")
