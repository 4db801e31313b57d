"""`MetalExtension` and `BuildExtension`: Metal kernels and their host stubs in an ordinary setup.py."""

from __future__ import annotations

import functools
import glob
import hashlib
import os
import re
import shlex
import sys
from typing import Any

import setuptools
from setuptools.errors import CompileError
from torch.utils import cpp_extension

from metalops import _environment
from metalops._torch.internals import wrapped_compiler
from metalops.build import compilers, metal_sources, objective_c, paths, runtime
from metalops.build.compile_kernel import included_files
from metalops.build.mac import flags as mac_flags
from metalops.build.ninja import Graph, write_if_changed
from metalops.build.units import write_units


def host_flags() -> list[str]:
    """Returns compiler flags for an extension's `.mm` and `.cpp` files on this platform."""
    # torch's macOS library does not export fmt, which inline functions of its headers use.
    return [] if paths.software_device() else ["-DFMT_HEADER_ONLY=1"]


def link_flags(host_library: str) -> list[str]:
    """Returns linker flags for an extension on this platform."""
    if paths.software_device():
        # Without the state options, linkers that drop libraries "as needed" could drop it.
        return ["-Wl,--push-state,--no-as-needed", host_library, "-Wl,--pop-state"]
    return ["-framework", "Metal", "-framework", "Foundation"]


def objective_c_sources(
    sources: list[str], include_dirs: list[str], chosen: bool | None
) -> dict[str, objective_c.Evidence]:
    """Returns the sources that are compiled as Objective-C for the software device, with where they are. chosen: True for
    all `.mm` files, False for none, None for those that a scan of them and of their headers finds.

    Raises CompileError for a source that uses what the software device does not have.
    """
    if not paths.software_device() or chosen is False:
        return {}
    found = {}
    for source in sources:
        if not source.endswith((".mm", ".m")):
            continue
        evidence = objective_c.evidence(source, include_dirs)
        if evidence is None and chosen:
            evidence = objective_c.Evidence(os.path.abspath(source), 1, "its build says so")
        if evidence is not None:
            found[source] = evidence
            missing = objective_c.missing_class(source, include_dirs)
            if missing:
                raise CompileError(missing)
    return found


def objective_c_command(found: dict[str, objective_c.Evidence], chosen: bool | None) -> list[str]:
    """Returns the compiler of an extension with these Objective-C sources: a program that passes them on to clang and all
    others to the user's own. Raises MissingCompiler without clang."""
    cxx, wanted = os.environ["CXX"], _environment.value("OBJCXX")
    clang = objective_c.find_compiler(wanted)
    if clang is None:
        source, evidence = next(iter(found.items()))
        raise compilers.MissingCompiler(objective_c.no_compiler(evidence, source, cxx, wanted))
    return [
        *(sys.executable, "-E", os.path.join(os.path.dirname(__file__), "mac", "compiler.py")),
        *("--cxx", cxx, "--objcxx", clang),
        *(["--objective-c", "always"] if chosen else []),
        "--",
    ]


def split_sources(sources: list[str]) -> tuple[list[str], list[str]]:
    """Returns (Metal sources, all other sources). Raises CompileError for missing files and for equal names."""
    for source in sources:
        if not os.path.isfile(source):
            raise CompileError(f"metalops: the source file {source} does not exist.")
    metal = [source for source in sources if source.endswith(".metal")]
    metal_sources.check_families(metal)
    return metal, [source for source in sources if not source.endswith(".metal")]


def MetalExtension(name: str, sources: list[str], **kwargs: Any) -> setuptools.Extension:
    """Returns a setuptools extension of Metal kernels (`.metal`), host stubs (`.mm`, C++ or Objective-C++) and C++
    files.

    Build it with `metalops.build.BuildExtension`. `.mm` files are compiled as Objective-C++ without ARC on macOS. Elsewhere
    those that use Objective-C are, by clang, and all others are compiled as C++; `objective_c=True` or `False` decides
    for all of them. The extension gets the kernels of a `.metal` file by the file's base name:
    `metalops::library("activation")` for activation.metal. `include_dirs` serve the Metal sources, too, and the headers
    of torch and metalops are always found. Other arguments are those of `torch.utils.cpp_extension.CppExtension`.
    """
    include_dirs = [*kwargs.pop("include_dirs", []), *paths.include_paths()]
    chosen = kwargs.pop("objective_c", None)
    extension = cpp_extension.CppExtension(
        name, list(sources), include_dirs=list(include_dirs), **kwargs
    )
    extension.metal_include_dirs = [*include_dirs, paths.torch_include()]
    extension.objective_c = chosen
    return extension


def _includes_any(source: str, header: str, include_dirs: list[str]) -> bool:
    """Returns true if a source, or a header of its project that it includes, includes a header listed in `header`."""
    include = re.compile(r"^#include (<.*>)", re.MULTILINE)
    own = [folder for folder in include_dirs if not folder.startswith(paths.torch_include())]
    files = [header, source, *included_files(source, own)]
    listed, *others = (include.findall(_read(file)) for file in files)
    return any(set(listed) & set(names) for names in others)


