"""The switch between call stacks, built alone and run natively, with ucontext, and on an emulated aarch64."""

import os
import platform
import shutil
import subprocess

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
HOST = os.path.join(HERE, "..", "..", "csrc", "host")


def build_and_run(folder, compiler, *flags, emulator=()):
    program = os.path.join(folder, "fiber_switch_test")
    sources = [
        os.path.join(HERE, "fiber_switch_test.cpp"),
        os.path.join(HOST, "exec", "fiber", "switch.cpp"),
    ]
    options = ["-std=c++17", "-O2", "-Wall", "-Werror", "-static", f"-I{HOST}", *flags]
    subprocess.run([compiler, *options, *sources, "-o", program], check=True)
    result = subprocess.run(
        [*emulator, program], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def host_compiler():
    for name in (os.environ.get("CXX"), "g++", "clang++"):
        if name and shutil.which(name):
            return name
    pytest.skip("no C++ compiler on this machine")


def test_native(tmp_path):
    report = build_and_run(tmp_path, host_compiler())
    registers = {"x86_64": 6, "aarch64": 19}.get(platform.machine(), 0)
    assert report == f"{registers} registers, 2000 switches: all right\n"


def test_ucontext(tmp_path):
    report = build_and_run(tmp_path, host_compiler(), "-DMETALOPS_SWITCH_UCONTEXT=1")
    assert report == "0 registers, 2000 switches: all right\n"


def test_aarch64_emulated(tmp_path):
    if platform.machine() == "aarch64":
        pytest.skip("test_native is this test on aarch64")
    compiler = shutil.which("aarch64-linux-gnu-g++")
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if compiler is None or emulator is None:
        pytest.skip(
            "needs a cross compiler and an emulator (Debian: g++-aarch64-linux-gnu, qemu-user)"
        )
    report = build_and_run(tmp_path, compiler, emulator=[emulator])
    assert report == "19 registers, 2000 switches: all right\n"
