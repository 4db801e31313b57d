"""Builds parts of the software device into programs without torch, also for aarch64, whose programs an emulator runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from metalops.build.paths import torch_include

ROOT = Path(__file__).parents[1]
INCLUDES = [
    ROOT,
    ROOT / "csrc" / "host",
    ROOT / "python" / "metalops" / "include" / "software_device",
    ROOT / "python" / "metalops" / "msl" / "include",
    torch_include(),
    sysconfig.get_paths()["include"],
]
# torch's c10 library here is for this machine.
C10 = ROOT / "tests" / "c10_for_another_cpu.cpp"
DEBIAN = "Debian: g++-aarch64-linux-gnu, qemu-user, clang-19"


def run(command: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def build(compiler: Sequence[str], folder: Path, sources: Iterable[Path], *link: str | Path) -> str:
    """Returns the path of a program in the folder. compiler: the words that call it, with its options. link: objects and
    options for the last step."""
    flags = ["-std=c++20", "-O1", "-fPIE", "-pthread", *(f"-I{path}" for path in INCLUDES)]

    def call(*arguments: object) -> None:
        result = run([*compiler, *flags, *map(str, arguments)])
        assert result.returncode == 0, result.stderr

    def compile_one(source: Path) -> Path:
        output = folder / ("_".join(source.with_suffix(".o").parts[1:]))
        call("-c", source, "-o", output)
        return output

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        objects = list(threads.map(compile_one, sources))
    program = folder / "program"
    call("-pie", *objects, "-o", program, *link, "-ldl")
    return str(program)


def clang_for_aarch64() -> str:
    """Returns a clang that compiles for aarch64 with the headers and libraries of g++'s cross compiler; skips the test if
    either is missing."""
    clang = next((name for name in ("clang++-19", "clang++") if shutil.which(name)), None)
    if clang is None or shutil.which("aarch64-linux-gnu-g++") is None:
        pytest.skip(
            f"needs clang and a cross compiler, whose headers and libraries it uses ({DEBIAN})"
        )
    return clang


def python_headers(folder: Path) -> Path:
    """Returns a folder in which Debian's Python.h finds its configuration for aarch64: what the device uses of it is the
    same for this machine, which is little-endian with pointers of 64 bits too."""
    headers = Path(sysconfig.get_paths()["include"])
    of_this_machine = headers.parent / str(sysconfig.get_config_var("MULTIARCH")) / headers.name
    found = folder / "headers" / "aarch64-linux-gnu"
    found.mkdir(parents=True)
    (found / headers.name).symlink_to(of_this_machine)
    return found.parent


def run_emulated(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a program for aarch64, or skips the test where there is no emulator."""
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if emulator is None:
        pytest.skip(f"needs an emulator ({DEBIAN})")
    return run([emulator, "-L", "/usr/aarch64-linux-gnu", program, *arguments])
