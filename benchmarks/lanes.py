"""Times kernels with a thread per result, which the software device runs as vector lanes, against code for lanes written by
hand and torch's CPU operators on the same tensors.

    CXX=g++ python benchmarks/lanes.py
    python benchmarks/lanes.py --threads 2 --only softmax

Prints a table: milliseconds of the kernel compiled without and with lanes, how many threads run together or why none do,
milliseconds of lanes.cpp and torch, and ours in multiples of theirs. lanes.metal and lanes.cpp are compiled by the compiler
that $CXX names, with the flags of kernels. Times are CPU seconds of one thread, or seconds with --threads; lanes.cpp always
runs on one thread. Results are checked first: with lanes they are those without, bit for bit.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from metalops import _host, msl
from metalops.msl.source import compiler
from metalops.msl.targets.host.emit import emit
from torch import Tensor

HERE = Path(__file__).parent
SECONDS = 0.3  # for each side of a case, or one run of it if that takes longer


@dataclass(frozen=True)
class Case:
    """out: what the kernel writes. numbers: the parameters after the tensors. by_hand: those of lanes.cpp after the
    tensors, if they are others. torch: the same by torch, if it has operators for that."""

    grid: list[int]
    out: Tensor
    inputs: list[Tensor]
    numbers: list[int]
    by_hand: list[int]
    torch: Callable[[], Tensor] | None = None


def images(size: int, columns: int) -> tuple[Tensor, Tensor, Callable[[], Tensor]]:
    x, weights = torch.rand(columns + size - 1, columns + size - 1), torch.rand(size, size)
    return x, weights, lambda: F.conv2d(x[None, None], weights[None, None])[0, 0]


def stencil_by_torch(x: Tensor) -> Tensor:
    around = x[1:-1, :-2] + x[1:-1, 2:] + x[:-2, 1:-1] + x[2:, 1:-1]
    return F.pad(0.5 * x[1:-1, 1:-1] + 0.125 * around, (1, 1, 1, 1))


def weights_of(packed: Tensor, scales: Tensor) -> Tensor:
    blocks = packed.view(packed.shape[0], -1, 16).int()
    both = torch.stack([(blocks & 15) - 8, (blocks >> 4) - 8], 2)
    return (both.flatten(2) * scales[:, :, None]).flatten(1)


def cases() -> dict[str, Case]:
    torch.manual_seed(0)
    a, b, tall, many = (torch.rand(*s) for s in ((512, 512), (512, 512), (4096, 1024), (1 << 22,)))
    image, weights, convolved = images(7, 1024)
    logits, words = torch.randn(4096, 512), torch.randint(0, 1 << 30, (1 << 20,)).int()
    bodies, speeds = torch.rand(4096, 4), torch.rand(4096, 4)
    packed = torch.randint(0, 256, (4096, 1024), dtype=torch.uint8)
    scales, x = torch.rand(4096, 64), torch.rand(2048)
    dense = weights_of(packed, scales)
    square, plane = torch.empty(512, 512), torch.zeros(1024, 1024)
    return {
        "product": Case([512, 512], square, [a, b], [512], [512], lambda: a @ b),
        "column_sums": Case(
            [1024], torch.empty(1024), [tall], [1024, 4096], [1024, 4096], lambda: tall.sum(0)
        ),
        "row_sums": Case(
            [4096], torch.empty(4096), [tall], [1024], [1024, 4096], lambda: tall.sum(1)
        ),
        "mandelbrot": Case([512, 512], square, [], [512], [512]),
        "multiply_adds": Case([1 << 22], torch.empty(1 << 22), [many], [], [1 << 22]),
        "filter_7x7": Case([1024, 1024], plane, [image, weights], [1024], [1024], convolved),
        "convolution": Case([1024, 1024], plane, [image, weights], [1024, 7], [1024, 7], convolved),
        "stencil": Case(
            [1024, 1024],
            torch.zeros(1024, 1024),
            [tall.view(4, 1024, 1024)[0]],
            [1024, 1024],
            [1024, 1024],
            lambda: stencil_by_torch(tall.view(4, 1024, 1024)[0]),
        ),
        "n_body": Case([4096], torch.empty(4096, 4), [bodies, speeds], [4096], [4096]),
        "softmax": Case(
            [4096], torch.empty(4096, 512), [logits], [512], [512, 4096], lambda: logits.softmax(1)
        ),
        "hash": Case([1 << 20], torch.empty(1 << 20).int(), [words], [], [1 << 20]),
        "gemv_4bit": Case(
            [4096], torch.empty(4096), [packed, scales, x], [2048], [2048, 4096], lambda: dense @ x
        ),
    }


def best(function: Callable[[], object], clock: Callable[[], float]) -> float:
    """Milliseconds of the fastest call."""
    fastest, spent = math.inf, 0.0
    while spent < SECONDS:
        start = clock()
        function()
        elapsed = clock() - start
        fastest, spent = min(fastest, elapsed), spent + elapsed
    return fastest * 1e3


def by_hand(folder: str) -> ctypes.CDLL:
    host, output = compiler.find(), f"{folder}/lanes.so"
    command = [
        *host.command,
        *host.flags(),
        "-fvisibility=default",
        "-shared",
        str(HERE / "lanes.cpp"),
        "-o",
        output,
    ]
    subprocess.run(command, check=True)
    return ctypes.CDLL(output)


def compare(
    name: str, case: Case, libraries: list, written: ctypes.CDLL, clock: Callable[[], float]
) -> list[float]:
    """Returns milliseconds without lanes, with them, by hand and by torch."""
    numbers = [torch.tensor([n], dtype=torch.int32) for n in case.numbers]
    group = [64, *[1] * (len(case.grid) - 1)]
    times, results = [], []
    for library in libraries:
        run = lambda: library.launch(name, [case.out, *case.inputs, *numbers], case.grid, group)  # noqa: B023, E731
        run()
        results.append(case.out.clone())
        times.append(best(run, clock))
    if not torch.equal(results[0].view(torch.int32), results[1].view(torch.int32)):
        raise AssertionError(f"{name}: lanes leave another result than threads without them")
    function = getattr(written, name)
    function.restype = None
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (case.out, *case.inputs)]
    arguments = [*pointers, *map(ctypes.c_long, case.by_hand)]
    function(*arguments)
    torch.testing.assert_close(case.out, results[1], rtol=1e-4, atol=1e-4)
    times.append(best(lambda: function(*arguments), clock))
    if case.torch is None:
        return [*times, math.nan]
    torch.testing.assert_close(results[1], case.torch(), rtol=1e-3, atol=1e-3)
    return [*times, best(case.torch, clock)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default="", help="run the cases with this in their name")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    clock = time.process_time if arguments.threads == 1 else time.perf_counter
    source = (HERE / "lanes.metal").read_text()
    emitted = emit(msl.preprocess(source), lanes=True)
    libraries = [
        _host.Library(msl.compile_source(source, options=msl.Options(lanes=lanes)))
        for lanes in (False, True)
    ]
    print(
        "| kernel | threads together | one by one | lanes | by hand | torch | to hand | to torch |"
    )
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        written = by_hand(folder)
        for name, case in cases().items():
            if arguments.only not in name:
                continue
            times = compare(name, case, libraries, written, clock)
            together = emitted.lanes.get(name) or emitted.no_lanes.get(name, "straight code")
            figures = [*times, times[1] / times[2], times[1] / times[3]]
            shown = " | ".join("" if math.isnan(f) else f"{f:.2f}" for f in figures)
            print(f"| {name} | {together} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
