"""Kernels with textures and samplers on a Mac, whose torch passes none to a kernel: csrc/macos launches them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .._textures import Sampler, Texture
from .._textures.argument import ACCESSES, HandleArgument, bound
from .arguments import launch_arguments

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
        given = launch_arguments(args, threads, group_size, arg_casts, _no_addresses)
        usages = dict.fromkeys(range(len(given.textures)), 1)
        places = {id(a): iter(range(a.index, a.last + 1)) for a in self._arguments}
        for argument, value in bound(self._name, self._arguments, given.textures, given.samplers):
            if isinstance(value, Texture):
                usage = _USAGES[ACCESSES[argument.access]]
                if usage == 3 and value.format in _WITH_ATOMICS:
                    usage |= _ATOMIC
                usages[next(places[id(argument)])] = usage
        self._launcher.launch(
            given.buffers,
            [described(texture, usages[index]) for index, texture in enumerate(given.textures)],
            [sampler.bits for sampler in given.samplers],
            given.threads,
            given.group_size,
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
