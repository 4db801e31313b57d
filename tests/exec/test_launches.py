"""Launches as a whole: sizes, engines, CPU threads, errors in kernels, overhead and leaks."""

import os
import resource
import subprocess
import sys
import textwrap

import pytest
import torch
from metalops import _host

from .conftest import HEADER, build

SOURCE = """
kernel void add_one(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] += 1; }
kernel void mark(device uint* out [[buffer(0)]], uint i [[thread_position_in_grid]]) { out[i] += i * 3 + 1; }
kernel void mark_3d(device uint* out [[buffer(0)]], uint3 p [[thread_position_in_grid]], uint3 n [[threads_per_grid]]) {
  out[(p.z * n.y + p.y) * n.x + p.x] += p.x + 1000 * p.y + 1000000 * p.z;
}
kernel void group_sums(device const float* in, device float* out, uint i [[thread_position_in_grid]],
                       uint t [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]]) {
  threadgroup float s[32];
  float v = simd_sum(in[i]);
  if (t % 32 == 0) s[t / 32] = v;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (t == 0) out[group] = s[0] + s[1] + s[2] + s[3];
}
kernel void slow(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  float v = x[i];
  for (uint k = 0; k < 20000; ++k) v = v * 0.999f + 0.5f;
  x[i] = v;
}
kernel void slow_together(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]],
                          uint t [[thread_index_in_threadgroup]]) {
  threadgroup float s[64];
  s[t] = x[i];
  for (uint k = 0; k < 50; ++k) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float v = s[63 - t] * 0.9f + s[t];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    s[t] = v;
  }
  x[i] = s[t];
}
kernel void very_slow_together(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]],
                               uint t [[thread_index_in_threadgroup]]) {
  threadgroup float s[64];
  s[t] = x[i];
  for (uint k = 0; k < 5000; ++k) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float v = s[63 - t] * 0.9f + s[t];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    s[t] = v;
  }
  x[i] = s[t];
}
[[max_total_threads_per_threadgroup(64)]]
kernel void small_groups(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = 1; }
int deep(int n, device int* out) {
  volatile int local[200];
  local[uint(n) % 200] = n;
  return n == 0 ? 0 : deep(n - 1, out) + local[uint(n) % 200];
}
kernel void recursive(device int* out [[buffer(0)]], constant int& n [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = deep(n, out);
}
kernel void large_frame(device int* out [[buffer(0)]], uint i [[thread_position_in_grid]],
                        uint n [[threads_per_grid]]) {
  volatile int local[90000];
  for (uint k = 0; k < n * 351; ++k) local[k] = k;
  out[i] = local[i];
}
kernel void large_frame_and_barrier(device int* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  volatile int local[100000];
  local[i] = 1;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = local[i];
}
kernel void group_sums_of_256(device const float* in, device float* out, uint i [[thread_position_in_grid]],
                               uint t [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]]) {
  threadgroup float s[256];
  s[t] = in[i];
  for (uint k = 128; k > 0; k /= 2) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (t < k) s[t] += s[t + k];
  }
  if (t == 0) out[group] = s[0];
}
kernel void waits_for_the_group_before(device atomic_uint* flags [[buffer(0)]], uint group [[threadgroup_position_in_grid]],
                                       uint t [[thread_index_in_threadgroup]]) {
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (t == 0) {
    uint before = 0;
    if (group != 0) {
      while ((before = atomic_load_explicit(&flags[group - 1], memory_order_relaxed)) == 0) {}
    }
    atomic_store_explicit(&flags[group], before + 1, memory_order_relaxed);
  }
}
"""

# What the front end never emits: a loop that synchronises. Its threads below a number only count themselves.
MISUSED = """
#include <msl/metal.h>
const msl::abi::Runtime* msl_runtime;
static void loop(const msl::abi::Launch* launch, msl::abi::u64 begin, msl::abi::u64 end) {
  if (begin < *static_cast<const msl::abi::u64*>(launch->buffers[1])) {
    __atomic_fetch_add(static_cast<msl::abi::u64*>(launch->buffers[0]), end - begin, __ATOMIC_RELAXED);
    return;
  }
  msl::metal::threadgroup_barrier(msl::metal::mem_flags::mem_none, msl::abi::Site{1});
}
static void thread(const msl::abi::Launch*, const msl::abi::Thread*) {}
static constexpr msl::abi::Kernel kernels[] = {{"misused", nullptr, 0, 0, 1024, 0, 0, loop, nullptr, thread}};
static constexpr msl::abi::SourceLocation sites[] = {{"a.metal", 1, 1}, {"b.metal", 12, 5}};
extern "C" __attribute__((visibility("default"))) const msl::abi::Library metalops_library = {
    VERSION, FEATURES, "by hand", kernels, 1, nullptr, 0, sites, 2};
extern "C" __attribute__((visibility("default"))) void metalops_bind(const msl::abi::Runtime* r) { msl_runtime = r; }
"""


