"""The software device itself under ThreadSanitizer: nothing that its threads do is a race."""

import os
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from metalops import msl
from metalops.build.paths import torch_include
from metalops.msl import sanitizers
from metalops.msl.compiler import find

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HOST = ROOT / "csrc" / "host"
# The program has other CPU threads than torch's, and neither tensors nor Python.
OF_TORCH = ("bindings.cpp", "cpu_threads.cpp")
SOURCES = [
    *(path for path in sorted((HOST / "exec").rglob("*.cpp")) if path.name not in OF_TORCH),
    HOST / "locks.cpp",
    HOST / "device" / "events.cpp",
    HOST / "device" / "large_blocks.cpp",
    HERE / "device_races_test.cpp",
]
# ThreadSanitizer of older compilers does not start where addresses are random in many bits.
START = """
import ctypes, os, sys
ctypes.CDLL(None).personality(0x0040000)
os.execv(sys.argv[1], sys.argv[1:])
"""


def compiler_with_runtime():
    host = find()
    try:
        sanitizers.preloads("thread", host)
    except sanitizers.SanitizerUnavailable as error:
        pytest.skip(str(error))
    return host


def build(folder):
    host = compiler_with_runtime()
    torch = torch_include()
    includes = [
        HOST,
        ROOT / "python" / "metalops" / "include" / "software_device",
        ROOT / "python" / "metalops" / "msl" / "include",
        torch,
        sysconfig.get_paths()["include"],
    ]
    flags = ["-std=c++20", "-O1", "-g1", "-fPIE", "-pthread", "-fsanitize=thread"]
    flags += [f"-I{path}" for path in includes]

    def run(*arguments):
        result = host.run([*flags, *map(str, arguments)])
        assert result.returncode == 0, result.stderr.decode(errors="replace")

    def compile_one(source):
        output = folder / "_".join(source.relative_to(ROOT).with_suffix(".o").parts)
        run("-c", source, "-o", output)
        return output

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        objects = list(threads.map(compile_one, SOURCES))
    program, libraries = folder / "device_races_test", os.path.join(os.path.dirname(torch), "lib")
    run(
        "-pie",
        *objects,
        "-o",
        program,
        f"-L{libraries}",
        f"-Wl,-rpath,{libraries}",
        "-lc10",
        "-ldl",
    )
    return str(program)


@pytest.mark.slow
@pytest.mark.skipif(not HOST.exists(), reason="needs the sources of the device")
def test_the_device_has_no_races(tmp_path):
    program = build(tmp_path)
    kernels = msl.compile_file(HERE / "device_races.metal", tmp_path / "kernels.so")

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-c", START, program, kernels, *arguments],
            env={**os.environ, "TSAN_OPTIONS": "exitcode=3"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    found = run("1", "race")
    assert found.returncode == 3 and "data race" in found.stderr and "shares_done" in found.stderr
    result = run("10", "no race")
    assert (result.returncode, result.stdout, result.stderr) == (0, "fine\n", "")
