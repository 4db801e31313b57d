"""The counterpart of torch.mps.compile_shader's result, for CUDA tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from .._shaders.arguments import launch_arguments
from .._shaders.values import Value
from .._textures import Sampler, Texture
from ..msl.source import languages
from . import device, errors
from .function import USUAL_GROUP, group_within
from .library import Library
from .texture_argument import tensors_of


class Shader:
    """The kernels of a Metal source, as attributes."""

    def __init__(self, library: Library, sizes: Mapping[int, int]):
        """sizes: of threadgroup arguments in bytes, by index."""
        self._library = library
        self._sizes = sizes

    def __getattr__(self, name: str) -> Kernel:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._library.kernel_names:
            raise AttributeError(f"the shader {self._library.why_not(name)}")
        self._library.declared.check_complete(name, self._library.constants, self._sizes)
        return Kernel(self._library, name, self._sizes)

    def specialise(self, constants: Mapping[int | str, Value]) -> Shader:
        """Returns the kernels with the values of function constants compiled in, as compile_shader takes them, without
        the values given before."""
        return Shader(self._library.specialise(constants), self._sizes)

    def __dir__(self) -> list[str]:
        return sorted(self._library.kernel_names)


class Kernel:
    """A kernel, to be called with its buffers in the order of their indices."""

    def __init__(self, library: Library, name: str, sizes: Mapping[int, int]):
        self._library = library
        self._sizes = sizes
        self.name = name

    def __repr__(self) -> str:
        return f"<metalops.cuda.Kernel '{self.name}'>"

    @property
    def max_threads_per_threadgroup(self) -> int:
        """The limit on the current GPU."""
        return self._library.function(device.index_of(()), self.name).max_threads

    @property
    def thread_execution_width(self) -> int:
        return 32

    def __call__(
        self,
        *args: Tensor | Texture | Sampler | float | Sequence[float] | Sequence[Tensor] | None,
        threads: int | Sequence[int] | None = None,
        group_size: int | Sequence[int] | None = None,
        arg_casts: str | Mapping[int, str] | None = None,
        error_buf_idx: int | None = None,
    ) -> None:
        """Launches the kernel on the current stream.

        args: CUDA tensors, textures over them and samplers, which are numbered apart; integers (64 bits) and floats (32 bits), or lists of them, of another type if arg_casts says
        so, for all or by index ("fp16", "bf16", "int32", "int16", "int8", "uint8"); lists of tensors, of which the
        kernel gets the addresses. threads: 1 to 3 numbers, by default as many as the first tensor has elements.
        group_size: of as many dimensions. error_buf_idx: the buffer that is the kernel's c10::metal::ErrorMessages, in
        which it reports with TORCH_REPORT_ERROR; see metalops.cuda.synchronize. Raises ValueError, TypeError or
        RuntimeError for arguments that no launch has.
        """
        given = launch_arguments(args, threads, group_size, arg_casts, _address)
        buffers: list = given.buffers
        tensors = [*buffers, *tensors_of(given.textures)]
        if error_buf_idx is not None:
            buffers += [None] * (error_buf_idx + 1 - len(buffers))
            buffers[error_buf_idx] = errors.buffer_address(device.index_of(tensors))
        self._library.launch(
            self.name,
            buffers,
            given.threads,
            given.group_size or self._group_for(given.threads, tensors),
            self._sizes,
            given.textures,
            given.samplers,
        )

    def _group_for(self, threads: tuple[int, ...], tensors: Sequence) -> tuple[int, ...]:
        left = min(
            USUAL_GROUP, self._library.function(device.index_of(tensors), self.name).max_threads
        )
        if len(threads) == 1:
            return (max(1, min(threads[0], left)),)
        return group_within(threads, left)


def _address(tensor: Tensor) -> int:
    if tensor.device.type != "cuda":
        raise RuntimeError("a list of tensors has one that is not on a GPU")
    return tensor.data_ptr()


def compile_shader(
    source: str,
    constants: Mapping[int | str, Value] | None = None,
    threadgroup_memory: Mapping[int, int] | None = None,
    language: str | None = None,
) -> Shader:
    """Compiles Metal source for CUDA tensors; its kernels are the attributes of the result.

    constants, threadgroup_memory and language are those of metalops.compile_shader, and so are the errors. Raises
    SyntaxError for what Metal forbids, and, when a kernel is first run, for what the GPU's compiler rejects;
    NvrtcNotFound if torch brings no compiler.
    """
    number = None if language is None else languages.number_of(language)
    library = Library(source, constants=constants, language=number)
    return Shader(library, library.declared.check_memory(threadgroup_memory))