def by_hand(folder, version="msl::abi::kAbiVersion", features=0):
    """The path of a library like those the front end emits, compiled from C++."""
    from metalops.msl.source import compiler
    from metalops.msl.source.paths import HEADERS

    source = os.path.join(folder, "kernels.cpp")
    with open(source, "w") as file:
        file.write(MISUSED.replace("VERSION", str(version)).replace("FEATURES", str(features)))
    output = os.path.join(folder, "kernels.so")
    host = compiler.find()
    result = host.run([*host.flags(), f"-I{HEADERS}", "-shared", source, "-o", output, "-lm"])
    assert result.returncode == 0, result.stderr
    return output


# ---- sizes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 31, 33, 1000, 32768, 32769, 100_003, 3_000_001])
def test_every_thread_runs_once(threads, engine, several_threads):
    if engine == "fiber" and threads > 200_000:
        threads //= 10
    out = torch.zeros(threads, dtype=torch.int32)
    build(SOURCE).launch("mark", [out], threads, 256, engine=engine)
    if threads > 32768:
        several_threads()
    assert torch.equal(out, torch.arange(threads, dtype=torch.int32) * 3 + 1)


@pytest.mark.parametrize("shape", [(7, 5, 3), (1, 1000, 1), (100, 1, 9), (64, 64, 16)])
@pytest.mark.parametrize("group", [(1, 1, 1), (4, 4, 4), (32, 8, 1), (3, 5, 7)])
def test_three_dimensions(shape, group, engine, several_threads):
    x, y, z = shape
    out = torch.zeros(z, y, x, dtype=torch.int32)
    build(SOURCE).launch("mark_3d", [out], list(shape), list(group), engine=engine)
    coordinates = torch.meshgrid(*(torch.arange(n) for n in (z, y, x)), indexing="ij")
    assert torch.equal(
        out.long(), coordinates[2] + 1000 * coordinates[1] + 1000000 * coordinates[0]
    )


def test_an_empty_grid_runs_nothing(engine):
    out = torch.zeros(1, dtype=torch.int32)
    build(SOURCE).launch("mark", [out], [0, 5], [32, 1], engine=engine)
    assert out.item() == 0


def test_storage_offset_of_a_tensor(engine):
    x = torch.zeros(20)
    build(SOURCE).launch("add_one", [x[5:]], 10, 10, engine=engine)
    assert torch.equal(x, torch.cat([torch.zeros(5), torch.ones(10), torch.zeros(5)]))


def test_too_large_a_threadgroup():
    x = torch.zeros(2048)
    with pytest.raises(
        ValueError,
        match="2048 x 1 x 1 threads is too large for kernel 'add_one', which allows 1024",
    ):
        build(SOURCE).launch("add_one", [x], 2048, 2048)
    with pytest.raises(
        ValueError,
        match="9 x 8 x 1 threads is too large for kernel 'small_groups', which allows 64",
    ):
        build(SOURCE).launch("small_groups", [x], [9, 8], [9, 8])
    assert (x == 0).all()
    build(SOURCE).launch("small_groups", [x], 64, 64)
    assert (x[:64] == 1).all()


def test_zero_group_and_unknown_names():
    x = torch.zeros(4)
    with pytest.raises(
        ValueError, match="threadgroup size of kernel 'add_one' is zero along axis 1"
    ):
        build(SOURCE).launch("add_one", [x], [4, 1], [4, 0])
    with pytest.raises(KeyError, match="no kernel 'subtract'"):
        build(SOURCE).launch("subtract", [x], 4, 4)
    with pytest.raises(ValueError, match="engine is 'gpu'"):
        build(SOURCE).launch("add_one", [x], 4, 4, engine="gpu")


