"""Factorisations on the software device beside LAPACK's, as torch's CPU operators call it, on one thread.

    python benchmarks/linear_algebra.py --only qr

A line for each function and shape: milliseconds of LAPACK and ours, and their quotient, which is above 1 where ours is the
faster one. Times are CPU time, the least of several calls, so that other work on the machine matters little.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import metalops  # noqa: F401
import torch
from torch import Tensor

SHAPES = (
    *((1024, 4, 4), (1024, 8, 8), (512, 16, 16), (128, 32, 32), (32, 64, 64), (4, 128, 128)),
    *((1, 512, 512), (1, 1024, 1024), (1, 4000, 36)),
)


def _as_it_is(x: Tensor) -> tuple[Tensor, ...]:
    return (x,)


def _symmetric(x: Tensor) -> tuple[Tensor, ...]:
    return (x + x.mH,)


def _positive(x: Tensor) -> tuple[Tensor, ...]:
    n = x.shape[-1]
    return (x @ x.mH / n + torch.eye(n, dtype=x.dtype),)


def _beside_another(x: Tensor) -> tuple[Tensor, ...]:
    return x, x.flip(-2).contiguous()


def _reflectors(x: Tensor) -> tuple[Tensor, ...]:
    return (*torch.geqrf(x), x)


def _factored(x: Tensor) -> tuple[Tensor, ...]:
    return (*torch.linalg.lu_factor(x), x)


class Case(NamedTuple):
    """prepare: what of random matrices is timed."""

    prepare: Callable[[Tensor], tuple[Tensor, ...]]
    function: Callable[..., Any]
    is_of_squares: bool = True


CASES = {
    "qr": Case(_as_it_is, torch.linalg.qr, False),
    "geqrf": Case(_as_it_is, torch.geqrf, False),
    "householder_product": Case(
        _reflectors, lambda a, tau, _: torch.linalg.householder_product(a, tau), False
    ),
    "ormqr": Case(_reflectors, lambda a, tau, x: torch.ormqr(a, tau, x, True, True), False),
    "svd": Case(_as_it_is, lambda x: torch.linalg.svd(x, full_matrices=False), False),
    "svdvals": Case(_as_it_is, torch.linalg.svdvals, False),
    "eigh": Case(_symmetric, torch.linalg.eigh),
    "eigvalsh": Case(_symmetric, torch.linalg.eigvalsh),
    "eig": Case(_as_it_is, torch.linalg.eig),
    "eigvals": Case(_as_it_is, torch.linalg.eigvals),
    "lu_factor": Case(_as_it_is, torch.linalg.lu_factor),
    "lu_solve": Case(_factored, torch.linalg.lu_solve),
    "solve": Case(_beside_another, torch.linalg.solve),
    "inv": Case(_as_it_is, torch.linalg.inv),
    "det": Case(_as_it_is, torch.linalg.det),
    "cholesky": Case(_positive, torch.linalg.cholesky),
    "ldl_factor": Case(_symmetric, torch.linalg.ldl_factor),
    "solve_triangular": Case(
        _beside_another, lambda a, b: torch.linalg.solve_triangular(a, b, upper=True)
    ),
    "lstsq": Case(_beside_another, lambda a, b: torch.linalg.lstsq(a, b).solution, False),
    "matrix_exp": Case(_as_it_is, torch.linalg.matrix_exp),
}


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
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--shapes", nargs="*", help="such as 4x128x128")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each time")
    options = parser.parse_args()
    shapes = [tuple(map(int, x.split("x"))) for x in options.shapes or []] or SHAPES
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(
        "| function | dtype | shape | LAPACK | ours | LAPACK / ours |\n|---|---|---|---:|---:|---:|"
    )
    for name in options.only:
        case = CASES[name]
        for dtype in (torch.float32, torch.complex64):
            for shape in shapes:
                if case.is_of_squares and shape[-2] != shape[-1]:
                    continue
                there = case.prepare(torch.randn(shape, dtype=dtype))
                here = [x.to("mps") for x in there]
                theirs, ours = (
                    milliseconds(lambda x=x, f=case.function: f(*x), options.seconds)
                    for x in (there, here)
                )
                row = f"| {name} | {str(dtype)[6:]} | {' x '.join(map(str, shape))} "
                print(f"{row}| {theirs:.2f} | {ours:.2f} | {theirs / ours:.2f} |", flush=True)


if __name__ == "__main__":
    main()
