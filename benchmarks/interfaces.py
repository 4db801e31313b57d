"""Times one call of each way to author kernels from Python, on 8 numbers, against an operator built ahead of time.

    python benchmarks/interfaces.py --json results.json

Ratios (the interface's time / torch.ops.metalops.gelu_new's on the same tensor, in the same run) are what counts: they
hold on any machine. All compute the same function.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import metalops
import torch

SIZE = 8
# tanh's approximation of gelu, as in torch.ops.metalops.gelu_new.
GELU = "0.5f * x[i] * (1 + precise::tanh(0.7978845608f * (x[i] + 0.044715f * x[i] * x[i] * x[i])))"


def ahead_of_time(x: torch.Tensor) -> Callable:
    return lambda: torch.ops.metalops.gelu_new(x)


def compile_shader(x: torch.Tensor) -> Callable:
    """With the output allocated by the caller: a compiled kernel alone."""
    library = torch.mps.compile_shader(
        "#include <metal_stdlib>\nusing namespace metal;\n"
        "kernel void gelu(device float* y, device float* x, uint i [[thread_position_in_grid]]) {\n"
        f"  y[i] = {GELU};\n}}"
    )
    y = torch.empty_like(x)
    return lambda: library.gelu(y, x)


def metal_kernel(x: torch.Tensor) -> Callable:
    kernel = metalops.metal_kernel(
        "benchmark_gelu", ["x"], ["y"], f"uint i = thread_position_in_grid.x; y[i] = {GELU};"
    )
    return lambda: kernel(
        inputs=[x],
        output_shapes=[x.shape],
        output_dtypes=[x.dtype],
        grid=(SIZE, 1, 1),
        threadgroup=(SIZE, 1, 1),
    )


def torch_metal_kernel(x: torch.Tensor) -> Callable:
    def reference(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x, approximate="tanh")

    kernel = metalops.TorchMetalKernel(
        "benchmark_gelu",
        ["x"],
        ["y"],
        f"y[i] = {GELU};",
        reference,
        [metalops.MetalParameter("i", "uint", "thread_position_in_grid")],
    )
    return lambda: kernel(
        x,
        threads_per_grid=(SIZE, 1, 1),
        threads_per_thread_group=(SIZE, 1, 1),
        result_shapes=[[SIZE]],
    )


def python_function(x: torch.Tensor) -> Callable:
    """The operator built ahead of time by its Python function: what functor is to be compared with."""
    return lambda: metalops.ops.gelu_new(x)


def functor(x: torch.Tensor) -> Callable:
    return _functor_and_operator(x)[0]


def functor_operator(x: torch.Tensor) -> Callable:
    """The functor's operator in torch.ops."""
    return _functor_and_operator(x)[1]


def _functor_and_operator(x: torch.Tensor) -> tuple[Callable, Callable]:
    gelu = metalops.functor("benchmark_gelu", GELU.replace("[i]", ""), grad="grad")
    operator = torch.ops.metalops_functors.benchmark_gelu
    return lambda: gelu(x), lambda: operator(x)


INTERFACES = [
    ahead_of_time,
    python_function,
    compile_shader,
    metal_kernel,
    torch_metal_kernel,
    functor,
    functor_operator,
]


def microseconds(call: Callable, rounds: int = 40, calls: int = 500) -> float:
    """The time of one call in the fastest of several rounds."""
    call()
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, time.perf_counter() - start)
    torch.mps.synchronize()
    return best / calls * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", help="where to write the results")
    arguments = parser.parse_args()
    x = torch.randn(SIZE, device="mps")
    times = {interface.__name__: microseconds(interface(x)) for interface in INTERFACES}
    results = [
        {"interface": name, "us": us, "ratio": us / times["ahead_of_time"]}
        for name, us in times.items()
    ]
    for result in results:
        print("{interface:20} {us:7.2f} us {ratio:6.2f}x".format(**result))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
