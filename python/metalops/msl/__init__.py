"""Used at build time (setup.py loads this package by itself, before anything is built) and at run time. Imports neither
torch nor the rest of metalops, except what reads environment variables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from .build import (
    Options,
    compile_path,
    compile_text,
    host_program,
    preprocess_text,
    version,
    with_options,
)
from .cli import main_compile
from .flatten import flatten
from .left_out import begin_left_out, compile_left_out
from .source.errors import CompilerNotFound
from .source.preprocess import Preprocessed, preprocess
from .sweep import main_sweep
from .table import KernelEntry, kernel_entries
from .targets.host.emit import emit


def compile_source(
    source: str,
    name: str | None = None,
    *,
    options: Options | None = None,
    read: Callable[[], Preprocessed] | None = None,
) -> str:
    """Compiles Metal source and returns the path of the kernel library, which is taken from the cache if it is there.
    With options that say on_demand, as the default ones do, a source of much code is only checked, and its library
    describes the kernels, each of which is compiled when it is used.

    name: what errors call the source (default "program_source"). options: by default runtime_options(). read: returns
    what preprocess_source() does, for callers that keep it. Raises SyntaxError with the user's file, line, column and
    source line; CompilerNotFound without a host compiler; ValueError if the environment chooses an unknown language.
    """
    program = (lambda chosen: host_program(read(), chosen)) if read else None
    return compile_text(source, name, options or runtime_options(), program)


def preprocess_source(source: str, *, options: Options | None = None) -> Preprocessed:
    """Preprocesses Metal source for compile_source(). Raises SyntaxError, CompilerNotFound and ValueError as it does."""
    return preprocess_text(source, None, options or runtime_options())


def runtime_options(language: int | None = None) -> Options:
    """Returns the options with which torch compiles sources at run time on a Mac: the environment chooses the math
    mode, and the language unless it is given."""
    fast_math = os.environ.get("PYTORCH_MPS_FAST_MATH", "0") != "0"
    return Options(language=language, fast_math=fast_math, on_demand=True, lanes=True)


def compile_file(
    path: str | os.PathLike,
    output: str | os.PathLike | None = None,
    include_dirs: Iterable[str | os.PathLike] = (),
    defines: Iterable[str] = (),
    optimize: int = 3,
    arch: str = "native",
    language: int | None = None,
    at_first_use: Iterable[str] = (),
) -> str:
    """Compiles a Metal file into a kernel library at `output` (default: beside it, with the suffix .so).

    defines: "NAME" or "NAME=VALUE". arch: the target CPU by the compiler's name, or "portable", which runs on most
    CPUs. language: __METAL_VERSION__, by default what the environment chooses. at_first_use: patterns of names of
    kernels that are compiled when they are used, and not now. Raises as compile_source does, and OSError for files.
    """
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"no Metal source at {path}")
    output = os.fspath(output) if output is not None else os.path.splitext(path)[0] + ".so"
    options = with_options(
        optimize,
        include_dirs,
        defines,
        arch=arch,
        language=language,
        at_first_use=tuple(at_first_use),
    )
    compile_path(path, output, options)
    return output


def emit_source(
    source: str | None = None,
    path: str | os.PathLike | None = None,
    *,
    include_dirs: Iterable[str | os.PathLike] = (),
    defines: Iterable[str] = (),
) -> str:
    """Returns the C++ text that is emitted for a Metal source text or file."""
    preprocessed = preprocess(
        source,
        os.fspath(path) if path is not None else None,
        include_dirs=include_dirs,
        defines=defines,
    )
    return emit(preprocessed).text


def kernel_table(
    source: str | os.PathLike,
    include_dirs: Iterable[str | os.PathLike] = (),
    defines: Iterable[str] = (),
) -> list[KernelEntry]:
    """Returns the kernels of a Metal file (a path) or of a source text, with their arguments. Compiles nothing."""
    is_path = isinstance(source, os.PathLike) or ("\n" not in source and os.path.isfile(source))
    preprocessed = preprocess(
        None if is_path else source,
        os.fspath(source) if is_path else None,
        include_dirs=include_dirs,
        defines=defines,
    )
    return kernel_entries(emit(preprocessed).program)


__all__ = [
    "CompilerNotFound",
    "KernelEntry",
    "Options",
    "begin_left_out",
    "compile_file",
    "compile_left_out",
    "compile_source",
    "emit_source",
    "flatten",
    "kernel_table",
    "main_compile",
    "main_sweep",
    "preprocess_source",
    "runtime_options",
    "version",
]
