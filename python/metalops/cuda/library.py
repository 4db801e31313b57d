"""A kernel library on GPUs, compiled for each GPU when its kernels are first launched there."""

from __future__ import annotations

import copy
import functools
import struct
from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from .._shaders.declared import Declared, of_program
from .._shaders.values import Value
from .._textures import Sampler, Texture
from ..msl import build, cache
from ..msl.source.errors import Diagnostic, syntax_error
from ..msl.source.paths import HEADERS
from ..msl.source.preprocess import preprocess
from ..msl.targets.cuda.emit import CudaCode, emit
from ..msl.targets.cuda.entries import HANDLES
from ..msl.targets.host import tensors
from . import constants, device, driver, errors, nvrtc, tensor_argument, texture_argument
from .function import Argument, Function
from .texture_argument import tensors_of

# Macros that tell a source about the target: see staged_lines.h, gathered_lines.h, coded_lines.h and multiply_accumulate.h of
# include/msl/cuda.
DEFINES = (
    "__METALOPS_STAGED_LINES__=1",
    "__METALOPS_GATHERED_LINES__=1",
    "__METALOPS_CODED_LINES__=1",
    "__METALOPS_MATRIX_PAIRS__=1",
)


class Library:
    """The kernels of a Metal source."""

    def __init__(
        self,
        source: str,
        name: str = "program_source",
        kernels: Collection[str] = (),
        include_dirs: Collection[str] = (),
        constants: Mapping[int | str, Value] | None = None,
        language: int | None = None,
        cooperative_layout: str | None = None,
    ):
        """name: what errors call the source. kernels: those to compile; all by default. constants: the values of
        function constants, by index or name; see specialise. language: __METAL_VERSION__, by default what the
        environment chooses. cooperative_layout: the layout of cooperative tensors, likewise (targets/host/tensors.py).
        Raises SyntaxError with the user's line and column."""
        text = preprocess(
            source, name=name, include_dirs=include_dirs, defines=DEFINES, language=language
        )
        self._code: CudaCode = emit(text, kernels)
        self._layout = cooperative_layout or tensors.layout()
        self._specialised: dict[tuple, Library] = {}
        self._take(self.declared.values(constants))

    def _take(self, values: Mapping[int, bytes]) -> None:
        self.constants = values
        self._modules: dict[int, tuple[driver.Module, bytes]] = {}
        self._functions: dict[tuple[int, str], Function] = {}

    @functools.cached_property
    def declared(self) -> Declared:
        """The declarations whose values a launch may have to choose: constants and threadgroup memory."""
        return of_program(self._code.program)

    @property
    def kernel_names(self) -> tuple[str, ...]:
        return tuple(self._code.entries)

    @property
    def left_out(self) -> dict[str, str]:
        """The kernels of the source that it does not have, with the reasons."""
        return dict(self._code.program.skipped())

    def why_not(self, name: str) -> str:
        """Returns why the library has no kernel of this name, as the end of a sentence."""
        if name in self.left_out:
            return f"leaves out kernel {name!r} because of {self.left_out[name]}"
        return f"has no kernel {name!r}; it has {', '.join(self.kernel_names)}"

    def specialise(self, given: Mapping[int | str, Value]) -> Library:
        """Returns the library with the values of function constants compiled in, by index or name: scalars, sequences
        of them for vectors, or the bytes of the constant's type. It starts from constants without values; the same
        values give the same library.

        Raises ValueError for constants that the source does not have and values that do not fit, TypeError for values
        of other types.
        """
        values = self.declared.values(given)
        key = tuple(values.items())
        found = self._specialised.get(key)
        if found is None:
            found = copy.copy(self)
            found._take(values)
            found = self._specialised.setdefault(key, found)
        return found

    def compile(self, architecture: str, debug: bool = False) -> bytes:
        """Returns code for "sm_90" and the like, or PTX for "compute_90" and the like, from the cache on disk if it is
        there. debug: without optimisation. Raises SyntaxError, NvrtcNotFound."""
        text = self._code.without_markers()
        options = [f"-I{HEADERS}", *(["-G"] if debug else [])]
        if self._code.program.has_tensors:
            options += tensors.flags("c++20", self._code.language, self._layout)
        else:
            options.append("-std=c++17")
        if self.constants:
            options.append(f"-DMSL_FUNCTION_CONSTANTS={constants.definitions(self.constants)}")
        key = cache.key_of(
            "cuda", build.version("cuda"), nvrtc.version(), architecture, options[1:], text
        )
        found = cache.lookup(key)
        if found is None:
            try:
                code = nvrtc.compile_program(text, "program_source", architecture, tuple(options))
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
        """Returns a kernel on the GPU of this index. Raises RuntimeError if there is none of the name."""
        found = self._functions.get((index, name))
        if found is None:
            found = self._functions[index, name] = self._load(index, name)
        return found

    def _load(self, index: int, name: str) -> Function:
        if name not in self.kernel_names:
            error = NotImplementedError if name in self.left_out else RuntimeError
            raise error(f"the library {self.why_not(name)}")
        entry = self._code.entries[name]
        number = entry.number
        with device.using(index):
            driver.ensure_context(index)
            module, code = self._module(index)
            facts = module.read(f"msl_facts_{number}")
            handle = module.function(f"msl_kernel_{number}")
            fast = module.function(f"msl_fast_{number}") if entry.is_fast else None
            brings = module.function(f"msl_brings_{number}") if entry.brings_numbers else None
            may_be_tensors = self._code.program.has_tensors and "tensor" in entry.arguments
            tensors = module.read(f"msl_tensors_{number}") if may_be_tensors else b""
            handles = module.read(f"msl_handles_{number}") if entry.handles else b""
        asked_of_launch = nvrtc.launch_facts(code, f"msl_kernel_{number}")
        limit, *numbers = struct.unpack(f"{len(facts) // 4}I", facts)
        kinds = [kind for kind in entry.arguments if kind not in HANDLES]
        rows = zip(kinds, numbers[::3], numbers[1::3], numbers[2::3], strict=True)
        arguments = tuple(Argument(k, i, size, bool(w)) for k, i, size, w in rows)
        asked = tensor_argument.unpack(tensors, [a.index for a in arguments if a.kind == "tensor"])
        entries = handle, fast, brings
        whole_warps = self._code.has_matrices
        taken = texture_argument.unpack(handles, entry.handles)
        return Function(
            name,
            entries,
            limit,
            arguments,
            entry.is_free,
            whole_warps,
            asked,
            taken,
            asked_of_launch,
            self._code.program.has_tensors,
        )

    def _module(self, index: int) -> tuple[driver.Module, bytes]:
        if index not in self._modules:
            code = self.compile(device.architecture(index))
            self._modules[index] = driver.Module(code), code
        return self._modules[index]

    def launch(
        self,
        name: str,
        arguments: Sequence[Tensor | bytes | int | None],
        grid: Sequence[int] | int,
        group: Sequence[int] | int,
        threadgroup_bytes: Mapping[int, int] | None = None,
        textures: Sequence[Texture] = (),
        samplers: Sequence[Sampler] = (),
    ) -> None:
        """Runs a kernel on the current stream of its tensors' GPU.

        arguments: by buffer index; bytes are passed with the launch, an integer is an address. grid: threads. group:
        threads of a threadgroup. threadgroup_bytes: sizes of threadgroup arguments, by threadgroup index. textures,
        samplers: by their indices. Raises ValueError for sizes that no launch has, RuntimeError for tensors that are
        not on one GPU, for textures and samplers what texture_argument.table raises, and torch.AcceleratorError for
        errors that earlier kernels have reported.
        """
        index = device.index_of([*arguments, *tensors_of(textures)] if textures else arguments)
        errors.raise_reported(index)
        function = self._functions.get((index, name)) or self.function(index, name)
        with device.using(index):
            driver.ensure_context(index)
            stream = device.stream(index)
            function.launch(stream, arguments, grid, group, threadgroup_bytes, textures, samplers)
