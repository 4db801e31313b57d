"""Products of matrices by matmul2d (matmul2d.metal) on an NVIDIA GPU, against torch.mm on the same tensors.

    python benchmarks/matmul2d.py [SIZE ...] [--kernels PART]    # by default 2048, 4096 and 8192, all kernels

This needs a GPU and nothing of metalops that is compiled. A line of a table for each kernel: TFLOPS, those of torch.mm, their
ratio, and the error of 64 rows against float64. Times are medians of CUDA graphs, run in turns with torch's.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from metalops import cuda

DTYPES = {"half": torch.float16, "bfloat": torch.bfloat16}
_TURNS, _MILLISECONDS = 15, 4.0


def graph_of(call: Callable[[], object], calls: int) -> torch.cuda.CUDAGraph:
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return graph


def times(calls: list[Callable[[], object]], estimate: float) -> list[float]:
    """Milliseconds of each call: medians over turns in which all run. estimate: of one, in milliseconds."""
    count = max(1, int(_MILLISECONDS / estimate))
    graphs = [graph_of(call, count) for call in calls]
    found = [[] for _ in graphs]
    for turn in range(_TURNS + 1):
        for graph, mine in zip(graphs, found, strict=True):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            if turn:
                mine.append(start.elapsed_time(end) / count)
    return [statistics.median(mine) for mine in found]


def measure(shader: cuda.Shader, name: str, size: int) -> None:
    *kind, dtype, tile, simdgroups = name.split("_")
    rows, columns = map(int, tile.split("x"))
    group = 32 * int(simdgroups)
    a, b = (torch.randn(size, size, device="cuda", dtype=DTYPES[dtype]) for _ in "ab")
    c, expected = torch.full_like(a, torch.nan), torch.empty_like(a)
    kernel = getattr(shader, name)
    threads = size // columns * group, size // rows
    right = b.t() if "nt" in kind else b

    def ours() -> None:
        kernel(a, b, c, [size] * 4, threads=threads, group_size=(group, 1), arg_casts="int32")

    def theirs() -> None:
        torch.mm(a, right, out=expected)

    floats = 2e-9 * size**3
    time, their_time = times([ours, theirs], floats / 600)
    exact = a[:64].double() @ right.double()
    error, their_error = ((x[:64] - exact).norm() / exact.norm() for x in (c, expected))
    print(
        f"| {name} | {size}^3 | {floats / time:.0f} | {floats / their_time:.0f} | {their_time / time:.2f} | "
        f"{error:.2e} ({their_error:.2e}) |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sizes", nargs="*", type=int, default=[2048, 4096, 8192])
    parser.add_argument("--kernels", default="")
    options = parser.parse_args()
    shader = cuda.compile_shader(Path(__file__).with_suffix(".metal").read_text())
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print(
        "| kernel | size | TFLOPS | torch.mm | ratio | error (torch's) |\n|---|---|---:|---:|---:|---|"
    )
    for size in options.sizes:
        for name in dir(shader):
            if options.kernels in name:
                measure(shader, name, size)


if __name__ == "__main__":
    main()
