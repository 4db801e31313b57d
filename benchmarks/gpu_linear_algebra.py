"""Times factorisations of many small matrices on an NVIDIA GPU by our kernels, beside torch's (cuSOLVER and cuBLAS).

    python benchmarks/gpu_linear_algebra.py   # needs no compiled part of metalops

A line for each case: milliseconds of ours and of torch, how many times torch's speed ours has, and the error of the factors in
units of n eps, which is checked. Where torch takes one matrix after the other its time is that of a part of them. Times are the
least of several, between events on the GPU around ten calls; ours are of CUDA graphs, without the host's part, but for eigh, svd and
eig, which wait for the GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from metalops.cuda import linalg
from torch import Tensor

EPSILON = 2.0**-23
SIZES = (4, 8, 16, 32, 64)
Factors = tuple[Tensor, ...]


def lu_factor(a: Tensor) -> Factors:
    return linalg.lu_factor_ex(a)[:2]


def cholesky(a: Tensor) -> Factors:
    return linalg.cholesky_ex(a, upper=True)[:1]


def _norm(x: Tensor) -> Tensor:
    return x.abs().sum(-2).amax(-1)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.complex128) if x.is_complex() else x.double() if x.is_floating_point() else x


def _rebuilt(name: str, factors: Factors) -> Tensor:
    first, *rest = (_wide(x) for x in factors)
    if name == "svd":
        return first * rest[0][..., None, :] @ rest[1]
    if name == "eigh":
        return rest[0] * first[..., None, :] @ rest[0].mT
    if name == "qr":
        return first @ rest[0]
    if name == "lu_factor":
        p, lower, upper = torch.lu_unpack(first, rest[0])
        return p @ lower @ upper
    return first.mT @ first


def _symmetric(a: Tensor) -> Tensor:
    return a + a.mT


def _positive(a: Tensor) -> Tensor:
    return a @ a.mT / a.shape[-1] + torch.eye(a.shape[-1], device=a.device)


def _error(name: str, a: Tensor, factors: Factors) -> Tensor:
    if name == "eig":  # of A V = V L
        values, vectors = (_wide(x) for x in factors)
        of_a = a.to(torch.complex128)
        return _norm(of_a @ vectors - vectors * values[..., None, :])
    return _norm(_rebuilt(name, factors) - a.double())


class Case(NamedTuple):
    make: Callable[[Tensor], Tensor]  # of a random matrix
    ours: Callable[[Tensor], Factors]
    theirs: Callable
    most: int = 32  # rows up to which the kernel alone does it
    bound: float = 5  # of errors
    alone: int = 65  # rows from which on torch takes one matrix after the other: few are timed then
    waits: bool = False  # ours waits for the GPU, so a CUDA graph cannot hold it


def _same(a: Tensor) -> Tensor:
    return a


CASES = {
    "eigh": Case(_symmetric, linalg.eigh, torch.linalg.eigh, 64, alone=33, waits=True),
    "svd": Case(_same, linalg.svd, torch.linalg.svd, 64, alone=33, waits=True),
    "eig": Case(_same, linalg.eig, torch.linalg.eig, bound=20, alone=0, waits=True),
    "qr": Case(_same, linalg.qr, torch.linalg.qr, alone=0),
    "lu_factor": Case(_same, lu_factor, torch.linalg.lu_factor_ex, 64),
    "cholesky": Case(_positive, cholesky, torch.linalg.cholesky_ex, 64),
}
FEW = 64  # one in so many


def captured(call: Callable[[], object]) -> Callable[[], object]:
    """Returns a replay of the call's CUDA graph, without the host's part."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def milliseconds(call: Callable[[], object], repeat: int = 5, together: int = 10) -> float:
    call()
    times = []
    for _ in range(repeat):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(together):
            call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / together)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--batch", type=int, default=16384)
    options = parser.parse_args()
    torch.manual_seed(0)
    print(torch.cuda.get_device_name())
    print(f"{'milliseconds':24} {'ours':>9} {'torch':>9} {'times':>6}  error")
    for name in options.only:
        case = CASES[name]
        for n in (n for n in SIZES if n <= case.most):
            a = case.make(torch.randn(options.batch, n, n, device="cuda"))
            worst = (_error(name, a, case.ours(a)) / (n * EPSILON * _norm(a))).max().item()
            assert worst <= case.bound, f"{name} of {n} rows: an error of {worst}"
            ours = partial(case.ours, a)
            of_ours = milliseconds(ours if case.waits else captured(ours))
            part = FEW if n >= case.alone else 1
            few = a[: options.batch // part]
            of_torch = part * milliseconds(lambda few=few, case=case: case.theirs(few), 2, 1)
            label = f"{name} {options.batch} x {n}"
            times = of_torch / of_ours
            print(
                f"{label:24} {of_ours:9.3f} {of_torch:9.3f} {times:6.2f}  {worst:.2f}", flush=True
            )


if __name__ == "__main__":
    main()
