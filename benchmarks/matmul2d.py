"""Products of matrices by matmul2d (matmul2d.metal) on an NVIDIA GPU, against torch.mm on the same tensors.

    python benchmarks/matmul2d.py [SIZE ...]            # by default 4096

This needs a GPU and nothing of metalops that is compiled. For each kernel: TFLOPS, those of torch.mm in the same run, their
ratio, and the largest difference to float32's result over the largest element.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from metalops import cuda

DTYPES = {"half": torch.float16, "bfloat": torch.bfloat16}
_TURNS, _CALLS = 7, 20


def milliseconds(call: Callable[[], object]) -> float:
    """Of one call: the median of some turns, after a first one."""
    times = []
    for _ in range(_TURNS + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(_CALLS):
            call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / _CALLS)
    return statistics.median(times[1:])


def measure(shader: cuda.Shader, name: str, size: int) -> None:
    *_, dtype, tile, simdgroups = name.split("_")
    rows, columns = map(int, tile.split("x"))
    group = 32 * int(simdgroups)
    a, b = (torch.randn(size, size, device="cuda", dtype=DTYPES[dtype]) for _ in "ab")
    c, expected = torch.full_like(a, torch.nan), torch.empty_like(a)
    kernel = getattr(shader, name)
    threads = size // columns * group, size // rows

    def ours() -> None:
        kernel(a, b, c, [size] * 4, threads=threads, group_size=(group, 1), arg_casts="int32")

    time, theirs = milliseconds(ours), milliseconds(lambda: torch.mm(a, b, out=expected))
    exact = a.float() @ b.float()
    error = ((c.float() - exact).abs().max() / exact.abs().max()).item()
    rate, their_rate = (2e-9 * size**3 / t for t in (time, theirs))
    print(
        f"{name:34} {size}^3  {rate:6.0f} TFLOPS  torch {their_rate:6.0f}  {rate / their_rate:6.1%}  error {error:.1e}",
        flush=True,
    )


def main() -> None:
    path = Path(__file__).with_suffix(".metal")
    shader = cuda.compile_shader(path.read_text())
    for size in map(int, sys.argv[1:] or ["4096"]):
        for name in dir(shader):
            measure(shader, name, size)


if __name__ == "__main__":
    main()
