"""Checks from Linux what a Mac would build: python tests/macos/crosscheck.py --torch-wheel WHEEL [--sdk SDK]

WHEEL is torch's macOS wheel of a supported version, for instance the newest from

    pip download "torch==VERSION.*" --no-deps --only-binary=:all: --platform macosx_14_0_arm64

and SDK a folder MacOSX*.sdk. With both, every .mm and .cpp file of a macOS build is compiled for arm64 macOS 14 as
Objective-C++ or C++, without warnings, and linked by ld64.lld against the wheel's libraries: an undefined symbol, an
unknown selector or something newer than macOS 14 is an error.

Without an SDK the same files are compiled as plain C++, as far as that goes, against the wheel's headers and linked with
Zig, which carries the C++ headers of macOS (pip install ziglang). What Objective-C alone sees stays unchecked.

In both cases every kernel file is prepared as a Mac would embed it, one ASCII text without includes of ours, and goes
through the strict checker.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from glob import glob

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TARGET = "arm64-apple-macos14.0"
LIBRARIES = ["c10", "torch", "torch_cpu", "torch_python"]
# Torch's headers that nearly every file of csrc includes through ours. They are compiled once, which halves the check's time.
# tests/suite/test_includes.py compiles each file without, so that an include which this hides is missed there.
TORCH_HEADERS = [
    "ATen/TensorIterator.h",
    "ATen/core/Tensor.h",
    "ATen/core/dispatch/Dispatcher.h",
    "ATen/core/op_registration/adaption.h",
    "ATen/native/mps/MetalShaderLibrary.h",
    "torch/library.h",
]


class Toolchain:
    """Compiles and links for macOS. kind: "SDK" or "Zig"."""

    def __init__(self, kind: str, compile_command: list[str], link_command: list[str]) -> None:
        self.kind = kind
        self._compile = compile_command
        self._link = link_command

    def compile(self, source: str, output: str, flags: Sequence[str]) -> str:
        """Returns the compiler's messages; empty if all is well."""
        return self._run([*flags, "-c", source, "-o", output], self.language(source))

    def precompile(
        self, headers: Sequence[str], language: str, folder: str, flags: Sequence[str]
    ) -> str:
        """Precompiles headers; returns the file for -include-pch."""
        source = os.path.join(folder, f"{language}.h")
        with open(source, "w", encoding="utf-8") as file:
            file.writelines(f"#include <{header}>\n" for header in headers)
        output = f"{source}.pch"
        if messages := self._run([*flags, source, "-o", output], f"{language}-header"):
            sys.exit(f"crosscheck: torch's headers do not compile:\n{messages}")
        return output

    def language(self, source: str) -> str:
        return "objective-c++" if source.endswith(".mm") and self.kind == "SDK" else "c++"

    def _run(self, arguments: Sequence[str], language: str) -> str:
        command = [*self._compile, "-x", language, *arguments]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        return result.stderr if result.returncode or result.stderr.strip() else ""

    def link(self, objects: Sequence[str], output: str, library_folder: str) -> list[str]:
        """The undefined symbols, without those that are found when the module is loaded: Python's, and those of the
        runtime of Objective-C, which Zig does not carry."""
        command = [*self._link, *objects, "-o", output, f"-L{library_folder}"]
        command += [f"-l{name}" for name in LIBRARIES]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        undefined = re.findall(r"undefined symbol:? (\S+(?: .*)?)", result.stderr)
        missing = [x for x in undefined if not re.match(r"_?(?:_?Py|objc_|sel_)", x)]
        if result.returncode and not undefined:
            missing.append(result.stderr.strip())
        return missing


