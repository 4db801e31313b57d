"""The software device without torch and Python, in a program of its own: under ThreadSanitizer, and on an emulated
aarch64.
"""

import os
import sys
from pathlib import Path

import pytest
import torch
from metalops import msl
from metalops.build.paths import include_paths, torch_include
from metalops.msl.source.compiler import find
from metalops.msl.targets.host import sanitizers

from ..ops.families import kernel_file
from ..programs import C10, ROOT, build, clang_for_aarch64, python_headers, run, run_emulated

HERE = Path(__file__).parent
HOST = ROOT / "csrc" / "host"
KERNELS = HERE / "device_program.metal"
# What is about tensors or Python.
OF_TORCH = ("bindings.cpp", "cpu_threads.cpp")
SOURCES = [
    *(path for path in sorted((HOST / "exec").rglob("*.cpp")) if path.name not in OF_TORCH),
    HOST / "locks.cpp",
    HOST / "metal" / "streams.cpp",
    HOST / "device" / "events.cpp",
    HOST / "device" / "large_blocks.cpp",
    HERE / "device_program.cpp",
]
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not HOST.exists(), reason="needs the sources of the device"),
]


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
    assert found.returncode == 3 and "data race" in found.stderr
    # Clang's runtime names functions by another program, which may be missing.
    assert "shares_done" in found.stderr or "external symbolizer" in found.stderr
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


@pytest.fixture
def aarch64_kernels(tmp_path):
    """aarch64_kernels(sources): libraries of Metal files for aarch64, by clang: g++ 12 has no _Float16 in C++ there."""
    clang = clang_for_aarch64()
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


def test_the_device_runs_on_an_emulated_aarch64(tmp_path, aarch64_kernels):
    (kernels,) = aarch64_kernels([KERNELS])
    compiler = ["aarch64-linux-gnu-g++", f"-I{python_headers(tmp_path)}"]
    program = build(compiler, tmp_path, [*SOURCES, C10])
    result = run_emulated(program, kernels, "2", "numbers")
    assert result.returncode == 0, result.stderr
    *numbers, last = result.stdout.splitlines()
    assert last == "fine"
    here = torch.zeros(256, dtype=torch.int32, device="mps")
    torch.mps.compile_shader(KERNELS.read_text()).numbers(here, threads=256, group_size=32)
    assert [int(number) for number in numbers] == here.tolist()