# ---- engines and CPU threads ----------------------------------------------------------------------------------


# A kernel for each engine that long launches take.
KERNEL_OF = {"loop": "slow", "group": "slow_together", "fiber": "slow_together"}


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("engine", KERNEL_OF)
def test_any_number_of_cpu_threads(engine, threads, several_threads):
    x = torch.rand(64 * 100)
    alone, shared = x.clone(), x.clone()
    build(SOURCE).launch(KERNEL_OF[engine], [alone], len(x), 64, engine=engine, threads=1)
    several_threads(1)
    build(SOURCE).launch(KERNEL_OF[engine], [shared], len(x), 64, engine=engine, threads=threads)
    several_threads(min(threads, 4))
    assert torch.equal(alone, shared) and not torch.equal(shared, x)


@pytest.mark.parametrize("engine", KERNEL_OF)
def test_a_launch_takes_as_many_cpu_threads_as_torch(engine, several_threads):
    x = torch.rand(64 * 100)
    for threads in (3, 1, 4):
        torch.set_num_threads(threads)
        build(SOURCE).launch(KERNEL_OF[engine], [x], len(x), 64, engine=engine)
        several_threads(threads)


@pytest.mark.nightly
def test_launches_bring_no_second_openmp_runtime():
    """Each would have CPU threads of its own, and torch.set_num_threads would be about one of them."""
    script = """
    x = torch.zeros(64 * 100)
    torch.set_num_threads(2)
    for engine, kernel in KERNEL_OF.items():
        library.launch(kernel, [x], len(x), 64, engine=engine)
        assert _host.threads_of_last_launch() == 2
    files = {line.split()[-1].rsplit("/")[-1] for line in open("/proc/self/maps")}
    print(len([name for name in files if name.startswith(("libgomp", "libomp", "libiomp"))]))
    """
    result = in_subprocess(launching(f"KERNEL_OF = {KERNEL_OF}\n{textwrap.dedent(script)}"))
    assert result.stdout == "1\n", result.stderr


@pytest.mark.reported("threadgroups have no order")
def test_groups_run_in_order_enough_to_wait_for_an_earlier_one(several_threads):
    flags = torch.zeros(500, dtype=torch.int32)
    build(SOURCE).launch("waits_for_the_group_before", [flags], 32 * 500, 32)
    several_threads()
    assert torch.equal(flags, torch.arange(1, 501, dtype=torch.int32))


def test_a_kernel_that_synchronises_has_no_loop():
    x, out = torch.zeros(128), torch.zeros(1)
    with pytest.raises(
        ValueError,
        match="kernel 'group_sums' synchronises its threads and cannot run as a plain loop",
    ):
        build(SOURCE).launch("group_sums", [x, out], 128, 128, engine="loop")


def in_subprocess(script, **environment):
    import metalops

    package = os.path.dirname(metalops.__path__[0])
    variables = {
        **os.environ,
        "PYTHONPATH": package + os.pathsep + os.environ.get("PYTHONPATH", ""),
        **environment,
    }
    script = "import torch\nfrom metalops import _host, msl\n" + textwrap.dedent(script)
    return subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env=variables,
    )


def launching(statement):
    from metalops import msl

    path = str(msl.compile_source(HEADER + SOURCE))
    return f"library = _host.Library({path!r})\nx = torch.zeros(128); out = torch.zeros(1)\n{statement}"


@pytest.mark.nightly
def test_the_engine_can_be_chosen_by_environment():
    statement = launching("library.launch('add_one', [x], 128, 128)\nprint(x.sum().item())")
    for value in ("fiber", "loop", "auto"):
        result = in_subprocess(statement, METALOPS_ENGINE=value)
        assert result.stdout == "128.0\n", result.stderr
    statement += "\nprint(_host.prefer_engine('fiber'), _host.prefer_engine('auto'))"
    result = in_subprocess(statement, METALOPS_ENGINE="loop")
    assert result.stdout == "128.0\nloop fiber\n", result.stderr
    statement = launching("library.launch('group_sums', [x, out], 128, 128)")
    assert "cannot run as a plain loop" in in_subprocess(statement, METALOPS_ENGINE="loop").stderr
    assert "METALOPS_ENGINE is 'gpu'" in in_subprocess(statement, METALOPS_ENGINE="gpu").stderr


# ---- errors in kernels ----------------------------------------------------------------------------------------


