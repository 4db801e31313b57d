"""Products of matrices by matmul2d (matmul2d.metal) on an NVIDIA GPU, against torch's on the same tensors: torch.mm, with
TF32 where the precision is relaxed, torch._int_mm of bytes, or torch._scaled_mm of e4m3, which always has the right matrix
transposed in memory and adds as fast as it can where the precision is relaxed.

    python benchmarks/matmul2d.py [SIZE ...] [--kernels PART]    # by default 2048, 4096 and 8192, all kernels

This needs a GPU and nothing of metalops that is compiled. A line of a table for each kernel: TFLOPS, torch's, their ratio,
and the error of 64 rows against float64. Times are medians of CUDA graphs, run in turns with torch's.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from metalops import cuda
from metalops.cuda.library import Library
from metalops.msl.source import languages

DTYPES = {
    "half": torch.float16,
    "bfloat": torch.bfloat16,
    "float": torch.float32,
    "char": torch.int8,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}
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


def random(size: int, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.int8:
        return torch.randint(-128, 128, (size, size), device="cuda", dtype=dtype)
    return torch.randn(size, size, device="cuda").to(dtype)


def products_of_torch(
    a: torch.Tensor, right: torch.Tensor, is_relaxed: bool
) -> Callable[[], torch.Tensor] | None:
    """Returns torch's product of the matrices; None if it has none."""
    if a.dtype == torch.int8:
        return lambda: torch._int_mm(a, right)
    if a.dtype == torch.float8_e5m2:
        return None
    if a.dtype == torch.float8_e4m3fn:
        one = torch.ones((), device="cuda")
        turned = right.t().contiguous().t()
        options = {"out_dtype": torch.float16, "use_fast_accum": is_relaxed}
        return lambda: torch._scaled_mm(a, turned, one, one, **options)
    torch.backends.cuda.matmul.allow_tf32 = is_relaxed
    out = torch.empty_like(a)
    return lambda: torch.mm(a, right, out=out)


def measure(library: Library, name: str, size: int) -> None:
    *kind, dtype, tile, simdgroups = name.split("_")
    rows, columns = map(int, tile.split("x"))
    group = 32 * int(simdgroups)
    a, b = (random(size, DTYPES[dtype]) for _ in "ab")
    right = b.t() if "nt" in kind else b
    result = {"char": torch.int32, "e4m3": torch.float16, "e5m2": torch.float16}
    c = torch.zeros(size, size, device="cuda", dtype=result.get(dtype, a.dtype))
    c.view(torch.int8).fill_(-1)
    kernel = getattr(cuda.Shader(library, {}), name)
    threads = -(-size // columns) * group, -(-size // rows)
    codes = [x.view(torch.uint8) if dtype.startswith("e") else x for x in (a, b)]

    def ours() -> None:
        kernel(*codes, c, [size] * 4, threads=threads, group_size=(group, 1), arg_casts="int32")

    theirs = products_of_torch(a, right, "relaxed" in kind)
    floats = 2e-9 * size**3
    time, *their_times = times([ours, *([theirs] if theirs else [])], floats / 600)
    exact = a[:64].double() @ right.double()
    results = [c, *([theirs()] if theirs else [])]
    errors = [f"{((x[:64] - exact).norm() / exact.norm()).item():.2e}" for x in results]
    rates = [f"{floats / t:.0f}" for t in (time, *their_times)]
    if not theirs:
        rates, errors = [*rates, ""], [*errors, ""]
    ratio = f"{their_times[0] / time:.2f}" if theirs else ""
    print(
        f"| {name} | {size}^3 | {rates[0]} | {rates[1]} | {ratio} | {errors[0]} ({errors[1]}) |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sizes", nargs="*", type=int, default=[2048, 4096, 8192])
    parser.add_argument("--kernels", default="", help="regular expression")
    options = parser.parse_args()
    text = Path(__file__).with_suffix(".metal").read_text()
    language = languages.number_of("4.1")
    names = [
        n for n in Library(text, language=language).kernel_names if re.search(options.kernels, n)
    ]
    # One by one, so that none waits for those that are not measured.
    libraries = {name: Library(text, kernels=[name], language=language) for name in names}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print(
        "| kernel | size | TFLOPS | torch | ratio | error (torch's) |\n|---|---|---:|---:|---:|---|"
    )
    for size in options.sizes:
        for name, library in libraries.items():
            measure(library, name, size)


if __name__ == "__main__":
    main()
