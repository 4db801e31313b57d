"""Times linear layers with quantised weights on an NVIDIA GPU by our kernels, beside torch's with the weights in half precision.

    python benchmarks/gpu_quantized.py [--json FILE]   # needs no compiled part of metalops

A line for each case: milliseconds of ours and of torch, how many times torch's speed ours has, and at which share of the rate
of a copy in the same run the packed weights were read. Times are of the kernels alone, in CUDA graphs on both sides, the least
of several; the weights of a graph's calls are others than those of the call before, so that no cache has them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial

import metalops  # noqa: F401 declares the operators
import torch
from metalops import ops
from metalops.ops._formats.gguf import TYPES
from metalops.trace.replay import CudaDevice, copy_rate
from torch import Tensor
from torch.nn import functional

Call = Callable[[], object]


def milliseconds(calls: list[Call], repeat: int = 10) -> float:
    """The least of several times of one call, of several in one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        calls[0]()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeat):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / len(calls))
    return min(times)


_SETS = 8  # of weights, more than the caches hold


def weights_of(size: int, mode: str, bits: int) -> list[tuple]:
    made = []
    for _ in range(_SETS):
        weight = torch.randn(size, size, device="cuda", dtype=torch.half) / size**0.5
        made.append(ops.quantize(weight, mode=mode, bits=bits))
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="where to write the figures")
    parser.add_argument("--size", type=int, default=8192)
    arguments = parser.parse_args()
    size, results = arguments.size, []
    rate = copy_rate(CudaDevice()) / 1e3  # bytes in a millisecond
    print(f"{torch.cuda.get_device_name()}: a copy moves {rate / 1e9:.2f} TB/s")
    print(f"{'milliseconds':40} {'ours':>9} {'torch':>9} {'times':>6}  of the copy's rate")
    dense = [
        torch.randn(size, size, device="cuda", dtype=torch.half) / size**0.5 for _ in range(_SETS)
    ]
    theirs = {}

    def of_torch(x: Tensor) -> float:
        rows = x.shape[0]
        if rows not in theirs:
            theirs[rows] = milliseconds([partial(functional.linear, x, w) for w in dense])
        return theirs[rows]

    def report(name: str, x: Tensor, calls: list[Call], nbytes: int) -> None:
        mine, other = milliseconds(calls), of_torch(x)
        name = f"{name}, {x.shape[0]} x {size} x {size} f16"
        share = nbytes / mine / rate
        results.append({"name": name, "ours": mine, "torch": other, "share": share})
        print(f"{name:40} {mine:9.4f} {other:9.4f} {other / mine:6.2f}  {share:.0%}", flush=True)

    for mode, bits in (("affine", 4), ("affine", 8), ("affine", 2), ("affine", 3), ("mxfp4", 4), ("nvfp4", 4), ("mxfp8", 8), ("nf4", 4), ("fp4", 4)):  # fmt: skip
        sets = weights_of(size, mode, bits)
        more = (128, 256, 512) if bits in (2, 4, 8) else ()
        if (mode, bits) == ("affine", 4):
            more = (2, 17, 32, 64, *more, 1024)
        for rows in (1, 8, 16, *more):
            x = torch.randn(rows, size, device="cuda", dtype=torch.half)
            calls = [partial(ops.quantized_linear, x, *w, mode=mode, bits=bits) for w in sets]
            report(f"{mode} {bits} bits", x, calls, sets[0][0].nbytes)
    for name in ("Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ4_NL"):
        line = size // TYPES[name].size * TYPES[name].bytes
        blocks = [
            torch.randint(256, (size, line), dtype=torch.uint8, device="cuda") for _ in range(_SETS)
        ]
        for rows in (1, 8, 16):
            x = torch.randn(rows, size, device="cuda", dtype=torch.half)
            calls = [partial(ops.gguf_linear, x, data, name) for data in blocks]
            report(name, x, calls, blocks[0].nbytes)
    if arguments.json:
        with open(arguments.json, "w") as stream:
            json.dump({"device": torch.cuda.get_device_name(), "copy": rate, "cases": results}, stream, indent=1)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