@pytest.mark.reported("a library without a sanitizer")
def test_synchronising_in_a_loop_is_an_error_with_the_line(tmp_path, several_threads):
    library = _host.Library(by_hand(tmp_path))
    message = (
        "kernel 'misused' reached threadgroup_barrier at b.metal:12:5 while running as a plain loop"
    )
    counted, none = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    for n in (10, 1_000_000):
        with pytest.raises(RuntimeError, match=message):
            library.launch("misused", [counted, none], n, 10)
    # In one of the CPU threads that share the launch.
    half, all_of_them = torch.tensor([500_000]), torch.tensor([1_000_000])
    with pytest.raises(RuntimeError, match=message):
        library.launch("misused", [counted, half], 1_000_000, 10)
    assert 0 < counted.item() < 1_000_000
    library.launch("misused", [counted.zero_(), all_of_them], 1_000_000, 10)
    several_threads()
    assert counted.item() == 1_000_000


def test_stack_overflow_is_an_error_and_the_device_goes_on(several_threads):
    out = torch.zeros(256, dtype=torch.int32)
    library = build(SOURCE)
    shallow, endless = torch.tensor([10], dtype=torch.int32), torch.tensor([-1], dtype=torch.int32)
    for _ in range(3):
        with pytest.raises(
            RuntimeError, match="kernel 'recursive': a thread used more than 256 KiB of stack"
        ):
            library.launch("recursive", [out, endless], 256, 64)
        library.launch("recursive", [out, shallow], 256, 64)
        several_threads()
        assert (out == 55).all()


def test_a_stack_that_overflows_a_little_is_an_error(several_threads):
    """By a large local array, which ends on the stack of another thread of the group."""
    out = torch.zeros(256, dtype=torch.int32)
    library = build(SOURCE)
    for kernel in ("large_frame", "large_frame_and_barrier"):
        message = f"kernel '{kernel}': a thread used more than 256 KiB of stack"
        with pytest.raises(RuntimeError, match=message):
            library.launch(kernel, [out], 256, 64, engine="fiber")
    shallow = torch.tensor([10], dtype=torch.int32)
    library.launch("recursive", [out, shallow], 256, 64, engine="fiber")
    assert (out == 55).all()


@pytest.mark.nightly
def test_64_cpu_threads_start_where_few_memory_mappings_are_left():
    """A process may have 65,530 of them, of which this one leaves 40 for each worker and its thread."""
    script = """
    import ctypes
    x, out = torch.ones(64 * 256), torch.zeros(64)
    torch.set_num_threads(64)
    limit = int(open("/proc/sys/vm/max_map_count").read())
    used = len(open("/proc/self/maps").readlines())
    pages, page = limit - used - 64 * 40, 4096 * 16
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    private_anonymous_noreserve, read = 0x4022, 1
    begin = libc.mmap(None, pages * page, 0, private_anonymous_noreserve, -1, 0)
    for i in range(0, pages, 2):
        assert libc.mprotect(begin + i * page, page, read) == 0
    assert len(open("/proc/self/maps").readlines()) > limit - 64 * 50
    library.launch("group_sums_of_256", [x, out], 64 * 256, 256, engine="fiber")
    assert _host.threads_of_last_launch() == 64 and (out == 256).all()
    print("fine")
    """
    result = in_subprocess(launching(textwrap.dedent(script)))
    assert result.stdout == "fine\n", result.stderr


@pytest.mark.full
def test_a_fault_elsewhere_still_ends_the_process():
    # After the handler for stack overflows is installed, other faults are what they were.
    script = launching(
        "library.launch('group_sums', [x, out], 128, 128)\nimport ctypes\nprint('so far', flush=True)\nctypes.string_at(8)"
    )
    result = in_subprocess(script)
    assert result.stdout == "so far\n" and result.returncode == -11


