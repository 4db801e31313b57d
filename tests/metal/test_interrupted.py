"""A launch that is interrupted, or that fails, leaves the device usable; many launches leave no memory behind."""

import os
import signal
import sys
import threading
import time

import pytest
import torch

if sys.platform != "darwin":
    from metalops import _host

pytestmark = pytest.mark.skipif(
    sys.platform == "darwin", reason="a GPU's command buffer runs to its end"
)

# Each thread takes a while, so the grid as a whole takes minutes.
SLOW = """
uint spun(uint x, int rounds) {
  for (int n = 0; n < rounds; ++n) x = x * 1664525u + 1013904223u;
  return x;
}
uint spun_together(uint x, int rounds, threadgroup uint* shared, uint lane) {
  for (int n = 0; n < rounds; ++n) {
    shared[lane] = x;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    x = x * 1664525u + shared[63 - lane];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  return x;
}
kernel void spin(device atomic_uint* out, uint i [[thread_position_in_grid]]) {
  atomic_fetch_xor_explicit(out, spun(i, 100000), memory_order_relaxed);
}
kernel void spin_together(
    device atomic_uint* out, uint i [[thread_position_in_grid]], uint lane [[thread_index_in_threadgroup]]) {
  threadgroup uint shared[64];
  atomic_fetch_xor_explicit(out, spun_together(i, 2000, shared, lane), memory_order_relaxed);
}
kernel void count(device atomic_uint* out, uint i [[thread_position_in_grid]]) {
  atomic_fetch_xor_explicit(out + 64, spun(i, 20000), memory_order_relaxed);
  atomic_fetch_add_explicit(out + i % 64, 1, memory_order_relaxed);
}
kernel void count_together(
    device atomic_uint* out, uint i [[thread_position_in_grid]], uint lane [[thread_index_in_threadgroup]]) {
  threadgroup uint shared[64];
  atomic_fetch_xor_explicit(out + 64, spun_together(i, 500, shared, lane), memory_order_relaxed);
  atomic_fetch_add_explicit(out + i % 64, 1, memory_order_relaxed);
}
kernel void reversed(device uint* out, uint i [[thread_position_in_grid]], uint lane [[thread_index_in_threadgroup]]) {
  threadgroup uint shared[64];
  shared[lane] = i;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = shared[63 - lane];
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


@pytest.fixture(params=[1, 4])
def cpu_threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def every_tenth_second():
    """every_tenth_second(function): runs it in a signal handler until the test is over."""
    before = []

    def install(function):
        before.append(signal.signal(signal.SIGALRM, lambda *_: function()))
        signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)

    yield install
    signal.setitimer(signal.ITIMER_REAL, 0)
    for handler in before:
        signal.signal(signal.SIGALRM, handler)


def threads_for(kernel, seconds):
    """A grid on which the kernel takes about as long, and at least half, on whatever machine and by whichever compiler."""
    threads = 1 << 12
    while True:
        began = time.monotonic()
        kernel(torch.zeros(65, dtype=torch.uint32, device="mps"), threads=threads, group_size=64)
        taken = time.monotonic() - began
        if taken > seconds / 2 or threads == 1 << 30:
            return threads
        threads *= 2


@pytest.mark.nightly
@pytest.mark.parametrize("kernel", ["count", "count_together"])
def test_signal_handlers_launch_kernels_during_a_launch(
    lib, kernel, cpu_threads, every_tenth_second
):
    """The launch and those of the handlers are whole, those of the same kernel too."""
    small = torch.zeros(65, dtype=torch.uint32, device="mps")
    getattr(lib, kernel)(small, threads=64, group_size=64)
    handled = []

    def handler():
        order, again = torch.zeros(640, dtype=torch.uint32, device="mps"), torch.zeros_like(small)
        lib.reversed(order, threads=640, group_size=64)
        getattr(lib, kernel)(again, threads=64, group_size=64)
        x = torch.full((3,), 2.0, device="mps", requires_grad=True)
        (x * x).sum().backward()
        handled.append((time.monotonic(), order.tolist(), again.tolist(), x.grad.tolist()))

    threads = threads_for(getattr(lib, kernel), seconds=1.5)
    is_during = False
    while not is_during and threads < 1 << 31:  # other processes may have made it slow before
        expected, out = torch.zeros(2, 65, dtype=torch.uint32, device="mps")
        getattr(lib, kernel)(expected, threads=threads, group_size=64)
        assert _host.threads_of_last_launch() == cpu_threads
        assert expected[0].item() == threads // 64
        every_tenth_second(handler)
        began = time.monotonic()
        getattr(lib, kernel)(out, threads=threads, group_size=64)
        ended = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert out.tolist() == expected.tolist()
        is_during = any(began < when < ended - 0.05 for when, *_ in handled)
        threads *= 2
    assert is_during
    for _, order, again, gradient in handled:
        assert order == [i // 64 * 64 + 63 - i % 64 for i in range(640)]
        assert again == small.tolist()
        assert gradient == [4, 4, 4]


def test_signal_handlers_launch_kernels_during_a_strided_operator(cpu_threads, every_tenth_second):
    x = torch.linspace(-5, 5, 3_000_000, device="mps").reshape(3000, 1000)[:, 100:900]
    expected, few = torch.special.airy_ai(x), torch.special.airy_ai(x[:10])
    handled = []
    every_tenth_second(lambda: handled.append(torch.equal(torch.special.airy_ai(x[:10]), few)))
    for _ in range(10):
        assert torch.equal(torch.special.airy_ai(x), expected)
    assert handled and all(handled)


class Stop(Exception):
    pass


@pytest.mark.parametrize("kernel", ["spin", "spin_together"])
def test_what_a_signal_handler_raises_ends_the_launch(lib, kernel, cpu_threads, every_tenth_second):
    def stop():
        signal.setitimer(signal.ITIMER_REAL, 0)  # the next one might come while this one is handled
        raise Stop

    out = torch.zeros(64, dtype=torch.uint32, device="mps")
    every_tenth_second(stop)
    with pytest.raises(Stop):
        getattr(lib, kernel)(out, threads=1 << 24, group_size=64)
    lib.one(out)
    assert out.tolist() == [1] * 64


@pytest.mark.nightly
def test_other_python_threads_run_during_a_launch(lib):
    ticks = []
    done = threading.Event()

    def tick():
        while not done.wait(0.01):
            ticks.append(1)

    thread = threading.Thread(target=tick)
    thread.start()
    began = time.monotonic()
    lib.spin(torch.zeros(1, dtype=torch.uint32, device="mps"), threads=1 << 15)
    taken = time.monotonic() - began
    done.set()
    thread.join()
    assert len(ticks) > taken / 0.01 / 4


def resident_kib():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))


@pytest.mark.full
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
