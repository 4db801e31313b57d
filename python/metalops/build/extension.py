"""`MetalExtension` and `BuildExtension`: Metal kernels and their host stubs in an ordinary setup.py."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Any

import setuptools
from setuptools.errors import CompileError
from torch.utils import cpp_extension

from metalops.build import compilers, kernels, paths, runtime


def host_flags() -> list[str]:
    """Compiler flags for an extension's `.mm` and `.cpp` files on this platform."""
    # torch's macOS library does not export fmt, which inline functions of its headers use.
    return [] if paths.software_device() else ["-DFMT_HEADER_ONLY=1"]


def link_flags(host_library: str) -> list[str]:
    """Linker flags for an extension on this platform."""
    if paths.software_device():
        # Without the state options, linkers that drop libraries "as needed" could drop it.
        return ["-Wl,--push-state,--no-as-needed", host_library, "-Wl,--pop-state"]
    return ["-framework", "Metal", "-framework", "Foundation"]


def split_sources(sources: list[str]) -> tuple[list[str], list[str]]:
    """(Metal sources, all other sources). Raises CompileError for files missing or named alike."""
    for source in sources:
        if not os.path.isfile(source):
            raise CompileError(f"metalops: the source file {source} does not exist.")
    metal = [source for source in sources if source.endswith(".metal")]
    kernels.check_families(metal)
    return metal, [source for source in sources if not source.endswith(".metal")]


def MetalExtension(name: str, sources: list[str], **kwargs: Any) -> setuptools.Extension:
    """A setuptools extension of Metal kernels (`.metal`), host stubs (`.mm`, C++ or Objective-C++) and C++ files.

    Build it with `metalops.build.BuildExtension`. `.mm` files are compiled as Objective-C++ without ARC on macOS and
    as C++ elsewhere. A `.metal` file's kernels are reached from this extension by the file's base name:
    `metalops::library("activation")` for activation.metal. `include_dirs` serve the Metal sources too, and the
    headers of torch and metalops are always found. Other arguments are those of
    `torch.utils.cpp_extension.CppExtension`.
    """
    include_dirs = [*kwargs.pop("include_dirs", []), *paths.include_paths()]
    extension = cpp_extension.CppExtension(
        name, list(sources), include_dirs=list(include_dirs), **kwargs
    )
    extension.metal_include_dirs = [*include_dirs, paths.torch_include()]
    return extension


class BuildExtension(cpp_extension.BuildExtension):
    """torch's BuildExtension, which also builds what a `MetalExtension` lists. It takes ordinary extensions as well."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self._environment: Mapping[str, str] = os.environ  # what kernels are compiled in; see run()

    def run(self) -> None:
        if not self.extensions:
            return
        with compilers.build_environment() as self._environment:
            super().run()

    def build_extensions(self) -> None:
        self.compiler.src_extensions += [
            suffix for suffix in (".mm", ".S") if suffix not in self.compiler.src_extensions
        ]
        super().build_extensions()

    def build_extension(self, ext: setuptools.Extension) -> None:
        if not hasattr(ext, "metal_include_dirs"):
            super().build_extension(ext)
            return
        listed = ext.sources, ext.extra_link_args, self.compiler.compiler_so
        metal, others = split_sources(ext.sources)
        build_folder = os.path.join(self.build_temp, ext.name)
        kernels.build_libraries(
            metal,
            ext.metal_include_dirs,
            self._kernels_folder(ext),
            os.path.join(build_folder, "kernels"),
            self._environment,
        )
        generated = kernels.write_registrations(
            metal, ext.metal_include_dirs, os.path.basename(self._kernels_folder(ext)), build_folder
        )
        for flag in host_flags():
            self._add_compile_flag(ext, flag)
        try:
            own = runtime.write_runtime(others, ext.metal_include_dirs[:-1], build_folder)
            ext.sources = [*others, *generated, own]
            ext.extra_link_args = [*(ext.extra_link_args or []), *link_flags(self._host_library())]
            if paths.software_device():
                # Only options before the file name decide its language, and extra_compile_args come after it.
                self.compiler.compiler_so = [*self.compiler.compiler_so, "-x", "c++"]
            super().build_extension(ext)
        finally:
            ext.sources, ext.extra_link_args, self.compiler.compiler_so = listed

    def get_outputs(self) -> list[str]:
        return [
            *super().get_outputs(),
            *(path for ext in self.extensions for path in self._built_libraries(ext)),
        ]

    def copy_extensions_to_source(self) -> None:
        super().copy_extensions_to_source()
        build_py = self.get_finalized_command("build_py")
        for ext in self.extensions:
            libraries = self._built_libraries(ext)
            if not libraries:
                continue
            in_place, _ = self._get_inplace_equivalent(build_py, ext)
            folder = os.path.join(
                os.path.dirname(in_place), os.path.basename(os.path.dirname(libraries[0]))
            )
            shutil.rmtree(folder, ignore_errors=True)
            self.mkpath(folder)
            for path in libraries:
                self.copy_file(path, os.path.join(folder, os.path.basename(path)))

    def _kernels_folder(self, ext: setuptools.Extension) -> str:
        """Where the kernel libraries go: beside the extension in the build folder."""
        return os.path.join(
            os.path.dirname(self.get_ext_fullpath(ext.name)), ext.name.split(".")[-1] + ".kernels"
        )

    def _built_libraries(self, ext: setuptools.Extension) -> list[str]:
        metal = [source for source in ext.sources if source.endswith(".metal")]
        suffix = kernels.library_suffix() if metal else None
        if suffix is None or not hasattr(ext, "metal_include_dirs"):
            return []
        inplace, self.inplace = self.inplace, False
        try:
            folder = self._kernels_folder(ext)
        finally:
            self.inplace = inplace
        return [os.path.join(folder, kernels.family(source) + suffix) for source in metal]

    def _host_library(self) -> str:
        """The software device to link against: this build's own while metalops itself is built."""
        if any(ext.name == "metalops._host" for ext in self.extensions):
            return os.path.abspath(self.get_ext_fullpath("metalops._host"))
        return paths.host_library()
