"""Factorisations on the software device beside LAPACK's, as torch's CPU operators call it, on one thread.

    python benchmarks/linear_algebra.py --only qr

A line for each function and shape: milliseconds of LAPACK and ours, and their quotient, which is above 1 where ours is the
faster one. Times are CPU time, the least of several calls, so that other work on the machine matters little.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import metalops  # noqa: F401
import torch
from torch import Tensor

SHAPES = (
    *((1024, 4, 4), (1024, 8, 8), (512, 16, 16), (128, 32, 32), (32, 64, 64), (4, 128, 128)),
    *((1, 512, 512), (1, 4000, 36)),
)


def _reflectors(x: Tensor) -> tuple[Tensor, ...]:
    return (*torch.geqrf(x), x)


# Of matrices: what is prepared of them, and what is timed with that.
FUNCTIONS: dict[str, tuple[Callable[[Tensor], tuple[Tensor, ...]], Callable[..., Any]]] = {
    "qr": (lambda x: (x,), torch.linalg.qr),
    "eig": (lambda x: (x,), torch.linalg.eig),
    "eigvals": (lambda x: (x,), torch.linalg.eigvals),
    "geqrf": (lambda x: (x,), torch.geqrf),
    "householder_product": (
        _reflectors,
        lambda a, tau, _: torch.linalg.householder_product(a, tau),
    ),
    "svd": (lambda x: (x,), lambda x: torch.linalg.svd(x, full_matrices=False)),
    "svdvals": (lambda x: (x,), torch.linalg.svdvals),
    "ormqr": (_reflectors, lambda a, tau, x: torch.ormqr(a, tau, x, True, True)),
}

OF_SQUARES = ("eig", "eigvals")


def milliseconds(call: Callable[[], Any], seconds: float) -> float:
    call()
    least = float("inf")
    end = time.monotonic() + seconds
    while time.monotonic() < end or least == float("inf"):
        start = time.process_time()
        call()
        torch.mps.synchronize()
        least = min(least, time.process_time() - start)
    return least * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(FUNCTIONS), choices=list(FUNCTIONS))
    parser.add_argument("--seconds", type=float, default=0.5, help="for each time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(
        "| function | dtype | shape | LAPACK | ours | LAPACK / ours |\n|---|---|---|---:|---:|---:|"
    )
    for name in options.only:
        prepare, function = FUNCTIONS[name]
        for dtype in (torch.float32, torch.complex64):
            for shape in SHAPES:
                if name in OF_SQUARES and shape[-2] != shape[-1]:
                    continue
                there = prepare(torch.randn(shape, dtype=dtype))
                here = [x.to("mps") for x in there]
                theirs, ours = (
                    milliseconds(lambda x=x, f=function: f(*x), options.seconds)
                    for x in (there, here)
                )
                row = f"| {name} | {str(dtype)[6:]} | {' x '.join(map(str, shape))} "
                print(f"{row}| {theirs:.2f} | {ours:.2f} | {theirs / ours:.2f} |", flush=True)


if __name__ == "__main__":
    main()