def test_too_many_variables_of_a_group_are_an_error_and_the_device_goes_on(several_threads):
    """In the group loops of some threadgroups, whichever CPU thread runs them."""
    library = build("""
        kernel void k(device int* out, constant int& bad, uint i [[thread_position_in_grid]],
                      uint group [[threadgroup_position_in_grid]]) {
          if (int(group) == bad) {
            int kept[70000] = {int(i)};
            simd_sum(1);
            out[i] = kept[i % 7] + kept[0];
          } else {
            out[i] = simd_sum(1);
          }
        }""")
    out = torch.zeros(20 * 1024, dtype=torch.int32)
    for bad in (0, 7, 19):
        with pytest.raises(
            RuntimeError, match="'k'.*variables of a threadgroup's threads need too"
        ):
            library.launch("k", [out, torch.tensor([bad], dtype=torch.int32)], len(out), 1024)
        library.launch("k", [out.zero_(), torch.tensor([-1], dtype=torch.int32)], len(out), 1024)
        several_threads()
        assert (out == 32).all()


def test_after_an_error_the_remaining_groups_do_not_start(several_threads):
    n = 3_000
    out = torch.zeros(n * 32, dtype=torch.int32)
    library = build(SOURCE)
    endless = torch.tensor([-1], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="KiB of stack"):
        library.launch("recursive", [out, endless], n * 32, 32)
    x, sums = torch.ones(128), torch.zeros(1)
    library.launch("group_sums", [x, sums], 128, 128)
    assert sums.item() == 128


# ---- libraries ------------------------------------------------------------------------------------------------


def test_files_that_are_no_kernel_library(tmp_path):
    text = tmp_path / "text.so"
    text.write_text("not a shared object")
    with pytest.raises(RuntimeError, match="cannot load the kernel library .*text.so"):
        _host.Library(str(text))
    with pytest.raises(RuntimeError, match="cannot load the kernel library .*missing.so"):
        _host.Library(str(tmp_path / "missing.so"))
    with pytest.raises(RuntimeError, match="_host.*is not a kernel library of metalops"):
        _host.Library(_host.__file__)
    with pytest.raises(RuntimeError, match="cannot load the kernel library in memory"):
        _host.Library.from_bytes(b"not a shared object")


def test_another_version_of_the_interface(tmp_path):
    with pytest.raises(RuntimeError, match="was built for version 999 of the kernel interface"):
        _host.Library(by_hand(tmp_path, version=999))


def test_a_cpu_that_lacks_instructions(tmp_path):
    with pytest.raises(
        RuntimeError, match="was compiled for a CPU with AVX512_FP16, which this CPU lacks"
    ):
        if "AVX512_FP16" in _host.cpu_features():
            pytest.skip("this CPU lacks nothing")
        _host.Library(by_hand(tmp_path, features=1024))


def test_names_and_table():
    library = build(SOURCE)
    assert library.names()[:2] == ["add_one", "mark"]
    entry = next(e for e in library.kernel_table() if e["name"] == "recursive")
    assert [(a["name"], a["attribute"], a["index"], a["writable"]) for a in entry["arguments"]] == [
        ("out", "buffer", 0, True),
        ("n", "buffer", 1, False),
        ("i", "thread_position_in_grid", -1, False),
    ]
    assert "loop" not in entry["engines"]


# ---- Ctrl-C, leaks --------------------------------------------------------------------------------------------

INTERRUPTED = """
import signal, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs without
x = torch.zeros(10_000_000)
def press():
    time.sleep(0.3)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
threading.Thread(target=press).start()
start = time.time()
try:
    library.launch(KERNEL, [x], 10_000_000, 64, engine=ENGINE, threads=THREADS)
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted", time.time() - start < 5)
library.launch("add_one", [x], 1000, 256)
print(x[999].item() != 0, x[-1].item() == 0)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("engine", KERNEL_OF)
def test_ctrl_c_between_threadgroups(engine, threads):
    kernel = {"loop": "slow", "group": "very_slow_together", "fiber": "slow_together"}[engine]
    script = INTERRUPTED.replace("KERNEL", repr(kernel))
    script = script.replace("ENGINE", repr(engine)).replace("THREADS", str(threads))
    result = in_subprocess(launching(textwrap.dedent(script)))
    assert result.stdout == "interrupted True\nTrue True\n", result.stderr


@pytest.mark.reported("the sanitizer's own memory grows", modes=("thread",))
def test_many_launches_leak_nothing():
    library = build(SOURCE)
    x, sums = torch.zeros(8), torch.zeros(1)
    y = torch.ones(128)

    def many(n):
        for _ in range(n):
            library.launch("add_one", [x], 8, 8)
            library.launch("group_sums", [y, sums], 128, 128)

    many(1000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    many(100_000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2048  # KiB
    assert x[0].item() == 101_000
