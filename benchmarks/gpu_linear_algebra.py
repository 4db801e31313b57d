"""Times factorisations of many small matrices on an NVIDIA GPU by our kernels, beside torch's (cuSOLVER and cuBLAS).

    python benchmarks/gpu_linear_algebra.py   # needs no compiled part of metalops

A line for each case: milliseconds of ours and of torch, how many times torch's speed ours has, and the error of the factors in
units of n eps, which is checked. Times are the least of several, between events on the GPU around ten calls.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from metalops.ops import _kernel_file
from torch import Tensor

EPSILON = 2.0**-23
SIZES = (4, 8, 16, 32, 64)
Factors = tuple[Tensor, ...]


def _kernels(file: str):
    return _kernel_file.KernelFile(file), _kernel_file.header(file)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def eigh(a: Tensor) -> Factors:
    kernels, types = _kernels("eigh")
    batch, n, _ = a.shape
    values, infos = a.new_empty(batch, n), a.new_empty(batch, dtype=torch.int32)
    vectors = a.new_empty(batch, n, n)
    p = types.EighParameters(*a.stride(), batch, n, 0, 1)
    if n <= 8:
        name, threads = f"eigh_thread_{4 if n <= 4 else 8}_float", _round_up(batch, 32)
        kernels.grid(name, (threads,), values, vectors, infos, a, p)
    else:
        size = next(size for size in (16, 32, 64) if n <= size)
        kernels.threadgroups(
            f"eigh_simdgroup_{size}_float", batch, 32, values, vectors, infos, a, p
        )
    return values, vectors.mT


def qr(a: Tensor) -> Factors:
    """Of at most 32 rows and columns: R and the reflectors by one kernel, Q by another."""
    kernels, types = _kernels("qr")
    batch, n, _ = a.shape
    columns, taus, q = a.mT.contiguous(), a.new_empty(batch, n), torch.empty_like(a)
    size = next(size for size in (4, 8, 16, 32) if n <= size)
    p = types.QrParameters(batch, n, n, n, 0, n, _round_up(n, 4))
    name = f"qr_small_float_{size}_{size}"
    kernels.simdgroups(name, -(-batch * size // 32), columns, taus, p)
    of_q = types.QrVectorsParameters(n, n, n, n, n * n, n, 1, batch, 0, 0, 1)
    threads = batch * -(-n // 2)
    kernels.grid(f"qr_vectors_float_{size}", (_round_up(threads, 32),), q, columns, taus, of_q)
    return q.mT, columns.mT.triu()


def lu_factor(a: Tensor) -> Factors:
    """Of at most 32 columns: one panel."""
    kernels, types = _kernels("lu")
    batch, n, _ = a.shape
    factors, numbers = a.clone(), a.new_empty(batch, 2, n)
    pivots = a.new_empty(batch, n, dtype=torch.int32)
    infos = torch.zeros_like(pivots[:, 0])
    p = types.LuPanelParameters(n // 4, n * n // 4, n, 0, n, n // 4, n, n, 1)
    kernels.threadgroups("lu_panel_float", batch, 32, factors, numbers, pivots, infos, p)
    return factors, pivots


def cholesky(a: Tensor) -> Factors:
    """Of at most 32 columns: one block. The upper factor; below it is left what was there."""
    kernels, types = _kernels("cholesky")
    batch, n, _ = a.shape
    factors, infos = a.clone(), a.new_zeros(batch, dtype=torch.int32)
    p = types.CholeskyParameters(n // 4, n * n // 4, 0, n)
    kernels.threadgroups("cholesky_block_float", batch, 64, factors, infos, p)
    return (factors.triu(),)


def _norm(x: Tensor) -> Tensor:
    return x.abs().sum(-2).amax(-1)


def _rebuilt(name: str, factors: Factors) -> Tensor:
    first, *rest = (x.double() if x.is_floating_point() else x for x in factors)
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


# What is made of a random matrix, ours, torch's, and up to which size the kernel alone does it.
CASES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Factors], Callable, int]] = {
    "eigh": (_symmetric, eigh, torch.linalg.eigh, 64),
    "qr": (lambda a: a, qr, torch.linalg.qr, 32),
    "lu_factor": (lambda a: a, lu_factor, torch.linalg.lu_factor_ex, 32),
    "cholesky": (_positive, cholesky, torch.linalg.cholesky_ex, 32),
}


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
        make, ours, theirs, most = CASES[name]
        for n in (n for n in SIZES if n <= most):
            a = make(torch.randn(options.batch, n, n, device="cuda"))
            error = _norm(_rebuilt(name, ours(a)) - a.double()) / (n * EPSILON * _norm(a))
            worst = error.max().item()
            assert worst <= 5, f"{name} of {n} rows: an error of {worst}"
            of_ours = milliseconds(lambda a=a, ours=ours: ours(a))
            of_torch = milliseconds(lambda a=a, theirs=theirs: theirs(a), 2, 1)
            case = f"{name} {options.batch} x {n}"
            times = of_torch / of_ours
            print(f"{case:24} {of_ours:9.3f} {of_torch:9.3f} {times:6.2f}  {worst:.2f}", flush=True)


if __name__ == "__main__":
    main()
