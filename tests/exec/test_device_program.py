"""The software device without torch and Python, in a program of its own: under ThreadSanitizer, and on an emulated
aarch64.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from metalops import msl
from metalops.build.paths import include_paths, torch_include
from metalops.msl.source.compiler import find
from metalops.msl.targets.host import sanitizers

from ..ops.families import kernel_file

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HOST = ROOT / "csrc" / "host"
KERNELS = HERE / "device_program.metal"
# What is about tensors or Python.
OF_TORCH = ("bindings.cpp", "cpu_threads.cpp")
SOURCES = [
    *(path for path in sorted((HOST / "exec").rglob("*.cpp")) if path.name not in OF_TORCH),
    HOST / "locks.cpp",
    HOST / "device" / "events.cpp",
    HOST / "device" / "large_blocks.cpp",
    HERE / "device_program.cpp",
]
INCLUDES = [
    HOST,
    ROOT / "python" / "metalops" / "include" / "software_device",
    ROOT / "python" / "metalops" / "msl" / "include",
    torch_include(),
    sysconfig.get_paths()["include"],
]
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not HOST.exists(), reason="needs the sources of the device"),
]


def build(compiler, folder, sources, *link):
    """The path of a program. compiler: the words that call it, with its options."""
    flags = ["-std=c++20", "-O1", "-fPIE", "-pthread", *(f"-I{path}" for path in INCLUDES)]

    def run(*arguments):
        command = [*compiler, *flags, *map(str, arguments)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr

    def compile_one(source):
        output = folder / "_".join(source.relative_to(ROOT).with_suffix(".o").parts)
        run("-c", source, "-o", output)
        return output

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        objects = list(threads.map(compile_one, sources))
    program = folder / "device_program"
    run("-pie", *objects, "-o", program, *link, "-ldl")
    return str(program)


def run(command, **environment):
    return subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


# ThreadSanitizer of older compilers does not start where addresses are random in many bits.
WITHOUT_RANDOM_ADDRESSES = """
import ctypes, os, sys
ctypes.CDLL(None).personality(0x0040000)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_the_device_has_no_races(tmp_path):
    host = find()
    try:
        sanitizers.preloads("thread", host)
    except sanitizers.SanitizerUnavailable as error:
        pytest.skip(str(error))
    c10 = os.path.join(os.path.dirname(torch_include()), "lib")
    program = build(
        [*host.command, "-fsanitize=thread", "-g1"],
        tmp_path,
        SOURCES,
        f"-L{c10}",
        f"-Wl,-rpath,{c10}",
        "-lc10",
    )
    kernels = msl.compile_file(KERNELS, tmp_path / "kernels.so")
    command = [sys.executable, "-c", WITHOUT_RANDOM_ADDRESSES, program, kernels]
    found = run([*command, "1", "race"], TSAN_OPTIONS="exitcode=3")
    assert found.returncode == 3 and "data race" in found.stderr and "shares_done" in found.stderr
    result = run([*command, "10", "nothing"], TSAN_OPTIONS="exitcode=3")
    assert (result.returncode, result.stdout, result.stderr) == (0, "fine\n", "")


# The front end asks neither for the CPU nor for the compiler when it is told that they are others.
CROSS_COMPILE = """
import platform, sys
from metalops import msl
from metalops.msl.source import compiler
cross = compiler.Compiler(tuple(sys.argv[1].split()), "clang", sys.argv[2], "another CPU")
platform.machine = lambda: "aarch64"
compiler._find = lambda *_: cross
include_dirs, files = sys.argv[3].split(":"), sys.argv[4:]
for source, library in zip(files[::2], files[1::2], strict=True):
    msl.compile_file(source, library, include_dirs, optimize=1, arch="portable")
"""
DEBIAN = "Debian: g++-aarch64-linux-gnu, qemu-user, clang-19"


@pytest.fixture
def aarch64_kernels(tmp_path):
    """aarch64_kernels(sources): libraries of Metal files for aarch64, by clang: g++ 12 has no _Float16 in C++ there."""
    clang = next((name for name in ("clang++-19", "clang++") if shutil.which(name)), None)
    if clang is None or shutil.which("aarch64-linux-gnu-g++") is None:
        pytest.skip(
            f"needs clang and a cross compiler, whose headers and libraries it uses ({DEBIAN})"
        )
    version = run([clang, "-dumpversion"]).stdout.strip()

    def compile_all(sources):
        libraries = [str(tmp_path / f"{Path(source).stem}.so") for source in sources]
        files = [str(part) for pair in zip(sources, libraries, strict=True) for part in pair]
        cross = f"{clang} --target=aarch64-linux-gnu"
        includes = ":".join([*include_paths(), str(ROOT)])
        result = run([sys.executable, "-c", CROSS_COMPILE, cross, version, includes, *files])
        assert result.returncode == 0, result.stderr
        for library in libraries:
            with open(library, "rb") as file:
                assert file.read(20)[18:] == b"\xb7\x00"  # EM_AARCH64
        return libraries

    return compile_all


def test_kernels_of_operators_compile_for_aarch64(aarch64_kernels):
    aarch64_kernels([kernel_file(name) for name in ("random", "masked_softmax")])


@pytest.fixture
def python_for_aarch64(tmp_path):
    """A folder in which Debian's Python.h finds its configuration for aarch64: what the device uses of it is the same for
    this machine, which is little-endian with pointers of 64 bits too."""
    headers = Path(sysconfig.get_paths()["include"])
    of_this_machine = headers.parent / str(sysconfig.get_config_var("MULTIARCH")) / headers.name
    folder = tmp_path / "headers" / "aarch64-linux-gnu"
    folder.mkdir(parents=True)
    (folder / headers.name).symlink_to(of_this_machine)
    return folder.parent


def test_the_device_runs_on_an_emulated_aarch64(tmp_path, aarch64_kernels, python_for_aarch64):
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if emulator is None:
        pytest.skip(f"needs an emulator ({DEBIAN})")
    (kernels,) = aarch64_kernels([KERNELS])
    # torch's c10 library here is for this machine.
    sources = [*SOURCES, HERE / "c10_for_device_program.cpp"]
    program = build(["aarch64-linux-gnu-g++", f"-I{python_for_aarch64}"], tmp_path, sources)
    command = [emulator, "-L", "/usr/aarch64-linux-gnu", program, kernels]
    result = run([*command, "2", "numbers"])
    assert result.returncode == 0, result.stderr
    *numbers, last = result.stdout.splitlines()
    assert last == "fine"
    here = torch.zeros(256, dtype=torch.int32, device="mps")
    torch.mps.compile_shader(KERNELS.read_text()).numbers(here, threads=256, group_size=32)
    assert [int(number) for number in numbers] == here.tolist()
