"""How much faster kernels are on several CPU threads, for each engine that takes them.

    python benchmarks/scaling.py --threads 2

A line for each kernel and engine: milliseconds on one thread and on several, and how many times faster that is (at least
1.7 on two threads, where nobody else uses the machine); the CPU time of all threads in units of the one thread's, which
is 1 where sharing costs nothing, also on a machine that is busy; and the same quotient for torch's own operator, which
says what the machine can do.
"""

from __future__ import annotations

import argparse
import math
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from metalops import _host, msl

SOURCE = """
#include <metal_stdlib>
using namespace metal;

kernel void sigmoid(device const float* in, device float* out, uint i [[thread_position_in_grid]]) {
  out[i] = 1.0f / (1.0f + exp(-in[i]));
}

kernel void logistic_map(device const float* in, device float* out,
                         uint i [[thread_position_in_grid]]) {
  float x = in[i];
  for (int step = 0; step < 200; ++step) x = 3.7f * x * (1.0f - x);
  out[i] = x;
}

kernel void row_softmax(device const float* in, device float* out, constant uint& n,
                        uint row [[threadgroup_position_in_grid]],
                        uint t [[thread_position_in_threadgroup]],
                        uint threads [[threads_per_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]],
                        uint simdgroup [[simdgroup_index_in_threadgroup]],
                        uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float shared[32];
  device const float* x = in + row * n;
  float largest = -INFINITY;
  for (uint i = t; i < n; i += threads) largest = max(largest, x[i]);
  largest = simd_max(largest);
  if (lane == 0) shared[simdgroup] = largest;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  largest = simd_max(lane < simdgroups ? shared[lane] : -INFINITY);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sum = 0;
  for (uint i = t; i < n; i += threads) sum += exp(x[i] - largest);
  sum = simd_sum(sum);
  if (lane == 0) shared[simdgroup] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  sum = simd_sum(lane < simdgroups ? shared[lane] : 0.0f);
  for (uint i = t; i < n; i += threads) out[row * n + i] = exp(x[i] - largest) / sum;
}
"""

GROUP = 256
COLUMNS = 1024


@dataclass(frozen=True)
class Case:
    """elements: of the input and of the output. theirs: of the input and the output, with the same work to do."""

    kernel: str
    elements: int
    rows: int | None
    theirs: Callable[[torch.Tensor, torch.Tensor], object]


CASES = [
    Case("sigmoid", 1 << 24, None, lambda x, out: torch.sigmoid(x, out=out)),
    Case("logistic_map", 1 << 18, None, lambda x, out: torch.special.i0e(x, out=out)),
    Case("row_softmax", 1 << 20, 1024, lambda x, out: torch.softmax(x, -1, out=out)),
]


@dataclass
class Best:
    wall: float = math.inf
    cpu: float = math.inf

    def measure(self, function: Callable[[], object], threads: int) -> None:
        torch.set_num_threads(threads)
        wall, cpu = time.perf_counter(), time.process_time()
        function()
        self.cpu = min(self.cpu, time.process_time() - cpu)
        self.wall = min(self.wall, time.perf_counter() - wall)


def compare(function: Callable[[], object], threads: int, rounds: int) -> tuple[Best, Best]:
    """On one thread and on several, by turns."""
    one, several = Best(), Best()
    one.measure(function, 1)
    for _ in range(rounds):
        one.measure(function, 1)
        several.measure(function, threads)
    return one, several


def takes(launch: Callable[[str], object], engine: str) -> bool:
    try:
        launch(engine)
    except ValueError:  # there is no such engine, or the kernel is not for it
        return False
    return True


def measure(case: Case, library: _host.Library, options: argparse.Namespace) -> None:
    """Prints the case's lines."""
    x = torch.rand(case.elements).view(-1, COLUMNS)
    out = torch.empty_like(x)
    grid = case.elements if case.rows is None else case.rows * GROUP
    buffers = [x, out, struct.pack("I", COLUMNS)]

    def launch(engine: str) -> None:
        library.launch(case.kernel, buffers, grid, GROUP, engine=engine)

    torchs = compare(lambda: case.theirs(x, out), options.threads, options.rounds)
    for engine in options.engines:
        if not takes(launch, engine):
            continue
        one, several = compare(lambda e=engine: launch(e), options.threads, options.rounds)
        used = _host.threads_of_last_launch()
        if used != options.threads:
            print(f"{case.kernel} on {engine}: {used} threads ran")
        numbers = [
            f"{one.wall * 1e3:9.2f} {several.wall * 1e3:9.2f}",
            *(f"{a.wall / b.wall:7.2f} {b.cpu / a.cpu:9.2f}" for a, b in ((one, several), torchs)),
        ]
        print(f"{case.kernel:14} {engine:6}", *numbers, flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--engines", nargs="+", default=["loop", "group", "fiber"])
    parser.add_argument("--only", default="", help="kernels whose name contains this")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args(arguments)
    library = _host.Library(msl.compile_source(SOURCE))
    print(
        f"{'kernel':14} {'engine':6} {'one, ms':>9} {'several':>9} {'faster':>7} {'CPU time':>9}"
        f" {'torch':>7} {'CPU time':>9}"
    )
    for case in CASES:
        if options.only in case.kernel:
            measure(case, library, options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
