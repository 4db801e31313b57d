"""Times kernels whose threads wait for each other, on one thread, against torch's CPU operators on the same tensors.

    python benchmarks/synchronising.py
    METALOPS_ENGINE=fiber python benchmarks/synchronising.py --only softmax

A line for each case: torch's time / ours, or what stands behind the number, beside what it should be when kernels are
compiled by clang and by g++; lines that fall short of the goal for the compiler that there is end with `below`. Every
case checks its result first. The kernels of synchronising.metal and those that ship in torch's headers are compiled when
the benchmark runs, with the compiler that $CXX names; the operators of metalops are as they were built.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from metalops import _host, msl
from run import gather, raw_operators, to_device
from torch import Tensor

HERE = Path(__file__).parent
SECONDS = 0.5  # for a side of a case, or one run of it if that takes longer
THREADS = 256  # of a group that has a row


@dataclass(frozen=True)
class Work:
    """What a case times. agree() raises AssertionError unless the result of ours(), which has run, is right."""

    ours: Callable[[], object]
    theirs: Callable[[], object]
    agree: Callable[[], None]


@dataclass(frozen=True)
class Case:
    """make: of the part of the work that is done, 1 or less. clang, gcc: what `figure` should be at least, if there is
    a goal. figure: of our seconds, theirs and the part of the work."""

    name: str
    clang: float
    gcc: float | None
    make: Callable[[float], Work]
    figure: Callable[[float, float, float], float] = lambda ours, theirs, part: theirs / ours
    unit: str = "x"


@dataclass(frozen=True)
class Result:
    """Times in CPU seconds; theirs is torch's, or that of fibers where the unit is `x fibers`."""

    case: str
    ours: float
    theirs: float
    figure: float
    unit: str
    clang: float
    gcc: float | None


def best(function: Callable[[], object]) -> float:
    """CPU seconds of the fastest call: they do not count other programs' turns on a machine that is busy."""
    fastest, spent = math.inf, 0.0
    while spent < SECONDS:
        start = time.process_time()
        function()
        elapsed = time.process_time() - start
        fastest, spent = min(fastest, elapsed), spent + elapsed
    return fastest


def uints(*values: int) -> bytes:
    return struct.pack(f"{len(values)}I", *values)


# ---- kernels -------------------------------------------------------------------------------------


@functools.cache
def library() -> _host.Library:
    return _host.Library(msl.compile_source((HERE / "synchronising.metal").read_text()))


def of_rows(
    kernel: str,
    rows: int,
    columns: int,
    operands: Callable[[int], list[Tensor]],
    theirs: Callable[..., Tensor],
    part: float,
    tolerance: float = 1e-5,
) -> Work:
    """operands: of the number of columns, those beside the rows. theirs: of the rows and them."""
    rows = int(rows * part)
    inputs = [torch.randn(rows, columns), *operands(columns)]
    expected = theirs(*inputs)
    out = torch.empty_like(expected)
    buffers = [out, *inputs, uints(columns)]
    return Work(
        lambda: library().launch(kernel, buffers, rows * THREADS, THREADS),
        lambda: theirs(*inputs),
        lambda: torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance),
    )


def composed_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight


