"""A kernel library on GPUs: compiled for each when its kernels are first launched there."""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence

from torch import Tensor

from ..msl import build, cache
from ..msl.errors import Diagnostic, syntax_error
from ..msl.paths import HEADERS
from ..msl.preprocess import preprocess
from ..msl.targets.cuda.emit import CudaCode, emit
from . import device, driver, nvrtc
from .function import Argument, Function


class Library:
    """The kernels of a Metal source."""

    def __init__(
        self,
        source: str,
        name: str = "program_source",
        kernels: Collection[str] = (),
        include_dirs: Collection[str] = (),
    ):
        """name: what errors call the source. kernels: those to compile; all by default. Raises SyntaxError with the user's
        line and column.
        """
        self._code: CudaCode = emit(
            preprocess(source, name=name, include_dirs=include_dirs), kernels
        )
        self._modules: dict[int, driver.Module] = {}
        self._functions: dict[tuple[int, str], Function] = {}

    @property
    def kernel_names(self) -> tuple[str, ...]:
        return tuple(self._code.entries)

    def compile(self, architecture: str, debug: bool = False) -> bytes:
        """Code for "sm_90" and the like, or PTX for "compute_90" and the like, from the cache on disk if it is there. debug:
        without optimising. Raises SyntaxError, NvrtcNotFound."""
        text = self._code.without_markers()
        options = (f"-I{HEADERS}", *(["-G"] if debug else []))
        key = cache.key_of("cuda", build.version(), nvrtc.version(), architecture, debug, text)
        found = cache.lookup(key)
        if found is None:
            try:
                code = nvrtc.compile_program(text, "program_source", architecture, options)
            except nvrtc.CompileError as error:
                raise syntax_error(self._diagnostics(str(error))) from None

            def write(path: str) -> None:
                with open(path, "wb") as stream:
                    stream.write(code)

            found = cache.store(key, [], write)
        with open(found, "rb") as stream:
            return stream.read()

    def _diagnostics(self, log: str) -> list[Diagnostic]:
        found = []
        for line, text in nvrtc.errors(log):
            position = self._code.position(line, 1)
            if position is not None:
                source = self._code.lines.source_line(position.file, position.line)
                found.append(
                    Diagnostic(position.file, position.line, position.column, text, source)
                )
        if not found:
            found.append(Diagnostic("program_source", 1, 1, log.strip(), ""))
        return found

    def function(self, index: int, name: str) -> Function:
        """A kernel on the GPU of this index. Raises RuntimeError where there is none of the name."""
        found = self._functions.get((index, name))
        if found is None:
            found = self._functions[index, name] = self._load(index, name)
        return found

    def _load(self, index: int, name: str) -> Function:
        if name not in self.kernel_names:
            raise RuntimeError(
                f"the library has no kernel {name!r}; it has {', '.join(self.kernel_names)}"
            )
        number, kinds, has_fast_entry = self._code.entries[name]
        with device.using(index):
            module = self._module(index)
            facts = module.read(f"msl_facts_{number}")
            handle = module.function(f"msl_kernel_{number}")
            fast = module.function(f"msl_fast_{number}") if has_fast_entry else None
        limit, *numbers = struct.unpack(f"{len(facts) // 4}I", facts)
        rows = zip(kinds, numbers[::3], numbers[1::3], numbers[2::3], strict=True)
        arguments = tuple(Argument(k, i, size, bool(w)) for k, i, size, w in rows)
        return Function(name, handle, fast, limit, arguments)

    def _module(self, index: int) -> driver.Module:
        if index not in self._modules:
            self._modules[index] = driver.Module(self.compile(device.architecture(index)))
        return self._modules[index]

    def launch(
        self,
        name: str,
        arguments: Sequence[Tensor | bytes | int | None],
        grid: Sequence[int] | int,
        group: Sequence[int] | int,
        threadgroup_bytes: dict[int, int] | None = None,
    ) -> None:
        """Runs a kernel on the current stream of its tensors' GPU.

        arguments: by buffer index; bytes come with the launch, an integer is an address. grid: threads. group: threads of a
        threadgroup. threadgroup_bytes: of memory whose size the launch says, by threadgroup index. Raises ValueError for
        sizes that no launch has, RuntimeError for tensors that are not on one GPU.
        """
        index = device.index_of(arguments)
        function = self._functions.get((index, name)) or self.function(index, name)
        with device.using(index):
            function.launch(device.stream(index), arguments, grid, group, threadgroup_bytes)
