"""Times products with 4-bit weights and elementwise functions of narrow types on mps against torch's CPU operators.

    python benchmarks/narrow_types.py

A line for each case, with the CPU time of both in milliseconds on one thread, the least of several calls, and torch's time /
ours. torch multiplies the weights of the products as dense matrices of the same dtype. The kernels are compiled when the
benchmark runs, with the compiler that $CXX names, but for those of float32 weights, which are as they were built.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from metalops import ops
from torch import Tensor

DTYPES = {"bfloat": torch.bfloat16, "half": torch.float16, "float": torch.float32}
FUNCTIONS = {"exp": torch.exp, "sigmoid": torch.sigmoid, "sin": torch.sin}
EXPRESSIONS = {"exp": "exp(x)", "sigmoid": "1.0f / (1.0f + exp(-x))", "sin": "sin(x)"}
FEATURES = 4096
ELEMENTS = 2**20


def compare(name: str, theirs: Callable[[], object], ours: Callable[[], object]) -> None:
    best = [float("inf")] * 2
    for repeat in range(10):
        for i, call in enumerate((theirs, ours)):
            begin = time.thread_time()
            call()
            torch.mps.synchronize()
            if repeat >= 2:
                best[i] = min(best[i], time.thread_time() - begin)
    print(
        f"{name:36} {best[0] * 1e3:9.2f} {best[1] * 1e3:9.2f} {best[0] / best[1]:7.2f}", flush=True
    )


def products(name: str, dtype: torch.dtype) -> None:
    weight = torch.randn(FEATURES, FEATURES).to(dtype)
    packed = ops.quantize(weight.to("mps"))
    for rows in (1, 8, 64, 256):
        x = torch.randn(rows, FEATURES).to(dtype)
        there = x.to("mps")
        compare(
            f"4-bit weights, {name}, {rows} rows",
            lambda x=x: F.linear(x, weight),
            lambda there=there: ops.quantized_linear(there, *packed),
        )


def functions(name: str, dtype: torch.dtype) -> None:
    kernels = "".join(
        f"kernel void {function}(device {name}* out, device const {name}* in, uint i [[thread_position_in_grid]]) {{"
        f" const float x = float(in[i]); out[i] = {name}({expression}); }}\n"
        for function, expression in EXPRESSIONS.items()
    )
    library = torch.mps.compile_shader(
        f"#include <metal_stdlib>\nusing namespace metal;\n{kernels}"
    )
    x = torch.randn(ELEMENTS).to(dtype)
    there = x.to("mps")
    out: Tensor = torch.empty_like(x)
    out_there = torch.empty_like(there)
    for function, call in FUNCTIONS.items():
        kernel = getattr(library, function)
        compare(
            f"{function}, {name}",
            lambda call=call: call(x, out=out),
            lambda kernel=kernel: kernel(out_there, there),
        )


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{'':36} {'torch ms':>9} {'ours ms':>9} {'speed':>7}")
    for name, dtype in DTYPES.items():
        products(name, dtype)
        functions(name, dtype)


if __name__ == "__main__":
    main()
