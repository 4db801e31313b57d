"""Times every operator of metalops on the mps device against torch's CPU operators on the same numbers.

    python benchmarks/run.py --json results.json --plot results.png

What is timed of an operator stands in its family's test file, tests/ops/S/test_X.py. Ratios (torch's time / ours) are
what counts: they hold on any machine. Both sides write to a given output (`out=`) and use the same number of threads. Where torch has no single operator, the composition of torch operators that a user
would write stands for it and is marked `composed`; where torch's CPU operator refuses a dtype, there is no ratio.
`raw` operators are the plainest kernels there are; they show what the device costs.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from metalops import build

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(FOLDER))
from tests.ops.benchmark import Benchmark  # noqa: E402
from tests.ops.families import gather  # noqa: E402

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
SIZES = [8, 64, 1024, 16384, 262144, 2**22, 2**24]
LAYOUTS = ["contiguous", "strided"]


@dataclass
class Result:
    """Times in microseconds; `ratio` is torch_us / device_us. torch's columns are None where torch refuses."""

    operator: str
    dtype: str
    layout: str
    size: int
    composed: bool
    device_us: float
    torch_us: float | None
    ratio: float | None


LARGE = 2**22  # what smaller tensors take is mostly launching a kernel


def reasons(results: list[Result], benchmarks: list[Benchmark]) -> list[str]:
    """A line for each operator that is slow."""
    slow = {
        r.operator for r in results if r.size >= LARGE and r.ratio is not None and r.ratio < 0.5
    }
    return [
        f"{benchmark.name} is below 0.5: {benchmark.reason or 'it is not known why'}."
        for benchmark in benchmarks
        if benchmark.name in slow
    ]


def raw_operators() -> list[Benchmark]:
    sources = [os.path.join(FOLDER, "raw", name) for name in ("raw.metal", "raw.mm")]
    build.load("metalops_raw", sources)
    operators = []
    for name in ("exp", "sigmoid", "sin", "tanh"):
        ours, theirs = getattr(torch.ops.metalops_raw, name), getattr(torch, name)
        operators.append(
            Benchmark(
                f"raw {name}",
                lambda x, out, f=ours: f(x, out=out),
                lambda x, out, f=theirs: f(x, out=out),
            )
        )
    operators.append(
        Benchmark(
            "raw add",
            lambda a, b, out: torch.ops.metalops_raw.add(a, b, out=out),
            lambda a, b, out: torch.add(a, b, out=out),
            inputs=2,
        )
    )
    return operators


def make_inputs(
    operator: Benchmark, dtype: torch.dtype, layout: str, size: int
) -> list[torch.Tensor]:
    """Inputs of `size` elements each on the CPU; strided ones take every second element of a row."""
    columns = min(size, 4096)
    shape = (size // columns, columns if layout == "contiguous" else 2 * columns)
    inputs = []
    for _ in range(operator.inputs):
        values = torch.empty(shape).uniform_(operator.low, operator.high).to(dtype)
        inputs.append(values if layout == "contiguous" else values[:, ::2])
    return inputs


def to_device(x: torch.Tensor) -> torch.Tensor:
    """The same numbers with the same strides."""
    result = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="mps")
    return result.copy_(x)


def best_time(function: Callable[[], object], minimum: float) -> float:
    """Microseconds a call: the best of several blocks that each take at least `minimum` seconds."""
    function()
    torch.mps.synchronize()
    calls = 1
    while True:
        start = time.perf_counter()
        for _ in range(calls):
            function()
        torch.mps.synchronize()
        elapsed = time.perf_counter() - start
        if elapsed >= minimum:
            break
        calls = max(calls + 1, math.ceil(calls * min(10.0, 1.2 * minimum / max(elapsed, 1e-9))))
    best = elapsed / calls
    for _ in range(4):
        start = time.perf_counter()
        for _ in range(calls):
            function()
        torch.mps.synchronize()
        best = min(best, (time.perf_counter() - start) / calls)
    return 1e6 * best


