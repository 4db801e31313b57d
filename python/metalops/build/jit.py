"""`load`: builds Metal kernels and their host stubs and loads them just in time."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shlex
import sys
from collections.abc import Sequence
from types import ModuleType

import torch
from torch.utils import cpp_extension

from metalops import _environment, msl
from metalops.build import compilers, extension, metal_sources, paths, runtime
from metalops.build.mac import flags as mac_flags
from metalops.build.ninja import write_if_changed
from metalops.build.objective_c import link_flags
from metalops.msl import cache

_NAME = re.compile(r"\w[\w.-]*")


def _default_folder(name: str) -> str:
    """Returns a folder for this version of torch and Python, because objects of one do not suit another."""
    root = _environment.value("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root()
    version = f"torch{torch.__version__}-{sys.implementation.cache_tag}"
    return os.path.join(root, "metalops", version, name)


def _compile_libraries(sources: list[str], include_dirs: list[str], folder: str) -> None:
    """Compiles the Metal sources whose text, compiler or CPU changed. A compile error is a SyntaxError at the user's
    line.

    On macOS nothing is compiled ahead: Metal compiles the embedded source when it is first used.
    """
    os.makedirs(folder, exist_ok=True)
    version = msl.version() + cache.cpu_identity()
    for variant in metal_sources.variants(sources, include_dirs):
        library = os.path.join(folder, f"{variant.name}.so")
        stamp = hashlib.sha256((variant.text + version).encode()).hexdigest()
        stamp_file = library + ".stamp"
        if os.path.exists(library) and os.path.exists(stamp_file):
            with open(stamp_file) as f:
                if f.read() == stamp:
                    continue
        msl.compile_file(
            variant.source, library, include_dirs=include_dirs, language=variant.language
        )
        with open(stamp_file, "w") as f:
            f.write(stamp)


def _script(path: str, command: list[str]) -> str:
    """Writes a program that runs a command with further arguments: torch takes a compiler's name for a file's."""
    write_if_changed(path, f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    os.chmod(path, 0o755)
    return path


def load(
    name: str,
    sources: str | Sequence[str],
    extra_cflags: Sequence[str] = (),
    extra_ldflags: Sequence[str] = (),
    extra_include_paths: Sequence[str] = (),
    build_directory: str | None = None,
    is_python_module: bool = False,
    verbose: bool = False,
    objective_c: bool | None = None,
) -> ModuleType | str:
    """Builds an extension of `.metal`, `.mm` and `.cpp` files and loads it into this process.

    name: the extension's name: letters, digits, and, except at the beginning, "_", "." and "-". Loading other sources
    under the same name replaces the build, not the loaded library.
    is_python_module: whether the sources define a Python module of this name (PYBIND11_MODULE); if not, they only
    register operators.
    build_directory: where to build; by default a folder under $TORCH_EXTENSIONS_DIR or torch's own cache folder.
    objective_c: whether `.mm` files are Objective-C where metalops has a software device; None: as each file says.
    Returns the module, or the path of the loaded library. Raises ValueError for another name. A Metal compile error is a SyntaxError with the user's
    file, line and column; a C++ compile error is a RuntimeError with the compiler's text; Objective-C
    without clang, or that uses MPSGraph, a CompileError.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"load: an extension's name has letters, digits, '_', '.' and '-' only, and begins with none of the last two, "
            f"got {name!r}: files are named after it"
        )
    listed = [sources] if isinstance(sources, str) else list(sources)
    metal, others = extension.split_sources([os.path.abspath(source) for source in listed])
    folder = os.path.abspath(build_directory or _default_folder(name))
    os.makedirs(folder, exist_ok=True)
    include_dirs = [*map(os.path.abspath, extra_include_paths), *paths.include_paths()]
    metal_include_dirs = [*include_dirs, paths.torch_include()]
    kernels_folder = name + ".kernels"

    with open(os.path.join(folder, "metal.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # A lock left by a killed build: torch would wait for ever for its removal. Nobody else builds here now.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, "lock"))
        if paths.software_device():
            _compile_libraries(metal, metal_include_dirs, os.path.join(folder, kernels_folder))
        generated_folder = os.path.join(folder, "generated")
        generated = metal_sources.write_registrations(
            metal, metal_include_dirs, kernels_folder, generated_folder
        )
        generated += runtime.write_runtime(others, bool(metal), include_dirs, generated_folder)
        found = extension.objective_c_sources(others, include_dirs, objective_c)
        language = ["-x", "c++"] if paths.software_device() and not found else []
        with compilers.build_environment():
            if found:
                extra_cflags = mac_flags.for_linux(extra_cflags)
                extra_ldflags = [*mac_flags.for_linux(extra_ldflags), *link_flags()]
                command = extension.objective_c_command(found, objective_c)
                os.environ["CXX"] = _script(os.path.join(folder, "c++"), command)
            return cpp_extension.load(
                name,
                [*others, *generated],
                extra_cflags=["-O2", *extension.host_flags(), *extra_cflags, *language],
                extra_ldflags=[*extension.link_flags(paths.host_library()), *extra_ldflags],
                extra_include_paths=include_dirs,
                build_directory=folder,
                is_python_module=is_python_module,
                verbose=verbose,
            )
