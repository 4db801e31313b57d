"""A kernel that ends the process says which it was, on which engine, and how to find the place; what it logged is not lost."""

import re
import signal
import subprocess
import sys

import pytest

# An address that no buffer has, from a number that the compiler does not know.
KERNELS = """
#include <metal_stdlib>
#include <metal_logging>
using namespace metal;

kernel void stray(
    device int* out, constant long& far, uint i [[thread_position_in_grid]]) {
  if (i == 0) os_log_default.log("thread %u goes astray", i);
  out[far + i] = 1;
}
kernel void stray_together(
    device int* out, constant long& far, uint i [[thread_position_in_grid]],
    uint lane [[thread_index_in_threadgroup]]) {
  threadgroup int shared[64];
  if (i == 0) os_log_default.log("thread %u goes astray", i);
  shared[lane] = int(i);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[far + i] = shared[63 - lane];
}
"""

PROGRAM = f"""
import sys
import metalops, torch
from metalops import _host
engine, kernel, before, threads = sys.argv[1:]
if "faulthandler" in before:
    import faulthandler
    if before == "faulthandler before":
        faulthandler.enable()
torch.set_num_threads(int(threads))
lib = torch.mps.compile_shader({KERNELS!r})
out = torch.zeros(64, dtype=torch.int32, device="mps")
if before == "faulthandler after":
    faulthandler.enable()
_host.prefer_engine(engine)
getattr(lib, kernel)(out, -(1 << 42), threads=1 << 16, group_size=64)
torch.mps.synchronize()
print("went on")
"""


@pytest.mark.sampled(6)
@pytest.mark.full
@pytest.mark.parametrize(
    ("engine", "kernel", "before", "threads"),
    [
        ("loop", "stray", "nothing", 1),
        ("group", "stray_together", "faulthandler before", 4),
        ("fiber", "stray_together", "faulthandler after", 1),
    ],
)
def test_a_fault_names_kernel_engine_and_sanitizer(engine, kernel, before, threads):
    command = [sys.executable, "-c", PROGRAM, engine, kernel, before, str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGSEGV and not done.stdout, done.stderr
    sentence = (
        f"metalops: kernel '{kernel}' on the engine '{engine}' ended the process by SIGSEGV "
        r"\(a memory access outside of its buffers\); `python -m metalops sanitize PROGRAM` finds the place\."
    )
    assert len(re.findall(sentence, done.stderr)) == 1, done.stderr
    assert done.stderr.index("thread 0 goes astray") < done.stderr.index("metalops: kernel")
    assert ("Fatal Python error: Segmentation fault" in done.stderr) == ("faulthandler" in before)


@pytest.mark.nightly
def test_the_sanitizer_finds_the_place(tmp_path):
    """By the command that the sentence names."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    command = [sys.executable, "-m", "metalops", "sanitize", str(path), "auto", "stray", "", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert re.search(r"program_source:\d+:\d+: .* in kernel 'stray'", done.stderr), done.stderr
    assert "ended the process" not in done.stderr


@pytest.mark.full
def test_a_fault_outside_of_kernels_is_not_ours():
    program = (
        "import ctypes, metalops, torch; torch.ones(3, device='mps').neg(); ctypes.string_at(1)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == -signal.SIGSEGV
    assert "metalops" not in done.stderr
