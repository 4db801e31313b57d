"""Launches small kernels under the sanitizer of METALOPS_SANITIZE and prints one JSON object of what
came out, for test_engine.py: name of the function -> its result.
"""

from __future__ import annotations

import json
import struct
import tempfile
import threading

import metalops
import torch
from metalops import _host, msl
from metalops.debug import SanitizerError, capture, sanitize

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"


def library(source: str):
    return torch.mps.compile_shader(HEADER + source)


ORDER = """
kernel void order(device int* places, device atomic_int* next, uint i [[thread_position_in_grid]]) {
  places[i] = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
}
"""
MISSING_BARRIER = """
kernel void reverse(device float* out, device const float* in, uint2 i [[thread_position_in_grid]],
                    uint2 t [[thread_position_in_threadgroup]]) {
  threadgroup float shared[8][8];
  shared[t.y][t.x] = in[i.y * 16 + i.x];
#ifdef CORRECTED
  threadgroup_barrier(mem_flags::mem_threadgroup);
#endif
  out[i.y * 16 + i.x] = shared[7 - t.y][7 - t.x];
}
"""


def places(seed: int, launches: int = 1) -> list[list[int]]:
    """The place of each of 96 threads, in groups of 32, in the order in which they ran."""
    kernel = library(ORDER).order
    found = []
    with sanitize(seed=seed):
        for _ in range(launches):
            out = torch.zeros(96, dtype=torch.int32, device="mps")
            kernel(out, torch.zeros(1, dtype=torch.int32, device="mps"), threads=96, group_size=32)
            found.append(out.tolist())
    return found


def order_of_threads():
    return {"1": places(1, 2), "1 again": places(1, 2), "2": places(2), "0": places(0)}


def reversed_tiles(corrected: bool) -> list[str]:
    """The findings; wrong results raise."""
    source = ("#define CORRECTED\n" if corrected else "") + MISSING_BARRIER
    x = torch.arange(256.0, device="mps").reshape(16, 16)
    out = torch.zeros_like(x)
    try:
        library(source).reverse(out, x, threads=[16, 16], group_size=[8, 8])
    except SanitizerError as error:
        return [f"{f.kind}: {f.message}" for f in error.findings]
    tiles = x.cpu().reshape(2, 8, 2, 8).flip(1, 3).reshape(16, 16)
    assert torch.equal(out.cpu(), tiles)
    return []


def device_after_a_finding():
    """Each launch of a wrong kernel is reported, and right ones work in between."""
    return [len(reversed_tiles(corrected)) for corrected in (False, True, False, False, True)]


def report():
    return reversed_tiles(corrected=False)


def captured():
    """The kernels of the launches in a trace, and which of these are reported."""
    with tempfile.TemporaryDirectory() as folder, capture(f"{folder}/trace") as trace:
        reported = [len(reversed_tiles(corrected)) for corrected in (True, False)]
    return {"kernels": [launch.kernel for launch in trace.launches], "reported": reported}


def several_python_threads():
    results = {}

    def run(number: int) -> None:
        results[number] = [len(reversed_tiles(number % 2 == 1)) for _ in range(3)]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def one_thread():
    out = torch.zeros(1, device="mps")
    library("kernel void one(device float* x) { *x = 42; }").one(out, threads=1)
    return out.item()


def argument_buffer():
    """A race through an address that lies in a buffer."""
    source = """
struct Arguments { device float* out; };
kernel void write(constant Arguments& a [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  a.out[i / 2] = i;
}
"""
    compiled = _host.Library(msl.compile_source(HEADER + source))
    out = torch.zeros(8, device="mps")
    try:
        compiled.launch("write", [struct.pack("P", out.data_ptr())], 16, 8)
    except SanitizerError as error:
        return [f"{f.kind}: {f.message}" for f in error.findings]
    return []


def half_atomics(outside: bool = False):
    """Atomic sums of 16 bits, which act on words; the last word ends behind an odd tensor."""
    source = """
#include <c10/metal/atomic.h>
kernel void add(device atomic_uint* out, constant long& place, uint i [[thread_position_in_grid]]) {
  c10::metal::AtomicType<half>::atomic_add(out, place, half(1));
}
"""
    out = torch.zeros(5, dtype=torch.half, device="mps")
    try:
        library(source).add(out, 6 if outside else 4, threads=32)
    except SanitizerError as error:
        return [f"{f.kind}: {f.message}" for f in error.findings]
    return out.tolist()


def half_atomics_outside():
    return half_atomics(outside=True)


def after_a_thousand_threads():
    """More GPU threads than ThreadSanitizer tells apart at a time, between two launches."""
    source = """
kernel void twice(device float* out, uint i [[thread_position_in_grid]]) {
  out[i] = 1;
  threadgroup_barrier(mem_flags::mem_device);
  out[i] = 2;
}
"""
    twice = library(source).twice

    def run(threads: int) -> None:
        twice(torch.zeros(threads, device="mps"), threads=threads, group_size=threads)

    run(64)
    other = threading.Thread(target=run, args=(1024,))
    other.start()
    other.join()
    return argument_buffer()


def large_launch():
    """Ten thousand threadgroups, each with its own row of the result."""
    source = """
kernel void rows(device float* out, uint t [[thread_index_in_threadgroup]],
                 uint group [[threadgroup_position_in_grid]]) {
  threadgroup float shared[4];
  shared[t] = t;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[group * 4 + t] = shared[3 - t];
}
"""
    out = torch.zeros(10_000, 4, device="mps")
    library(source).rows(out, threads=40_000, group_size=4)
    return bool((out.cpu() == torch.tensor([3.0, 2.0, 1.0, 0.0])).all())


WAITING = """
kernel void wait_for_first(device atomic_int* flag, uint i [[thread_position_in_grid]]) {
  if (i == 0) {
    atomic_store_explicit(flag, 1, memory_order_relaxed);
  } else {
    while (atomic_load_explicit(flag, memory_order_relaxed) == 0) {}
  }
}
"""


def waiting(group: int, seed: int) -> str:
    flag = torch.zeros(1, dtype=torch.int32, device="mps")
    try:
        with sanitize(seed=seed):
            library(WAITING).wait_for_first(flag, threads=16, group_size=group)
    except RuntimeError as error:
        return str(error).split("\n")[0]
    return "done"


def waiting_within_a_threadgroup():
    return waiting(group=16, seed=1)


def waiting_for_another_threadgroup():
    return {"shuffled": waiting(group=1, seed=1), "in order": waiting(group=1, seed=0)}


def stack_overflow():
    source = """
kernel void large(device float* x, uint i [[thread_position_in_grid]]) {
  volatile float a[80000];
  for (int k = 79999; k >= 0; --k) a[k] = k;
  x[i] = a[int(x[i])];
}
"""
    x = torch.zeros(4, device="mps")
    try:
        library(source).large(x, threads=4)
    except RuntimeError as error:
        return [str(error).split("\n")[0], len(reversed_tiles(corrected=True))]
    return []


CHECKS = [
    order_of_threads,
    report,
    device_after_a_finding,
    captured,
    several_python_threads,
    one_thread,
    argument_buffer,
    after_a_thousand_threads,
    half_atomics,
    half_atomics_outside,
    large_launch,
    waiting_within_a_threadgroup,
    waiting_for_another_threadgroup,
    stack_overflow,
]


def main() -> None:
    assert metalops._is_software
    for check in CHECKS:
        print(json.dumps({check.__name__: check()}), flush=True)


if __name__ == "__main__":
    main()
