"""What a launch costs through Apple's Metal API in Objective-C, on 8 elements, against `torch.mps.compile_shader`.

    python benchmarks/objective_c.py

Prints microseconds a call and the ratio: through the encoder of torch's stream, and with a function, a pipeline and an encoder
for each call, as the templates of Hugging Face's kernel-builder do. Each side is called from Python, takes turns with the others,
and the best of many short rounds counts; the last line is what ctypes needs to call a function that does nothing. Needs clang.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import timeit
from pathlib import Path

import metalops.build
import torch

SIZE = 8
CALLS = 400  # of a round
SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void scale(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                  constant float& factor [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  out[i] = in[i] * factor;
}
"""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    source = Path(__file__).with_suffix(".mm")
    library = ctypes.CDLL(metalops.build.load("objective_c_benchmark", str(source)))
    library.prepare(SOURCE.encode())
    shader = torch.mps.compile_shader(SOURCE).scale
    x, out = torch.arange(float(SIZE), device="mps"), torch.empty(SIZE, device="mps")
    memory = [ctypes.c_void_p(t.untyped_storage().data_ptr()) for t in (x, out)]
    factor, size = ctypes.c_float(2), ctypes.c_uint(SIZE)

    def through(function: object) -> object:
        return lambda: function(*memory, factor, size)

    sides = {
        "compile_shader": lambda: shader(x, out, 2.0),
        "Objective-C, torch's encoder": through(library.by_stream),
        "Objective-C, an encoder a call": through(library.by_template),
    }
    for name, call in sides.items():
        out.zero_()
        call()
        assert torch.equal(out, 2 * x), name
    sides["ctypes, nothing"] = through(library.nothing)
    timers = {name: timeit.Timer(call) for name, call in sides.items()}
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(options.rounds):
        for name, timer in timers.items():
            best[name] = min(best[name], timer.timeit(CALLS) / CALLS * 1e6)
    print(f"{'launch':32} {'us':>8} {'/ compile_shader':>17}")
    for name, time in best.items():
        print(f"{name:32} {time:8.2f} {time / best['compile_shader']:17.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