def matmul(kernel: str, tile: int, group: tuple[int, ...], part: float) -> Work:
    """tile: the edge of what a group makes."""
    n = edge(part)
    a, b = torch.randn(n, n), torch.randn(n, n)
    out, expected = torch.empty(n, n), a @ b
    grid = [n // tile * size for size in (*group, 1)[:2]]
    return Work(
        lambda: library().launch(kernel, [out, a, b, uints(n)], grid, group),
        lambda: torch.mm(a, b),
        lambda: torch.testing.assert_close(out, expected, rtol=1e-3, atol=1e-3),
    )


def edge(part: float) -> int:
    return 1024 if part == 1 else 256


def gigaflops(ours: float, theirs: float, part: float) -> float:
    return 2 * edge(part) ** 3 / ours / 1e9


ATTENTION = """
#include <c10/metal/common.h>
#include <c10/metal/utils.h>
#include <metal_simdgroup>
#include <metal_stdlib>
using namespace metal;
#include <ATen/native/mps/kernels/DecodeAttention.h>
"""


def decode_attention(dtype: torch.dtype, name: str, part: float) -> Work:
    """One query for each of 32 heads that share 8 heads of 4,096 keys and values."""
    kernel = f"sdpa_vector_{name}_64_64_masknone"
    options = msl.Options(kernels=(kernel,))
    attention = _host.Library(msl.compile_source(ATTENTION, options=options))
    heads, kv_heads, keys, size = 32, 8, int(4096 * part), 64
    q = torch.randn(1, heads, 1, size).to(dtype)
    k, v = (torch.randn(1, kv_heads, keys, size).to(dtype) for _ in range(2))
    out = torch.empty_like(q)
    scale = 1 / math.sqrt(size)
    buffers = [
        q, k, v, out, uints(heads // kv_heads), uints(keys),
        uints(size, keys * size, keys * size, 0), uints(size, size, size, 0),
        struct.pack("f", scale), None, None,
        uints(heads * size, kv_heads * keys * size, kv_heads * keys * size, heads),
    ]  # fmt: skip

    def theirs(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    expected = theirs(q.double(), k.double(), v.double())
    tolerance = 1e-5 if dtype == torch.float32 else 2e-3

    return Work(
        lambda: attention.launch(kernel, buffers, (heads * 1024, 1, 1), (1024, 1, 1)),
        lambda: theirs(q, k, v),
        lambda: torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance),
    )


# ---- Inductor's kernels --------------------------------------------------------------------------


@contextlib.contextmanager
def fibers() -> Iterator[None]:
    before = _host.prefer_engine("fiber")
    try:
        yield
    finally:
        _host.prefer_engine(before)


def compiled(function: Callable[[Tensor], Tensor], gradient: bool, part: float) -> Work:
    """torch.compile's own Metal code, on the engine of choice against fibers."""
    x = torch.randn(int(128 * part), 1024)
    on_device = x.to("mps").requires_grad_(gradient)
    fused = torch.compile(function, fullgraph=True)

    def both(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, ...]:
        y = function(x)
        return (y, *torch.autograd.grad(y, x, torch.cos(y.detach()))) if gradient else (y,)

    def on_fibers() -> None:
        with fibers():
            both(fused, on_device)

    def agree() -> None:
        actual = [result.detach().cpu() for result in both(fused, on_device)]
        expected = list(both(function, x.requires_grad_(gradient)))
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)

    return Work(lambda: both(fused, on_device), on_fibers, agree)


def small_model(x: Tensor) -> Tensor:
    """The reductions of a small model, and what Inductor fuses with them."""
    x = F.layer_norm(torch.tanh(x), x.shape[-1:])
    return F.log_softmax(x * 2, -1)


def inductor(name: str, function: Callable[[Tensor], Tensor], gradient: bool = True) -> Case:
    kind = "forward and backward" if gradient else "forward"
    return Case(
        f"Inductor {name}, {kind}",
        10,
        10,
        functools.partial(compiled, function, gradient),
        unit="x fibers",
    )


# ---- operators -----------------------------------------------------------------------------------


def operator(name: str, dtype: torch.dtype, part: float) -> Work:
    """A benchmark of run.py, of 4M elements."""
    benchmark = next(b for b in (*raw_operators(), *gather("BENCHMARKS")) if b.name == name)
    shape = (int(1024 * part), 4096)
    inputs = [
        torch.empty(shape).uniform_(benchmark.low, benchmark.high).to(dtype)
        for _ in range(benchmark.inputs)
    ]
    on_device = [to_device(x) for x in inputs]
    out = torch.empty(shape, dtype=dtype)
    on_device_out = out.to("mps")
    # What a benchmark makes beside the operands, it makes for each device when it is first called.
    torch.manual_seed(1)
    expected = benchmark.theirs(*inputs, out)
    torch.manual_seed(1)
    actual = benchmark.ours(*on_device, on_device_out)

    def agree() -> None:
        tolerance = 1e-3  # sums of thousands of numbers
        torch.testing.assert_close(
            actual, expected, rtol=tolerance, atol=tolerance, check_device=False
        )

    return Work(
        lambda: benchmark.ours(*on_device, on_device_out),
        lambda: benchmark.theirs(*inputs, out),
        agree,
    )


def ours(name: str, clang: float = 1, gcc: float | None = 0.5) -> Case:
    return Case(name, clang, gcc, functools.partial(operator, name, torch.float32))


def none(columns: int) -> list[Tensor]:
    return []


def weight(columns: int) -> list[Tensor]:
    return [torch.randn(columns)]


def weight_and_bias(columns: int) -> list[Tensor]:
    return [torch.randn(columns), torch.randn(columns)]


def rows(name: str, *arguments: object, tolerance: float = 1e-5) -> Callable[[float], Work]:
    return lambda part: of_rows(name, *arguments, part, tolerance)


CASES = [
    Case("row sum 1024 x 16384", 0.8, 0.3,
         rows("row_sum", 1024, 16384, none, lambda x: x.sum(1), tolerance=1e-3)),
    Case("row softmax 1024 x 4096", 2, 0.7,
         rows("row_softmax", 1024, 4096, none, lambda x: torch.softmax(x, 1))),
    Case("rms_norm 1024 x 4096, against a composition", 3, 1,
         rows("rms_norm", 1024, 4096, weight, composed_rms_norm)),
    Case("layer_norm 1024 x 4096", 1, 0.4,
         rows("layer_norm", 1024, 4096, weight_and_bias,
              lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b))),
    Case("torch's decode attention, float32", 2, 0.7,
         functools.partial(decode_attention, torch.float32, "float")),
    Case("torch's decode attention, float16", 2, 0.7,
         functools.partial(decode_attention, torch.float16, "half")),
    Case("matmul 1024^3, tiles in threadgroup memory", 8, 4,
         functools.partial(matmul, "matmul_tiles", 16, (16, 16)), gigaflops, "GFLOP/s"),
    Case("matmul 1024^3, 4 x 4 elements a thread", 8, 4,
         functools.partial(matmul, "matmul_blocks", 64, (16, 16)), gigaflops, "GFLOP/s"),
    Case("matmul 1024^3, simdgroup_matrix", 8, 4,
         functools.partial(matmul, "matmul_simdgroup_matrix", 64, (128,)), gigaflops, "GFLOP/s"),
    inductor("layer_norm", lambda x: F.layer_norm(x, x.shape[-1:])),
    inductor("softmax", lambda x: torch.softmax(x, -1)),
    inductor("variance", lambda x: torch.var(x, -1)),
    inductor("argmax", lambda x: x.argmax(-1), gradient=False),
    inductor("small model", small_model),
    ours("_masked_softmax"),
    ours("_masked_softmax, gradient"),
    ours("segment_reduce"),
    ours("segment_reduce, gradient"),
    ours("segment_reduce, short segments"),
    ours("batch_norm_update_stats"),
    ours("ctc_loss"),
    ours("ctc_loss, gradient"),
    ours("raw add", 0.9, None),
    ours("raw sigmoid", 1, None),
    Case("raw add, float16", 1, None, functools.partial(operator, "raw add", torch.float16)),
]  # fmt: skip


