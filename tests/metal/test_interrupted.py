"""A launch that is interrupted, or that fails, leaves the device usable; many launches leave no memory behind."""

import os
import signal
import sys
import threading
import time

import pytest
import torch

pytestmark = pytest.mark.skipif(
    sys.platform == "darwin", reason="a GPU's command buffer runs to its end"
)

# Each thread takes a while, so the grid as a whole takes minutes.
SLOW = """
kernel void spin(device atomic_uint* out, uint i [[thread_position_in_grid]]) {
  uint x = i;
  for (int n = 0; n < 100000; ++n) x = x * 1664525u + 1013904223u;
  atomic_fetch_xor_explicit(out, x, memory_order_relaxed);
}
kernel void spin_together(
    device atomic_uint* out, uint i [[thread_position_in_grid]], uint lane [[thread_index_in_threadgroup]]) {
  threadgroup uint shared[64];
  uint x = i;
  for (int n = 0; n < 2000; ++n) {
    shared[lane] = x;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    x = x * 1664525u + shared[63 - lane];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  atomic_fetch_xor_explicit(out, x, memory_order_relaxed);
}
kernel void one(device uint* out, uint i [[thread_position_in_grid]]) { out[i] = 1; }
"""


@pytest.fixture(scope="module")
def lib():
    return torch.mps.compile_shader("#include <metal_stdlib>\nusing namespace metal;\n" + SLOW)


@pytest.fixture
def _heeds_control_c():
    """Shells start background jobs with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_heeds_control_c")
@pytest.mark.parametrize("kernel", ["spin", "spin_together"])
def test_control_c_ends_a_launch(lib, kernel):
    out = torch.zeros(64, dtype=torch.uint32, device="mps")
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        getattr(lib, kernel)(out, threads=1 << 24, group_size=64)
    assert time.monotonic() - began < 30
    timer.join()
    lib.one(out)
    assert out.tolist() == [1] * 64


def test_other_python_threads_run_during_a_launch(lib):
    ticks = []
    done = threading.Event()

    def tick():
        while not done.wait(0.01):
            ticks.append(1)

    thread = threading.Thread(target=tick)
    thread.start()
    began = time.monotonic()
    lib.spin(torch.zeros(1, dtype=torch.uint32, device="mps"), threads=1 << 12)
    taken = time.monotonic() - began
    done.set()
    thread.join()
    assert len(ticks) > taken / 0.01 / 4


def resident_kib():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))


@pytest.mark.slow
def test_200000_launches_leave_no_memory_behind(lib, metal_tests):
    out = torch.zeros(8, dtype=torch.uint32, device="mps")
    x, strided = torch.ones(4, 4, device="mps"), torch.ones(8, 8, device="mps")[::2, ::2]

    def launch(times):
        for _ in range(times):
            lib.one(out)
            lib.one(out, threads=[4, 2], group_size=[2, 2])
            metal_tests.unary(x, x, "metal_tests", "triple")
            metal_tests.binary(x, x, strided, "metal_tests", "minus_twice")

    launch(5000)
    before, allocated = resident_kib(), torch.mps.current_allocated_memory()
    launch(50000)
    assert resident_kib() - before < 2048
    assert torch.mps.current_allocated_memory() == allocated
