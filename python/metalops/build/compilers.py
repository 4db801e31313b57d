"""Finds compilers that work. Each is tried on a small program, because a compiler that is installed need not work."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, MutableMapping

from setuptools.errors import CompileError

from metalops import _environment
from metalops.build import paths
from metalops.msl.source import languages
from metalops.msl.source.compiler import NEEDED

# Exercises C++20 and the standard library, which torch's headers need.
_CPP_PROGRAM = """\
#include <concepts>
#include <string>
template <std::integral T> T twice(T x) { return x + x; }
int main() { return std::to_string(twice(21)) == "42" ? 0 : 1; }
"""

_METAL_PROGRAM = "kernel void probe(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = 0; }\n"

# The first Metal version with tensors, for which kernel files that use them are built, too.
TENSORS = languages.number_of("4.0")

# The first macOS that supports a language. Metal 3.1 is the floor, on every device; without the minimum version a
# metallib runs only on the builder's macOS or newer.
_MACOS = {languages.FLOOR: "14.0", TENSORS: "26.0"}


def metal_flags(language: int) -> tuple[str, ...]:
    """Returns flags for Apple's Metal compiler."""
    minimum = f"-mmacosx-version-min={_MACOS[language]}"
    return (languages.standard(language), minimum, "-fno-fast-math")


class MissingCompiler(CompileError, RuntimeError):
    """No compiler works. setuptools prints the message without a traceback."""


def _runs(command: list[str], program: str, suffix: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "probe" + suffix)
        with open(source, "w") as f:
            f.write(program)
        try:
            result = subprocess.run(
                [*command, source, "-o", os.path.join(folder, "probe.out")],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )
        except OSError:
            return False
        return result.returncode == 0


@functools.cache
def _cxx_works(command: str) -> bool:
    return _runs([*shlex.split(command), "-std=c++20"], _CPP_PROGRAM, ".cpp")


def find_cxx() -> str:
    """Returns the C++ compiler for an extension's host code: $CXX if it is set, else the first of g++, clang++ and c++
    that works. The one that torch itself is built with comes first: g++, but clang++ on macOS, where g++ has no
    Objective-C++ that suits Apple's headers."""
    chosen = _environment.value("CXX")
    if chosen:
        if _cxx_works(chosen):
            return chosen
        raise MissingCompiler(
            f"metalops: the C++ compiler CXX={chosen} cannot compile a C++20 program."
        )
    first, second = ("g++", "clang++") if paths.software_device() else ("clang++", "g++")
    for name in (first, second, "c++"):
        if shutil.which(name) and _cxx_works(name):
            return name
    missing = "metalops: no working C++20 compiler was found; "
    if paths.software_device():
        missing += f"install {NEEDED}, or set CXX to one."
    else:
        missing += "install Xcode's Command Line Tools (xcode-select --install), or set CXX to one."
    raise MissingCompiler(missing)


def set_macos_target(environment: MutableMapping[str, str]) -> None:
    """Sets the target of builds on macOS: this machine's architecture only, where a Python for two architectures would
    build everything twice, and macOS 14 or newer, unless the environment says otherwise or Python itself needs a newer
    one."""
    environment.setdefault("ARCHFLAGS", f"-arch {platform.machine()}")
    pythons = str(sysconfig.get_config_var("MACOSX_DEPLOYMENT_TARGET") or "")
    newest = max("14.0", pythons, key=lambda text: [int(n) for n in text.split(".") if n])
    environment.setdefault("MACOSX_DEPLOYMENT_TARGET", newest)


def _find_ninja() -> None:
    """Puts ninja on the PATH if it lies beside the interpreter of a virtual environment that is not activated, or where
    `pip install --user` has put it."""
    if shutil.which("ninja"):
        return
    folders = [
        os.path.dirname(sys.executable),
        sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")),
    ]
    for folder in folders:
        if shutil.which("ninja", path=folder):
            os.environ["PATH"] = folder + os.pathsep + os.environ["PATH"]
            return


@contextlib.contextmanager
def build_environment() -> Iterator[dict[str, str]]:
    """Sets CXX to the compiler found, puts ninja on the PATH and sets macOS's target while the block runs, because
    torch and setuptools look there.

    Yields the environment with the user's own CXX: kernels are compiled by a compiler of their own choice.
    """
    before = dict(os.environ)
    _find_ninja()
    if not paths.software_device():
        set_macos_target(os.environ)
    kernels_environment = dict(os.environ)
    os.environ["CXX"] = find_cxx()
    try:
        yield kernels_environment
    finally:
        os.environ.clear()
        os.environ.update(before)


@functools.cache
def metal_compiler(language: int = languages.FLOOR) -> bool:
    """Returns true if Apple's Metal compiler works here and supports a language. The Command Line Tools do not have it,
    and newer versions of Xcode install it separately."""
    return shutil.which("xcrun") is not None and _runs(
        ["xcrun", "-sdk", "macosx", "metal", *metal_flags(language), "-c"], _METAL_PROGRAM, ".metal"
    )


def cxx_version(command: str) -> str:
    """Returns the first line of the compiler's --version."""
    result = subprocess.run(
        [*shlex.split(command), "--version"], capture_output=True, text=True, check=False
    )
    return result.stdout.splitlines()[0] if result.stdout else command
