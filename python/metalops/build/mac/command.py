"""`python -m metalops build-mac -- COMMAND`: runs a build among stand-ins for a Mac's developer tools."""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import shutil
import subprocess
import sys

from metalops import _environment
from metalops.build import objective_c
from metalops.build.mac import flags as mac_flags
from metalops.build.mac import tools
from metalops.build.ninja import write_if_changed
from metalops.msl import cache

_HERE = os.path.dirname(os.path.abspath(__file__))
_C_NAMES, _CXX_NAMES = ("cc", "gcc", "clang"), ("c++", "g++", "clang++")


def _real(variable: str, names: tuple[str, ...]) -> str:
    """Returns the user's compiler, by its path: the stand-ins have its name."""
    words = shlex.split(
        _environment.value(variable) if variable == "CXX" else os.environ.get(variable, "")
    )
    candidates = [words] if words else [[name] for name in names]
    for first, *others in candidates:
        path = shutil.which(first)
        if path:
            return shlex.join([path, *others])
    return shlex.join(candidates[0])


def _write_program(path: str, command: list[str]) -> None:
    write_if_changed(path, f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    os.chmod(path, 0o755)


def write_stand_ins() -> str:
    """Writes the stand-ins, and returns their folder, which is the same for the same compilers: builds may keep the paths
    of compilers for the next time."""
    python = [sys.executable, "-E"]
    clang = objective_c.find_compiler(_environment.value("OBJCXX")) or ""
    if clang:
        first, *others = shlex.split(clang)
        clang = shlex.join([shutil.which(first) or first, *others])
    cc, cxx = _real("CC", ("gcc", "cc", "clang")), _real("CXX", ("g++", "c++", "clang++"))
    wrapper = [
        *python,
        os.path.join(_HERE, "compiler.py"),
        "--mac",
        "--cc",
        cc,
        "--cxx",
        cxx,
        "--objcxx",
        clang,
    ]
    key = hashlib.sha256(repr(wrapper).encode()).hexdigest()[:8]
    folder = os.path.join(cache.directory(), f"build-mac-{key}")
    programs = {
        **{name: [*wrapper, "--c", "--"] for name in _C_NAMES},
        **{name: [*wrapper, "--"] for name in _CXX_NAMES},
        # For build systems that have Objective-C as a language of its own.
        "objc": [*wrapper, "--objective-c", "always", "--c", "--"],
        "objc++": [*wrapper, "--objective-c", "always", "--"],
        **{name: [*python, os.path.join(_HERE, "tools.py"), name] for name in tools.TOOLS},
    }
    for name, command in programs.items():
        _write_program(os.path.join(folder, "bin", name), command)
    for name in ("metal", "metallib"):
        path = os.path.join(folder, "Metal.xctoolchain", "usr", "bin", name)
        _write_program(path, programs[name])
    for name in mac_flags.FRAMEWORKS:
        write_if_changed(
            os.path.join(folder, "frameworks", f"lib{name}.so"),
            "/* A stand-in, which is not linked. */\n",
        )
    return folder


def environment(folder: str, machine: str | None) -> dict[str, str]:
    """Returns the environment of a build."""
    programs = os.path.join(folder, "bin")
    result = dict(os.environ)
    for variable, added in (("PATH", programs), ("PYTHONPATH", os.path.join(_HERE, "site"))):
        result[variable] = os.pathsep.join(filter(None, [added, os.environ.get(variable, "")]))
    for variable, name in (("CC", "cc"), ("CXX", "c++"), ("OBJC", "objc"), ("OBJCXX", "objc++")):
        result[variable] = os.path.join(programs, name)
    result["METALOPS_BUILD_MAC"] = folder
    if machine:
        result["METALOPS_BUILD_MAC_MACHINE"] = machine
    # An extension is built with the torch that loads it, which an isolated build would not have. pip reads the value of
    # this variable as that of `build_isolation`.
    result["PIP_NO_BUILD_ISOLATION"] = "0"
    result["UV_NO_BUILD_ISOLATION"] = "1"
    result.setdefault("CMAKE_TOOLCHAIN_FILE", os.path.join(_HERE, "cmake", "toolchain.cmake"))
    return result


def main(argv: list[str]) -> int:
    """Runs a command that builds a Mac project, such as `pip install .`, cmake, make or a setup.py, so that its extension
    runs on the software device. Build scripts see a Mac, compilers drop flags that only Apple's have, sources in
    Objective-C go to clang, and xcrun, metal, metallib and xcodebuild compile Metal files for the software device.
    """
    parser = argparse.ArgumentParser(
        prog="metalops build-mac",
        usage="%(prog)s [--machine NAME] -- COMMAND [ARGUMENTS]",
        description=main.__doc__,
    )
    parser.add_argument(
        "--machine",
        choices=["arm64", "x86_64"],
        help="the processor that build scripts see (default: this one)",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        parser.error("there is no command to run")
    if sys.platform == "darwin":
        parser.error("this is a Mac: run the command itself")
    if command[0] in ("python", "python3"):  # of this environment, whether or not it is activated
        command = [sys.executable, *command[1:]]
    folder = write_stand_ins()
    try:
        return subprocess.run(
            command, env=environment(folder, arguments.machine), check=False
        ).returncode
    except OSError as error:
        print(f"metalops build-mac: {command[0]!r}: {error.strerror}", file=sys.stderr)
        return 1