def measure(case: Case, part: float) -> Result:
    torch.manual_seed(0)
    work = case.make(part)
    work.ours()
    work.theirs()
    work.agree()
    ours, theirs = best(work.ours), best(work.theirs)
    figure = case.figure(ours, theirs, part)
    return Result(case.name, ours, theirs, figure, case.unit, case.clang, case.gcc)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--quick", action="store_true", help="a sixteenth of the work")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    compiler = "clang" if "clang" in library().build else "g++"
    print(f"kernels compiled by {library().build}")
    print(f"{'case':46} {'ours ms':>9} {'theirs ms':>9} {'figure':>16}   goal with clang, g++")
    results = []
    for case in CASES:
        if options.only not in case.name:
            continue
        result = measure(case, 1 / 16 if options.quick else 1)
        results.append(result)
        goal = result.clang if compiler == "clang" else result.gcc
        short = "below" if goal is not None and result.figure < goal else ""
        print(
            f"{result.case:46} {1e3 * result.ours:9.2f} {1e3 * result.theirs:9.2f} "
            f"{result.figure:7.2f} {result.unit:8}   {result.clang:g}, "
            f"{'-' if result.gcc is None else format(result.gcc, 'g')}  {short}",
            flush=True,
        )
    if options.json:
        record = {"compiler": compiler, "results": [asdict(result) for result in results]}
        Path(options.json).write_text(json.dumps(record, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