def measure(operator: Benchmark, dtype_name: str, layout: str, size: int, minimum: float) -> Result:
    dtype = DTYPES[dtype_name]
    inputs = make_inputs(operator, dtype, layout, size)
    shape = list(inputs[0].shape)
    if operator.halves:
        shape[-1] //= 2
    on_device = [to_device(x) for x in inputs]
    out = torch.empty(shape, dtype=dtype, device="mps")
    device_us = best_time(lambda: operator.ours(*on_device, out), minimum)
    cpu_out = torch.empty(shape, dtype=dtype)
    try:
        torch_us = best_time(lambda: operator.theirs(*inputs, cpu_out), minimum)
    except NotImplementedError:
        torch_us = None
    except RuntimeError as error:
        if "not implemented for" not in str(error):
            raise
        torch_us = None
    ratio = None if torch_us is None else torch_us / device_us
    return Result(
        operator.name, dtype_name, layout, size, operator.composed, device_us, torch_us, ratio
    )


def plot(results: list[Result], path: str) -> None:
    """One small diagram for each operator: ratio over size, a line for each dtype, dashed where strided."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(result.operator for result in results))
    columns = 6
    rows = math.ceil(len(names) / columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(3 * columns, 2.2 * rows), squeeze=False)
    colours = dict(zip(DTYPES, ("C0", "C1", "C2"), strict=True))
    for axis in axes.flat[len(names) :]:
        axis.axis("off")
    for axis, name in zip(axes.flat, names, strict=False):
        for dtype, colour in colours.items():
            for layout, style in zip(LAYOUTS, ("-", "--"), strict=True):
                points = [
                    (result.size, result.ratio)
                    for result in results
                    if (result.operator, result.dtype, result.layout) == (name, dtype, layout)
                    and result.ratio is not None
                ]
                if points:
                    axis.plot(
                        *zip(*points, strict=True), style, color=colour, label=f"{dtype} {layout}"
                    )
        axis.axhline(1, color="grey", linewidth=0.5)
        axis.set(xscale="log", yscale="log", title=name)
    axes[0][0].legend(fontsize="xx-small")
    figure.supylabel("torch's CPU time / our time")
    figure.supxlabel("elements")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--plot", metavar="FILE", help="write a diagram there (needs matplotlib)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="operators whose name contains this")
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=LAYOUTS)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument(
        "--minimum", type=float, default=0.01, help="seconds for each block of calls"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)

    benchmarks = [*raw_operators(), *gather("BENCHMARKS")]
    results = []
    print(
        f"{'operator':30} {'dtype':9} {'layout':10} {'size':>9} {'device us':>12} {'torch us':>12} {'ratio':>7}"
    )
    for operator in benchmarks:
        if options.only not in operator.name:
            continue
        for dtype in options.dtypes:
            if operator.only_dtype not in (None, dtype):
                continue
            for layout in options.layouts:
                for size in options.sizes:
                    result = measure(operator, dtype, layout, size, options.minimum)
                    results.append(result)
                    torch_us = "-" if result.torch_us is None else f"{result.torch_us:12.2f}"
                    ratio = "-" if result.ratio is None else f"{result.ratio:7.2f}"
                    print(
                        f"{operator.name:30} {dtype:9} {layout:10} {size:9} {result.device_us:12.2f} {torch_us:>12} {ratio:>7}",
                        flush=True,
                    )
    explained = reasons(results, benchmarks)
    for line in explained:
        print(line)
    if options.json:
        record = {
            "metalops": importlib.metadata.version("metalops"),
            "torch": torch.__version__,
            "device": torch.backends.mps.get_name(),
            "threads": options.threads,
            "results": [asdict(result) for result in results],
            "reasons": explained,
        }
        with open(options.json, "w", encoding="utf-8") as f:
            json.dump(record, f, indent=1)
    if options.plot:
        plot(results, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