@functools.cache
def _read(path: str) -> str:
    with open(path, encoding="utf-8") as f:
        return f.read()


class BuildExtension(cpp_extension.BuildExtension):
    """torch's BuildExtension, which also builds the sources of a `MetalExtension`. It accepts ordinary extensions as
    well: with `.mm` files, they find torch's functions for mps.

    Everything is one graph of commands, whose last line says how much CPU time the compilers took. The headers of an
    extension's `precompiled_header`, a file of #include lines, are compiled once for all the sources that include any
    of them, where that pays and the compiler can. If an extension has `units`, lists of some of its sources, the
    sources of each list are compiled together (unity build), except on macOS. If it has `at_first_use`, a file that
    lists kernels (see kernels/at_first_use.txt), the software device compiles these when they are used. The sources in
    an extension's `optimized` are compiled at -O2 whatever its flags say. An extension without `.mm` files that has
    `uses_device` is linked to the software device, too.
    """

    def run(self) -> None:
        if not self.extensions:
            return
        with compilers.build_environment() as self._environment:
            super().run()

    def build_extensions(self) -> None:
        self.compiler.src_extensions += [
            suffix for suffix in (".mm", ".S") if suffix not in self.compiler.src_extensions
        ]
        self._graph = Graph()
        super().build_extensions()
        seconds = self._graph.run(
            os.path.abspath(self.build_temp),
            self._environment,
            "metalops: the build failed; the messages are above.",
        )
        print(f"metalops: the compilers took {seconds:.0f} s of CPU time", flush=True)

    def build_extension(self, ext: setuptools.Extension) -> None:
        if any(source.endswith((".cu", ".hip", ".sycl")) for source in ext.sources):
            super().build_extension(ext)  # torch handles these
            return
        listed = ext.sources, ext.extra_link_args
        compiler = dict(vars(self.compiler))
        self._objective_c = objective_c_sources(
            ext.sources, ext.include_dirs or [], getattr(ext, "objective_c", None)
        )
        try:
            if hasattr(ext, "metal_include_dirs"):
                self._prepare(ext)
            elif paths.software_device() and (
                any(x.endswith(".mm") for x in ext.sources) or getattr(ext, "uses_device", False)
            ):
                self._link_to_torch(ext)  # on a Mac its own library has these functions
            # The commands that setuptools would run are added to the graph.
            self.compiler.compile = functools.partial(self._add_objects, ext)
            self.compiler.call = functools.partial(self._add_link, ext)
            self.compiler.spawn = self.compiler.call  # its name in older versions of setuptools
            super().build_extension(ext)
        finally:
            ext.sources, ext.extra_link_args = listed
            vars(self.compiler).clear()
            vars(self.compiler).update(compiler)

    def _prepare(self, ext: setuptools.Extension) -> None:
        """Turns a MetalExtension into an ordinary extension."""
        metal, others = split_sources(ext.sources)
        folder = os.path.join(self.build_temp, ext.name)
        kernels_folder = self._kernels_folder(ext)
        listed = getattr(ext, "at_first_use", None)
        later = metal_sources.read_at_first_use(listed) if listed else {}
        metal_sources.add_libraries(
            self._graph, metal, ext.metal_include_dirs, kernels_folder, later
        )
        generated = metal_sources.write_registrations(
            metal, ext.metal_include_dirs, os.path.basename(kernels_folder), folder
        )
        for flag in host_flags():
            self._add_compile_flag(ext, flag)
        own = runtime.write_runtime(others, bool(metal), ext.metal_include_dirs[:-1], folder)
        ext.sources = [*others, *generated, *own]
        self._link_to_torch(ext)

    def _link_to_torch(self, ext: setuptools.Extension) -> None:
        """Adds the libraries, beside torch's own, that have what its headers declare for mps."""
        own = ext.extra_link_args or []
        if self._objective_c:
            own = [*mac_flags.for_linux(own), *objective_c.link_flags()]
        ext.extra_link_args = [*own, *link_flags(self._host_library())]

    def _add_objects(
        self,
        ext: setuptools.Extension,
        sources: list[str],
        output_dir: str,
        macros: list | None = None,
        include_dirs: list[str] | None = None,
        debug: bool = False,
        extra_preargs: list[str] | None = None,
        extra_postargs: list[str] | dict | None = None,
        depends: list[str] | None = None,
    ) -> list[str]:
        """Replaces the compiler's `compile`: adds the objects to the graph and returns their paths."""
        units = getattr(ext, "units", ()) if paths.software_device() else ()
        held = write_units(sources, units, os.path.join(self.build_temp, ext.name))
        folders = [os.path.abspath(folder) for folder in include_dirs or []]
        self.compiler.include_dirs = [os.path.abspath(path) for path in self.compiler.include_dirs]
        _, objects, last, macros_and_folders, _ = self.compiler._setup_compile(
            os.path.abspath(output_dir), macros, folders, [*held], depends, extra_postargs
        )
        last = list(last["cxx"] if isinstance(last, dict) else last)
        if not any(flag.startswith("-std=") for flag in last):
            last.append("-std=c++20")
        flags = [
            *paths.message_flags(),
            *self.compiler.compiler_so[1:],
            *self.compiler._get_cc_args(macros_and_folders, debug, extra_preargs),
        ]
        cxx = shlex.split(os.environ["CXX"])
        compiler = wrapped_compiler(cxx)
        if self._objective_c:
            chosen = getattr(ext, "objective_c", None)
            wrapper = objective_c_command(self._objective_c, chosen)
        header = None
        if compiler == cxx:  # ccache does not cache compilations with a precompiled header
            header = self._add_precompiled_header(ext, [*cxx, *flags, *last])
        for source, output in zip(held, objects):
            os.makedirs(os.path.dirname(output), exist_ok=True)
            path, options, needs = os.path.abspath(source), [], []
            in_objective_c = any(name in self._objective_c for name in held[source])
            if (
                header
                and not in_objective_c
                and _includes_any(source, ext.precompiled_header, folders)
            ):
                # torch's headers turn this warning off themselves, which g++ forgets in a precompiled header.
                options = ["-include", header.removesuffix(".gch"), "-Wno-sign-compare"]
                needs = [header]
            if paths.software_device() and source.endswith(".mm") and not in_objective_c:
                options += ["-x", "c++"]
            command = [
                *(wrapper if in_objective_c else compiler),
                "-MMD",
                "-MF",
                output + ".d",
                *flags,
                *options,
                path,
                "-o",
                output,
            ]
            names = ", ".join(os.path.relpath(name) for name in held[source])
            what = f"{'objective-c++' if in_objective_c else 'c++'} {names}"
            arguments = [*last, "-O2"] if source in getattr(ext, "optimized", ()) else last
            if self._objective_c and not in_objective_c:
                arguments = mac_flags.without_objective_c(mac_flags.for_linux(arguments))
            self._graph.add(output, [path], [*command, *arguments], what, needs=needs, depfile=True)
        return objects

    def _add_precompiled_header(self, ext: setuptools.Extension, command: list[str]) -> str | None:
        """Adds the compilation of the extension's `precompiled_header`; returns its compiled form, or None. Not used on
        macOS: sources there are in two languages, and a header compiled for one does not suit the other."""
        listed = getattr(ext, "precompiled_header", None)
        if listed is None or not paths.software_device():
            return None
        # The extension's name does not affect the headers, so extensions with the same flags share the file.
        command = [word for word in command if not word.startswith("-DTORCH_EXTENSION_NAME=")]
        flags = [word for word in command if not word.startswith("-I")]
        text = _read(listed)
        digest = hashlib.sha256(repr((flags, text)).encode()).hexdigest()[:8]
        folder = os.path.abspath(os.path.join(self.build_temp, f"precompiled-{digest}"))
        header = os.path.join(folder, os.path.basename(listed))
        write_if_changed(header, text)
        output = header + ".gch"
        if output not in self._graph:
            command += ["-MMD", "-MF", output + ".d", "-x", "c++-header", header, "-o", output]
            self._graph.add(output, [header], command, f"c++ {listed}", depfile=True)
        return output

    def _add_link(self, ext: setuptools.Extension, command: list[str], **_: Any) -> None:
        """Replaces the function through which the compiler's `link` runs its command."""
        output = os.path.abspath(self.get_ext_fullpath(ext.name))
        objects = [word for word in command if word.endswith(".o")]
        libraries = [word for word in command if os.path.isabs(word) and word in self._graph]
        self._graph.add(
            output,
            objects,
            command,
            f"link {ext.name}",
            after=[path for path in libraries if path not in (output, *objects)],
        )

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
            self.mkpath(folder)
            for path in glob.glob(os.path.join(glob.escape(folder), "*")):
                if path.endswith(os.path.splitext(libraries[0])[1]):  # left by an earlier build
                    os.unlink(path)
            for path in libraries:
                self.copy_file(path, os.path.join(folder, os.path.basename(path)))

    def _kernels_folder(self, ext: setuptools.Extension) -> str:
        """Returns the folder of the kernel libraries: beside the extension in the build folder."""
        return os.path.join(
            os.path.dirname(self.get_ext_fullpath(ext.name)), ext.name.split(".")[-1] + ".kernels"
        )

    def _built_libraries(self, ext: setuptools.Extension) -> list[str]:
        metal = [source for source in ext.sources if source.endswith(".metal")]
        if not metal or not hasattr(ext, "metal_include_dirs"):
            return []
        variants = metal_sources.variants(metal, ext.metal_include_dirs)
        inplace, self.inplace = self.inplace, False
        try:
            folder = self._kernels_folder(ext)
        finally:
            self.inplace = inplace
        return [os.path.join(folder, variant.file) for variant in variants if variant.file]

    def _host_library(self) -> str:
        """Returns the software device to link against: this build's own while metalops itself is built."""
        if any(ext.name == "metalops._host" for ext in self.extensions):
            return os.path.abspath(self.get_ext_fullpath("metalops._host"))
        return paths.host_library()
