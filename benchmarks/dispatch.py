"""What a call costs besides computing: operators on 8 elements, on the mps device and by torch's CPU operators.

    python benchmarks/dispatch.py --only gelu

Prints microseconds a call and our time / torch's, on one thread: stock operators, which a stand-in serves, and operators
of ours, by name and with `out=`. Both sides take turns, and the best of many short rounds counts, so that a busy machine
disturbs neither more than the other. More operators: `python benchmarks/run.py --sizes 8`.
"""

from __future__ import annotations

import argparse
import sys
import timeit
from collections.abc import Callable

import metalops
import torch
import torch.nn.functional as F
from torch import special

SIZE = 8
CALLS = 400  # of a round


def cases(device: str) -> dict[str, Callable[[], object]]:
    torch.manual_seed(0)
    a, b, c, d = (torch.rand(SIZE).add(0.1).to(device) for _ in range(4))
    out = torch.empty(SIZE, device=device)
    mask = torch.zeros(1, SIZE, dtype=torch.bool, device=device)
    ours = device == "mps"
    return {
        "add": lambda: a + b,
        "add, out": lambda: torch.add(a, b, out=out),
        "mul": lambda: a * b,
        "mul by a number": lambda: a * 2.0,
        "exp": lambda: a.exp(),
        "gelu": lambda: F.gelu(a),
        "sum": lambda: a.sum(),
        "softmax": lambda: a.softmax(0),
        "airy_ai": lambda: special.airy_ai(a),
        "airy_ai, out": lambda: special.airy_ai(a, out=out),
        "hermite_polynomial_h": lambda: special.hermite_polynomial_h(a, b),
        "laguerre_polynomial_l": lambda: special.laguerre_polynomial_l(a, b),
        "gelu_new against gelu": (
            (lambda: metalops.ops.gelu_new(a)) if ours else (lambda: F.gelu(a, approximate="tanh"))
        ),
        "swiglu against silu and mul": (
            (lambda: metalops.ops.swiglu(a, b)) if ours else (lambda: F.silu(a) * b)
        ),
        "fma against addcmul": (
            (lambda: metalops.ops.fma(a, c, d)) if ours else (lambda: torch.addcmul(a, c, d))
        ),
        "hash_tensor": lambda: torch.hash_tensor(a),
        "_masked_softmax": lambda: torch._masked_softmax(a[None], mask, 1, 2),
        "take": lambda: torch.take(a, indices[device]),
        "frexp": lambda: torch.frexp(a),
        "logspace": lambda: torch.logspace(0, 1, SIZE, device=device),
    }


indices = {
    device: torch.arange(SIZE, device=device).flip(0).contiguous() for device in ("cpu", "mps")
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="operators whose name contains this")
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    on_cpu, on_device = cases("cpu"), cases("mps")
    print(f"{'operator':30} {'device us':>10} {'torch us':>10} {'device / torch':>15}")
    for name, theirs in on_cpu.items():
        if options.only not in name:
            continue
        timers = [timeit.Timer(theirs), timeit.Timer(on_device[name])]
        best = [float("inf")] * 2
        for _ in range(options.rounds):
            for side, timer in enumerate(timers):
                best[side] = min(best[side], timer.timeit(CALLS) / CALLS * 1e6)
        print(f"{name:30} {best[1]:10.3f} {best[0]:10.3f} {best[1] / best[0]:15.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