def find_toolchain(sdk: str | None, clang: str | None) -> Toolchain:
    if sdk is not None:
        if not os.path.isdir(os.path.join(sdk, "System", "Library", "Frameworks")):
            sys.exit(f"crosscheck: {sdk} is not a macOS SDK (it has no System/Library/Frameworks).")
        clang = clang or next(filter(None, map(shutil.which, ("clang++", "clang++-19"))), None)
        if clang is None:
            sys.exit("crosscheck: with an SDK it needs clang++ and ld64.lld (package lld).")
        base = [clang, "-target", TARGET, "-isysroot", sdk, "-stdlib=libc++"]
        linker = shutil.which("ld64.lld") or shutil.which("ld64.lld-19")
        if linker is None:
            sys.exit("crosscheck: ld64.lld is not installed (package lld).")
        # Every undefined symbol is named, not only the first twenty.
        link = [*base, "-fuse-ld=lld", f"--ld-path={linker}", "-dynamiclib"]
        link += ["-Wl,-undefined,error", "-Wl,--error-limit=0"]
        link += ["-framework", "Metal", "-framework", "Foundation"]
        return Toolchain("SDK", [*base, "-Wunguarded-availability"], link)
    if importlib.util.find_spec("ziglang") is None:
        sys.exit(
            "crosscheck: without --sdk it needs Zig (pip install ziglang); with an SDK it checks more."
        )
    base = [sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-macos.14.0"]
    return Toolchain("Zig", base, [*base, "-shared"])


def import_metalops() -> None:
    """The parts of metalops that a build uses, from this tree and without the device."""
    import types

    shell = types.ModuleType("metalops")
    shell.__path__ = [os.path.join(ROOT, "python", "metalops")]
    sys.modules["metalops"] = shell


def kernel_files() -> list[str]:
    return sorted(glob(os.path.join(ROOT, "kernels", "**", "*.metal"), recursive=True))


def host_sources(folder: str, include_dirs: list[str]) -> list[str]:
    """What a macOS build compiles: the files of the tree and those that the build helper generates."""
    from metalops.build import metal_sources, runtime

    patterns = ("distributed/*.cpp", "macos/*.cpp", "ops/**/*.mm", "plans/**/*.cpp", "python/*.cpp")
    listed = [
        path
        for pattern in patterns
        for path in glob(os.path.join(ROOT, "csrc", pattern), recursive=True)
    ]
    generated = metal_sources.write_registrations(
        kernel_files(), include_dirs, "_C.kernels", folder
    )
    own = runtime.write_runtime(listed, True, include_dirs[:-1], folder)
    return [*sorted(listed), *generated, *own]


def compile_all(
    toolchain: Toolchain, sources: Sequence[str], folder: str, flags: Sequence[str]
) -> tuple[list[str], int]:
    """Compiles the sources into `folder`. Returns the object files and the number of sources with messages, which it prints."""
    plans = os.path.join(ROOT, "csrc", "plans", "")  # which know nothing of torch
    languages = {toolchain.language(x) for x in sources if not x.startswith(plans)}
    precompiled = {x: toolchain.precompile(TORCH_HEADERS, x, folder, flags) for x in languages}

    def compile_one(source: str, output: str) -> str:
        own = list(flags)
        if not source.startswith(plans):
            header = precompiled[toolchain.language(source)]
            own += ["-Xclang", "-include-pch", "-Xclang", header]
        return toolchain.compile(source, output, own)

    outputs = [os.path.join(folder, f"{i}.o") for i in range(len(sources))]
    faults = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for messages in pool.map(compile_one, sources, outputs):
            if messages:
                print(messages)
                faults += 1
    return [path for path in outputs if os.path.exists(path)], faults


def check_kernels(include_dirs: list[str]) -> int:
    """Checks the text of every kernel file as a Mac would embed it. Returns the number of faults."""
    from metalops.msl import flatten
    from metalops.msl.check import check_source
    from metalops.msl.source.preprocess import preprocess

    faults = 0
    for path in kernel_files():
        text = flatten(path, include_dirs)
        name = os.path.relpath(path, ROOT)
        # The front end defines what Apple's compiler defines, and has Metal's own headers built in.
        try:
            dependencies = preprocess(text).dependencies
        except SyntaxError as error:
            print(f"{name}: the embedded text cannot be preprocessed: {error}")
            faults += 1
            continue
        for included in dependencies:
            print(f"{name}: the embedded text still includes {included}")
            faults += 1
        for line in text.splitlines():
            if not line.isascii():
                print(f"{name}: the embedded text is not ASCII: {line.strip()}")
                faults += 1
        for finding in check_source(text, name):
            print(f"{finding} (in the embedded text)")
            faults += finding.is_error
    return faults


def unpack(wheel: str, folder: str) -> str:
    """The folder `torch` of the wheel."""
    if os.path.isdir(wheel):
        return os.path.join(wheel, "torch")
    with zipfile.ZipFile(wheel) as archive:
        names = [
            x
            for x in archive.namelist()
            if x.startswith("torch/include/")
            or re.fullmatch(r"torch/lib/\w+\.dylib|torch/version\.py", x)
        ]
        archive.extractall(folder, names)
    return os.path.join(folder, "torch")


def check_version(torch_folder: str) -> None:
    """Exits if the wheel is not of a torch that metalops supports."""
    from metalops._torch import versions

    version = runpy.run_path(os.path.join(torch_folder, "version.py"))["__version__"]
    if not versions.is_supported(version):
        sys.exit(
            f"crosscheck: the wheel is of torch {version}, but metalops supports {versions.listed()}."
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--torch-wheel", required=True, help="the wheel, or the folder it is unpacked in"
    )
    parser.add_argument("--sdk", help="a folder MacOSX*.sdk")
    parser.add_argument("--clang", help="the clang++ to use with the SDK")
    arguments = parser.parse_args()
    toolchain = find_toolchain(arguments.sdk, arguments.clang)
    headers = os.path.join(ROOT, "python", "metalops", "include")
    import_metalops()

    faults = 0
    wheel = os.path.abspath(arguments.torch_wheel)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # where the names in an embedded text's line markers name no file
        torch_folder = unpack(wheel, folder)
        check_version(torch_folder)
        include = os.path.join(torch_folder, "include")
        metal_includes = [ROOT, headers, include]
        faults += check_kernels(metal_includes)
        flags = ["-std=c++20", "-O1", "-Wall", "-DFMT_HEADER_ONLY=1", "-fvisibility=default"]
        flags += ["-DTORCH_EXTENSION_NAME=_C", "-DTORCH_API_INCLUDE_EXTENSION_H"]
        flags.append("-DAT_PER_OPERATOR_HEADERS")  # as setup.py
        flags += [f"-I{ROOT}", f"-I{headers}", "-isystem", include]
        flags += ["-isystem", os.path.join(include, "torch", "csrc", "api", "include")]
        flags += ["-isystem", sysconfig.get_paths()["include"]]
        sources = host_sources(os.path.join(folder, "generated"), metal_includes)
        objects, failed = compile_all(toolchain, sources, folder, flags)
        faults += failed
        undefined = toolchain.link(
            objects, os.path.join(folder, "_C.so"), os.path.join(torch_folder, "lib")
        )
        for symbol in undefined:
            print(f"undefined: {symbol}")
        faults += len(undefined)
    print(
        f"{len(objects)} files compiled and linked with the {toolchain.kind}, "
        f"{len(kernel_files())} kernel files flattened: {faults or 'no'} faults"
    )
    if toolchain.kind == "Zig":
        print(
            "Not checked without --sdk: Objective-C, Apple's frameworks, availability in macOS 14."
        )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
